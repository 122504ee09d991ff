// Selection in double: experts, positions and blocks alike (numerics contract, section 6).
#pragma once

#include <cstdint>
#include <vector>

#include "reference/truth/ledger.h"

namespace touchstone::truth {

/// Indices of the k largest (all of them when there are fewer), largest first; ties to the lower index, -0
/// equals +0, NaN is smallest.
std::vector<int64_t> top_k(const Vector& values, int64_t k);

}  // namespace touchstone::truth
