// How far apart bf16 tensors are, in units of the last place.
#pragma once

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "reference/numerics/small_float.h"

namespace touchstone {

/// Codes of bf16 in the order of their values, so that neighbours are one apart.
inline int32_t ordered(Bf16 x) {
    return x.bits & 0x8000 ? -static_cast<int32_t>(x.bits & 0x7FFF) : static_cast<int32_t>(x.bits);
}

/// At most one element in a hundred differs, each by one unit in the last place.
inline void check_bf16(const std::vector<Bf16>& ours, const std::vector<Bf16>& theirs,
                       const std::string& name) {
    REQUIRE(ours.size() == theirs.size());
    int64_t differing = 0;
    int32_t worst = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
        const int32_t distance = std::abs(ordered(ours[i]) - ordered(theirs[i]));
        differing += distance != 0;
        worst = std::max(worst, distance);
    }
    const std::string shown =
        fmt::format("{}: {} of {} differ, by at most {} units", name, differing, ours.size(), worst);
    INFO(shown);
    CHECK(differing * 100 <= std::ssize(ours));
    CHECK(worst <= 1);
}

}  // namespace touchstone
