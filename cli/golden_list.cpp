// touchstone golden list: what a store holds, and what it covers.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdlib>
#include <map>
#include <set>

#include "cli/golden.h"
#include "cli/output.h"
#include "cli/table.h"
#include "golden/store/case_file.h"
#include "golden/store/store.h"
#include "reference/io/user_error.h"

namespace touchstone::cli {

namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr std::array profiles{Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper};

/// A case of the store.
struct Row {
    std::string operator_name, text, limit;
    std::vector<std::string> stored_profiles;
    int64_t files = 0, bytes = 0;  ///< of its own: 0 where the store has hashes alone
};

/// Limits by case text, of the list that this program would make a store of.
std::map<std::string, std::string> limits() {
    std::map<std::string, std::string> by_text;
    for (const GoldenCase& golden : golden_cases()) by_text[golden.text] = golden.limit;
    return by_text;
}

void count_files(const fs::path& folder, Row& row) {
    for (const std::string_view name : {case_file_name, tensors_file_name}) {
        std::error_code none;
        const auto bytes = fs::file_size(folder / name, none);
        if (none) continue;
        row.files += 1;
        row.bytes += static_cast<int64_t>(bytes);
    }
}

std::vector<Row> rows_of(const GoldenStore& store, const GoldenFilter& filter) {
    const std::map<std::string, std::string> limit_of = limits();
    std::vector<Row> rows;
    for (const auto& [text, digests] : store.cases) {
        if (!filter.takes(text)) continue;
        Row row{text.substr(0, text.find('(')), text, "", {}};
        if (const auto limit = limit_of.find(text); limit != limit_of.end()) row.limit = limit->second;
        for (const Arithmetic profile : profiles)
            if (digests.contains(arithmetic_name(profile)))
                row.stored_profiles.emplace_back(arithmetic_name(profile));
        if (const auto kept = store.kept.find(text); kept != store.kept.end())
            count_files(store.folder / kept->second, row);
        rows.push_back(std::move(row));
    }
    return rows;
}

/// What the rows hold of an operator.
struct Coverage {
    int64_t cases = 0, files = 0, bytes = 0;
    std::map<std::string, int64_t> by_profile;
    std::set<std::string> limits;
};

/// Of every operator of the registry, also those without a case.
std::map<std::string, Coverage> coverage_of(const std::vector<Row>& rows) {
    std::map<std::string, Coverage> coverage;
    for (const OperatorInfo& info : operators()) coverage[info.name];
    for (const Row& row : rows) {
        Coverage& of = coverage[row.operator_name];
        of.cases += 1;
        of.files += row.files;
        of.bytes += row.bytes;
        for (const std::string& profile : row.stored_profiles) of.by_profile[profile] += 1;
        if (!row.limit.empty()) of.limits.insert(row.limit);
    }
    return coverage;
}

Table cases_table(const std::vector<Row>& rows) {
    Table table({"case", "profiles", "files", "bytes", "what it trips"});
    for (const Row& row : rows)
        table.add_row({row.text, fmt::format("{}", fmt::join(row.stored_profiles, " ")), row.files, row.bytes,
                       row.limit.empty() ? std::string("-") : row.limit});
    return table;
}

Table coverage_table(const std::map<std::string, Coverage>& coverage) {
    Table table({"operator", "cases", "exact", "hopper", "released_hopper", "limits", "files", "bytes"});
    for (const auto& [name, of] : coverage) {
        std::vector<Cell> cells{name, of.cases};
        for (const Arithmetic profile : profiles) {
            const auto found = of.by_profile.find(std::string(arithmetic_name(profile)));
            cells.emplace_back(found == of.by_profile.end() ? int64_t{0} : found->second);
        }
        cells.emplace_back(std::ssize(of.limits));
        cells.emplace_back(of.files);
        cells.emplace_back(of.bytes);
        table.add_row(std::move(cells));
    }
    return table;
}

json list_json(const std::vector<Row>& rows, const std::map<std::string, Coverage>& coverage) {
    json object = {{"schema", "touchstone.golden/1"},
                   {"action", "list"},
                   {"cases", json::array()},
                   {"coverage", json::object()}};
    for (const Row& row : rows)
        object["cases"].push_back({{"case", row.text},
                                   {"operator", row.operator_name},
                                   {"profiles", row.stored_profiles},
                                   {"files", row.files},
                                   {"bytes", row.bytes},
                                   {"limit", row.limit}});
    for (const auto& [name, of] : coverage)
        object["coverage"][name] = {{"cases", of.cases},
                                    {"profiles", of.by_profile},
                                    {"limits", of.limits},
                                    {"files", of.files},
                                    {"bytes", of.bytes}};
    return object;
}

}  // namespace

std::optional<fs::path> find_golden_store(const GoldenOptions& options) {
    const char* environment = std::getenv("TOUCHSTONE_GOLDEN");
    fs::path folder = TOUCHSTONE_GOLDEN_FOLDER;
    if (environment != nullptr && *environment != '\0') folder = environment;
    if (!options.store.empty()) folder = options.store;
    if (is_golden_store(folder)) return folder;
    fmt::print(stderr,
               "touchstone: nothing compared: no golden store at {}\n  remedy:   --store DIR, or "
               "TOUCHSTONE_GOLDEN; touchstone golden make writes one\n",
               folder.string());
    return std::nullopt;
}

int run_golden_list(const GoldenOptions& options) {
    const GoldenFilter filter = golden_filter("", options.regex, std::nullopt);
    const std::optional<fs::path> folder = find_golden_store(options);
    if (!folder) return 3;
    const GoldenStore store = open_golden_store(*folder, [](std::string_view) { return true; });
    const std::vector<Row> rows = rows_of(store, filter);
    for (const GoldenFinding& problem : store.problems)
        fmt::print(stderr, "touchstone: {} {}: {}\n", golden_status_name(problem.status), problem.what,
                   problem.detail);
    if (rows.empty()) {
        fmt::print(stderr, "touchstone: the store has no such case\n");
        return 3;
    }
    const std::map<std::string, Coverage> coverage = coverage_of(rows);
    write_result(options.output.json ? to_text(list_json(rows, coverage))
                 : options.output.csv
                     ? cases_table(rows).csv()
                     : cases_table(rows).text() + "\nCoverage\n" + coverage_table(coverage).text());
    return 0;
}

}  // namespace touchstone::cli
