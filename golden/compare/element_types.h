// Element types of tensor files for comparisons: which bits are zero, NaN or infinite, their value as a
// double, and how many representable values lie between two elements.
#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <type_traits>

#include "reference/io/tensor_view.h"
#include "reference/numerics/small_float.h"

namespace touchstone::element_types {

/// Elements as signed integers in the order of their values, and distances of those: 32 bits where they
/// suffice, because vectors hold twice as many.
template <class Bits>
using Place = std::conditional_t<sizeof(Bits) == 8, int64_t, int32_t>;
template <class Bits>
using Distance = std::make_unsigned_t<Place<Bits>>;

template <class Type>
constexpr Distance<typename Type::Bits> distance(typename Type::Bits a, typename Type::Bits b) {
    using Unsigned = Distance<typename Type::Bits>;
    const auto x = Type::place(a), y = Type::place(b);
    const Unsigned up = static_cast<Unsigned>(y) - static_cast<Unsigned>(x);
    const Unsigned down = static_cast<Unsigned>(x) - static_cast<Unsigned>(y);
    return x < y ? up : down;
}

template <class Type>
double absolute_difference(typename Type::Bits a, typename Type::Bits b) {
    if constexpr (Type::is_float) return std::abs(Type::value(a) - Type::value(b));
    return static_cast<double>(distance<Type>(a, b));  // doubles would lose the difference of large integers
}

/// Values of all codes of a type of `bits` bits, made from a function of one code.
template <size_t Codes, class Decode>
constexpr std::array<float, Codes> decode_table(Decode decode) {
    std::array<float, Codes> table{};
    for (size_t code = 0; code < Codes; ++code) table[code] = decode(static_cast<uint32_t>(code));
    return table;
}

/// OCP 8-bit floating point specification 1.0: bias 15, infinities and NaNs as in fp16, whose upper half it
/// is.
inline constexpr auto e5m2_values =
    decode_table<256>([](uint32_t code) { return float_from_fp16_bits(code << 8); });
inline constexpr auto e4m3_values =
    decode_table<256>([](uint32_t code) { return to_float(E4m3{static_cast<uint8_t>(code)}); });
inline constexpr auto e2m1_values =
    decode_table<16>([](uint32_t code) { return to_float(E2m1{static_cast<uint8_t>(code)}); });

constexpr double value_of_f64(uint64_t bits) {
    return std::bit_cast<double>(bits);
}
constexpr double value_of_f32(uint32_t bits) {
    return static_cast<double>(std::bit_cast<float>(bits));
}
constexpr double value_of_f16(uint16_t bits) {
    return static_cast<double>(float_from_fp16_bits(bits));
}
constexpr double value_of_bf16(uint16_t bits) {
    return static_cast<double>(to_float(Bf16{bits}));
}
constexpr double value_of_e5m2(uint8_t bits) {
    return static_cast<double>(e5m2_values[bits]);
}
constexpr double value_of_e4m3(uint8_t bits) {
    return static_cast<double>(e4m3_values[bits]);
}
constexpr double value_of_e2m1(uint8_t bits) {
    return static_cast<double>(e2m1_values[bits & 15]);
}

/// A floating type of sign and magnitude. `first_special` is the magnitude of infinity, or of the first NaN
/// where `has_infinity` is false.
template <class BitsType, BitsType sign_bit, BitsType first_special, bool has_infinity,
          double (*decode)(BitsType)>
struct SignMagnitude {
    using Bits = BitsType;
    static constexpr bool is_float = true;
    static constexpr Bits sign = sign_bit;

    static constexpr Bits magnitude(Bits bits) {
        return static_cast<Bits>(bits & static_cast<Bits>(sign_bit - 1));
    }
    static constexpr bool zero(Bits bits) { return magnitude(bits) == 0; }
    static constexpr bool finite(Bits bits) { return magnitude(bits) < first_special; }
    static constexpr bool nan(Bits bits) {
        return has_infinity ? magnitude(bits) > first_special : magnitude(bits) >= first_special;
    }
    static constexpr bool negative(Bits bits) { return (bits & sign_bit) != 0; }
    static constexpr double value(Bits bits) { return decode(bits); }
    /// -0 and +0 are the same place.
    static constexpr Place<Bits> place(Bits bits) {
        const auto up = static_cast<Place<Bits>>(magnitude(bits));
        return negative(bits) ? -up : up;
    }
};

using F64 = SignMagnitude<uint64_t, 0x8000000000000000, 0x7FF0000000000000, true, value_of_f64>;
using F32 = SignMagnitude<uint32_t, 0x80000000, 0x7F800000, true, value_of_f32>;
using F16 = SignMagnitude<uint16_t, 0x8000, 0x7C00, true, value_of_f16>;
using Bfloat16 = SignMagnitude<uint16_t, 0x8000, 0x7F80, true, value_of_bf16>;
using F8E5m2 = SignMagnitude<uint8_t, 0x80, 0x7C, true, value_of_e5m2>;
using F8E4m3 = SignMagnitude<uint8_t, 0x80, 0x7F, false, value_of_e4m3>;
/// One code in the low nibble of a byte: packed fp4 after its layout has unpacked it.
using F4E2m1 = SignMagnitude<uint8_t, 0x8, 0x8, false, value_of_e2m1>;

/// 2^(bits - 127), 255 is NaN.
struct F8E8m0 {
    using Bits = uint8_t;
    static constexpr bool is_float = true;
    static constexpr Bits sign = 0;

