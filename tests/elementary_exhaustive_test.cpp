// The elementary functions at all 2^32 fp32 inputs: error, monotonicity, special ranges, and the hash of all
// results, which device receipts are compared with. Everything found is a table, which has to equal
// golden/numerics/elementary_errors.txt. After a meant change of results, write it anew and look at the
// difference:
//
//   TOUCHSTONE_WRITE_GOLDEN=1 build/bin/elementary_exhaustive_test
//
// Promised functions (1 ulp): the true value is glibc's double function, the thousand worst results are
// judged again by MPFR. Ranges where the result is a constant or x itself are compared with that. Formulas:
// error at every 17th input.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "reference/numerics/elementary_vector.h"
#include "reference/numerics/tensor_hash.h"
#include "tests/elementary_oracle.h"

#ifdef TOUCHSTONE_MPFR
#include <mpfr.h>
#endif

using namespace touchstone;

namespace {

constexpr uint32_t block_inputs = 1u << 12;  // x and y together fit the first-level cache
constexpr int64_t blocks = int64_t{1} << 20;
constexpr size_t kept = 1000;
constexpr uint32_t sign_bit = 0x80000000;

/// One result: how wrong, and where.
struct Found {
    double error;
    uint32_t bits;

    /// Worse first, then lower bits, so that what is kept does not depend on the threads.
    friend bool operator<(const Found& a, const Found& b) {
        return a.error != b.error ? a.error > b.error : a.bits < b.bits;
    }
};

/// The `kept` worst of what it is shown.
class Worst {
  public:
    void add(double error, uint32_t bits) {
        if (error < threshold_) return;
        found_.push_back({error, bits});
        if (found_.size() >= 4 * kept) cut();
    }
    void add(const Worst& other) {
        for (const Found& found : other.found_) add(found.error, found.bits);
    }
    const std::vector<Found>& sorted() {
        cut();
        std::sort(found_.begin(), found_.end());
        return found_;
    }

  private:
    void cut() {
        if (found_.size() <= kept) return;
        std::nth_element(found_.begin(), found_.begin() + kept - 1, found_.end());
        threshold_ = found_[kept - 1].error;
        found_.resize(kept);
    }
    std::vector<Found> found_;
    double threshold_ = 0;
};

enum class Expect : uint8_t { oracle, constant, input };

/// Inputs of the bit patterns first..last and what their results have to be.
struct Range {
    uint32_t first, last;
    Expect expect;
    uint32_t result = 0;  ///< of Expect::constant
};

constexpr uint32_t one = 0x3F800000, plus_infinity = 0x7F800000, minus_infinity = 0xFF800000;

/// `ranges` and the NaNs; together they are all patterns.
std::vector<Range> with_nans(std::vector<Range> ranges) {
    for (uint32_t sign : {0u, sign_bit}) {
        ranges.push_back(
            {sign | (plus_infinity + 1), sign | 0x7FFFFFFF, Expect::constant, canonical_nan_bits});
    }
    return ranges;
}

std::vector<Range> ranges_of(ElementaryFunction function) {
    using enum Expect;
    using enum ElementaryFunction;
    // e^x and 2^x round to 1 for |x| <= 2^-26, ln(1 + x) to x for |x| <= 2^-25.
    constexpr uint32_t tiny_exp = 0x32800000, tiny_log1p = 0x33000000;
    switch (function) {
        case exp2:  // from 128 on +inf, below -151 +0
            return with_nans({{0, tiny_exp, constant, one},
                              {tiny_exp + 1, 0x42FFFFFF, oracle},
                              {0x43000000, plus_infinity, constant, plus_infinity},
                              {sign_bit, sign_bit | tiny_exp, constant, one},
                              {(sign_bit | tiny_exp) + 1, 0xC3170000, oracle},
                              {0xC3170001, minus_infinity, constant, 0}});
        case exp:  // from 89 on +inf, below -104 +0
            return with_nans({{0, tiny_exp, constant, one},
                              {tiny_exp + 1, 0x42B1FFFF, oracle},
                              {0x42B20000, plus_infinity, constant, plus_infinity},
                              {sign_bit, sign_bit | tiny_exp, constant, one},
                              {(sign_bit | tiny_exp) + 1, 0xC2D00000, oracle},
                              {0xC2D00001, minus_infinity, constant, 0}});
        case log:
            return with_nans({{0, 0, constant, minus_infinity},
                              {1, plus_infinity - 1, oracle},
                              {plus_infinity, plus_infinity, constant, plus_infinity},
                              {sign_bit, sign_bit, constant, minus_infinity},
                              {sign_bit + 1, minus_infinity, constant, canonical_nan_bits}});
        case log1p:
            return with_nans({{0, tiny_log1p, input},
                              {tiny_log1p + 1, plus_infinity - 1, oracle},
                              {plus_infinity, plus_infinity, constant, plus_infinity},
                              {sign_bit, sign_bit | tiny_log1p, input},
                              {(sign_bit | tiny_log1p) + 1, 0xBF7FFFFF, oracle},
                              {0xBF800000, 0xBF800000, constant, minus_infinity},
                              {0xBF800001, minus_infinity, constant, canonical_nan_bits}});
        case erf:  // beyond 4 it is 1
            return with_nans({{0, 0x40800000, oracle},
                              {0x40800001, plus_infinity, constant, one},
                              {sign_bit, 0xC0800000, oracle},
                              {0xC0800001, minus_infinity, constant, sign_bit | one}});
        default:  // formulas: infinite inputs stand among the special values
            return with_nans({{0, plus_infinity - 1, oracle}, {sign_bit, minus_infinity - 1, oracle}});
    }
}

/// What a pass over all inputs found.
struct Report {
    uint64_t hash = 0;
    uint64_t wrong = 0;  ///< outside the oracle's ranges: not the constant or x
    uint64_t falls = 0;  ///< neighbours x < x' with f(x) > f(x')
    Worst ulp;
    Worst scaled;  ///< error in 2^-24 max(1, |truth|)

