#include "reference/numerics/elementary.h"

#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/elementary_vector.h"
#include "tests/elementary_oracle.h"

using namespace touchstone;

namespace touchstone::contracted {
void evaluate(ElementaryFunction function, const float* x, float* y, size_t n);
float product_plus(float a, float b, float c);
}  // namespace touchstone::contracted

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr float largest = std::numeric_limits<float>::max();
const float canonical_nan = float_from_bits(canonical_nan_bits);

struct SpecialValue {
    float x, result;
};

/// Every special bit pattern, then every `stride`-th one.
std::vector<float> inputs(uint32_t stride) {
    std::vector<float> x;
    for (uint32_t bits : oracle::special_bits()) x.push_back(float_from_bits(bits));
    for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += stride) {
        x.push_back(float_from_bits(static_cast<uint32_t>(bits)));
    }
    return x;
}

std::vector<float> scalar_results(const ElementaryFunctionInfo& info, const std::vector<float>& x) {
    std::vector<float> y(x.size());
    for (size_t i = 0; i < x.size(); ++i) y[i] = info.scalar(x[i]);
    return y;
}

/// How many bits patterns differ; the first difference goes to doctest's log with `what`.
size_t count_differences(const std::string& what, const std::vector<float>& x, const std::vector<float>& y,
                         const std::vector<float>& expected) {
    size_t differences = 0;
    for (size_t i = 0; i < x.size(); ++i) {
        if (float_bits(y[i]) == float_bits(expected[i])) continue;
        if (differences++ == 0) {
            MESSAGE(what << ": x bits " << float_bits(x[i]) << ", result bits " << float_bits(y[i])
                         << ", expected " << float_bits(expected[i]));
        }
    }
    return differences;
}

float rounded(double x) {
    return with_canonical_nan(static_cast<float>(x));
}

}  // namespace

TEST_CASE("elementary: special values (as the docstrings say)") {
    using enum ElementaryFunction;
    const float smallest = float_from_bits(1), smallest_normal = 0x1p-126f;
    const std::vector<std::pair<ElementaryFunction, std::vector<SpecialValue>>> cases = {
        {exp2,
         {{0.0f, 1.0f},
          {-0.0f, 1.0f},
          {infinity, infinity},
          {-infinity, 0.0f},
          {128.0f, infinity},
          {largest, infinity},
          {-largest, 0.0f},
          {-149.0f, smallest},
          {-150.0f, 0.0f},
          {std::nextafter(-150.0f, 0.0f), smallest},
          {-126.0f, smallest_normal},
          {smallest, 1.0f}}},
        {exp,
         {{0.0f, 1.0f},
          {-0.0f, 1.0f},
          {infinity, infinity},
          {-infinity, 0.0f},
          {largest, infinity},
          {-largest, 0.0f},
          {float_from_bits(0x42B17218), infinity},
          {-103.97208f, smallest},
          {-103.97209f, 0.0f}}},
        {log,
         {{1.0f, 0.0f},
          {0.0f, -infinity},
          {-0.0f, -infinity},
          {infinity, infinity},
          {-infinity, canonical_nan},
          {-1.0f, canonical_nan},
          {-smallest, canonical_nan},
          {smallest, -103.27893f},
          {smallest_normal, -87.33655f}}},
        {log1p,
         {{0.0f, 0.0f},
          {-0.0f, -0.0f},
          {-1.0f, -infinity},
          {std::nextafter(-1.0f, -2.0f), canonical_nan},
          {infinity, infinity},
          {-infinity, canonical_nan},
          {smallest, smallest},
          {-smallest, -smallest},
          {-largest, canonical_nan}}},
        {erf,
         {{0.0f, 0.0f},
          {-0.0f, -0.0f},
          {infinity, 1.0f},
          {-infinity, -1.0f},
          {largest, 1.0f},
          {-largest, -1.0f},
          {smallest, smallest},
          {-smallest, -smallest},
          {4.0f, 1.0f}}},
        {sigmoid,
         {{0.0f, 0.5f}, {-0.0f, 0.5f}, {infinity, 1.0f}, {-infinity, 0.0f}, {-89.0f, 0.0f}, {largest, 1.0f}}},
        {silu,
         {{0.0f, 0.0f}, {-0.0f, -0.0f}, {infinity, infinity}, {-infinity, canonical_nan}, {-89.0f, -0.0f}}},
        {softplus,
         {{infinity, infinity},
          {-infinity, 0.0f},
          {-104.0f, 0.0f},
          {-103.97208f, smallest},
          {0.0f, 0x1.62e430p-1f},
          {largest, largest},
          {20.0f, 20.0f}}},
        {sqrt_softplus, {{infinity, infinity}, {-infinity, 0.0f}, {-104.0f, 0.0f}, {25.0f, 5.0f}}},
        {gelu,
         {{0.0f, 0.0f},
          {-0.0f, -0.0f},
          {infinity, infinity},
          {-infinity, canonical_nan},
          {-6.0f, -0.0f},
          {6.0f, 6.0f}}},
        {reciprocal_sqrt,
         {{0.0f, infinity},
          {-0.0f, -infinity},
          {infinity, 0.0f},
          {-infinity, canonical_nan},
          {-1.0f, canonical_nan},
          {4.0f, 0.5f},
          {smallest_normal, 0x1p63f}}},
    };
    CHECK(cases.size() == elementary_functions().size());
    for (const auto& [function, values] : cases) {
        for (const SpecialValue& value : values) {
            const std::string name(elementary_functions()[size_t(function)].name);
            CAPTURE(name);
            CAPTURE(value.x);
            CHECK(float_bits(evaluate(function, value.x)) == float_bits(value.result));
        }
    }
}

