// touchstone bisect on traces: the report, as text and as JSON.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "cli/bisect.h"
#include "cli/output.h"
#include "cli/table.h"

namespace touchstone::cli {

namespace {

using nlohmann::json;

/// In the order of StepVerdict: for a table, and for JSON.
constexpr std::array<std::string_view, 7> verdict_words{
    "given", "right", "right, rounding", "right, ties", "follows from one above", "MADE HERE", "unseen"};
constexpr std::array<std::string_view, 7> verdict_keys{"given",     "same_bits", "rounding", "ties",
                                                       "inherited", "made_here", "unseen"};

std::string_view verdict_word(const TensorReport& report) {
    return report.traced ? verdict_words[static_cast<size_t>(report.step.verdict)] : "not in the trace";
}

std::string against_text(const TensorReport& report) {
    if (!report.against) return "-";
    if (report.against->equal()) return "the same bits";
    return fmt::format("{:.2e}{}", *relative_error(report), report.beyond_rounding ? "" : ", rounding");
}

std::string error_text(const TensorReport& report) {
    const StepVerdict verdict = report.step.verdict;
    if (verdict == StepVerdict::unseen || verdict == StepVerdict::given)
        return report.traced ? report.step.why : "";
    if (report.step.difference.equal()) return "";
    return fmt::format("{:.2e}, {} of {} differ", std::sqrt(report.step.difference.normalised_mean_square),
                       grouped(report.step.difference.elements - report.step.difference.identical),
                       grouped(report.step.difference.elements));
}

int64_t count(const BisectResult& result, StepVerdict verdict) {
    return std::ranges::count_if(
        result.tensors, [&](const TensorReport& one) { return one.traced && one.step.verdict == verdict; });
}

std::string summary_text(const TraceQuestion& question, const BisectResult& result) {
    const auto traced = std::ranges::count_if(result.tensors, &TensorReport::traced);
    const int64_t right = count(result, StepVerdict::same_bits) + count(result, StepVerdict::rounding) +
                          count(result, StepVerdict::ties);
    std::string text = fmt::format(
        "{}: {} of {} tensors of the path in {} calls\n"
        "Steps, each from theirs' own tensors: {} right ({} to the bit), {} made here, {} follow from those, "
        "{} "
        "unseen\n",
        question.theirs, traced, result.tensors.size(), question.calls.size(), right,
        count(result, StepVerdict::same_bits), result.made_here.size(), count(result, StepVerdict::inherited),
        count(result, StepVerdict::unseen));
    if (!question.unknown_names.empty())
        text += fmt::format("{} names are none of the path's: {}{}\n", question.unknown_names.size(),
                            fmt::join(question.unknown_names.begin(),
                                      question.unknown_names.begin() +
                                          std::min<int64_t>(std::ssize(question.unknown_names), 3),
                                      ", "),
                            question.unknown_names.size() > 3 ? ", .." : "");
    return text;
}

std::string reference_text(const TraceQuestion& question, const BisectResult& result) {
    if (!question.no_reference.empty()) return fmt::format("Reference: none, {}\n", question.no_reference);
    std::string text = question.reference.empty()
                           ? fmt::format("Reference: {}, run here\n", question.arithmetic)
                           : fmt::format("Reference: {}\n", question.reference);
    const auto line = [&](const char* what, const std::optional<size_t>& index) {
        if (!index) return fmt::format("{}: none\n", what);
        const TensorReport& report = result.tensors[*index];
        return fmt::format("{}: {} ({})\n", what, full_name(question.calls, report), against_text(report));
    };
    return text + line("First difference in a bit", result.first_bit) +
           line("First difference beyond rounding", result.first_beyond);
}

/// The layer of a report in its call, tensor by tensor.
std::string layer_table(const TraceQuestion& question, const BisectResult& result, const TensorReport& of) {
    Table table({"tensor", "against the reference", "its step", "from what the step gives"});
    for (const TensorReport& one : result.tensors)
        if (one.call == of.call && one.layer == of.layer)
            table.add_row({traced_name(one.layer, one.name), against_text(one),
                           std::string(verdict_word(one)), error_text(one)});
    const std::string where = of.layer < 0 ? "Outside layers" : fmt::format("Layer {}", of.layer);
    return fmt::format("\n{}, call at position {}\n{}", where, question.calls[of.call].first_position,
                       table.text());
}

std::string fault_text(const TraceQuestion& question, const BisectResult& result) {
    const TensorReport& report = result.tensors[result.made_here.front()];
    const StepDiagnosis& step = *result.diagnosis;
    std::string text = fmt::format(
        "\nMade here: {}, {}\n", full_name(question.calls, report),
        step.chain.empty() ? std::string("a copy") : fmt::format("{}", fmt::join(step.chain, " -> ")));
    const FirstStep& first = step.diagnosis.first;
    if (!first.output.empty()) {
        text += fmt::format("First element: {}", index_text(first.index));
        if (first.k_block >= 0) text += fmt::format(", block {} of K", first.k_block);
        text += fmt::format(": {}\n", element_text(first.element, step.diagnosis_type));
    }
    text += cause_text(step.diagnosis);
    if (result.made_here.size() > 1) {
        text += "Made here too:";
        for (size_t i = 1; i < result.made_here.size() && i <= 12; ++i)
            text += " " + full_name(question.calls, result.tensors[result.made_here[i]]);
        if (result.made_here.size() > 13) text += fmt::format(" and {} more", result.made_here.size() - 13);
        text += "\n";
    }
    return text;
}

json report_json(const TraceQuestion& question, const TensorReport& report) {
    json object = {{"name", full_name(question.calls, report)}, {"traced", report.traced}};
    if (!report.traced) return object;
    object["step"] = verdict_keys[static_cast<size_t>(report.step.verdict)];
    if (report.step.verdict == StepVerdict::unseen) object["why"] = report.step.why;
    if (report.step.difference.elements > 0) object["from_step"] = difference_json(report.step.difference);
    if (report.against) {
        object["against_reference"] = difference_json(*report.against);
        object["against_reference"]["beyond_rounding"] = report.beyond_rounding;
    }
    return object;
}

json name_or_null(const TraceQuestion& question, const BisectResult& result,
                  const std::optional<size_t>& index) {
    return index ? json(full_name(question.calls, result.tensors[*index])) : json(nullptr);
}

json fault_json(const TraceQuestion& question, const BisectResult& result) {
    const StepDiagnosis& step = *result.diagnosis;
    json object = diagnosis_json(step.diagnosis);
    object["tensor"] = full_name(question.calls, result.tensors[result.made_here.front()]);
    object["chain"] = step.chain;
    object["operator"] = step.operator_name;
    object["case"] = step.case_line;
    object["row"] = step.row;
    if (!step.diagnosis.first.output.empty())
        object["first"] =
            element_json(step.diagnosis.first.element, step.diagnosis.first.index, step.diagnosis_type);
    return object;
}

}  // namespace

std::string full_name(const std::vector<TracedCall>& calls, const TensorReport& report) {
    return calls[report.call].prefix + traced_name(report.layer, report.name);
}

std::string trace_text(const TraceQuestion& question, const BisectResult& result) {
    std::string text = summary_text(question, result) + reference_text(question, result);
    if (!result.diverges()) {
        text += result.first_beyond
                    ? "\nNo step made a mistake: what differs is rounding, and what followed from it\n"
                : count(result, StepVerdict::unseen) == 0
                    ? "\nNothing beyond rounding\n"
                    : "\nNothing beyond rounding in the steps that can be seen\n";
        if (result.first_beyond) text += layer_table(question, result, result.tensors[*result.first_beyond]);
        return text + assumptions_text(question.assumptions);
    }
    const TensorReport& at =
        result.tensors[result.made_here.empty() ? *result.suspect : result.made_here.front()];
    text += layer_table(question, result, at);
    if (result.made_here.empty())
        text += fmt::format("\nSuspect: {}, far from the reference; its step cannot be seen: {}\n",
                            full_name(question.calls, at), at.step.why);
    else
        text += fault_text(question, result);
    return text + assumptions_text(question.assumptions) + fmt::format("\n{}\n", question.again);
}

json trace_json(const TraceQuestion& question, const BisectResult& result) {
    json object = {{"schema", "touchstone.bisect/1"},
                   {"kind", "trace"},
                   {"theirs", question.theirs},
                   {"reference", question.reference},
                   {"no_reference", question.no_reference},
                   {"config", question.config},
                   {"arithmetic", question.arithmetic},
                   {"assumptions", question.assumptions},
                   {"unknown_names", question.unknown_names},
                   {"diverges", result.diverges()},
                   {"first_bit", name_or_null(question, result, result.first_bit)},
                   {"first_beyond_rounding", name_or_null(question, result, result.first_beyond)},
                   {"suspect", name_or_null(question, result, result.suspect)},
                   {"made_here", json::array()},
                   {"fault", nullptr},
                   {"tensors", json::array()}};
    for (const size_t index : result.made_here)
        object["made_here"].push_back(full_name(question.calls, result.tensors[index]));
    for (const TensorReport& report : result.tensors)
        object["tensors"].push_back(report_json(question, report));
    if (result.diagnosis) object["fault"] = fault_json(question, result);
    if (result.diverges()) object["reproduce"] = question.again;
    return object;
}

}  // namespace touchstone::cli
