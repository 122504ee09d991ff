// RMSNorm (spec: text model, 3.1).
#pragma once

#include <cstdint>
#include <span>

#include "reference/numerics/small_float.h"

namespace touchstone {

/// y = w * (x * r), r = 1 / sqrt(mean(x^2) + eps), of each row of `x` [rows, width]; `weight` is [width]. The
/// squares are summed in the lanes of `rms_norm` in the split and lane table, every other operation is one
/// fp32 rounding. The bf16 form rounds once, at the end; the fp32 form gives what it rounds. A row of zeros
/// gives zeros; a NaN makes its row NaN. Rows are independent. Throws UserError, with nothing written, when
/// sizes do not match.
void rms_norm(std::span<const Bf16> x, int64_t rows, std::span<const Bf16> weight, float eps,
              std::span<float> y);
void rms_norm(std::span<const Bf16> x, int64_t rows, std::span<const Bf16> weight, float eps,
              std::span<Bf16> y);

}  // namespace touchstone
