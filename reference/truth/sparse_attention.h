// Attention of one query over its list in double (spec: text model, section 4.3; numerics contract, 7).
#pragma once

#include <cstdint>
#include <vector>

#include "reference/truth/ledger.h"

namespace touchstone::truth {

/// The list of a query: rows [slots, Dh] that are key and value at once, and which slots are taken (rows of
/// the others are not looked at). Slots 0 .. W-1 are the window, oldest first, the selected positions follow.
struct AttentionList {
    Matrix rows;
    std::vector<bool> taken;
};

/// o[h] = sum_j p_j row_j / (sum_j p_j + exp(sink[h] - m)), p_j = exp(q[h] . row_j scale - m); 0 where no
/// slot is taken. q [heads, Dh], sink [heads], scale fp32(Dh^-0.5). The list is walked in blocks of 64: P is
/// rounded to bf16, for the sum over rows only, relative to the running maximum m of the blocks so far. The
/// model rounds the result to bf16.
Matrix sparse_attention(const Matrix& q, const AttentionList& list, const Vector& sink, const Ledger& ledger);

}  // namespace touchstone::truth
