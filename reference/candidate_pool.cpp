#include "reference/candidate_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>

#include "reference/io/user_error.h"
#include "reference/numerics/total_order.h"
#include "reference/top_k.h"

namespace touchstone {

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

void require_shape(const CandidatePoolShape& shape) {
    if (shape.block_size >= 1 && shape.topk_blocks >= 0) return;
    throw UserError({fmt::format("blocks of {}, {} of them kept", shape.block_size, shape.topk_blocks),
                     "candidate_pool", "blocks of at least 1 row, none or more kept", ""});
}

}  // namespace

CandidatePool candidate_pool(std::span<const float> scores, const CandidatePoolShape& shape) {
    require_shape(shape);
    const int64_t rows = std::ssize(scores), blocks = (rows + shape.block_size - 1) / shape.block_size;
    CandidatePool pool;
    if (rows == 0) return pool;
    pool.block_scores.resize(static_cast<size_t>(blocks));
    for (int64_t block = 0; block < blocks; ++block) {
        const float* row = scores.data() + block * shape.block_size;
        const int64_t count = std::min(shape.block_size, rows - block * shape.block_size);
        pool.block_scores[static_cast<size_t>(block)] =
            *std::max_element(row, row + count,  // NaN is the smallest here as in every selection
                              [](float a, float b) { return order_mapped(a) < order_mapped(b); });
    }
    pool.block_scores.back() = infinity;  // what was written last is always a candidate

    pool.blocks.resize(static_cast<size_t>(std::min(shape.topk_blocks, blocks)));
    top_k(pool.block_scores, 1, blocks, std::ssize(pool.blocks), {}, TopKOutput::ascending, pool.blocks);
    std::erase_if(pool.blocks, [&pool](int32_t block) {
        return !(pool.block_scores[static_cast<size_t>(block)] > -infinity);
    });
    return pool;
}

void pool_mask(std::span<const int32_t> blocks, const CandidatePoolShape& shape, std::span<uint8_t> mask) {
    require_shape(shape);
    const int64_t rows = std::ssize(mask);
    for (const int32_t block : blocks)
        if (block < 0 || block * shape.block_size >= rows)
            throw UserError({fmt::format("block {} of {} rows", block, shape.block_size), "pool_mask",
                             fmt::format("a block that begins within {} rows", rows),
                             "pass the blocks of a pool of these rows"});
    std::ranges::fill(mask, uint8_t{0});
    for (const int32_t block : blocks) {
        const int64_t first = block * shape.block_size;
        std::fill_n(mask.data() + first, std::min(shape.block_size, rows - first), uint8_t{1});
    }
}

}  // namespace touchstone
