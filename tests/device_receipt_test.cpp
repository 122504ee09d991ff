#include "golden/device/device_receipt.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/tensor_core.h"

using namespace touchstone;
namespace fs = std::filesystem;

namespace {

// In nanoseconds of one core: what a default run spends on a receipt at most, and on all together.
constexpr int64_t default_case_cost = 200'000'000, default_total_cost = 20'000'000'000;

const DeviceReceipt example{.device_case = MatmulCase{2, 3, 64, 32, 1},
                            .hashes = {.input = 0x0123456789abcdef, .output = 1, .outputs = 6},
                            .device = "NVIDIA H200, sm_90",
                            .driver = "580.82.07, CUDA 13.0",
                            .toolkit = "13.0.88",
                            .revision = "unknown"};

std::string what_is_wrong(const std::string& line) {
    try {
        parse_device_receipt(line, "file.txt:7");
    } catch (const UserError& error) {
        CHECK(error.parts().where == "file.txt:7");
        return error.parts().what;
    }
    return "";
}

std::string with_field(size_t field, const std::string& text) {
    std::string line = to_line(example);
    size_t start = 0;
    for (size_t i = 0; i < field; ++i) start = line.find('\t', start) + 1;
    return line.replace(start, std::min(line.find('\t', start), line.size()) - start, text);
}

std::vector<fs::path> receipt_files() {
    std::vector<fs::path> files;
    for (const fs::directory_entry& entry : fs::directory_iterator(TOUCHSTONE_DEVICE_RECEIPTS))
        if (entry.path().extension() == ".txt") files.push_back(entry.path());
    std::sort(files.begin(), files.end());
    return files;
}

/// What is wrong with a receipt by the CPU's own results; "" when nothing is.
std::string disagreement(const DeviceReceipt& receipt) {
    const CaseHashes cpu = hashes_on_cpu(receipt.device_case);
    if (cpu == receipt.hashes) return "";
    return fmt::format(
        "{}\n  {}: input {:016x} output {:016x} ({} outputs)\n  CPU: input {:016x} output "
        "{:016x} ({} outputs)",
        to_text(receipt.device_case), receipt.device, receipt.hashes.input, receipt.hashes.output,
        receipt.hashes.outputs, cpu.input, cpu.output, cpu.outputs);
}

/// A file of the test's own, removed with the scope.
struct ScratchFile {
    fs::path path = fs::temp_directory_path() / fmt::format("touchstone_receipts_{}.txt", std::rand());
    ~ScratchFile() { fs::remove(path); }
};

}  // namespace

TEST_CASE("device receipt: line and value are the same thing") {
    const std::string line = to_line(example);
    CHECK(line ==
          "matmul(m=2,n=3,k=64,piece_k=32,seed=1)\t0123456789abcdef\t0000000000000001\t6\tNVIDIA H200, "
          "sm_90\t580.82.07, CUDA 13.0\t13.0.88\tunknown");
    CHECK(parse_device_receipt(line, "here") == example);
}

TEST_CASE("device receipt: what is no receipt is refused by field") {
    CHECK(what_is_wrong("").find("1 fields") != std::string::npos);
    CHECK(what_is_wrong(to_line(example) + "\tmore").find("9 fields") != std::string::npos);
    CHECK(what_is_wrong(with_field(0, "matmul(m=2)")).find("\"n\" is missing") != std::string::npos);
    for (const char* hash : {"0123456789ABCDEG", "123", "0123456789abcdef0", "-123456789abcdef"}) {
        CAPTURE(hash);
        CHECK(what_is_wrong(with_field(1, hash)).find("input hash is") != std::string::npos);
        CHECK(what_is_wrong(with_field(2, hash)).find("output hash is") != std::string::npos);
    }
    for (const char* count : {"0", "-6", "6.5", "six"}) {
        CAPTURE(count);
        CHECK(what_is_wrong(with_field(3, count)).find("outputs is") != std::string::npos);
    }
    CHECK(what_is_wrong(with_field(4, "")).find("device is \"\"") != std::string::npos);
    CHECK(what_is_wrong(with_field(7, "")).find("revision is \"\"") != std::string::npos);
}

