// Where along K a linear layer's result leaves the reference, from its outputs alone.
#pragma once

#include <optional>
#include <span>

#include "golden/hypotheses/linear_operands.h"

namespace touchstone {

/// What a block's products have to do with the difference.
enum class BlockChange : uint8_t {
    counted,      ///< they enter with another factor: left out, twice, wrongly scaled
    activations,  ///< the weights of the block meet other activations
    weights,      ///< the activations of the block meet other weights
};

/// A block of K (LinearOperands::block) that explains a difference.
struct KBlock {
    int64_t block = 0;  ///< the first one
    BlockChange change = BlockChange::counted;
    double factor = 0;       ///< of `counted`: what was added, times the block's own products; -1: left out
    double unexplained = 0;  ///< rms of what is left, as a share of the rms of the difference
};

/// `residual` [rows, outputs] is the result minus the reference's; only rows and outputs that are wrong are
/// looked at, some hundred at most. Least squares: the blocks' own partial
/// products first, all blocks at once where the outputs are many enough, else each alone; then, for one
/// block, any other activations or weights. Rows that are not finite are left aside. Nothing where more than
/// 5 percent of the residual stays, where it is zero, where all of K has one factor, or where the outputs are
/// too few to tell.
std::optional<KBlock> first_k_block(const LinearOperands& operands, std::span<const double> residual);

}  // namespace touchstone
