#include "golden/bisect/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "golden/hypotheses/k_blocks.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace {

/// Nor one that leaves more than this share, rms by rms, of the result or of what it predicts.
constexpr double most_beside_itself = 0.1;
/// Nor one that leaves more than this, though all of it may be rounding.
constexpr double most_within_rounding = 0.5;
/// Where rounding explains a result too, a fault is named for this many elements at least: a rounding tie
/// taken the other way is no evidence.
constexpr int64_t least_evidence = 4;
/// Of several, those that leave this many times what the best leaves are dropped.
constexpr double much_worse = 3;

bool is_float(std::string_view type) {
    return type == "F32" || type == "BF16" || type == "F64";
}

int64_t width_of(const Tensor& tensor) {
    return tensor.shape.empty() ? 1 : std::max<int64_t>(tensor.shape.back(), 1);
}

/// rms of the finite elements of a row; 1 where there are none but zeros.
double row_rms(const Tensor& tensor, int64_t first, int64_t width) {
    double squares = 0;
    for (int64_t i = first; i < first + width; ++i) {
        const double x = element_as_double(tensor, i);
        if (std::isfinite(x)) squares += x * x;
    }
    return squares > 0 ? std::sqrt(squares / static_cast<double>(width)) : 1;
}

/// What is left of a difference: in units of each row's own rms, so that no row of large values speaks for
/// the others; and places: where numbers are farther apart than rounding brings them, where integers differ
/// and where one side is not finite.
struct Distance {
    double squares = 0;
    int64_t places = 0, hard_places = 0;  ///< hard: all but the first kind
    int64_t lost = 0;                     ///< places where one side alone is finite
    int64_t differing = 0;                ///< elements that are not the same number
};

/// An output that was got, and its difference from the reference's, against which predictions are held.
class ToExplain {
  public:
    ToExplain(const Tensor& expected, const Tensor& got)
        : got_(numbers_of(got)),
          measured_(is_float(got.type)),
          step_(got.type == "BF16" ? 0x1p-7 : 1e-5),
          width_(static_cast<size_t>(width_of(got))) {
        for (int64_t i = 0; i < expected.elements(); i += width_of(got)) {
            row_rms_.push_back(row_rms(expected, i, width_of(got)));
        }
        whole_ = distance(numbers_of(expected));
    }

    /// The share that a prediction leaves: of the squares, or of a fault the places. Places alone count where
    /// a kernel's own noise decides about few large errors, as when a byte order is wrong.
    double unexplained(const Tensor& predicted, Cause what) const {
        const std::vector<double> values = numbers_of(predicted);
        const Distance left = distance(values);
        if (share(left.lost, whole_.lost) > most_unexplained || !resembles(values))
            return std::numeric_limits<double>::infinity();
        const double squares = std::max(std::sqrt(share(left.squares, whole_.squares)),
                                        share(left.hard_places, whole_.hard_places));
        const bool by_places = what == Cause::fault && whole_.places > 0 && places_tell();
        return by_places ? std::min(squares, share(left.places, whole_.places)) : squares;
    }

  private:
    Distance distance(const std::vector<double>& values) const {
        Distance result;
        for (size_t i = 0; i < values.size(); ++i) {
            const double x = values[i], y = got_[i];
            if (x == y || (std::isnan(x) && std::isnan(y))) continue;
            ++result.differing;
            if (measured_ && std::isfinite(x) && std::isfinite(y)) {
                const double units = (x - y) / row_rms_[i / width_];
                result.squares += units * units;
                result.places += std::abs(units) > 1e-5 && std::abs(x - y) > step_ * std::abs(y);
            } else {
                ++result.places;
                ++result.hard_places;
                result.lost += measured_;
            }
        }
        return result;
    }

    /// Whether what differs besides the places is rounding for sure: numbers in fp32 that are no places are.
    bool places_tell() const {
        const int64_t rest = whole_.differing - whole_.places;
        return step_ < 0x1p-7 || rest <= 3 * whole_.places || 100 * rest <= std::ssize(got_);
    }

    /// Whether what is left is small beside the result and the prediction themselves, row by row: near a
    /// result of zeros everything is that is small.
    bool resembles(const std::vector<double>& values) const {
        if (!measured_) return true;
        double squares = 0;
        for (size_t first = 0; first < values.size(); first += width_) {
            double left = 0, of_got = 0, of_values = 0;
            for (size_t i = first; i < first + width_; ++i) {
                if (!std::isfinite(values[i]) || !std::isfinite(got_[i])) continue;
                left += (values[i] - got_[i]) * (values[i] - got_[i]);
                of_got += got_[i] * got_[i];
                of_values += values[i] * values[i];
            }
            if (left > 0) squares += static_cast<double>(width_) * left / std::min(of_got, of_values);
        }
        return squares <= most_beside_itself * most_beside_itself * static_cast<double>(values.size());
    }

