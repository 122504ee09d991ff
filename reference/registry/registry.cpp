#include "reference/registry/registry.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "reference/io/user_error.h"
#include "reference/registry/families.h"
#include "reference/registry/shape_text.h"

namespace touchstone {

namespace {

std::vector<OperatorInfo> make_registry() {
    std::vector<OperatorInfo> all;
    for (const auto family :
         {quantize_operators, norm_and_rope_operators, linear_operators, compressor_operators,
          indexer_operators, selection_operators, attention_operators, hyper_connection_operators,
          expert_operators, engram_operators, sampling_operators})
        std::ranges::move(family(), std::back_inserter(all));
    return all;
}

Lookup lookup_in(const Parameters& parameters) {
    return [&parameters](std::string_view name) { return parameters[name]; };
}

bool exists(const Slot& slot, const Parameters& parameters) {
    return evaluate(slot.when, lookup_in(parameters)) != 0;
}

std::string slot_list(const OperatorInfo& info, const Parameters& parameters) {
    std::string text;
    for (const Slot* slot : input_slots(info, parameters))
        text += fmt::format("{}{}", text.empty() ? "" : ", ", slot->name);
    return text;
}

/// Indices have to be in range before anybody follows them, in double too.
void require_in_limits(const OperatorInfo& info, const Parameters& parameters, const Slot& slot,
                       const Tensor& tensor) {
    if (slot.low.empty()) return;
    const Lookup lookup = lookup_in(parameters);
    const int64_t low = evaluate(slot.low, lookup), high = evaluate(slot.high, lookup);
    for (int64_t i = 0; i < tensor.elements(); ++i) {
        const auto at = static_cast<size_t>(i);
        const int64_t value = tensor.type == "I64" ? tensor.view<int64_t>()[at] : tensor.view<int32_t>()[at];
        if (value >= low && value <= high) continue;
        throw UserError({fmt::format("tensor \"{}\": element {} is {}", slot.name, i, value), info.name,
                         fmt::format("{} to {} = {}", low, high, slot.high),
                         "see touchstone op --describe " + info.name});
    }
}

/// The inputs as the operator gets them: checked, and empty tensors where none was needed.
TensorMap checked_inputs(const OperatorInfo& info, const Parameters& parameters, const TensorMap& inputs) {
    TensorMap result;
    for (const Slot* slot : input_slots(info, parameters)) {
        const std::vector<int64_t> shape = shape_of(*slot, parameters);
        const std::string expected = fmt::format("{} = {}", describe(slot->type, shape), slot->shape);
        const auto found = inputs.find(slot->name);
        if (found == inputs.end()) {
            if (std::ranges::find(shape, 0) == shape.end())
                throw UserError({fmt::format("tensor \"{}\" is missing", slot->name), info.name, expected,
                                 fmt::format("{} takes {}", info.name, slot_list(info, parameters))});
            result[slot->name] = make_tensor(slot->name, slot->type, shape);
            continue;
        }
        const Tensor& tensor = found->second;
        if (tensor.type != slot->type || tensor.shape != shape)
            throw UserError(
                {fmt::format("tensor \"{}\" is {}", slot->name, describe(tensor.type, tensor.shape)),
                 info.name, expected,
                 tensor.type != slot->type ? fmt::format("store it as {}", slot->type)
                                           : fmt::format("see touchstone op --describe {}", info.name)});
        require_in_limits(info, parameters, *slot, tensor);
        result[slot->name] = tensor;
    }
    for (const auto& [name, tensor] : inputs) {
        if (result.contains(name)) continue;
        std::vector<std::string> names;
        for (const auto& entry : result) names.push_back(entry.first);
        const std::string near = did_you_mean(name, names);
        throw UserError({fmt::format("tensor \"{}\" is no input", name), info.name,
                         slot_list(info, parameters),
                         near.empty() ? "leave it out" : fmt::format("did you mean \"{}\"?", near)});
    }
    return result;
}

double difference(double a, double b) {
    if ((std::isnan(a) && std::isnan(b)) || a == b) return 0;
    const double error = std::abs(a - b);
    return std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
}

/// The largest finite magnitude.
double largest_magnitude(std::span<const double> values) {
    double largest = 0;
    for (const double value : values)
        if (std::isfinite(value)) largest = std::max(largest, std::abs(value));
    return largest;
}

Comparison compare(const OutputSlot& slot, const Tensor& output, std::span<const double> truth,
                   std::span<const double> bound) {
    Comparison result{&slot};
    const double tolerance = slot.judged == Judged::tolerance ? slot.tolerance * largest_magnitude(truth) : 0;
    for (size_t i = 0; i < truth.size(); ++i) {
        const double error = difference(element_as_double(output, static_cast<int64_t>(i)), truth[i]);
        if (error == 0) continue;
        const double allowed = slot.judged == Judged::bound ? bound[i] : tolerance;
        // A bound of NaN allows nothing.
        const double share = allowed > 0 ? error / allowed : std::numeric_limits<double>::infinity();
        if (!(share > result.share)) {
            result.largest_error = std::max(result.largest_error, error);
            continue;
        }
        result.share = share;
        result.index = static_cast<int64_t>(i);
        result.largest_error = std::max(result.largest_error, error);
    }
    return result;
}

}  // namespace

std::span<const OperatorInfo> operators() {
    static const std::vector<OperatorInfo> all = make_registry();
    return all;
}

const OperatorInfo& find_operator(std::string_view name) {
    std::vector<std::string> names;
    for (const OperatorInfo& info : operators()) {
        if (info.name == name) return info;
        names.push_back(info.name);
    }
    const std::string near = did_you_mean(name, names);
    throw UserError({fmt::format("unknown operator \"{}\"", name), "",
                     fmt::format("{}", fmt::join(names, ", ")),
                     near.empty() ? "see touchstone op --list" : fmt::format("did you mean \"{}\"?", near)});
}

std::vector<const Slot*> input_slots(const OperatorInfo& info, const Parameters& parameters) {
    std::vector<const Slot*> slots;
    for (const Slot& slot : info.inputs)
        if (exists(slot, parameters)) slots.push_back(&slot);
    return slots;
}

std::vector<const OutputSlot*> output_slots(const OperatorInfo& info, const Parameters& parameters) {
    std::vector<const OutputSlot*> slots;
    for (const OutputSlot& slot : info.outputs)
        if (exists(slot, parameters)) slots.push_back(&slot);
    return slots;
}

std::vector<int64_t> shape_of(const Slot& slot, const Parameters& parameters) {
    return evaluate_shape(slot.shape, lookup_in(parameters));
}

TensorMap make_inputs(const OperatorInfo& info, const Parameters& parameters) {
    TensorMap tensors;
    CaseInputs inputs{parameters, tensors, {}};
    for (size_t i = 0; i < info.inputs.size(); ++i) inputs.streams[info.inputs[i].name] = i + 1;
    for (const Slot* slot : input_slots(info, parameters))
        tensors[slot->name] = make_tensor(slot->name, slot->type, shape_of(*slot, parameters));
    info.make_inputs(inputs);
    return tensors;
}

TensorMap run_operator(const OperatorInfo& info, Arithmetic arithmetic, const Parameters& parameters,
                       const TensorMap& inputs) {
    const TensorMap checked = checked_inputs(info, parameters, inputs);
    TensorMap outputs;
    for (const OutputSlot* slot : output_slots(info, parameters))
        outputs[slot->name] =
            make_tensor(slot->name, slot->type, shape_of(*slot, parameters), std::byte{0xFF});
    info.run(arithmetic, {parameters, checked, outputs});
    return outputs;
}

namespace {

/// No element in any tensor: nothing to judge, and Eigen would offset null pointers of empty matrices.
bool nothing_in(const TensorMap& tensors) {
    return std::ranges::all_of(tensors, [](const auto& entry) { return entry.second.bytes.empty(); });
}

}  // namespace

TensorMap judge_operator(const OperatorInfo& info, const truth::Ledger& ledger, const Parameters& parameters,
                         const TensorMap& inputs) {
    const TensorMap checked = checked_inputs(info, parameters, inputs);
    TensorMap outputs;
    for (const OutputSlot* slot : output_slots(info, parameters))
        if (slot->judged != Judged::not_judged)
            outputs[slot->name] =
                make_tensor(slot->name, "F64", shape_of(*slot, parameters), std::byte{0xFF});
    if (!nothing_in(outputs)) info.judge(ledger, {parameters, checked, outputs});
    return outputs;
}

std::vector<Comparison> compare_with_truth(const OperatorInfo& info, Arithmetic arithmetic,
                                           const Parameters& parameters, const TensorMap& inputs,
                                           const TensorMap& outputs, const TensorMap& truth) {
    TensorMap bounds;
    for (const OutputSlot* slot : output_slots(info, parameters))
        if (slot->judged == Judged::bound)
            bounds[slot->name] = make_tensor(slot->name, "F64", shape_of(*slot, parameters), std::byte{0xFF});
    const TensorMap checked = checked_inputs(info, parameters, inputs);
    if (!nothing_in(bounds)) info.bound(profile_of(info, arithmetic), {parameters, checked, bounds}, truth);
    std::vector<Comparison> result;
    for (const OutputSlot* slot : output_slots(info, parameters)) {
        if (slot->judged == Judged::not_judged) continue;
        const auto bound = bounds.find(slot->name);
        result.push_back(compare(
            *slot, outputs.find(slot->name)->second, truth.find(slot->name)->second.view<double>(),
            bound == bounds.end() ? std::span<const double>() : std::as_const(bound->second).view<double>()));
    }
    return result;
}

Arithmetic profile_of(const OperatorInfo& info, Arithmetic arithmetic) {
    const auto has = [&](Arithmetic a) { return std::ranges::find(info.profiles, a) != info.profiles.end(); };
    if (arithmetic == Arithmetic::released_hopper && !has(arithmetic)) arithmetic = Arithmetic::hopper;
    if (arithmetic == Arithmetic::hopper && !has(arithmetic)) arithmetic = Arithmetic::exact;
    return arithmetic;
}

std::string judged_text(const OutputSlot& slot) {
    switch (slot.judged) {
        case Judged::equal: return "equal";
        case Judged::bound: return "derived bound";
        case Judged::tolerance: return fmt::format("{} of the largest", slot.tolerance);
        case Judged::not_judged: break;
    }
    return "not judged";
}

}  // namespace touchstone
