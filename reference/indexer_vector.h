// The roundings of index scores, vectorised over keys (indexer_vector.cpp); what they are says indexer.h.
#pragma once

#include <cstdint>

#include "reference/numerics/isa.h"

namespace touchstone {

/// One instruction set's loop.
struct IndexerKernels {
    Isa isa;
    /// scores[key] from products [heads, keys], the fp32 q . k, and the heads' weights; `lanes` of
    /// index_head_sum, at most 8.
    void (*head_sums)(const float* products, int64_t heads, int64_t keys, const float* weights, int64_t lanes,
                      float* scores);
};

/// The loop of `isa`, which this CPU has to support.
const IndexerKernels& indexer_kernels(Isa isa);

}  // namespace touchstone
