#include "golden/store/operator_json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reference/registry/registry.h"

namespace touchstone {

namespace {

template <class Range, class Write>
std::string array_of(const Range& range, const Write& write) {
    std::vector<std::string> entries;
    for (const auto& entry : range) entries.push_back(write(entry));
    return fmt::format("[{}]", fmt::join(entries, ", "));
}

std::string_view kind_name(ParameterKind kind) {
    return kind == ParameterKind::integer ? "integer" : kind == ParameterKind::real ? "real" : "choice";
}

std::string parameter_json(const Parameter& parameter) {
    return fmt::format(R"({{"choices": {}, "default": {}, "high": {}, "kind": {}, "low": {}, "meaning": {}, )"
                       R"("multiple_of": {}, "name": {}}})",
                       array_of(parameter.choices, json_string), json_string(parameter.initial),
                       json_string(parameter.high), json_string(kind_name(parameter.kind)),
                       json_string(parameter.low), json_string(parameter.meaning), parameter.multiple_of,
                       json_string(parameter.name));
}

/// `first`: keys that sort before the slot's own.
std::string slot_json(const Slot& slot, const std::string& first) {
    return fmt::format(
        R"({{{}"high": {}, "low": {}, "meaning": {}, "name": {}, "shape": {}, "type": {}, "when": {}}})",
        first, json_string(slot.high), json_string(slot.low), json_string(slot.meaning),
        json_string(slot.name), json_string(slot.shape), json_string(slot.type), json_string(slot.when));
}

std::string output_json(const OutputSlot& slot) {
    return slot_json(slot, fmt::format("\"against_truth\": {}, ", json_string(judged_text(slot))));
}

}  // namespace

std::string json_string(std::string_view text) {
    std::string quoted = "\"";
    for (const char c : text) {
        if (static_cast<unsigned char>(c) < 0x20) {
            quoted += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
            continue;
        }
        if (c == '"' || c == '\\') quoted += '\\';
        quoted += c;
    }
    return quoted + '"';
}

std::string operator_json(const OperatorInfo& info) {
    const auto case_json = [](const OperatorCase& one) {
        return fmt::format(R"({{"case": {}, "limit": {}}})", json_string(one.text), json_string(one.limit));
    };
    const auto profile_json = [](Arithmetic profile) { return json_string(arithmetic_name(profile)); };
    return fmt::format(R"({{"cases": {}, "equation": {}, "inputs": {}, "name": {}, "outputs": {}, )"
                       R"("parameters": {}, "profiles": {}, "purpose": {}, )"
                       R"("roundings": {}, "schema": "touchstone.operator/1", "source": {}}})",
                       array_of(info.cases, case_json), json_string(info.equation),
                       array_of(info.inputs, [](const Slot& slot) { return slot_json(slot, ""); }),
                       json_string(info.name), array_of(info.outputs, output_json),
                       array_of(info.parameters, parameter_json), array_of(info.profiles, profile_json),
                       json_string(info.purpose), array_of(info.roundings, json_string),
                       json_string(info.source));
}

}  // namespace touchstone
