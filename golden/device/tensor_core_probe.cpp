#include "golden/device/tensor_core_probe.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace touchstone {

namespace {

constexpr int64_t most_tiles_per_case = 1 << 16;

/// Row `row` of operands of `k` elements, zero-extended.
std::vector<uint32_t> operand_row(const std::vector<std::byte>& rows, int64_t row, int64_t k, int bytes) {
    std::vector<uint32_t> result(static_cast<size_t>(k));
    for (int64_t t = 0; t < k; ++t)
        std::memcpy(&result[static_cast<size_t>(t)], rows.data() + (row * k + t) * bytes,
                    static_cast<size_t>(bytes));
    return result;
}

TensorCoreDifference difference_at(const TensorCoreCase& c, const TensorCoreInputs& inputs, int64_t output,
                                   uint32_t cpu, uint32_t device) {
    const MatrixInstruction& shape = instruction_of(c);
    const int64_t tile = output / (shape.m * shape.n), k = c.steps * shape.k;
    const int m = static_cast<int>(output / shape.n % shape.m), n = static_cast<int>(output % shape.n);
    return {.tile = tile,
            .m = m,
            .n = n,
            .a = operand_row(inputs.a, tile * shape.m + m, k, shape.operand_bytes),
            .b = operand_row(inputs.b, tile * shape.n + n, k, shape.operand_bytes),
            .c = inputs.c[static_cast<size_t>(output)],
            .cpu = cpu,
            .device = device};
}

std::vector<uint32_t> run(const TensorCoreDevice& device, const TensorCoreCase& c,
                          const TensorCoreInputs& inputs) {
    std::vector<uint32_t> outputs = device(c, inputs);
    if (outputs.size() != inputs.c.size())
        throw std::runtime_error(fmt::format("{}: the device returned {} outputs, expected {}", to_text(c),
                                             outputs.size(), inputs.c.size()));
    return outputs;
}

std::string hexadecimal(const std::vector<uint32_t>& bits, int bytes) {
    std::string text;
    for (const uint32_t x : bits) text += fmt::format("{}{:0{}x}", text.empty() ? "" : " ", x, 2 * bytes);
    return text;
}

/// Cases of one kind with `steps` steps altogether in chains of `chain`.
void add_cases(std::vector<TensorCoreCase>& cases, const MatrixInstruction& shape, std::string_view variant,
               std::string_view kind, int chain, int64_t steps) {
    const int64_t per_tile = int64_t{shape.m} * shape.n * chain;
    int64_t tiles = (steps + per_tile - 1) / per_tile;
    for (uint64_t seed = static_cast<uint64_t>(chain); tiles > 0; seed += 8) {
        const int64_t here = std::min(tiles, most_tiles_per_case);
        cases.push_back(
            {std::string(shape.name), std::string(variant), std::string(kind), chain, here, seed});
        tiles -= here;
    }
}

std::vector<std::string_view> variants_of(const MatrixInstruction& shape) {
    if (shape.warpgroup) return {"registers", "shared"};
    return {"registers"};
}

/// The inputs of 64-row tiles as those of four times as many 16-row tiles.
TensorCoreInputs as_warp_tiles(const TensorCoreInputs& inputs, int64_t tiles) {
    TensorCoreInputs result{inputs.a, {}, inputs.c};
    const int64_t b_bytes = std::ssize(inputs.b) / tiles;
    for (int64_t t = 0; t < 4 * tiles; ++t)
        result.b.insert(result.b.end(), inputs.b.begin() + t / 4 * b_bytes,
                        inputs.b.begin() + (t / 4 + 1) * b_bytes);
    return result;
}

int64_t count_differing(const std::vector<uint32_t>& left, const std::vector<uint32_t>& right) {
    int64_t differing = 0;
    for (size_t i = 0; i < left.size(); ++i) differing += left[i] != right[i];
    return differing;
}

/// Outputs of a case of single steps that the model does not give.
int64_t count_differing(const FusedSumModel& model, const TensorCoreCase& c, const TensorCoreInputs& inputs,
                        const std::vector<uint32_t>& answers) {
    const int k = instruction_of(c).k;
    int64_t differing = 0;
#pragma omp parallel for reduction(+ : differing) schedule(static)
    for (int64_t i = 0; i < std::ssize(answers); ++i) {
        const TensorCoreDifference at = difference_at(c, inputs, i, 0, 0);
        const float sum = fused_sum(model, at.a.data(), at.b.data(), k, float_from_bits(at.c));
        differing += float_bits(sum) != answers[static_cast<size_t>(i)];
    }
    return differing;
}

std::string pair_name(const MatrixInstruction& shape, const char* variant) {
    return fmt::format("{}, {}", shape.name, variant);
}

void compare_pair(const MatrixInstruction& wgmma, int64_t outputs, const TensorCoreDevice& device,
                  std::vector<PairComparison>& results) {
    const MatrixInstruction* mma =
        find_matrix_instruction("hopper.mma." + std::string(wgmma.name.substr(wgmma.name.rfind('.') + 1)));
    const std::string left = pair_name(wgmma, "registers");
    PairComparison shared{left, pair_name(wgmma, "shared")};
    PairComparison warp{left, mma == nullptr ? "" : pair_name(*mma, "registers"),
                        !wgmma.name.ends_with(".e4m3")};
    std::vector<std::string_view> kinds;
    for (const TensorCoreInputKind& kind : tensor_core_input_kinds())
        if (kind.applies(wgmma)) kinds.push_back(kind.name);
    const int64_t tiles = std::max<int64_t>(1, outputs / (wgmma.m * wgmma.n * std::ssize(kinds)));
    for (const std::string_view kind : kinds) {
        TensorCoreCase c{std::string(wgmma.name), "registers", std::string(kind), 2, tiles, 100};
        const TensorCoreInputs inputs = inputs_of(c);
        const std::vector<uint32_t> expected = run(device, c, inputs);
        c.variant = "shared";
        shared.differing += count_differing(expected, run(device, c, inputs));
        shared.outputs += std::ssize(expected);
        if (mma == nullptr) continue;
        c = {std::string(mma->name), "registers", c.inputs, c.steps, 4 * tiles, c.seed};
        warp.differing += count_differing(expected, run(device, c, as_warp_tiles(inputs, tiles)));
        warp.outputs += std::ssize(expected);
    }
    results.push_back(shared);
    if (mma != nullptr) results.push_back(warp);
}

}  // namespace