    void add(const Report& other) {
        hash += other.hash;
        wrong += other.wrong;
        falls += other.falls;
        ulp.add(other.ulp);
        scaled.add(other.scaled);
    }
};

/// One block of inputs, their bits from `start`.
struct Block {
    uint32_t start;
    std::vector<float> x, y;
};

void judge_by_oracle(const ElementaryFunctionInfo& info, const Block& block, uint32_t first, uint32_t last,
                     Report& report) {
    const auto stride = static_cast<uint32_t>(info.error_stride);
    uint32_t bits = (first + stride - 1) / stride * stride;
    for (; bits >= first && bits <= last; bits += stride) {
        const uint32_t i = bits - block.start;
        const double truth = oracle::true_value(info.function, double{block.x[i]});
        const double error = oracle::ulp_error(block.y[i], truth);
        report.ulp.add(error, bits);
        if (info.promised_ulp == 0 && std::isfinite(truth) && std::isfinite(block.y[i])) {
            const double scale = std::max(1.0, std::fabs(truth)) * 0x1p-24;
            report.scaled.add(std::fabs(block.y[i] - truth) / scale, bits);
        }
    }
}

void judge_range(const ElementaryFunctionInfo& info, const Range& range, const Block& block, Report& report) {
    const uint32_t first = std::max(range.first, block.start);
    const uint32_t last = std::min(range.last, block.start + (block_inputs - 1));
    if (first > last) return;
    if (range.expect == Expect::oracle) return judge_by_oracle(info, block, first, last, report);
    for (uint32_t i = first - block.start; i <= last - block.start; ++i) {
        const uint32_t expected = range.expect == Expect::constant ? range.result : block.start + i;
        report.wrong += float_bits(block.y[i]) != expected;
    }
}

/// Pairs of neighbouring inputs that begin in the block; bits rise away from zero.
void judge_order(const ElementaryFunctionInfo& info, const Block& block, Report& report) {
    const bool negative = block.start >= sign_bit;
    const auto falls = [negative](float y, float next) { return negative ? next > y : next < y; };
    for (uint32_t i = 0; i + 1 < block_inputs; ++i) report.falls += falls(block.y[i], block.y[i + 1]);
    const uint32_t next_bits = block.start + block_inputs;  // a NaN where the sign ends: compares false
    report.falls +=
        falls(block.y.back(), info.scalar(float_from_bits(next_bits == sign_bit ? ~0u : next_bits)));
}

void judge_block(const ElementaryFunctionInfo& info, const std::vector<Range>& ranges, Block& block,
                 Report& report) {
    for (uint32_t i = 0; i < block_inputs; ++i) block.x[i] = float_from_bits(block.start + i);
    info.vector(block.x, block.y);
    for (uint32_t i = 0; i < block_inputs; ++i)
        report.hash += element_hash(block.start + i, float_bits(block.y[i]));
    if (info.promised_ulp > 0) judge_order(info, block, report);
    for (const Range& range : ranges) judge_range(info, range, block, report);
}

Report judge(const ElementaryFunctionInfo& info) {
    const std::vector<Range> ranges = ranges_of(info.function);
    Report total;
#pragma omp parallel
    {
        Report report;
        Block block{0, std::vector<float>(block_inputs), std::vector<float>(block_inputs)};
#pragma omp for schedule(dynamic, 256)
        for (int64_t b = 0; b < blocks; ++b) {
            block.start = static_cast<uint32_t>(b) * block_inputs;
            judge_block(info, ranges, block, report);
        }
#pragma omp critical
        total.add(report);
    }
    return total;
}

#ifdef TOUCHSTONE_MPFR
/// The error in ulp of the result at `bits`, the truth taken from MPFR at 200 bits.
double ulp_error_by_mpfr(const ElementaryFunctionInfo& info, uint32_t bits) {
    constexpr int (*functions[])(mpfr_t, const mpfr_t, mpfr_rnd_t) = {mpfr_exp2, mpfr_exp, mpfr_log,
                                                                      mpfr_log1p, mpfr_erf};
    const float x = float_from_bits(bits), y = info.scalar(x);
    mpfr_t value;
    mpfr_init2(value, 200);
    mpfr_set_flt(value, x, MPFR_RNDN);
    functions[size_t(info.function)](value, value, MPFR_RNDN);
    const double truth = mpfr_get_d(value, MPFR_RNDZ);
    mpfr_sub_d(value, value, std::isinf(y) ? std::copysign(0x1p128, y) : double{y}, MPFR_RNDN);
    const double difference = std::fabs(mpfr_get_d(value, MPFR_RNDN));
    mpfr_clear(value);
    return difference * oracle::per_ulp(truth);
}

/// The worst inputs judged again; returns the worst of them.
Found confirmed_by_mpfr(const ElementaryFunctionInfo& info, const std::vector<Found>& worst) {
    Found confirmed{-1, 0};
    double disagreement = 0;
    for (const Found& found : worst) {
        const Found exact{ulp_error_by_mpfr(info, found.bits), found.bits};
        confirmed = std::min(confirmed, exact);
        disagreement = std::max(disagreement, std::fabs(exact.error - found.error));
    }
    INFO(info.name << ": MPFR's error and the double function's differ by " << disagreement << " ulp");
    CHECK(disagreement < 1e-6);
    CHECK(confirmed.error <= info.promised_ulp);
    return confirmed;
}
#endif

Found worst_of(const ElementaryFunctionInfo& info, Report& report) {
    const std::vector<Found>& worst = report.ulp.sorted();
    REQUIRE(worst.size() == kept);
#ifdef TOUCHSTONE_MPFR
    if (info.promised_ulp > 0) return confirmed_by_mpfr(info, worst);
#else
    if (info.promised_ulp > 0)
        MESSAGE("MPFR was not found: worst results of " << info.name << " not confirmed");
#endif
    return worst.front();
}

std::string found_text(const ElementaryFunctionInfo& info, const Found& found) {
    const uint32_t result = float_bits(info.scalar(float_from_bits(found.bits)));
    return fmt::format("{:>14.4f} {:08X} {:08X}", found.error, found.bits, result);
}

/// The function's line, after its promises were checked.
std::string judged_line(const ElementaryFunctionInfo& info) {
    Report report = judge(info);
    INFO(info.name << ": " << report.wrong << " wrong constants, " << report.falls << " falls");
    CHECK(report.wrong == 0);
    CHECK(report.falls == 0);
    const Found worst = worst_of(info, report);
    std::string scaled = fmt::format("{:>14} {:>8} {:>8}", "-", "-", "-");
    if (info.promised_ulp > 0) {
        CHECK(worst.error <= info.promised_ulp);
    } else {
        CHECK(worst.error < HUGE_VAL);  // NaN where there is none, or the reverse
        scaled = found_text(info, report.scaled.sorted().front());
    }
    return fmt::format("{:<15} {:>6} {} {} {:016X} {:016X}\n", info.name, info.error_stride,
                       found_text(info, worst), scaled, report.hash, oracle::sample_hash(info.function));
}

std::string special_values() {
    std::string text = "x       ";
    for (const ElementaryFunctionInfo& info : elementary_functions())
        text += fmt::format(" {:>8.8}", info.name);
    text += "\n";
    for (uint32_t bits : oracle::special_bits()) {
        text += fmt::format("{:08X}", bits);
        for (const ElementaryFunctionInfo& info : elementary_functions()) {
            text += fmt::format(" {:08X}", float_bits(info.scalar(float_from_bits(bits))));
        }
        text += "\n";
    }
    return text;
}

#ifdef TOUCHSTONE_MPFR
/// The first line in which the texts differ, of both.
std::string first_difference(const std::string& a, const std::string& b) {
    std::istringstream in_a(a), in_b(b);
    for (std::string line_a, line_b;;) {
        const bool more_a = bool(std::getline(in_a, line_a)), more_b = bool(std::getline(in_b, line_b));
        if (!more_a && !more_b) return "none";
        if (more_a != more_b || line_a != line_b) return "now:    " + line_a + "\nstored: " + line_b;
    }
}
#endif

constexpr const char* table_head =
    R"(# Elementary functions (reference/numerics/elementary.h) at fp32 inputs, written by elementary_exhaustive_test.
# inputs: n means that the error was measured at every n-th bit pattern (1: all 2^32). ulp: the largest error in ulp of
# the true value's binade, the bits of x and of the result there. scaled (formulas): the largest error in
# 2^-24 max(1, |true value|). hash: tensor_hash of the results at all 2^32 inputs, position = bits of x.
# sample: the same over the inputs 1021 i, i < 2^22.
# exp2 exp log log1p erf: at most 1 ulp and never falling, checked. The others are formulas (1 + erf cancels in gelu,
# exp(-x) overflows in sigmoid and silu below -88.7), whose errors are shown as they are.
)";

}  // namespace

