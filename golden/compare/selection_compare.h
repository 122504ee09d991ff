// Selected indices, row by row: the same, in another order, another choice among equal scores, or wrong.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "reference/io/tensor_view.h"

namespace touchstone {

enum class SelectionVerdict : uint8_t {
    equal,      ///< the same indices in the same places
    reordered,  ///< the same set
    tie,        ///< another set with the same scores
    wrong,
};

/// What an index's place in its row means.
enum class SelectionOrder : uint8_t {
    free,    ///< nothing
    counts,  ///< something else stands at the same place elsewhere, such as the weight of an expert
};

/// What is wrong with an index by itself, in the order in which it is looked for.
enum class IndexFault : uint8_t {
    none,
    largest_integer,  ///< INT_MAX: what top-k kernels leave where a NaN has won
    negative,         ///< below -1
    out_of_range,     ///< beyond the columns
    duplicate,
    hole,    ///< a -1 with an index behind it
    length,  ///< more or fewer indices than expected
    order,   ///< the same set at other places, where order counts
};
inline constexpr size_t index_fault_count = 8;
/// "INT_MAX", "out of range", ..
std::string_view name_of(IndexFault fault);

/// One row that is not equal.
struct SelectionRow {
    int64_t row = -1;  ///< -1: there is none
    SelectionVerdict verdict = SelectionVerdict::equal;
    IndexFault fault = IndexFault::none;
    int64_t column = -1;   ///< of `got`, where it first goes wrong
    int64_t expected = 0;  ///< the index that stands there
    int64_t got = 0;
};

struct SelectionDifference {
    int64_t rows = 0, equal = 0, reordered = 0, ties = 0, wrong = 0;
    std::array<int64_t, index_fault_count> faults{};  ///< rows by their first fault
    bool has_scores = false;
    SelectionRow worst;  ///< the first row of the worst verdict
};

/// Compares index tensors of one integer type and shape; the last extent is the number selected, -1 fills
/// rows that have fewer. `scores`, floating, has one row for each of them, or one row for all; without it no
/// row is a tie. Where order counts, a tie has the same scores place by place, and a row in another order is
/// wrong. Scores are compared by their bits, -0 as +0 and any NaN as one value (total_order.h), so -0 and +0
/// tie. Throws UserError naming `where` when the scores have another number of rows or too few columns.
SelectionDifference compare_selection(const TensorView& expected, const TensorView& got,
                                      const std::optional<TensorView>& scores, const std::string& where,
                                      SelectionOrder order = SelectionOrder::free);

}  // namespace touchstone
