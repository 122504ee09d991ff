// touchstone compare: is my tensor right?
#include "cli/compare.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/commands.h"
#include "cli/output.h"
#include "golden/compare/compare_text.h"
#include "golden/compare/printable.h"
#include "reference/io/atomic_file.h"
#include "reference/io/config_json.h"
#include "reference/io/user_error.h"

namespace touchstone::cli {

namespace {

/// "NAME=VALUE".
std::pair<std::string, std::string> split(const std::string& text, const std::string& option,
                                          const std::string& expected) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == text.size())
        throw UserError({quoted(text), option, expected, ""});
    return {text.substr(0, equals), text.substr(equals + 1)};
}

/// "T" for every tensor, or "REGEX:T".
std::pair<std::string, Tolerance> tolerance_rule(const std::string& text) {
    const size_t colon = text.rfind(':');
    if (colon == std::string::npos) return {"", parse_tolerance(text, "--tolerance")};
    return {text.substr(0, colon), parse_tolerance(text.substr(colon + 1), "--tolerance")};
}

void add_layout(const std::string& text, touchstone::CompareOptions& options) {
    auto [name, layout] = split(text, "--layout", "NAME=LAYOUT, or NAME=A:LAYOUT for the expectation");
    const bool of_expected = layout.starts_with("A:");
    options.layouts[{name, of_expected ? Side::expected : Side::got}] =
        parse_layout(of_expected ? layout.substr(2) : layout, "--layout");
}

touchstone::CompareOptions library_options(const CompareCommandOptions& options) {
    touchstone::CompareOptions result;
    result.tensor_pattern = options.tensor;
    result.allow_mistrusted = options.allow_mistrusted;
    for (const std::string& text : options.tolerances) result.tolerances.push_back(tolerance_rule(text));
    for (const std::string& text : options.layouts) add_layout(text, result);
    for (const std::string& text : options.scores)
        result.scores.insert(split(text, "--scores", "NAME=SCORES, names of tensors of A"));
    result.row_errors = !options.html.empty() || !options.svg.empty();
    if (!options.map.empty()) result.name_map = parse_name_map(read_config_file(options.map), options.map);
    return result;
}

CompareCommands commands_of(const CompareCommandOptions& options, const CompareReport& report) {
    const TensorComparison* worst = report.worst();
    if (worst == nullptr) return {};
    std::string text = fmt::format("touchstone compare {} {} --tensor {}", shell_word(options.expected),
                                   shell_word(options.got), shell_word(pattern_of(worst->name)));
    const auto add = [&text](std::string_view option, const std::string& value) {
        if (!value.empty()) text += fmt::format(" {} {}", option, shell_word(value));
    };
    for (const std::string& tolerance : options.tolerances) add("--tolerance", tolerance);
    add("--map", options.map);
    for (const std::string& layout : options.layouts) add("--layout", layout);
    for (const std::string& scores : options.scores) add("--scores", scores);
    add("--allow-mistrusted", options.allow_mistrusted);
    return {text, "--allow-mistrusted " + shell_word(pattern_of(worst->name))};
}

}  // namespace

int run_compare(const CompareCommandOptions& options) {
    const TensorFile expected(options.expected), got(options.got);
    const CompareReport report = compare_files(expected, got, library_options(options));
    const CompareCommands commands = commands_of(options, report);
    if (!options.html.empty()) write_file_atomically(options.html, compare_html(report, commands));
    if (!options.svg.empty()) write_file_atomically(options.svg, compare_svg(report));
    if (!options.output.json)
        for (const std::string& warning : report.warnings)
            fmt::print(stderr, "touchstone: warning: {}\n", printable(warning));
    write_result(options.output.json  ? to_text(compare_json(report, commands))
                 : options.output.csv ? compare_table(report).csv()
                                      : compare_text(report, options.all, commands));
    return report.exit_code();
}

std::string compare_help() {
    std::string text =
        "Tolerances, by name or as limits such as ulp=1,share=0.01. Without REGEX: they are of floating "
        "tensors;\n"
        "integers and BOOL stay bit:\n";
    for (const ToleranceClass& known : tolerance_classes())
        text += fmt::format("  {:<17} {:<36} {}\n", known.name, known.text, known.meaning);
    text += "Layouts:\n";
    for (const LayoutForm& form : layout_forms())
        text += fmt::format("  {:<36} {}\n", form.form, form.meaning);
    text += "A line of --map: model.layers.{n}.q = L{n:02}.attn.q [transpose]\n";
    return text;
}

}  // namespace touchstone::cli
