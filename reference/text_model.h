// The text model: tokens in, logits out, for prefill, chunks and decode alike (spec: text model, 10.1 and
// 15).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "reference/attention.h"
#include "reference/block.h"
#include "reference/engram.h"

namespace touchstone {

/// What one call adds to one sequence.
struct Request {
    SequenceState* state;
    std::span<const int32_t> tokens;
    /// How many of `tokens` the sequence has already: they are run again to rebuild windows (encoder replay)
    /// and write no compressed row. The last of them is the sequence's last token.
    int64_t replayed_tokens = 0;
    /// With replayed tokens: those directly before `tokens`, as many as Engram looks back, or all there are;
    /// more are not read.
    std::span<const int32_t> before = {};
};

struct ForwardOptions {
    Trace trace = {};                         ///< of calls with one request
    std::span<const LayerRange> ranges = {};  ///< one per layer; empty: every row at every layer.
                                              ///< KV sources have to see every new row, Engram layers all
    const ForcedChoices* forced = nullptr;
    bool all_logits = false;  ///< of every row that reaches the head, not only the last
    std::function<void(int layer)> before_layer = nullptr;  ///< progress
};

/// Throws UserError for forced choices of positions first_position .. first_position + rows - 1 that cannot
/// be: experts or compressed rows that there are not, twice the same, more or fewer than the model chooses.
void require_forced_choices(const ForcedChoices& forced, const ModelConfig& config, int64_t first_position,
                            int64_t rows);

/// Engram's token ids are compressed by TokenMap::without_tokenizer: a released checkpoint wants the map of
/// its tokenizer.
class TextModel {
  public:
    /// `weights` has to outlive the model. Throws UserError for a family or shape without a text path here.
    TextModel(ModelConfig config, const TextWeights& weights, Arithmetic arithmetic,
              ReleasedBehaviour released = {});

    const ModelConfig& config() const { return config_; }
    const std::vector<LayerRole>& roles() const { return roles_; }
    Arithmetic arithmetic() const { return arithmetic_; }

    /// Runs the requests' tokens through all layers and brings the states up to date. Returns per request the
    /// logits of its last row [V] (with all_logits: [rows, V]), nothing where no row reached the head. A
    /// row's bits depend on its sequence alone: not on other requests, on how a prompt is cut into calls, or
    /// on threads. Throws UserError, with every state as it was: no tokens, a token outside the vocabulary,
    /// more tokens than max_position_embeddings, a state of another configuration, one that a failed call
    /// has left, one state twice, replayed tokens that the sequence does not have or whose windows are still
    /// there, too few tokens before them, ranges that keep rows from a KV source or an Engram layer, a trace
    /// of several requests.
    std::vector<std::vector<float>> forward(std::span<const Request> requests,
                                            const ForwardOptions& options = {}) const;

  private:
    struct Call;
    Call begin(std::span<const Request> requests, const ForwardOptions& options) const;
    std::vector<std::vector<float>> logits(const Call& call, const ForwardOptions& options) const;

    ModelConfig config_;
    std::vector<LayerRole> roles_;  ///< of the backbone
    const TextWeights& weights_;
    Arithmetic arithmetic_;
    ReleasedBehaviour released_;
    RopeTable main_table_, compress_table_;
    std::optional<EngramHash> engram_hash_;
    std::optional<TokenMap> token_map_;
};

}  // namespace touchstone
