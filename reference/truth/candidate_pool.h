// The candidate pool in double (spec: text model, section 6.4).
#pragma once

#include <cstdint>
#include <vector>

#include "reference/truth/ledger.h"

namespace touchstone::truth {

/// Of one query: the maximum of each block over the visible scores (-infinity where none is, +infinity in the
/// block of the newest position) and the positions of the blocks that were kept, [scores.size()].
struct CandidatePool {
    Vector block_scores;
    std::vector<bool> mask;
};

/// Keeps the `blocks` best blocks of block_size scores that hold a visible position; that of the newest
/// visible one is always among them. Entries of a kept block beyond `visible` stand in the mask, as in the
/// released code; whoever selects looks at `visible` too.
CandidatePool candidate_pool(const Vector& scores, int64_t visible, int64_t block_size, int64_t blocks);

}  // namespace touchstone::truth
