// touchstone gpu: what its commands share, and `check`.
#include "cli/gpu.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <set>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/table.h"
#include "cuda/numerics/sums.h"
#include "cuda/numerics/unary.h"
#include "golden/device/sums_case.h"
#include "golden/device/unary_case.h"

namespace touchstone::cli {

namespace {

using nlohmann::json;

/// The first input of a function whose outputs differ.
struct UnaryDifference {
    uint32_t input, cpu, device;
};

struct UnaryComparison {
    UnaryCase device_case;
    CaseHashes hashes;
    int64_t differing_parts = 0;
    std::optional<UnaryDifference> first;
};

/// Looks into a part whose hashes differ.
std::optional<UnaryDifference> locate(const UnaryCase& c, int part) {
    const cuda::DeviceBuffer<uint32_t> buffer(static_cast<size_t>(part_inputs));
    cuda::unary_part_outputs(c.kind, c.name, part, buffer.data(), nullptr);
    cuda::check_kernel("unary_part_outputs");
    const std::vector<uint32_t> device = buffer.to_host(), cpu = part_outputs_on_cpu(c, part);
    const auto [ours, theirs] = std::ranges::mismatch(cpu, device);
    if (ours == cpu.end()) return std::nullopt;
    return UnaryDifference{static_cast<uint32_t>(part * part_inputs + (ours - cpu.begin())), *ours, *theirs};
}

UnaryComparison compare(const UnaryCase& c) {
    const cuda::DeviceBuffer<uint64_t> buffer(input_parts);
    cuda::unary_part_hashes(c.kind, c.name, buffer.data(), nullptr);
    cuda::check_kernel("unary_part_hashes");
    const std::vector<uint64_t> device = buffer.to_host(), cpu = part_hashes_on_cpu(c);
    UnaryComparison result{c, {0, whole_hash(device), input_parts * part_inputs}, 0, std::nullopt};
    for (int part = 0; part < input_parts; ++part) {
        if (device[static_cast<size_t>(part)] == cpu[static_cast<size_t>(part)]) continue;
        ++result.differing_parts;
        if (!result.first) result.first = locate(c, part);
    }
    return result;
}

/// A row whose result differs.
struct SumDifference {
    int64_t row;
    uint32_t cpu, device;
};

struct SumsComparison {
    SumsCase device_case;
    CaseHashes hashes;
    int64_t differing = 0;
    std::optional<SumDifference> first;
};

std::vector<uint32_t> run_on_device(const SumsCase& c, const SumsInputs& inputs) {
    const cuda::DeviceBuffer<float> x{std::span(inputs.x_f32)}, y{std::span(inputs.y_f32)};
    const cuda::DeviceBuffer<Bf16> x_bf16{std::span(inputs.x_bf16)}, y_bf16{std::span(inputs.y_bf16)};
    const cuda::DeviceBuffer<uint32_t> out(static_cast<size_t>(c.rows));
    auto* results = reinterpret_cast<float*>(out.data());
    const RowSum what = row_sum_of(c);
    const Lanes lanes = lanes_of(c);
    const bool dot = what == RowSum::dot;
    if (c.operands == "f32")
        cuda::sum_rows(what, lanes, x.data(), dot ? y.data() : nullptr, c.rows, c.k, results, nullptr);
    else if (c.operands == "bf16")
        cuda::sum_rows(what, lanes, x_bf16.data(), dot ? y_bf16.data() : nullptr, c.rows, c.k, results,
                       nullptr);
    else
        cuda::dot_rows(lanes, x_bf16.data(), y.data(), c.rows, c.k, results, nullptr);
    cuda::check_kernel("sum_rows");
    return out.to_host();
}

SumsComparison compare(const SumsCase& c) {
    const SumsInputs inputs = inputs_of(c);
    const std::vector<uint32_t> device = run_on_device(c, inputs), cpu = outputs_on_cpu(c, inputs);
    SumsComparison result{c, {input_hash(inputs), hash_of(std::span(device)), c.rows}, 0, std::nullopt};
    for (size_t row = 0; row < cpu.size(); ++row) {
        if (device[row] == cpu[row]) continue;
        if (result.differing++ == 0) result.first = {static_cast<int64_t>(row), cpu[row], device[row]};
    }
    return result;
}

/// What `name` asks for: everything; "sums"; a function's name; a case.
struct Selection {
    std::vector<UnaryCase> functions;
    std::vector<SumsCase> sums;
};

Selection selection_of(const std::string& name) {
    if (name.empty()) return {unary_cases(), sums_cases()};
    if (name == "sums") return {{}, sums_cases()};
    if (name.find('(') != std::string::npos) {
        const DeviceCase parsed = parse_device_case(name, "touchstone gpu check NAME");
        if (const auto* c = std::get_if<UnaryCase>(&parsed)) return {{*c}, {}};
        if (const auto* c = std::get_if<SumsCase>(&parsed)) return {{}, {*c}};
        throw UserError({fmt::format("\"{}\" is not a case of this command", name),
                         "touchstone gpu check NAME", "conversion(...), elementary(...) or sums(...)",
                         "touchstone gpu probe --case runs tensor_core(...)"});
    }
    std::vector<std::string> names{"sums"};
    for (const UnaryCase& c : unary_cases()) {
        if (c.name == name) return {{c}, {}};
        names.push_back(c.name);
    }
    const std::string near = did_you_mean(name, names);
    throw UserError({fmt::format("unknown function \"{}\"", name), "touchstone gpu check NAME",
                     fmt::format("{}", fmt::join(names, ", ")),
                     near.empty() ? "" : fmt::format("did you mean \"{}\"?", near)});
}

std::string describe(const UnaryComparison& result) {
    const std::string text = to_text(result.device_case);
    if (!result.first)
        return fmt::format(
            "case {}: part hashes differ, but the outputs agree when they are fetched: "
            "the device does not give the same bits twice\n",
            text);
    return fmt::format(
        "case {} input={:08x}\n  CPU {:08x}\n  GPU {:08x}\n  reproduce: touchstone gpu check {}\n", text,
        result.first->input, result.first->cpu, result.first->device, result.device_case.name);
}

json to_json(const UnaryComparison& result) {
    json object = {{"case", to_text(result.device_case)},
                   {"inputs", result.hashes.outputs},
                   {"output_hash", fmt::format("{:016x}", result.hashes.output)},
                   {"differing_parts", result.differing_parts}};
    if (result.first)
        object["first_difference"] = {{"input", fmt::format("{:08x}", result.first->input)},
                                      {"cpu", fmt::format("{:08x}", result.first->cpu)},
                                      {"gpu", fmt::format("{:08x}", result.first->device)}};
    return object;
}

std::string describe(const SumsComparison& result) {
    const std::string text = to_text(result.device_case);
    return fmt::format("case {} row={}\n  CPU {:08x}\n  GPU {:08x}\n  reproduce: touchstone gpu check '{}'\n",
                       text, result.first->row, result.first->cpu, result.first->device, text);
}

json to_json(const SumsComparison& result) {
    json object = {{"case", to_text(result.device_case)},
                   {"rows", result.hashes.outputs},
                   {"output_hash", fmt::format("{:016x}", result.hashes.output)},
                   {"differing", result.differing}};
    if (result.first)
        object["first_difference"] = {{"row", result.first->row},
                                      {"cpu", fmt::format("{:08x}", result.first->cpu)},
                                      {"gpu", fmt::format("{:08x}", result.first->device)}};
    return object;
}

struct Report {
    std::vector<UnaryComparison> functions;
    std::vector<SumsComparison> sums;