TEST_CASE("elementary: a NaN of any sign and payload gives the canonical NaN (every function)") {
    for (const ElementaryFunctionInfo& info : elementary_functions()) {
        const std::string name(info.name);
        CAPTURE(name);
        for (uint32_t bits : {0x7F800001u, 0x7FBFFFFFu, 0x7FC00000u, 0x7FFFFFFFu}) {
            CAPTURE(bits);
            CHECK(float_bits(info.scalar(float_from_bits(bits))) == canonical_nan_bits);
            CHECK(float_bits(info.scalar(float_from_bits(bits | 0x80000000u))) == canonical_nan_bits);
        }
    }
}

TEST_CASE("exp2: exact at integers, subnormal powers included (-149..127)") {
    for (int n = -149; n <= 127; ++n) {
        CAPTURE(n);
        CHECK(elementary::exp2(static_cast<float>(n)) == std::ldexp(1.0f, n));
    }
}

TEST_CASE("exp2, exp: subnormal results are numbers, not zeros (all 23 subnormal binades)") {
    for (int n = -149; n < -126; ++n) {
        CAPTURE(n);
        const float x = static_cast<float>(n) + 0.5f;
        CHECK(oracle::ulp_error(elementary::exp2(x), std::exp2(double{x})) <= 0.75);
        CHECK(elementary::exp2(x) > 0);
        const float natural = x * 0x1.62e430p-1f;
        CHECK(oracle::ulp_error(elementary::exp(natural), std::exp(double{natural})) <= 0.75);
        CHECK(elementary::exp(natural) > 0);
    }
}

TEST_CASE("elementary: arrays give the scalar function's bits (every instruction set, 1 million inputs)") {
    const std::vector<float> x = inputs(4093);
    std::vector<float> y(x.size());
    for (const ElementaryFunctionInfo& info : elementary_functions()) {
        const std::vector<float> expected = scalar_results(info, x);
        info.vector(x, y);
        CHECK(count_differences(std::string(info.name), x, y, expected) == 0);
        for (Isa isa : compiled_isas()) {
            CHECK(elementary_kernels(isa).isa == isa);
            if (!isa_supported(isa)) continue;
            std::fill(y.begin(), y.end(), 0.0f);
            evaluate(info.function, x, y, isa);
            const std::string what = std::string(info.name) + " by " + std::string(isa_name(isa));
            CHECK(count_differences(what, x, y, expected) == 0);
        }
    }
    for (Isa isa : compiled_isas()) {
        if (!isa_supported(isa)) MESSAGE(isa_name(isa) << " is compiled in, but this CPU lacks it: not run");
    }
}

TEST_CASE(
    "elementary: arrays of every short length, in place, and nothing beside them (every instruction set)") {
    const std::vector<float> all = inputs(1u << 22);
    for (Isa isa : compiled_isas()) {
        if (!isa_supported(isa)) continue;
        for (const ElementaryFunctionInfo& info : elementary_functions()) {
            size_t wrong = 0;
            for (size_t n = 0; n <= 200; ++n) {
                // Shifted by n, so that every alignment occurs; one guard on either side.
                std::vector<float> buffer(all.begin() + static_cast<ptrdiff_t>(n),
                                          all.begin() + static_cast<ptrdiff_t>(2 * n + 2));
                const std::vector<float> before = buffer;
                const std::span<float> middle(buffer.data() + 1, n);
                evaluate(info.function, middle, middle, isa);
                for (size_t i = 0; i < buffer.size(); ++i) {
                    const bool guard = i == 0 || i == n + 1;
                    const float expected = guard ? before[i] : info.scalar(before[i]);
                    wrong += float_bits(buffer[i]) != float_bits(expected);
                }
            }
            INFO(info.name << " by " << isa_name(isa));
            CHECK(wrong == 0);
        }
    }
}

