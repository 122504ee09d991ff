#include "golden/k_blocks.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>

namespace touchstone {

namespace {

using Matrix = Eigen::MatrixXd;
using Vector = Eigen::VectorXd;

/// A larger share of the residual than this may not stay.
constexpr double most_unexplained = 0.05;
/// A block whose factor is below this share of the largest one is noise of the fit.
constexpr double least_factor = 0.05;
/// Equations per unknown: with fewer a fit explains anything.
constexpr int64_t equations_per_unknown = 2;
/// Outputs that are looked at.
constexpr int64_t most_rows = 256, most_outputs = 512;

/// The first group's operands and residual in double, scales in them, cut to most_rows and most_outputs.
struct Problem {
    Matrix a, b, residual;  ///< [rows, K], [outputs, K], [rows, outputs]
    int64_t block;

    int64_t blocks() const { return a.cols() / block; }
    auto a_block(int64_t i) const { return a.middleCols(i * block, block); }
    auto b_block(int64_t i) const { return b.middleCols(i * block, block); }
};

double value(const std::vector<float>& values, const std::vector<float>& scales, int64_t i) {
    const double code = static_cast<double>(values[static_cast<size_t>(i)]);
    return scales.empty() ? code : code * static_cast<double>(scales[static_cast<size_t>(i / 32)]);
}

Problem problem_of(const LinearOperands& operands, std::span<const double> residual, int64_t group) {
    const int64_t each = operands.outputs_per_group(), rows = std::min(operands.rows, most_rows),
                  outputs = std::min(each, most_outputs), k = operands.inputs;
    Problem p{Matrix(rows, k), Matrix(outputs, k), Matrix(rows, outputs), operands.block()};
    for (int64_t m = 0; m < rows; ++m)
        for (int64_t i = 0; i < k; ++i)
            p.a(m, i) = value(operands.a, operands.a_scales, (m * operands.groups + group) * k + i);
    for (int64_t n = 0; n < outputs; ++n)
        for (int64_t i = 0; i < k; ++i)
            p.b(n, i) = value(operands.b, operands.b_scales, (group * each + n) * k + i);
    for (int64_t m = 0; m < rows; ++m)
        for (int64_t n = 0; n < outputs; ++n)
            p.residual(m, n) = residual[static_cast<size_t>(m * operands.outputs + group * each + n)];
    // Rows that are NaN by their activations say nothing about blocks.
    for (int64_t m = 0; m < rows; ++m)
        if (!p.a.row(m).allFinite() || !p.residual.row(m).allFinite()) {
            p.a.row(m).setZero();
            p.residual.row(m).setZero();
        }
    return p;
}

double share_left(const Matrix& left, const Matrix& residual) {
    return left.norm() / residual.norm();
}

/// Factors of all blocks' partial products at once.
std::optional<KBlock> all_counted(const Problem& p) {
    const int64_t count = p.blocks();
    if (p.residual.size() < equations_per_unknown * count) return std::nullopt;
    Matrix products(p.residual.size(), count);
    for (int64_t i = 0; i < count; ++i) {
        const Matrix partial = p.a_block(i) * p.b_block(i).transpose();
        products.col(i) = partial.reshaped();
    }
    const Vector residual = p.residual.reshaped();
    const Vector factors = products.colPivHouseholderQr().solve(residual);
    const double left = (residual - products * factors).norm() / residual.norm();
    if (!(left <= most_unexplained)) return std::nullopt;
    const double largest = factors.cwiseAbs().maxCoeff();
    // All of K with one factor: the outputs were scaled, no block is at fault.
    if (factors.maxCoeff() - factors.minCoeff() <= least_factor * largest) return std::nullopt;
    for (int64_t i = 0; i < count; ++i)
        if (std::abs(factors[i]) >= least_factor * largest)
            return KBlock{i, BlockChange::counted, factors[i], left};
    return std::nullopt;
}

/// The factor of one block's partial products.
KBlock counted(const Problem& p, int64_t i) {
    const Matrix partial = p.a_block(i) * p.b_block(i).transpose();
    const double square = partial.squaredNorm();
    const double factor = square > 0 ? partial.cwiseProduct(p.residual).sum() / square : 0;
    return {i, BlockChange::counted, factor, share_left(p.residual - factor * partial, p.residual)};
}

/// What any matrix X leaves of residual = basis X.
double left_of_span(const Matrix& basis, const Matrix& residual) {
    const Matrix x = basis.colPivHouseholderQr().solve(residual);
    return share_left(residual - basis * x, residual);
}

KBlock other_activations(const Problem& p, int64_t i) {
    return {i, BlockChange::activations, 0, left_of_span(p.b_block(i), p.residual.transpose())};
}

KBlock other_weights(const Problem& p, int64_t i) {
    return {i, BlockChange::weights, 0, left_of_span(p.a_block(i), p.residual)};
}

using Fit = KBlock (*)(const Problem&, int64_t);

/// The block that leaves least, if it leaves little.
std::optional<KBlock> best_block(const Problem& p, Fit fit) {
    std::optional<KBlock> best;
    for (int64_t i = 0; i < p.blocks(); ++i) {
        const KBlock one = fit(p, i);
        if (one.unexplained <= most_unexplained && (!best || one.unexplained < best->unexplained)) best = one;
    }
    return best;
}

std::optional<KBlock> block_of_group(const Problem& p) {
    if (!p.b.allFinite() || p.blocks() < 2) return std::nullopt;
    // One number explains one output whatever the block.
    if (p.residual.size() >= 8)
        if (const auto one = best_block(p, counted)) return one;
    if (const auto several = all_counted(p)) return several;
    if (p.b.rows() >= equations_per_unknown * p.block)
        if (const auto one = best_block(p, other_activations)) return one;
    if (p.a.rows() >= equations_per_unknown * p.block) return best_block(p, other_weights);
    return std::nullopt;
}

}  // namespace

std::optional<KBlock> first_k_block(const LinearOperands& operands, std::span<const double> residual) {
    std::optional<KBlock> first;
    for (int64_t group = 0; group < operands.groups; ++group) {
        const Problem p = problem_of(operands, residual, group);
        if (p.residual.norm() == 0) continue;  // this group is right
        const std::optional<KBlock> one = block_of_group(p);
        if (!one) return std::nullopt;
        if (!first || one->block < first->block) first = one;
    }
    return first;
}

}  // namespace touchstone
