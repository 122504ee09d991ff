// touchstone gpu probe: the table of tensor-core arithmetic against a chip.
#include <fmt/format.h>

#include <map>

#include "cli/commands.h"
#include "cli/gpu.h"
#include "cli/output.h"
#include "cli/table.h"
#include "cuda/numerics/tensor_core.h"
#include "golden/device/tensor_core_probe.h"

namespace touchstone::cli {

namespace {

using nlohmann::json;

constexpr int64_t alternative_outputs = 1 << 18, pair_outputs = 1 << 20;

std::vector<uint32_t> run_on_device(const TensorCoreCase& c, const TensorCoreInputs& inputs) {
    const cuda::DeviceBuffer<std::byte> a{std::span<const std::byte>(inputs.a)};
    const cuda::DeviceBuffer<std::byte> b{std::span<const std::byte>(inputs.b)};
    const cuda::DeviceBuffer<uint32_t> addends{std::span<const uint32_t>(inputs.c)};
    const cuda::DeviceBuffer<uint32_t> d(inputs.c.size());
    const auto source = c.variant == "shared" ? cuda::OperandSource::shared : cuda::OperandSource::registers;
    cuda::tensor_core_chain(instruction_of(c), source, a.data(), b.data(), addends.data(), d.data(), c.tiles,
                            c.steps, nullptr);
    cuda::check_kernel("tensor_core_chain");
    return d.to_host();
}

std::vector<uint32_t> run_named(const TensorCoreCase& c, const TensorCoreInputs& inputs) {
    return with_case_named(c, [&] { return run_on_device(c, inputs); });
}

/// One line of the report: all cases of an instruction, variant and kind of inputs.
struct Row {
    std::string instruction, variant, inputs;
    int64_t cases = 0, steps = 0, outputs = 0, differing = 0;
    std::optional<TensorCoreComparison> first;
};

struct Report {
    std::vector<Row> rows;
    std::vector<AlternativeComparison> alternatives;
    std::vector<PairComparison> pairs;
    std::vector<DeviceReceipt> receipts;
};

void add(Report& report, const TensorCoreComparison& result) {
    const TensorCoreCase& c = result.device_case;
    auto row = std::ranges::find_if(report.rows, [&](const Row& r) {
        return r.instruction == c.instruction && r.variant == c.variant && r.inputs == c.inputs;
    });
    if (row == report.rows.end())
        row = report.rows.insert(row, Row{.instruction = c.instruction,
                                          .variant = c.variant,
                                          .inputs = c.inputs,
                                          .first = std::nullopt});
    ++row->cases;
    row->steps += result.steps;
    row->outputs += result.outputs;
    row->differing += result.differing;
    if (!row->first && result.first) row->first = result;
    report.receipts.push_back(receipt_of(c, result.hashes));
}

std::vector<TensorCoreCase> cases_of(const GpuProbeOptions& options) {
    if (options.case_text.empty()) return probe_cases(options.steps);
    const DeviceCase parsed = parse_device_case(options.case_text, "--case");
    const auto* c = std::get_if<TensorCoreCase>(&parsed);
    if (c == nullptr)
        throw UserError({fmt::format("\"{}\" is no tensor-core case", options.case_text), "--case",
                         "tensor_core(...)", "touchstone gpu check runs the functions"});
    return {*c};
}

Report make_report(const std::vector<TensorCoreCase>& cases, bool whole) {
    Report report;
    for (const TensorCoreCase& c : cases) add(report, compare_with_device(c, run_named));
    if (!whole) return report;
    for (const MatrixInstruction& instruction : matrix_instructions) {
        if (instruction.integer || tensor_core_instruction(instruction.name).emulated_fp8) continue;
        const auto results = compare_alternatives(instruction, alternative_outputs, run_named);
        report.alternatives.insert(report.alternatives.end(), results.begin(), results.end());
    }
    report.pairs = compare_pairs(pair_outputs, run_named);
    return report;
}

bool obeyed(const Row& row) {
    return row.differing == 0;
}
/// The table's model must not differ, every other one must.
bool as_expected(const AlternativeComparison& result) {
    return (result.differing == 0) == (result.alternative == table_model_name);
}
bool as_expected(const PairComparison& result) {
    return (result.differing == 0) == result.expected_equal;
}

bool all_as_expected(const Report& report) {
    const auto expected = [](const auto& result) { return as_expected(result); };
    return std::ranges::all_of(report.rows, obeyed) && std::ranges::all_of(report.alternatives, expected) &&
           std::ranges::all_of(report.pairs, expected);
}

std::string text_of(const Report& report) {
    Table rows({"instruction", "A from", "inputs", "cases", "steps", "results", "differing"});
    std::string differences;
    for (const Row& row : report.rows) {
        rows.add_row(
            {row.instruction, row.variant, row.inputs, row.cases, row.steps, row.outputs, row.differing});
        if (row.first) differences += describe(row.first->device_case, *row.first->first);
    }
    std::string text =
        "Tensor-core arithmetic: device against CPU\n" + provenance_text() + "\n" + rows.text() + differences;
    if (report.pairs.empty()) return text;
    Table models({"instruction", "model", "results", "differing", "as expected"});
    for (const AlternativeComparison& result : report.alternatives)
        models.add_row({result.instruction, result.alternative, result.outputs, result.differing,
                        std::string(as_expected(result) ? "yes" : "NO")});
    Table pairs({"the same inputs through", "and", "results", "differing", "as expected"});
    for (const PairComparison& result : report.pairs)
        pairs.add_row({result.left, result.right, result.outputs, result.differing,
                       std::string(as_expected(result) ? "yes" : "NO")});
    return text + "\nOther models on the device's results: each must differ\n" + models.text() +
           "\nInstructions against each other\n" + pairs.text() +
           (all_as_expected(report) ? "\nThe chip obeys the table.\n"
                                    : "\nThe chip does not obey the table.\n");
}

json json_of(const Row& row) {
    json object = {{"instruction", row.instruction},
                   {"variant", row.variant},
                   {"inputs", row.inputs},
                   {"cases", row.cases},
                   {"steps", row.steps},
                   {"results", row.outputs},
                   {"differing", row.differing}};
    if (row.first) object["first_difference"] = describe(row.first->device_case, *row.first->first);
    return object;
}

json json_of(const Report& report) {
    json object = {{"schema", "touchstone.gpu_probe/1"},
                   {"provenance", provenance_json()},
                   {"rows", json::array()},
                   {"models", json::array()},
                   {"pairs", json::array()},
                   {"obeys", all_as_expected(report)},
                   {"assumptions", json::array()}};
    for (const Row& row : report.rows) object["rows"].push_back(json_of(row));
    for (const AlternativeComparison& result : report.alternatives)
        object["models"].push_back({{"instruction", result.instruction},
                                    {"model", result.alternative},
                                    {"results", result.outputs},
                                    {"differing", result.differing},
                                    {"as_expected", as_expected(result)}});
    for (const PairComparison& result : report.pairs)
        object["pairs"].push_back({{"left", result.left},
                                   {"right", result.right},
                                   {"results", result.outputs},
                                   {"differing", result.differing},
                                   {"as_expected", as_expected(result)}});
    return object;
}

}  // namespace

int run_gpu_probe(const GpuProbeOptions& options) {
    const std::vector<TensorCoreCase> cases = cases_of(options);
    if (!have_gpu()) return exit_nothing_compared;
    const Report report = make_report(cases, options.case_text.empty());
    save_receipts(options.receipts, report.receipts);
    write_result(options.json ? to_text(json_of(report)) : text_of(report));
    return all_as_expected(report) ? exit_agree : exit_differ;
}

}  // namespace touchstone::cli
