// The causal encoder-decoder at work: which layers see which rows of a prompt, and rebuilding windows that a
// prefix cache does not keep (spec: text model, 7).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "reference/text_model.h"

namespace touchstone {

/// What a prefill runs.
enum class ReplayMode : uint8_t {
    none,     ///< oracle: every layer on every row, as the released code does
    bounded,  ///< the decoder on the prompt's last W rows, windows cut where they begin: a stated
              ///< approximation
    exact,    ///< the decoder on as many more rows as keep the last row and all windows exact
};

/// Which rows the decoder's first layer, the last KV source, sees under bounded replay (text model, 7.4). It
/// makes compressed rows and index keys of every row in all three.
enum class BoundaryReading : uint8_t {
    truncated,    ///< A: cut like the others
    own_windows,  ///< B: window rows of every row, queries of the last W
    whole,        ///< C: runs on every row
};

/// "none", "bounded", "exact"; "A", "B", "C". Throw UserError for other names.
ReplayMode replay_mode(std::string_view name);
BoundaryReading boundary_reading(std::string_view letter);

/// Ranges of all layers for a prompt that ends at `prompt_tokens`: absolute positions, so the prompt may be
/// cut into calls anywhere. Throws UserError where the decoder cannot skip rows: an Engram layer in it, or no
/// layer after the last KV source.
std::vector<LayerRange> replay_ranges(const ModelConfig& config, ReplayMode mode, BoundaryReading reading,
                                      int64_t prompt_tokens);

struct PrefillOptions {
    ReplayMode mode = ReplayMode::none;
    BoundaryReading reading = BoundaryReading::own_windows;
    int64_t chunk_tokens = 512;
    ForwardOptions forward = {};  ///< its ranges are set here
    /// Of the trace, before each call: the call's first position.
    std::function<Trace(int64_t first_position)> trace_of_call = nullptr;
};

/// Runs `tokens` behind the state's and returns the last row's logits. Throws UserError as forward and
/// replay_ranges do, and for chunks of no tokens.
std::vector<float> prefill(const TextModel& model, SequenceState& state, std::span<const int32_t> tokens,
                           const PrefillOptions& options = {});

/// A prompt whose first state.tokens() tokens are in the state without windows (SequenceState::drop_windows):
/// runs the last `replay_tokens` of them through the encoder again, under windows that begin with them, then
/// the rest of the prompt as `prefill` does. Compressed rows and keys of the prefix are read, never written.
/// `prompt` is the whole prompt. Throws UserError, with the state as it was, when nothing is left to run, or
/// when the prefix is not longer than `replay_tokens` (engines do not adopt such a hit: run the prompt anew).
std::vector<float> prefill_after_hit(const TextModel& model, SequenceState& state,
                                     std::span<const int32_t> prompt, int64_t replay_tokens,
                                     const PrefillOptions& options = {});

}  // namespace touchstone
