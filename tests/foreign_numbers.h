// Number formats for kernels that share no code with the reference: plain arithmetic, written to be read.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "reference/registry/registry.h"

namespace foreign {

/// The fault that a kernel has; "" for none.
struct Fault {
    std::string name;
    bool is(const char* other) const { return name == other; }
};

inline float float_of_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

inline uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

inline float bf16_value(uint16_t bits) {
    return float_of_bits(static_cast<uint32_t>(bits) << 16);
}

inline uint16_t bf16_nearest(float x) {
    if (std::isnan(x)) return 0x7FFF;
    const uint32_t bits = bits_of(x), below = bits & 0xFFFF, odd = bits >> 16 & 1;
    const bool up = below > 0x8000 || (below == 0x8000 && odd == 1);
    return static_cast<uint16_t>((bits >> 16) + (up ? 1 : 0));
}

/// Rounded to bf16 and back.
inline float through_bf16(float x) {
    return bf16_value(bf16_nearest(x));
}

inline float e4m3(uint8_t byte) {
    const int exponent = byte >> 3 & 15, mantissa = byte & 7;
    if (exponent == 15 && mantissa == 7) return std::nanf("");
    const double magnitude = exponent == 0 ? mantissa / 512.0 : std::ldexp(1 + mantissa / 8.0, exponent - 7);
    return static_cast<float>(byte & 0x80 ? -magnitude : magnitude);
}

inline float e2m1(int code) {
    const float magnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -magnitudes[code & 7] : magnitudes[code & 7];
}

inline float e8m0(uint8_t byte) {
    return byte == 255 ? std::nanf("") : static_cast<float>(std::ldexp(1.0, byte - 127));
}

/// What happens to a value that lies exactly between two codes.
enum class Ties { even, away };

/// The code nearest to x: every code is tried.
inline uint8_t nearest_code(float x, bool fp8, Ties ties = Ties::even) {
    const int largest = fp8 ? 0x7E : 7, sign = std::signbit(x) ? (fp8 ? 0x80 : 8) : 0;
    if (std::isnan(x)) return fp8 ? 0x7F : 0;
    // No more than twice the largest: distances of huge values to small ones would be equal in double.
    const double magnitude = std::min(std::abs(static_cast<double>(x)), fp8 ? 896.0 : 12.0);
    int best = 0;
    for (int code = 1; code <= largest; ++code) {
        const double value = static_cast<double>(fp8 ? e4m3(static_cast<uint8_t>(code)) : e2m1(code));
        const double held = static_cast<double>(fp8 ? e4m3(static_cast<uint8_t>(best)) : e2m1(best));
        const double closer = std::abs(magnitude - held) - std::abs(magnitude - value);
        const bool tie_goes_here = ties == Ties::away || code % 2 == 0;
        if (closer > 0 || (closer == 0 && tie_goes_here)) best = code;
    }
    return static_cast<uint8_t>(sign | best);
}

/// The exponent of the smallest power of two that is not below x > 0.
inline int exponent_above(float x) {
    int exponent = 0;
    const float fraction = std::frexp(x, &exponent);  // in [1/2, 1)
    return fraction == 0.5f ? exponent - 1 : exponent;
}

// Tensors.

inline std::vector<float> bf16_tensor(const touchstone::TensorMap& tensors, const char* name) {
    std::vector<float> values;
    for (const touchstone::Bf16 x : tensors.find(name)->second.view<touchstone::Bf16>())
        values.push_back(bf16_value(x.bits));
    return values;
}

inline std::vector<uint8_t> byte_tensor(const touchstone::TensorMap& tensors, const char* name) {
    std::vector<uint8_t> bytes;
    for (const std::byte byte : tensors.find(name)->second.bytes) bytes.push_back(static_cast<uint8_t>(byte));
    return bytes;
}

/// Outputs of the declared types and shapes, zeros.
inline touchstone::TensorMap outputs_of(const touchstone::ParsedCase& parsed) {
    touchstone::TensorMap outputs;
    for (const touchstone::OutputSlot* slot : output_slots(*parsed.info, parsed.parameters))
        outputs[slot->name] =
            touchstone::make_tensor(slot->name, slot->type, shape_of(*slot, parsed.parameters));
    return outputs;
}

inline void put_f32(touchstone::TensorMap& outputs, const char* name, const std::vector<float>& values) {
    std::ranges::copy(values, outputs.find(name)->second.view<float>().begin());
}

inline void put_bf16(touchstone::TensorMap& outputs, const char* name, const std::vector<float>& values) {
    const auto out = outputs.find(name)->second.view<touchstone::Bf16>();
    for (size_t i = 0; i < values.size(); ++i) out[i] = {bf16_nearest(values[i])};
}

}  // namespace foreign
