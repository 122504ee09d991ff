// touchstone bisect on one operator: somebody's outputs against the reference's.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "cli/bisect.h"
#include "cli/op.h"
#include "cli/output.h"
#include "cli/table.h"
#include "cli/tensor_file.h"
#include "golden/bisect/row_search.h"
#include "reference/io/user_error.h"

namespace touchstone::cli {

namespace {

using nlohmann::json;

/// What was asked, the reference's answer and somebody's.
struct OperatorQuestion {
    ParsedCase what;
    Arithmetic arithmetic;
    TensorMap inputs, expected, got;
    std::vector<std::string> assumptions;
};

OperatorQuestion read_question(const BisectOptions& options) {
    OperatorQuestion question{
        {}, bit_exact_arithmetic(options.arithmetic.empty() ? "exact" : options.arithmetic), {}, {}, {}, {}};
    if (options.in.empty()) {
        question.what = parse_case(options.case_text, "--case");
        question.inputs = make_inputs(*question.what.info, question.what.parameters);
    } else {
        question.inputs = read_tensors(options.in);
        question.what = parse_tensors(find_operator(options.files.front()), question.inputs,
                                      options.case_text, options.in);
        std::erase_if(question.what.assumed, [](const std::string& one) {
            return one.starts_with("fill=") || one.starts_with("seed=");
        });
    }
    const OperatorInfo& info = *question.what.info;
    question.assumptions = question.what.assumed;
    if (options.arithmetic.empty() && info.profiles.size() > 1)
        question.assumptions.push_back("arithmetic=exact");
    question.expected = run_operator(info, question.arithmetic, question.what.parameters, question.inputs);
    question.got = read_tensors(options.files.back());
    return question;
}

bool nothing_to_compare(const OperatorQuestion& question) {
    return std::ranges::none_of(question.got,
                                [&](const auto& entry) { return question.expected.contains(entry.first); });
}

/// An output that both have.
struct ComparedOutput {
    const OutputSlot* slot;
    Difference difference;
    bool within_rounding;
};

std::vector<ComparedOutput> compare_outputs(const OperatorQuestion& question) {
    std::vector<ComparedOutput> compared;
    for (const OutputSlot* slot : output_slots(*question.what.info, question.what.parameters)) {
        const auto got = question.got.find(slot->name);
        if (got == question.got.end()) continue;
        const Tolerance rounding = rounding_tolerance(*slot);
        const Difference found =
            difference(view_of(question.expected.find(slot->name)->second), view_of(got->second), rounding);
        compared.push_back({slot, found, within(found, rounding)});
    }
    return compared;
}

std::string reproducer(const BisectOptions& options, const OperatorQuestion& question) {
    const std::string line = case_text(*question.what.info, question.what.parameters);
    std::string text = "touchstone bisect ";
    if (options.in.empty())
        text += fmt::format("--case {} {}", shell_word(line), shell_word(options.files.back()));
    else
        text += fmt::format("{} {} --in {} --case {}", options.files.front(),
                            shell_word(options.files.back()), shell_word(options.in), shell_word(line));
    return text + fmt::format(" --arithmetic {}", arithmetic_name(question.arithmetic));
}

/// Which rows the hypotheses were tried on, where not on all.
std::string searched_text(const RowDiagnosis& found) {
    std::string rows;
    for (const RowWindow& window : found.searched)
        rows += fmt::format("{}{} to {}", rows.empty() ? "" : " and ", window.first,
                            window.first + window.count - 1);
    return rows.empty() ? "" : fmt::format("Hypotheses were tried on rows {} alone\n", rows);
}

std::string result_text(const OperatorQuestion& question, const std::vector<ComparedOutput>& outputs,
                        const RowDiagnosis& found, const std::string& command) {
    const Diagnosis& diagnosis = found.diagnosis;
    std::string text =
        fmt::format("{}\nReference: {}\n\n", case_text(*question.what.info, question.what.parameters),
                    arithmetic_name(question.arithmetic));
    Table table({"output", "type", "shape", "differ", "largest error", "of the row's rms", "verdict"});
    for (const ComparedOutput& one : outputs)
        table.add_row({one.slot->name, one.slot->type,
                       shape_string(question.got.find(one.slot->name)->second.shape),
                       one.difference.elements - one.difference.identical,
                       fmt::format("{:.3g}", one.difference.largest_absolute),
                       fmt::format("{:.3g}", one.difference.largest_of_rms),
                       std::string(one.difference.equal() ? "the same bits"
                                   : one.within_rounding  ? "within rounding"
                                                          : "DIFFERS")});
    text += table.text();
    if (diagnosis.finding == Finding::equal) return text + assumptions_text(question.assumptions);
    const FirstStep& first = diagnosis.first;
    text += fmt::format("\nFirst difference: {}{}", first.output, index_text(first.index));
    if (first.k_block >= 0) text += fmt::format(", block {} of K", first.k_block);
    text += fmt::format(": {}\n", element_text(first.element, question.got.find(first.output)->second.type));
    text += cause_text(diagnosis) + searched_text(found) + assumptions_text(question.assumptions);
    return text + fmt::format("\n{}\n", command);
}

json result_json(const OperatorQuestion& question, const std::vector<ComparedOutput>& outputs,
                 const RowDiagnosis& found, const std::string& command) {
    const Diagnosis& diagnosis = found.diagnosis;
    json object = diagnosis_json(diagnosis);
    object["searched_rows"] = json::array();
    for (const RowWindow& window : found.searched)
        object["searched_rows"].push_back({window.first, window.first + window.count - 1});
    object["schema"] = "touchstone.bisect/1";
    object["kind"] = "operator";
    object["case"] = case_text(*question.what.info, question.what.parameters);
    object["arithmetic"] = arithmetic_name(question.arithmetic);
    object["assumptions"] = question.assumptions;
    object["outputs"] = json::array();
    for (const ComparedOutput& one : outputs) {
        json output = difference_json(one.difference);
        output["name"] = one.slot->name;
        output["within_rounding"] = one.within_rounding;
        object["outputs"].push_back(output);
    }
    if (diagnosis.finding == Finding::equal) return object;
    const FirstStep& first = diagnosis.first;
    object["first"] = element_json(first.element, first.index, question.got.find(first.output)->second.type);
    object["first"]["output"] = first.output;
    object["reproduce"] = command;
    return object;
}

}  // namespace

int bisect_operator(const BisectOptions& options) {
    const OperatorQuestion question = read_question(options);
    const OperatorInfo& info = *question.what.info;
    if (nothing_to_compare(question)) {
        std::string names;
        for (const OutputSlot& slot : info.outputs) names += (names.empty() ? "" : ", ") + slot.name;
        fmt::print(stderr, "touchstone: nothing to compare: {} has none of {}'s outputs ({})\n",
                   options.files.back(), info.name, names);
        return 3;
    }
    const OperatorRun run{info, question.arithmetic, question.what.parameters, question.inputs,
                          question.expected};
    const RowDiagnosis found = diagnose_rows(run, question.got);
    const Diagnosis& diagnosis = found.diagnosis;
    const std::vector<ComparedOutput> outputs = compare_outputs(question);
    const std::string command = reproducer(options, question);
    const bool fault = diagnosis.finding == Finding::named || diagnosis.finding == Finding::unknown;
    if (!options.dump.empty())
        write_tensors(options.dump, question.inputs, case_text(info, question.what.parameters));
    write_result(options.json ? to_text(result_json(question, outputs, found, command))
                              : result_text(question, outputs, found, command));
    return fault ? 1 : 0;
}

}  // namespace touchstone::cli
