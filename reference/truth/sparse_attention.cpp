#include "reference/truth/sparse_attention.h"

#include <algorithm>
#include <cmath>

namespace touchstone::truth {

Matrix sparse_attention(const Matrix& q, const AttentionList& list, const Vector& sink,
                        const Ledger& ledger) {
    constexpr Eigen::Index block = 64;
    constexpr double lowest = -1e30;  // finite: a first block without entries must not give NaN
    const double scale = fp32_constant(1 / std::sqrt(static_cast<double>(q.cols())));
    Matrix output = Matrix::Zero(q.rows(), q.cols());
    for (Eigen::Index head = 0; head < q.rows(); ++head) {
        double maximum = lowest, sum = 0;
        Eigen::RowVectorXd weighted = Eigen::RowVectorXd::Zero(q.cols());
        for (Eigen::Index first = 0; first < list.rows.rows(); first += block) {
            // 1. Scores of the block's entries.
            std::vector<Eigen::Index> entries;
            std::vector<double> scores;
            for (Eigen::Index slot = first; slot < std::min(first + block, list.rows.rows()); ++slot)
                if (list.taken[static_cast<size_t>(slot)]) {
                    entries.push_back(slot);
                    scores.push_back(q.row(head).dot(list.rows.row(slot)) * scale);
                }
            if (entries.empty()) continue;
            // 2. What came before, relative to the new maximum.
            const double before = maximum;
            maximum = std::max(maximum, *std::max_element(scores.begin(), scores.end()));
            sum *= std::exp(before - maximum);
            weighted *= std::exp(before - maximum);
            // 3. The block: its p unrounded in the denominator, rounded in front of the rows.
            for (size_t i = 0; i < entries.size(); ++i) {
                const double p = std::exp(scores[i] - maximum);
                sum += p;
                weighted += ledger.bf16(p) * list.rows.row(entries[i]);
            }
        }
        sum += std::exp(sink[head] - maximum);
        output.row(head) = weighted / sum;
    }
    return output;
}

}  // namespace touchstone::truth
