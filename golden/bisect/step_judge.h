// Whether a step of somebody's pass is right, given the step's own inputs.
#pragma once

#include <string>

#include "golden/bisect/trace_steps.h"
#include "golden/compare/difference.h"

namespace touchstone {

enum class StepVerdict : uint8_t {
    given,      ///< tokens: nothing makes them
    same_bits,  ///< as the reference
    rounding,   ///< as far as another order of summation goes
    ties,       ///< another choice among scores that tie, or nearly
    inherited,  ///< wrong because a tensor that the step makes anew on its way is
    made_here,  ///< right inputs, wrong output
    unseen,     ///< an input is not in the trace
};

struct JudgedStep {
    StepVerdict verdict = StepVerdict::unseen;
    Difference difference;  ///< from what the step gives; empty where unseen
    std::string why;        ///< of unseen
};

/// Runs the step on theirs' inputs and judges theirs' output, which the trace has. Beyond what
/// rounding_tolerance of the last link's output allows, `values` and `quantised` may be as far from the
/// reference as four times the farthest other profile is: in the mean square and in the worst element.
JudgedStep judge_step(const Step& step, const StepPlace& place, Arithmetic arithmetic);

/// The tolerance of a step's output before profiles are asked.
Tolerance step_tolerance(const Step& step);

/// Of the output of a step with links: its last link's.
const OutputSlot& step_output(const Step& step);

}  // namespace touchstone