    template <class T>
    static double share(T part, T whole) {
        if (part == 0) return 0;
        return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole)
                         : std::numeric_limits<double>::infinity();
    }

    std::vector<double> got_, row_rms_;
    bool measured_;
    double step_;  ///< what rounding may do to a number, relative
    size_t width_;
    Distance whole_;
};

bool both_nan(const Tensor& a, const Tensor& b, int64_t i) {
    return is_float(a.type) && std::isnan(element_as_double(a, i)) && std::isnan(element_as_double(b, i));
}

/// Equal but for the payloads of NaN.
bool same_bits(const Tensor& a, const Tensor& b) {
    const int64_t elements = a.elements();
    auto left = a.bytes.begin(), right = b.bytes.begin();
    while (true) {
        std::tie(left, right) = std::mismatch(left, a.bytes.end(), right);
        if (left == a.bytes.end()) return true;
        const int64_t bytes = std::ssize(a.bytes) / elements, i = (left - a.bytes.begin()) / bytes;
        if (!both_nan(a, b, i)) return false;
        left = a.bytes.begin() + (i + 1) * bytes;
        right = b.bytes.begin() + (i + 1) * bytes;
    }
}

/// Of all outputs that `some` holds.
bool same_bits(const TensorMap& all, const TensorMap& some) {
    return std::ranges::all_of(
        some, [&](const auto& entry) { return same_bits(all.find(entry.first)->second, entry.second); });
}

/// As numbers: a zero of the other sign is no evidence.
int64_t elements_that_differ(const TensorMap& all, const TensorMap& some) {
    int64_t count = 0;
    for (const auto& [name, tensor] : some) {
        const std::vector<double> x = numbers_of(all.find(name)->second), y = numbers_of(tensor);
        for (size_t i = 0; i < x.size(); ++i)
            count += x[i] != y[i] && !(std::isnan(x[i]) && std::isnan(y[i]));
    }
    return count;
}

/// An operator's result beside the reference's.
struct Results {
    std::span<const OutputSlot> slots;
    const TensorMap &expected, &got;
};

/// Whether rounding alone made that difference. Where it may have, so may zeros of the other sign.
bool within_rounding(const Difference& found, const OutputSlot& slot) {
    const Tolerance tolerance = rounding_tolerance(slot);
    return within(found, tolerance) ||
           (!tolerance.exact() && found.zero_signs == found.elements - found.identical);
}

/// Whether rounding alone leads from `output` to what was got.
bool within_rounding(const OutputSlot& slot, const Tensor& output, const Tensor& got) {
    return within_rounding(difference(view_of(output), view_of(got), rounding_tolerance(slot)), slot);
}

bool within_rounding(const TensorMap& outputs, const Results& results) {
    return std::ranges::all_of(results.slots, [&](const OutputSlot& slot) {
        const auto got = results.got.find(slot.name);
        return got == results.got.end() ||
               within_rounding(slot, outputs.find(slot.name)->second, got->second);
    });
}

/// The largest share that a prediction leaves of any output.
class AllToExplain {
  public:
    explicit AllToExplain(const Results& results) {
        for (const OutputSlot& slot : results.slots) {
            const auto got = results.got.find(slot.name);
            if (got == results.got.end()) continue;
            const Tensor& expected = results.expected.find(slot.name)->second;
            outputs_.push_back({slot, got->second, within_rounding(slot, expected, got->second),
                                ToExplain(expected, got->second)});
        }
    }

    double unexplained(const TensorMap& predicted, Cause what) const {
        double largest = 0;
        for (const Output& output : outputs_) {
            const Tensor& tensor = predicted.find(output.slot.name)->second;
            // Of an output that is right but for rounding nothing is to be explained, nor to be spoilt.
            const bool stays_right = output.right && within_rounding(output.slot, tensor, output.got);
            if (!stays_right) largest = std::max(largest, output.difference.unexplained(tensor, what));
        }
        return largest;
    }

  private:
    struct Output {
        const OutputSlot& slot;
        const Tensor& got;
        bool right;
        ToExplain difference;
    };
    std::vector<Output> outputs_;
};

