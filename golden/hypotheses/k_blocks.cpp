#include "golden/hypotheses/k_blocks.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <vector>

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
constexpr int64_t most_rows = 128, most_outputs = 256, most_products = 4096;
/// A row or an output whose residual is below this share of the largest one's is right but for rounding.
constexpr double least_residual = 0.01;

/// The rows and outputs of a group that are wrong, in double, scales in the operands.
struct Problem {
    Matrix a, b, residual;  ///< [rows, K], [outputs, K], [rows, outputs]
    int64_t block;

    int64_t blocks() const { return a.cols() / block; }
    auto a_block(int64_t i) const { return a.middleCols(i * block, block); }
    auto b_block(int64_t i) const { return b.middleCols(i * block, block); }
};

/// Places of the largest lengths' own kind, ascending, at most `most`.
std::vector<int64_t> wrong_ones(const Vector& lengths, int64_t most) {
    std::vector<int64_t> places;
    for (int64_t i = 0; i < lengths.size() && std::ssize(places) < most; ++i)
        if (lengths[i] > 0 && lengths[i] >= least_residual * lengths.maxCoeff()) places.push_back(i);
    return places;
}

double value(const std::vector<float>& values, const std::vector<float>& scales, int64_t i) {
    const double code = static_cast<double>(values[static_cast<size_t>(i)]);
    return scales.empty() ? code : code * static_cast<double>(scales[static_cast<size_t>(i / 32)]);
}

/// Row `row` of an operand of K columns.
Vector row_of(const std::vector<float>& values, const std::vector<float>& scales, int64_t row, int64_t k) {
    Vector result(k);
    for (int64_t i = 0; i < k; ++i) result[i] = value(values, scales, row * k + i);
    return result;
}

Problem problem_of(const LinearOperands& operands, std::span<const double> residual, int64_t group) {
    const int64_t each = operands.outputs_per_group(), k = operands.inputs;
    Matrix all(operands.rows, each);
    for (int64_t m = 0; m < operands.rows; ++m)
        for (int64_t n = 0; n < each; ++n)
            all(m, n) = residual[static_cast<size_t>(m * operands.outputs + group * each + n)];
    // Rows that are NaN by their activations say nothing about blocks.
    for (int64_t m = 0; m < operands.rows; ++m)
        if (!all.row(m).allFinite()) all.row(m).setZero();
    const std::vector<int64_t> rows = wrong_ones(all.rowwise().norm(), most_rows),
                               outputs = wrong_ones(all.colwise().norm().transpose(), most_outputs);
    Problem p{Matrix(std::ssize(rows), k), Matrix(std::ssize(outputs), k), all(rows, outputs),
              operands.block()};
    for (int64_t m = 0; m < p.a.rows(); ++m)
        p.a.row(m) =
            row_of(operands.a, operands.a_scales, rows[static_cast<size_t>(m)] * operands.groups + group, k);
    for (int64_t n = 0; n < p.b.rows(); ++n)
        p.b.row(n) = row_of(operands.b, operands.b_scales, group * each + outputs[static_cast<size_t>(n)], k);
    return p;
}

double share_left(const Matrix& left, const Matrix& residual) {
    return left.norm() / residual.norm();
}

/// Factors of all blocks' partial products at once.
std::optional<KBlock> all_counted(const Problem& p) {
    const int64_t count = p.blocks(), columns = p.residual.cols();
    const int64_t rows = std::min(p.residual.rows(), std::max(most_products, 4 * count) / columns + 1);
    if (rows * columns < equations_per_unknown * count) return std::nullopt;
    Matrix products(rows * columns, count);
    for (int64_t i = 0; i < count; ++i) {
        const Matrix partial = p.a_block(i).topRows(rows) * p.b_block(i).transpose();
        products.col(i) = partial.reshaped();
    }
    const Vector residual = p.residual.topRows(rows).reshaped();
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
    if (!p.a.allFinite() || !p.b.allFinite() || p.blocks() < 2) return std::nullopt;
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
        if (p.residual.size() == 0) continue;  // this group is right
        const std::optional<KBlock> one = block_of_group(p);
        if (!one) return std::nullopt;
        if (!first || one->block < first->block) first = one;
    }
    return first;
}

}  // namespace touchstone
