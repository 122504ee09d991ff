#include "reference/numerics/sums.h"

#include <doctest/doctest.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/fill.h"
#include "reference/numerics/sum_order.h"

using namespace touchstone;

namespace {

constexpr LaneArrangement interleaved = LaneArrangement::interleaved, chunked = LaneArrangement::chunked;
constexpr Lanes one_lane{LaneArrangement::sequential, 1};

template <class T>
std::vector<T> filled_vector(Filler filler, uint64_t seed, int64_t count) {
    std::vector<T> values(size_t(count), T{});
    fill<T>(filler, RandomStream{seed}, values);
    return values;
}

std::vector<Lanes> all_lanes() {
    std::vector<Lanes> lanes{one_lane};
    for (int count = 1; count <= Lanes::most; count *= 2) {
        lanes.push_back({interleaved, count});
        lanes.push_back({chunked, count});
    }
    return lanes;
}

std::string text(Lanes lanes) {
    return std::string(lane_arrangement_name(lanes.arrangement)) + " " + std::to_string(lanes.count);
}

/// Those of compiled_isas() that this CPU has; says once which it lacks.
const std::vector<Isa>& supported_isas() {
    static const std::vector<Isa> isas = [] {
        std::vector<Isa> supported;
        for (const Isa isa : compiled_isas()) {
            if (isa_supported(isa))
                supported.push_back(isa);
            else
                std::printf("%s: compiled, but this CPU lacks it: not compared\n",
                            std::string(isa_name(isa)).c_str());
        }
        return supported;
    }();
    return isas;
}

/// The rows on which instruction sets are compared: numbers, traps, and traps with NaN and infinity in them.
struct Rows {
    std::vector<float> x, y;
    std::vector<Bf16> bx, by;
};

enum class RowKind { normal, trap, special };

Rows rows_of(RowKind kind, int64_t count) {
    const Filler filler = kind == RowKind::normal ? Filler::normal : Filler::trap;
    Rows rows{filled_vector<float>(filler, 2, count), filled_vector<float>(filler, 3, count),
              filled_vector<Bf16>(filler, 4, count), filled_vector<Bf16>(filler, 5, count)};
    if (kind != RowKind::special) return rows;
    for (size_t i = 0; i < rows.x.size(); ++i) {
        const uint32_t r = RandomStream{6}.word(i);
        if (r % 1000 == 0) rows.x[i] = float_from_bits(0x7F800001 | (r & 0x80000FFF)), rows.bx[i] = {0xFFC1};
        if (r % 500 == 1) rows.x[i] = HUGE_VALF, rows.by[i] = {0xFF80}, rows.bx[i] = {0x7F80};
    }
    return rows;
}

/// The nine results of the first k elements: of one instruction set, or by definition.
using Results = std::array<float, 9>;
constexpr std::array<const char*, 9> result_names{"sum f32",      "sum bf16",    "squares f32",
                                                  "squares bf16", "dot f32",     "dot bf16",
                                                  "dot bf16 f32", "largest f32", "largest bf16"};

Results results_of(const SumsKernels& set, Lanes lanes, const Rows& rows, int64_t k) {
    const float *x = rows.x.data(), *y = rows.y.data();
    const Bf16 *bx = rows.bx.data(), *by = rows.by.data();
    return {set.sum_f32(lanes, x, k),          set.sum_bf16(lanes, bx, k),  set.squares_f32(lanes, x, k),
            set.squares_bf16(lanes, bx, k),    set.dot_f32(lanes, x, y, k), set.dot_bf16(lanes, bx, by, k),
            set.dot_bf16_f32(lanes, bx, y, k), set.largest_f32(x, k),       set.largest_bf16(bx, k)};
}

Results results_by_definition(Lanes lanes, const Rows& rows, int64_t k) {
    const float *x = rows.x.data(), *y = rows.y.data();
    const Bf16 *bx = rows.bx.data(), *by = rows.by.data();
    return {sum_by_definition(lanes, x, k),
            sum_by_definition(lanes, bx, k),
            sum_of_squares_by_definition(lanes, x, k),
            sum_of_squares_by_definition(lanes, bx, k),
            dot_by_definition(lanes, x, y, k),
            dot_by_definition(lanes, bx, by, k),
            dot_by_definition(lanes, bx, y, k),
            largest_by_definition(x, k),
            largest_by_definition(bx, k)};
}

/// Counts the results that differ in a bit and describes the first.
struct Comparison {
    int64_t compared = 0, wrong = 0;
    std::string first_wrong;

