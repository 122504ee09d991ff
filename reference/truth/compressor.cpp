#include "reference/truth/compressor.h"

#include <cmath>
#include <utility>

#include "reference/truth/rms_norm.h"

namespace touchstone::truth {

namespace {

Matrix stacked(const Matrix& above, const Matrix& below) {
    if (above.rows() == 0) return below;
    Matrix result(above.rows() + below.rows(), below.cols());
    result << above, below;
    return result;
}

}  // namespace

Matrix pooled_groups(const Matrix& kv, const Matrix& score, int64_t ratio) {
    Matrix result(kv.rows() / ratio, kv.cols());
    for (Eigen::Index group = 0; group < result.rows(); ++group) {
        const auto scores = score.middleRows(group * ratio, ratio);
        const Matrix weights = (scores.rowwise() - scores.colwise().maxCoeff()).array().exp();
        result.row(group) = weights.cwiseProduct(kv.middleRows(group * ratio, ratio))
                                .colwise()
                                .sum()
                                .cwiseQuotient(weights.colwise().sum());
    }
    return result;
}

CompressorOutput compressor(const Matrix& x, const CompressorWeights& weights, int64_t ratio, double eps,
                            CompressorPending& pending, const Ledger& ledger) {
    CompressorOutput output;
    output.kv = x * weights.kv.transpose();
    if (ratio == 1) {
        output.kv = ledger.bf16(std::move(output.kv));
        output.pooled = output.kv;
    } else {
        output.score = x * weights.gate.transpose();
        const Matrix kv = stacked(pending.kv, output.kv), score = stacked(pending.score, output.score);
        const Eigen::Index closed = kv.rows() / ratio * ratio;
        output.pooled = ledger.bf16(pooled_groups(kv.topRows(closed), score.topRows(closed), ratio));
        pending = {kv.bottomRows(kv.rows() - closed), score.bottomRows(kv.rows() - closed)};
    }
    output.latent = ledger.bf16(rms_norm(output.pooled, weights.norm, eps));
    return output;
}

}  // namespace touchstone::truth
