#include "golden/diagnosis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

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

/// How far two outputs are apart: sum of squares over finite pairs; elements that differ, of other types and
/// where one side is not finite.
struct Distance {
    double squares = 0;
    int64_t places = 0;
};

Distance distance(const Tensor& a, const Tensor& b) {
    Distance result;
    for (int64_t i = 0; i < a.elements(); ++i) {
        const double x = element_as_double(a, i), y = element_as_double(b, i);
        if (is_float(a.type) && std::isfinite(x) && std::isfinite(y))
            result.squares += (x - y) * (x - y);
        else if (x != y && !(std::isnan(x) && std::isnan(y)))
            ++result.places;
    }
    return result;
}

double share_of(double part, double whole) {
    if (part == 0) return 0;
    return whole > 0 ? part / whole : std::numeric_limits<double>::infinity();
}

/// What the outputs `predicted` leave unexplained of the difference between reference and `got`: the largest
/// share of any output.
double unexplained_by(const TensorMap& predicted, const TensorMap& expected, const TensorMap& got) {
    double largest = 0;
    for (const auto& [name, tensor] : got) {
        const Distance left = distance(predicted.find(name)->second, tensor);
        const Distance whole = distance(expected.find(name)->second, tensor);
        largest = std::max({largest, std::sqrt(share_of(left.squares, whole.squares)),
                            share_of(static_cast<double>(left.places), static_cast<double>(whole.places))});
    }
    return largest;
}

bool same_bits(const TensorMap& predicted, const TensorMap& got) {
    return std::ranges::all_of(got, [&](const auto& entry) {
        return difference(view(predicted.find(entry.first)->second), view(entry.second), {}).equal();
    });
}

std::vector<Explanation> explain(const TensorMap& expected, const TensorMap& got, bool only_exact,
                                 const Predict& predict, std::vector<std::string>& tried) {
    std::vector<Explanation> found;
    for (const Hypothesis& hypothesis : hypotheses()) {
        const std::optional<TensorMap> predicted = predict(hypothesis);
        if (!predicted) continue;
        tried.push_back(hypothesis.name);
        if (same_bits(*predicted, got)) {
            found.push_back({&hypothesis, true, 0});
        } else if (!only_exact && hypothesis.what == Cause::fault) {
            const double left = unexplained_by(*predicted, expected, got);
            if (left <= most_unexplained) found.push_back({&hypothesis, false, left});
        }
    }
    return found;
}

/// Exact ones, harmless ones before faults; where there are none, the ones that leave least.
void keep_the_best(std::vector<Explanation>& found) {
    const bool any_exact = std::ranges::any_of(found, &Explanation::exact);
    if (any_exact) std::erase_if(found, [](const Explanation& one) { return !one.exact; });
    std::ranges::stable_sort(found, {}, [](const Explanation& one) {
        return std::pair(one.hypothesis->what == Cause::fault, one.unexplained);
    });
    if (found.empty() || any_exact) return;
    const double best = found.front().unexplained;
    std::erase_if(found, [&](const Explanation& one) { return one.unexplained > much_worse * best; });
}

}  // namespace

Tolerance rounding_tolerance(const OutputSlot& slot) {
    if (slot.judged == Judged::equal || slot.judged == Judged::not_judged) return {};
    if (slot.type == "BF16") return {.ulp = 1, .share = 0.01};
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
    bool all_within = true;
    for (const OutputSlot& slot : slots) {
        const auto found = got.find(slot.name);
        if (found == got.end()) continue;
        const Tolerance rounding = rounding_tolerance(slot);
        const Difference d =
            difference(view(expected.find(slot.name)->second), view(found->second), rounding);
        if (d.equal()) continue;
        const bool within_rounding = within(d, rounding);
        // A difference that rounding explains is not where a fault begins.
        if (result.first.output.empty() || (all_within && !within_rounding))
            result.first = {slot.name, d.first, index_tuple(d.first.index, found->second.shape), -1};
        all_within = all_within && within_rounding;
    }
    if (result.first.output.empty()) return result;

    result.explanations = explain(expected, got, all_within, predict, result.tried);
    keep_the_best(result.explanations);
    if (result.explanations.empty())
        result.finding = all_within ? Finding::rounding : Finding::unknown;
    else
        result.finding =
            result.explanations.front().hypothesis->what == Cause::order ? Finding::order : Finding::named;
    return result;
}

Diagnosis diagnose(const OperatorRun& run, const TensorMap& got) {
    require_outputs(run, got);
    return diagnose(run.info.outputs, run.expected, got,
                    [&](const Hypothesis& hypothesis) { return predict(hypothesis, run); });
}

}  // namespace touchstone
