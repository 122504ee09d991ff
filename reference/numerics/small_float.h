// Small floats: bf16, e4m3fn, e2m1 and e8m0 as storage types, with explicit conversions from and to fp32.
//
// Every conversion works on the bits, so that host and device, with or without flush-to-zero and under any
// rounding mode, give the same code (numerics contract, rule 2.5). All take at most a handful of compares and
// no branch, because they sit in the inner loop of the quantisers. Formats: OCP Microscaling specification
// 1.0, sections 5.3 and 5.4. Policies that the formats leave open (NaN sign, saturation) are those of the
// conversions in CUDA 13's cuda_bf16.h, cuda_fp8.h and cuda_fp4.h, tested over all 2^32 inputs.
#pragma once

#include <cstdint>

#include "reference/numerics/host_device.h"

namespace touchstone {

/// bfloat16: sign, 8 exponent bits, 7 mantissa bits; the upper half of an fp32.
struct Bf16 {
    uint16_t bits;
    friend bool operator==(const Bf16&, const Bf16&) = default;
};

/// 8-bit float e4m3fn: bias 7, largest 448, smallest 2^-9, no infinity; 0x7F and 0xFF are NaN.
struct E4m3 {
    uint8_t bits;
    friend bool operator==(const E4m3&, const E4m3&) = default;
};

/// 4-bit float e2m1: magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 for codes 0..7, bit 3 is the sign (code 8 is -0).
/// No infinity, no NaN. The code stands in the low nibble; the high nibble is zero.
struct E2m1 {
    uint8_t bits;
    friend bool operator==(const E2m1&, const E2m1&) = default;
};

/// 8-bit power of two e8m0 (also "UE8M0"): 2^(bits - 127) for 0..254, 255 is NaN. Has neither sign nor zero.
struct E8m0 {
    uint8_t bits;
    friend bool operator==(const E8m0&, const E8m0&) = default;
};

static_assert(sizeof(Bf16) == 2 && sizeof(E4m3) == 1 && sizeof(E2m1) == 1 && sizeof(E8m0) == 1);

/// The one NaN that is stored or hashed, in fp32 and in bf16: the pattern that NVIDIA's arithmetic and
/// conversions make, whatever the payload that went in (CUDA programming guide, "Floating-Point Standard").
/// x86 makes 0xFFC00000 or keeps an operand's payload, and Arm differs again, so the CPU's NaNs pass through
/// with_canonical_nan before they are stored.
inline constexpr uint32_t canonical_nan_bits = 0x7FFFFFFF;
inline constexpr uint16_t canonical_nan_bf16_bits = 0x7FFF;

namespace small_float_detail {

inline constexpr uint32_t sign_bit = 0x80000000;
inline constexpr int32_t infinity_bits = 0x7F800000;

/// |x| as bits. Signed, for a reason: magnitudes order like their bits, and SSE2 compares only signed lanes.
TOUCHSTONE_HOST_DEVICE constexpr int32_t magnitude_bits(float x) {
    return static_cast<int32_t>(float_bits(x) & ~sign_bit);
}

/// Code 0..0x7F of a magnitude of at most 480, as if e4m3 went on to 480 = 0x7F; nearest, ties to even.
TOUCHSTONE_HOST_DEVICE constexpr int32_t e4m3_nearest_code(int32_t magnitude) {
    constexpr int32_t smallest_normal = 0x3C800000;  // 2^-6
    constexpr int32_t rebias = (127 - 7) << 3;
    const int32_t tie_to_even = (magnitude >> 20) & 1;
    const int32_t normal = ((magnitude + 0x7FFFF + tie_to_even) >> 20) - rebias;
    // Below 2^-6 the codes are 2^-9 apart: count the midpoints (k + 1/2) 2^-9 that are passed.
    const int32_t subnormal = (magnitude > 0x3A800000)      // 0.5: the tie goes down to 0
                              + (magnitude >= 0x3B400000)   // 1.5: up to 2
                              + (magnitude > 0x3BA00000)    // 2.5: down to 2
                              + (magnitude >= 0x3BE00000)   // 3.5: up to 4
                              + (magnitude > 0x3C100000)    // 4.5: down to 4
                              + (magnitude >= 0x3C300000)   // 5.5: up to 6
                              + (magnitude > 0x3C500000)    // 6.5: down to 6
                              + (magnitude >= 0x3C700000);  // 7.5: up to 8, the smallest normal
    return magnitude < smallest_normal ? subnormal : normal;
}

}  // namespace small_float_detail

TOUCHSTONE_HOST_DEVICE constexpr bool is_nan(float x) {
    return small_float_detail::magnitude_bits(x) > small_float_detail::infinity_bits;
}

/// `x`, or the canonical NaN when `x` is any NaN.
TOUCHSTONE_HOST_DEVICE constexpr float with_canonical_nan(float x) {
    return is_nan(x) ? float_from_bits(canonical_nan_bits) : x;
}

/// Exact. NaN keeps sign and payload (bf16 0x7FFF gives 0x7FFF0000): decoding is a shift, not arithmetic.
TOUCHSTONE_HOST_DEVICE constexpr float to_float(Bf16 x) {
    return float_from_bits(static_cast<uint32_t>(x.bits) << 16);
}

/// Exact. Both NaN codes give the canonical NaN; their sign is dropped.
TOUCHSTONE_HOST_DEVICE constexpr float to_float(E4m3 x) {
    constexpr uint32_t rebias = (127 - 7) << 23;
    const uint32_t sign = (x.bits & 0x80u) << 24;
    const uint32_t magnitude = x.bits & 0x7Fu;
    const uint32_t normal = (magnitude << 20) + rebias;
    const uint32_t subnormal = float_bits(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f);
    const uint32_t finite = sign | (magnitude < 8 ? subnormal : normal);
    return float_from_bits(magnitude == 0x7F ? canonical_nan_bits : finite);
}

/// Exact. Bits above the low nibble are ignored, so that every byte has a defined value.
TOUCHSTONE_HOST_DEVICE constexpr float to_float(E2m1 x) {
    constexpr uint32_t rebias = (127 - 1) << 23;
    const uint32_t sign = (x.bits & 8u) << 28;
    const uint32_t magnitude = x.bits & 7u;
    const uint32_t normal = (magnitude << 22) + rebias;
    const uint32_t subnormal = magnitude == 0 ? 0 : 0x3F000000;  // 0 or 0.5
    return float_from_bits(sign | (magnitude < 2 ? subnormal : normal));
}

/// Exact: 2^(bits - 127); 255 gives the canonical NaN. Byte 0 is 2^-127, a subnormal fp32 made from its bits:
/// written as a product it would be lost where subnormals are flushed.
TOUCHSTONE_HOST_DEVICE constexpr float to_float(E8m0 x) {
    const uint32_t normal = static_cast<uint32_t>(x.bits) << 23;
    const uint32_t not_nan = x.bits == 0 ? 0x00400000 : normal;
    return float_from_bits(x.bits == 255 ? canonical_nan_bits : not_nan);
}

/// Exact: IEEE half precision (bits above the low 16 ignored); any NaN gives the canonical NaN.
TOUCHSTONE_HOST_DEVICE constexpr float float_from_fp16_bits(uint32_t bits) {
    const uint32_t sign = (bits & 0x8000) << 16;
    const uint32_t exponent = (bits >> 10) & 0x1F, mantissa = bits & 0x3FF;
    if (exponent == 31) return float_from_bits(mantissa != 0 ? canonical_nan_bits : sign | 0x7F800000u);
    const uint32_t subnormal = float_bits(static_cast<float>(mantissa) * 0x1p-24f);
    return float_from_bits(sign | (exponent == 0 ? subnormal : ((exponent + 112) << 23) | (mantissa << 13)));
}

/// Nearest, ties to even; beyond the largest finite plus half a step to infinity; any NaN to 0x7FFF.
TOUCHSTONE_HOST_DEVICE constexpr Bf16 bf16_from_float(float x) {
    const uint32_t bits = float_bits(x);
    const uint32_t tie_to_even = (bits >> 16) & 1;
    const uint32_t rounded = (bits + 0x7FFF + tie_to_even) >> 16;
    return {static_cast<uint16_t>(is_nan(x) ? canonical_nan_bf16_bits : rounded)};
}

/// Nearest, ties to even; |x| > 448 and infinities to +-448 (what the hardware calls cvt.rn.satfinite). NaN
/// is not saturated: any NaN gives 0x7F, its sign dropped. The sign of zero is kept.
TOUCHSTONE_HOST_DEVICE constexpr E4m3 e4m3_from_float_saturating(float x) {
    constexpr int32_t largest = 0x43E00000;  // 448
    const int32_t magnitude = small_float_detail::magnitude_bits(x);
    const int32_t code = small_float_detail::e4m3_nearest_code(magnitude < largest ? magnitude : largest);
    const uint32_t sign = (float_bits(x) >> 24) & 0x80;
    return {static_cast<uint8_t>(is_nan(x) ? 0x7F : sign | static_cast<uint32_t>(code))};
}

/// Nearest, ties to even; |x| > 464 (the midpoint after 448, itself a tie that goes to 448) and infinities to
/// NaN with the sign of x (0x7F, 0xFF); NaN to 0x7F, its sign dropped. The sign of zero is kept.
TOUCHSTONE_HOST_DEVICE constexpr E4m3 e4m3_from_float_overflow_to_nan(float x) {
    constexpr int32_t first_missing = 0x43F00000;  // 480, whose code would be 0x7F
    const int32_t magnitude = small_float_detail::magnitude_bits(x);
    const int32_t clamped = magnitude < first_missing ? magnitude : first_missing;
    const int32_t code = small_float_detail::e4m3_nearest_code(clamped);
    const uint32_t sign = (float_bits(x) >> 24) & 0x80;
    return {static_cast<uint8_t>(is_nan(x) ? 0x7F : sign | static_cast<uint32_t>(code))};
}

/// Nearest, ties to even; |x| > 6 and infinities to +-6. e2m1 has no NaN: any NaN gives +6 (code 7), as the
/// hardware and cuda_fp4.h do, so a caller who must not lose a NaN looks for it before. The sign of zero is
/// kept, also for what rounds to zero.
TOUCHSTONE_HOST_DEVICE constexpr E2m1 e2m1_from_float_saturating(float x) {
    const int32_t magnitude = small_float_detail::magnitude_bits(x);
    const int32_t code = (magnitude > 0x3E800000)     // 0.25: the tie goes down to 0
                         + (magnitude >= 0x3F400000)  // 0.75: up to 1
                         + (magnitude > 0x3FA00000)   // 1.25: down to 1
                         + (magnitude >= 0x3FE00000)  // 1.75: up to 2
                         + (magnitude > 0x40200000)   // 2.5: down to 2
                         + (magnitude >= 0x40600000)  // 3.5: up to 4
                         + (magnitude > 0x40A00000);  // 5: down to 4
    const uint32_t sign = is_nan(x) ? 0 : (float_bits(x) >> 28) & 8;
    return {static_cast<uint8_t>(sign | static_cast<uint32_t>(code))};
}

/// The smallest power of two that is not below |x|, read from exponent and mantissa bits: through log2 the
/// result is one step low for x just above a power of two. The sign is ignored. |x| <= 2^-127, zero included,
/// gives 2^-127 (byte 0); |x| > 2^127 and infinities give 2^127 (byte 254); NaN gives NaN (byte 255). The
/// same as cuda_fp8.h's conversion toward positive infinity with saturation (cvt.rp.satfinite.ue8m0x2.f32).
TOUCHSTONE_HOST_DEVICE constexpr E8m0 e8m0_from_float_ceil(float x) {
    constexpr int32_t smallest = 0x00400000;  // 2^-127, a subnormal
    constexpr int32_t largest = 0x7F000000;   // 2^127
    const int32_t magnitude = small_float_detail::magnitude_bits(x);
    const int32_t clamped = magnitude < largest ? magnitude : largest;
    const int32_t ceiling = (clamped + 0x7FFFFF) >> 23;
    const int32_t code = magnitude <= smallest ? 0 : ceiling;
    return {static_cast<uint8_t>(is_nan(x) ? 255 : code)};
}

/// Two codes in one byte: the element of even index in the low nibble.
TOUCHSTONE_HOST_DEVICE constexpr uint8_t pack_e2m1(E2m1 even, E2m1 odd) {
    return static_cast<uint8_t>((even.bits & 0xF) | (odd.bits & 0xF) << 4);
}

/// The element of even index in a packed byte.
TOUCHSTONE_HOST_DEVICE constexpr E2m1 even_e2m1(uint8_t packed) {
    return {static_cast<uint8_t>(packed & 0xF)};
}

/// The element of odd index in a packed byte.
TOUCHSTONE_HOST_DEVICE constexpr E2m1 odd_e2m1(uint8_t packed) {
    return {static_cast<uint8_t>(packed >> 4)};
}

}  // namespace touchstone
