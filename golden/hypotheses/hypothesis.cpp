#include "golden/hypotheses/hypothesis.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace touchstone {

namespace {

std::vector<Hypothesis> make_table() {
    std::vector<Hypothesis> all;
    for (const auto family : hypothesis_families) std::ranges::move(family(), std::back_inserter(all));
    return all;
}

}  // namespace

const std::vector<Hypothesis>& hypotheses() {
    static const std::vector<Hypothesis> all = make_table();
    return all;
}

Outputs with_inputs(std::function<bool(TensorMap&, const OperatorRun&)> change) {
    return [change = std::move(change)](const OperatorRun& run) -> std::optional<TensorMap> {
        TensorMap inputs = run.inputs;
        if (!change(inputs, run)) return std::nullopt;
        return run_operator(run.info, run.arithmetic, run.parameters, inputs);
    };
}

Outputs with_parameters(std::function<bool(Parameters&, const OperatorRun&)> change) {
    return [change = std::move(change)](const OperatorRun& run) -> std::optional<TensorMap> {
        Parameters parameters = run.parameters;
        if (!change(parameters, run)) return std::nullopt;
        return run_operator(run.info, run.arithmetic, parameters, run.inputs);
    };
}

Outputs with_arithmetic(Arithmetic arithmetic) {
    return [arithmetic](const OperatorRun& run) -> std::optional<TensorMap> {
        if (profile_of(run.info, arithmetic) == profile_of(run.info, run.arithmetic)) return std::nullopt;
        return run_operator(run.info, arithmetic, run.parameters, run.inputs);
    };
}

Outputs with_outputs(std::function<bool(TensorMap&, const OperatorRun&)> change) {
    return [change = std::move(change)](const OperatorRun& run) -> std::optional<TensorMap> {
        TensorMap outputs = run.expected;
        if (!change(outputs, run)) return std::nullopt;
        return outputs;
    };
}

Outputs computed(std::function<bool(const Call&)> make) {
    return [make = std::move(make)](const OperatorRun& run) -> std::optional<TensorMap> {
        TensorMap outputs = run.expected;
        if (!make({run.parameters, run.inputs, outputs})) return std::nullopt;
        return outputs;
    };
}

}  // namespace touchstone
