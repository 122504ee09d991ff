// The candidate pool: blocks of compressed rows inside which the Reindex layers of the decoder select (spec:
// text model, 6.4).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace touchstone {

struct CandidatePoolShape {
    int64_t block_size;   ///< rows of a block: 8
    int64_t topk_blocks;  ///< blocks that are kept: 2,048
};

struct CandidatePool {
    std::vector<float> block_scores;  ///< of every block; the newest one's is +infinity
    std::vector<int32_t> blocks;      ///< kept, ascending
};

/// From one query's `scores` of its visible rows, 0 .. V - 1. A block's score is its largest row's (rows
/// beyond V count as -infinity, not 0), the newest block's is +infinity; kept are the topk_blocks largest,
/// ties to the lower block, and none whose score is -infinity. A NaN is the smallest of scores, as in every
/// selection: it does not speak for its block. Empty for V = 0. Throws UserError for a block size below 1 or
/// a negative number of blocks.
CandidatePool candidate_pool(std::span<const float> scores, const CandidatePoolShape& shape);

/// mask [V]: 1 inside a kept block, else 0. Throws UserError, with nothing written, for a block that begins
/// beyond the mask.
void pool_mask(std::span<const int32_t> blocks, const CandidatePoolShape& shape, std::span<uint8_t> mask);

}  // namespace touchstone
