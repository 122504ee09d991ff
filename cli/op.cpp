// touchstone op: one operator on a case's tensors or on given ones.
#include "cli/op.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>

#include "cli/output.h"
#include "cli/table.h"
#include "cli/tensor_file.h"
#include "reference/io/user_error.h"

namespace touchstone::cli {

namespace {

using nlohmann::json;

constexpr std::array arithmetic_names{"exact", "hopper", "released_hopper", "truth", "ideal"};

/// The bit-exact arithmetic of that name; none for truth and ideal.
std::optional<Arithmetic> bit_exact(const std::string& name) {
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper})
        if (name == arithmetic_name(arithmetic)) return arithmetic;
    if (name == "truth" || name == "ideal") return std::nullopt;
    throw UserError({fmt::format("unknown arithmetic \"{}\"", name), "--arithmetic",
                     fmt::format("{}", fmt::join(arithmetic_names, ", ")), ""});
}

/// What a run has given.
struct OpResult {
    ParsedCase what;
    std::string arithmetic;
    TensorMap outputs;
    std::vector<Comparison> against_truth;  ///< empty where nothing was compared
    std::vector<std::string> assumptions;
};

/// A tensor in a few numbers; NaN counts apart, and where every element is one the others are NaN.
struct Summary {
    double min = std::nan(""), max = std::nan(""), rms = 0;
    int64_t nan = 0;
};

Summary summary_of(const Tensor& tensor) {
    Summary summary;
    double squares = 0;
    for (int64_t i = 0; i < tensor.elements(); ++i) {
        const double x = element_as_double(tensor, i);
        if (std::isnan(x)) {
            ++summary.nan;
            continue;
        }
        summary.min = std::fmin(summary.min, x);
        summary.max = std::fmax(summary.max, x);
        squares += x * x;
    }
    const int64_t numbers = tensor.elements() - summary.nan;
    summary.rms = numbers == 0 ? std::nan("") : std::sqrt(squares / static_cast<double>(numbers));
    return summary;
}

std::vector<double> first_values(const Tensor& tensor) {
    std::vector<double> values;
    for (int64_t i = 0; i < std::min<int64_t>(tensor.elements(), 4); ++i)
        values.push_back(element_as_double(tensor, i));
    return values;
}

/// In the order of the operator's outputs.
std::vector<std::pair<std::string, const Tensor*>> ordered_outputs(const OpResult& result) {
    std::vector<std::pair<std::string, const Tensor*>> ordered;
    for (const OutputSlot& slot : result.what.info->outputs)
        if (const auto found = result.outputs.find(slot.name); found != result.outputs.end())
            ordered.emplace_back(slot.name, &found->second);
    return ordered;
}

Table outputs_table(const OpResult& result) {
    Table table({"output", "type", "shape", "min", "max", "rms", "NaN", "hash", "first values"});
    for (const auto& [name, stored] : ordered_outputs(result)) {
        const Tensor& tensor = *stored;
        const Summary summary = summary_of(tensor);
        const auto number = [](double x) { return fmt::format("{:.6g}", x); };
        table.add_row({name, tensor.type, shape_string(tensor.shape), number(summary.min),
                       number(summary.max), number(summary.rms), summary.nan,
                       fmt::format("{:016x}", tensor_hash(tensor)),
                       fmt::format("{:.6g}", fmt::join(first_values(tensor), " "))});
    }
    return table;
}

Table truth_table(const std::vector<Comparison>& comparisons) {
    Table table({"output", "allowed", "largest error", "share of it", "element"});
    for (const Comparison& found : comparisons)
        table.add_row({found.slot->name, judged_text(*found.slot), fmt::format("{:.3g}", found.largest_error),
                       fmt::format("{:.3g}{}", found.share, found.share > 1 ? " TOO FAR" : ""), found.index});
    return table;
}

json number_json(double x) {
    return std::isfinite(x) ? json(x) : json(fmt::format("{}", x));
}

json result_json(const OpResult& result) {
    json object = {{"schema", "touchstone.op/1"},
                   {"operator", result.what.info->name},
                   {"case", case_text(*result.what.info, result.what.parameters)},
                   {"arithmetic", result.arithmetic},
                   {"assumptions", result.assumptions},
                   {"outputs", json::array()},
                   {"against_truth", json::array()}};
    for (const auto& [name, stored] : ordered_outputs(result)) {
        const Tensor& tensor = *stored;
        const Summary summary = summary_of(tensor);
        json first = json::array();
        for (const double x : first_values(tensor)) first.push_back(number_json(x));
        object["outputs"].push_back({{"name", name},
                                     {"type", tensor.type},
                                     {"shape", tensor.shape},
                                     {"min", number_json(summary.min)},
                                     {"max", number_json(summary.max)},
                                     {"rms", number_json(summary.rms)},
                                     {"nan", summary.nan},
                                     {"hash", fmt::format("{:016x}", tensor_hash(tensor))},
                                     {"first", first}});
    }
    for (const Comparison& found : result.against_truth)
        object["against_truth"].push_back({{"name", found.slot->name},
                                           {"allowed", judged_text(*found.slot)},
                                           {"largest_error", number_json(found.largest_error)},
                                           {"share", number_json(found.share)},
                                           {"element", found.index}});
    return object;
}

