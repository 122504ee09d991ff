// Index scores and the selection of compressed positions in double (spec: text model, section 6).
#pragma once

#include <cstdint>
#include <vector>

#include "reference/truth/ledger.h"

namespace touchstone::truth {

/// dot [T, heads * J] (head-major: head h, key j at h * J + j) and scores [T, J].
struct IndexScores {
    Matrix dot, scores;
};

/// scores[j] = sum_h max(query[h] . key[j], 0) weight[h] (spec 6.3), rounded to bf16 at the dot, at the
/// product and at the sum. query [T, heads * Di] and keys [J, Di] are quantised already; weights [T, heads]
/// already carry Di^-0.5 heads^-0.5 (index_weight_scale).
IndexScores index_scores(const Matrix& query, const Matrix& weights, const Matrix& keys,
                         const Ledger& ledger);

/// Di^-0.5 heads^-0.5 as fp32: 2^-6 in the released model.
double index_weight_scale(int64_t heads, int64_t index_head_dim);

/// What becomes of a position that is masked (outside the pool), but reachable, when fewer than k are left.
enum class MaskedPositions : uint8_t {
    never_attended,    ///< numerics contract, section 6
    released_attended  ///< the corner of spec 6.4: picked in the order of their index
};

/// The selected positions of one query, ascending: the k best of the first `visible` scores. mask[j] says
/// whether j is in the pool; empty: all are.
std::vector<int64_t> select_positions(const Vector& scores, int64_t visible, int64_t k,
                                      const std::vector<bool>& mask,
                                      MaskedPositions masked = MaskedPositions::never_attended);

}  // namespace touchstone::truth
