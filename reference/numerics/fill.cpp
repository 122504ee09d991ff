#include "reference/numerics/fill.h"

#include <array>
#include <bit>
#include <type_traits>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

constexpr uint32_t sign_bit = 0x80000000;

/// About N(0, 1): eight uniform 16-bit integers have mean 8 * 65535 / 2 and variance 8 * (2^32 - 1) / 12.
float normal_value(const PhiloxBlock& random) {
    int32_t sum = -8 * 65535 / 2;
    for (const uint32_t word : random.words) sum += static_cast<int32_t>((word >> 16) + (word & 0xFFFF));
    return static_cast<float>(sum) * (1 / 53509.9f);
}

float exact_value(uint32_t random) {
    return static_cast<float>(static_cast<int32_t>(random & 15) - 8) * 0.25f;
}

/// 2^-4 to 2^3, with the mantissa given.
float ordinary_value(uint32_t random, uint32_t mantissa) {
    return float_from_bits((random & sign_bit) | (123 + random % 8) << 23 | (mantissa & 0x7FFFFF));
}

/// Halfway between two codes of `mantissa_bits`, the lower one even or odd, or one fp32 step beside that.
float near_tie(uint32_t random, uint32_t r, int mantissa_bits) {
    const uint32_t half = 1u << (22 - mantissa_bits);
    const uint32_t tie = (r & ~(2 * half - 1)) | half;
    return ordinary_value(random, tie - 1 + random / 64 % 3);
}

float limit_value(uint32_t random) {
    constexpr std::array limits{6.0f, 10.0f, 20.0f, 448.0f};
    const uint32_t bits = float_bits(limits[random % limits.size()]);
    return float_from_bits((random & sign_bit) | (bits - 2 + random / 64 % 5));
}

float trap_value(uint32_t kind, const PhiloxBlock& block) {
    const uint32_t random = block.words[0], r = block.words[1];
    switch (kind % 8) {
        case 0: return near_tie(random, r, 7);                                 // bf16
        case 1: return near_tie(random, r, 3);                                 // e4m3
        case 2: return near_tie(random, r, 1);                                 // e2m1
        case 3: return float_from_bits(random & sign_bit);                     // both zeros
        case 4: return limit_value(random);                                    // clamps
        case 5: return float_from_bits((random & sign_bit) | r % 0x01000000);  // subnormal, least normal
        case 6: return float_from_bits((random & sign_bit) | (0x72000000 + r % 0x0D800000));  // from 2^101
        default: return ordinary_value(random & sign_bit, 0);  // 2^-4 and -2^-4
    }
}

template <class T>
T from_float(float x) {
    if constexpr (std::is_same_v<T, float>) return x;
    if constexpr (std::is_same_v<T, Bf16>) return bf16_from_float(x);
    if constexpr (std::is_same_v<T, E4m3>) return e4m3_from_float_saturating(x);
    if constexpr (std::is_same_v<T, E2m1>) return e2m1_from_float_saturating(x);
}

/// Ties of bf16 values are those of narrower formats: rounding must not move them.
template <class T>
T trap(RandomStream random, uint64_t index) {
    const uint32_t kind = RandomStream{random.seed, ~random.stream}.word(index / 16);
    const PhiloxBlock block = random.block(index);
    if constexpr (std::is_same_v<T, E4m3>) {
        const uint8_t code = static_cast<uint8_t>(block.words[0]);
        return E4m3{(code & 0x7F) == 0x7F ? static_cast<uint8_t>(code - 1) : code};
    } else if constexpr (std::is_same_v<T, E2m1>) {
        return E2m1{static_cast<uint8_t>(block.words[0] & 15)};
    } else if constexpr (std::is_same_v<T, E8m0>) {
        constexpr std::array<uint8_t, 4> ends{0, 1, 253, 254};
        const uint8_t anywhere = static_cast<uint8_t>(block.words[0] % 255);
        return E8m0{kind % 2 == 0 ? ends[block.words[0] % 4] : anywhere};
    } else {
        const T value = from_float<T>(trap_value(kind, block));
        // The largest fp32 values round up to infinity in bf16.
        if constexpr (std::is_same_v<T, Bf16>)
            return (value.bits & 0x7FFF) == 0x7F80 ? Bf16{static_cast<uint16_t>(value.bits - 1)} : value;
        return value;
    }
}

template <class T>
T exact(uint32_t random) {
    if constexpr (std::is_same_v<T, E2m1>)
        return E2m1{static_cast<uint8_t>(random & 15)};
    else if constexpr (std::is_same_v<T, E8m0>)
        return E8m0{static_cast<uint8_t>(126 + random % 3)};
    else
        return from_float<T>(exact_value(random));
}

template <class T>
T normal(const PhiloxBlock& random) {
    if constexpr (std::is_same_v<T, E8m0>)
        // Trailing zeros of a random word: 0 half of the time, 1 a quarter, ...
        return E8m0{static_cast<uint8_t>(129 - std::countr_zero(random.words[0] | 0x100))};
    else
        return from_float<T>(normal_value(random) * (std::is_same_v<T, E4m3>   ? 128.0f
                                                     : std::is_same_v<T, E2m1> ? 2.0f
                                                                               : 1.0f));
}

}  // namespace

template <class T>
T filled(Filler filler, RandomStream random, uint64_t index) {
    switch (filler) {
        case Filler::exact: return exact<T>(random.word(index));
        case Filler::normal: return normal<T>(random.block(index));
        case Filler::trap: return trap<T>(random, index);
        case Filler::poison: break;
    }
    if constexpr (std::is_same_v<T, E2m1>)
        throw UserError({"poison for e2m1", "fill", "a format with NaN: fp32, bf16, e4m3 or e8m0", ""});
    else if constexpr (std::is_same_v<T, float>)
        return float_from_bits(0xFFFFFFFF);
    else
        return T{static_cast<decltype(T::bits)>(~0)};
}

template <class T>
void fill(Filler filler, RandomStream random, std::span<T> out, uint64_t first_index) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = filled<T>(filler, random, first_index + i);
}

template float filled(Filler, RandomStream, uint64_t);
template Bf16 filled(Filler, RandomStream, uint64_t);
template E4m3 filled(Filler, RandomStream, uint64_t);
template E2m1 filled(Filler, RandomStream, uint64_t);
template E8m0 filled(Filler, RandomStream, uint64_t);
template void fill(Filler, RandomStream, std::span<float>, uint64_t);
template void fill(Filler, RandomStream, std::span<Bf16>, uint64_t);
template void fill(Filler, RandomStream, std::span<E4m3>, uint64_t);
template void fill(Filler, RandomStream, std::span<E2m1>, uint64_t);
template void fill(Filler, RandomStream, std::span<E8m0>, uint64_t);

}  // namespace touchstone
