// A second opinion on the small floats, sharing nothing with reference/numerics/small_float.h: values by
// formula in double, conversions by search among them. Slow and obvious.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "reference/numerics/small_float.h"

namespace touchstone::oracle {

/// What a conversion from fp32 must do: the values of codes 0, 1, 2, ... ascending, and the policies.
struct Conversion {
    const char* name;
    uint32_t (*convert)(float);  ///< the code under test
    std::vector<double> values;  ///< the last is where everything larger goes
    bool round_up;      ///< to the next value not below |x|; otherwise nearest, ties to the even code
    uint32_t sign_bit;  ///< of the code; 0 when the format has no sign
    uint32_t nan_code;
};

/// Magnitude of code `code` of a float with `mantissa_bits` and `bias`, as if no code were infinity or NaN.
inline double value_of(uint32_t code, int mantissa_bits, int bias) {
    const int exponent = static_cast<int>(code >> mantissa_bits);
    const double fraction = std::ldexp(code & ((1u << mantissa_bits) - 1), -mantissa_bits);
    return exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
}

inline std::vector<double> values_of(uint32_t codes, int mantissa_bits, int bias) {
    std::vector<double> values(codes);
    for (uint32_t code = 0; code < codes; ++code) values[code] = value_of(code, mantissa_bits, bias);
    return values;
}

inline std::vector<double> powers_of_two() {
    std::vector<double> values(255);
    for (int byte = 0; byte < 255; ++byte) values[static_cast<size_t>(byte)] = std::ldexp(1.0, byte - 127);
    return values;
}

/// Every conversion of small_float.h. bf16's list ends at 2^128, which stands for infinity; the overflowing
/// e4m3's at 480, whose code 0x7F is NaN.
inline const std::vector<Conversion>& conversions() {
    static const std::vector<Conversion> table = {
        {"bf16", [](float x) { return uint32_t{bf16_from_float(x).bits}; }, values_of(0x7F81, 7, 127), false,
         0x8000, 0x7FFF},
        {"e4m3 saturating", [](float x) { return uint32_t{e4m3_from_float_saturating(x).bits}; },
         values_of(0x7F, 3, 7), false, 0x80, 0x7F},
        {"e4m3 overflow to NaN", [](float x) { return uint32_t{e4m3_from_float_overflow_to_nan(x).bits}; },
         values_of(0x80, 3, 7), false, 0x80, 0x7F},
        {"e2m1 saturating", [](float x) { return uint32_t{e2m1_from_float_saturating(x).bits}; },
         values_of(8, 1, 1), false, 8, 7},
        {"e8m0 ceil", [](float x) { return uint32_t{e8m0_from_float_ceil(x).bits}; }, powers_of_two(), true,
         0, 255},
    };
    return table;
}

/// Sign and NaN policy around the code of a magnitude.
inline uint32_t with_policies(const Conversion& conversion, float x, uint32_t magnitude_code) {
    if (std::isnan(x)) return conversion.nan_code;
    return magnitude_code | (std::signbit(x) ? conversion.sign_bit : 0);
}

/// The right code of `x`. Exact: fp32 values, small-float values and the midpoints between these fit a
/// double.
inline uint32_t expected_code(const Conversion& conversion, float x) {
    if (std::isnan(x)) return conversion.nan_code;
    const std::vector<double>& values = conversion.values;
    const double magnitude = std::fabs(static_cast<double>(x));
    const auto not_below = std::lower_bound(values.begin(), values.end(), magnitude);
    if (not_below == values.end())
        return with_policies(conversion, x, static_cast<uint32_t>(values.size() - 1));
    const auto above = static_cast<uint32_t>(not_below - values.begin());
    if (above == 0 || conversion.round_up) return with_policies(conversion, x, above);
    const double midpoint = (values[above - 1] + values[above]) / 2;
    const bool to_even_above = magnitude == midpoint && above % 2 == 0;
    return with_policies(conversion, x, magnitude > midpoint || to_even_above ? above : above - 1);
}

/// For each code but the last, the bits of the largest fp32 magnitude that takes it. Values and midpoints are
/// fp32 numbers themselves, so an odd code, which loses its tie, ends one fp32 before its midpoint.
inline std::vector<uint32_t> last_magnitude_bits(const Conversion& conversion) {
    const std::vector<double>& values = conversion.values;
    std::vector<uint32_t> last(values.size() - 1);
    for (size_t code = 0; code < last.size(); ++code) {
        const double end = conversion.round_up ? values[code] : (values[code] + values[code + 1]) / 2;
        const float end_float = static_cast<float>(end);
        std::memcpy(&last[code], &end_float, sizeof(float));
        if (!conversion.round_up && code % 2 == 1) --last[code];
    }
    return last;
}

}  // namespace touchstone::oracle
