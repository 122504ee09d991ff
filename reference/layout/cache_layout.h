// Which caches a model keeps, each with its record: the one place from which byte counts are taken.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reference/layout/kv_record.h"
#include "reference/model/model.h"

namespace touchstone {

/// Records in which a model's global caches and windows are stored.
struct StorageFormat {
    std::string name;    ///< "fp4", "fp8-fp4index", ...
    KvRecord main;       ///< compressed (global) rows, or the only rows of a dense cache
    KvRecord index_key;  ///< index-key rows; record_bytes() 0 where the model has no indexer
    KvRecord window;     ///< sliding-window rows
};

enum class CacheKind : uint8_t { main_kv, index_key, window, draft_window };

/// A set of equal caches: the same record in each of `layers`.
struct CacheGroup {
    CacheKind kind;
    std::vector<int> layers;
    KvRecord record;
    /// main_kv and index_key: tokens per stored row; entries = floor(tokens / compress_ratio).
    int64_t compress_ratio = 1;
    /// window and draft_window: slots of the ring; 0 for caches that grow.
    int64_t window_tokens = 0;

    bool grows() const { return window_tokens == 0; }
};

/// fp32 rows that a compressor keeps until a group of tokens closes.
struct CompressorState {
    std::vector<int> layers;
    int64_t compress_ratio = 0;
    int64_t floats_per_row = 0;  ///< main and index compressor together
    int64_t minimal_rows =
        0;  ///< rows that can be open at once: ratio - 1, plus the overlap where there is one
    int64_t full_group_rows = 0;  ///< rows of all groups that overlap: what a reference buffer holds
    int64_t ring_rows = 0;        ///< rows of a serving engine's ring, with room for speculative rows
};

/// Everything one sequence keeps.
struct CacheLayout {
    StorageFormat format;
    std::vector<CacheGroup> groups;
    std::vector<CompressorState> compressor_states;
    int64_t engram_history_tokens = 0;  ///< last compressed token ids kept for the Engram hash (int32 each)
    std::vector<std::string>
        not_counted;  ///< state whose size is not published: totals are refused where non-empty
};

/// Names of the formats that `model` can be stored in; the first is the default.
std::vector<std::string> storage_format_names(const Model& model);

/// Throws UserError (with a did-you-mean) when the model has no such format. "" is the default.
StorageFormat storage_format(const Model& model, std::string_view name);

CacheLayout cache_layout(const Model& model, const StorageFormat& format);

}  // namespace touchstone
