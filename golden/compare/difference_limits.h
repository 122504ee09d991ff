// What a tolerance says about one element of a row.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

#include "golden/compare/difference_vector.h"
#include "golden/compare/tolerance.h"

namespace touchstone::difference_parts {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// A row without magnitude, or of more than a double holds, lets nothing pass.
inline double in_units_of_rms(double distance, double rms) {
    if (rms > 0 && rms <= std::numeric_limits<double>::max()) return distance / rms;
    return distance > 0 ? infinity : 0;
}

/// The largest distance that is at most `most` in units of the row's rms, as the division rounds it; -1:
/// none.
inline double largest_distance_within(double most, double rms) {
    const auto passes = [most, rms](double distance) { return in_units_of_rms(distance, rms) <= most; };
    if (!passes(0)) return -1;
    if (passes(infinity)) return infinity;
    // Neighbouring doubles have neighbouring bits, and the bound is within a few of the product.
    uint64_t low = 0, high = std::bit_cast<uint64_t>(infinity);
    const uint64_t product = std::bit_cast<uint64_t>(most * rms);
    for (const uint64_t near : {product - std::min<uint64_t>(product, 4), product + 4}) {
        if (near >= high) continue;
        (passes(std::bit_cast<double>(near)) ? low : high) = near;
    }
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        (passes(std::bit_cast<double>(middle)) ? low : high) = middle;
    }
    return std::bit_cast<double>(low);
}

/// The limits of a tolerance, those that are not given such that nothing is within them.
struct Limits {
    bool has_ulp, has_rms, has_absolute;
    uint64_t ulp;
    double rms, absolute, relative;
    bool exact;

    explicit Limits(const Tolerance& t)
        : has_ulp(t.ulp.has_value()),
          has_rms(t.rms.has_value()),
          has_absolute(t.absolute || t.relative),
          ulp(static_cast<uint64_t>(t.ulp.value_or(0))),
          rms(t.rms.value_or(-1)),
          absolute(has_absolute ? t.absolute.value_or(0) : -1),
          relative(t.relative.value_or(0)),
          exact(t.exact()) {}

    RowLimits of_row(double row_rms) const {
        return {exact,    has_ulp, ulp, has_rms ? largest_distance_within(rms, row_rms) : -1,
                absolute, relative};
    }

    bool within(uint64_t distance_ulp, double of_rms, double distance, double magnitude) const {
        return (has_ulp && distance_ulp <= ulp) || of_rms <= rms ||
               distance <= absolute + relative * magnitude;
    }

    /// How many times the nearest limit an element outside all of them is away.
    double excess(uint64_t distance_ulp, double of_rms, double distance, double magnitude) const {
        double excess = infinity;
        if (has_ulp) excess = std::min(excess, static_cast<double>(distance_ulp) / static_cast<double>(ulp));
        if (has_rms) excess = std::min(excess, of_rms / rms);
        if (has_absolute) excess = std::min(excess, distance / (absolute + relative * magnitude));
        return excess;
    }
};

}  // namespace touchstone::difference_parts
