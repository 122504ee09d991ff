// A few neighbouring elements of two tensors, compared lane by lane: every loop runs over whole arrays
// without a branch, so that the compiler can use vector instructions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "golden/compare/difference.h"
#include "golden/compare/difference_parts.h"
#include "golden/compare/element_types.h"

namespace touchstone::difference_parts {

/// Element i; elements of a file need not be aligned.
template <class Bits>
Bits load(const std::byte* bytes, int64_t i) {
    Bits bits;
    std::memcpy(&bits, bytes + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
    return bits;
}

/// The limits of a tolerance, those that are not given such that nothing is within them.
struct Limits {
    bool has_ulp;
    uint64_t ulp;
    double rms, absolute, relative;
    bool exact;

    explicit Limits(const Tolerance& t)
        : has_ulp(t.ulp.has_value()),
          ulp(static_cast<uint64_t>(t.ulp.value_or(0))),
          rms(t.rms.value_or(-1)),
          absolute(t.absolute || t.relative ? t.absolute.value_or(0) : -1),
          relative(t.relative.value_or(0)),
          exact(t.exact()) {}
};

/// At most `size` elements of one row.
template <class Type>
struct Block {
    using Bits = typename Type::Bits;
    static constexpr int size = 32;  // loops of 16 would be unrolled before they are vectorised

    Bits expected[size]{}, got[size]{};
    double distances[size], magnitudes[size], of_rms[size];
    element_types::Distance<Bits> ulps[size];
    uint8_t differs[size], outside[size];

    /// Behind the elements stand pairs of zeros, which change nothing.
    void read(const std::byte* e, const std::byte* g, int64_t count) {
        std::memcpy(expected, e, static_cast<size_t>(count) * sizeof(Bits));
        std::memcpy(got, g, static_cast<size_t>(count) * sizeof(Bits));
    }
    bool has_special() const {
        Bits special = 0;
        for (int i = 0; i < size; ++i) special |= static_cast<Bits>(!Type::finite(expected[i]));
        for (int i = 0; i < size; ++i) special |= static_cast<Bits>(!Type::finite(got[i]));
        return special != 0;
    }

    /// All elements are finite.
    void measure(double rms, const Limits& limits, PieceSums& sums) {
        double e[size], g[size];
        for (int i = 0; i < size; ++i) e[i] = Type::value(expected[i]);
        for (int i = 0; i < size; ++i) g[i] = Type::value(got[i]);
        for (int i = 0; i < size; ++i) magnitudes[i] = std::abs(e[i]);
        if constexpr (Type::is_float)
            for (int i = 0; i < size; ++i) distances[i] = std::abs(g[i] - e[i]);
        else
            for (int i = 0; i < size; ++i)
                distances[i] = element_types::absolute_difference<Type>(expected[i], got[i]);
        add_sums(e, g, sums);
        for (int i = 0; i < size; ++i) ulps[i] = element_types::distance<Type>(expected[i], got[i]);
        for (int i = 0; i < size; ++i) differs[i] = expected[i] != got[i];
        divide_by_rms(rms);
        if (limits.exact)
            std::copy_n(differs, size, outside);
        else
            hold_against(limits);
    }

    double largest_relative() const {
        constexpr double infinite = std::numeric_limits<double>::infinity();
        double relative[size];
        for (int i = 0; i < size; ++i) relative[i] = magnitudes[i] > 0 ? magnitudes[i] : infinite;
        for (int i = 0; i < size; ++i) relative[i] = distances[i] / relative[i];
        return largest(relative);
    }

    static double largest(const double (&values)[size]) {
        double work[size];
        std::copy_n(values, size, work);
        for (int half = size / 2; half > 0; half /= 2)
            for (int i = 0; i < half; ++i) work[i] = work[i] < work[i + half] ? work[i + half] : work[i];
        return work[0];
    }
    static int64_t count(const uint8_t (&flags)[size]) {
        int sum = 0;
        for (int i = 0; i < size; ++i) sum += flags[i];
        return sum;
    }

  private:
    void add_sums(const double (&e)[size], const double (&g)[size], PieceSums& sums) const {
        double squares[size], excesses[size];
        for (int i = 0; i < size; ++i) squares[i] = distances[i] * distances[i];
        for (int i = 0; i < size; ++i) excesses[i] = (g[i] - e[i]) * (g[i] + e[i]);
        sums.differences += tree_sum(squares);
        sums.partner_excess += tree_sum(excesses);
    }

    /// A row without magnitude, or of more than a double holds, lets nothing pass.
    void divide_by_rms(double rms) {
        constexpr double most = std::numeric_limits<double>::max();
        constexpr double infinite = std::numeric_limits<double>::infinity();
        if (rms > 0 && rms <= most)
            for (int i = 0; i < size; ++i) of_rms[i] = distances[i] / rms;
        else
            for (int i = 0; i < size; ++i) of_rms[i] = distances[i] > 0 ? infinite : 0;
    }

    void hold_against(const Limits& limits) {
        for (int i = 0; i < size; ++i) {
            const bool within = (limits.has_ulp & (ulps[i] <= limits.ulp)) | (of_rms[i] <= limits.rms) |
                                (distances[i] <= limits.absolute + limits.relative * magnitudes[i]);
            outside[i] = static_cast<uint8_t>(differs[i] & static_cast<uint8_t>(!within));
        }
    }

    static double tree_sum(double (&values)[size]) {
        for (int half = size / 2; half > 0; half /= 2)
            for (int i = 0; i < half; ++i) values[i] += values[i + half];
        return values[0];
    }
};

/// Adds a measured block's distances to the histogram; identical elements are not in it.
template <class Type>
void count_ulps(const Block<Type>& block, int64_t differing, Difference& counts) {
    using Distance = element_types::Distance<typename Type::Bits>;
    Distance largest = 0;
    for (Distance ulp : block.ulps) largest = largest < ulp ? ulp : largest;
    constexpr uint64_t most = std::numeric_limits<int64_t>::max();
    counts.largest_ulp =
        std::max(counts.largest_ulp, static_cast<int64_t>(std::min<uint64_t>(largest, most)));
    int64_t left = differing;
    size_t bin = 0;
    for (; bin < ulp_bin_ends.size() && largest > static_cast<uint64_t>(ulp_bin_ends[bin]); ++bin) {
        const Distance end = static_cast<Distance>(ulp_bin_ends[bin]);
        Distance beyond = 0;
        for (Distance ulp : block.ulps) beyond += ulp > end ? 1 : 0;
        counts.ulp_bins[bin] += left - static_cast<int64_t>(beyond);
        if (bin == 0) counts.zero_signs += left - static_cast<int64_t>(beyond);
        left = static_cast<int64_t>(beyond);
    }
    counts.ulp_bins[bin] += left;
    if (bin == 0) counts.zero_signs += left;
}

}  // namespace touchstone::difference_parts
