// Every conversion from fp32 of small_float.h under its name, for code that runs all of them over all 2^32
// inputs on host and device.
#pragma once

#include <cstdint>
#include <string_view>

#include "reference/numerics/small_float.h"

namespace touchstone {

// Each: its name, and the code of `x`, zero-extended.

struct Bf16Conversion {
    static constexpr std::string_view name = "bf16";
    TOUCHSTONE_HOST_DEVICE static uint32_t code(float x) { return bf16_from_float(x).bits; }
};
struct E4m3SaturatingConversion {
    static constexpr std::string_view name = "e4m3_saturating";
    TOUCHSTONE_HOST_DEVICE static uint32_t code(float x) { return e4m3_from_float_saturating(x).bits; }
};
struct E4m3OverflowToNanConversion {
    static constexpr std::string_view name = "e4m3_overflow_to_nan";
    TOUCHSTONE_HOST_DEVICE static uint32_t code(float x) { return e4m3_from_float_overflow_to_nan(x).bits; }
};
struct E2m1SaturatingConversion {
    static constexpr std::string_view name = "e2m1_saturating";
    TOUCHSTONE_HOST_DEVICE static uint32_t code(float x) { return e2m1_from_float_saturating(x).bits; }
};
struct E8m0CeilConversion {
    static constexpr std::string_view name = "e8m0_ceil";
    TOUCHSTONE_HOST_DEVICE static uint32_t code(float x) { return e8m0_from_float_ceil(x).bits; }
};

template <class... Conversion>
struct ConversionList {};

using Conversions = ConversionList<Bf16Conversion, E4m3SaturatingConversion, E4m3OverflowToNanConversion,
                                   E2m1SaturatingConversion, E8m0CeilConversion>;

}  // namespace touchstone
