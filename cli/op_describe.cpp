// touchstone op --list and --describe: the registry as text and JSON.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/op.h"
#include "cli/output.h"
#include "cli/table.h"
#include "reference/numerics/sum_order.h"

namespace touchstone::cli {

namespace {

using nlohmann::json;

std::string kind_name(ParameterKind kind) {
    return kind == ParameterKind::integer ? "integer" : kind == ParameterKind::real ? "real" : "choice";
}

std::string limits_text(const Parameter& parameter) {
    if (parameter.kind == ParameterKind::choice) return fmt::format("{}", fmt::join(parameter.choices, ", "));
    std::string text = fmt::format("{} to {}", parameter.low, parameter.high);
    if (parameter.multiple_of != 1) text += fmt::format(", a multiple of {}", parameter.multiple_of);
    return text;
}

Table parameters_table(const OperatorInfo& info) {
    Table table({"parameter", "default", "limits", "meaning"});
    for (const Parameter& parameter : info.parameters)
        table.add_row({parameter.name, parameter.initial, limits_text(parameter), parameter.meaning});
    table.add_row({std::string("seed"), std::string("7"), std::string("from 0"),
                   std::string("of a case's inputs, whatever the operator")});
    return table;
}

std::string meaning_of(const Slot& slot) {
    std::string text = slot.meaning;
    if (!slot.low.empty())
        text += fmt::format("; {} to {}", slot.low == "0 - 1" ? "-1" : slot.low, slot.high);
    if (slot.when != "1") text += fmt::format(" (where {} is not 0)", slot.when);
    return text;
}

Table inputs_table(const OperatorInfo& info) {
    Table table({"input", "type", "shape", "meaning"});
    for (const Slot& slot : info.inputs) table.add_row({slot.name, slot.type, slot.shape, meaning_of(slot)});
    return table;
}

Table outputs_table(const OperatorInfo& info) {
    Table table({"output", "type", "shape", "against truth", "meaning"});
    for (const OutputSlot& slot : info.outputs)
        table.add_row({slot.name, slot.type, slot.shape, judged_text(slot), meaning_of(slot)});
    return table;
}

Table cases_table(const OperatorInfo& info) {
    Table table({"case", "what it trips"});
    for (const OperatorCase& one : info.cases)
        table.add_row({one.text, one.limit.empty() ? std::string("-") : one.limit});
    return table;
}

/// Rows of the split and lane table; those that the parameter `sum` chooses from are not repeated.
std::string sums_text(const OperatorInfo& info) {
    std::string text;
    for (const SumOperator op : info.sums) {
        const SumOrderRow& row = sum_order_row(op);
        text += fmt::format("  - {}: {}; {}, L = {}\n", row.name, row.terms,
                            lane_arrangement_name(row.arrangement), row.lanes);
    }
    for (const Parameter& parameter : info.parameters)
        if (parameter.name == "sum") text += "  - the row of the split and lane table that `sum` names\n";
    return text.empty() ? "" : "\nSums of floats\n" + text;
}

json slot_json(const Slot& slot) {
    return {{"name", slot.name}, {"type", slot.type}, {"shape", slot.shape}, {"meaning", slot.meaning},
            {"when", slot.when}, {"low", slot.low},   {"high", slot.high}};
}

json description(const OperatorInfo& info) {
    json object = {{"name", info.name},       {"purpose", info.purpose},     {"equation", info.equation},
                   {"source", info.source},   {"roundings", info.roundings}, {"profiles", json::array()},
                   {"inputs", json::array()}, {"outputs", json::array()},    {"parameters", json::array()},
                   {"sums", json::array()},   {"cases", json::array()}};
    for (const Arithmetic profile : info.profiles) object["profiles"].push_back(arithmetic_name(profile));
    for (const Slot& slot : info.inputs) object["inputs"].push_back(slot_json(slot));
    for (const OutputSlot& slot : info.outputs) {
        json output = slot_json(slot);
        output["against_truth"] = judged_text(slot);
        object["outputs"].push_back(output);
    }
    for (const Parameter& parameter : info.parameters)
        object["parameters"].push_back({{"name", parameter.name},
                                        {"kind", kind_name(parameter.kind)},
                                        {"default", parameter.initial},
                                        {"low", parameter.low},
                                        {"high", parameter.high},
                                        {"multiple_of", parameter.multiple_of},
                                        {"choices", parameter.choices},
                                        {"meaning", parameter.meaning}});
    for (const SumOperator op : info.sums) object["sums"].push_back(sum_order_row(op).name);
    for (const OperatorCase& one : info.cases)
        object["cases"].push_back({{"case", one.text}, {"limit", one.limit}});
    return object;
}

}  // namespace

std::string profiles_text(const OperatorInfo& info) {
    std::string text, others;
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper}) {
        const Arithmetic profile = profile_of(info, arithmetic);
        if (profile == arithmetic)
            text += fmt::format("{}{}", text.empty() ? "" : ", ", arithmetic_name(arithmetic));
        else
            others += fmt::format("; {} gives the bits of {}", arithmetic_name(arithmetic),
                                  arithmetic_name(profile));
    }
    return info.profiles.size() == 1 ? "the same bits in exact, hopper and released_hopper" : text + others;
}

std::string shape_string(const std::vector<int64_t>& shape) {
    return fmt::format("[{}]", fmt::join(shape, ", "));
}

void list_operators(const OutputFormat& output) {
    if (output.json) {
        json object = {{"schema", "touchstone.op_list/1"}, {"operators", json::array()}};
        for (const OperatorInfo& info : operators()) object["operators"].push_back(description(info));
        return write_result(to_text(object));
    }
    Table table({"operator", "purpose", "profiles", "cases", "source"});
    for (const OperatorInfo& info : operators()) {
        std::vector<std::string_view> names;
        for (const Arithmetic profile : info.profiles) names.push_back(arithmetic_name(profile));
        table.add_row({info.name, info.purpose, fmt::format("{}", fmt::join(names, " ")),
                       std::ssize(info.cases), info.source});
    }
    write_result(output.csv ? table.csv() : table.text());
}

void describe_operator(const OperatorInfo& info, const OutputFormat& output) {
    if (output.json) {
        json object = description(info);
        object["schema"] = "touchstone.op_describe/1";
        return write_result(to_text(object));
    }
    if (output.csv) return write_result(parameters_table(info).csv());
    std::string text =
        fmt::format("{}: {}\n  {}\n  source: {}\n\n", info.name, info.purpose, info.equation, info.source);
    text +=
        parameters_table(info).text() + "\n" + inputs_table(info).text() + "\n" + outputs_table(info).text();
    if (!info.roundings.empty()) text += "\nRounding points\n";
    for (size_t i = 0; i < info.roundings.size(); ++i)
        text += fmt::format("  {}. {}\n", i + 1, info.roundings[i]);
    text +=
        sums_text(info) + fmt::format("\nArithmetic: {}; truth and ideal in double\n\n", profiles_text(info));
    write_result(text + cases_table(info).text());
}

}  // namespace touchstone::cli
