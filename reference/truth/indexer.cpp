#include "reference/truth/indexer.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/truth/top_k.h"

namespace touchstone::truth {

IndexScores index_scores(const Matrix& query, const Matrix& weights, const Matrix& keys,
                         const Ledger& ledger) {
    const Eigen::Index heads = weights.cols(), width = keys.cols(), count = keys.rows();
    IndexScores result{Matrix(query.rows(), heads * count), Matrix::Zero(query.rows(), count)};
    for (Eigen::Index head = 0; head < heads; ++head) {
        const Matrix dot = ledger.bf16(Matrix(query.middleCols(head * width, width) * keys.transpose()));
        const Matrix weighted = weights.col(head).asDiagonal() * dot.cwiseMax(0.0);
        result.dot.middleCols(head * count, count) = dot;
        result.scores += ledger.bf16(weighted);
    }
    result.scores = ledger.bf16(result.scores);
    return result;
}

double index_weight_scale(int64_t heads, int64_t index_head_dim) {
    return fp32_constant(1 / std::sqrt(static_cast<double>(heads)) /
                         std::sqrt(static_cast<double>(index_head_dim)));
}

std::vector<int64_t> select_positions(const Vector& scores, int64_t visible, int64_t k,
                                      const std::vector<bool>& mask, MaskedPositions masked) {
    Vector candidates = scores.head(visible);
    const auto excluded = [&](int64_t j) { return !mask.empty() && !mask[static_cast<size_t>(j)]; };
    for (int64_t j = 0; j < visible; ++j)
        if (excluded(j)) candidates[j] = -std::numeric_limits<double>::infinity();
    std::vector<int64_t> selected = top_k(candidates, k);
    if (masked == MaskedPositions::never_attended) std::erase_if(selected, excluded);
    std::sort(selected.begin(), selected.end());
    return selected;
}

}  // namespace touchstone::truth
