// RMSNorm in double (spec: text model, section 3.1).
#pragma once

#include "reference/truth/ledger.h"

namespace touchstone::truth {

/// weight_i x_i / sqrt(mean(x^2) + eps) for every row of x [T, D]; weight [D]. Nothing is rounded: the model
/// rounds the result to bf16, once.
Matrix rms_norm(const Matrix& x, const Vector& weight, double eps);

}  // namespace touchstone::truth