    static constexpr bool zero(Bits) { return false; }
    static constexpr bool finite(Bits bits) { return bits != 255; }
    static constexpr bool nan(Bits bits) { return bits == 255; }
    static constexpr bool negative(Bits) { return false; }
    static constexpr double value(Bits bits) { return static_cast<double>(to_float(E8m0{bits})); }
    static constexpr Place<Bits> place(Bits bits) { return bits; }
};

/// An integer; BOOL is one of the two values that its byte may have, compared as the byte.
template <class BitsType, class ValueType>
struct Integer {
    using Bits = BitsType;
    static constexpr bool is_float = false;
    static constexpr Bits sign = 0;

    static constexpr bool zero(Bits bits) { return bits == 0; }
    static constexpr bool finite(Bits) { return true; }
    static constexpr bool nan(Bits) { return false; }
    static constexpr bool negative(Bits bits) { return static_cast<ValueType>(bits) < 0; }
    static constexpr double value(Bits bits) { return static_cast<double>(static_cast<ValueType>(bits)); }
    /// Unsigned integers that fill a place are moved down.
    static constexpr Place<Bits> place(Bits bits) {
        constexpr bool moved = !std::is_signed_v<ValueType> && sizeof(Bits) == sizeof(Place<Bits>);
        constexpr Bits sign_bit = moved ? Bits{1} << (8 * sizeof(Bits) - 1) : 0;
        return static_cast<Place<Bits>>(static_cast<ValueType>(bits ^ sign_bit));
    }
};

/// Calls visitor.template operator()<Type>() for the type of that name; false where there is none. Beside
/// those of safetensors: "E2M1", see F4E2m1.
template <class Visitor>
bool visit(std::string_view type, Visitor&& visitor) {
    struct Row {
        std::string_view name;
        void (*call)(Visitor&);
    };
    static constexpr Row rows[]{
        {"F64", [](Visitor& v) { v.template operator()<F64>(); }},
        {"F32", [](Visitor& v) { v.template operator()<F32>(); }},
        {"F16", [](Visitor& v) { v.template operator()<F16>(); }},
        {"BF16", [](Visitor& v) { v.template operator()<Bfloat16>(); }},
        {"F8_E4M3", [](Visitor& v) { v.template operator()<F8E4m3>(); }},
        {"F8_E5M2", [](Visitor& v) { v.template operator()<F8E5m2>(); }},
        {"F8_E8M0", [](Visitor& v) { v.template operator()<F8E8m0>(); }},
        {"E2M1", [](Visitor& v) { v.template operator()<F4E2m1>(); }},
        {"BOOL", [](Visitor& v) { v.template operator()<Integer<uint8_t, uint8_t>>(); }},
        {"U8", [](Visitor& v) { v.template operator()<Integer<uint8_t, uint8_t>>(); }},
        {"I8", [](Visitor& v) { v.template operator()<Integer<uint8_t, int8_t>>(); }},
        {"U16", [](Visitor& v) { v.template operator()<Integer<uint16_t, uint16_t>>(); }},
        {"I16", [](Visitor& v) { v.template operator()<Integer<uint16_t, int16_t>>(); }},
        {"U32", [](Visitor& v) { v.template operator()<Integer<uint32_t, uint32_t>>(); }},
        {"I32", [](Visitor& v) { v.template operator()<Integer<uint32_t, int32_t>>(); }},
        {"U64", [](Visitor& v) { v.template operator()<Integer<uint64_t, uint64_t>>(); }},
        {"I64", [](Visitor& v) { v.template operator()<Integer<uint64_t, int64_t>>(); }},
    };
    for (const Row& row : rows)
        if (row.name == type) {
            row.call(visitor);
            return true;
        }
    return false;
}

}  // namespace touchstone::element_types

namespace touchstone {

/// One element of any type, for people: its value and its bits.
struct ElementValue {
    double value;
    uint64_t bits;
};

/// Element `index` of a tensor; the type is one of safetensors or "E2M1", another aborts.
ElementValue element_at(const TensorView& tensor, int64_t index);

/// Bytes of an element of those types; 0 for another name.
int64_t element_type_bytes(std::string_view type);
bool is_float_type(std::string_view type);

}  // namespace touchstone