    void add(const Results& got, const Results& expected, const std::string& where) {
        for (size_t i = 0; i < got.size(); ++i) {
            ++compared;
            if (float_bits(got[i]) == float_bits(expected[i]) || wrong++ > 0) continue;
            std::array<char, 64> bits{};
            std::snprintf(bits.data(), bits.size(), ": %08x, expected %08x", float_bits(got[i]),
                          float_bits(expected[i]));
            first_wrong = std::string(result_names[i]) + ", " + where + bits.data();
        }
    }
};

/// Every instruction set against the definition at one length.
void compare_sets(Comparison& comparison, const std::vector<Isa>& isas, Lanes lanes, const Rows& rows,
                  int64_t k) {
    const Results expected = results_by_definition(lanes, rows, k);
    for (const Isa isa : isas)
        comparison.add(results_of(sums_kernels(isa), lanes, rows, k), expected,
                       std::string(isa_name(isa)) + ", " + text(lanes) + " lanes, k = " + std::to_string(k));
}

/// This program again, with TOUCHSTONE_ISA set, running the one test case `name`.
struct Child {
    std::string output;
    int status;
};

Child run_with_isa(const std::string& isa, const std::string& name) {
    std::array<char, 4096> path{};
    REQUIRE(readlink("/proc/self/exe", path.data(), path.size() - 1) > 0);
    const std::string line =
        "TOUCHSTONE_ISA='" + isa + "' '" + path.data() + "' --no-skip --test-case='" + name + "' 2>&1";
    FILE* const pipe = popen(line.c_str(), "r");
    REQUIRE(pipe != nullptr);
    Child child{};
    for (std::array<char, 256> buffer{}; std::fgets(buffer.data(), buffer.size(), pipe) != nullptr;)
        child.output += buffer.data();
    child.status = pclose(pipe);
    return child;
}

}  // namespace

