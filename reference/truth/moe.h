// Mixture of experts in double (spec: text model, section 9).
#pragma once

#include <cstdint>
#include <vector>

#include "reference/truth/ledger.h"

namespace touchstone::truth {

/// sqrt(softplus(x weight^T)), [T, E]; softplus(v) = v above 20.
Matrix gate_scores(const Matrix& x, const Matrix& weight);

/// Per token: experts in the order of selection (descending biased score) and their weights.
struct Routing {
    std::vector<std::vector<int64_t>> experts;
    Matrix weights;  ///< [T, k]
};

/// The k best of scores + bias; ties to the lower id.
std::vector<std::vector<int64_t>> select_experts(const Matrix& scores, const Vector& bias, int64_t k);

/// Weights of the given experts: their scores without bias, divided by their sum + 1e-20 (for k > 1), times
/// `scale`.
Routing route(const Matrix& scores, std::vector<std::vector<int64_t>> experts, double scale);

/// w1 (gate) and w3 (up) [F, D], w2 (down) [D, F].
struct ExpertWeights {
    Matrix w1, w2, w3;
};

/// One expert, routed or shared: w2(bf16(weight silu(min(w1 x, limit)) clamp(w3 x, -limit, limit))), every
/// product an L8 or L4. x [T, D]; weight [T], 1 for the shared expert. The result is rounded to bf16.
Matrix expert(const Matrix& x, const ExpertWeights& weights, const Vector& weight, double limit,
              const Ledger& ledger);

}  // namespace touchstone::truth
