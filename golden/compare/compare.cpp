#include "golden/compare/compare.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "golden/compare/difference_parts.h"
#include "golden/compare/element_types.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace {

constexpr std::string_view verdict_names[verdict_count]{"EQUAL", "PASSED", "TIE", "MISTRUSTED", "FAILED"};

/// Why an expectation proves nothing, or "". Integers are often constant, one element always is.
std::string doubt_of(const std::string& type, const Difference& d) {
    if (!is_float_type(type) || d.elements <= 1) return "";
    if (d.zeros == d.elements) return "the expectation is all zeros";
    if (d.not_finite == d.elements) return "nothing in the expectation is finite";
    if (d.one_value) return "the expectation has one value in all places";
    return "";
}

/// "NaN" and how many are missing and new; nothing where the places are the same.
std::string places_text(std::string_view name, const PlacesDifference& places) {
    if (places.expected_only == 0 && places.got_only == 0) return "";
    return fmt::format("; {} at other places: {} missing, {} new", name, places.expected_only,
                       places.got_only);
}

/// What a unit in the last place is called.
std::string steps_text(const std::string& type, int64_t ulp) {
    if (type == "E2M1") return ulp == 1 ? "one fp4 code apart" : fmt::format("up to {} fp4 codes apart", ulp);
    if (static_cast<double>(ulp) > most_ulp)
        return is_float_type(type) ? "more than 2^53 ulp" : "more than 2^53 apart";
    if (!is_float_type(type)) return fmt::format("up to {} apart", ulp);
    return fmt::format("up to {} ulp", ulp);
}

bool sums_known(const Difference& d) {
    return d.normalised_mean_square >= 0 && d.cosine >= 0;
}

bool same_places(const PlacesDifference& places) {
    return places.expected_only == 0 && places.got_only == 0;
}

/// The smallest relative limit, found by trying: a quotient, rounded, times what it was divided by need not
/// reach the distance again, and no quotient is known where 0 was expected.
std::optional<double> minimum_relative(const TensorView& expected, const TensorView& got, const Difference& d,
                                       const AfterPiece& after_piece) {
    constexpr double infinite = std::numeric_limits<double>::infinity();
    if (d.largest_relative == infinite) return std::nullopt;
    Tolerance tolerance;
    tolerance.relative = d.largest_relative;
    const Difference tried = difference(expected, got, tolerance, after_piece);
    if (tried.outside == 0) return d.largest_relative;
    // Beside 0 every limit is infinitely far away, so that such an element is the worst.
    if (tried.worst.expected == 0) return std::nullopt;
    const double above = std::nextafter(d.largest_relative, infinite);
    return above == infinite ? std::nullopt : std::optional(above);
}

MinimumTolerances minimum_of(const TensorView& expected, const TensorView& got, const Difference& d,
                             const AfterPiece& after_piece) {
    if (d.equal()) return {0, 0.0, 0.0, 0.0};
    MinimumTolerances minimum;
    if (!same_places(d.nan) || !same_places(d.positive_infinity) || !same_places(d.negative_infinity) ||
        !sums_known(d))
        return minimum;
    if (static_cast<double>(d.largest_ulp) <= most_ulp) minimum.ulp = d.largest_ulp;
    if (std::isfinite(d.largest_absolute)) minimum.absolute = d.largest_absolute;
    if (std::isfinite(d.largest_of_rms)) minimum.rms = d.largest_of_rms;
    minimum.relative = minimum_relative(expected, got, d, after_piece);
    return minimum;
}

