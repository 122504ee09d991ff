#include "reference/numerics/small_float.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <type_traits>
#include <vector>

#include "tests/small_float_oracle.h"

#ifdef TOUCHSTONE_MPFR
#include <mpfr.h>
#endif

using namespace touchstone;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

float ulp_above(float x) {
    return std::nextafter(x, infinity);
}
float ulp_below(float x) {
    return std::nextafter(x, -infinity);
}

/// fp32 inputs where a conversion can go wrong: every value, every midpoint between neighbours, the fp32
/// numbers beside them, the ends of the fp32 range and NaNs of both signs, quiet and signalling.
std::vector<float> critical_inputs(const oracle::Conversion& conversion) {
    std::vector<float> inputs;
    const std::vector<double>& values = conversion.values;
    for (size_t code = 0; code < values.size(); ++code) {
        const double next = code + 1 < values.size() ? values[code + 1] : 2 * values[code];
        for (double point : {values[code], (values[code] + next) / 2}) {
            if (point > std::numeric_limits<float>::max()) continue;
            const float x = static_cast<float>(point);
            for (float near : {ulp_below(x), x, ulp_above(x)}) inputs.insert(inputs.end(), {near, -near});
        }
    }
    for (uint32_t bits : {0x00000001u, 0x007FFFFFu, 0x00800000u, 0x7F7FFFFFu, 0x7F800000u, 0x7F800001u,
                          0x7FBFFFFFu, 0x7FC00000u, 0x7FFFFFFFu}) {
        inputs.insert(inputs.end(), {float_from_bits(bits), float_from_bits(bits | 0x80000000u)});
    }
    return inputs;
}

void check_against_oracle(const oracle::Conversion& conversion, float x) {
    CAPTURE(conversion.name);
    CAPTURE(float_bits(x));
    CHECK(conversion.convert(x) == oracle::expected_code(conversion, x));
}

}  // namespace

TEST_CASE("small floats: are storage, never numbers by accident (type properties)") {
    static_assert(!std::is_convertible_v<float, E4m3> && !std::is_convertible_v<E4m3, float>);
    static_assert(!std::is_convertible_v<uint8_t, E8m0> && !std::is_convertible_v<E8m0, float>);
    static_assert(!std::is_convertible_v<float, E2m1> && !std::is_convertible_v<E2m1, float>);
    static_assert(!std::is_convertible_v<float, Bf16> && !std::is_convertible_v<Bf16, float>);
    static_assert(std::is_trivially_copyable_v<Bf16> && std::is_trivially_copyable_v<E4m3>);
    static_assert(e4m3_from_float_saturating(449.0f) == E4m3{0x7E});  // usable in constant expressions
    CHECK(E4m3{0x38} == E4m3{0x38});
    CHECK(E4m3{0x00} != E4m3{0x80});  // equality is of codes: +0 and -0 differ
}

TEST_CASE("e4m3: every code decodes to its value (formula in double)") {
    for (uint32_t code = 0; code < 256; ++code) {
        CAPTURE(code);
        const float decoded = to_float(E4m3{static_cast<uint8_t>(code)});
        if ((code & 0x7F) == 0x7F) {
            CHECK(float_bits(decoded) == canonical_nan_bits);
            continue;
        }
        CHECK(std::fabs(decoded) == oracle::value_of(code & 0x7F, 3, 7));
        CHECK(std::signbit(decoded) == (code >= 0x80));
    }
    CHECK(to_float(E4m3{0x7E}) == 448.0f);
    CHECK(to_float(E4m3{0x01}) == 0x1p-9f);
    CHECK(to_float(E4m3{0x08}) == 0x1p-6f);
}

TEST_CASE("e2m1: every byte decodes by its low nibble (0, 0.5, 1, 1.5, 2, 3, 4, 6)") {
    const float magnitudes[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        CAPTURE(byte);
        const float decoded = to_float(E2m1{static_cast<uint8_t>(byte)});
        CHECK(std::fabs(decoded) == magnitudes[byte & 7]);
        CHECK(std::signbit(decoded) == ((byte & 8) != 0));
    }
}

