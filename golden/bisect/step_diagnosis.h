// Why a step is wrong: each hypothesis tried on each operator of its chain.
#pragma once

#include "golden/bisect/diagnosis.h"
#include "golden/bisect/step_judge.h"

namespace touchstone {

struct StepDiagnosis {
    Diagnosis diagnosis;
    std::string diagnosis_type;  ///< of the tensor that it is about
    /// The operator that the best explanation is about, or the first of the chain: name, case and inputs, for
    /// whoever wants to run it alone. Empty where the step only moves a tensor.
    std::string operator_name, case_line;
    TensorMap inputs;
    std::vector<std::string> chain;  ///< the operators of the step, in order
    int64_t row = -1;                ///< of a row-by-row step: the row that the inputs are of
};

/// Of a step that judge_step calls made_here. A row-by-row step is tried on some of its rows: those that
/// differ first and last, and one that does not.
StepDiagnosis diagnose_step(const Step& step, const StepPlace& place, Arithmetic arithmetic);

}  // namespace touchstone