TEST_CASE(
    "elementary: all 2^32 inputs: 1 ulp, never falling, special ranges, the stored table (exhaustive)") {
    std::string table = table_head;
    table += fmt::format("{:<15} {:>6} {:>14} {:>8} {:>8} {:>14} {:>8} {:>8} {:>16} {:>16}\n", "function",
                         "inputs", "ulp", "x", "result", "scaled", "x", "result", "hash", "sample");
    for (const ElementaryFunctionInfo& info : elementary_functions()) {
        const std::string line = judged_line(info);
        MESSAGE(line);
        table += line;
    }
    table += "\n# Special values: bits of x, bits of the results.\n" + special_values();
    if (std::getenv("TOUCHSTONE_WRITE_GOLDEN") != nullptr) {
        std::ofstream file(TOUCHSTONE_ELEMENTARY_GOLDEN);
        file << table;
        REQUIRE(file.flush().good());
        MESSAGE("wrote " << TOUCHSTONE_ELEMENTARY_GOLDEN);
    }
#ifdef TOUCHSTONE_MPFR
    INFO(first_difference(table, oracle::golden_text()));
    CHECK(table == oracle::golden_text());
#else
    // Without MPFR another of nearly equal results may come out as the worst.
    MESSAGE("MPFR was not found: hashes are compared with the stored table, worst inputs are not");
    std::istringstream lines(table);
    const auto stored = oracle::stored_hashes();
    for (const ElementaryFunctionInfo& info : elementary_functions()) {
        const auto hash = stored.find(info.name);
        REQUIRE(hash != stored.end());
        CHECK(table.find(fmt::format("{:016X} {:016X}", hash->second.all, hash->second.sample)) !=
              std::string::npos);
    }
#endif
}
