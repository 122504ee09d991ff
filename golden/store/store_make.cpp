#include "golden/store/store_make.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>

#include "golden/store/case_file.h"
#include "golden/store/file_replacement.h"
#include "reference/io/atomic_file.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace fs = std::filesystem;

namespace {

constexpr std::array<std::string_view, 4> change_names{"added", "changed", "removed", "rewritten"};

/// A case as it is now.
struct MadeCase {
    const GoldenCase* golden;
    CaseDigests digests;
    CaseTensors tensors;  ///< of cases whose tensors are kept
};

std::vector<MadeCase> taken_cases(const GoldenFilter& filter) {
    std::vector<MadeCase> made;
    for (const GoldenCase& golden : golden_cases())
        if (filter.takes(golden.text)) made.push_back({&golden, {}, {}});
    if (made.empty())
        throw UserError({"no case of the list is taken", "REGEX", "one that is found in a case's text",
                         "see touchstone golden list"});
    return made;
}

void run_cases(std::vector<MadeCase>& made) {
    std::exception_ptr failure;
#pragma omp parallel for schedule(dynamic, 1)
    for (size_t i = 0; i < made.size(); ++i) {
        try {
            const GoldenCase& golden = *made[i].golden;
            CaseTensors tensors = run_case(*golden.info, golden.parameters, golden.profiles);
            made[i].digests = digests_of(tensors);
            if (keeps_tensors(golden)) made[i].tensors = std::move(tensors);
        } catch (...) {
#pragma omp critical
            failure = std::current_exception();
        }
    }
    if (failure) std::rethrow_exception(failure);
}

std::string operator_of(const std::string& case_line) {
    return case_line.substr(0, case_line.find('('));
}

std::string folder_of(const GoldenCase& golden) {
    return fmt::format("{}/{}", golden.info->name, golden.id);
}

class Making {
  public:
    Making(const fs::path& folder, const GoldenFilter& filter)
        : folder_(folder), filter_(filter), made_(taken_cases(filter)), replacement_(folder) {
        run_cases(made_);
        if (is_golden_store(folder)) {
            old_ = open_golden_store(folder, [](std::string_view) { return true; });
            require_readable();
        }
    }

    GoldenMakeReport make(bool replace) {
        for (const MadeCase& made : made_) add_case(made);
        write_tables();
        note_removed();
        if (old_.manifest_damaged) note(GoldenChangeKind::rewritten, std::string(manifest_name));
        const auto replaces = [](const GoldenChange& c) { return c.kind != GoldenChangeKind::added; };
        if (replace || std::ranges::none_of(report_.changes, replaces)) commit();
        std::ranges::stable_sort(report_.changes, {}, &GoldenChange::what);
        report_.cases = std::ssize(made_);
        return std::move(report_);
    }

  private:
    /// To make a part anew, the rest has to be kept: it must be what the manifest says.
    void require_readable() const {
        if (filter_.takes_everything()) return;
        for (const GoldenFinding& finding : old_.problems)
            if (finding.status != GoldenStatus::unlisted)
                throw UserError({fmt::format("{} is {}", finding.what, golden_status_key(finding.status)),
                                 folder_.string(), "a whole store, of which a part is made anew",
                                 "restore it, or make all of it: touchstone golden make without REGEX"});
    }

    void note(GoldenChangeKind kind, const std::string& what) { report_.changes.push_back({kind, what, {}}); }

    /// A new file that lies aside: part of the new manifest, and moved where it is not there already.
    void add_file(const std::string& path, const fs::path& aside) {
        const std::string bytes = read_file(aside);
        manifest_[path] = sha256_of(bytes);
        const fs::path place = folder_ / path;
        std::error_code unknown;
        const bool there = fs::exists(fs::symlink_status(place, unknown));
        if (there && fs::is_regular_file(place, unknown) && read_file(place) == bytes) return;
        moved_.push_back(path);
        if (there) overwritten_.insert(path);
    }

    void add_case(const MadeCase& made) {
        const GoldenCase& golden = *made.golden;
        tables_[golden.info->name][golden.text] = made.digests;
        const bool changed = note_case(made);
        if (!keeps_tensors(golden)) return;
        const std::string folder = folder_of(golden);
        const std::string json = fmt::format("{}/{}", folder, case_file_name);
        const std::string tensors = fmt::format("{}/{}", folder, tensors_file_name);
        write_file_atomically(replacement_.aside(json), case_json(golden, keeps_inputs(made.tensors)));
        write_case_tensors(replacement_.aside(tensors), made.tensors, golden.text);
        for (const std::string& path : {json, tensors}) {
            add_file(path, replacement_.aside(path));
            if (!changed && overwritten_.contains(path)) note(GoldenChangeKind::rewritten, path);
        }
    }

