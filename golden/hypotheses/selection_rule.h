// top_k and candidate_pool with their choices as data: hypotheses change one of them.
#pragma once

#include <functional>

#include "golden/hypotheses/hypothesis.h"

namespace touchstone {

enum class SelectionOutput : uint8_t { as_the_run_says, ascending, selection, descending_index };

/// The defaults are the reference's.
struct TopKRule {
    bool higher_index_wins = false;
    bool nan_largest = false;
    bool negative_zero_below = false;  ///< -0 below +0
    bool smallest = false;             ///< the smallest are selected
    float (*score)(float) = nullptr;   ///< what is compared, where it is given
    int64_t more = 0;                  ///< entries more than k (the output stays of k)
    int64_t more_visible = 0;          ///< columns more than are visible, at most all
    bool visible_ignored = false, mask_ignored = false;
    SelectionOutput output = SelectionOutput::as_the_run_says;
    int32_t padding = -1;
};

/// A run of top_k by a changed rule.
Outputs with_top_k(std::function<void(TopKRule& rule)> change);

enum class BlockScore : uint8_t { largest, mean, sum, first, last, smallest };

/// The defaults are the reference's.
struct PoolRule {
    BlockScore score = BlockScore::largest;
    bool newest_forced = true;
    bool zeros_behind_the_last = false;      ///< rows beyond the visible ones count as 0
    bool newest_is_visible_by_size = false;  ///< V / size, not (V - 1) / size
    bool first_forced = false;
    bool higher_block_wins = false;
    bool masked_blocks_kept = false;  ///< those of -infinity too
    int64_t more_blocks = 0;          ///< kept beyond topk_blocks (the output stays as it is)
    bool blocks_by_score = false;     ///< the best first, not ascending
    int32_t padding = -1;
};

/// A run of candidate_pool by a changed rule.
Outputs with_pool(std::function<void(PoolRule& rule)> change);

}  // namespace touchstone
