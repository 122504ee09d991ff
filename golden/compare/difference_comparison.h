// The comparison of two tensors of one type; golden/compare/difference.cpp calls it for every type.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "golden/compare/difference.h"
#include "golden/compare/difference_block.h"
#include "golden/compare/difference_parts.h"
#include "golden/compare/element_types.h"

namespace touchstone::difference_parts {

inline constexpr double infinity = std::numeric_limits<double>::infinity();

/// Zeros and non-finite elements of a run, counted in the element's own width so that many lanes fit a
/// register. At most 255 elements, which every width can count.
template <class Type>
void count_run(const std::byte* bytes, int64_t count, int64_t& zeros, int64_t& not_finite) {
    using Bits = typename Type::Bits;
    Bits zero_count = 0, special_count = 0;
    for (int64_t i = 0; i < count; ++i) {
        zero_count = static_cast<Bits>(zero_count + (Type::zero(load<Bits>(bytes, i)) ? 1 : 0));
        special_count = static_cast<Bits>(special_count + (Type::finite(load<Bits>(bytes, i)) ? 0 : 1));
    }
    zeros += zero_count;
    not_finite += special_count;
}

/// The value, or 0 of what is not finite.
template <class Type>
double finite_value(const std::byte* bytes, int64_t i) {
    const typename Type::Bits bits = load<typename Type::Bits>(bytes, i);
    return Type::finite(bits) ? Type::value(bits) : 0;
}

/// Sum of squares of finite elements in eight lanes, element i in lane i mod 8, lanes added as a tree.
template <class Type>
double sum_of_squares(const std::byte* bytes, int64_t count) {
    constexpr int64_t lane_count = 8;
    double lanes[lane_count]{};
    int64_t i = 0;
    for (; i + lane_count <= count; i += lane_count)
        for (int64_t lane = 0; lane < lane_count; ++lane) {
            const double value = finite_value<Type>(bytes, i + lane);
            lanes[lane] += value * value;
        }
    for (; i < count; ++i)
        lanes[i % lane_count] += finite_value<Type>(bytes, i) * finite_value<Type>(bytes, i);
    for (int64_t half = lane_count / 2; half > 0; half /= 2)
        for (int64_t lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    return lanes[0];
}

/// The comparison of two tensors of one type.
template <class Type>
class Comparison {
    using Bits = typename Type::Bits;

  public:
    Comparison(const TensorView& expected, const TensorView& got, const Tolerance& tolerance,
               const AfterPiece& after_piece)
        : expected_(expected),
          got_(got),
          tolerance_(tolerance),
          limits_(tolerance),
          after_piece_(after_piece),
          pieces_(expected.shape, width, expected.elements()),
          sums_(static_cast<size_t>(pieces_.count)) {
        total_.counts.one_value = true;
    }

    Difference run() {
        each_piece([this](int64_t piece, Tally& tally) { scan(piece, tally); });
        const bool equal =
            std::all_of(sums_.begin(), sums_.end(), [](const PieceSums& s) { return s.equal; });
        // Equal tensors need no sums; others need those of all pieces.
        if (!equal) each_piece([this](int64_t piece, Tally&) { add_squares(piece); });
        if (!equal && pieces_.cuts_rows()) {
            find_rms_of_long_rows();
            each_piece([this](int64_t piece, Tally& tally) {
                if (!sums_[static_cast<size_t>(piece)].equal) measure_part_of_row(piece, tally);
            });
        }
        return result();
    }

  private:
    /// Elements whose bytes are read or compared at a time; see count_run.
    static constexpr int64_t run_elements = 240;

    static constexpr int64_t width = sizeof(Bits);

    const std::byte* expected_at(int64_t i) const { return expected_.bytes.data() + i * width; }
    const std::byte* got_at(int64_t i) const { return got_.bytes.data() + i * width; }
    Bits expected_bits(int64_t i) const { return load<Bits>(expected_.bytes.data(), i); }
    Bits got_bits(int64_t i) const { return load<Bits>(got_.bytes.data(), i); }
    bool same_bytes(int64_t begin, int64_t end) const {
        return std::memcmp(expected_at(begin), got_at(begin), static_cast<size_t>((end - begin) * width)) ==
               0;
    }

    template <class Work>
    void each_piece(const Work& work) {
#pragma omp parallel
        {
            Tally mine;
            mine.counts.one_value = true;
#pragma omp for schedule(dynamic, 1)
            for (int64_t piece = 0; piece < pieces_.count; ++piece) {
                work(piece, mine);
                if (after_piece_) tell(piece);
            }
#pragma omp critical(touchstone_difference)
            total_.join(mine);
        }
    }

    void tell(int64_t piece) const {
        const size_t begin = static_cast<size_t>(pieces_.begin(piece) * width);
        const size_t bytes = static_cast<size_t>(pieces_.end(piece) * width) - begin;
        after_piece_(expected_.bytes.subspan(begin, bytes), got_.bytes.subspan(begin, bytes));
    }

    /// Whether a piece differs, and what of the expected tensor makes it worth comparing.
    void scan(int64_t piece, Tally& tally) {
        const int64_t begin = pieces_.begin(piece), end = pieces_.end(piece);
        PieceSums& sums = sums_[static_cast<size_t>(piece)];
        Difference& counts = tally.counts;
        sums.equal = same_bytes(begin, end);
        if (sums.equal) counts.identical += end - begin;
        int64_t special = 0;
        for (int64_t i = begin; i < end; i += run_elements)
            count_run<Type>(expected_at(i), std::min(run_elements, end - i), counts.zeros, special);
        counts.not_finite += special;
        sums.finite = end - begin - special;
        counts.one_value = counts.one_value && all_bits_are_the_first(begin, end);
        if (sums.equal && special != 0)
            for (int64_t i = begin; i < end; ++i) count_special(expected_bits(i), got_bits(i), counts);
        if (!sums.equal && !pieces_.cuts_rows()) measure_rows(piece, tally);
    }

    bool all_bits_are_the_first(int64_t begin, int64_t end) const {
        return expected_bits(begin) == expected_bits(0) &&
               std::memcmp(expected_at(begin), expected_at(begin + 1),
                           static_cast<size_t>((end - begin - 1) * width)) == 0;
    }

    void add_squares(int64_t piece) {
        PieceSums& sums = sums_[static_cast<size_t>(piece)];
        if (sums.measured) return;
        sums.squares = sum_of_squares<Type>(expected_at(pieces_.begin(piece)),
                                            pieces_.end(piece) - pieces_.begin(piece));
        sums.pair_squares = sums.squares;
    }

    void find_rms_of_long_rows() {
        rms_of_long_rows_.resize(static_cast<size_t>(pieces_.rows));
        std::vector<int64_t> finite(rms_of_long_rows_.size());
        for (int64_t piece = 0; piece < pieces_.count; ++piece) {
            const size_t row = static_cast<size_t>(pieces_.row_of(piece));
            rms_of_long_rows_[row] += sums_[static_cast<size_t>(piece)].squares;
            finite[row] += sums_[static_cast<size_t>(piece)].finite;
        }
        for (size_t row = 0; row < finite.size(); ++row)
            rms_of_long_rows_[row] = rms_of(rms_of_long_rows_[row], finite[row]);
    }

    static double rms_of(double squares, int64_t finite) {
        return finite == 0 ? 0 : std::sqrt(squares / static_cast<double>(finite));
    }

    int64_t not_finite(int64_t begin, int64_t end) const {
        int64_t zeros = 0, result = 0;
        for (int64_t i = begin; i < end; i += run_elements)
            count_run<Type>(expected_at(i), std::min(run_elements, end - i), zeros, result);
        return result;
    }

    void measure_rows(int64_t piece, Tally& tally) {
        PieceSums& sums = sums_[static_cast<size_t>(piece)];
        sums.measured = true;
        const int64_t columns = pieces_.columns;
        for (int64_t begin = pieces_.begin(piece); begin < pieces_.end(piece); begin += columns) {
            const double squares = sum_of_squares<Type>(expected_at(begin), columns);
            sums.squares += squares;
            const int64_t special = sums.finite == pieces_.end(piece) - pieces_.begin(piece)
                                        ? 0
                                        : not_finite(begin, begin + columns);
            const Range range{begin, begin + columns, rms_of(squares, columns - special), squares,
                              special != 0};
            tally.counts.differing_rows += measure(range, sums, tally) ? 1 : 0;
        }
    }

    void measure_part_of_row(int64_t piece, Tally& tally) {
        PieceSums& sums = sums_[static_cast<size_t>(piece)];
        const int64_t begin = pieces_.begin(piece), end = pieces_.end(piece);
        const double rms = rms_of_long_rows_[static_cast<size_t>(pieces_.row_of(piece))];
        sums.pair_squares = 0;
        sums.equal = !measure({begin, end, rms, sums.squares, sums.finite < end - begin}, sums, tally);
    }

    /// Elements of one row, the row's rms, their own squares, and whether any expected one is not finite.
    struct Range {
        int64_t begin, end;
        double rms, squares;
        bool has_special;
    };

    /// Whether any element of the range differs.
    bool measure(const Range& range, PieceSums& sums, Tally& tally) {
        constexpr int64_t step = Block<Type>::size;
        int64_t& identical = tally.counts.identical;
        const int64_t identical_before = identical;
        bool lost = false;
        for (int64_t i = range.begin; i < range.end; i += step) {
            const int64_t stop = std::min(i + step, range.end);
            if (same_bytes(i, stop) && !range.has_special)
                identical += stop - i;
            else
                lost |= measure_block(i, stop, range.rms, sums, tally);
        }
        sums.pair_squares += lost ? squares_of_finite_pairs(range) : range.squares;
        return identical - identical_before < range.end - range.begin;
    }

    /// Whether a finite expected element has a partner that is not.
    bool measure_block(int64_t begin, int64_t end, double rms, PieceSums& sums, Tally& tally) {
        Block<Type> block;
        block.read(expected_at(begin), got_at(begin), end - begin);
        bool lost = false;
        int64_t finite = end - begin;
        if (block.has_special())
            for (int64_t i = 0; i < end - begin; ++i) {
                if (Type::finite(block.expected[i]) && Type::finite(block.got[i])) continue;
                lost |= Type::finite(block.expected[i]);
                take_special(begin + i, block.expected[i], block.got[i], tally);
                block.expected[i] = block.got[i] = 0;
                --finite;
            }
        block.measure(rms, limits_, sums);
        const int64_t differing = Block<Type>::count(block.differs);
        tally.counts.identical += finite - differing;
        if (differing != 0) take_block(begin, block, differing, tally);
        return lost;
    }

    void take_block(int64_t begin, const Block<Type>& block, int64_t differing, Tally& tally) {
        Difference& counts = tally.counts;
        count_ulps(block, differing, counts);
        counts.outside += Block<Type>::count(block.outside);
        counts.largest_absolute = std::max(counts.largest_absolute, Block<Type>::largest(block.distances));
        counts.largest_relative = std::max(counts.largest_relative, block.largest_relative());
        const double largest_of_rms = Block<Type>::largest(block.of_rms);
        counts.largest_of_rms = std::max(counts.largest_of_rms, largest_of_rms);
        int i = 0;
        while (block.differs[i] == 0) ++i;
        tally.take_first(begin + i);
        // Elements are looked at one by one where one of them may be worse than what is known.
        if (limits_.exact && largest_of_rms < tally.outside.severity) return;
        for (; i < Block<Type>::size; ++i) {
            if (block.differs[i] == 0) continue;
            if (block.outside[i] == 0)
                tally.inside.take(begin + i, block.of_rms[i]);
            else
                tally.outside.take(begin + i, limits_.exact ? block.of_rms[i] : excess_of(block, i));
        }
    }

    /// How many times the nearest limit an element outside all of them is away.
    double excess_of(const Block<Type>& block, int i) const {
        const double by_ulp = static_cast<double>(block.ulps[i]) / static_cast<double>(limits_.ulp);
        const double by_rms = block.of_rms[i] / limits_.rms;
        const double by_absolute =
            block.distances[i] / (limits_.absolute + limits_.relative * block.magnitudes[i]);
        double excess = infinity;
        if (tolerance_.ulp) excess = std::min(excess, by_ulp);
        if (tolerance_.rms) excess = std::min(excess, by_rms);
        if (tolerance_.absolute || tolerance_.relative) excess = std::min(excess, by_absolute);
        return excess;
    }

    double squares_of_finite_pairs(const Range& range) const {
        double squares = 0;
        for (int64_t i = range.begin; i < range.end; ++i)
            if (Type::finite(expected_bits(i)) && Type::finite(got_bits(i)))
                squares += Type::value(expected_bits(i)) * Type::value(expected_bits(i));
        return squares;
    }

    static void count_places(bool in_expected, bool in_got, PlacesDifference& places) {
        places.both += in_expected && in_got;
        places.expected_only += in_expected && !in_got;
        places.got_only += in_got && !in_expected;
    }

    static void count_special(Bits e, Bits g, Difference& counts) {
        if (Type::finite(e) && Type::finite(g)) return;
        const bool e_nan = Type::nan(e), g_nan = Type::nan(g);
        const bool e_infinite = !e_nan && !Type::finite(e), g_infinite = !g_nan && !Type::finite(g);
        count_places(e_nan, g_nan, counts.nan);
        count_places(e_infinite && !Type::negative(e), g_infinite && !Type::negative(g),
                     counts.positive_infinity);
        count_places(e_infinite && Type::negative(e), g_infinite && Type::negative(g),
                     counts.negative_infinity);
    }

    /// An element that is not finite in one or both.
    static void take_special(int64_t index, Bits e, Bits g, Tally& tally) {
        count_special(e, g, tally.counts);
        if (e == g || (Type::nan(e) && Type::nan(g))) {
            ++tally.counts.identical;
            return;
        }
        tally.take_first(index);
        ++tally.counts.outside;
        tally.outside.take(index, infinity);
    }

    Difference result() {
        Difference result = total_.counts;
        result.elements = expected_.elements();
        result.rows = pieces_.rows;
        result.one_value = result.one_value && result.elements > 0;
        add_rows_of_pieces(result);
        add_sums(result);
        result.ulp_bins[0] += result.identical - result.nan.both - result.positive_infinity.both -
                              result.negative_infinity.both;
        result.first = pair_at(total_.first);
        result.worst = pair_at(total_.outside.index >= 0 ? total_.outside.index : total_.inside.index);
        return result;
    }

    void add_rows_of_pieces(Difference& result) const {
        if (!pieces_.cuts_rows()) return;
        int64_t last_differing = -1;
        for (int64_t piece = 0; piece < pieces_.count; ++piece) {
            const int64_t row = pieces_.row_of(piece);
            if (sums_[static_cast<size_t>(piece)].equal || row == last_differing) continue;
            ++result.differing_rows;
            last_differing = row;
        }
    }

    /// sum(e^2 + g^2) = 2 sum e^2 + sum(g^2 - e^2), and 1 - 2 sum(eg) / sum(e^2 + g^2) is
    /// sum (e - g)^2 / sum(e^2 + g^2): pairs that are equal need no sum of their own, and nothing cancels.
    void add_sums(Difference& result) const {
        PieceSums total;
        for (const PieceSums& sums : sums_) {
            total.pair_squares += sums.pair_squares;
            total.differences += sums.differences;
            total.partner_excess += sums.partner_excess;
        }
        const double both = 2 * total.pair_squares + total.partner_excess;
        result.normalised_mean_square = total.differences == 0 ? 0 : total.differences / total.pair_squares;
        result.cosine = total.differences == 0 ? 0 : total.differences / both;
    }

    ElementPair pair_at(int64_t index) const {
        if (index < 0) return {};
        const Bits e = expected_bits(index), g = got_bits(index);
        return {index, Type::value(e), Type::value(g), e, g};
    }

    const TensorView& expected_;
    const TensorView& got_;
    const Tolerance& tolerance_;
    const Limits limits_;
    const AfterPiece& after_piece_;
    Pieces pieces_;
    std::vector<PieceSums> sums_;
    std::vector<double> rms_of_long_rows_;
    Tally total_;
};

}  // namespace touchstone::difference_parts
