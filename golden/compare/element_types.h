// Element types of tensor files for comparisons: which bits are zero, NaN or infinite, their value as a
// double, and how many representable values lie between two elements.
#pragma once

#include <cstdint>
#include <string_view>
#include <type_traits>

#include "reference/io/tensor_view.h"
#include "reference/numerics/small_float.h"

namespace touchstone::element_types {

/// Elements as signed integers in the order of their values, and distances of those. Both as wide as the
/// element, because vectors hold the more of them: no two finite elements are farther apart than it counts.
template <class Bits>
using Place = std::make_signed_t<Bits>;
template <class Bits>
using Distance = std::make_unsigned_t<Bits>;

template <class Type>
[[gnu::always_inline]] constexpr Distance<typename Type::Bits> distance(typename Type::Bits a,
                                                                        typename Type::Bits b) {
    using Unsigned = Distance<typename Type::Bits>;
    const auto x = Type::place(a), y = Type::place(b);
    const auto up = static_cast<Unsigned>(static_cast<Unsigned>(y) - static_cast<Unsigned>(x));
    const auto down = static_cast<Unsigned>(static_cast<Unsigned>(x) - static_cast<Unsigned>(y));
    return x < y ? up : down;
}

template <class Type>
[[gnu::always_inline]] inline double absolute_difference(typename Type::Bits a, typename Type::Bits b) {
    if constexpr (Type::is_float) return __builtin_fabs(Type::value(a) - Type::value(b));
    return static_cast<double>(distance<Type>(a, b));  // doubles would lose the difference of large integers
}

[[gnu::always_inline]] constexpr double value_of_f64(uint64_t bits) {
    return double_from_bits(bits);
}
[[gnu::always_inline]] constexpr double value_of_f32(uint32_t bits) {
    return static_cast<double>(float_from_bits(bits));
}
/// float_from_fp16_bits without its branch: vectors have none.
[[gnu::always_inline]] constexpr double value_of_f16(uint16_t bits) {
    const uint32_t sign = (bits & 0x8000u) << 16, exponent = (bits >> 10) & 0x1Fu, mantissa = bits & 0x3FFu;
    const float subnormal = static_cast<float>(static_cast<int32_t>(mantissa)) * 0x1p-24f;
    const uint32_t normal = ((exponent + 112) << 23) | (mantissa << 13);
    const uint32_t special = mantissa != 0 ? canonical_nan_bits : sign | 0x7F800000u;
    const uint32_t finite = sign | (exponent == 0 ? float_bits(subnormal) : normal);
    return static_cast<double>(float_from_bits(exponent == 31 ? special : finite));
}
[[gnu::always_inline]] constexpr double value_of_bf16(uint16_t bits) {
    return static_cast<double>(to_float(Bf16{bits}));
}
/// OCP 8-bit floating point specification 1.0: bias 15, infinities and NaNs as in fp16, whose upper half it
/// is.
[[gnu::always_inline]] constexpr double value_of_e5m2(uint8_t bits) {
    return value_of_f16(static_cast<uint16_t>(bits << 8));
}
[[gnu::always_inline]] constexpr double value_of_e4m3(uint8_t bits) {
    return static_cast<double>(to_float(E4m3{bits}));
}
[[gnu::always_inline]] constexpr double value_of_e2m1(uint8_t bits) {
    return static_cast<double>(to_float(E2m1{bits}));
}

/// A floating type of sign and magnitude. `first_special` is the magnitude of infinity, or of the first NaN
/// where `has_infinity` is false.
template <class BitsType, BitsType sign_bit, BitsType first_special, bool has_infinity,
          double (*decode)(BitsType)>
struct SignMagnitude {
    using Bits = BitsType;
    static constexpr bool is_float = true;
    static constexpr Bits sign = sign_bit;

    [[gnu::always_inline]] static constexpr Bits magnitude(Bits bits) {
        return static_cast<Bits>(bits & static_cast<Bits>(sign_bit - 1));
    }
    [[gnu::always_inline]] static constexpr bool zero(Bits bits) { return magnitude(bits) == 0; }
    [[gnu::always_inline]] static constexpr bool finite(Bits bits) { return magnitude(bits) < first_special; }
    [[gnu::always_inline]] static constexpr bool nan(Bits bits) {
        return has_infinity ? magnitude(bits) > first_special : magnitude(bits) >= first_special;
    }
    [[gnu::always_inline]] static constexpr bool negative(Bits bits) { return (bits & sign_bit) != 0; }
    [[gnu::always_inline]] static constexpr double value(Bits bits) { return decode(bits); }
    /// -0 and +0 are the same place.
    [[gnu::always_inline]] static constexpr Place<Bits> place(Bits bits) {
        const auto up = static_cast<Place<Bits>>(magnitude(bits));
        return static_cast<Place<Bits>>(negative(bits) ? -up : up);
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

    [[gnu::always_inline]] static constexpr bool zero(Bits) { return false; }
    [[gnu::always_inline]] static constexpr bool finite(Bits bits) { return bits != 255; }
    [[gnu::always_inline]] static constexpr bool nan(Bits bits) { return bits == 255; }
    [[gnu::always_inline]] static constexpr bool negative(Bits) { return false; }
    [[gnu::always_inline]] static constexpr double value(Bits bits) {
        return static_cast<double>(to_float(E8m0{bits}));
    }
    [[gnu::always_inline]] static constexpr Place<Bits> place(Bits bits) {
        return static_cast<Place<Bits>>(bits ^ 0x80);
    }
};

/// An integer; BOOL is one of the two values that its byte may have, compared as the byte.
template <class BitsType, class ValueType>
struct Integer {
    using Bits = BitsType;
    static constexpr bool is_float = false;
    static constexpr Bits sign = 0;

    [[gnu::always_inline]] static constexpr bool zero(Bits bits) { return bits == 0; }
    [[gnu::always_inline]] static constexpr bool finite(Bits) { return true; }
    [[gnu::always_inline]] static constexpr bool nan(Bits) { return false; }
    [[gnu::always_inline]] static constexpr bool negative(Bits bits) {
        return static_cast<ValueType>(bits) < 0;
    }
    [[gnu::always_inline]] static constexpr double value(Bits bits) {
        return static_cast<double>(static_cast<ValueType>(bits));
    }
    /// Unsigned integers are moved down.
    [[gnu::always_inline]] static constexpr Place<Bits> place(Bits bits) {
        constexpr Bits sign_bit = std::is_signed_v<ValueType> ? 0 : Bits{1} << (8 * sizeof(Bits) - 1);
        return static_cast<Place<Bits>>(bits ^ sign_bit);
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
