#include "golden/compare/selection_compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "golden/compare/element_types.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace {

constexpr std::string_view fault_names[index_fault_count]{
    "none", "INT_MAX", "negative", "out of range", "duplicate", "hole", "length", "another order",
};

/// A score as bits that are equal exactly when the scores tie; every floating type fits a double.
uint64_t tie_bits(double score) {
    if (std::isnan(score)) return ~uint64_t{0};
    return std::bit_cast<uint64_t>(score + 0.0);  // -0 + 0 is +0
}

/// An index as it stands there; beyond 63 bits the largest integer.
int64_t index_at(const TensorView& tensor, int64_t i) {
    const uint64_t bits = element_at(tensor, i).bits;
    const int unused = 64 - 8 * static_cast<int>(element_type_bytes(tensor.type));
    if (tensor.type.starts_with('I')) return static_cast<int64_t>(bits << unused) >> unused;
    return static_cast<int64_t>(std::min<uint64_t>(bits, std::numeric_limits<int64_t>::max()));
}

/// The indices of one row of a tensor.
std::vector<int64_t> row_of(const TensorView& tensor, int64_t row, int64_t k) {
    std::vector<int64_t> indices(static_cast<size_t>(k));
    for (int64_t i = 0; i < k; ++i) indices[static_cast<size_t>(i)] = index_at(tensor, row * k + i);
    return indices;
}

std::vector<int64_t> sorted_selection(const std::vector<int64_t>& indices) {
    std::vector<int64_t> selected;
    for (int64_t index : indices)
        if (index != -1) selected.push_back(index);
    std::ranges::sort(selected);
    return selected;
}

/// The scores of a row, or none.
struct RowScores {
    const TensorView* tensor = nullptr;
    int64_t first = 0;  ///< element
    int64_t columns = std::numeric_limits<int64_t>::max();

    std::vector<uint64_t> of(const std::vector<int64_t>& selected) const {
        std::vector<uint64_t> bits;
        for (int64_t index : selected) bits.push_back(tie_bits(element_at(*tensor, first + index).value));
        std::ranges::sort(bits);
        return bits;
    }
    /// Whether both rows have the same score at every place; a -1 has none.
    bool same_by_place(const std::vector<int64_t>& expected, const std::vector<int64_t>& got) const {
        const auto bits = [this](int64_t index) {
            return tie_bits(element_at(*tensor, first + index).value);
        };
        return std::ranges::equal(expected, got, [&bits](int64_t e, int64_t g) {
            return e == g || (e != -1 && g != -1 && bits(e) == bits(g));
        });
    }
};

/// Whether an index may not stand in any row, and why.
IndexFault fault_of(int64_t index, int64_t columns) {
    const bool unlimited = columns == std::numeric_limits<int64_t>::max();
    if (index == std::numeric_limits<int32_t>::max() && (unlimited || index >= columns))
        return IndexFault::largest_integer;
    if (index < -1) return IndexFault::negative;
    return index >= columns ? IndexFault::out_of_range : IndexFault::none;
}

/// The first fault of a row and its column.
std::pair<IndexFault, int64_t> find_fault(const std::vector<int64_t>& got, int64_t columns) {
    for (size_t i = 0; i < got.size(); ++i)
        if (const IndexFault fault = fault_of(got[i], columns); fault != IndexFault::none)
            return {fault, static_cast<int64_t>(i)};
    std::vector<int64_t> sorted = sorted_selection(got);
    const auto twice = std::ranges::adjacent_find(sorted);
    if (twice != sorted.end()) {
        const auto first = std::ranges::find(got, *twice);
        return {IndexFault::duplicate, std::find(first + 1, got.end(), *twice) - got.begin()};
    }
    const auto hole = std::ranges::find(got, -1);
    if (std::any_of(hole, got.end(), [](int64_t index) { return index != -1; }))
        return {IndexFault::hole, hole - got.begin()};
    return {IndexFault::none, -1};
}

