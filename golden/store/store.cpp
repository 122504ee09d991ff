#include "golden/store/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "golden/store/case_file.h"
#include "golden/store/file_replacement.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace fs = std::filesystem;

namespace {

struct StatusWords {
    std::string_view name, key;
};
constexpr std::array<StatusWords, golden_statuses> status_words{{{"equal", "equal"},
                                                                 {"INPUT DRIFT", "input_drift"},
                                                                 {"OUTPUT DRIFT", "output_drift"},
                                                                 {"MISSING", "missing"},
                                                                 {"UNLISTED", "unlisted"},
                                                                 {"DAMAGED", "damaged"},
                                                                 {"STALE", "stale"},
                                                                 {"REFUSED", "refused"}}};

std::string operator_of(std::string_view path) {
    return std::string(path.substr(0, path.find('/')));
}

/// The differing elements, counted by their bytes.
void count_elements(const Tensor& was, const Tensor& is, SlotChange& change) {
    if (was.type != is.type || was.shape != is.shape || is.bytes.empty()) return;
    change.elements = is.elements();
    const size_t element_bytes = is.bytes.size() / static_cast<size_t>(is.elements());
    change.differing = 0;
    for (int64_t i = 0; i < is.elements(); ++i) {
        const size_t at = static_cast<size_t>(i) * element_bytes;
        if (std::memcmp(was.bytes.data() + at, is.bytes.data() + at, element_bytes) == 0) continue;
        if (change.differing++ == 0) change.first = i;
    }
}

std::string digest_text_of(const PartTensors& part, const std::string& slot) {
    if (part.digests == nullptr || !part.digests->contains(slot)) return "";
    return digest_text(part.digests->find(slot)->second);
}

const Tensor* tensor_of(const PartTensors& part, const std::string& slot) {
    if (part.tensors == nullptr || !part.tensors->contains(slot)) return nullptr;
    return &part.tensors->find(slot)->second;
}

/// Paths of everything below `folder` but folders, relative to the store. Links are not followed; what is in
/// a folder that cannot be read is not there.
std::vector<std::string> files_below(const fs::path& store, const std::string& folder) {
    std::vector<std::string> files;
    std::error_code error;
    fs::recursive_directory_iterator entry(store / folder, fs::directory_options::skip_permission_denied,
                                           error);
    for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
        std::error_code unknown;
        if (entry->symlink_status(unknown).type() != fs::file_type::directory)
            files.push_back(entry->path().lexically_relative(store).generic_string());
    }
    std::ranges::sort(files);
    return files;
}

std::set<std::string> operator_folders(const Manifest& manifest) {
    std::set<std::string> folders;
    for (const OperatorInfo& info : operators()) folders.insert(info.name);
    for (const auto& [path, digest] : manifest) folders.insert(operator_of(path));
    return folders;
}

class Opening {
  public:
    Opening(const fs::path& folder, const std::function<bool(std::string_view)>& takes_operator)
        : takes_operator_(takes_operator) {
        store_.folder = folder;
        read_manifest();
        note_replacement();
        for (const std::string& name : operator_folders(store_.manifest)) read_operator(name);
    }
    GoldenStore take() { return std::move(store_); }

  private:
    void add(GoldenStatus status, const std::string& path, const std::string& detail) {
        const bool of_operator = path != manifest_name && path != replacement_name;
        if (of_operator && !takes_operator_(operator_of(path))) return;
        store_.problems.push_back({status, path, false, detail, {}, 0});
    }

    void read_manifest() {
        const std::string name(manifest_name);
        std::error_code unknown;
        if (!fs::is_regular_file(store_.folder / manifest_name, unknown)) {
            store_.manifest_damaged = true;
            return add(GoldenStatus::missing, name, "nothing is known of the files");
        }
        std::optional<Manifest> manifest = parse_manifest(read_file(store_.folder / manifest_name));
        store_.manifest_damaged = !manifest;
        if (manifest)
            store_.manifest = std::move(*manifest);
        else
            add(GoldenStatus::damaged, name,
                "its last line is not the digest of the others: nothing is known of the files");
    }

    void note_replacement() {
        std::error_code unknown;
        if (!fs::exists(fs::symlink_status(store_.folder / replacement_name, unknown))) return;
        add(GoldenStatus::unlisted, std::string(replacement_name),
            is_half_replaced(store_.folder)
                ? "a make is at work, or was stopped while it replaced files: the next puts the old ones back"
                : "a make is at work, or was stopped before it replaced a file: the next removes it");
    }

    /// The bytes of a file; nothing, and a finding, for one that cannot be read: a link to nothing, a pipe.
    std::optional<std::string> readable(const std::string& path) {
        try {
            return read_file(store_.folder / path);
        } catch (const UserError& error) {
            add(GoldenStatus::damaged, path, error.parts().what);
            return std::nullopt;
        }
    }