TEST_CASE("bf16: every code decodes to its value and converts back (65,536 codes)") {
    for (uint32_t code = 0; code < 0x10000; ++code) {
        CAPTURE(code);
        const Bf16 stored{static_cast<uint16_t>(code)};
        const float decoded = to_float(stored);
        const uint32_t magnitude = code & 0x7FFF;
        if (magnitude > 0x7F80) {
            CHECK(float_bits(decoded) == code << 16);
            CHECK(bf16_from_float(decoded).bits == canonical_nan_bf16_bits);
            continue;
        }
        const double value = magnitude == 0x7F80 ? HUGE_VAL : oracle::value_of(magnitude, 7, 127);
        CHECK(std::fabs(decoded) == value);
        CHECK(std::signbit(decoded) == (code >= 0x8000));
        CHECK(bf16_from_float(decoded) == stored);
    }
}

TEST_CASE("e8m0: every byte is a power of two, never the byte's own number (B110)") {
    for (int byte = 0; byte < 255; ++byte) {
        CAPTURE(byte);
        const E8m0 stored{static_cast<uint8_t>(byte)};
        CHECK(to_float(stored) == std::ldexp(1.0, byte - 127));
        CHECK(e8m0_from_float_ceil(to_float(stored)) == stored);
    }
    CHECK(to_float(E8m0{120}) == 0.0078125f);
    CHECK(float_bits(to_float(E8m0{0})) == 0x00400000);  // 2^-127, not zero
    CHECK(float_bits(to_float(E8m0{255})) == canonical_nan_bits);
    CHECK(e8m0_from_float_ceil(to_float(E8m0{255})) == E8m0{255});
}

TEST_CASE("e4m3, e2m1: decode then encode is the identity (round trip of codes)") {
    for (uint32_t code = 0; code < 256; ++code) {
        CAPTURE(code);
        const E4m3 stored{static_cast<uint8_t>(code)};
        const E4m3 expected{static_cast<uint8_t>(code == 0xFF ? 0x7F : code)};  // the sign of NaN is dropped
        CHECK(e4m3_from_float_saturating(to_float(stored)) == expected);
        CHECK(e4m3_from_float_overflow_to_nan(to_float(stored)) == expected);
    }
    for (uint8_t code = 0; code < 16; ++code) {
        CAPTURE(code);
        CHECK(e2m1_from_float_saturating(to_float(E2m1{code})) == E2m1{code});
    }
}

TEST_CASE("small floats: values, midpoints and their fp32 neighbours convert right (search in double)") {
    for (const oracle::Conversion& conversion : oracle::conversions()) {
        for (float x : critical_inputs(conversion)) check_against_oracle(conversion, x);
    }
}

TEST_CASE("small floats: every bf16 input converts right (search in double)") {
    for (const oracle::Conversion& conversion : oracle::conversions()) {
        for (uint32_t code = 0; code < 0x10000; ++code) {
            check_against_oracle(conversion, float_from_bits(code << 16));
        }
    }
}

TEST_CASE("e2m1: ties go to the even code, the sign of zero stays (B99)") {
    const float inputs[7] = {0.25f, 0.75f, 1.25f, 1.75f, 2.5f, 3.5f, 5.0f};
    const float rounded[7] = {0.0f, 1.0f, 1.0f, 2.0f, 2.0f, 4.0f, 4.0f};
    for (int i = 0; i < 7; ++i) {
        CAPTURE(inputs[i]);
        CHECK(float_bits(to_float(e2m1_from_float_saturating(inputs[i]))) == float_bits(rounded[i]));
        CHECK(float_bits(to_float(e2m1_from_float_saturating(-inputs[i]))) == float_bits(-rounded[i]));
    }
    CHECK(e2m1_from_float_saturating(-0.0f) == E2m1{8});
    CHECK(e2m1_from_float_saturating(-1e-30f) == E2m1{8});
    CHECK(e2m1_from_float_saturating(-infinity) == E2m1{15});
    CHECK(e2m1_from_float_saturating(float_from_bits(0xFFC00000)) == E2m1{7});  // NaN: +6
}