    /// Whether the old store has the case, with other tensors.
    bool note_case(const MadeCase& made) {
        const std::string& text = made.golden->text;
        const auto old = old_.cases.find(text);
        if (old == old_.cases.end()) {
            note(GoldenChangeKind::added, text);
            return false;
        }
        if (old->second == made.digests) return false;
        report_.changes.push_back({GoldenChangeKind::changed, text, slot_changes(old->second, made)});
        return true;
    }

    std::vector<SlotChange> slot_changes(const CaseDigests& old, const MadeCase& made) const {
        const CaseTensors kept = old_tensors(made.golden->text);
        std::set<std::string> parts;
        for (const CaseDigests* digests : {&old, &made.digests})
            for (const auto& [part, slots] : *digests) parts.insert(part);
        std::vector<SlotChange> changes;
        for (const std::string& part : parts)
            std::ranges::move(changes_of_part(part, {value_of(old, part), value_of(kept, part)},
                                              {value_of(made.digests, part), value_of(made.tensors, part)}),
                              std::back_inserter(changes));
        return changes;
    }

    /// The tensors that the old store has of a case; none where they cannot be read.
    CaseTensors old_tensors(const std::string& text) const {
        const auto kept = old_.kept.find(text);
        if (kept == old_.kept.end()) return {};
        try {
            return read_case_tensors(folder_ / kept->second / tensors_file_name);
        } catch (const UserError&) {
            return {};
        }
    }

    /// Of every operator of which a case was taken, now or before.
    void write_tables() {
        for (const auto& [text, digests] : old_.cases)
            if (filter_.takes(text)) tables_.try_emplace(operator_of(text));
        for (auto& [name, table] : tables_) {
            for (const auto& [text, digests] : old_.cases)
                if (operator_of(text) == name && !filter_.takes(text)) table[text] = digests;
            if (table.empty()) continue;
            const std::string path = name + "/hashes.tsv";
            write_file_atomically(replacement_.aside(path), hash_table_text(table));
            add_file(path, replacement_.aside(path));
            // A table that could be read is added to, or its cases are noted; of another nothing is known.
            const bool read = old_.manifest.contains(path) && !old_.unusable.contains(name);
            if (!read && overwritten_.contains(path)) note(GoldenChangeKind::rewritten, path);
        }
    }

    /// Cases that were taken and are no longer on the list, and their files.
    void note_removed() {
        for (const auto& [text, digests] : old_.cases)
            if (filter_.takes(text) && !tables_.find(operator_of(text))->second.contains(text))
                note(GoldenChangeKind::removed, text);
        for (const auto& [path, digest] : old_.manifest) {
            if (manifest_.contains(path)) continue;
            if (!is_replaced(path)) {
                manifest_[path] = digest;
                continue;
            }
            removed_.push_back(path);
            note(GoldenChangeKind::removed, path);
        }
    }

    /// A file of a case that was taken, or the table of an operator that has no case any more.
    bool is_replaced(const std::string& path) const {
        if (filter_.takes_everything()) return true;
        const std::string folder = fs::path(path).parent_path().generic_string();
        if (path == folder + "/hashes.tsv") return tables_.contains(folder);
        return std::ranges::any_of(old_.kept, [&](const auto& entry) {
            return entry.second == folder && filter_.takes(entry.first);
        });
    }

    void commit() {
        write_file_atomically(replacement_.aside(std::string(manifest_name)), manifest_text(manifest_));
        moved_.emplace_back(manifest_name);
        replacement_.commit(removed_, moved_);
        report_.written = true;
        report_.files = std::ssize(manifest_) + 1;
        report_.bytes = static_cast<int64_t>(fs::file_size(folder_ / manifest_name));
        for (const auto& [path, digest] : manifest_)
            report_.bytes += static_cast<int64_t>(fs::file_size(folder_ / path));
    }

    fs::path folder_;
    const GoldenFilter& filter_;
    std::vector<MadeCase> made_;
    FileReplacement replacement_;  ///< before anything is read: it puts back and locks
    GoldenStore old_;
    Manifest manifest_;                        ///< new
    std::map<std::string, HashTable> tables_;  ///< new, by operator
    std::vector<std::string> moved_, removed_;
    std::set<std::string, std::less<>> overwritten_;
    GoldenMakeReport report_;
};

}  // namespace

std::string_view golden_change_name(GoldenChangeKind kind) {
    return change_names[static_cast<size_t>(kind)];
}

int64_t GoldenMakeReport::count(GoldenChangeKind kind) const {
    return std::ranges::count(changes, kind, &GoldenChange::kind);
}

GoldenMakeReport make_golden_store(const fs::path& folder, const GoldenFilter& filter, bool replace) {
    return Making(folder, filter).make(replace);
}

}  // namespace touchstone