TEST_CASE("elementary: the list, the enumerators and the named array functions are the same functions") {
    const std::vector<float> x = {0.75f, 3.5f, 25.0f};
    const std::vector<void (*)(std::span<const float>, std::span<float>)> named = {
        elementary::exp2,
        elementary::exp,
        elementary::log,
        elementary::log1p,
        elementary::erf,
        elementary::sigmoid,
        elementary::silu,
        elementary::softplus,
        elementary::sqrt_softplus,
        elementary::gelu,
        elementary::reciprocal_sqrt};
    const std::vector<float> at_3_5 = {elementary::exp2(3.5f),
                                       elementary::exp(3.5f),
                                       elementary::log(3.5f),
                                       elementary::log1p(3.5f),
                                       elementary::erf(3.5f),
                                       elementary::sigmoid(3.5f),
                                       elementary::silu(3.5f),
                                       elementary::softplus(3.5f),
                                       elementary::sqrt_softplus(3.5f),
                                       elementary::gelu(3.5f),
                                       elementary::reciprocal_sqrt(3.5f)};
    REQUIRE(elementary_functions().size() == named.size());
    for (size_t f = 0; f < named.size(); ++f) {
        std::vector<float> y(x.size());
        named[f](x, y);
        CAPTURE(f);
        CHECK(y == scalar_results(elementary_functions()[f], x));
        CHECK(float_bits(y[1]) == float_bits(at_3_5[f]));
    }
}

TEST_CASE("elementary: a sample of results has the stored hash (4 million inputs, golden table)") {
    const auto stored = oracle::stored_hashes();
    REQUIRE(stored.size() == elementary_functions().size());
    for (const ElementaryFunctionInfo& info : elementary_functions()) {
        INFO(info.name << ": results changed. If that is meant, elementary_exhaustive_test tells how to "
                          "write the table");
        CHECK(oracle::sample_hash(info.function) == stored.find(info.name)->second.sample);
    }
}

TEST_CASE("elementary: promised functions are within 1 ulp (sample of 2 million inputs, double)") {
    const std::vector<float> x = inputs(2039);
    std::vector<float> y(x.size());
    for (const ElementaryFunctionInfo& info : elementary_functions()) {
        if (info.promised_ulp == 0) continue;
        info.vector(x, y);
        double worst = 0;
        float worst_x = 0;
        for (size_t i = 0; i < x.size(); ++i) {
            const double error = oracle::ulp_error(y[i], oracle::true_value(info.function, double{x[i]}));
            if (error > worst) worst = error, worst_x = x[i];
        }
        INFO(info.name << ": " << worst << " ulp at bits " << float_bits(worst_x));
        CHECK(worst <= info.promised_ulp);
        CHECK(worst > 0.4);  // an oracle that repeats the function would find less
    }
}

TEST_CASE("elementary: promised functions never fall (runs of neighbours across the reductions' seams)") {
    const std::vector<float> seams = {0.5f,       1.5f,        -0.5f,        -1.5f,      126.5f,
                                      -126.5f,    0.34657359f, -0.34657359f, 1.0397208f, 0.70710678f,
                                      1.4142135f, 0.41421356f, -0.29289322f, 1.0f,       2.0f,
                                      4.0f,       3.919206f,   0x1p-24f,     0x1p-126f,  20.0f};
    constexpr int32_t reach = 1 << 13;
    for (const ElementaryFunctionInfo& info : elementary_functions()) {
        if (info.promised_ulp == 0) continue;
        for (float seam : seams) {
            const double sign = seam < 0 ? -1 : 1;  // bits rise away from zero
            size_t falls = 0;
            float before = canonical_nan;
            for (int32_t offset = -reach; offset <= reach; ++offset) {
                const float y =
                    info.scalar(float_from_bits(float_bits(seam) + static_cast<uint32_t>(offset)));
                falls += sign * y < sign * before;
                before = y;
            }
            INFO(info.name << " near " << seam);
            CHECK(falls == 0);
        }
    }
}

