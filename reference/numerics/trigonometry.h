// sin and cos of an fp32 angle, for RoPE tables. Host only: tables are made here and uploaded (numerics
// contract, section 2.4). Integers and IEEE arithmetic in double alone, so every machine makes the same
// table.
#pragma once

#include <cstdint>

#include "reference/numerics/host_device.h"
#include "reference/numerics/small_float.h"

namespace touchstone {

struct SinCos {
    float sin, cos;
};

namespace trigonometry_detail {

__extension__ typedef unsigned __int128 Uint128;
__extension__ typedef __int128 Int128;

/// high + low, low at most half a unit of high.
struct DoubleDouble {
    double high, low;
};

/// `angle` = quadrant * pi/2 + rest, |rest| <= pi/4 and a little.
struct ReducedAngle {
    unsigned quadrant;
    DoubleDouble rest;
};

/// Of a finite angle >= 1/2. Exact in integers: angle = m 2^e, and m times the bits of 2/pi gives the turns'
/// quarters. Bits of weight 4 and more are whole turns and fall off above; of those below 2^-126 everything
/// that is left out is less than 2^-102, while no fp32 angle comes nearer than 2^-32 to a multiple of pi/2.
inline ReducedAngle reduce_angle(float angle) {
    // From weight 2^31 down.
    constexpr uint32_t two_over_pi[] = {0,          0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0,
                                        0xDB629599, 0x3C439041, 0xFE5163AB, 0xDEBBC561};
    constexpr DoubleDouble half_pi{0x1.921fb54442d18p+0, 0x1.1a62633145c07p-54};

    const uint32_t mantissa = (float_bits(angle) & 0x7FFFFF) | 0x800000;
    const uint32_t exponent = (float_bits(angle) >> 23) - 150 + 30;  // e + 30: where weight 2^1 stands
    const uint32_t word = exponent / 32, shift = exponent % 32;
    Uint128 window = 0;
    for (uint32_t i = 0; i < 4; ++i) window = window << 32 | two_over_pi[word + i];
    if (shift != 0) window = window << shift | two_over_pi[word + 4] >> (32 - shift);
    const Uint128 quarters = window * mantissa;  // modulo one turn, in units of 2^-126

    const auto quadrant = static_cast<unsigned>((quarters + (Uint128{1} << 125)) >> 126) & 3;
    const auto fraction = static_cast<Int128>(quarters << 2);  // signed: to the nearest quadrant
    const auto high = static_cast<double>(fraction);
    const auto low = static_cast<double>(fraction - static_cast<Int128>(high));
    const double product = high * half_pi.high;
    const double error = fma_rn(high, half_pi.high, -product) + fma_rn(high, half_pi.low, low * half_pi.high);
    return {quadrant, {product * 0x1p-128, error * 0x1p-128}};
}

/// fp32 of high + low, |low| <= |high|, rounded once: a double whose last bit says that it is not exact
/// rounds as the sum itself would.
inline float rounded_once(double high, double low) {
    const double sum = high + low, error = low - (sum - high);
    uint64_t bits = double_bits(sum);
    if (error != 0 && (bits & 1) == 0) bits += (error > 0) == (sum > 0) ? 1 : uint64_t(-1);
    return static_cast<float>(double_from_bits(bits));
}

/// Of a reduced angle, Taylor's series to r^18: what it leaves out is below 2^-62. The leading terms are
/// added last and without rounding, so that the results are good to about 2^-57.
inline SinCos sin_cos_of_rest(DoubleDouble r) {
    const double z = r.high * r.high, z_error = fma_rn(r.high, r.high, -z);
    double s = 1 / 355687428096000.0;  // 1 / 17!
    s = fma_rn(-z, s, 1 / 1307674368000.0);
    s = fma_rn(-z, s, 1 / 6227020800.0);
    s = fma_rn(-z, s, 1 / 39916800.0);
    s = fma_rn(-z, s, 1 / 362880.0);
    s = fma_rn(-z, s, 1 / 5040.0);
    s = fma_rn(-z, s, 1 / 120.0);
    s = fma_rn(-z, s, 1 / 6.0);
    const double sin_tail = -(r.high * z) * s;  // sin r.high - r.high
    double c = 1 / 6402373705728000.0;          // 1 / 18!
    c = fma_rn(-z, c, 1 / 20922789888000.0);
    c = fma_rn(-z, c, 1 / 87178291200.0);
    c = fma_rn(-z, c, 1 / 479001600.0);
    c = fma_rn(-z, c, 1 / 3628800.0);
    c = fma_rn(-z, c, 1 / 40320.0);
    c = fma_rn(-z, c, 1 / 720.0);
    c = fma_rn(-z, c, 1 / 24.0);
    const double half = z * 0.5, one_minus_half = 1 - half;
    const double cos_tail = z * z * c - 0.5 * z_error + (1 - one_minus_half - half);
    return {rounded_once(r.high, fma_rn(r.low, one_minus_half + cos_tail, sin_tail)),
            rounded_once(one_minus_half, fma_rn(-r.low, r.high + sin_tail, cos_tail))};
}

}  // namespace trigonometry_detail

/// sin and cos, rounded to nearest fp32 (the error before that rounding is about 2^-57, so one result in 2^31
/// might be the neighbour), of every fp32 number of radians, however large. sin(+-0) = +-0; infinities and
/// NaN give the canonical NaN.
inline SinCos sin_cos(float angle) {
    using namespace trigonometry_detail;
    constexpr uint32_t sign = 0x80000000;
    const float magnitude = float_from_bits(float_bits(angle) & ~sign);
    if (!(magnitude < float_from_bits(0x7F800000)))
        return {float_from_bits(canonical_nan_bits), float_from_bits(canonical_nan_bits)};
    const ReducedAngle reduced = magnitude < 0.5f ? ReducedAngle{0, {magnitude, 0}} : reduce_angle(magnitude);
    const SinCos of_rest = sin_cos_of_rest(reduced.rest);
    SinCos result = reduced.quadrant % 2 == 0 ? of_rest : SinCos{of_rest.cos, of_rest.sin};
    if (reduced.quadrant >= 2) result.sin = -result.sin;
    if (reduced.quadrant == 1 || reduced.quadrant == 2) result.cos = -result.cos;
    if (float_bits(angle) & sign) result.sin = -result.sin;
    return result;
}

}  // namespace touchstone
