// Bounded replay of the causal encoder-decoder: positions, work and bytes (spec/memory 1.4, 5.5, 6).
#pragma once

#include <cstdint>

#include "reference/model/model.h"
#include "simulator/kv_accounting.h"
#include "simulator/parameters.h"

namespace touchstone {

/// Positions that must run again to rebuild sliding windows.
struct ReplayLengths {
    int64_t bounded_tokens = 0;        ///< W: what the report's replay runs
    int64_t exact_tokens = 0;          ///< decoder halo: layers * (W - 1) + 1
    int64_t exact_token_layers = 0;    ///< the same computing only what each layer needs
    int64_t uncut_token_layers = 0;    ///< exact_tokens on every decoder layer
    int64_t whole_windows_tokens = 0;  ///< the report's figure for the decoder: W * layers
    int64_t whole_model_tokens = 0;    ///< the report's figure for all layers: W * L
    int64_t engine_halo_tokens = 0;    ///< layers after the first decoder layer: W + (n - 1)(W - 1)
};

/// Linear FLOPs (2 per active parameter and token; attention and index scores are not in it). Values beyond
/// 2^53 are rounded to double.
struct PrefillFlops {
    double full = 0;     ///< every layer on every token
    double bounded = 0;  ///< decoder on the last min(N, W) tokens
    double exact = 0;    ///< decoder on the last min(N, exact_tokens) tokens
    double engine = 0;   ///< first decoder layer on every token, the others on the last min(N, W)
    /// First decoder layer's KV projection for prompt tokens the bounded decoder skips: under 0.04 percent of
    /// `bounded`, which leaves it out as the report's cost formula does.
    double boundary_projection = 0;
};

/// One turn: a prompt of N tokens of which `new_tokens` are new and the rest is a prefix-cache hit.
struct TurnFlops {
    double hit = 0;           ///< windows of the prefix are still there
    double miss_bounded = 0;  ///< encoder replays min(W, prefix) tokens
    double miss_exact = 0;    ///< encoder replays min(exact_tokens, prefix), decoder runs the exact halo
};

class Replay {
  public:
    /// Throws UserError for a model without an encoder and a decoder half.
    Replay(const Model& model, const KvAccount& account);

    const ReplayLengths& lengths() const { return lengths_; }
    PrefillFlops prefill(int64_t prompt_tokens) const;
    TurnFlops turn(int64_t prompt_tokens, int64_t new_tokens) const;
    /// Encoder window bytes that a replay of `tokens` positions writes: min(tokens, W) rows in every encoder
    /// layer.
    int64_t encoder_window_bytes(int64_t tokens) const;
    int64_t encoder_parameters() const { return encoder_; }
    int64_t decoder_parameters() const { return decoder_; }
    int64_t first_decoder_layer() const { return first_decoder_layer_; }

  private:
    ReplayLengths lengths_;
    int64_t window_tokens_ = 0;
    int64_t first_decoder_layer_ = 0;
    int64_t decoder_layer_count_ = 0;
    int64_t window_record_bytes_ = 0;
    int64_t encoder_ = 0;  ///< active parameters of the encoder, Engram included
    int64_t decoder_ = 0;
    int64_t kv_projection_ = 0;
};

}  // namespace touchstone