TEST_CASE(
    "elementary: formulas are their written operations, each rounded to fp32 (1 million inputs, double)") {
    // In double every + / sqrt and the products by a constant of 24 bits round innocuously before fp32 (53 >=
    // 2*24+2).
    using enum ElementaryFunction;
    const auto e = [](double x) { return double{elementary::exp(static_cast<float>(x))}; };
    const auto softplus_of = [](float x) { return x > 20.0f ? x : elementary::log1p(elementary::exp(x)); };
    const std::vector<float> x = inputs(4093);
    std::vector<float> y(x.size());
    const auto check = [&](ElementaryFunction function, auto written) {
        std::vector<float> expected(x.size());
        for (size_t i = 0; i < x.size(); ++i) expected[i] = written(x[i]);
        evaluate(function, x, y);
        CHECK(count_differences(std::string(elementary_functions()[size_t(function)].name), x, y, expected) ==
              0);
    };
    check(sigmoid, [&](float v) { return rounded(1.0 / double{rounded(1.0 + e(-v))}); });
    check(silu, [&](float v) { return rounded(double{v} / double{rounded(1.0 + e(-v))}); });
    check(softplus, [&](float v) { return with_canonical_nan(softplus_of(v)); });
    check(sqrt_softplus, [&](float v) { return rounded(std::sqrt(double{softplus_of(v)})); });
    check(gelu, [&](float v) {
        const float erf_of = elementary::erf(rounded(double{v} * double{0.70710678f}));
        return rounded(double{rounded(0.5 * v)} * double{rounded(1.0 + erf_of)});
    });
    check(reciprocal_sqrt, [&](float v) { return rounded(1.0 / double{rounded(std::sqrt(double{v}))}); });
}

TEST_CASE("elementary: formulas stay near their true values (|x| <= 30, long double)") {
    using enum ElementaryFunction;
    const auto sigmoid_of = [](long double v) { return 1 / (1 + std::exp(-v)); };
    const auto softplus_of = [](long double v) { return std::log1p(std::exp(v)); };
    // Bounds in 2^-24 max(1, |truth|), from the roundings of each formula.
    const auto check = [&](ElementaryFunction function, double bound, auto truth) {
        double worst = 0;
        float worst_x = 0;
        for (int i = -300000; i <= 300000; ++i) {
            const float x = static_cast<float>(i) * 1e-4f;
            const long double t = truth(static_cast<long double>(x));
            const long double scale = std::max(1.0L, std::fabs(t)) * 0x1p-24L;
            const auto error = static_cast<double>(std::fabs(evaluate(function, x) - t) / scale);
            if (error > worst) worst = error, worst_x = x;
        }
        const std::string name(elementary_functions()[size_t(function)].name);
        INFO(name << ": " << worst << " at " << worst_x);
        CHECK(worst <= bound);
        CHECK(worst > bound / 8);
    };
    check(sigmoid, 2, sigmoid_of);
    check(silu, 4, [&](long double v) { return v * sigmoid_of(v); });
    check(softplus, 4, softplus_of);
    check(sqrt_softplus, 3, [&](long double v) { return std::sqrt(softplus_of(v)); });
    check(gelu, 4, [](long double v) { return 0.5L * v * std::erfc(-v / std::sqrt(2.0L)); });
}

TEST_CASE("softplus: log1p(exp(x)) up to torch's threshold, x beyond it (20)") {
    const float above = std::nextafter(20.0f, 21.0f);
    CHECK(elementary::softplus(20.0f) == elementary::log1p(elementary::exp(20.0f)));
    CHECK(elementary::softplus(above) == above);
    CHECK(elementary::softplus(12.0f) > 12.0f);     // the last integer where fp32 shows the difference is 16
    CHECK(elementary::softplus(100.0f) == 100.0f);  // exp(100) overflows
}

TEST_CASE("elementary: no bit hangs on contraction (all functions compiled with -ffp-contract=fast)") {
#ifdef __x86_64__
    if (!__builtin_cpu_supports("fma")) {
        MESSAGE("this CPU has no FMA instruction: the contracted code was not run");
        return;
    }
#endif
    volatile float a = 1 + 0x1p-12f, c = -(1 + 0x1p-11f);
    CHECK(contracted::product_plus(a, a, c) == 0x1p-24f);  // rounded twice it would be 0
    const std::vector<float> x = inputs(4093);
    std::vector<float> y(x.size()), expected(x.size());
    for (const ElementaryFunctionInfo& info : elementary_functions()) {
        info.vector(x, expected);
        contracted::evaluate(info.function, x.data(), y.data(), x.size());
        CHECK(count_differences(std::string(info.name) + " contracted", x, y, expected) == 0);
    }
}

TEST_CASE("elementary: arrays of different lengths are refused, nothing is written (UserError)") {
    const std::vector<float> x(3, 1.0f);
    std::vector<float> y(4, 7.0f);
    CHECK_THROWS_AS(elementary::exp2(x, y), UserError);
    CHECK(y == std::vector<float>(4, 7.0f));
}