TensorCoreComparison compare_with_device(const TensorCoreCase& c, const TensorCoreDevice& device) {
    const TensorCoreInputs inputs = inputs_of(c);
    const std::vector<uint32_t> answers = run(device, c, inputs), expected = outputs_on_cpu(c, inputs);
    TensorCoreComparison result{.device_case = c,
                                .steps = std::ssize(expected) * c.steps,
                                .outputs = std::ssize(expected),
                                .differing = 0,
                                .first = std::nullopt,
                                .hashes = {input_hash(instruction_of(c), inputs),
                                           hash_of(std::span<const uint32_t>(answers)), std::ssize(answers)}};
    for (size_t i = 0; i < expected.size(); ++i) {
        if (answers[i] == expected[i]) continue;
        ++result.differing;
        if (!result.first)
            result.first = difference_at(c, inputs, static_cast<int64_t>(i), expected[i], answers[i]);
    }
    return result;
}

std::string describe(const TensorCoreCase& c, const TensorCoreDifference& d) {
    const int bytes = instruction_of(c).operand_bytes;
    return fmt::format(
        "case {} tile={} m={} n={}\n"
        "  A   {}\n"
        "  B   {}\n"
        "  C   {:08x}\n"
        "  CPU {:08x}\n"
        "  GPU {:08x}\n"
        "  reproduce: touchstone gpu probe --case '{}'\n",
        to_text(c), d.tile, d.m, d.n, hexadecimal(d.a, bytes), hexadecimal(d.b, bytes), d.c, d.cpu, d.device,
        to_text(c));
}

std::vector<TensorCoreCase> probe_cases(int64_t steps) {
    const int64_t small = steps / 1024, directed = steps / 32;
    std::vector<TensorCoreCase> cases;
    for (const MatrixInstruction& shape : matrix_instructions)
        for (const std::string_view variant : variants_of(shape)) {
            int64_t random_kinds = 0, left = steps;
            for (const TensorCoreInputKind& kind : tensor_core_input_kinds()) {
                if (!kind.applies(shape)) continue;
                random_kinds += kind.random;
                left -= 2 * small + (kind.random ? 0 : directed);
                add_cases(cases, shape, variant, kind.name, 1, small);
                add_cases(cases, shape, variant, kind.name, 3, small);
                if (!kind.random) add_cases(cases, shape, variant, kind.name, 2, directed);
            }
            for (const TensorCoreInputKind& kind : tensor_core_input_kinds())
                if (kind.applies(shape) && kind.random)
                    add_cases(cases, shape, variant, kind.name, 8, left / random_kinds + 1);
        }
    return cases;
}

std::vector<AlternativeComparison> compare_alternatives(const MatrixInstruction& shape, int64_t outputs,
                                                        const TensorCoreDevice& device) {
    const TensorCoreInstruction& model = tensor_core_instruction(shape.name);
    std::vector<Alternative> models = refuted_alternatives(model);
    std::vector<std::string> kinds;
    for (const Alternative& alternative : models)
        for (const std::string& kind : alternative.inputs)
            if (std::ranges::find(kinds, kind) == kinds.end()) kinds.push_back(kind);
    models.insert(models.begin(), {table_model_name, fused_sum_model(model), kinds});
    std::vector<AlternativeComparison> results;
    for (const Alternative& alternative : models)
        results.push_back({std::string(shape.name), alternative.name, 0, 0});
    const int64_t tiles = std::max<int64_t>(16, outputs / (shape.m * shape.n));  // all variants of a kind
    for (const std::string& kind : kinds) {
        const TensorCoreCase c{std::string(shape.name), "registers", kind, 1, tiles, 200};
        const TensorCoreInputs inputs = inputs_of(c);
        const std::vector<uint32_t> answers = run(device, c, inputs);
        for (size_t which = 0; which < models.size(); ++which) {
            if (std::ranges::find(models[which].inputs, kind) == models[which].inputs.end()) continue;
            results[which].outputs += std::ssize(answers);
            results[which].differing += count_differing(models[which].model, c, inputs, answers);
        }
    }
    return results;
}

std::vector<PairComparison> compare_pairs(int64_t outputs, const TensorCoreDevice& device) {
    std::vector<PairComparison> results;
    for (const MatrixInstruction& shape : matrix_instructions)
        if (shape.warpgroup) compare_pair(shape, outputs, device, results);
    return results;
}

}  // namespace touchstone
