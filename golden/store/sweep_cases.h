// Cases of the golden store beside the registry's own: lengths on both sides of every edge that kernels have
// fallen over.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace touchstone {

/// `{a|b}` in `cases` stands for each of the values; two of them for every pair.
struct SweepRow {
    std::string_view cases;
    std::string_view limit;  ///< the edge
};

std::span<const SweepRow> sweep_rows();

/// The texts of a row, the first set varying slowest.
std::vector<std::string> expanded(std::string_view cases);

}  // namespace touchstone
