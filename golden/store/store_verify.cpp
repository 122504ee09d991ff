// Verifying: the files first, then inputs, then outputs, each failing as what it is.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <new>
#include <optional>

#include "golden/store/case_file.h"
#include "golden/store/store.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace {

constexpr std::array arithmetics{Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper};

/// A stored case and what its record is compared with.
struct CaseOfStore {
    std::string text;
    const CaseDigests* digests;
    std::filesystem::path tensors;  ///< file of its bits; empty: hashes alone
};

/// The profiles of the record that are asked for.
std::vector<Arithmetic> profiles_of(const CaseDigests& digests, const OperatorInfo& info,
                                    const GoldenFilter& filter) {
    std::vector<Arithmetic> profiles;
    for (const Arithmetic arithmetic : arithmetics)
        if (digests.contains(arithmetic_name(arithmetic)) &&
            (!filter.arithmetic || profile_of(info, *filter.arithmetic) == arithmetic))
            profiles.push_back(arithmetic);
    return profiles;
}

void compare_part(const CaseOfStore& stored, const CaseTensors& kept, const std::string& part,
                  const TensorMap& is, GoldenFinding& finding) {
    const CaseDigests now = digests_of({{part, is}});
    std::ranges::move(changes_of_part(part, {value_of(*stored.digests, part), value_of(kept, part)},
                                      {value_of(now, part), &is}),
                      std::back_inserter(finding.changes));
    finding.compared += std::ssize(is);
}

/// The first kept tensor that has another hash than the table says; empty: there is none. A part that the
/// table lacks is `stale`.
std::string contradiction(const CaseDigests& table, const CaseTensors& kept) {
    for (const auto& [part, slots] : digests_of(kept)) {
        const PartDigests* listed = value_of(table, part);
        if (listed == nullptr) continue;
        for (const auto& [slot, digest] : slots) {
            const TensorDigest* said = value_of(*listed, slot);
            if (said == nullptr || *said != digest) return part + "/" + slot;
        }
    }
    return "";
}

/// Kept tensors; nothing, and a finding, where they are not those of the table.
std::optional<CaseTensors> kept_tensors(const CaseOfStore& stored, GoldenFinding& finding) {
    if (stored.tensors.empty()) return CaseTensors{};
    finding.status = GoldenStatus::damaged;
    try {
        CaseTensors kept = read_case_tensors(stored.tensors);
        const std::string slot = contradiction(*stored.digests, kept);
        if (slot.empty()) {
            finding.status = GoldenStatus::equal;
            return kept;
        }
        finding.detail = fmt::format("{} is kept with other bits than hashes.tsv has the hash of", slot);
    } catch (const UserError& error) {
        finding.detail = fmt::format("{}: {}", tensors_file_name, error.parts().what);
    }
    return std::nullopt;
}

void verify_into(const CaseOfStore& stored, const GoldenFilter& filter, GoldenFinding& finding) {
    const ParsedCase parsed = parse_case(stored.text, "the golden store");
    const std::optional<CaseTensors> kept = kept_tensors(stored, finding);
    if (!kept) return;
    // Other inputs make other outputs: then these say nothing.
    const TensorMap inputs = make_inputs(*parsed.info, parsed.parameters);
    compare_part(stored, *kept, std::string(inputs_part), inputs, finding);
    if (!finding.changes.empty()) {
        finding.status = GoldenStatus::input_drift;
        finding.detail = "the generator makes other inputs than those stored; outputs are not compared";
        return;
    }
    for (const Arithmetic profile : profiles_of(*stored.digests, *parsed.info, filter))
        compare_part(stored, *kept, std::string(arithmetic_name(profile)),
                     run_operator(*parsed.info, profile, parsed.parameters, inputs), finding);
    if (finding.changes.empty()) return;
    finding.status = GoldenStatus::output_drift;
    finding.detail = "the stored inputs give other outputs";
}