std::string difference_text(const std::string& type, const Difference& d, const Tolerance& tolerance) {
    const int64_t differing = d.elements - d.identical;
    std::string text = fmt::format("{} of {} elements differ in {} of {} rows", differing, d.elements,
                                   d.differing_rows, d.rows);
    if (d.largest_ulp > 0) text += ", " + steps_text(type, d.largest_ulp);
    if (d.zero_signs == differing && differing > 0) text += ", in the sign of zero alone";
    if (!tolerance.exact())
        text += d.outside > 0 ? fmt::format("; {} outside {}", d.outside, tolerance_text(tolerance))
                              : fmt::format("; all within the limits of {}", tolerance_text(tolerance));
    text += places_text("NaN", d.nan) + places_text("+inf", d.positive_infinity) +
            places_text("-inf", d.negative_infinity);
    const double share = static_cast<double>(differing) / static_cast<double>(d.elements);
    if (share > tolerance.share) text += fmt::format("; more than a share of {} differ", tolerance.share);
    if (tolerance.cosine && !(d.cosine <= *tolerance.cosine))
        text += fmt::format("; cosine distance {:.3g}", std::abs(d.cosine));  // a NaN may have a sign
    if (!sums_known(d)) text += "; sums beyond a double";
    return text;
}

std::string selection_text(const SelectionDifference& s) {
    std::string text = fmt::format("{} of {} rows select alike", s.equal, s.rows);
    if (s.reordered > 0) text += fmt::format(", {} in another order", s.reordered);
    if (s.ties > 0) text += fmt::format(", {} otherwise among equal scores", s.ties);
    if (s.wrong > 0) text += fmt::format(", {} wrong", s.wrong);
    for (size_t fault = 1; fault < index_fault_count; ++fault)
        if (s.faults[fault] > 0)
            text += fmt::format("; {} in {} rows", name_of(static_cast<IndexFault>(fault)), s.faults[fault]);
    if (s.wrong > 0 && !s.has_scores) text += "; ties cannot be told without scores";
    return text;
}

}  // namespace

std::string_view name_of(Verdict verdict) {
    return verdict_names[static_cast<size_t>(verdict)];
}

bool CompareReport::nothing_found() const {
    return std::ranges::none_of(tensors, &TensorComparison::found);
}

bool CompareReport::nothing_compared() const {
    return std::ranges::none_of(tensors, [](const TensorComparison& tensor) {
        return tensor.found && (!tensor.difference || tensor.difference->elements > 0);
    });
}

Verdict CompareReport::verdict() const {
    Verdict heaviest = Verdict::equal;
    for (const TensorComparison& tensor : tensors) heaviest = std::max(heaviest, tensor.verdict);
    return heaviest;
}

const TensorComparison* CompareReport::worst() const {
    const auto weight = [](const TensorComparison& tensor) {
        const double error = tensor.difference ? tensor.difference->largest_of_rms : 0;
        const bool special = tensor.difference && tensor.difference->outside > 0 && error == 0;
        return std::tuple(tensor.verdict, tensor.difference.has_value(), special ? 1e300 : error);
    };
    const TensorComparison* found = nullptr;
    for (const TensorComparison& tensor : tensors)
        if (tensor.verdict != Verdict::equal && (found == nullptr || weight(*found) < weight(tensor)))
            found = &tensor;
    return found;
}

int CompareReport::exit_code() const {
    if (nothing_compared()) return 3;
    return verdict() >= Verdict::mistrusted ? 1 : 0;
}

TensorComparison compare_tensors(const std::string& name, const TensorView& expected, const TensorView& got,
                                 const Tolerance& tolerance, const AfterPiece& after_piece) {
    TensorComparison result{name, true, name};
    result.type = expected.type;
    result.shape = expected.shape;
    result.tolerance = tolerance;
    if (expected.type != got.type) {
        result.verdict = Verdict::failed;
        result.reason = fmt::format("type: expected {}, got {}", expected.type, got.type);
        return result;
    }
    if (expected.shape != got.shape) {
        result.verdict = Verdict::failed;
        result.reason = fmt::format("shape: expected [{}], got [{}]", fmt::join(expected.shape, ", "),
                                    fmt::join(got.shape, ", "));
        return result;
    }
    const Difference d = difference(expected, got, tolerance, after_piece);
    result.difference = d;
    result.minimum = minimum_of(expected, got, d, after_piece);
    result.doubt = doubt_of(expected.type, d);
    if (!d.equal()) {
        result.verdict = within(d, tolerance) ? Verdict::passed : Verdict::failed;
        result.reason = difference_text(expected.type, d, tolerance);
    }
    return result;
}

