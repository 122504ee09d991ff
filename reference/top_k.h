// The k largest of each row, for experts, positions and blocks alike, under the one total order of
// numerics/total_order.h.
#pragma once

#include <cstdint>
#include <span>

namespace touchstone {

/// ascending: by index, as positions are attended and experts combined. selection: the largest first, as
/// expert weights are summed for their normalisation (spec: text model, 9.1).
enum class TopKOutput : uint8_t { ascending, selection };

/// Which columns may be selected at all, whatever their scores. A column has to pass both.
struct TopKCandidates {
    std::span<const int32_t> visible;  ///< [rows]: columns 0 .. visible - 1; empty: all
    std::span<const uint8_t> mask;     ///< [rows, columns]: nonzero passes; empty: all
};

/// The k largest of each row of `scores`, fp32 row-major [rows, columns], into `indices` [rows, k]; where a
/// row has fewer than k candidates -1 stands behind them. Ties go to the lower column, -0 equals +0, NaN is
/// below -infinity; a score of -infinity or NaN is still a candidate. Rows are independent and run in
/// parallel. Throws UserError, with nothing written, when sizes do not match or a visible count is outside 0
/// .. columns.
void top_k(std::span<const float> scores, int64_t rows, int64_t columns, int64_t k,
           const TopKCandidates& candidates, TopKOutput output, std::span<int32_t> indices);

}  // namespace touchstone
