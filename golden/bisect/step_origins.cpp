#include "golden/bisect/step_origins.h"

#include <fmt/format.h>

#include <cstring>

#include "reference/compressor.h"

namespace touchstone {

namespace {

int64_t row_bytes(const Tensor& tensor) {
    const int64_t rows = tensor.shape.front();
    return rows == 0 ? 0 : std::ssize(tensor.bytes) / rows;
}

/// The last rows of a tensor of the call.
std::optional<Tensor> last_rows(const StepPlace& place, int layer, std::string_view name) {
    const Tensor* found = place.theirs.tensor(place.call, layer, name);
    if (found == nullptr || found->shape.front() < place.rows) return std::nullopt;
    return row_range(*found, found->shape.front() - place.rows, place.rows);
}

}  // namespace

template <class T>
Tensor tensor_of(std::vector<int64_t> shape, const std::vector<T>& values) {
    Tensor tensor = make_tensor("", element_type_name<T>, std::move(shape));
    if (!values.empty()) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
    return tensor;
}
template Tensor tensor_of(std::vector<int64_t>, const std::vector<float>&);
template Tensor tensor_of(std::vector<int64_t>, const std::vector<Bf16>&);
template Tensor tensor_of(std::vector<int64_t>, const std::vector<E8m0>&);
template Tensor tensor_of(std::vector<int64_t>, const std::vector<uint8_t>&);
template Tensor tensor_of(std::vector<int64_t>, const std::vector<int32_t>&);
template Tensor tensor_of(std::vector<int64_t>, const std::vector<int64_t>&);

Tensor row_range(const Tensor& tensor, int64_t first, int64_t count) {
    Tensor rows{tensor.type, tensor.shape, {}};
    rows.shape.front() = count;
    const auto begin = tensor.bytes.begin() + first * row_bytes(tensor);
    rows.bytes.assign(begin, begin + count * row_bytes(tensor));
    return rows;
}

void append_rows(Tensor& whole, const Tensor& part) {
    whole.shape.front() += part.shape.front();
    whole.bytes.insert(whole.bytes.end(), part.bytes.begin(), part.bytes.end());
}

Origin traced(std::string name) {
    return [name = std::move(name)](const StepPlace& place) { return last_rows(place, place.layer, name); };
}

Origin traced_of(std::string name, int (*layer)(const StepPlace&)) {
    return [name = std::move(name), layer](const StepPlace& place) -> std::optional<Tensor> {
        const int of = layer(place);
        if (of < 0) return std::nullopt;
        return last_rows(place, of, name);
    };
}

Origin traced_row(std::string name) {
    return [name = std::move(name)](const StepPlace& place) -> std::optional<Tensor> {
        const Tensor* found = place.theirs.tensor(place.call, place.layer, name);
        if (found == nullptr || found->shape.front() < place.rows) return std::nullopt;
        Tensor row = row_range(*found, found->shape.front() - place.rows + place.row, 1);
        row.shape.erase(row.shape.begin());
        return row;
    };
}

Origin link_before() {
    return [](const StepPlace& place) { return std::optional<Tensor>(*place.link); };
}

Tensor weight_tensor(const TensorSource& weights, const std::string& name) {
    const TensorSpec& spec = weights.spec(name);
    Tensor tensor{std::string(safetensors_name(spec.type)), spec.shape, {}};
    const auto take = [&](const auto& values) {
        const auto bytes = std::as_bytes(values);
        tensor.bytes.assign(bytes.begin(), bytes.end());
    };
    switch (spec.type) {
        case TensorType::f32: take(weights.values<float>(name)); break;
        case TensorType::bf16: take(weights.values<Bf16>(name)); break;
        case TensorType::f8_e4m3: take(weights.values<E4m3>(name)); break;
        case TensorType::f8_e8m0: take(weights.values<E8m0>(name)); break;
        case TensorType::i8_e2m1: take(weights.values<uint8_t>(name)); break;
    }
    return tensor;
}

std::string layer_weight_name(const StepPlace& place, std::string_view name) {
    return fmt::format("layers.{}.{}", place.layer + place.reading.weight_layers, name);
}

Origin layer_weight(std::string name) {
    return [name = std::move(name)](const StepPlace& place) {
        return std::optional(weight_tensor(place.weights, layer_weight_name(place, name)));
    };
}

Origin model_weight(std::string name) {
    return [name = std::move(name)](const StepPlace& place) {
        return std::optional(weight_tensor(place.weights, name));
    };
}

Origin shaped(Origin origin, Widths widths) {
    return [origin = std::move(origin),
            widths = std::move(widths)](const StepPlace& place) -> std::optional<Tensor> {
        std::optional<Tensor> tensor = origin(place);
        if (!tensor) return tensor;
        std::vector<int64_t> shape = widths(place.config());
        int64_t width = 1;
        for (const int64_t extent : shape) width *= extent;
        shape.insert(shape.begin(), tensor->elements() / width);
        tensor->shape = std::move(shape);
        return tensor;
    };
}

Origin flat(Origin origin) {
    return [origin = std::move(origin)](const StepPlace& place) -> std::optional<Tensor> {
        std::optional<Tensor> tensor = origin(place);
        if (!tensor) return tensor;
        int64_t width = 1;
        for (size_t i = 1; i < tensor->shape.size(); ++i) width *= tensor->shape[i];
        tensor->shape = {tensor->shape.front(), width};
        return tensor;
    };
}

Origin positions() {
    return [](const StepPlace& place) {
        std::vector<int64_t> values;
        for (int64_t i = 0; i < place.rows; ++i) values.push_back(place.where().end() - place.rows + i);
        return std::optional(tensor_of({place.rows}, values));
    };
}

Origin no_images() {
    return
        [](const StepPlace& place) { return std::optional(make_tensor("image_rows", "U8", {place.rows})); };
}

ParameterText fixed(std::string text) {
    return [text = std::move(text)](const StepPlace&) { return text; };
}

std::string norm_eps_text(const StepPlace& place) {
    return fmt::format("eps={}", place.config().rms_norm_eps);
}

int64_t first_group(const TracedCall& call, int64_t ratio, int64_t groups) {
    return visible_groups(call.end() - 1, ratio) - groups;
}

std::optional<Tensor> source_rows(const StepPlace& place, int source, std::string_view name, int64_t count) {
    const int64_t ratio = place.roles[static_cast<size_t>(source)].compress_ratio;
    std::optional<Tensor> all;
    for (size_t call = 0; call <= place.call; ++call) {
        const Tensor* part = place.theirs.tensor(call, source, name);
        if (part == nullptr) continue;
        const int64_t have = all ? all->shape.front() : 0;
        // A call that a trace does not have leaves a gap that nothing fills.
        if (first_group(place.theirs.calls()[call], ratio, part->shape.front()) != have) return std::nullopt;
        if (all)
            append_rows(*all, *part);
        else
            all = *part;
    }
    if (!all || all->shape.front() < count) return std::nullopt;
    return row_range(*all, 0, count);
}

}  // namespace touchstone
