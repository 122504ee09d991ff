#include "reference/truth/hyper_connections.h"

#include <cmath>

namespace touchstone::truth {

namespace {

double sigmoid(double x) {
    return 1 / (1 + std::exp(-x));
}

}  // namespace

Matrix sinkhorn(const Matrix& a, int64_t iterations, double eps) {
    Matrix m = (a.colwise() - a.rowwise().maxCoeff()).array().exp();
    const auto normalize_rows = [&m](double added) {
        const Vector sums = m.rowwise().sum();
        m = (m.array().colwise() / (sums.array() + added)).eval();
    };
    const auto normalize_columns = [&m, eps] {
        const Eigen::RowVectorXd sums = m.colwise().sum();
        m = (m.array().rowwise() / (sums.array() + eps)).eval();
    };
    normalize_rows(0);
    m.array() += eps;
    normalize_columns();
    for (int64_t i = 1; i < iterations; ++i) {
        normalize_rows(eps);
        normalize_columns();
    }
    return m;
}

HyperConnectionMix hyper_connection_mix(const Matrix& stream, const HyperConnectionWeights& weights,
                                        int64_t n, int64_t iterations, double norm_eps, double eps) {
    const Eigen::Index tokens = stream.rows();
    HyperConnectionMix mix{stream * weights.fn.transpose(), Matrix(tokens, n), Matrix(tokens, n),
                           Matrix(tokens, n * n)};
    for (Eigen::Index t = 0; t < tokens; ++t) {
        // One statistic over all copies, applied after the projection.
        const double mean_square = stream.row(t).squaredNorm() / static_cast<double>(stream.cols());
        mix.mixes.row(t) /= std::sqrt(mean_square + norm_eps);

        const auto affine = [&](Eigen::Index i, Eigen::Index group) {
            return mix.mixes(t, i) * weights.scale[group] + weights.base[i];
        };
        Matrix a(n, n);
        for (Eigen::Index j = 0; j < n; ++j) {
            mix.pre(t, j) = sigmoid(affine(j, 0)) + eps;
            mix.post(t, j) = 2 * sigmoid(affine(n + j, 1));
            for (Eigen::Index k = 0; k < n; ++k) a(j, k) = affine(2 * n + n * j + k, 2);
        }
        mix.comb.row(t) = sinkhorn(a, iterations, eps).reshaped<Eigen::RowMajor>().transpose();
    }
    return mix;
}

Matrix collapse(const Matrix& stream, const Matrix& pre) {
    const Eigen::Index n = pre.cols(), width = stream.cols() / n;
    Matrix result = Matrix::Zero(stream.rows(), width);
    for (Eigen::Index t = 0; t < stream.rows(); ++t)
        for (Eigen::Index c = 0; c < n; ++c)
            result.row(t) += pre(t, c) * stream.row(t).segment(c * width, width);
    return result;
}

Matrix expand(const Matrix& y, const Matrix& stream, const Matrix& post, const Matrix& comb) {
    const Eigen::Index n = post.cols(), width = y.cols();
    Matrix result(stream.rows(), stream.cols());
    for (Eigen::Index t = 0; t < stream.rows(); ++t)
        for (Eigen::Index k = 0; k < n; ++k) {
            Eigen::RowVectorXd copy = post(t, k) * y.row(t);
            for (Eigen::Index j = 0; j < n; ++j)
                copy += comb(t, n * j + k) * stream.row(t).segment(j * width, width);
            result.row(t).segment(k * width, width) = copy;
        }
    return result;
}

Matrix mean_of_copies(const Matrix& stream, int64_t n) {
    return collapse(stream, Matrix::Constant(stream.rows(), n, 1.0 / static_cast<double>(n)));
}

}  // namespace touchstone::truth
