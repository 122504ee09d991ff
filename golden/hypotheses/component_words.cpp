#include "golden/hypotheses/component_words.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "reference/numerics/small_float.h"

namespace touchstone {

Outputs recomputed(std::function<bool(Arithmetic arithmetic, const Call& call)> make) {
    return [make = std::move(make)](const OperatorRun& run) -> std::optional<TensorMap> {
        TensorMap outputs = run.expected;
        if (!make(run.arithmetic, {run.parameters, run.inputs, outputs})) return std::nullopt;
        return outputs;
    };
}

Outputs with_each(const std::vector<std::string>& inputs, float (*change)(float)) {
    return with_inputs([inputs, change](TensorMap& tensors, const OperatorRun&) {
        for (const std::string& name : inputs)
            if (const auto tensor = tensors.find(name); tensor != tensors.end())
                std::ranges::transform(tensor->second.view<float>(), tensor->second.view<float>().begin(),
                                       change);
        return true;
    });
}

float rounded_to_bf16(float x) {
    return to_float(bf16_from_float(x));
}
float to_zero(float) {
    return 0;
}
float to_one(float) {
    return 1;
}

void store(const Call& call, std::string_view output, const truth::Matrix& values) {
    if (call.outputs.find(output)->second.type == "F32")
        std::transform(values.data(), values.data() + values.size(), call.out<float>(output).begin(),
                       [](double x) { return with_canonical_nan(static_cast<float>(x)); });
    else
        std::transform(values.data(), values.data() + values.size(), call.out<Bf16>(output).begin(),
                       [](double x) { return bf16_from_float(static_cast<float>(x)); });
}

void fill_with_nan(TensorMap& outputs, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
        Tensor& tensor = outputs.find(name)->second;
        if (tensor.type == "F32")
            std::ranges::fill(tensor.view<float>(), float_from_bits(canonical_nan_bits));
        else
            std::ranges::fill(tensor.view<Bf16>(), Bf16{canonical_nan_bf16_bits});
    }
}

template <class T>
void rotate_extent(std::span<T> values, int64_t extent, int64_t inner) {
    for (auto first = values.begin(); first != values.end(); first += extent * inner)
        std::rotate(first, first + inner, first + extent * inner);
}
template void rotate_extent(std::span<float>, int64_t, int64_t);
template void rotate_extent(std::span<Bf16>, int64_t, int64_t);
template void rotate_extent(std::span<E8m0>, int64_t, int64_t);
template void rotate_extent(std::span<uint8_t>, int64_t, int64_t);

bool set_integer(Parameters& parameters, std::string_view name, int64_t value) {
    if (parameters[name] == value) return false;
    parameters.values.find(name)->second = value;
    return true;
}

bool set_real(Parameters& parameters, std::string_view name, double value) {
    if (parameters.real(name) == static_cast<float>(value)) return false;
    parameters.values.find(name)->second = value;
    return true;
}

}  // namespace touchstone
