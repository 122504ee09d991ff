// The dot products and weighted sums of sparse attention in `exact`, vectorised
// (sparse_attention_vector.cpp).
#pragma once

#include <cstdint>

#include "reference/numerics/isa.h"

namespace touchstone {

/// One instruction set's loops over a block of entries. rows[j] is null where entry j is not there; at least
/// one is.
struct SparseAttentionKernels {
    Isa isa;
    /// scores[j] = q . rows[j] over `channels`, in `lanes` interleaved lanes (numerics contract, section 4),
    /// for j < entries; anything where the row is null.
    void (*scores)(const float* q, const float* const* rows, int64_t entries, int64_t channels, int64_t lanes,
                   float* scores);
    /// Per head: values = values * change[head], then values = fma(weights[head][j], rows[j], values) for j
    /// ascending where there is a row. weights is [heads, entries], values [heads, channels].
    void (*add_values)(const float* weights, const float* change, int64_t heads, const float* const* rows,
                       int64_t entries, int64_t channels, float* values);
};

/// The loops of `isa`, which this CPU has to support.
const SparseAttentionKernels& sparse_attention_kernels(Isa isa);

}  // namespace touchstone
