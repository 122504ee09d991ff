// touchstone golden verify and make.
#include "cli/golden.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/output.h"
#include "golden/store/store.h"
#include "golden/store/store_make.h"
#include "reference/io/user_error.h"

namespace touchstone::cli {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr size_t most_repeated = 10;

std::optional<Arithmetic> arithmetic_of(const std::string& name) {
    if (name.empty()) return std::nullopt;
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper})
        if (name == arithmetic_name(arithmetic)) return arithmetic;
    throw UserError({fmt::format("unknown arithmetic \"{}\"", name), "--arithmetic",
                     "exact, hopper, released_hopper", ""});
}

std::string line_of(const GoldenFinding& finding) {
    return fmt::format("{:<13} {}{}{}\n", golden_status_name(finding.status), finding.what,
                       finding.detail.empty() ? "" : ": ", finding.detail);
}

std::string summary_line(const GoldenReport& report) {
    std::string text = fmt::format("golden: cases={} tensors={}", report.cases, report.compared);
    for (size_t i = 0; i < golden_statuses; ++i) {
        const auto status = static_cast<GoldenStatus>(i);
        text += fmt::format(" {}={}", golden_status_key(status), report.count(status));
    }
    return text + "\n";
}

std::vector<const GoldenFinding*> failures_of(const GoldenReport& report) {
    std::vector<const GoldenFinding*> failures;
    for (const GoldenFinding& finding : report.findings)
        if (finding.status != GoldenStatus::equal) failures.push_back(&finding);
    return failures;
}

/// An expression that finds this text and no other.
std::string whole_text_regex(const std::string& text) {
    std::string regex = "^";
    for (const char c : text) {
        if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) regex += '\\';
        regex += c;
    }
    return regex + "$";
}

/// Whether --case takes the stored case. A case that no longer can be read it refuses, and one that is now
/// written otherwise it does not find.
bool is_taken_by_case_option(const std::string& stored) {
    try {
        return golden_filter(stored, "", std::nullopt).takes(stored);
    } catch (const UserError&) {
        return false;
    }
}

std::string words_for_case(const std::string& stored) {
    if (is_taken_by_case_option(stored)) return " --case " + shell_word(stored);
    return " " + shell_word(whole_text_regex(stored));
}

/// The command that shows a failure again: the first case that drifts, or the operator of a file.
std::string reproducer(const GoldenOptions& options, const std::vector<const GoldenFinding*>& failures) {
    const auto of_case = std::ranges::find_if(failures, [](const auto* f) { return f->is_case; });
    std::string command = "touchstone golden verify";
    if (of_case != failures.end()) {
        command += words_for_case((*of_case)->what);
    } else if (const size_t slash = failures.front()->what.find('/'); slash != std::string::npos) {
        command += " " + shell_word("^" + failures.front()->what.substr(0, slash) + "\\(");
    }
    if (!options.arithmetic.empty()) command += " --arithmetic " + options.arithmetic;
    if (!options.store.empty()) command += " --store " + shell_word(options.store);
    return command;
}

std::string report_text(const GoldenOptions& options, const GoldenReport& report) {
    std::string text;
    for (const GoldenFinding& finding : report.findings) {
        text += line_of(finding);
        for (const SlotChange& change : finding.changes) text += "    " + change.text() + "\n";
    }
    text += summary_line(report);
    const std::vector<const GoldenFinding*> failures = failures_of(report);
    if (failures.empty()) return text;
    text += fmt::format("\n{} not equal", failures.size());
    if (failures.size() > most_repeated) text += fmt::format(", the first {}", most_repeated);
    text += ":\n";
    for (size_t i = 0; i < std::min(failures.size(), most_repeated); ++i) text += line_of(*failures[i]);
    return text + reproducer(options, failures) + "\n";
}

json changes_json(const std::vector<SlotChange>& changes) {
    json list = json::array();
    for (const SlotChange& change : changes) {
        json entry = {{"slot", change.slot}, {"was", change.was}, {"is", change.is}};
        if (change.differing > 0) {
            entry["differing"] = change.differing;
            entry["elements"] = change.elements;
            entry["first"] = change.first;
        }
        list.push_back(std::move(entry));
    }
    return list;
}

json report_json(const GoldenOptions& options, const GoldenReport& report) {
    json object = {{"schema", "touchstone.golden/1"},
                   {"action", "verify"},
                   {"cases", report.cases},
                   {"tensors", report.compared},
                   {"counts", json::object()},
                   {"findings", json::array()},
                   {"reproduce", nullptr}};
    for (size_t i = 0; i < golden_statuses; ++i) {
        const auto status = static_cast<GoldenStatus>(i);
        object["counts"][std::string(golden_status_key(status))] = report.count(status);
    }
    for (const GoldenFinding& finding : report.findings)
        object["findings"].push_back({{"status", golden_status_key(finding.status)},
                                      {finding.is_case ? "case" : "file", finding.what},
                                      {"detail", finding.detail},
                                      {"tensors", finding.compared},
                                      {"changes", changes_json(finding.changes)}});
    if (const auto failures = failures_of(report); !failures.empty())
        object["reproduce"] = reproducer(options, failures);
    return object;
}

std::string made_text(const GoldenMakeReport& report, const std::string& folder) {
    std::string text;
    for (const GoldenChange& change : report.changes) {
        if (change.kind == GoldenChangeKind::added) continue;
        text += fmt::format("{:<10} {}\n", golden_change_name(change.kind), change.what);
        for (const SlotChange& slot : change.slots) text += "    " + slot.text() + "\n";
    }
    text += fmt::format("golden: cases={}", report.cases);
    for (const GoldenChangeKind kind : {GoldenChangeKind::added, GoldenChangeKind::changed,
                                        GoldenChangeKind::removed, GoldenChangeKind::rewritten})
        text += fmt::format(" {}={}", golden_change_name(kind), report.count(kind));
    if (!report.written)
        return text +
               fmt::format("\nNothing was written: {} is not only added to. With --replace it is.\n", folder);
    return text + fmt::format(" files={} bytes={}\n", report.files, report.bytes);
}

json made_json(const GoldenMakeReport& report) {
    json object = {{"schema", "touchstone.golden/1"},
                   {"action", "make"},
                   {"cases", report.cases},
                   {"written", report.written},
                   {"changes", json::array()},
                   {"files", report.files},
                   {"bytes", report.bytes}};
    for (const GoldenChange& change : report.changes)
        object["changes"].push_back({{"kind", golden_change_name(change.kind)},
                                     {"what", change.what},
                                     {"slots", changes_json(change.slots)}});
    return object;
}

}  // namespace

int run_golden_verify(const GoldenOptions& options) {
    const GoldenFilter filter =
        golden_filter(options.case_text, options.regex, arithmetic_of(options.arithmetic));
    const std::optional<fs::path> folder = find_golden_store(options);
    if (!folder) return 3;
    const GoldenReport report = verify_golden_store(*folder, filter);
    if (report.findings.empty()) {
        fmt::print(
            stderr,
            "touchstone: nothing compared: {} has no such case\n  remedy:   see touchstone golden list\n",
            folder->string());
        return 3;
    }
    write_result(options.output.json ? to_text(report_json(options, report)) : report_text(options, report));
    return report.passed() ? 0 : 1;
}

int run_golden_make(const GoldenOptions& options) {
    const GoldenMakeReport report =
        make_golden_store(options.store, golden_filter("", options.regex, std::nullopt), options.replace);
    write_result(options.output.json ? to_text(made_json(report)) : made_text(report, options.store));
    return report.written ? 0 : 1;
}

}  // namespace touchstone::cli