TEST_CASE("sums: every instruction set equals the definition, bit for bit (k to 3000, lanes to 1024)") {
    const std::vector<Isa>& isas = supported_isas();
    const std::vector<Lanes> lanes = all_lanes();
    Comparison comparison;
    for (const RowKind kind : {RowKind::normal, RowKind::trap, RowKind::special}) {
        const Rows rows = rows_of(kind, 3000);
        for (int64_t k = 0; k <= 3000; ++k) {
            // Every lane count where rows are short or end around a vector's edge, one in turn elsewhere.
            const bool all = k <= 34 || (k % 256 + 2) % 256 <= 4;
            for (size_t i = 0; i < lanes.size(); ++i)
                if (all || size_t(k) % lanes.size() == i) compare_sets(comparison, isas, lanes[i], rows, k);
        }
    }
    std::printf("sums: %lld results compared\n", static_cast<long long>(comparison.compared));
    CAPTURE(comparison.first_wrong);
    CHECK(comparison.wrong == 0);
    CHECK(comparison.compared > 100'000);
}

TEST_CASE("sums: every operator's lanes at the released model's sizes (the split and lane table)") {
    const std::vector<Isa>& isas = supported_isas();
    Comparison comparison;
    for (const RowKind kind : {RowKind::normal, RowKind::trap}) {
        const Rows rows = rows_of(kind, 20481);
        for (const SumOrderRow& row : sum_order_table)
            for (const int64_t k : {row.k, row.k - 1, row.k + 1})
                if (k <= 20481) compare_sets(comparison, isas, sum_order(row.op, k, row.n).lanes, rows, k);
    }
    CAPTURE(comparison.first_wrong);
    CHECK(comparison.wrong == 0);
}

TEST_CASE("sums: unaligned rows give the same bits (every offset of a cache line)") {
    const std::vector<float> values = filled_vector<float>(Filler::normal, 8, 1100);
    std::vector<float> moved(values.size() + 16);
    const Lanes lanes{interleaved, 256};
    for (size_t offset = 0; offset < 16; ++offset) {
        std::copy(values.begin(), values.end(), moved.begin() + std::ptrdiff_t(offset));
        for (const Isa isa : supported_isas()) {
            CAPTURE(offset);
            CHECK(sums_kernels(isa).sum_f32(lanes, moved.data() + offset, 1100) == sum(lanes, values));
        }
    }
}

TEST_CASE("sums: the definition is the contract's order, written out (8 lanes of 19 elements)") {
    const std::vector<float> x = filled_vector<float>(Filler::normal, 9, 19);
    std::array<float, 8> lane{};
    for (size_t e = 0; e < x.size(); ++e) lane[e % 8] = std::fma(x[e], 1.0f, lane[e % 8]);
    const float expected =
        ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
    CHECK(sum_by_definition(Lanes{interleaved, 8}, x.data(), 19) == expected);

    // Chunked, two lanes: elements 0..7 and 16..18, then 8..15.
    float even = 0, odd = 0;
    for (const size_t e : {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18}) even = std::fma(x[e], x[e], even);
    for (size_t e = 8; e < 16; ++e) odd = std::fma(x[e], x[e], odd);
    CHECK(sum_of_squares_by_definition(Lanes{chunked, 2}, x.data(), 19) == even + odd);
}

TEST_CASE("sums: the order can be seen (lanes, arrangement and tree each change a bit somewhere)") {
    const std::vector<float> x = filled_vector<float>(Filler::normal, 10, 4096);
    std::vector<uint32_t> results;
    for (const Lanes lanes : all_lanes())
        if (lanes.count != 1) results.push_back(float_bits(sum(lanes, x)));
    std::sort(results.begin(), results.end());
    const auto distinct = std::unique(results.begin(), results.end()) - results.begin();
    CHECK(distinct > 5);

    // Adjacent pairs: 2^24 + 1 rounds to 2^24, and 1 + 1 = 2 survives; halves of the lanes would pair
    // otherwise.
    const std::vector<float> pairs{0x1p24f, 1.0f, 1.0f, 1.0f};
    CHECK(sum(Lanes{interleaved, 4}, pairs) == 0x1p24f + 2.0f);
    CHECK(sum(one_lane, pairs) == 0x1p24f);
}

TEST_CASE("sums: exact fillers give one value whatever the lanes (sum, squares, dot)") {
    const std::vector<float> x = filled_vector<float>(Filler::exact, 11, 3001);
    const std::vector<float> y = filled_vector<float>(Filler::exact, 12, 3001);
    const float squares = std::inner_product(x.begin(), x.end(), x.begin(), 0.0f);
    const float products = std::inner_product(x.begin(), x.end(), y.begin(), 0.0f);
    for (const Lanes lanes : all_lanes()) {
        CAPTURE(text(lanes));
        CHECK(sum(lanes, x) == std::accumulate(x.begin(), x.end(), 0.0f));
        CHECK(sum_of_squares(lanes, x) == squares);
        CHECK(dot(lanes, x, y) == products);
    }
}

namespace {

/// Terms that make rounding errors add up: the first of each lane is 1, and none of the others, just below
/// half an ulp of it, ever counts.
std::vector<float> absorbed_terms(Lanes lanes, int64_t k) {
    std::vector<float> x(size_t(k), 0x1.fffffep-25f);
    for (int64_t e = 0; e < k; ++e)
        if (e / lanes.run() / lanes.count == 0 && e % lanes.run() == 0) x[size_t(e)] = 1.0f;
    return x;
}

/// The error of `got` in units of its bound: (ceil(k / L) + log2 L) roundings, each of at most 2^-24 of a
/// partial sum, none of which exceeds the sum of magnitudes by more than its own rounding errors (Higham,
/// "The accuracy of floating point summation", 1993).
double share_of_bound(float got, double truth, double magnitudes, Lanes lanes, int64_t k) {
    const int64_t lane_elements = (k + lanes.count - 1) / lanes.count + (lanes.run() > 1 ? lanes.run() : 0);
    const double roundings = double(lane_elements + std::countr_zero(unsigned(lanes.count)));
    return std::fabs(got - truth) / (roundings * 0x1p-24 / (1 - roundings * 0x1p-24) * magnitudes);
}

}  // namespace

TEST_CASE("sums: the error against double keeps its bound and reaches a hundredth of it (every lane count)") {
    for (const Lanes lanes : all_lanes()) {
        double worst = 0;
        for (const int64_t k : {1, 64, 128, 1000, 5120, 20480})
            for (int shape = 0; shape < 3; ++shape) {
                std::vector<float> x = shape == 0 ? absorbed_terms(lanes, k)
                                                  : filled_vector<float>(Filler::normal, uint64_t(k), k);
                std::vector<float> y = shape == 0 ? std::vector<float>(size_t(k), 1.0f)
                                                  : filled_vector<float>(Filler::normal, 77, k);
                if (shape == 1)  // one sign: nothing cancels, the sum is as large as it can be
                    for (size_t e = 0; e < x.size(); ++e) x[e] = std::fabs(x[e]), y[e] = std::fabs(y[e]);
                double sums = 0, absolute = 0, squares = 0, products = 0, absolute_products = 0;
                for (size_t e = 0; e < x.size(); ++e) {
                    sums += x[e], absolute += std::fabs(x[e]), squares += double(x[e]) * x[e];
                    products += double(x[e]) * y[e], absolute_products += std::fabs(double(x[e]) * y[e]);
                }
                const double errors[]{
                    share_of_bound(sum(lanes, x), sums, absolute, lanes, k),
                    share_of_bound(sum_of_squares(lanes, x), squares, squares, lanes, k),
                    share_of_bound(dot(lanes, x, y), products, absolute_products, lanes, k)};
                CAPTURE(text(lanes));
                CAPTURE(k);
                CAPTURE(shape);
                for (const double error : errors) CHECK(error <= 1);
                worst = std::max({worst, errors[0], errors[1], errors[2]});
            }
        CAPTURE(text(lanes));
        CHECK(worst >= 0.01);
    }
}

TEST_CASE("sums: zeros, infinities and NaN (written policy, every instruction set)") {
    const Lanes lanes{interleaved, 8};
    const float nan = float_from_bits(0xFFC12345);
    for (const Isa isa : supported_isas()) {
        CHECK(sums_kernels(isa).isa == isa);
        const SumsKernels& set = sums_kernels(isa);
        const auto sum_bits = [&](const std::vector<float>& x) {
            return float_bits(set.sum_f32(lanes, x.data(), std::ssize(x)));
        };
        const auto largest_bits = [&](const std::vector<float>& x) {
            return float_bits(set.largest_f32(x.data(), std::ssize(x)));
        };
        CAPTURE(isa_name(isa));
        CHECK(sum_bits({}) == 0);
        CHECK(sum_bits(std::vector<float>(20, -0.0f)) == 0);
        CHECK(sum_bits({HUGE_VALF, 1, 2}) == 0x7F800000);
        CHECK(sum_bits({HUGE_VALF, -HUGE_VALF}) == canonical_nan_bits);
        CHECK(sum_bits({1, nan, 2}) == canonical_nan_bits);
        CHECK(sum_bits({float_from_bits(1), float_from_bits(1)}) == 2);
        CHECK(largest_bits({}) == 0xFF800000);
        CHECK(largest_bits({-0.0f, -0.0f}) == 0);
        CHECK(largest_bits({-0.0f, -1.0f}) == 0);
        CHECK(largest_bits({-3, -2, -5}) == float_bits(-2));
        CHECK(largest_bits({HUGE_VALF, nan}) == canonical_nan_bits);
        CHECK(largest_bits({float_from_bits(0x7F800001), 1}) == canonical_nan_bits);
        CHECK(largest_bits({-HUGE_VALF, float_from_bits(0x80000001)}) == 0x80000001);
    }
}

TEST_CASE("sum_rows: a row is the same alone, in a batch, permuted, on any number of threads") {
    constexpr int64_t rows = 41, k = 2304;
    const Lanes lanes{interleaved, 256};
    const std::vector<Bf16> x = filled_vector<Bf16>(Filler::trap, 13, rows * k);
    const std::vector<Bf16> y = filled_vector<Bf16>(Filler::normal, 14, rows * k);
    for (const RowSum what : {RowSum::sum, RowSum::sum_of_squares, RowSum::dot, RowSum::largest}) {
        const std::vector<Bf16>& second = what == RowSum::dot ? y : std::vector<Bf16>{};
        const auto row_of = [&](const std::vector<Bf16>& all, int64_t row) {
            return all.empty() ? std::span<const Bf16>{} : std::span(all).subspan(size_t(row * k), size_t(k));
        };
        std::vector<float> alone(size_t(rows), 0.0f);
        for (int64_t row = 0; row < rows; ++row)
            sum_rows(what, lanes, row_of(x, row), row_of(second, row), k,
                     std::span(alone).subspan(size_t(row), 1));
        std::vector<Bf16> turned_x, turned_y;  // rows in the other order
        for (int64_t row = rows - 1; row >= 0; --row) {
            turned_x.insert(turned_x.end(), x.begin() + row * k, x.begin() + (row + 1) * k);
            if (!second.empty())
                turned_y.insert(turned_y.end(), y.begin() + row * k, y.begin() + (row + 1) * k);
        }
        for (const int threads : {1, 2, 7}) {
            omp_set_num_threads(threads);
            std::vector<float> batch(size_t(rows), 0.0f), turned(size_t(rows), 0.0f);
            sum_rows(what, lanes, x, second, k, batch);
            sum_rows(what, lanes, turned_x, turned_y, k, turned);
            std::reverse(turned.begin(), turned.end());
            CAPTURE(int(what));
            CAPTURE(threads);
            CHECK(std::ranges::equal(batch, alone, {}, float_bits, float_bits));
            CHECK(std::ranges::equal(turned, alone, {}, float_bits, float_bits));
        }
    }
}

TEST_CASE("sums: lengths and lanes that do not fit are refused with both numbers, nothing written") {
    const std::vector<float> x(12), y(11);
    const auto refused = [](const std::string& words, const auto& call) {
        CAPTURE(words);
        try {
            call();
            FAIL_CHECK("accepted");
        } catch (const UserError& error) {
            CHECK(std::string(error.what()).find(words) != std::string::npos);
        }
    };
    refused("x has 12 elements, y has 11", [&] { (void)dot(one_lane, x, y); });
    refused("3 lanes", [&] { (void)sum(Lanes{interleaved, 3}, x); });
    refused("2048 lanes", [&] { (void)sum_of_squares(Lanes{interleaved, 2048}, x); });
    std::vector<float> out(3, 7.0f);
    refused("x has 12 elements", [&] { sum_rows(RowSum::sum, one_lane, x, {}, 5, out); });
    refused("y has 11 elements", [&] { sum_rows(RowSum::dot, one_lane, x, y, 4, out); });
    refused("y has 12 elements", [&] { sum_rows(RowSum::sum, one_lane, x, x, 4, out); });
    CHECK(out == std::vector<float>(3, 7.0f));
}

TEST_CASE("sums: child that names its kernels" * doctest::skip()) {
    std::printf("kernels of %s\n", std::string(isa_name(sums_kernels(active_isa()).isa)).c_str());
}

TEST_CASE("sums: TOUCHSTONE_ISA chooses the kernels; an unknown one is refused (child processes)") {
    const std::string name = "sums: child that names its kernels";
    for (const Isa isa : supported_isas()) {
        const Child child = run_with_isa(std::string(isa_name(isa)), name);
        CAPTURE(child.output);
        CHECK(child.status == 0);
        CHECK(child.output.find("kernels of " + std::string(isa_name(isa)) + "\n") != std::string::npos);
    }
    const Child child = run_with_isa("sse9", name);
    CAPTURE(child.output);
    CHECK(child.status != 0);
    CHECK(child.output.find("TOUCHSTONE_ISA is \"sse9\"") != std::string::npos);
    CHECK(child.output.find("kernels of") == std::string::npos);
}