GoldenFinding verify_case(const CaseOfStore& stored, const GoldenFilter& filter) {
    GoldenFinding finding{GoldenStatus::equal, stored.text, true, "", {}, 0};
    try {
        verify_into(stored, filter, finding);
    } catch (const UserError& error) {
        finding.status = GoldenStatus::refused;
        finding.detail = error.parts().what;
    } catch (const std::bad_alloc&) {
        finding.status = GoldenStatus::refused;
        finding.detail = "there is not enough memory for it";
    }
    return finding;
}

std::vector<CaseOfStore> selected_cases(const GoldenStore& store, const GoldenFilter& filter) {
    std::vector<CaseOfStore> selected;
    for (const auto& [text, digests] : store.cases) {
        if (!filter.takes(text)) continue;
        CaseOfStore one{text, &digests, {}};
        if (const auto kept = store.kept.find(text); kept != store.kept.end()) {
            const std::string path = fmt::format("{}/{}", kept->second, tensors_file_name);
            const bool bad = std::ranges::any_of(
                store.problems, [&](const GoldenFinding& finding) { return finding.what == path; });
            if (!bad && std::filesystem::exists(store.folder / path)) one.tensors = store.folder / path;
        }
        selected.push_back(std::move(one));
    }
    return selected;
}

/// Cases and profiles that the list has and the store lacks.
std::vector<GoldenFinding> stale_cases(const GoldenStore& store, const GoldenFilter& filter) {
    std::vector<GoldenFinding> stale;
    for (const GoldenCase& golden : golden_cases()) {
        if (!filter.takes(golden.text) || store.unusable.contains(golden.info->name)) continue;
        const auto stored = store.cases.find(golden.text);
        std::vector<std::string_view> lacking;
        for (const Arithmetic profile : golden.profiles)
            if ((!filter.arithmetic || profile_of(*golden.info, *filter.arithmetic) == profile) &&
                (stored == store.cases.end() || !stored->second.contains(arithmetic_name(profile))))
                lacking.push_back(arithmetic_name(profile));
        if (lacking.empty()) continue;
        stale.push_back({GoldenStatus::stale,
                         golden.text,
                         true,
                         fmt::format("the store lacks {}", fmt::join(lacking, ", ")),
                         {},
                         0});
    }
    return stale;
}

/// Operators whose files are checked: those of cases of the list and of the store that are taken.
std::set<std::string, std::less<>> taken_operators(const std::filesystem::path& folder,
                                                   const GoldenFilter& filter) {
    std::set<std::string, std::less<>> taken;
    const auto operator_of = [](const std::string& text) { return text.substr(0, text.find('(')); };
    if (!filter.case_text.empty()) return {operator_of(filter.case_text)};
    for (const GoldenCase& golden : golden_cases())
        if (filter.takes(golden.text)) taken.insert(golden.info->name);
    const GoldenStore tables = open_golden_store(folder, [](std::string_view) { return false; });
    for (const auto& [text, digests] : tables.cases)
        if (filter.takes(text)) taken.insert(operator_of(text));
    // A table that cannot be read may have held what is asked for.
    return taken.empty() ? tables.unusable : taken;
}

}  // namespace

GoldenReport verify_golden_store(const std::filesystem::path& folder, const GoldenFilter& filter) {
    const bool everything = filter.takes_everything();
    const std::set<std::string, std::less<>> taken =
        everything ? std::set<std::string, std::less<>>{} : taken_operators(folder, filter);
    const GoldenStore store =
        open_golden_store(folder, [&](std::string_view name) { return everything || taken.contains(name); });

    GoldenReport report{store.problems, 0, 0};
    const std::vector<CaseOfStore> selected = selected_cases(store, filter);
    std::vector<GoldenFinding> findings(selected.size());
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < selected.size(); ++i) findings[i] = verify_case(selected[i], filter);
    for (GoldenFinding& finding : findings) {
        report.cases += 1;
        report.compared += finding.compared;
        report.findings.push_back(std::move(finding));
    }
    std::ranges::move(stale_cases(store, filter), std::back_inserter(report.findings));
    return report;
}

}  // namespace touchstone
