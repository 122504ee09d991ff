// Linear layers in double: the same codes and scales as reference/linear.h, every sum without rounding that
// matters, and the bound within which each arithmetic has to stay.
#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <span>

#include "reference/linear.h"

namespace touchstone::truth {

/// Row-major, as tensors are.
using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Both operands of a product y = a b^T, dequantised exactly: a [rows, inputs], b [outputs, inputs].
struct LinearOperands {
    Matrix a, b;
};

LinearOperands linear_operands(std::span<const Bf16> x, int64_t rows, const Fp8Weight& weight);
LinearOperands linear_operands(std::span<const Bf16> x, int64_t rows, const Fp4Weight& weight);
LinearOperands linear_operands(std::span<const Bf16> x, int64_t rows, const Bf16Weight& weight);

/// a b^T, [rows, outputs]: what the fp32 accumulators of reference/linear.h approximate.
Matrix linear(const LinearOperands& operands);

/// Per output, how far the fp32 accumulator may be from linear(). Each is a running bound: what every
/// rounding or truncation can lose, from the partial sums that really occur (in double, enlarged by 2^-10 for
/// the rounding they bring themselves).
///
/// u = 2^-24, half a unit of fp32 relative to its value:
/// - exact block sums: u |P_b s_b| when a block's sum is rounded, u |partial sum| when it is added.
Matrix exact_blocks_bound(const LinearOperands& operands);
/// - exact lanes: u |lane| after each FMA, u |sum| at each node of the tree.
Matrix exact_lanes_bound(const LinearOperands& operands, const Lanes& lanes);
/// - hopper: a step with largest exponent e truncates up to 17 terms to multiples of 2^(e - 25), each by less
/// than one
///   unit, and its sum to 24 bits, by less than 2^-23 |sum|; pieces are added in fp32, u |sum| each.
Matrix hopper_bound(const LinearOperands& operands, const SumOrder& order);
/// - released_hopper: a block's step truncates 32 terms to multiples of 2^(e - 13) and its sum to 14 bits,
/// 2^-13 |P_b|;
///   then as exact.
Matrix released_hopper_bound(const LinearOperands& operands);

}  // namespace touchstone::truth
