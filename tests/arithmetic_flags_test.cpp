// Bit-exact arithmetic hangs on compile flags. Each case here is an expression that gives another answer when
// one of them is lost: contraction, flushing of subnormals, reassociation, reciprocals, fast square roots.
#include <doctest/doctest.h>

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "reference/numerics/host_device.h"

using namespace touchstone;

static_assert(FLT_EVAL_METHOD == 0, "float expressions must be evaluated in float");
static_assert(std::numeric_limits<float>::is_iec559 && std::numeric_limits<double>::is_iec559);

// On x86 the compiler contracts only where the FMA instruction is allowed, so these functions allow it.
#if defined(__x86_64__)
#define TOUCHSTONE_TEST_WITH_FMA __attribute__((target("fma"), noinline))
static bool fma_instruction_exists() {
    return __builtin_cpu_supports("fma");
}
#else
#define TOUCHSTONE_TEST_WITH_FMA __attribute__((noinline))
static bool fma_instruction_exists() {
    return true;
}
#endif

namespace {

TOUCHSTONE_TEST_WITH_FMA float product_plus(float a, float b, float c) {
    return a * b + c;
}
TOUCHSTONE_TEST_WITH_FMA double product_plus(double a, double b, double c) {
    return a * b + c;
}
TOUCHSTONE_TEST_WITH_FMA float product_minus(float a, float b, float c) {
    return c - a * b;
}

__attribute__((noinline)) void round_neighbours_to_fp32(double* pair) {
    pair[0] = static_cast<double>(static_cast<float>(pair[0]));
    pair[1] = static_cast<double>(static_cast<float>(pair[1]));
}

/// A value that the compiler cannot know.
template <class T>
T opaque(T value) {
    volatile T hidden = value;
    return hidden;
}

std::vector<float> opaque_ramp(int count) {
    std::vector<float> values;
    for (int i = 1; i <= count; ++i) values.push_back(opaque(static_cast<float>(i)));
    return values;
}

}  // namespace

TEST_CASE(
    "arithmetic: a double rounded to fp32 stays rounded, beside another too (-fno-tree-slp-vectorize)") {
    double pair[2]{opaque(0.1), opaque(0.2)};
    round_neighbours_to_fp32(pair);
    CHECK(pair[0] == 0x1.99999ap-4);
    CHECK(pair[1] == 0x1.99999ap-3);
}

TEST_CASE("arithmetic: a product and a sum are two roundings (-ffp-contract=off)") {
    if (!fma_instruction_exists()) {
        MESSAGE("this CPU has no FMA instruction: contraction is impossible and was not tested");
        return;
    }
    // (1 + 2^-12)^2 = 1 + 2^-11 + 2^-24, whose last term is half an ulp and rounds away to even.
    const float a = opaque(1 + 0x1p-12f);
    CHECK(product_plus(a, a, opaque(-(1 + 0x1p-11f))) == 0.0f);
    CHECK(product_minus(a, a, opaque(1 + 0x1p-11f)) == 0.0f);
    const double b = opaque(1 + 0x1p-27);
    CHECK(product_plus(b, b, opaque(-(1 + 0x1p-26))) == 0.0);
}

TEST_CASE("arithmetic: a written fma is one rounding (std::fma)") {
    const float a = opaque(1 + 0x1p-12f);
    CHECK(std::fma(a, a, opaque(-(1 + 0x1p-11f))) == 0x1p-24f);
    const double b = opaque(1 + 0x1p-27);
    CHECK(std::fma(b, b, opaque(-(1 + 0x1p-26))) == 0x1p-54);
}

TEST_CASE("arithmetic: subnormals are neither flushed nor read as zero (no flush-to-zero, every thread)") {
    int lost = 0;
#pragma omp parallel reduction(+ : lost)
    {
        const float made = opaque(FLT_MIN) * opaque(0.5f);
        const float read = opaque(float_from_bits(1)) * opaque(0x1p100f);
        const double made_double = opaque(DBL_MIN) * opaque(0.5);
        lost += float_bits(made) != 0x00400000;
        lost += read != 0x1p-49f;
        lost += made_double != DBL_MIN / 2;
        lost += opaque(float_from_bits(0x00400000)) == 0.0f;
    }
    CHECK(lost == 0);
}

TEST_CASE("arithmetic: sums keep their written order (no reassociation)") {
    const float one = opaque(1.0f);
    const float half_ulp = opaque(0x1p-24f);
    CHECK(one + half_ulp + half_ulp == 1.0f);  // from the right it would be 1 + 2^-23
    const float big = opaque(0x1p24f);
    CHECK((big + one) - big == 0.0f);

    const std::vector<float> ones(64, one);
    float sum = opaque(0x1p25f);
    for (float value : ones) sum += value;
    CHECK(sum == 0x1p25f);  // lanes of partial sums would give 2^25 + 64
}

TEST_CASE("arithmetic: division and square root are correctly rounded (no reciprocal estimates)") {
    const float divisor = opaque(3.0f);
    const std::vector<float> values = opaque_ramp(4096);
    std::vector<float> quotients(values.size());
    std::vector<float> roots(values.size());
    std::vector<float> inverse_roots(values.size());
    for (size_t i = 0; i < values.size(); ++i) quotients[i] = values[i] / divisor;
    for (size_t i = 0; i < values.size(); ++i) roots[i] = std::sqrt(values[i]);
    for (size_t i = 0; i < values.size(); ++i) inverse_roots[i] = 1.0f / std::sqrt(values[i]);
    for (size_t i = 0; i < values.size(); ++i) {
        CAPTURE(values[i]);
        // A double has more than twice the bits of a float, so rounding its result again is harmless.
        CHECK(quotients[i] == static_cast<float>(static_cast<double>(values[i]) / 3.0));
        CHECK(roots[i] == static_cast<float>(std::sqrt(static_cast<double>(values[i]))));
        CHECK(inverse_roots[i] == static_cast<float>(1.0 / static_cast<double>(roots[i])));
    }
}

TEST_CASE("arithmetic: NaN, infinity and the sign of zero are seen (no finite-math, no unsigned zeros)") {
    const float infinity = opaque(HUGE_VALF);
    const float difference = infinity - infinity;
    CHECK(std::isnan(difference));
    CHECK_FALSE(difference == difference);
    CHECK(std::isinf(infinity));
    const float negative_zero = opaque(-0.0f);
    CHECK(std::signbit(negative_zero));
    CHECK_FALSE(std::signbit(negative_zero + 0.0f));
    CHECK(std::signbit(negative_zero * 1.0f));
    CHECK(float_bits(0.0f - opaque(0.0f)) == 0);
}

TEST_CASE("arithmetic: rounding is to nearest, ties to even (default mode, every thread)") {
    int wrong = 0;
#pragma omp parallel reduction(+ : wrong)
    {
        wrong += opaque(1.0f) + opaque(0x1p-24f) != 1.0f;
        wrong += opaque(1.0f) + opaque(3 * 0x1p-24f) != 1.0f + 0x1p-22f;
        wrong += opaque(-1.0f) - opaque(0x1p-24f) != -1.0f;
    }
    CHECK(wrong == 0);
}
