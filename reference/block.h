// One backbone layer: Engram where it has one, attention, experts, each between two hyper-connection mixes
// (spec: text model, 8.3).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/attention.h"

namespace touchstone {

/// The residual streams of a call's rows and the mix with which the next sublayer collapses them.
struct ResidualStreams {
    std::vector<Bf16> h;     ///< [rows, n, D]
    std::vector<float> pre;  ///< [rows, n]: made one sublayer earlier

    /// For the rows that remain.
    void keep(std::span<const int64_t> rows, int64_t streams, int64_t width);
};

/// Which positions a layer works on; below them it does nothing (spec: text model, 7). KV sources append
/// compressed rows for every row of the call, whatever the plan says.
struct LayerRange {
    int64_t window_from = 0;  ///< window rows are made from here on
    int64_t query_from = 0;   ///< attention and experts run from here on; not below window_from
};

/// The layer on the call's rows, in place; rows below range.query_from are dropped from `rows` and `streams`.
/// `engram_row_ids` is [rows, columns] in layers with an Engram. Traces every intermediate value. The runs'
/// states get the layer's window rows and, of a KV source, compressed rows and keys.
void block(const AttentionContext& context, const LayerRole& role, const LayerWeights& weights,
           const LayerRange& range, std::span<const int64_t> engram_row_ids, CallRows& rows,
           ResidualStreams& streams, PublishedSelections& published, const Trace& trace);

/// Of a configuration, for mix.
HyperConnectionShape hyper_connection_shape(const ModelConfig& config);

}  // namespace touchstone
