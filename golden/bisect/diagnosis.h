// From "it differs" to "why": the first output of an operator that differs, and the hypothesis that explains
// all.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "golden/compare/difference.h"
#include "golden/hypotheses/hypothesis.h"

namespace touchstone {

enum class Finding : uint8_t {
    equal,     ///< the same bits
    order,     ///< a named order of summation or profile explains it: no fault
    rounding,  ///< within what rounding explains, but no hypothesis gives the bits
    named,     ///< one hypothesis, or several that no output tells apart, explain it
    unknown,   ///< no hypothesis explains it
};

/// A hypothesis that explains a result.
struct Explanation {
    const Hypothesis* hypothesis;
    bool exact;              ///< it gives the same bits; else within rounding of them
    double unexplained = 0;  ///< rms of what is left, as a share of the rms of what was to be explained
};

/// The first place inside an operator where a result leaves the reference.
struct FirstStep {
    std::string output;   ///< slot, in the order in which the operator makes them; "" where nothing differs
    ElementPair element;  ///< the first that rounding does not explain, or the first that differs at all
    std::vector<int64_t> index;
    /// Of a linear layer: the first block of K (of 32, or 16 for bf16 operands) whose absence or change
    /// explains the result, -1 where none does or there is no K.
    int64_t k_block = -1;
};

struct Diagnosis {
    Finding finding = Finding::equal;
    std::vector<Explanation> explanations;  ///< the likeliest first
    FirstStep first;
    std::vector<std::string> tried;  ///< names of the hypotheses that were tried
};

/// What rounding alone may do to an output: discrete outputs and quantised codes nothing; bf16 one unit, or
/// 1e-5 of the row's rms, in one percent of the elements; fp32 1e-5 of the row's rms or of the element.
Tolerance rounding_tolerance(const OutputSlot& slot);

/// A hypothesis that leaves more of the difference than this unexplained is not named.
inline constexpr double most_unexplained = 0.05;

/// What a prediction leaves of the difference between two tensors of one type and shape: 0 for the same
/// numbers, infinity where it is nothing like the result.
double unexplained_share(const Tensor& expected, const Tensor& got, const Tensor& predicted, Cause what);

/// What a kernel with that fault would have given: every output of `expected`; nothing where the hypothesis
/// is not about this operator or makes no sense here.
using Predict = std::function<std::optional<TensorMap>(const Hypothesis&)>;

/// The search itself, over outputs that the reference gave as `expected` and somebody's kernel as `got` (some
/// or all of them), in the order of `slots`.
Diagnosis diagnose(std::span<const OutputSlot> slots, const TensorMap& expected, const TensorMap& got,
                   const Predict& predict);

/// Throws UserError unless `got` holds some or all outputs of the run, of their types and shapes.
void require_outputs(const OperatorRun& run, const TensorMap& got);

/// One operator. `got` holds some or all outputs of the run, of the declared types and shapes: others throw
/// UserError.
Diagnosis diagnose(const OperatorRun& run, const TensorMap& got);

/// A hypothesis tried on one operator, as the search does; nothing where it does not apply.
std::optional<TensorMap> predict(const Hypothesis& hypothesis, const OperatorRun& run);

}  // namespace touchstone
