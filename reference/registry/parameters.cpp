#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "reference/io/user_error.h"
#include "reference/registry/case_text.h"
#include "reference/registry/registry.h"
#include "reference/registry/shape_text.h"

namespace touchstone {

namespace {

template <class T>
const T& value_of(const Parameters& parameters, std::string_view name) {
    const auto found = parameters.values.find(name);
    if (found != parameters.values.end())
        if (const T* value = std::get_if<T>(&found->second)) return *value;
    fmt::print(stderr, "touchstone: no parameter \"{}\" of that kind\n", name);
    std::abort();
}

double decimal(const std::string& text) {
    return std::strtod(text.c_str(), nullptr);
}

std::string value_text(const Parameters& parameters, const std::string& name) {
    return std::visit(
        [](const auto& value) {
            if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>)
                return value;
            else
                return fmt::format("{}", value);
        },
        parameters.values.find(name)->second);
}

int64_t checked_integer(const Parameter& parameter, int64_t value, const Lookup& lookup,
                        const CaseText& text) {
    const int64_t low = evaluate(parameter.low, lookup), high = evaluate(parameter.high, lookup);
    if (value < low || value > high || value % parameter.multiple_of != 0)
        text.refuse(
            fmt::format("{} is {}", parameter.name, value),
            fmt::format(
                "a whole number from {} to {}{}", low, high,
                parameter.multiple_of == 1 ? "" : fmt::format(", a multiple of {}", parameter.multiple_of)));
    return value;
}

/// Takes the parameter from the text, or from `inferred`, or its default.
void take(const Parameter& parameter, CaseText& text, const std::map<std::string, int64_t>& inferred,
          ParsedCase& result) {
    Parameters& parameters = result.parameters;
    const Lookup lookup = [&](std::string_view name) { return parameters[name]; };
    const bool given = text.has(parameter.name);
    const auto found = inferred.find(parameter.name);
    switch (parameter.kind) {
        case ParameterKind::integer: {
            int64_t value = 0;
            if (given)
                value = text.take_integer(parameter.name, 0, int64_t{1} << 62);
            else
                value = found != inferred.end() ? found->second : evaluate(parameter.initial, lookup);
            parameters.values[parameter.name] = checked_integer(parameter, value, lookup, text);
            if (given && found != inferred.end() && found->second != value)
                text.refuse(fmt::format("{}={}, but a tensor says {}", parameter.name, value, found->second),
                            "tensors of the case's shape");
            break;
        }
        case ParameterKind::real:
            parameters.values[parameter.name] =
                given ? text.take_real(parameter.name, decimal(parameter.low), decimal(parameter.high))
                      : decimal(parameter.initial);
            break;
        case ParameterKind::choice: {
            const std::string value = given ? text.take_text(parameter.name) : parameter.choices.front();
            if (std::ranges::find(parameter.choices, value) == parameter.choices.end())
                text.refuse(fmt::format("{}={}", parameter.name, value),
                            fmt::format("one of {}", fmt::join(parameter.choices, ", ")));
            parameters.values[parameter.name] = value;
        }
    }
    if (!given && found == inferred.end())
        result.assumed.push_back(
            fmt::format("{}={}", parameter.name, value_text(parameters, parameter.name)));
}

ParsedCase parsed(const OperatorInfo& info, CaseText& text, const std::map<std::string, int64_t>& inferred) {
    ParsedCase result{&info, {}, {}};
    for (const Parameter& parameter : info.parameters) take(parameter, text, inferred, result);
    if (text.has("seed"))
        result.parameters.seed = static_cast<uint64_t>(text.take_integer("seed", 0, int64_t{1} << 62));
    else
        result.assumed.push_back(fmt::format("seed={}", result.parameters.seed));
    text.require_all_taken();
    return result;
}

}  // namespace

int64_t Parameters::operator[](std::string_view name) const {
    return value_of<int64_t>(*this, name);
}

float Parameters::real(std::string_view name) const {
    return static_cast<float>(value_of<double>(*this, name));
}

const std::string& Parameters::choice(std::string_view name) const {
    return value_of<std::string>(*this, name);
}

ParsedCase parse_case(std::string_view text, const std::string& where) {
    CaseText parts(text, where);
    return parsed(find_operator(parts.name()), parts, {});
}

std::string case_text(const OperatorInfo& info, const Parameters& parameters) {
    std::string text = info.name + "(";
    for (const Parameter& parameter : info.parameters)
        text += fmt::format("{}={},", parameter.name, value_text(parameters, parameter.name));
    return text + fmt::format("seed={})", parameters.seed);
}

ParsedCase parse_tensors(const OperatorInfo& info, const TensorMap& tensors, std::string_view text,
                         const std::string& where) {
    std::map<std::string, int64_t> inferred;
    std::map<std::string, std::string> said_by;
    for (const Slot& slot : info.inputs) {
        const auto tensor = tensors.find(slot.name);
        const std::vector<std::string> extents = extents_of(slot.shape);
        if (tensor == tensors.end() || tensor->second.shape.size() != extents.size()) continue;
        for (size_t i = 0; i < extents.size(); ++i) {
            if (!is_identifier(extents[i])) continue;
            const int64_t extent = tensor->second.shape[i];
            const auto [entry, fresh] = inferred.emplace(extents[i], extent);
            if (fresh) said_by[extents[i]] = slot.name;
            if (entry->second != extent)
                throw UserError({fmt::format("tensor \"{}\": {} is {}", slot.name, extents[i], extent), where,
                                 fmt::format("{}, as in \"{}\"", entry->second, said_by[extents[i]]),
                                 fmt::format("\"{}\" is {}", slot.name, slot.shape)});
        }
    }
    CaseText parts(text.empty() ? info.name + "()" : std::string(text), where);
    if (parts.name() != info.name) parts.refuse("another operator", info.name);
    return parsed(info, parts, inferred);
}

}  // namespace touchstone