void judge_selection(TensorComparison& result, const SelectionDifference& selection) {
    result.selection = selection;
    if (result.verdict == Verdict::equal) return;
    result.verdict = selection.wrong > 0  ? Verdict::failed
                     : selection.ties > 0 ? Verdict::tie
                                          : Verdict::passed;
    result.reason = selection_text(selection);
    result.minimum = {};  // no limit makes another choice the same
}

/// Sign, exponent and mantissa bits of the floating types.
struct Fields {
    std::string_view type;
    int sign, exponent, mantissa;
};

constexpr Fields fields[]{
    {"F64", 1, 11, 52},   {"F32", 1, 8, 23},    {"F16", 1, 5, 10},    {"BF16", 1, 8, 7},
    {"F8_E4M3", 1, 4, 3}, {"F8_E5M2", 1, 5, 2}, {"F8_E8M0", 0, 8, 0}, {"E2M1", 1, 2, 1},
};

std::string bits_text(std::string_view type, uint64_t bits) {
    const int digits = type == "E2M1" ? 1 : 2 * static_cast<int>(element_type_bytes(type));
    std::string text = fmt::format("0x{:0{}X}", bits, digits);
    for (const Fields& f : fields) {
        if (f.type != type) continue;
        text += " =";
        int left = f.sign + f.exponent + f.mantissa;
        for (int width : {f.sign, f.exponent, f.mantissa}) {
            if (width == 0) continue;
            left -= width;
            text += fmt::format(" {:0{}b}", bits >> left & ((uint64_t{1} << width) - 1), width);
        }
    }
    return text;
}

namespace {

/// One row's largest error in units of its rms.
template <class Type>
double row_error(const std::byte* expected, const std::byte* got, int64_t columns) {
    using Bits = typename Type::Bits;
    constexpr double infinite = std::numeric_limits<double>::infinity();
    double squares = 0, largest = 0;
    int64_t finite = 0;
    for (int64_t i = 0; i < columns; ++i) {
        const Bits e = difference_parts::load<Bits>(expected, i), g = difference_parts::load<Bits>(got, i);
        if (Type::finite(e)) {
            squares += Type::value(e) * Type::value(e);
            ++finite;
        }
        if (e == g || (Type::nan(e) && Type::nan(g))) continue;
        if (!Type::finite(e) || !Type::finite(g)) return infinite;
        largest = std::max(largest, element_types::absolute_difference<Type>(e, g));
    }
    if (largest == 0) return 0;
    const double rms = std::sqrt(squares / static_cast<double>(finite));
    return rms > 0 && rms < infinite ? largest / rms : infinite;
}

}  // namespace

std::vector<double> row_errors(const TensorView& expected, const TensorView& got, int64_t points,
                               const AfterPiece& after_piece) {
    const int64_t elements = expected.elements();
    const int64_t columns = expected.shape.empty() ? 1 : expected.shape.back();
    const int64_t rows = elements == 0 ? 0 : elements / columns;
    std::vector<double> errors(static_cast<size_t>(std::min(rows, points)));
    const int64_t row_bytes = columns * element_type_bytes(expected.type);
    const int64_t rows_per_piece =
        std::max<int64_t>(1, difference_parts::piece_bytes / std::max<int64_t>(1, row_bytes));
    const auto fill = [&]<class Type>() {
        for (int64_t row = 0; row < rows; ++row) {
            double& point = errors[static_cast<size_t>(row * std::ssize(errors) / rows)];
            point = std::max(point, row_error<Type>(expected.bytes.data() + row * row_bytes,
                                                    got.bytes.data() + row * row_bytes, columns));
            if (!after_piece || ((row + 1) % rows_per_piece != 0 && row + 1 != rows)) continue;
            const size_t begin = static_cast<size_t>(row / rows_per_piece * rows_per_piece * row_bytes);
            const size_t bytes = static_cast<size_t>((row + 1) * row_bytes) - begin;
            after_piece(expected.bytes.subspan(begin, bytes), got.bytes.subspan(begin, bytes));
        }
    };
    element_types::visit(expected.type, fill);
    return errors;
}

}  // namespace touchstone
