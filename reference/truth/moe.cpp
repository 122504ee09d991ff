#include "reference/truth/moe.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "reference/truth/top_k.h"

namespace touchstone::truth {

Matrix gate_scores(const Matrix& x, const Matrix& weight) {
    const auto sqrt_softplus = [](double v) { return std::sqrt(v > 20 ? v : std::log1p(std::exp(v))); };
    return Matrix(x * weight.transpose()).unaryExpr(sqrt_softplus);
}

std::vector<std::vector<int64_t>> select_experts(const Matrix& scores, const Vector& bias, int64_t k) {
    std::vector<std::vector<int64_t>> result;
    for (Eigen::Index t = 0; t < scores.rows(); ++t)
        result.push_back(top_k(scores.row(t).transpose() + bias, k));
    return result;
}

Routing route(const Matrix& scores, std::vector<std::vector<int64_t>> experts, double scale) {
    const Eigen::Index k = experts.empty() ? 0 : std::ssize(experts.front());
    Routing routing{std::move(experts), Matrix(scores.rows(), k)};
    for (Eigen::Index t = 0; t < scores.rows(); ++t) {
        for (Eigen::Index i = 0; i < k; ++i)
            routing.weights(t, i) =
                scores(t, routing.experts[static_cast<size_t>(t)][static_cast<size_t>(i)]);
        if (k > 1) routing.weights.row(t) /= routing.weights.row(t).sum() + 1e-20;
        routing.weights.row(t) *= scale;
    }
    return routing;
}

Matrix expert(const Matrix& x, const ExpertWeights& weights, const Vector& weight, double limit,
              const Ledger& ledger) {
    const auto gate = quantized_linear(x, weights.w1, ledger).array().min(limit).eval();  // no lower clamp
    const auto up = quantized_linear(x, weights.w3, ledger).array().max(-limit).min(limit).eval();
    const Matrix activated = gate / (1 + (-gate).exp()) * up;
    return quantized_linear(ledger.bf16(weight.asDiagonal() * activated), weights.w2, ledger);
}

}  // namespace touchstone::truth
