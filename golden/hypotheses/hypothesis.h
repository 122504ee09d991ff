// Faults that real kernels have had, as data: what each would have written. Bisect tries them on a result
// that differs and names the one that explains it.
#pragma once

#include <array>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reference/registry/registry.h"

namespace touchstone {

/// A result of somebody else's kernel: which operator on which inputs.
struct OperatorRun {
    const OperatorInfo& info;
    Arithmetic arithmetic;  ///< of the reference that it was compared with
    const Parameters& parameters;
    const TensorMap& inputs;
    const TensorMap& expected;  ///< the reference's outputs
};

/// What a hypothesis is about.
enum class Cause : uint8_t {
    order,  ///< the same values, added or rounded in another order: no fault
    fault,
};

/// One row of the table.
struct Hypothesis {
    std::string name;   ///< "relu_missing"
    std::string kind;   ///< of fault_cases: "K11"; "order" where it is no fault
    std::string cause;  ///< a sentence for the user: what the kernel does
    Cause what = Cause::fault;
    std::vector<std::string> operators;  ///< that it is tried on; empty: all
    /// What such a kernel gives, every output that it would change (others stay the reference's); nothing
    /// where the hypothesis makes no sense with these parameters or inputs. May throw UserError: then it is
    /// not tried.
    std::function<std::optional<TensorMap>(const OperatorRun&)> outputs;
};

/// All of them, the likelier ones of a kind first.
const std::vector<Hypothesis>& hypotheses();

// The parts of the table, one per family of operators, in hypotheses_*.cpp.
std::vector<Hypothesis> sum_order_hypotheses();
std::vector<Hypothesis> number_format_hypotheses();
std::vector<Hypothesis> layout_hypotheses();
std::vector<Hypothesis> norm_and_rope_hypotheses();
std::vector<Hypothesis> selection_hypotheses();
std::vector<Hypothesis> linear_hypotheses();
std::vector<Hypothesis> attention_hypotheses();
std::vector<Hypothesis> indexer_hypotheses();
std::vector<Hypothesis> index_score_hypotheses();
std::vector<Hypothesis> compressor_hypotheses();
std::vector<Hypothesis> hyper_connection_hypotheses();
std::vector<Hypothesis> residual_stream_hypotheses();
std::vector<Hypothesis> gate_hypotheses();
std::vector<Hypothesis> expert_hypotheses();
std::vector<Hypothesis> engram_hypotheses();

/// In the order in which hypotheses() has them: of two that explain a result alike, the one about a component
/// says more than the one about any output.
inline constexpr std::array hypothesis_families{
    sum_order_hypotheses,     attention_hypotheses,        indexer_hypotheses,         index_score_hypotheses,
    compressor_hypotheses,    hyper_connection_hypotheses, residual_stream_hypotheses, gate_hypotheses,
    expert_hypotheses,        engram_hypotheses,           number_format_hypotheses,   layout_hypotheses,
    norm_and_rope_hypotheses, selection_hypotheses,        linear_hypotheses};

// Words that the table is written in. Each gives a function for Hypothesis::outputs.

using Outputs = std::function<std::optional<TensorMap>(const OperatorRun&)>;

/// The reference run on other inputs: `change` alters the copy that it gets, or returns false where the
/// hypothesis makes no sense.
Outputs with_inputs(std::function<bool(TensorMap& inputs, const OperatorRun& run)> change);
/// The reference run with other parameters (never ones that change a shape).
Outputs with_parameters(std::function<bool(Parameters& parameters, const OperatorRun& run)> change);
/// The reference run in another arithmetic.
Outputs with_arithmetic(Arithmetic arithmetic);
/// The reference's outputs, altered.
Outputs with_outputs(std::function<bool(TensorMap& outputs, const OperatorRun& run)> change);
/// The operator written anew, in double or in float: `make` fills copies of the reference's outputs.
Outputs computed(std::function<bool(const Call& call)> make);

}  // namespace touchstone
