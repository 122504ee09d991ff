// Making a golden store, or a part of one anew: the only code that writes to it.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "golden/store/store.h"

namespace touchstone {

enum class GoldenChangeKind : uint8_t { added, changed, removed, rewritten };
/// "added", "changed", ..
std::string_view golden_change_name(GoldenChangeKind kind);

/// What making changes in a store: a case, or a file: one that goes (removed), and one whose bytes change
/// though no case's tensors are known to (rewritten), also a damaged one.
struct GoldenChange {
    GoldenChangeKind kind;
    std::string what;
    std::vector<SlotChange> slots;  ///< of a changed case
};

struct GoldenMakeReport {
    std::vector<GoldenChange> changes;  ///< by operator and text
    int64_t cases = 0;                  ///< that were run
    int64_t files = 0, bytes = 0;       ///< of the whole store, its manifest included
    bool written = false;               ///< false: it would replace something, and was not allowed to

    int64_t count(GoldenChangeKind kind) const;
};

/// Runs the listed cases that `filter` takes and stores them in `folder`, whose other cases stay; a filter
/// that takes everything also removes what the list no longer has. Without `replace` a store is only added
/// to: where anything would change, nothing is written at all. Files are written aside and renamed when all
/// are complete, the manifest last; when that fails, what was renamed goes back: at once, or where the
/// process was killed, when the next one is made. Throws UserError where another make is at work in the
/// folder, no case is taken, a case is refused, the folder cannot be written to, or a damaged file would have
/// to be read to keep the other cases.
GoldenMakeReport make_golden_store(const std::filesystem::path& folder, const GoldenFilter& filter,
                                   bool replace);

}  // namespace touchstone
