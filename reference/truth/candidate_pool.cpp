#include "reference/truth/candidate_pool.h"

#include <algorithm>
#include <limits>

#include "reference/truth/top_k.h"

namespace touchstone::truth {

CandidatePool candidate_pool(const Vector& scores, int64_t visible, int64_t block_size, int64_t blocks) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    CandidatePool pool{Vector::Constant((scores.size() + block_size - 1) / block_size, -infinity),
                       std::vector<bool>(static_cast<size_t>(scores.size()), false)};
    for (int64_t j = 0; j < visible; ++j) {
        double& best = pool.block_scores[j / block_size];
        best = std::max(best, scores[j]);
    }
    if (visible > 0) pool.block_scores[(visible - 1) / block_size] = infinity;
    for (const int64_t block : top_k(pool.block_scores, blocks)) {
        if (pool.block_scores[block] == -infinity) continue;
        const int64_t last = std::min((block + 1) * block_size, static_cast<int64_t>(scores.size()));
        for (int64_t j = block * block_size; j < last; ++j) pool.mask[static_cast<size_t>(j)] = true;
    }
    return pool;
}

}  // namespace touchstone::truth