std::vector<Explanation> explain(const Results& results, bool only_exact, const Predict& predict,
                                 std::vector<std::string>& tried) {
    std::vector<Explanation> found;
    const AllToExplain to_explain(results);
    for (const Hypothesis& hypothesis : hypotheses()) {
        const std::optional<TensorMap> predicted = predict(hypothesis);
        // What changes nothing on these inputs explains nothing.
        if (!predicted || same_bits(*predicted, results.expected)) continue;
        tried.push_back(hypothesis.name);
        if (same_bits(*predicted, results.got)) {
            if (!only_exact || hypothesis.what == Cause::order ||
                elements_that_differ(results.expected, results.got) >= least_evidence)
                found.push_back({&hypothesis, true, 0});
            continue;
        }
        if (only_exact) continue;
        const double left = to_explain.unexplained(*predicted, hypothesis.what);
        if (left <= most_unexplained ||
            (left <= most_within_rounding && within_rounding(*predicted, results)))
            found.push_back({&hypothesis, false, left});
    }
    return found;
}

/// Exact ones, harmless ones before faults; where there are none, the ones that leave least.
void keep_the_best(std::vector<Explanation>& found) {
    const bool any_exact = std::ranges::any_of(found, &Explanation::exact);
    if (any_exact) std::erase_if(found, [](const Explanation& one) { return !one.exact; });
    std::ranges::stable_sort(found, {}, [](const Explanation& one) {
        return std::pair(one.unexplained, one.hypothesis->what == Cause::fault);
    });
    if (found.empty() || any_exact) return;
    const double best = found.front().unexplained;
    std::erase_if(found, [&](const Explanation& one) { return one.unexplained > much_worse * best; });
}

/// The first element that rounding does not explain, -1 where each for itself may be rounding.
int64_t first_beyond_rounding(const OutputSlot& slot, const Tensor& expected, const Tensor& got) {
    const Tolerance tolerance = rounding_tolerance(slot);
    const int64_t width = width_of(expected);
    const size_t row_bytes = expected.bytes.size() / static_cast<size_t>(expected.elements() / width);
    for (int64_t row = 0; row < expected.elements() / width; ++row) {
        const auto row_view = [&](const Tensor& tensor) {
            return TensorView{
                tensor.type,
                {width},
                std::span(tensor.bytes).subspan(static_cast<size_t>(row) * row_bytes, row_bytes)};
        };
        if (difference(row_view(expected), row_view(got), tolerance).outside == 0) continue;
        const double unit = tolerance.rms.value_or(0) * row_rms(expected, row * width, width);
        const size_t bytes = row_bytes / static_cast<size_t>(width);
        for (int64_t i = row * width; i < (row + 1) * width; ++i) {
            const double x = element_as_double(expected, i), y = element_as_double(got, i);
            const auto at = [&](const Tensor& tensor) {
                return TensorView{
                    tensor.type, {1}, std::span(tensor.bytes).subspan(static_cast<size_t>(i) * bytes, bytes)};
            };
            const bool near = std::isfinite(x) && std::isfinite(y) && tolerance.rms &&
                              std::abs(x - y) <= std::max(unit, tolerance.relative.value_or(0) * std::abs(x));
            if (!near && difference(at(expected), at(got), {.ulp = tolerance.ulp}).outside > 0) return i;
        }
    }
    return -1;
}

ElementPair element_pair(const Tensor& expected, const Tensor& got, int64_t i) {
    const size_t bytes = expected.bytes.size() / static_cast<size_t>(expected.elements());
    ElementPair pair{i, element_as_double(expected, i), element_as_double(got, i), 0, 0};
    std::memcpy(&pair.expected_bits, expected.bytes.data() + static_cast<size_t>(i) * bytes, bytes);
    std::memcpy(&pair.got_bits, got.bytes.data() + static_cast<size_t>(i) * bytes, bytes);
    return pair;
}

/// Where the result first leaves the reference; whether rounding explains all of it.
struct Departure {
    FirstStep first;
    bool all_within = true;
};

