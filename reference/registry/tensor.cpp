#include "reference/registry/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "reference/io/safetensors.h"
#include "reference/io/user_error.h"
#include "reference/numerics/tensor_hash.h"

namespace touchstone {

namespace {

constexpr int64_t most_bytes = int64_t{1} << 36;

/// The element's bits, zero-extended.
uint64_t element_bits(const Tensor& tensor, size_t element_bytes, int64_t i) {
    uint64_t bits = 0;
    std::memcpy(&bits, tensor.bytes.data() + static_cast<size_t>(i) * element_bytes, element_bytes);
    return bits;
}

size_t element_bytes_of(const Tensor& tensor) {
    return static_cast<size_t>(safetensors_element_bytes(tensor.type).value());
}

}  // namespace

int64_t Tensor::elements() const {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return count;
}

void Tensor::require_type(std::string_view name) const {
    if (type == name || (name == "U8" && type == "I8")) return;
    fmt::print(stderr, "touchstone: a tensor of {} is viewed as {}\n", type, name);
    std::abort();
}

Tensor make_tensor(const std::string& name, std::string_view type, std::vector<int64_t> shape,
                   std::byte fill) {
    int64_t bytes = safetensors_element_bytes(type).value();
    bool fits = true;
    for (const int64_t extent : shape)
        fits = fits && extent >= 0 && !__builtin_mul_overflow(bytes, extent, &bytes) && bytes <= most_bytes;
    if (!fits)
        throw UserError({fmt::format("tensor \"{}\" would be {}", name, describe(type, shape)),
                         "the case's parameters", "at most 64 GiB, no negative extent",
                         "choose smaller parameters"});
    return {std::string(type), std::move(shape), std::vector<std::byte>(static_cast<size_t>(bytes), fill)};
}

double element_as_double(const Tensor& tensor, int64_t i) {
    const size_t bytes = element_bytes_of(tensor);
    const uint64_t bits = element_bits(tensor, bytes, i);
    const std::string_view type = tensor.type;
    if (type == "F64") return double_from_bits(bits);
    if (type == "F32") return static_cast<double>(float_from_bits(static_cast<uint32_t>(bits)));
    if (type == "BF16") return static_cast<double>(to_float(Bf16{static_cast<uint16_t>(bits)}));
    if (type == "F8_E4M3") return static_cast<double>(to_float(E4m3{static_cast<uint8_t>(bits)}));
    if (type == "F8_E8M0") return static_cast<double>(to_float(E8m0{static_cast<uint8_t>(bits)}));
    if (type == "I32") return static_cast<double>(static_cast<int32_t>(bits));
    if (type == "I64") return static_cast<double>(static_cast<int64_t>(bits));
    return static_cast<double>(bits);
}

std::vector<double> numbers_of(const Tensor& tensor) {
    std::vector<double> values;
    values.reserve(static_cast<size_t>(tensor.elements()));
    if (tensor.type == "F32")
        for (const float x : tensor.view<float>()) values.push_back(static_cast<double>(x));
    else if (tensor.type == "BF16")
        for (const Bf16 x : tensor.view<Bf16>()) values.push_back(static_cast<double>(to_float(x)));
    else
        for (int64_t i = 0; i < tensor.elements(); ++i) values.push_back(element_as_double(tensor, i));
    return values;
}

TensorView view_of(const Tensor& tensor) {
    return {tensor.type, tensor.shape, tensor.bytes};
}

uint64_t tensor_hash(const Tensor& tensor) {
    const size_t bytes = element_bytes_of(tensor);
    const auto count = static_cast<uint64_t>(tensor.elements());
    uint64_t hash = 0;
    for (uint64_t i = 0; i < count; ++i) {
        const uint64_t bits = element_bits(tensor, bytes, static_cast<int64_t>(i));
        if (bytes < 8) {
            hash += element_hash(i, static_cast<uint32_t>(bits));
        } else {
            hash += element_hash(2 * i, static_cast<uint32_t>(bits));
            hash += element_hash(2 * i + 1, static_cast<uint32_t>(bits >> 32));
        }
    }
    return hash;
}

std::string describe(std::string_view type, std::span<const int64_t> shape) {
    return fmt::format("{} [{}]", type, fmt::join(shape, ", "));
}

}  // namespace touchstone
