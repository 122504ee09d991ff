// rms_norm with its choices as data: hypotheses change one of them.
#pragma once

#include <functional>
#include <optional>
#include <span>

#include "golden/hypotheses/hypothesis.h"

namespace touchstone {

/// y = bf16(element(x, root(mean(sum of squares, width), eps), weight)); the defaults are the reference's.
struct NormRule {
    float eps = 0;  ///< of the run
    std::function<float(std::span<const float> x)> sum_of_squares;
    float (*mean)(float sum, float width);
    float (*root)(float mean, float eps);  ///< what the element is multiplied with
    float (*element)(float x, float root, float weight);
    bool centred = false;  ///< x minus its mean is what is normalised
};

/// The outputs of a run of rms_norm by a changed rule.
std::optional<TensorMap> norm_by_rule(const OperatorRun& run, const std::function<void(NormRule&)>& change);

/// The same as a word of the table.
Outputs with_norm(std::function<void(NormRule&)> change);

}  // namespace touchstone