    bool agree() const {
        return std::ranges::all_of(functions, [](const auto& f) { return f.differing_parts == 0; }) &&
               std::ranges::all_of(sums, [](const auto& s) { return s.differing == 0; });
    }
};

std::string text_of(const Report& report) {
    std::string text = "GPU against CPU\n" + provenance_text(), differences;
    Table functions({"kind", "function", "inputs", "differing parts of 4,096"});
    for (const UnaryComparison& f : report.functions) {
        functions.add_row({f.device_case.kind, f.device_case.name, f.hashes.outputs, f.differing_parts});
        if (f.differing_parts > 0) differences += describe(f);
    }
    Table sums({"sum", "operands", "lanes", "K", "inputs", "rows", "differing"});
    for (const SumsComparison& s : report.sums) {
        const SumsCase& c = s.device_case;
        sums.add_row({c.what, c.operands, fmt::format("{} {}", c.lanes, c.arrangement), c.k, c.inputs, c.rows,
                      s.differing});
        if (s.differing > 0) differences += describe(s);
    }
    if (!report.functions.empty()) text += "\n" + functions.text();
    if (!report.sums.empty()) text += "\n" + sums.text();
    return text + differences + (report.agree() ? "\nAll bits agree.\n" : "\nNot all bits agree.\n");
}

json json_of(const Report& report) {
    json object = {{"schema", "touchstone.gpu_check/1"},
                   {"provenance", provenance_json()},
                   {"functions", json::array()},
                   {"sums", json::array()},
                   {"agree", report.agree()},
                   {"assumptions", json::array()}};
    for (const UnaryComparison& f : report.functions) object["functions"].push_back(to_json(f));
    for (const SumsComparison& s : report.sums) object["sums"].push_back(to_json(s));
    return object;
}

}  // namespace

bool have_gpu() {
    const std::string why = cuda::why_no_device();
    if (!why.empty()) {
        nothing_compared(fmt::format("no CUDA device ({})", why), "run this where there is a Hopper GPU");
        return false;
    }
    const cuda::DeviceIdentity identity = cuda::device_identity();
    if (identity.compute_capability == 90) return true;
    nothing_compared(fmt::format("the kernels are for sm_90a, the device is {}", identity.device),
                     "run this where there is a Hopper GPU");
    return false;
}

int nothing_compared(const std::string& why, const std::string& remedy) {
    fmt::print(stderr, "touchstone: nothing compared: {}\n  remedy:   {}\n", why, remedy);
    return exit_nothing_compared;
}

DeviceReceipt receipt_of(DeviceCase device_case, const CaseHashes& hashes) {
    static const cuda::DeviceIdentity identity = cuda::device_identity();
    return {std::move(device_case), hashes,           identity.device,
            identity.driver,        identity.toolkit, TOUCHSTONE_REVISION};
}

void save_receipts(const std::string& file, const std::vector<DeviceReceipt>& receipts) {
    if (file.empty()) return;
    std::set<std::string> seen;
    std::vector<DeviceReceipt> distinct;
    for (const DeviceReceipt& receipt : receipts)
        if (seen.insert(to_text(receipt.device_case)).second) distinct.push_back(receipt);
    write_device_receipts(file, distinct);
}

std::string provenance_text() {
    const cuda::DeviceIdentity identity = cuda::device_identity();
    return fmt::format("{}; driver {}; toolkit {}; revision {}\n", identity.device, identity.driver,
                       identity.toolkit, TOUCHSTONE_REVISION);
}

json provenance_json() {
    const cuda::DeviceIdentity identity = cuda::device_identity();
    return {{"device", identity.device},
            {"driver", identity.driver},
            {"toolkit", identity.toolkit},
            {"revision", TOUCHSTONE_REVISION}};
}

int run_gpu_check(const GpuCheckOptions& options) {
    const Selection selection = selection_of(options.name);
    if (!have_gpu()) return exit_nothing_compared;
    Report report;
    std::vector<DeviceReceipt> receipts;
    for (const UnaryCase& c : selection.functions) {
        report.functions.push_back(with_case_named(c, [&] { return compare(c); }));
        receipts.push_back(receipt_of(c, report.functions.back().hashes));
    }
    for (const SumsCase& c : selection.sums) {
        report.sums.push_back(with_case_named(c, [&] { return compare(c); }));
        receipts.push_back(receipt_of(c, report.sums.back().hashes));
    }
    save_receipts(options.receipts, receipts);
    write_result(options.json ? to_text(json_of(report)) : text_of(report));
    return report.agree() ? exit_agree : exit_differ;
}

}  // namespace touchstone::cli