TEST_CASE("e8m0: a hair above a power of two takes the next one (B102)") {
    for (int k = -126; k <= 127; ++k) {
        CAPTURE(k);
        const float power = std::ldexp(1.0f, k);
        const int byte = k + 127;
        CHECK(int{e8m0_from_float_ceil(power).bits} == byte);
        CHECK(int{e8m0_from_float_ceil(ulp_below(power)).bits} == byte);
        CHECK(int{e8m0_from_float_ceil(ulp_above(power)).bits} == std::min(byte + 1, 254));
        CHECK(e8m0_from_float_ceil(-power) == e8m0_from_float_ceil(power));  // the sign is ignored
    }
    CHECK(to_float(e8m0_from_float_ceil(1024.0f * (1.0f + 0x1p-23f))) == 2048.0f);
}

TEST_CASE("e8m0: zero, subnormals, infinity and NaN have a written answer (policy)") {
    CHECK(e8m0_from_float_ceil(0.0f) == E8m0{0});
    CHECK(e8m0_from_float_ceil(-0.0f) == E8m0{0});
    CHECK(e8m0_from_float_ceil(0x1p-149f) == E8m0{0});
    CHECK(e8m0_from_float_ceil(0x1p-127f) == E8m0{0});
    CHECK(e8m0_from_float_ceil(ulp_above(0x1p-127f)) == E8m0{1});
    CHECK(e8m0_from_float_ceil(std::numeric_limits<float>::max()) == E8m0{254});
    CHECK(e8m0_from_float_ceil(infinity) == E8m0{254});
    CHECK(e8m0_from_float_ceil(-infinity) == E8m0{254});
    CHECK(e8m0_from_float_ceil(float_from_bits(0xFFC00001)) == E8m0{255});
}

TEST_CASE("e8m0: blocks whose amax is 448 2^k or 6 2^k get scale 2^k (amax times fp32 reciprocal)") {
    const float reciprocal_of_448 = float_from_bits(0x3B124925);
    const float reciprocal_of_6 = float_from_bits(0x3E2AAAAB);
    for (int k = -100; k <= 100; ++k) {
        CAPTURE(k);
        CHECK(int{e8m0_from_float_ceil(std::ldexp(448.0f, k) * reciprocal_of_448).bits} == k + 127);
        CHECK(int{e8m0_from_float_ceil(std::ldexp(6.0f, k) * reciprocal_of_6).bits} == k + 127);
    }
}

TEST_CASE("e4m3: the two forms differ beyond 464 only (saturating and overflow to NaN)") {
    CHECK(e4m3_from_float_saturating(449.0f) == E4m3{0x7E});
    CHECK(e4m3_from_float_overflow_to_nan(464.0f) == E4m3{0x7E});
    CHECK(e4m3_from_float_overflow_to_nan(-464.0f) == E4m3{0xFE});
    const float overflows[4] = {ulp_above(464.0f), 465.0f, 1e30f, infinity};
    for (float x : overflows) {
        CAPTURE(x);
        CHECK(e4m3_from_float_saturating(x) == E4m3{0x7E});
        CHECK(e4m3_from_float_saturating(-x) == E4m3{0xFE});
        CHECK(e4m3_from_float_overflow_to_nan(x) == E4m3{0x7F});
        CHECK(e4m3_from_float_overflow_to_nan(-x) == E4m3{0xFF});
    }
}