    /// The bytes of a file that is what the manifest says; nothing, and a finding, for another.
    std::optional<std::string> checked(const std::string& path) {
        const auto listed = store_.manifest.find(path);
        if (listed == store_.manifest.end() && !store_.manifest_damaged) {
            add(GoldenStatus::unlisted, path, "no line of the manifest names it");
            return std::nullopt;
        }
        std::optional<std::string> bytes = readable(path);
        if (!bytes || listed == store_.manifest.end()) return bytes;
        const std::string digest = sha256_of(*bytes);
        if (digest == listed->second) return bytes;
        add(GoldenStatus::damaged, path,
            fmt::format("its SHA-256 is {}.., the manifest's {}..", digest.substr(0, 12),
                        listed->second.substr(0, 12)));
        return std::nullopt;
    }

    void read_operator(const std::string& name) {
        const std::vector<std::string> files = files_below(store_.folder, name);
        const std::set<std::string> there(files.begin(), files.end());
        for (const auto& [path, digest] : store_.manifest)
            if (operator_of(path) == name && !there.contains(path)) {
                add(GoldenStatus::missing, path, "the manifest lists it");
                if (path == name + "/hashes.tsv") store_.unusable.insert(name);
            }
        for (const std::string& path : files) read_one(name, path);
    }

    void read_one(const std::string& name, const std::string& path) {
        const bool is_table = path == name + "/hashes.tsv";
        const std::optional<std::string> bytes =
            is_table || takes_operator_(name) ? checked(path) : std::nullopt;
        if (!bytes) {
            if (is_table) store_.unusable.insert(name);
            return;
        }
        try {
            if (is_table) store_.cases.merge(parse_hash_table(*bytes, path));
            if (fs::path(path).filename() == case_file_name)
                store_.kept[case_of_json(*bytes, path)] = fs::path(path).parent_path().generic_string();
        } catch (const UserError& error) {
            add(GoldenStatus::damaged, path, error.parts().what);
            if (is_table) store_.unusable.insert(name);
        }
    }

    const std::function<bool(std::string_view)>& takes_operator_;
    GoldenStore store_;
};

}  // namespace

std::string_view golden_status_name(GoldenStatus status) {
    return status_words[static_cast<size_t>(status)].name;
}

std::string_view golden_status_key(GoldenStatus status) {
    return status_words[static_cast<size_t>(status)].key;
}

std::string SlotChange::text() const {
    std::string line =
        fmt::format("{}: {} -> {}", slot, was.empty() ? "none" : was, is.empty() ? "none" : is);
    if (differing > 0)
        line += fmt::format(", {} of {} elements differ, the first at {}", differing, elements, first);
    return line;
}

bool GoldenFilter::takes(std::string_view text) const {
    if (!case_text.empty() && text != case_text) return false;
    return !regex || std::regex_search(text.begin(), text.end(), *regex);
}

GoldenFilter golden_filter(const std::string& case_text_given, const std::string& regex,
                           std::optional<Arithmetic> arithmetic) {
    GoldenFilter filter;
    filter.arithmetic = arithmetic;
    if (!case_text_given.empty()) {
        const ParsedCase parsed = parse_case(case_text_given, "--case");
        filter.case_text = case_text(*parsed.info, parsed.parameters);
    }
    if (regex.empty()) return filter;
    try {
        filter.regex.emplace(regex, std::regex::ECMAScript | std::regex::optimize);
    } catch (const std::regex_error&) {
        throw UserError({fmt::format("\"{}\" is no regular expression", regex), "REGEX",
                         "one in ECMAScript's form, e.g. '^top_k.*fill=ties'",
                         "write \\( for a parenthesis"});
    }
    return filter;
}

bool is_golden_store(const fs::path& folder) {
    std::error_code unknown;
    return fs::is_regular_file(folder / manifest_name, unknown) || is_half_replaced(folder);
}

GoldenStore open_golden_store(const fs::path& folder,
                              const std::function<bool(std::string_view)>& takes_operator) {
    return Opening(folder, takes_operator).take();
}

int64_t GoldenReport::count(GoldenStatus status) const {
    return std::ranges::count(findings, status, &GoldenFinding::status);
}

std::vector<SlotChange> changes_of_part(const std::string& part, const PartTensors& was,
                                        const PartTensors& is) {
    std::set<std::string> slots;
    for (const PartTensors* side : {&was, &is})
        if (side->digests != nullptr)
            for (const auto& [slot, digest] : *side->digests) slots.insert(slot);
    std::vector<SlotChange> changes;
    for (const std::string& slot : slots) {
        SlotChange change{part + "/" + slot, digest_text_of(was, slot), digest_text_of(is, slot)};
        const Tensor *before = tensor_of(was, slot), *now = tensor_of(is, slot);
        if (before != nullptr && now != nullptr) count_elements(*before, *now, change);
        if (change.was != change.is || change.differing > 0) changes.push_back(std::move(change));
    }
    return changes;
}

}  // namespace touchstone
