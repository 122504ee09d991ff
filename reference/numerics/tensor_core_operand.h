// An operand as the multipliers of a tensor core see it: sign, significand and an exponent that is not
// renormalised.
#pragma once

#include <cstdint>

#include "reference/numerics/host_device.h"

namespace touchstone {

/// value = significand * 2^(exponent - fraction_bits). A subnormal keeps its format's smallest exponent. Zero
/// has significand 0; infinity has significand +-1 and exponent infinite_exponent; NaN has nan_exponent.
struct TensorCoreOperand {
    static constexpr int fraction_bits = 10;  ///< of the widest formats, f16 and tf32
    /// Far enough from each other and from real exponents (-126..127) that every sum of two tells what is in
    /// it, and near enough to fit int16: zero + finite < all_zero_below < finite + finite < zero + infinite.
    static constexpr int16_t zero_exponent = -10000, all_zero_below = -5000, infinite_exponent = 12000,
                             nan_exponent = 13000;

    int32_t significand;
    int16_t exponent;

    TOUCHSTONE_HOST_DEVICE constexpr bool is_special() const { return exponent >= infinite_exponent; }
    TOUCHSTONE_HOST_DEVICE constexpr bool is_nan() const { return exponent == nan_exponent; }
};

/// The exponent field of TensorCoreOperand of an operand whose value is `value`, in a format whose smallest
/// exponent is `smallest`. Branch-free, for vector loops.
TOUCHSTONE_HOST_DEVICE constexpr int32_t operand_exponent(float value, int32_t smallest) {
    const int32_t magnitude = static_cast<int32_t>(float_bits(value) & 0x7FFFFFFF);
    const int32_t exponent = (magnitude >> 23) - 127;
    const int32_t finite = exponent < smallest ? smallest : exponent;
    const int32_t number = magnitude == 0 ? int32_t{TensorCoreOperand::zero_exponent} : finite;
    const int32_t special = magnitude > 0x7F800000 ? int32_t{TensorCoreOperand::nan_exponent}
                                                   : int32_t{TensorCoreOperand::infinite_exponent};
    return magnitude >= 0x7F800000 ? special : number;
}

/// The operand of that value: `value` must be exact in the format, `exponent` is operand_exponent of it.
TOUCHSTONE_HOST_DEVICE constexpr TensorCoreOperand operand_from_float(float value, int32_t exponent) {
    const uint32_t bits = float_bits(value);
    const int32_t field = static_cast<int32_t>(bits >> 23 & 0xFF);
    const int32_t mantissa = static_cast<int32_t>(bits & 0x7FFFFF);
    int32_t significand = 1;
    if (exponent < TensorCoreOperand::infinite_exponent) {
        const int32_t own_exponent = (field == 0 ? 1 : field) - 127;
        const int32_t right = 23 - TensorCoreOperand::fraction_bits + (exponent - own_exponent);
        const bool zero = exponent == TensorCoreOperand::zero_exponent;
        significand = zero ? 0 : (field == 0 ? mantissa : mantissa | 0x800000) >> right;
    }
    return {bits >> 31 ? -significand : significand, static_cast<int16_t>(exponent)};
}

}  // namespace touchstone
