// Attention of a layer over its own window and the compressed rows of its KV source (spec: text model, 4 to
// 6), for the rows of one call, which may belong to several sequences.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "reference/kv_cache.h"
#include "reference/model/config.h"
#include "reference/model/layer_roles.h"
#include "reference/model/layer_weights.h"
#include "reference/model/trace.h"
#include "reference/rope.h"
#include "reference/sequence_state.h"

namespace touchstone {

/// Rows of one sequence in a call: positions first_position, first_position + 1, ..
struct RowRun {
    SequenceState* state;
    int64_t first_position;
    int64_t rows;
};

/// The rows of a call, run after run.
struct CallRows {
    std::vector<RowRun> runs;

    int64_t rows() const;
    std::vector<int64_t> positions() const;
    /// Without those before `position` in each run.
    CallRows from(int64_t position) const;
    /// For every row of from(position), its index here.
    std::vector<int64_t> kept_from(int64_t position) const;
};

/// What the released code does and the specification does not (text model 6.4, 6.5); both off by default.
struct ReleasedBehaviour {
    /// A decode step (a call's only row of its sequence, not the first) that closes no group scores its
    /// queries against the keys last published, those of the last KV source, in layers whose own source has a
    /// ratio above 1.
    bool stale_index_keys = false;
    /// Where fewer rows than index_topk lie in the pool, visible rows outside it fill the list and are
    /// attended.
    bool masked_rows_attended = false;
};

/// Selections to take instead of computed ones: by layer and position. Using them throws UserError for rows
/// that the position does not see and experts that there are not.
struct ForcedChoices {
    std::map<int, std::map<int64_t, std::vector<int32_t>>> experts;   ///< in selection order
    std::map<int, std::map<int64_t, std::vector<int32_t>>> selected;  ///< compressed rows, ascending, no -1
};

/// What index sources publish for the layers behind them: per row of the call.
struct PublishedSelections {
    std::vector<std::vector<int32_t>> selected;  ///< compressed rows, ascending
    std::vector<std::vector<int32_t>> pool;      ///< kept blocks, ascending; of the pool's builder

    /// For the rows that remain.
    void keep(std::span<const int64_t> rows);
};

/// What is the same for all layers of a call.
struct AttentionContext {
    const ModelConfig& config;
    Arithmetic arithmetic;
    ReleasedBehaviour released;
    const ForcedChoices* forced = nullptr;
    const RopeTable& main_table;
    const RopeTable& compress_table;
};

/// Window rows that a call adds to one run, kept beside the ring until the call's queries have been served: a
/// call longer than the spare slots overwrites rows that its own first queries need.
struct NewWindowRows {
    int64_t first_position;
    std::vector<Bf16> rows;  ///< [n, Dh], before Q8
    KvCache packed;          ///< the same rows as the ring will hold them
};

/// Step 1, for all rows of the call: window rows from `window_from` on (kv = Q8(rope(rms_norm(L8(x, wkv))))),
/// and in a KV source the latents of groups closed by new tokens, their index keys, and their compressed rows
/// (Q4m(rope(latent)) at the group's first position). Rows of positions that the sequence has already
/// (replay) write no compressed row. `x` is [rows, D]; the result has an entry per run.
std::vector<NewWindowRows> attention_caches(const AttentionContext& context, const LayerRole& role,
                                            const AttentionWeights& weights, std::span<const Bf16> x,
                                            const CallRows& rows, int64_t window_from, const Trace& trace);

/// Step 2, for the rows that are computed here: queries, selection in index sources, attention over window
/// and selected rows, output projections. The list of a query at p: window positions p - W + 1 .. p, as far
/// as they are held, then its selected rows, ascending (contract, section 7). `y` is [rows, D].
void attention_queries(const AttentionContext& context, const LayerRole& role,
                       const AttentionWeights& weights, std::span<const Bf16> x, const CallRows& rows,
                       std::span<const NewWindowRows> new_rows, PublishedSelections& published,
                       std::span<Bf16> y, const Trace& trace);

/// Step 3: the call's window rows go into the rings.
void commit_window_rows(int layer, const CallRows& rows, std::span<const NewWindowRows> new_rows);

}  // namespace touchstone
