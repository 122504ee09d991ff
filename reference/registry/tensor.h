// Tensors by name: what operators take and give, in memory and in safetensors files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/io/tensor_view.h"
#include "reference/numerics/small_float.h"

namespace touchstone {

/// The safetensors name of the element type T. Bytes (uint8_t) also view the "I8" of packed fp4 weights.
template <class T>
inline constexpr std::string_view element_type_name = "";
template <>
inline constexpr std::string_view element_type_name<float> = "F32";
template <>
inline constexpr std::string_view element_type_name<double> = "F64";
template <>
inline constexpr std::string_view element_type_name<Bf16> = "BF16";
template <>
inline constexpr std::string_view element_type_name<E4m3> = "F8_E4M3";
template <>
inline constexpr std::string_view element_type_name<E8m0> = "F8_E8M0";
template <>
inline constexpr std::string_view element_type_name<uint8_t> = "U8";
template <>
inline constexpr std::string_view element_type_name<int32_t> = "I32";
template <>
inline constexpr std::string_view element_type_name<int64_t> = "I64";

/// A tensor that owns its elements: row-major, little-endian.
struct Tensor {
    std::string type;  ///< as safetensors writes it: "F32", "BF16", "F8_E4M3", "F8_E8M0", "I8", "U8", ..
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;

    int64_t elements() const;

    /// The elements as T, which must be the tensor's type: another is a broken invariant and aborts.
    template <class T>
    std::span<const T> view() const {
        require_type(element_type_name<T>);
        return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
    }
    template <class T>
    std::span<T> view() {
        require_type(element_type_name<T>);
        return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
    }

    friend bool operator==(const Tensor&, const Tensor&) = default;

  private:
    void require_type(std::string_view name) const;
};

using TensorMap = std::map<std::string, Tensor, std::less<>>;

/// A tensor of that type and shape, every byte `fill`. Throws UserError, naming `name`, when the shape is
/// negative or needs more than 2^36 bytes.
Tensor make_tensor(const std::string& name, std::string_view type, std::vector<int64_t> shape,
                   std::byte fill = {});

/// Element i as a double, whatever the type; of packed fp4 and records, the byte.
double element_as_double(const Tensor& tensor, int64_t i);

/// All of them.
std::vector<double> numbers_of(const Tensor& tensor);

/// The tensor as a view, valid as long as it.
TensorView view_of(const Tensor& tensor);

/// numerics/tensor_hash.h over the elements; one of 8 bytes counts as two of 4, the low half first.
uint64_t tensor_hash(const Tensor& tensor);

/// "BF16 [2, 512]".
std::string describe(std::string_view type, std::span<const int64_t> shape);

}  // namespace touchstone
