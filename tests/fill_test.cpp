#include "reference/numerics/fill.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "reference/io/user_error.h"

using namespace touchstone;

namespace {

float value(float x) {
    return x;
}
template <class T>
float value(T x) {
    return to_float(x);
}

template <class T>
std::vector<T> filled_vector(Filler filler, RandomStream random, size_t count, uint64_t first = 0) {
    std::vector<T> values(count);
    fill<T>(filler, random, values, first);
    return values;
}

template <class T>
std::vector<float> values_of(Filler filler, size_t count) {
    std::vector<float> values;
    for (const T x : filled_vector<T>(filler, {7, 3}, count)) values.push_back(value(x));
    return values;
}

template <class T>
int64_t count_equal(const std::vector<T>& values, T wanted) {
    return std::ranges::count_if(values, [&](T x) { return float_bits(x) == float_bits(wanted); });
}

}  // namespace

TEST_CASE_TEMPLATE("fill: an element depends on seed, stream and index alone", T, float, Bf16, E4m3, E2m1,
                   E8m0) {
    for (const Filler filler : {Filler::exact, Filler::normal, Filler::trap}) {
        CAPTURE(int(filler));
        const std::vector<T> whole = filled_vector<T>(filler, {1, 2}, 300);
        for (size_t first : {size_t{0}, size_t{1}, size_t{17}, size_t{255}}) {
            const std::vector<T> part = filled_vector<T>(filler, {1, 2}, 300 - first, first);
            CHECK(std::equal(part.begin(), part.end(), whole.begin() + std::ptrdiff_t(first)));
        }
        CHECK(filled<T>(filler, {1, 2}, 299) == whole.back());
        CHECK(filled_vector<T>(filler, {2, 2}, 300) != whole);
        CHECK(filled_vector<T>(filler, {1, 3}, 300) != whole);
    }
}