Departure departure(const Results& results) {
    Departure result;
    for (const OutputSlot& slot : results.slots) {
        const auto found = results.got.find(slot.name);
        if (found == results.got.end()) continue;
        const Tensor &expected = results.expected.find(slot.name)->second, &got = found->second;
        const Difference d = difference(view_of(expected), view_of(got), rounding_tolerance(slot));
        if (d.equal()) continue;
        const bool here_within = within_rounding(d, slot);
        // A difference that rounding explains is not where a fault begins.
        if (result.first.output.empty() || (result.all_within && !here_within)) {
            const int64_t beyond = here_within ? -1 : first_beyond_rounding(slot, expected, got);
            const int64_t index = beyond < 0 ? d.first.index : beyond;
            result.first = {slot.name, element_pair(expected, got, index), index_tuple(index, got.shape), -1};
        }
        result.all_within = result.all_within && here_within;
    }
    return result;
}

/// The result minus the reference: of the accumulators where they were given.
std::vector<double> linear_residual(const TensorMap& expected, const TensorMap& got) {
    const auto by_precision =
        std::ranges::find_if(got, [](const auto& one) { return one.second.type == "F32"; });
    const auto& [name, tensor] = by_precision == got.end() ? *got.begin() : *by_precision;
    std::vector<double> residual;
    for (int64_t i = 0; i < tensor.elements(); ++i)
        residual.push_back(element_as_double(tensor, i) - element_as_double(expected.find(name)->second, i));
    return residual;
}

int64_t first_k_block_of(const OperatorRun& run, const TensorMap& got) {
    const std::optional<LinearOperands> operands = linear_operands(run);
    if (!operands) return -1;
    const std::optional<KBlock> found = first_k_block(*operands, linear_residual(run.expected, got));
    return found ? found->block : -1;
}

}  // namespace

double unexplained_share(const Tensor& expected, const Tensor& got, const Tensor& predicted, Cause what) {
    return ToExplain(expected, got).unexplained(predicted, what);
}

Tolerance rounding_tolerance(const OutputSlot& slot) {
    if (slot.judged == Judged::equal || slot.judged == Judged::not_judged) return {};
    // By units alone a sum that cancels to almost nothing would fail.
    if (slot.type == "BF16") return {.ulp = 1, .rms = 1e-5, .share = 0.01};
    if (slot.type == "F32") return {.rms = 1e-5, .relative = 1e-5};
    return {};
}

void require_outputs(const OperatorRun& run, const TensorMap& got) {
    if (got.empty())
        throw UserError({"no output is given", run.info.name, "one of its outputs",
                         "see touchstone op --describe " + run.info.name});
    for (const auto& [name, tensor] : got) {
        const auto expected = run.expected.find(name);
        if (expected == run.expected.end())
            throw UserError({fmt::format("tensor \"{}\" is no output", name), run.info.name, "its outputs",
                             "see touchstone op --describe " + run.info.name});
        if (tensor.type != expected->second.type || tensor.shape != expected->second.shape)
            throw UserError({fmt::format("tensor \"{}\" is {}", name, describe(tensor.type, tensor.shape)),
                             run.info.name, describe(expected->second.type, expected->second.shape), ""});
    }
}

std::optional<TensorMap> predict(const Hypothesis& hypothesis, const OperatorRun& run) {
    if (!hypothesis.operators.empty() &&
        std::ranges::find(hypothesis.operators, run.info.name) == hypothesis.operators.end())
        return std::nullopt;
    try {
        std::optional<TensorMap> outputs = hypothesis.outputs(run);
        // Outputs that a hypothesis does not mention stay the reference's.
        if (outputs) outputs->insert(run.expected.begin(), run.expected.end());
        return outputs;
    } catch (const UserError&) {
        return std::nullopt;  // what it would have run is refused, so no kernel did it
    }
}

Diagnosis diagnose(std::span<const OutputSlot> slots, const TensorMap& expected, const TensorMap& got,
                   const Predict& predict) {
    Diagnosis result;
    const Results results{slots, expected, got};
    const Departure left = departure(results);
    result.first = left.first;
    if (result.first.output.empty()) return result;

    result.explanations = explain(results, left.all_within, predict, result.tried);
    keep_the_best(result.explanations);
    if (result.explanations.empty())
        result.finding = left.all_within ? Finding::rounding : Finding::unknown;
    else
        result.finding =
            result.explanations.front().hypothesis->what == Cause::order ? Finding::order : Finding::named;
    return result;
}

Diagnosis diagnose(const OperatorRun& run, const TensorMap& got) {
    require_outputs(run, got);
    Diagnosis result = diagnose(run.info.outputs, run.expected, got,
                                [&](const Hypothesis& hypothesis) { return predict(hypothesis, run); });
    if (result.finding == Finding::named || result.finding == Finding::unknown)
        result.first.k_block = first_k_block_of(run, got);
    return result;
}

}  // namespace touchstone
