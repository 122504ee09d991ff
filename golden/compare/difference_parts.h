// The parts of golden/difference: how tensors are cut, and what is kept of each piece and thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

#include "golden/compare/difference.h"

namespace touchstone::difference_parts {

/// What a thread works on at a time, of each tensor: it stays in the caches while it is read again.
inline constexpr int64_t piece_bytes = 512 * 1024;

/// Element i; elements of a file need not be aligned.
template <class Bits>
Bits load(const std::byte* bytes, int64_t i) {
    Bits bits;
    std::memcpy(&bits, bytes + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
    return bits;
}

/// How a tensor is cut: pieces of whole rows, or rows of whole pieces. It depends on the shape alone.
struct Pieces {
    int64_t rows, columns, rows_per_piece, columns_per_piece, count;

    Pieces(const std::vector<int64_t>& shape, int64_t element_bytes, int64_t elements) {
        columns = shape.empty() ? 1 : shape.back();
        rows = elements == 0 ? 0 : elements / columns;
        const int64_t most = piece_bytes / element_bytes;
        columns_per_piece = std::min(columns, most);
        rows_per_piece = elements == 0 ? 1 : std::max<int64_t>(1, most / columns);
        count = elements == 0 ? 0
                : cuts_rows() ? rows * pieces_per_row()
                              : (rows + rows_per_piece - 1) / rows_per_piece;
    }

    bool cuts_rows() const { return columns_per_piece < columns; }
    int64_t pieces_per_row() const { return (columns + columns_per_piece - 1) / columns_per_piece; }
    int64_t row_of(int64_t piece) const {
        return cuts_rows() ? piece / pieces_per_row() : piece * rows_per_piece;
    }
    int64_t begin(int64_t piece) const {
        if (!cuts_rows()) return row_of(piece) * columns;
        return row_of(piece) * columns + piece % pieces_per_row() * columns_per_piece;
    }
    int64_t end(int64_t piece) const {
        if (!cuts_rows()) return std::min(rows, row_of(piece) + rows_per_piece) * columns;
        return std::min(begin(piece) + columns_per_piece, (row_of(piece) + 1) * columns);
    }
};

/// Sums of a piece, in double: they are added in the order of the pieces.
struct PieceSums {
    double squares = 0;         ///< of the expected elements that are finite
    double pair_squares = 0;    ///< of those whose partner is finite too
    double differences = 0;     ///< (e - g)^2 of finite pairs
    double partner_excess = 0;  ///< g^2 - e^2 of finite pairs
    int64_t finite = 0;         ///< expected elements
    bool equal = true, measured = false;
};

/// A differing element and what is known of it.
struct Candidate {
    int64_t index = -1;
    double severity = -1;

    /// The larger severity, of equal ones the earlier element.
    void take(int64_t other_index, double other_severity) {
        if (other_severity < severity || (other_severity == severity && index >= 0 && index < other_index))
            return;
        index = other_index;
        severity = other_severity;
    }
};

/// Counts of one thread; joining them is the same in any order.
struct Tally {
    Difference counts;
    int64_t first = -1;
    Candidate outside, inside;
    bool quotient_is_narrow = true;  ///< that of counts.largest_relative; see RunningSums

    void take_first(int64_t index) {
        if (index >= 0 && (first < 0 || index < first)) first = index;
    }
    void join(const Tally& other);
};

inline void join(PlacesDifference& to, const PlacesDifference& from) {
    to.both += from.both;
    to.expected_only += from.expected_only;
    to.got_only += from.got_only;
}

inline void Tally::join(const Tally& other) {
    const Difference& from = other.counts;
    counts.identical += from.identical;
    counts.zero_signs += from.zero_signs;
    counts.outside += from.outside;
    counts.differing_rows += from.differing_rows;
    counts.zeros += from.zeros;
    counts.not_finite += from.not_finite;
    counts.one_value = counts.one_value && from.one_value;
    difference_parts::join(counts.nan, from.nan);
    difference_parts::join(counts.positive_infinity, from.positive_infinity);
    difference_parts::join(counts.negative_infinity, from.negative_infinity);
    for (size_t i = 0; i < counts.ulp_bins.size(); ++i) counts.ulp_bins[i] += from.ulp_bins[i];
    counts.largest_ulp = std::max(counts.largest_ulp, from.largest_ulp);
    counts.largest_absolute = std::max(counts.largest_absolute, from.largest_absolute);
    counts.largest_relative = std::max(counts.largest_relative, from.largest_relative);
    counts.largest_of_rms = std::max(counts.largest_of_rms, from.largest_of_rms);
    take_first(other.first);
    if (other.outside.index >= 0) outside.take(other.outside.index, other.outside.severity);
    if (other.inside.index >= 0) inside.take(other.inside.index, other.inside.severity);
}

}  // namespace touchstone::difference_parts