std::string result_text(const OpResult& result) {
    const OperatorInfo& info = *result.what.info;
    std::string text = case_text(info, result.what.parameters) + "\n";
    text += fmt::format("{}\nArithmetic: {} ({})\n\n", info.equation, result.arithmetic, profiles_text(info));
    text += outputs_table(result).text();
    if (!result.against_truth.empty()) text += "\nAgainst truth\n" + truth_table(result.against_truth).text();
    return text + assumptions_text(result.assumptions);
}

void require_use(const OpOptions& options) {
    if (options.name.empty() && options.case_text.empty())
        throw UserError({"no operator", "touchstone op", "NAME, or --case", "see touchstone op --list"});
    if (options.case_text.empty() && options.in.empty())
        throw UserError(
            {"no inputs", "touchstone op", "--case C or --in F",
             fmt::format("for example --case '{}'", find_operator(options.name).cases.front().text)});
    if (!options.save_inputs.empty() && !options.in.empty())
        throw UserError({"--save-inputs beside --in", "touchstone op", "--save-inputs with a case alone",
                         "the inputs are in the file already"});
}

/// The case, and the tensors to run it on.
ParsedCase parse(const OpOptions& options, TensorMap& inputs) {
    if (options.in.empty()) {
        ParsedCase parsed = parse_case(options.case_text, "--case");
        if (!options.name.empty() && options.name != parsed.info->name)
            throw UserError(
                {fmt::format("a case of {}", parsed.info->name), "--case", "one of " + options.name, ""});
        inputs = make_inputs(*parsed.info, parsed.parameters);
        return parsed;
    }
    if (options.name.empty())
        throw UserError({"no operator", "--in", "NAME before it", "see touchstone op --list"});
    inputs = read_tensors(options.in);
    return parse_tensors(find_operator(options.name), inputs, options.case_text, options.in);
}

/// Given tensors have no use for these.
bool of_cases_alone(const std::string& assumption) {
    return assumption.starts_with("fill=") || assumption.starts_with("seed=");
}

OpResult run(const OpOptions& options) {
    const std::string name = options.arithmetic.empty() ? "exact" : options.arithmetic;
    const std::optional<Arithmetic> arithmetic = bit_exact(name);
    TensorMap inputs;
    OpResult result{parse(options, inputs), name, {}, {}, {}};
    const OperatorInfo& info = *result.what.info;
    const Parameters& parameters = result.what.parameters;
    result.assumptions = result.what.assumed;
    if (!options.in.empty()) std::erase_if(result.assumptions, of_cases_alone);
    if (options.arithmetic.empty() && info.profiles.size() > 1)
        result.assumptions.push_back("arithmetic=exact");
    if (!options.save_inputs.empty()) write_tensors(options.save_inputs, inputs, case_text(info, parameters));
    if (!arithmetic) {
        const truth::Ledger ledger = name == "truth" ? truth::Ledger::released() : truth::Ledger::none();
        result.outputs = judge_operator(info, ledger, parameters, inputs);
        return result;
    }
    result.outputs = run_operator(info, *arithmetic, parameters, inputs);
    if (options.in.empty()) {
        const TensorMap truth = judge_operator(info, truth::Ledger::released(), parameters, inputs);
        result.against_truth =
            compare_with_truth(info, *arithmetic, parameters, inputs, result.outputs, truth);
    }
    return result;
}

}  // namespace

int run_op(const OpOptions& options) {
    if (options.list) {
        list_operators(options.output);
        return 0;
    }
    if (options.describe) {
        describe_operator(find_operator(options.name), options.output);
        return 0;
    }
    require_use(options);
    const OpResult result = run(options);
    if (!options.out.empty())
        write_tensors(options.out, result.outputs, case_text(*result.what.info, result.what.parameters));
    write_result(options.output.json  ? to_text(result_json(result))
                 : options.output.csv ? outputs_table(result).csv()
                                      : result_text(result));
    const bool within =
        std::ranges::all_of(result.against_truth, [](const Comparison& found) { return found.share <= 1; });
    return within ? 0 : 1;
}

}  // namespace touchstone::cli
