// Parameters, weight bytes and active parameters of V4.1, summed over the official tensor list.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/model/config.h"
#include "reference/model/weights.h"

namespace touchstone {

struct ComponentWeights {
    WeightComponent component{};
    int64_t tensors = 0;
    int64_t parameters = 0;    ///< values of the logical matrices; block scales are not parameters
    int64_t stored_bytes = 0;  ///< payload bytes, scales included
};

/// The whole checkpoint (spec/text_model 11).
struct WeightTotals {
    std::vector<ComponentWeights> components;
    int64_t tensors = 0;
    int64_t parameters = 0;
    int64_t stored_bytes = 0;
    /// Everything but Engram, DSpark and vision: the "552B" of the report.
    int64_t backbone_parameters = 0;

    const ComponentWeights& of(WeightComponent component) const;
};
WeightTotals weight_totals(const ModelConfig& config);

/// Parameters that one token multiplies with. `layers` counts per layer the active experts, attention (norms
/// and sink included), router matrix, mHC and block norms; biases of the gate are left out (spec/text_model
/// 11).
struct ActiveParameters {
    int64_t layer = 0;               ///< one layer without compressor, indexer, Engram: 377,302,902
    int64_t encoder_layers = 0;      ///< layers before first_decoder_layer, without the next two
    int64_t encoder_csa = 0;         ///< their compressor and indexer matrices
    int64_t engram_projections = 0;  ///< wkv of all Engram layers
    int64_t decoder_layers = 0;
    int64_t decoder_csa = 0;
    int64_t decoder_kv_projection = 0;  ///< compressor wkv and index wk of the first decoder layer: what a
                                        ///< skipped prompt token still needs
    int64_t head = 0;

    /// Prefill with bounded replay: encoder, and the decoder's KV projection; "8B".
    int64_t prefill(bool with_engram) const;
    /// Prefill that runs the first decoder layer whole on every token, its compressor and indexer included.
    int64_t prefill_with_first_decoder_layer(bool with_engram) const;
    /// Decode: all layers; "16B" with or without head and Engram.
    int64_t decode(bool with_head, bool with_engram) const;
    int64_t first_decoder_csa = 0;  ///< compressor and indexer matrices of the first decoder layer
};
ActiveParameters active_parameters(const ModelConfig& config);

/// Stored bytes of one routed expert (w1, w2, w3 with their scales).
int64_t routed_expert_bytes(const ModelConfig& config, const WeightTotals& totals);

}  // namespace touchstone