TEST_CASE(
    "fill exact: sums of products under two scales are exact in fp32 in any order (the docstring's sizes)") {
    const auto largest = [](const std::vector<float>& values) {
        float most = 0;
        for (const float x : values) most = std::max(most, std::fabs(x));
        return most;
    };
    const std::vector<float> fp32 = values_of<float>(Filler::exact, 4096);
    const std::vector<float> fp4 = values_of<E2m1>(Filler::exact, 4096);
    const std::vector<float> scales = values_of<E8m0>(Filler::exact, 4096);
    for (const float x : fp32) CHECK(x * 4 == std::rint(x * 4));
    for (const float x : fp4) CHECK(x * 2 == std::rint(x * 2));
    for (const float x : scales) CHECK((x == 0.5f || x == 1.0f || x == 2.0f));
    CHECK(largest(fp32) == 2.0f);
    CHECK(largest(fp4) == 6.0f);
    CHECK(values_of<Bf16>(Filler::exact, 4096) == fp32);
    CHECK(values_of<E4m3>(Filler::exact, 4096) == fp32);
    // Sum of n terms that are multiples of a unit and at most m units: exact while n * m <= 2^24.
    CHECK((int64_t{1} << 21) * 2 * 4 <= 1 << 24);
    CHECK(int64_t{100'000} * 36 * 4 <= 1 << 24);
    CHECK(int64_t{16'000} * (2 * 2 * 4) * (16 * 4) <= 1 << 24);
    CHECK(int64_t{10'000} * (2 * 6 * 4) * (8 * 4) <= 1 << 24);
    CHECK(int64_t{7'000} * (6 * 6 * 4) * (4 * 4) <= 1 << 24);
}

TEST_CASE("fill normal: mean 0, variance 1, tails beyond 3 and both signs (65,536 values)") {
    double sum = 0, squares = 0;
    int beyond = 0;
    const std::vector<float> values = values_of<float>(Filler::normal, 65536);
    for (const float x : values) sum += x, squares += double(x) * x, beyond += std::fabs(x) > 3;
    CHECK(std::fabs(sum / 65536) < 5.0 / 256);
    CHECK(std::fabs(squares / 65536 - 1) < 5 * std::sqrt(2.0) / 256);
    CHECK(beyond > 50);
    CHECK(beyond < 200);  // 177 of a true normal distribution; eight terms have thinner tails
    const std::vector<float> fp8 = values_of<E4m3>(Filler::normal, 65536);
    CHECK(count_equal(fp8, 448.0f) + count_equal(fp8, -448.0f) > 10);
    const std::vector<float> scales = values_of<E8m0>(Filler::normal, 65536);
    CHECK(std::ranges::max(scales) == 4.0f);
    CHECK(std::ranges::min(scales) == 0x1p-6f);
}

TEST_CASE("fill trap: what it promises is there, and everything is finite (16,384 values of each format)") {
    const std::vector<float> values = values_of<float>(Filler::trap, 16384);
    const auto some = [&](const auto& property) { return std::ranges::count_if(values, property) >= 20; };
    CHECK(std::ranges::all_of(values, [](float x) { return std::isfinite(x); }));
    const auto is_tie = [](float x, int mantissa_bits, uint32_t parity) {
        const uint32_t tail = float_bits(x) & ((1u << (23 - mantissa_bits)) - 1);
        return tail == 1u << (22 - mantissa_bits) && (float_bits(x) >> (23 - mantissa_bits) & 1) == parity;
    };
    for (const int mantissa_bits : {7, 3, 1})
        for (const uint32_t parity : {0u, 1u}) {
            CAPTURE(mantissa_bits);
            CAPTURE(parity);
            CHECK(some([&](float x) { return is_tie(x, mantissa_bits, parity); }));
        }
    CHECK(count_equal(values, 0.0f) >= 20);
    CHECK(count_equal(values, -0.0f) >= 20);
    for (const float limit : {6.0f, 10.0f, 20.0f, 448.0f})
        for (const float x : {limit, -limit, std::nextafter(limit, 0.0f), std::nextafter(limit, HUGE_VALF)}) {
            CAPTURE(x);
            CHECK(count_equal(values, x) >= 5);
        }
    CHECK(some([](float x) { return x != 0 && std::fabs(x) < std::numeric_limits<float>::min(); }));
    CHECK(some([](float x) { return std::fabs(x) > 0x1p120f; }));
    CHECK(count_equal(values, 0x1p-4f) >= 500);

    for (const float x : values_of<Bf16>(Filler::trap, 16384)) REQUIRE(std::isfinite(x));
    const std::vector<float> fp8 = values_of<E4m3>(Filler::trap, 16384);
    CHECK(std::ranges::all_of(fp8, [](float x) { return std::isfinite(x); }));
    std::set<uint32_t> codes, fp4_codes, scales;
    for (const float x : fp8) codes.insert(float_bits(x));
    for (const float x : values_of<E2m1>(Filler::trap, 16384)) fp4_codes.insert(float_bits(x));
    for (const E8m0 x : filled_vector<E8m0>(Filler::trap, {7}, 16384)) scales.insert(x.bits);
    CHECK(codes.size() == 254);
    CHECK(fp4_codes.size() == 16);
    CHECK(scales.size() == 255);
    CHECK_FALSE(scales.contains(255));
}

TEST_CASE("fill poison: NaN in every format that has it; e2m1 has none and is refused") {
    CHECK(float_bits(filled<float>(Filler::poison, {1}, 5)) == 0xFFFFFFFF);
    CHECK(filled<Bf16>(Filler::poison, {1}, 5).bits == 0xFFFF);
    CHECK(filled<E4m3>(Filler::poison, {1}, 5).bits == 0xFF);
    CHECK(filled<E8m0>(Filler::poison, {1}, 5).bits == 0xFF);
    std::vector<E2m1> codes(3, E2m1{9});
    CHECK_THROWS_AS(fill<E2m1>(Filler::poison, {1}, codes), UserError);
    CHECK(codes == std::vector<E2m1>(3, E2m1{9}));
}