TEST_CASE("e2m1: the element of even index is the low nibble (B112)") {
    CHECK(to_float(even_e2m1(0x21)) == 0.5f);
    CHECK(to_float(odd_e2m1(0x21)) == 1.0f);
    CHECK(float_bits(to_float(even_e2m1(0x98))) == 0x80000000);
    CHECK(to_float(odd_e2m1(0x98)) == -0.5f);
    for (uint32_t byte = 0; byte < 256; ++byte) {
        CAPTURE(byte);
        const auto packed = static_cast<uint8_t>(byte);
        CHECK(pack_e2m1(even_e2m1(packed), odd_e2m1(packed)) == packed);
    }
}

TEST_CASE("NaN: every NaN becomes the canonical one, every number stays (bits)") {
    volatile float zero = 0.0f;
    const float made_by_this_cpu = zero / zero;
    CHECK(float_bits(with_canonical_nan(made_by_this_cpu)) == canonical_nan_bits);
    CHECK(bf16_from_float(made_by_this_cpu).bits == canonical_nan_bf16_bits);
    for (uint32_t high = 0; high < 0x10000; ++high) {
        for (uint32_t low : {0u, 1u, 0xFFFFu}) {
            const uint32_t bits = high << 16 | low;
            CAPTURE(bits);
            const bool nan = (bits & 0x7FFFFFFF) > 0x7F800000;
            CHECK(is_nan(float_from_bits(bits)) == nan);
            CHECK(float_bits(with_canonical_nan(float_from_bits(bits))) == (nan ? canonical_nan_bits : bits));
        }
    }
}

#ifdef TOUCHSTONE_MPFR
namespace {

/// A format as MPFR sees it: significands in [1/2, 1), so exponents are one above the usual.
struct MpfrFormat {
    mpfr_prec_t precision;
    mpfr_exp_t smallest_exponent;  ///< of the smallest value, subnormals included
    mpfr_exp_t largest_exponent;
    mpfr_rnd_t rounding;
};

/// |x| rounded once by MPFR to `format`, subnormals included; HUGE_VAL where it overflows.
double rounded_by_mpfr(float x, const MpfrFormat& format) {
    mpfr_set_emin(format.smallest_exponent);
    mpfr_set_emax(format.largest_exponent);
    mpfr_t value;
    mpfr_init2(value, format.precision);
    const int direction = mpfr_set_flt(value, std::fabs(x), format.rounding);
    mpfr_subnormalize(value, direction, format.rounding);
    const double rounded = mpfr_get_d(value, MPFR_RNDN);
    mpfr_clear(value);
    return rounded;
}

}  // namespace

TEST_CASE("small floats: MPFR agrees at every rounding boundary (third oracle)") {
    const std::vector<MpfrFormat> formats = {
        {8, -132, 128, MPFR_RNDN},  // bf16
        {4, -8, 9, MPFR_RNDN},      // e4m3, saturating
        {4, -8, 9, MPFR_RNDN},      // e4m3, overflow to NaN
        {2, 0, 3, MPFR_RNDN},       // e2m1
        {1, -126, 128, MPFR_RNDU},  // e8m0
    };
    REQUIRE(formats.size() == oracle::conversions().size());
    for (size_t i = 0; i < formats.size(); ++i) {
        const oracle::Conversion& conversion = oracle::conversions()[i];
        CAPTURE(conversion.name);
        const auto last = static_cast<uint32_t>(conversion.values.size() - 1);
        for (float x : critical_inputs(conversion)) {
            if (std::isnan(x)) continue;
            CAPTURE(float_bits(x));
            const uint32_t code = conversion.convert(x) & ~conversion.sign_bit;
            const double rounded = rounded_by_mpfr(x, formats[i]);
            if (rounded >= conversion.values[last]) {
                CHECK(code == last);
            } else if (rounded == 0) {
                CHECK(code == 0);
            } else {
                REQUIRE(code <= last);
                CHECK(conversion.values[code] == rounded);
            }
        }
    }
}
#endif