SelectionRow compare_row(const std::vector<int64_t>& expected, const std::vector<int64_t>& got,
                         const RowScores& scores, SelectionOrder order) {
    SelectionRow row;
    if (expected == got) return row;
    auto [fault, column] = find_fault(got, scores.columns);
    const std::vector<int64_t> wanted = sorted_selection(expected), selected = sorted_selection(got);
    if (fault == IndexFault::none && wanted.size() != selected.size()) fault = IndexFault::length;
    row.fault = fault;
    const bool usable = fault == IndexFault::none || fault == IndexFault::hole;
    const bool free = order == SelectionOrder::free;
    const bool same_set = usable && wanted == selected;
    // Scores may be looked up where no index is out of range and no row is longer.
    const bool comparable = usable && scores.tensor != nullptr && wanted.size() == selected.size();
    const bool tied =
        comparable && (free ? scores.of(wanted) == scores.of(selected) : scores.same_by_place(expected, got));
    row.verdict = same_set && free ? SelectionVerdict::reordered
                  : tied           ? SelectionVerdict::tie
                                   : SelectionVerdict::wrong;
    if (same_set && !free && !tied && fault == IndexFault::none) row.fault = IndexFault::order;
    if (column < 0) column = std::ranges::mismatch(expected, got).in2 - got.begin();
    row.column = column;
    row.expected = expected[static_cast<size_t>(column)];
    row.got = got[static_cast<size_t>(column)];
    return row;
}

/// Rows of scores for rows of indices: one for each, or one for all.
int64_t score_row_stride(const TensorView& scores, int64_t rows, const std::string& where) {
    const int64_t columns = scores.shape.empty() ? 0 : scores.shape.back();
    const int64_t score_rows = columns == 0 ? 0 : scores.elements() / columns;
    if (!is_float_type(scores.type) || (score_rows != rows && score_rows != 1 && rows != 0))
        throw UserError({fmt::format("{} rows of {} scores", score_rows, scores.type), where,
                         fmt::format("floating scores with {} rows, or one", rows), ""});
    return score_rows == 1 ? 0 : columns;
}

void add(SelectionDifference& sum, const SelectionRow& row) {
    int64_t* const counts[]{&sum.equal, &sum.reordered, &sum.ties, &sum.wrong};
    ++*counts[static_cast<size_t>(row.verdict)];
    if (row.fault != IndexFault::none) ++sum.faults[static_cast<size_t>(row.fault)];
    if (row.verdict > sum.worst.verdict) sum.worst = row;
}

}  // namespace

std::string_view name_of(IndexFault fault) {
    return fault_names[static_cast<size_t>(fault)];
}

SelectionDifference compare_selection(const TensorView& expected, const TensorView& got,
                                      const std::optional<TensorView>& scores, const std::string& where,
                                      SelectionOrder order) {
    SelectionDifference sum;
    const int64_t k = expected.shape.empty() ? 1 : expected.shape.back();
    sum.rows = k == 0 ? 0 : expected.elements() / k;
    sum.has_scores = scores.has_value();
    RowScores row_scores;
    int64_t stride = 0;
    if (scores) {
        stride = score_row_stride(*scores, sum.rows, where);
        row_scores.tensor = &*scores;
        row_scores.columns = scores->shape.back();
    }
    for (int64_t row = 0; row < sum.rows; ++row) {
        row_scores.first = row * stride;
        const std::vector<int64_t> wanted = row_of(expected, row, k);
        // What is expected cannot be looked up either where it lies outside the scores.
        for (int64_t index : wanted)
            if (scores && (index < -1 || index >= row_scores.columns))
                throw UserError({fmt::format("row {} of what is expected selects {}", row, index), where,
                                 fmt::format("-1 to {}", row_scores.columns - 1),
                                 "name the scores that it was selected from: --scores NAME=SCORES"});
        SelectionRow found = compare_row(wanted, row_of(got, row, k), row_scores, order);
        found.row = row;
        add(sum, found);
    }
    if (sum.worst.verdict == SelectionVerdict::equal) sum.worst = {};
    return sum;
}

}  // namespace touchstone
