// Elementary functions of fp32 that give the same bits on CPU and GPU: exp2, exp, log, log1p and erf, and the
// activations that are written formulas over them (numerics contract, section 2). Only operations that IEEE
// 754 rounds correctly are used, so neither libm nor the GPU's approximate units have a say.
//
// Every function takes every input: selects, no branches, so loops over them vectorise. Every NaN that goes
// in or is made comes out as the canonical NaN. Subnormal inputs and results are numbers like others. No
// product feeds an addition outside fma_rn unless it is exact, so contraction could not change a bit.
// Measured errors: golden/numerics/elementary_errors.txt, written by tests/elementary_exhaustive_test.cpp.
//
// How the coefficients were made: minimax fits by the Remez exchange in 200-bit arithmetic. Those of exp2 and
// exp were rounded to fp32 one by one, lowest power first, the others fitted again each time, then moved by a
// few ulp to the smallest error on a grid; those in double were rounded to nearest.
#pragma once

#include <cstdint>

#include "reference/numerics/host_device.h"
#include "reference/numerics/small_float.h"

namespace touchstone {

namespace elementary_detail {

inline constexpr float infinity = float_from_bits(0x7F800000);
inline constexpr float nan = float_from_bits(canonical_nan_bits);

/// x, its magnitude cut down to `limit`; a NaN becomes +-limit. By the bits: of two selects on floats
/// compilers make branches, which they then vectorise badly.
TOUCHSTONE_HOST_DEVICE constexpr float clamp_magnitude(float x, float limit) {
    const int32_t magnitude = small_float_detail::magnitude_bits(x);
    const int32_t limit_bits = static_cast<int32_t>(float_bits(limit));
    const int32_t clamped = magnitude < limit_bits ? magnitude : limit_bits;
    return float_from_bits(static_cast<uint32_t>(clamped) | (float_bits(x) & small_float_detail::sign_bit));
}

/// Added to x of |x| < 2^22 it leaves rint(x) in the low bits of the sum.
inline constexpr float rint_magic = 0x1.8p23f;

/// 2^n, -126 <= n <= 127.
TOUCHSTONE_HOST_DEVICE constexpr float power_of_two(int32_t n) {
    return float_from_bits((static_cast<uint32_t>(n) + 127u) << 23);
}

/// p 2^n of -252 <= n <= 254, rounded once, where it is subnormal: the first of two factors is exact.
TOUCHSTONE_HOST_DEVICE constexpr float times_power_of_two(float p, int32_t n) {
    const int32_t half = n >> 1;
    return p * power_of_two(half) * power_of_two(n - half);
}

/// The integer that `x_plus_magic` = x + rint_magic holds.
TOUCHSTONE_HOST_DEVICE constexpr int32_t low_integer(float x_plus_magic) {
    return static_cast<int32_t>(float_bits(x_plus_magic) - float_bits(rint_magic));
}

/// ln(u) of finite u > 0 to about 2^-52, given u - 1, which is needed where it is more exact than u.
/// u = 2^k m, m in [sqrt(1/2), sqrt 2), ln m = 2 artanh(s), s = (m - 1) / (m + 1).
TOUCHSTONE_HOST_DEVICE inline double log_in_double(double u, double u_minus_one) {
    constexpr uint64_t one_bits = 0x3FF0000000000000;
    constexpr uint64_t sqrt_half_bits = 0x3FE6A09E667F3BCD;
    constexpr uint64_t exponent_field = 0xFFF0000000000000;
    constexpr uint64_t two_to_52_bits = 0x4330000000000000;
    const uint64_t shifted = double_bits(u) + (one_bits - sqrt_half_bits);
    // An integer of 12 bits to double by its bits: AVX2 has no conversion from 64-bit integers.
    const double k = double_from_bits(two_to_52_bits | shifted >> 52) - (0x1p52 + 1023);
    const double m = double_from_bits(double_bits(u) - (shifted & exponent_field) + one_bits);
    const double f = k == 0.0 ? u_minus_one : m - 1.0;
    const double s = f / (2.0 + f);
    const double z = s * s;
    double p = 0x1.2f51c76fbe1c8p-3;  // (ln m - 2s) / s^3 in z: relative error 2^-57.6
    p = fma_rn(p, z, 0x1.399d154f2484bp-3);
    p = fma_rn(p, z, 0x1.7466489780f55p-3);
    p = fma_rn(p, z, 0x1.c71c52bb3f3f2p-3);
    p = fma_rn(p, z, 0x1.2492493fb0e02p-2);
    p = fma_rn(p, z, 0x1.99999999847b5p-2);
    p = fma_rn(p, z, 0x1.555555555557cp-1);
    return fma_rn(k, 0x1.62e42fefa39efp-1, fma_rn(s * z, p, s + s));
}

/// exp without its select of NaN, for which it gives any number.
TOUCHSTONE_HOST_DEVICE inline float exp_of_number(float x) {
    constexpr float ln2_high = 0x1.62e430p-1f, minus_ln2_low = 0x1.05c610p-29f;
    const float clamped = clamp_magnitude(x, 105.0f);
    const float shifted = fma_rn(clamped, 0x1.715476p0f, rint_magic);
    const float n = shifted - rint_magic;
    const float r_high = fma_rn(-n, ln2_high, clamped);  // exact: a multiple of 2^-25 below 0.35
    const float r = fma_rn(n, minus_ln2_low, r_high);
    float s = 0x1.6a41dcp-10f;  // e^r = 1 + r + r^2 s(r): relative error 2^-28.1
    s = fma_rn(s, r, 0x1.1233a0p-7f);
    s = fma_rn(s, r, 0x1.5558b6p-5f);
    s = fma_rn(s, r, 0x1.55549cp-3f);
    s = fma_rn(s, r, 0x1.fffffcp-2f);
    // The leading term is r before its rounding: with r itself the error passes 1 ulp.
    const float p = 1.0f + (r_high + fma_rn(r * r, s, n * minus_ln2_low));
    return times_power_of_two(p, low_integer(shifted));
}

/// log1p of finite x > -1, without the selects of other inputs; +0 of -0.
TOUCHSTONE_HOST_DEVICE inline float log1p_of_finite(float x) {
    const double wide = x;
    return static_cast<float>(log_in_double(1.0 + wide, wide));
}

}  // namespace elementary_detail

namespace elementary {

/// 2^x within 1 ulp, increasing. exp2(+-0) = 1; exact at integers; x >= 128 and +inf give +inf; x <= -150 and
/// -inf give +0; results below 2^-126 are subnormal. fp32 only: this sits in softmax loops.
TOUCHSTONE_HOST_DEVICE inline float exp2(float x) {
    using namespace elementary_detail;
    const float clamped = clamp_magnitude(x, 151.0f);
    const float shifted = clamped + rint_magic;
    const float r = clamped - (shifted - rint_magic);  // exact, |r| <= 1/2
    float s = 0x1.41b956p-13f;                         // 2^r = 1 + r ln 2 + r^2 s(r): relative error 2^-28.1
    s = fma_rn(s, r, 0x1.5f0408p-10f);
    s = fma_rn(s, r, 0x1.3b2dacp-7f);
    s = fma_rn(s, r, 0x1.c6af86p-5f);
    s = fma_rn(s, r, 0x1.ebfbdcp-3f);
    // Not Horner to the end: with r as the leading term the rounding errors of s cannot undo a step of r, so
    // the result never falls where x rises.
    const float p = 1.0f + fma_rn(r, 0x1.62e430p-1f, r * r * s);
    return is_nan(x) ? nan : times_power_of_two(p, low_integer(shifted));
}

/// e^x within 1 ulp, increasing. exp(+-0) = 1; x > 88.72283 and +inf give +inf; x < -103.97208 and -inf give
/// +0; results below 2^-126 (x < -87.33654) are subnormal. fp32 only, as exp2.
TOUCHSTONE_HOST_DEVICE inline float exp(float x) {
    return is_nan(x) ? elementary_detail::nan : elementary_detail::exp_of_number(x);
}

/// ln(x) within 1 ulp (double inside: nearly always correctly rounded), increasing. log(1) = +0; log(+-0) =
/// -inf; log(+inf) = +inf; x < 0 and -inf give NaN; subnormal x are numbers like others.
TOUCHSTONE_HOST_DEVICE inline float log(float x) {
    using namespace elementary_detail;
    const double u = x;
    float y = static_cast<float>(log_in_double(u, u - 1.0));
    y = x == 0.0f ? -infinity : y;
    y = x == infinity ? infinity : y;
    return x >= 0.0f ? y : nan;
}

/// ln(1 + x) within 1 ulp (double inside), increasing. log1p(+-0) = +-0; log1p(-1) = -inf; log1p(+inf) =
/// +inf; x < -1 and -inf give NaN; subnormal x give x.
TOUCHSTONE_HOST_DEVICE inline float log1p(float x) {
    using namespace elementary_detail;
    float y = log1p_of_finite(x);
    y = x == 0.0f ? x : y;  // -0 would become +0
    y = x == -1.0f ? -infinity : y;
    y = x == infinity ? infinity : y;
    return x >= -1.0f ? y : nan;
}

/// erf(x) within 1 ulp (double inside), increasing, odd. erf(+-0) = +-0; |x| >= 3.919206 and +-inf give +-1;
/// subnormal x give subnormal results. erf(x) = x P(x^2) with one polynomial on [0, 16], in z = x^2/8 - 1,
/// where it is well conditioned: its coefficients' magnitudes sum to about 1.
TOUCHSTONE_HOST_DEVICE inline float erf(float x) {
    using namespace elementary_detail;
    const double wide = clamp_magnitude(x, 4.0f);
    const double z = fma_rn(wide * wide, 0.125, -1.0);
    double p = -0x1.61486ab0126c3p-25;  // relative error 2^-50.1
    p = fma_rn(p, z, 0x1.4054e8f594cb4p-23);
    p = fma_rn(p, z, -0x1.ef214dd8d9e52p-23);
    p = fma_rn(p, z, 0x1.52a78be70494dp-21);
    p = fma_rn(p, z, -0x1.4e8398a818ce2p-19);
    p = fma_rn(p, z, 0x1.e40f1cc36b2eep-18);
    p = fma_rn(p, z, -0x1.3678f5fd5aff6p-16);
    p = fma_rn(p, z, 0x1.8e249b8dbeea4p-15);
    p = fma_rn(p, z, -0x1.ed993cbc50450p-14);
    p = fma_rn(p, z, 0x1.2137c578074c8p-12);
    p = fma_rn(p, z, -0x1.4160e2a126769p-11);
    p = fma_rn(p, z, 0x1.52d08ff39172fp-10);
    p = fma_rn(p, z, -0x1.51ee3be9eba0bp-9);
    p = fma_rn(p, z, 0x1.3e15d730c08dcp-8);
    p = fma_rn(p, z, -0x1.1a0243628461bp-7);
    p = fma_rn(p, z, 0x1.d635133467b5bp-7);
    p = fma_rn(p, z, -0x1.7034f8fd6217bp-6);
    p = fma_rn(p, z, 0x1.0ed52ccec8cf9p-5);
    p = fma_rn(p, z, -0x1.76e864a8f42bep-5);
    p = fma_rn(p, z, 0x1.ea97f139e5c3ap-5);
    p = fma_rn(p, z, -0x1.3215d8b6c6f00p-4);
    p = fma_rn(p, z, 0x1.717efc78a7e44p-4);
    p = fma_rn(p, z, -0x1.b92e95c197b2bp-4);
    p = fma_rn(p, z, 0x1.0dabaf0613087p-3);
    p = fma_rn(p, z, -0x1.69a0ccda3def2p-3);
    p = fma_rn(p, z, 0x1.6a040781a49a1p-2);
    return is_nan(x) ? nan : static_cast<float>(wide * p);
}

// Formulas: every operation below is one fp32 rounding, in the order written. What they do far out follows
// from that and is theirs by definition, as it is of the released model's own fp32 formulas.

/// 1 / (1 + exp(-x)). -inf and x < -88.72283 give +0 (exp(-x) overflows; the true value is below 3e-39).
TOUCHSTONE_HOST_DEVICE inline float sigmoid(float x) {
    using namespace elementary_detail;
    return is_nan(x) ? nan : 1.0f / (1.0f + exp_of_number(-x));
}

/// x / (1 + exp(-x)): torch's form, one rounding less than x sigmoid(x). x < -88.72283 gives -0, -inf gives
/// NaN.
TOUCHSTONE_HOST_DEVICE inline float silu(float x) {
    return with_canonical_nan(x / (1.0f + elementary_detail::exp_of_number(-x)));
}

/// x where x > 20, else log1p(exp(x)): torch's default threshold (text model 9.1). -inf gives +0, +inf +inf.
TOUCHSTONE_HOST_DEVICE inline float softplus(float x) {
    using namespace elementary_detail;
    const float y = log1p_of_finite(exp_of_number(x));  // finite and not -0 wherever y counts
    return is_nan(x) ? nan : x > 20.0f ? x : y;
}

/// sqrt(softplus(x)), the gate's score (text model 9.1).
TOUCHSTONE_HOST_DEVICE inline float sqrt_softplus(float x) {
    return with_canonical_nan(sqrt_rn(softplus(x)));
}

/// (0.5 x) (1 + erf(x fp32(1/sqrt 2))): exact GELU as torch writes it, a product where others divide by
/// sqrt 2. x < -5.5426 gives -0, -inf gives NaN.
TOUCHSTONE_HOST_DEVICE inline float gelu(float x) {
    return with_canonical_nan(0.5f * x * (1.0f + erf(x * 0x1.6a09e6p-1f)));
}

/// 1 / sqrt(x), two correct roundings (numerics contract, 2.2). +-0 gives +-inf, +inf +0, x < 0 NaN.
TOUCHSTONE_HOST_DEVICE inline float reciprocal_sqrt(float x) {
    return with_canonical_nan(1.0f / sqrt_rn(x));
}

}  // namespace elementary

/// The functions above as data: the index of elementary_functions(), and what a kernel is given as an
/// argument.
enum class ElementaryFunction : uint8_t {
    exp2,
    exp,
    log,
    log1p,
    erf,
    sigmoid,
    silu,
    softplus,
    sqrt_softplus,
    gelu,
    reciprocal_sqrt,
};

inline constexpr int elementary_function_count = 11;

/// `function` of x. A switch and not a table: device code has no table of function pointers, and where
/// `function` is a constant nothing of it is left.
TOUCHSTONE_HOST_DEVICE inline float evaluate(ElementaryFunction function, float x) {
    switch (function) {
        case ElementaryFunction::exp2: return elementary::exp2(x);
        case ElementaryFunction::exp: return elementary::exp(x);
        case ElementaryFunction::log: return elementary::log(x);
        case ElementaryFunction::log1p: return elementary::log1p(x);
        case ElementaryFunction::erf: return elementary::erf(x);
        case ElementaryFunction::sigmoid: return elementary::sigmoid(x);
        case ElementaryFunction::silu: return elementary::silu(x);
        case ElementaryFunction::softplus: return elementary::softplus(x);
        case ElementaryFunction::sqrt_softplus: return elementary::sqrt_softplus(x);
        case ElementaryFunction::gelu: return elementary::gelu(x);
        case ElementaryFunction::reciprocal_sqrt: return elementary::reciprocal_sqrt(x);
    }
    return elementary_detail::nan;
}

}  // namespace touchstone
