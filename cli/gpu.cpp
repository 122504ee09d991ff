// touchstone gpu: what its commands share, and `check`.
#include "cli/gpu.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/table.h"
#include "cuda/numerics/unary.h"
#include "golden/unary_case.h"
#include "reference/io/user_error.h"

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

/// The case that `name` means: a case's text, or the name in it.
std::vector<UnaryCase> cases_of(const std::string& name) {
    if (name.empty()) return unary_cases();
    std::vector<std::string> names;
    for (const UnaryCase& c : unary_cases()) {
        if (c.name == name || to_text(c) == name) return {c};
        names.push_back(c.name);
    }
    std::string expected;
    for (const std::string& known : names) expected += (expected.empty() ? "" : ", ") + known;
    const std::string near = did_you_mean(name, names);
    throw UserError({fmt::format("unknown function \"{}\"", name), "touchstone gpu check NAME", expected,
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
    const std::vector<UnaryCase> cases = cases_of(options.name);
    if (!have_gpu()) return exit_nothing_compared;
    Table table({"kind", "function", "inputs", "differing parts of 4,096"});
    json rows = json::array();
    std::string differences;
    std::vector<DeviceReceipt> receipts;
    bool agree = true;
    for (const UnaryCase& c : cases) {
        const UnaryComparison result = compare(c);
        table.add_row({c.kind, c.name, result.hashes.outputs, result.differing_parts});
        rows.push_back(to_json(result));
        receipts.push_back(receipt_of(c, result.hashes));
        if (result.differing_parts == 0) continue;
        agree = false;
        differences += describe(result);
    }
    save_receipts(options.receipts, receipts);
    if (options.json) {
        json object = {{"schema", "touchstone.gpu_check/1"},
                       {"provenance", provenance_json()},
                       {"functions", rows},
                       {"agree", agree},
                       {"assumptions", json::array()}};
        write_result(to_text(object));
    } else {
        write_result("GPU against CPU over all 2^32 inputs\n" + provenance_text() + "\n" + table.text() +
                     differences);
    }
    return agree ? exit_agree : exit_differ;
}

}  // namespace touchstone::cli
