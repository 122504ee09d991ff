#include "reference/top_k.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/total_order.h"

namespace touchstone {

namespace {

constexpr int64_t parallel_scores = 1 << 14;

void require(int64_t got, int64_t expected, const char* what) {
    if (got == expected) return;
    throw UserError({fmt::format("{} has {} elements", what, got), "top_k", fmt::format("{}", expected), ""});
}

void require_sizes(std::span<const float> scores, int64_t rows, int64_t columns, int64_t k,
                   const TopKCandidates& candidates, std::span<int32_t> indices) {
    constexpr int64_t most = std::numeric_limits<int32_t>::max();
    if (rows < 0 || columns < 0 || columns > most || k < 0 || k > most)
        throw UserError({fmt::format("{} rows of {} columns, k = {}", rows, columns, k), "top_k",
                         fmt::format("none negative, columns and k at most {}", most), ""});
    require(std::ssize(scores), rows * columns, "scores");
    require(std::ssize(indices), rows * k, "indices");
    if (!candidates.mask.empty()) require(std::ssize(candidates.mask), rows * columns, "mask");
    if (candidates.visible.empty()) return;
    require(std::ssize(candidates.visible), rows, "visible");
    for (size_t row = 0; row < candidates.visible.size(); ++row)
        if (const int32_t visible = candidates.visible[row]; visible < 0 || visible > columns)
            throw UserError({fmt::format("visible[{}] is {}", row, visible), "top_k",
                             fmt::format("0 to {}, the columns of a row", columns), ""});
}

/// `mask` is null when every column passes; `keys` is scratch.
void select_row(const float* scores, int64_t visible, const uint8_t* mask, TopKOutput output,
                std::vector<uint64_t>& keys, std::span<int32_t> indices) {
    keys.clear();
    for (int64_t column = 0; column < visible; ++column)
        if (mask == nullptr || mask[column] != 0)
            keys.push_back(total_order_key(scores[column], static_cast<uint32_t>(column)));

    const int64_t selected = std::min(std::ssize(keys), std::ssize(indices));
    const auto end = keys.begin() + selected;
    if (end != keys.end()) std::nth_element(keys.begin(), end, keys.end(), std::greater{});
    if (output == TopKOutput::selection)
        std::sort(keys.begin(), end, std::greater{});
    else
        std::sort(keys.begin(), end,
                  [](uint64_t a, uint64_t b) { return index_of_key(a) < index_of_key(b); });

    for (int64_t i = 0; i < std::ssize(indices); ++i)
        indices[static_cast<size_t>(i)] =
            i < selected ? static_cast<int32_t>(index_of_key(keys[static_cast<size_t>(i)])) : -1;
}

}  // namespace

void top_k(std::span<const float> scores, int64_t rows, int64_t columns, int64_t k,
           const TopKCandidates& candidates, TopKOutput output, std::span<int32_t> indices) {
    require_sizes(scores, rows, columns, k, candidates, indices);
#pragma omp parallel if (rows > 1 && rows * columns >= parallel_scores)
    {
        std::vector<uint64_t> keys;
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t visible =
                candidates.visible.empty() ? columns : candidates.visible[static_cast<size_t>(row)];
            const uint8_t* mask = candidates.mask.empty() ? nullptr : candidates.mask.data() + row * columns;
            select_row(scores.data() + row * columns, visible, mask, output, keys,
                       indices.subspan(static_cast<size_t>(row * k), static_cast<size_t>(k)));
        }
    }
}

}  // namespace touchstone
