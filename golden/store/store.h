// The golden store: bits that the reference has given, so that a change of them is seen and named. A folder
// holds, per operator, hashes.tsv (every case) and a folder for each case whose tensors are kept, and
// MANIFEST.sha256 over all of these. Reading it never writes.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "golden/store/hash_table.h"
#include "golden/store/manifest.h"

namespace touchstone {

/// What verify says of a case or of a file. Drift is of our own code, damage of the stored bytes.
enum class GoldenStatus : uint8_t {
    equal,         ///< every compared tensor has the stored bits
    input_drift,   ///< the generator makes other inputs: outputs are not compared
    output_drift,  ///< the same inputs give other outputs
    missing,       ///< a file that the manifest lists is not there
    unlisted,      ///< a file that the manifest does not list, or what a make has left aside
    damaged,  ///< a file whose SHA-256 is not the manifest's, a manifest that is not its own, a file that
              ///< cannot be read, or a case whose kept tensors are not those of its hashes
    stale,    ///< a case of the list, or a profile of it, that the store lacks
    refused,  ///< a stored case that no longer can be run
};
inline constexpr size_t golden_statuses = 8;
/// "equal", "INPUT DRIFT", ..
std::string_view golden_status_name(GoldenStatus status);
/// "equal", "input_drift", ..: for programs.
std::string_view golden_status_key(GoldenStatus status);

/// A tensor that is not what it was.
struct SlotChange {
    std::string slot;     ///< "inputs/x", "hopper/y"
    std::string was, is;  ///< "BF16[2,8]:0123456789abcdef"; empty: there was, or is, none
    int64_t elements = 0;
    int64_t differing = -1;  ///< of them; -1: the store has the hash alone
    int64_t first = -1;      ///< the first that differs, row-major

    std::string text() const;
};

struct GoldenFinding {
    GoldenStatus status = GoldenStatus::equal;
    std::string what;    ///< case text, or path of a file
    bool is_case;        ///< and no file
    std::string detail;  ///< a sentence; empty for `equal`
    std::vector<SlotChange> changes;
    int64_t compared = 0;  ///< tensors
};

/// Which cases: all of these hold.
struct GoldenFilter {
    std::string case_text;                 ///< a case; empty: any
    std::optional<std::regex> regex;       ///< found in the case's text
    std::optional<Arithmetic> arithmetic;  ///< this profile's outputs alone

    bool takes(std::string_view text) const;
    bool takes_everything() const { return case_text.empty() && !regex && !arithmetic; }
};
/// Throws UserError for a case or an expression that cannot be read.
GoldenFilter golden_filter(const std::string& case_text, const std::string& regex,
                           std::optional<Arithmetic> arithmetic);

/// A store as read: what can be trusted of it, and findings about files that cannot.
struct GoldenStore {
    std::filesystem::path folder;
    Manifest manifest;
    bool manifest_damaged = false;
    HashTable cases;                              ///< of tables that are not damaged
    std::map<std::string, std::string> kept;      ///< case text to folder, e.g. "rms_norm/rows=2,width=1"
    std::set<std::string, std::less<>> unusable;  ///< operators whose table is damaged or missing
    std::vector<GoldenFinding> problems;
};

/// Whether the folder has a manifest, or a make was stopped while it replaced that.
bool is_golden_store(const std::filesystem::path& folder);
/// Reads the tables of all operators and checks every file of those that `takes_operator` takes.
GoldenStore open_golden_store(const std::filesystem::path& folder,
                              const std::function<bool(std::string_view)>& takes_operator);

struct GoldenReport {
    std::vector<GoldenFinding> findings;  ///< files, then cases by operator and text, then stale ones
    int64_t cases = 0;                    ///< that were run
    int64_t compared = 0;                 ///< tensors

    int64_t count(GoldenStatus status) const;
    bool passed() const { return count(GoldenStatus::equal) == std::ssize(findings); }
};

/// Runs stored cases, in parallel, and compares. Of operators none of whose cases are taken no file is
/// checked.
GoldenReport verify_golden_store(const std::filesystem::path& folder, const GoldenFilter& filter);

/// A part of a case, as it was or is.
struct PartTensors {
    const PartDigests* digests;  ///< null: there is no such part
    const TensorMap* tensors;    ///< the bits, of some slots or of all; null: the digests alone
};
/// The slots whose digests differ, or whose bits do where both sides have them.
std::vector<SlotChange> changes_of_part(const std::string& part, const PartTensors& was,
                                        const PartTensors& is);

}  // namespace touchstone