TEST_CASE("device receipt: files are written whole, read back, and checked for contradictions") {
    const ScratchFile file;
    DeviceReceipt other = example;
    other.device_case = UnaryCase{"conversion", "bf16"};
    write_device_receipts(file.path, {example, other});
    CHECK(read_device_receipts(file.path) == std::vector{example, other});

    other = example;
    other.hashes.output = 2;
    std::ofstream(file.path, std::ios::app) << "\n# a comment\n" << to_line(other) << '\n';
    try {
        read_device_receipts(file.path);
        FAIL("two answers to one case were accepted");
    } catch (const UserError& error) {
        CHECK(error.parts().where == file.path.string() + ":6");
        CHECK(error.parts().what.find("line 2 with other hashes") != std::string::npos);
    }
    CHECK_THROWS_AS(read_device_receipts("/nonexistent/receipts.txt"), UserError);
    CHECK_THROWS_AS(write_device_receipts("/nonexistent/receipts.txt", {example}), UserError);
}

TEST_CASE("device receipt: a wrong hash is noticed") {
    DeviceReceipt receipt = example;
    receipt.hashes = hashes_on_cpu(receipt.device_case);
    CHECK(disagreement(receipt).empty());
    receipt.hashes.output ^= 1;
    CHECK_FALSE(disagreement(receipt).empty());
    receipt.hashes.output ^= 1;
    receipt.hashes.input ^= 1;
    CHECK_FALSE(disagreement(receipt).empty());
}

TEST_CASE(
    "device receipts: a row of the tensor-core table is marked measured where 10^8 steps were, and only "
    "there") {
    std::map<std::string, int64_t, std::less<>> steps;
    for (const fs::path& file : receipt_files())
        for (const DeviceReceipt& receipt : read_device_receipts(file))
            if (const auto* chain = std::get_if<TensorCoreCase>(&receipt.device_case))
                steps[chain->instruction] += receipt.hashes.outputs * chain->steps;
    for (const TensorCoreInstruction& instruction : tensor_core_instructions()) {
        const int64_t measured = steps.contains(instruction.name) ? steps.find(instruction.name)->second : 0;
        const std::string shown = fmt::format("{}: receipts of {} steps", instruction.name, measured);
        INFO(shown);
        CHECK((instruction.evidence == Evidence::measured) == (measured >= 100'000'000));
    }
    CHECK(steps["hopper.mma.s8"] >= 100'000'000);
}

#ifdef TOUCHSTONE_EVERY_RECEIPT
TEST_CASE("device receipts: the CPU gives what the GPUs gave (all of golden/device)") {
    constexpr int64_t case_cost = INT64_MAX, total_cost = INT64_MAX;
#else
TEST_CASE("device receipts: the CPU gives what the GPUs gave (the small ones of golden/device)") {
    constexpr int64_t case_cost = default_case_cost, total_cost = default_total_cost;
#endif
    int64_t recomputed = 0, left_out = 0, cost = 0;
    for (const fs::path& file : receipt_files())
        for (const DeviceReceipt& receipt : read_device_receipts(file)) {
            const int64_t this_cost = cpu_cost(receipt.device_case);
            if (this_cost > case_cost || this_cost > total_cost - cost) {
                ++left_out;
                continue;
            }
            cost += this_cost;
            ++recomputed;
            const std::string difference = disagreement(receipt);
            INFO(file.string());
            CHECK_MESSAGE(difference.empty(), difference);
        }
    std::printf("device receipts: %lld recomputed, %lld left to label exhaustive\n",
                static_cast<long long>(recomputed), static_cast<long long>(left_out));
    // Without receipts nothing would be shown, which must not look like agreement.
    CHECK(recomputed > 0);
}
