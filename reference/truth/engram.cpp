#include "reference/truth/engram.h"

#include <algorithm>
#include <cmath>

namespace touchstone::truth {

std::vector<std::vector<int64_t>> engram_row_ids(const std::vector<int64_t>& history, int64_t tokens,
                                                 int64_t heads, int64_t pad, const EngramHash& hash) {
    std::vector<std::vector<int64_t>> rows;
    for (int64_t p = std::ssize(history) - tokens; p < std::ssize(history); ++p) {
        std::vector<int64_t>& row = rows.emplace_back();
        bool blocked = false;  // sticky: whatever lies before a gap is not looked at
        int64_t rolling = 0;
        for (int64_t back = 0; back < std::ssize(hash.multipliers); ++back) {
            blocked = blocked || p < back || history[static_cast<size_t>(p - back)] == engram_dead;
            const int64_t id = blocked ? pad : history[static_cast<size_t>(p - back)];
            rolling ^= id * hash.multipliers[static_cast<size_t>(back)];
            for (int64_t head = 0; back > 0 && head < heads; ++head) {
                const size_t column = static_cast<size_t>((back - 1) * heads + head);
                row.push_back(rolling % hash.primes[column] + hash.offsets[column]);
            }
        }
    }
    return rows;
}

Matrix engram_gate(const Matrix& stream, const Matrix& key, const Matrix& q_weight, const Matrix& k_weight,
                   double eps) {
    const Eigen::Index n = q_weight.rows(), width = q_weight.cols();
    const double scale = fp32_constant(1 / std::sqrt(static_cast<double>(width)));
    Matrix gate(stream.rows(), n);
    for (Eigen::Index t = 0; t < stream.rows(); ++t)
        for (Eigen::Index c = 0; c < n; ++c) {
            // Each copy has its own statistics.
            const auto h = stream.row(t).segment(c * width, width), k = key.row(t).segment(c * width, width);
            const auto inverse_rms = [&](const auto& x) {
                return 1 / std::sqrt(x.squaredNorm() / static_cast<double>(width) + eps);
            };
            const auto weight = q_weight.row(c).cwiseProduct(k_weight.row(c));
            const double dot = h.cwiseProduct(weight).dot(k) * inverse_rms(h) * inverse_rms(k) * scale;
            const double root = std::copysign(std::sqrt(std::max(std::abs(dot), 1e-6)), dot);
            gate(t, c) = 1 / (1 + std::exp(-root));
        }
    return gate;
}

Matrix engram_update(const Matrix& stream, const Matrix& gate, const Matrix& value) {
    Matrix result = stream;
    for (Eigen::Index t = 0; t < stream.rows(); ++t)
        for (Eigen::Index c = 0; c < gate.cols(); ++c)
            result.row(t).segment(c * value.cols(), value.cols()) += gate(t, c) * value.row(t);
    return result;
}

}  // namespace touchstone::truth
