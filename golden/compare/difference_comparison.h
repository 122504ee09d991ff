// The comparison of two tensors of one type; golden/compare/difference.cpp calls it for every type.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <vector>

#include "golden/compare/difference.h"
#include "golden/compare/difference_limits.h"
#include "golden/compare/difference_parts.h"
#include "golden/compare/difference_vector.h"
#include "golden/compare/element_types.h"

namespace touchstone::difference_parts {

/// The comparison of two tensors of one type.
template <class Type>
class Comparison {
    using Bits = typename Type::Bits;

  public:
    Comparison(const TensorView& expected, const TensorView& got, const Tolerance& tolerance,
               const AfterPiece& after_piece)
        : expected_(expected),
          got_(got),
          limits_(tolerance),
          kernels_(difference_kernels(active_isa())),
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
        const ElementCounts counted = kernels_.count(expected_at(begin), end - begin);
        counts.zeros += counted.zeros;
        counts.not_finite += counted.not_finite;
        sums.finite = end - begin - counted.not_finite;
        counts.one_value = counts.one_value && all_bits_are_the_first(begin, end);
        if (sums.equal && counted.not_finite != 0)
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
        sums.squares = kernels_.sum_of_squares(expected_at(pieces_.begin(piece)),
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

    void measure_rows(int64_t piece, Tally& tally) {
        PieceSums& sums = sums_[static_cast<size_t>(piece)];
        sums.measured = true;
        const int64_t columns = pieces_.columns;
        for (int64_t begin = pieces_.begin(piece); begin < pieces_.end(piece); begin += columns) {
            const double squares = kernels_.sum_of_squares(expected_at(begin), columns);
            sums.squares += squares;
            const int64_t special = sums.finite == pieces_.end(piece) - pieces_.begin(piece)
                                        ? 0
                                        : kernels_.count(expected_at(begin), columns).not_finite;
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
        Difference& counts = tally.counts;
        const RowLimits limits = limits_.of_row(range.rms);
        RunningSums running{sums.differences, sums.partner_excess, counts.largest_relative,
                            tally.quotient_is_narrow};
        Batch<Bits> batch;
        bool lost = false;
        int64_t differing = 0;
        double largest = 0;
        for (int64_t i = range.begin; i < range.end;) {
            i = kernels_.collect(expected_.bytes.data(), got_.bytes.data(), i, range.end, range.has_special,
                                 batch);
            if (batch.blocks == 0) continue;
            if (kernels_.has_special(batch)) lost |= take_specials(batch, differing, tally);
            const BatchResult result = kernels_.measure(batch, limits, running);
            if (result.differing == 0) continue;
            differing += result.differing;
            largest = std::max(largest, result.largest_distance);
            take_batch(batch, result, range.rms, tally);
        }
        sums.differences = running.differences;
        sums.partner_excess = running.partner_excess;
        sums.pair_squares += lost ? squares_of_finite_pairs(range) : range.squares;
        counts.largest_relative = running.largest_relative;
        tally.quotient_is_narrow = running.quotient_is_narrow;
        counts.identical += range.end - range.begin - differing;
        counts.largest_absolute = std::max(counts.largest_absolute, largest);
        counts.largest_of_rms = std::max(counts.largest_of_rms, in_units_of_rms(largest, range.rms));
        return differing != 0;
    }

    /// Counts the pairs that are not finite and puts zeros in their place; whether one of a finite expected
    /// element is among them.
    static bool take_specials(Batch<Bits>& batch, int64_t& differing, Tally& tally) {
        bool lost = false;
        for (int64_t i = 0; i < batch.blocks * block_elements; ++i) {
            Bits &e = batch.expected[i], &g = batch.got[i];
            if (Type::finite(e) && Type::finite(g)) continue;
            lost |= Type::finite(e);
            differing += take_special(index_in(batch, i), e, g, tally) ? 1 : 0;
            e = g = 0;
        }
        return lost;
    }

    static int64_t index_in(const Batch<Bits>& batch, int64_t i) {
        return batch.begin[i / block_elements] + i % block_elements;
    }

    void take_batch(const Batch<Bits>& batch, const BatchResult& result, double rms, Tally& tally) const {
        Difference& counts = tally.counts;
        counts.zero_signs += result.differing - result.beyond[0];
        int64_t left = result.differing;
        for (size_t bin = 0; bin < std::size(result.beyond); ++bin) {
            counts.ulp_bins[bin] += left - result.beyond[bin];
            left = result.beyond[bin];
        }
        counts.ulp_bins.back() += left;
        constexpr uint64_t most = std::numeric_limits<int64_t>::max();
        counts.largest_ulp =
            std::max(counts.largest_ulp, static_cast<int64_t>(std::min(result.largest_ulp, most)));
        counts.outside += result.outside;
        if (tally.first < 0 || batch.begin[0] < tally.first) {
            int64_t i = 0;
            while (batch.expected[i] == batch.got[i]) ++i;
            tally.take_first(index_in(batch, i));
        }
        if (may_be_worse(batch.begin[0], result, rms, tally)) look_at_each(batch, rms, tally);
    }

    /// Whether an element of a batch may be worse than the worst so far: what is known of all is at least
    /// what each of them comes to, because roundings keep the order.
    bool may_be_worse(int64_t begin, const BatchResult& result, double rms, const Tally& tally) const {
        const auto worse = [begin](const Candidate& known, double severity) {
            return known.index < 0 || known.index >= begin || severity > known.severity;
        };
        const double of_rms = in_units_of_rms(result.largest_distance, rms);
        if (limits_.exact) return worse(tally.outside, of_rms);
        const double excess = limits_.excess(result.largest_ulp, of_rms, result.largest_distance, 0);
        return (result.outside != 0 && worse(tally.outside, excess)) ||
               (result.outside < result.differing && tally.outside.index < 0 && worse(tally.inside, of_rms));
    }

    void look_at_each(const Batch<Bits>& batch, double rms, Tally& tally) const {
        for (int64_t i = 0; i < batch.blocks * block_elements; ++i) {
            const Bits e = batch.expected[i], g = batch.got[i];
            if (e == g) continue;
            const uint64_t ulp = element_types::distance<Type>(e, g);
            const double distance = element_types::absolute_difference<Type>(e, g);
            const double magnitude = std::abs(Type::value(e)), of_rms = in_units_of_rms(distance, rms);
            if (limits_.exact)
                tally.outside.take(index_in(batch, i), of_rms);
            else if (limits_.within(ulp, of_rms, distance, magnitude))
                tally.inside.take(index_in(batch, i), of_rms);
            else
                tally.outside.take(index_in(batch, i), limits_.excess(ulp, of_rms, distance, magnitude));
        }
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

    /// An element that is not finite in one or both; whether it differs.
    static bool take_special(int64_t index, Bits e, Bits g, Tally& tally) {
        count_special(e, g, tally.counts);
        if (e == g || (Type::nan(e) && Type::nan(g))) return false;
        tally.take_first(index);
        ++tally.counts.outside;
        tally.outside.take(index, infinity);
        return true;
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
    const Limits limits_;
    const TypeKernels<Type>& kernels_;
    const AfterPiece& after_piece_;
    Pieces pieces_;
    std::vector<PieceSums> sums_;
    std::vector<double> rms_of_long_rows_;
    Tally total_;
};

}  // namespace touchstone::difference_parts
