// Bytes that one token or one decode step moves, for the parts that follow from the configuration alone:
// residual streams, Engram rows, expert weights (spec/memory 1.5, 5.6).
#pragma once

#include <cstdint>

#include "reference/model/config.h"
#include "simulator/parameters.h"

namespace touchstone {

/// Reads and writes of the n residual streams per sub-layer, in units of the hidden size:
/// single_pass 2n + 2, two_pass 3n + 2, original (separate kernels) 4n + 4.
enum class StreamForm : uint8_t { single_pass, two_pass, original };
int64_t stream_values_per_sublayer(int64_t streams, StreamForm form);

/// bf16 bytes of the residual streams that one token moves through both sub-layers of every layer.
int64_t stream_bytes_per_token(const ModelConfig& config, StreamForm form);

/// Bytes of one Engram row: fp8 values and one e8m0 scale per 32. 264.
int64_t engram_row_bytes(const ModelConfig& config);
/// Bytes of Engram rows one token reads over all Engram layers. 12,672.
int64_t engram_read_bytes_per_token(const ModelConfig& config);

/// Expected number of distinct routed experts that a layer touches for `tokens` tokens in one step, experts
/// chosen independently and uniformly: E (1 - (1 - k/E)^tokens) (g21).
double expected_distinct_experts(const ModelConfig& config, int64_t tokens);

/// Weight bytes read by one decode step of `tokens` tokens: expected routed experts of all layers, and
/// everything else that every step reads (attention, shared experts, Engram projections, indexers, gates,
/// mHC, norms, head).
struct StepWeightBytes {
    double routed = 0;
    int64_t others = 0;
};
/// `totals` are those of `config`.
StepWeightBytes step_weight_bytes(const ModelConfig& config, const WeightTotals& totals, int64_t tokens);

}  // namespace touchstone
