#include "golden/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "golden/k_blocks.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace {

/// A hypothesis that leaves more of the difference than this unexplained is not named.
constexpr double most_unexplained = 0.05;
/// Of several, those that leave this many times what the best leaves are dropped.
constexpr double much_worse = 3;

TensorView view(const Tensor& tensor) {
    return {tensor.type, tensor.shape, tensor.bytes};
}

bool is_float(std::string_view type) {
    return type == "F32" || type == "BF16" || type == "F64";
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

/// What is left of a difference: in units of each row's own rms, so that no row of large values speaks for
/// the others; and places, where integers differ or one side is not finite.
struct Distance {
    double squares = 0;
    int64_t places = 0;
};

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

Distance distance(const Tensor& a, const Tensor& b, const Tensor& expected) {
    Distance result;
    const int64_t width = width_of(expected);
    double unit = 1;
    for (int64_t i = 0; i < a.elements(); ++i) {
        if (i % width == 0 && is_float(a.type)) unit = row_rms(expected, i, width);
        const double x = element_as_double(a, i), y = element_as_double(b, i);
        if (is_float(a.type) && std::isfinite(x) && std::isfinite(y))
            result.squares += (x - y) / unit * ((x - y) / unit);
        else if (x != y && !(std::isnan(x) && std::isnan(y)))
            ++result.places;
    }
    return result;
}

double share_of(double part, double whole) {
    if (part == 0) return 0;
    return whole > 0 ? part / whole : std::numeric_limits<double>::infinity();
}

bool same_bits(const TensorMap& predicted, const TensorMap& got) {
    return std::ranges::all_of(got, [&](const auto& entry) {
        return difference(view(predicted.find(entry.first)->second), view(entry.second), {}).equal();
    });
}

/// An operator's result beside the reference's.
struct Results {
    std::span<const OutputSlot> slots;
    const TensorMap &expected, &got;
};

/// Whether rounding alone leads from `outputs` to what was got, in one slot.
bool within_rounding(const OutputSlot& slot, const TensorMap& outputs, const Tensor& got) {
    const Tolerance tolerance = rounding_tolerance(slot);
    return within(difference(view(outputs.find(slot.name)->second), view(got), tolerance), tolerance);
}

/// What the outputs `predicted` leave unexplained of the difference between reference and result: the largest
/// share of any output. One that they give but for rounding is explained: its difference from the reference
/// may itself be rounding, of which nothing would explain a share.
double unexplained_by(const TensorMap& predicted, const Results& results) {
    double largest = 0;
    for (const OutputSlot& slot : results.slots) {
        const auto got = results.got.find(slot.name);
        if (got == results.got.end() || within_rounding(slot, predicted, got->second)) continue;
        const Tensor& reference = results.expected.find(slot.name)->second;
        const Distance left = distance(predicted.find(slot.name)->second, got->second, reference);
        const Distance whole = distance(reference, got->second, reference);
        largest = std::max({largest, std::sqrt(share_of(left.squares, whole.squares)),
                            share_of(static_cast<double>(left.places), static_cast<double>(whole.places))});
    }
    return largest;
}

std::vector<Explanation> explain(const Results& results, bool only_exact, const Predict& predict,
                                 std::vector<std::string>& tried) {
    std::vector<Explanation> found;
    for (const Hypothesis& hypothesis : hypotheses()) {
        const std::optional<TensorMap> predicted = predict(hypothesis);
        // What changes nothing on these inputs explains nothing.
        if (!predicted || same_bits(*predicted, results.expected)) continue;
        tried.push_back(hypothesis.name);
        if (same_bits(*predicted, results.got)) {
            found.push_back({&hypothesis, true, 0});
            continue;
        }
        if (only_exact) continue;
        const double left = unexplained_by(*predicted, results);
        if (left <= most_unexplained) found.push_back({&hypothesis, false, left});
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
            const bool near =
                std::isfinite(x) && std::isfinite(y) && tolerance.rms && std::abs(x - y) <= unit;
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
        const Tolerance rounding = rounding_tolerance(slot);
        const Difference d = difference(view(expected), view(got), rounding);
        if (d.equal()) continue;
        const bool here_within = within(d, rounding);
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

Tolerance rounding_tolerance(const OutputSlot& slot) {
    if (slot.judged == Judged::equal || slot.judged == Judged::not_judged) return {};
    // By units alone a sum that cancels to almost nothing would fail.
    if (slot.type == "BF16") return {.ulp = 1, .rms = 1e-5, .share = 0.01};
    if (slot.type == "F32") return {.rms = 1e-5};
    return {};
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
