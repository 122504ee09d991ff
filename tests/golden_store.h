// A small golden store to spoil, for the tests of golden/store/store.h and golden/store/store_make.h.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "golden/store/store_make.h"
#include "reference/io/user_error.h"

namespace touchstone::small_store {

namespace fs = std::filesystem;

/// A few small cases of three operators; two profiles, kept tensors, hashes alone.
inline constexpr const char* some_cases =
    "^sinkhorn.rows=(4|16),|^top_k.rows=8,|^linear_bf16.rows=[15],outputs=(8|33),inputs=16,";

inline GoldenFilter taking(const std::string& regex) {
    return golden_filter("", regex, std::nullopt);
}

/// A folder of this process that is removed at exit.
inline const fs::path& scratch() {
    static const struct Folder {
        fs::path path = fs::temp_directory_path() / ("touchstone_small_store_" + std::to_string(getpid()));
        Folder() { fs::create_directories(path); }
        ~Folder() { fs::remove_all(path); }
    } folder;
    return folder.path;
}

/// A new copy of one store that is made once.
inline fs::path copied_store() {
    static const fs::path original = [] {
        fs::path folder = scratch() / "original";
        REQUIRE(make_golden_store(folder, taking(some_cases), false).written);
        return folder;
    }();
    static int copies = 0;
    fs::path copy = scratch() / fmt::format("copy{}", copies++);
    fs::copy(original, copy, fs::copy_options::recursive);
    return copy;
}

inline void write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
}

/// Every file of a folder.
inline std::map<std::string, std::string> files_of(const fs::path& folder) {
    std::map<std::string, std::string> files;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
        if (entry.is_regular_file())
            files[entry.path().lexically_relative(folder).generic_string()] = read_file(entry.path());
    return files;
}

/// The manifest says what the files are now: a store that another program would have made so.
inline void sign(const fs::path& folder) {
    Manifest manifest;
    for (const auto& [path, bytes] : files_of(folder))
        if (path != manifest_name) manifest[path] = sha256_of(bytes);
    write(folder / manifest_name, manifest_text(manifest));
}

inline void flip_bit(const fs::path& path, size_t byte, unsigned bit) {
    std::string bytes = read_file(path);
    bytes.at(byte) = static_cast<char>(static_cast<unsigned char>(bytes.at(byte)) ^ (1u << bit));
    write(path, bytes);
}

inline GoldenReport verify(const fs::path& folder, const std::string& regex = some_cases) {
    return verify_golden_store(folder, taking(regex));
}

/// All findings but the equal ones.
inline std::vector<GoldenFinding> problems_of(const GoldenReport& report) {
    std::vector<GoldenFinding> problems;
    for (const GoldenFinding& finding : report.findings)
        if (finding.status != GoldenStatus::equal) problems.push_back(finding);
    return problems;
}

/// Exactly one finding that is not `equal`.
inline GoldenFinding only_problem(const GoldenReport& report) {
    const std::vector<GoldenFinding> problems = problems_of(report);
    std::string all;
    for (const GoldenFinding& one : problems)
        all += fmt::format("{} {}: {}\n", golden_status_name(one.status), one.what, one.detail);
    CAPTURE(all);
    REQUIRE(problems.size() == 1);
    return problems.front();
}

inline std::string refusal(const std::function<void()>& run) {
    try {
        run();
    } catch (const UserError& error) {
        return error.what();
    }
    return "";
}

/// Of this case the store has hashes alone from now on.
inline void forget_tensors(const fs::path& folder, const std::string& text) {
    const GoldenStore store = open_golden_store(folder, [](std::string_view) { return true; });
    if (const auto kept = store.kept.find(text); kept != store.kept.end())
        fs::remove(folder / kept->second / "tensors.safetensors");
    sign(folder);
}

/// Alters the record of one case and signs the store.
inline void alter_record(const fs::path& folder, const std::string& table, const std::string& text,
                         const std::function<void(HashTable&, CaseDigests&)>& change) {
    HashTable records = parse_hash_table(read_file(folder / table), table);
    REQUIRE(records.contains(text));
    CaseDigests digests = records[text];
    change(records, digests);
    if (records.contains(text)) records[text] = digests;
    write(folder / table, hash_table_text(records));
    sign(folder);
}

inline const std::string norm_case =
    "sinkhorn(rows=4,streams=3,iterations=1,hc_eps=1e-06,fill=normal,seed=7)";
inline const std::string linear_case =
    "linear_bf16(rows=5,outputs=33,inputs=16,sum=index_weights_proj,fill=limits,seed=7)";

}  // namespace touchstone::small_store
