// One scale block: from bf16 to codes and a scale, and back. Compiled for host and device, so that the CPU
// and the kernels cannot differ. Which floor, quotient and scale a quantiser uses is data (BlockRule), and
// quantize.h names the rules.
//
// Policy for special values, the same for every quantiser (peers leave these undefined or disagree):
// - NaN is never dropped. fp8: its code is 0x7F and the maximum ignores it. fp4 has no NaN code: the block's
//   scale becomes NaN (e8m0 255, e4m3 0x7F) and all its codes 0.
// - Infinity. e4m3 scale: saturates at 448, and so do the codes. e8m0 scale: the power of two cannot be
//   stored, so the scale is 255, with codes 0x7F (fp8: x / NaN) or 0 (fp4). fp32 scale: infinity, with codes
//   x / infinity.
// - -0 keeps its sign, as does what rounds to zero.
// - Subnormals are ordinary numbers; nothing is flushed.
// A finite value may dequantise to infinity: the largest bf16, 255 * 2^120, rounds up to 2^128.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reference/layout/kv_record.h"
#include "reference/numerics/small_float.h"

namespace touchstone {

/// How a quantiser makes the scale of a block and the codes under it, each operation one fp32 rounding:
///     a = max(amax, amax_floor)
///     q = max(a * range_reciprocal, scale_floor), or max(a / range, scale_floor) where that is 0
///     s = q in the scale's type
///     code = round(x / s), or round(x * (1 / s)) if codes_by_reciprocal; nearest even, saturating
/// Scale types: e8m0, the power of two not below q; e4m3, nearest even and saturating at 448; fp32, q as it
/// is, or the power of two not below it if power_of_two.
struct BlockRule {
    KvElement element = KvElement::none;
    KvScale scale = KvScale::none;
    int64_t block = 0;           ///< channels per scale; 0: the whole row
    float amax_floor = 0;        ///< on the maximum; peers that floor the quotient instead use scale_floor
    float range = 0;             ///< largest code: 448 or 6
    float range_reciprocal = 0;  ///< fp32(1 / range) where the rule multiplies; 0 where it divides
    float scale_floor = 0;
    bool power_of_two = false;
    bool codes_by_reciprocal = false;
};

/// The largest magnitude of a block without its NaNs, and whether it had any.
struct BlockMaximum {
    float value;
    bool has_nan;
};

/// Over `count` channels; 0 for a block of zeros or of NaNs alone. Order-free.
TOUCHSTONE_HOST_DEVICE inline BlockMaximum block_maximum(const Bf16* x, int64_t count) {
    // Magnitudes order like their bits. int16_t: SSE2 has a maximum for signed 16-bit lanes only.
    constexpr int16_t infinity = 0x7F80;
    int16_t largest = 0, largest_number = 0;
    for (int64_t i = 0; i < count; ++i) {
        const int16_t magnitude = static_cast<int16_t>(x[i].bits & 0x7FFF);
        const int16_t number = magnitude > infinity ? int16_t{0} : magnitude;
        largest = magnitude > largest ? magnitude : largest;
        largest_number = number > largest_number ? number : largest_number;
    }
    return {to_float(Bf16{static_cast<uint16_t>(largest_number)}), largest > infinity};
}

/// A scale as it is stored (little-endian in scale_bytes(rule.scale) bytes) and its value.
struct BlockScale {
    uint32_t bits;
    float value;
};

/// The scale of a block with this maximum; see BlockRule and the policy above.
TOUCHSTONE_HOST_DEVICE inline BlockScale block_scale(const BlockRule& rule, BlockMaximum maximum) {
    const float amax = maximum.value < rule.amax_floor ? rule.amax_floor : maximum.value;
    float quotient = rule.range_reciprocal != 0 ? amax * rule.range_reciprocal : amax / rule.range;
    quotient = quotient < rule.scale_floor ? rule.scale_floor : quotient;
    if (rule.element == KvElement::fp4_e2m1 && maximum.has_nan)
        quotient = float_from_bits(canonical_nan_bits);

    if (rule.scale == KvScale::e4m3) {
        const E4m3 scale = e4m3_from_float_saturating(quotient);
        return {scale.bits, to_float(scale)};
    }
    if (rule.scale == KvScale::e8m0) {
        // Ceil alone would saturate: an infinite maximum would come back as an ordinary number.
        const E8m0 scale = quotient > 0x1p127f ? E8m0{255} : e8m0_from_float_ceil(quotient);
        return {scale.bits, to_float(scale)};
    }
    const bool round_up = rule.power_of_two && quotient <= 0x1p127f;
    const float scale = round_up ? to_float(e8m0_from_float_ceil(quotient)) : quotient;
    return {float_bits(scale), scale};
}

/// x as its code will see it, before rounding. True division: the rounded reciprocal, which one peer
/// multiplies by, moves quotients across ties.
TOUCHSTONE_HOST_DEVICE inline float scaled_value(Bf16 x, float scale, bool by_reciprocal) {
    return by_reciprocal ? to_float(x) * (1.0f / scale) : to_float(x) / scale;
}

/// Stores a scale as its record does: 4 bytes for fp32, 1 otherwise.
TOUCHSTONE_HOST_DEVICE inline void store_scale(const BlockRule& rule, BlockScale scale, std::byte* bytes) {
    const int stored_bytes = rule.scale == KvScale::fp32 ? 4 : 1;
    for (int i = 0; i < stored_bytes; ++i) bytes[i] = static_cast<std::byte>(scale.bits >> (8 * i));
}

/// Quantises one block of rule.block channels: writes its packed codes (fp4: two to a byte, the even channel
/// in the low nibble, all 0 under a NaN scale) and its stored scale.
TOUCHSTONE_HOST_DEVICE inline void quantize_block(const BlockRule& rule, const Bf16* x, std::byte* codes,
                                                  std::byte* scale_bytes) {
    const BlockScale scale = block_scale(rule, block_maximum(x, rule.block));
    store_scale(rule, scale, scale_bytes);
    const auto scaled = [&](int64_t i) { return scaled_value(x[i], scale.value, rule.codes_by_reciprocal); };
    if (rule.element == KvElement::fp4_e2m1) {
        const uint8_t keep = is_nan(scale.value) ? 0x00 : 0xFF;
        for (int64_t i = 0; i < rule.block; i += 2) {
            const E2m1 even = e2m1_from_float_saturating(scaled(i));
            const E2m1 odd = e2m1_from_float_saturating(scaled(i + 1));
            codes[i / 2] = static_cast<std::byte>(pack_e2m1(even, odd) & keep);
        }
    } else {
        for (int64_t i = 0; i < rule.block; ++i)
            codes[i] = static_cast<std::byte>(e4m3_from_float_saturating(scaled(i)).bits);
    }
}

/// The value of a stored scale, every byte pattern defined; 1 where the record stores none.
TOUCHSTONE_HOST_DEVICE inline float stored_scale(KvScale scale, const std::byte* bytes) {
    const auto byte = [bytes](int i) { return static_cast<uint32_t>(bytes[i]); };
    switch (scale) {
        case KvScale::none: return 1;
        case KvScale::e8m0: return to_float(E8m0{static_cast<uint8_t>(byte(0))});
        case KvScale::e4m3: return to_float(E4m3{static_cast<uint8_t>(byte(0))});
        case KvScale::fp16: return float_from_fp16_bits(byte(0) | byte(1) << 8);
        case KvScale::fp32: return float_from_bits(byte(0) | byte(1) << 8 | byte(2) << 16 | byte(3) << 24);
    }
    return 1;
}

/// The value of channel i of a block of packed codes, before its scale.
TOUCHSTONE_HOST_DEVICE inline float code_value(KvElement element, const std::byte* codes, int64_t i) {
    const uint8_t byte = static_cast<uint8_t>(codes[element == KvElement::fp4_e2m1 ? i / 2 : i]);
    switch (element) {
        case KvElement::none: return 0;
        case KvElement::fp8_e4m3: return to_float(E4m3{byte});
        case KvElement::fp4_e2m1: return to_float(i % 2 == 0 ? even_e2m1(byte) : odd_e2m1(byte));
        case KvElement::int8: return static_cast<float>(static_cast<int8_t>(byte));
    }
    return 0;
}

/// f32(code) * scale: one fp32 rounding, every NaN canonical.
TOUCHSTONE_HOST_DEVICE inline float dequantized(float code, float scale) {
    return with_canonical_nan(code * scale);
}

}  // namespace touchstone
