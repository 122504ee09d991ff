// Everything one sequence keeps between calls, in the records of layout/ (spec: text model, 15; memory, 3.1).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "reference/compressor.h"
#include "reference/kv_cache.h"
#include "reference/model/config.h"
#include "reference/window_cache.h"

namespace touchstone {

/// What the layers of one KV source share.
struct SourceState {
    int64_t ratio;
    KvCache main;      ///< compressed rows: group j is row j
    KvCache keys;      ///< their index keys
    OpenGroup open;    ///< fp32 rows of tokens whose group is not closed
    OpenGroup recent;  ///< the same of the last tokens, closed or not: what taking drafts back needs

    /// All but `recent`; open groups bit for bit.
    friend bool operator==(const SourceState& a, const SourceState& b);
};

/// A value: a copy is a fork, and shares nothing with its origin. Equal states continue with the same bits:
/// they have the same configuration, positions, windows, rows, open groups and Engram history. What truncate
/// alone needs is not compared.
class SequenceState {
  public:
    /// An empty sequence. `rollback_tokens`: how far behind the furthest token that it has seen truncate can
    /// go. Throws UserError for models without a text path here (V4) and for a number outside 0 ..
    /// max_position_embeddings.
    explicit SequenceState(const ModelConfig& config, int64_t rollback_tokens = 8);

    /// The configuration of the model that it belongs to.
    const ModelConfig& config() const { return config_; }

    /// Tokens seen so far: the position of the next one.
    int64_t tokens() const { return tokens_; }
    int64_t rollback_tokens() const { return rollback_tokens_; }

    WindowCache& window(int layer) { return windows_.at(static_cast<size_t>(layer)); }
    const WindowCache& window(int layer) const { return windows_.at(static_cast<size_t>(layer)); }
    int layers() const { return static_cast<int>(windows_.size()); }
    /// By the layer that owns it.
    SourceState& source(int layer) { return sources_.at(layer); }
    const SourceState& source(int layer) const { return sources_.at(layer); }
    const std::map<int, SourceState>& sources() const { return sources_; }

    /// Compressed ids of the last tokens, oldest first, engram_dead included: at least as many as the longest
    /// n-gram looks back, where there were so many.
    std::span<const int32_t> engram_history() const { return engram_history_; }

    /// A call brings windows and sources up to date layer by layer and ends with advance; one that ends in an
    /// exception leaves a state that no later call accepts. Throws UserError for such a state.
    void begin_call();
    /// Throws UserError when a call has failed half-way on this state.
    void require_usable() const;
    /// After a call has updated windows and sources: its tokens' compressed ids (empty without Engram).
    void advance(int64_t tokens, std::span<const int32_t> compressed_ids);
    /// Keeps what truncate may need of a call's compressor rows, [rows, Dh] each, and forgets older ones.
    void remember(int layer, std::span<const float> kv, std::span<const float> score);

    /// Takes back the tokens from `tokens` on: rejected drafts. The state is that of never having seen them.
    /// Throws UserError, with nothing changed, for more than there are, and for what is no longer there: more
    /// than rollback_tokens behind the furthest token seen, or before the state was loaded.
    void truncate(int64_t tokens);

    /// What a prefix cache keeps: compressed rows, keys, open groups and history, no windows.
    void drop_windows();

    friend bool operator==(const SequenceState& a, const SequenceState& b);

  private:
    friend struct SequenceStateFile;

    ModelConfig config_;
    int64_t tokens_ = 0, rollback_tokens_;
    int64_t engram_look_back_;
    std::vector<WindowCache> windows_;
    std::map<int, SourceState> sources_;
    std::vector<int32_t> engram_history_;
    bool in_call_ = false;
};

}  // namespace touchstone
