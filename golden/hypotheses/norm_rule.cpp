#include "golden/hypotheses/norm_rule.h"

#include <cmath>
#include <utility>

#include "reference/numerics/sum_order.h"
#include "reference/numerics/sums.h"

namespace touchstone {

namespace {

NormRule reference_rule(const OperatorRun& run) {
    const Lanes lanes = sum_order(SumOperator::rms_norm, run.parameters["width"], 1).lanes;
    return {.eps = run.parameters.real("eps"),
            .sum_of_squares = [lanes](std::span<const float> x) { return sum_of_squares(lanes, x); },
            .mean = [](float sum, float width) { return sum / width; },
            .root = [](float mean, float eps) { return 1.0f / std::sqrt(mean + eps); },
            .element = [](float x, float root, float weight) { return weight * (x * root); }};
}

void subtract_mean(std::span<float> x) {
    float sum = 0;
    for (const float value : x) sum += value;
    for (float& value : x) value -= sum / static_cast<float>(x.size());
}

}  // namespace

std::optional<TensorMap> norm_by_rule(const OperatorRun& run, const std::function<void(NormRule&)>& change) {
    NormRule rule = reference_rule(run);
    change(rule);
    TensorMap outputs = run.expected;
    const Call call{run.parameters, run.inputs, outputs};
    const auto x = call.in<Bf16>("x"), weight = call.in<Bf16>("weight");
    const size_t width = weight.size();
    std::vector<float> row(width);
    for (size_t first = 0; first < x.size(); first += width) {
        for (size_t i = 0; i < width; ++i) row[i] = to_float(x[first + i]);
        if (rule.centred) subtract_mean(row);
        const float root =
            rule.root(rule.mean(rule.sum_of_squares(row), static_cast<float>(width)), rule.eps);
        for (size_t i = 0; i < width; ++i) {
            const float y = rule.element(row[i], root, to_float(weight[i]));
            call.out<float>("unrounded")[first + i] = with_canonical_nan(y);
            call.out<Bf16>("y")[first + i] = bf16_from_float(y);
        }
    }
    return outputs;
}

Outputs with_norm(std::function<void(NormRule&)> change) {
    return [change = std::move(change)](const OperatorRun& run) { return norm_by_rule(run, change); };
}

}  // namespace touchstone
