#include "reference/model/tensor_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <type_traits>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

constexpr int64_t inputs_per_scale = 32;

template <class T>
constexpr TensorType stored_type() {
    if constexpr (std::is_same_v<T, float>) return TensorType::f32;
    if constexpr (std::is_same_v<T, Bf16>) return TensorType::bf16;
    if constexpr (std::is_same_v<T, E4m3>) return TensorType::f8_e4m3;
    if constexpr (std::is_same_v<T, E8m0>) return TensorType::f8_e8m0;
    if constexpr (std::is_same_v<T, uint8_t>) return TensorType::i8_e2m1;
}

std::string described(const TensorSpec& spec) {
    return fmt::format("{} [{}]", safetensors_name(spec.type), fmt::join(spec.shape, ", "));
}

/// "experts.0.w1" of "experts.0.w1.weight"; "" for a name that does not end so.
std::string_view before_weight(std::string_view name) {
    constexpr std::string_view ending = ".weight";
    return name.ends_with(ending) ? name.substr(0, name.size() - ending.size()) : "";
}

}  // namespace

void TensorSource::set_config(ModelConfig config, std::string where) {
    config_ = std::move(config);
    where_ = std::move(where);
    for_each_tensor(config_, [this](const TensorSpec& spec) { specs_.push_back(spec); });
    for (const TensorSpec& spec : specs_) spec_of_.emplace(spec.name, &spec);
}

const TensorSpec* TensorSource::find_spec(std::string_view name) const {
    const auto found = spec_of_.find(name);
    return found == spec_of_.end() ? nullptr : found->second;
}

const TensorSpec& TensorSource::spec(std::string_view name) const {
    if (const TensorSpec* found = find_spec(name)) return *found;
    std::vector<std::string> names;
    for (const TensorSpec& known : specs_) names.push_back(known.name);
    const std::string near = did_you_mean(std::string(name), names);
    throw UserError({fmt::format("there is no tensor \"{}\"", name), where_,
                     fmt::format("one of the {} tensors of this configuration", names.size()),
                     near.empty() ? "" : fmt::format("did you mean \"{}\"?", near)});
}

template <class T>
std::span<const T> TensorSource::values(std::string_view name) const {
    const TensorSpec& wanted = spec(name);
    if (wanted.type != stored_type<T>())
        throw UserError({fmt::format("{} is {}", name, described(wanted)), where_,
                         std::string(safetensors_name(stored_type<T>())), ""});
    const std::span<const std::byte> bytes = stored_bytes(wanted, alignof(T));
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
}
template std::span<const float> TensorSource::values(std::string_view) const;
template std::span<const Bf16> TensorSource::values(std::string_view) const;
template std::span<const E4m3> TensorSource::values(std::string_view) const;
template std::span<const E8m0> TensorSource::values(std::string_view) const;
template std::span<const uint8_t> TensorSource::values(std::string_view) const;

Fp8Weight TensorSource::fp8_weight(std::string_view name) const {
    const TensorSpec& codes = spec(fmt::format("{}.weight", name));
    return {codes.name, codes.shape[0], codes.shape.back(), values<E4m3>(codes.name),
            values<E8m0>(fmt::format("{}.scale", name))};
}

Fp4Weight TensorSource::fp4_weight(std::string_view name) const {
    const TensorSpec& codes = spec(fmt::format("{}.weight", name));
    return {codes.name, codes.shape[0], 2 * codes.shape.back(), values<uint8_t>(codes.name),
            values<E8m0>(fmt::format("{}.scale", name))};
}

Bf16Weight TensorSource::bf16_weight(std::string_view name) const {
    const TensorSpec& matrix = spec(name);
    if (matrix.shape.size() != 2)
        throw UserError({fmt::format("{} is {}", name, described(matrix)), where_, "a matrix", ""});
    return {matrix.name, matrix.shape[0], matrix.shape[1], values<Bf16>(name)};
}

std::vector<float> TensorSource::dequantised(std::string_view name, int64_t first, int64_t count) const {
    const TensorSpec& tensor = spec(name);
    const bool packed = tensor.type == TensorType::i8_e2m1;
    const int64_t elements = tensor.elements();
    if (first < 0 || count < 0 || first > elements - count)
        throw UserError({fmt::format("elements {} to {} of {}", first, first + count, name), where_,
                         fmt::format("elements 0 to {}", elements), ""});
    std::vector<float> result(static_cast<size_t>(count));
    const auto each = [&](auto&& value) {
        for (int64_t i = 0; i < count; ++i)
            result[static_cast<size_t>(i)] = value(static_cast<size_t>(first + i));
    };
    if (tensor.type == TensorType::f32) each([v = values<float>(name)](size_t i) { return v[i]; });
    if (tensor.type == TensorType::bf16) each([v = values<Bf16>(name)](size_t i) { return to_float(v[i]); });
    if (tensor.type == TensorType::f8_e8m0)
        each([v = values<E8m0>(name)](size_t i) { return to_float(v[i]); });
    if (tensor.type != TensorType::f8_e4m3 && !packed) return result;

    // Scale of element (row, column): one per tile of rows and 32 columns; e2m1 and tables have a row per
    // tile.
    const TensorSpec& scale = spec(fmt::format("{}.scale", before_weight(name)));
    const size_t columns = static_cast<size_t>(tensor.shape[1] * (packed ? 2 : 1));
    const size_t tile_rows =
        scale.shape[0] == tensor.shape[0] ? 1 : static_cast<size_t>(config_.weight_block_size);
    const auto scale_at = [&, scales = values<E8m0>(scale.name)](size_t i) {
        const size_t row = i / columns, column = i % columns;
        return to_float(scales[row / tile_rows * static_cast<size_t>(scale.shape[1]) +
                               column / static_cast<size_t>(inputs_per_scale)]);
    };
    if (packed)
        each([&, v = values<uint8_t>(name)](size_t i) {
            return to_float(i % 2 == 0 ? even_e2m1(v[i / 2]) : odd_e2m1(v[i / 2])) * scale_at(i);
        });
    else
        each([&, v = values<E4m3>(name)](size_t i) { return to_float(v[i]) * scale_at(i); });
    return result;
}

}  // namespace touchstone
