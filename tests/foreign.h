// Somebody else's kernels, for tests of diagnoses: plain loops in float, sums one after the other, and a
// switch for each mistake. This header: what they share. They use nothing of the reference but tensors, and
// the frequencies of rotations.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

#include "reference/registry/registry.h"

namespace touchstone::foreign {

using Floats = std::vector<float>;

/// The mistakes that a kernel makes: none, one, or several between plus signs.
struct Fault {
    std::string_view names;
    bool operator()(std::string_view name) const {
        for (std::string_view rest = names; !rest.empty();) {
            const size_t end = std::min(rest.find('+'), rest.size());
            if (rest.substr(0, end) == name) return true;
            rest.remove_prefix(std::min(end + 1, rest.size()));
        }
        return false;
    }
};

/// To bf16, ties to even, and back.
inline float bf16(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    if (std::isnan(x)) return x;
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

/// The nearest number of `mantissa` bits behind the leading one, exponents from `lowest` up, at most
/// `largest`.
inline float small_float(float x, int mantissa, int lowest, float largest) {
    if (std::isnan(x)) return x;
    const float magnitude = std::min(std::abs(x), largest);
    if (magnitude == 0) return x;
    const float step = std::ldexp(1.0f, std::max(std::ilogb(magnitude), lowest) - mantissa);
    return std::copysign(std::nearbyint(magnitude / step) * step, x);
}

inline float e4m3(float x) {
    return small_float(x, 3, -6, 448);
}
inline float e2m1(float x) {
    return small_float(x, 1, 0, 6);
}

/// The power of two not below amax / range.
inline float block_scale(const float* x, int64_t block, float floor, float range) {
    float amax = floor;
    for (int64_t i = 0; i < block; ++i) amax = std::max(amax, std::abs(x[i]));
    int exponent = 0;
    const float fraction = std::frexp(amax * (1 / range), &exponent);
    return std::ldexp(1.0f, fraction == 0.5f ? exponent - 1 : exponent);
}

/// As fp8 codes under a scale per 32.
inline Floats q8(Floats x) {
    for (size_t i = 0; i < x.size(); i += 32) {
        const float scale = block_scale(&x[i], 32, 1e-4f, 448);
        for (size_t j = i; j < i + 32; ++j) x[j] = e4m3(x[j] / scale) * scale;
    }
    return x;
}

inline float e2m1_of_code(int code) {
    constexpr float magnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return code & 8 ? -magnitudes[code & 7] : magnitudes[code & 7];
}

inline int code_of_e2m1(float value) {
    int code = 0;
    while (e2m1_of_code(code) != std::abs(value)) ++code;
    return std::signbit(value) ? code | 8 : code;
}

/// Any tensor of numbers.
inline Floats floats(const Call& call, std::string_view name) {
    const Tensor& tensor = call.inputs.find(name)->second;
    Floats values(static_cast<size_t>(tensor.elements()));
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>(element_as_double(tensor, static_cast<int64_t>(i)));
    return values;
}

/// Packed fp4 bytes times a scale per 32.
inline Floats unpacked(const Call& call, std::string_view codes, const Floats& scales) {
    const auto bytes = call.in<uint8_t>(codes);
    Floats values;
    for (size_t i = 0; i < 2 * bytes.size(); ++i)
        values.push_back(e2m1_of_code(i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4) * scales[i / 32]);
    return values;
}

/// An fp8 weight of 32 x 32 tiles.
inline Floats tiles(const Call& call, const std::string& name, int64_t outputs, int64_t inputs) {
    Floats w = floats(call, name);
    const Floats scales = floats(call, name + "_scale");
    for (int64_t o = 0; o < outputs; ++o)
        for (int64_t k = 0; k < inputs; ++k)
            w[static_cast<size_t>(o * inputs + k)] *=
                scales[static_cast<size_t>(o / 32 * (inputs / 32) + k / 32)];
    return w;
}

/// Rounded where the output is bf16.
inline void put(const Call& call, std::string_view name, const Floats& values) {
    Tensor& tensor = call.outputs.find(name)->second;
    for (size_t i = 0; i < values.size(); ++i)
        if (tensor.type == "F32") {
            tensor.view<float>()[i] = std::isnan(values[i]) ? float_from_bits(0x7FFFFFFF) : values[i];
        } else {
            const float rounded = bf16(values[i]);
            uint32_t bits;
            std::memcpy(&bits, &rounded, sizeof bits);
            tensor.view<Bf16>()[i] = {static_cast<uint16_t>(std::isnan(rounded) ? 0x7FFF : bits >> 16)};
        }
}

/// y [rows, outputs] = x w^T.
inline Floats product(const Floats& x, const Floats& w, int64_t rows, int64_t outputs) {
    const size_t inputs = w.size() / static_cast<size_t>(outputs);
    Floats y;
    for (size_t row = 0; row < static_cast<size_t>(rows); ++row)
        for (size_t o = 0; o < static_cast<size_t>(outputs); ++o) {
            float sum = 0;
            for (size_t k = 0; k < inputs; ++k) sum += x[row * inputs + k] * w[o * inputs + k];
            y.push_back(sum);
        }
    return y;
}

inline Floats rounded(Floats x) {
    for (float& value : x) value = bf16(value);
    return x;
}

/// Rows of the gain's width; not rounded.
inline Floats rms_norm(Floats x, const Floats& gain, float eps) {
    for (size_t row = 0; row < x.size(); row += gain.size()) {
        float squares = 0;
        for (size_t i = 0; i < gain.size(); ++i) squares += x[row + i] * x[row + i];
        const float rms = std::sqrt(squares / static_cast<float>(gain.size()) + eps);
        for (size_t i = 0; i < gain.size(); ++i) x[row + i] = x[row + i] / rms * gain[i];
    }
    return x;
}

}  // namespace touchstone::foreign
