// The grouped product wo_a of attention's output (spec: text model, 4.4).
#pragma once

#include <cstdint>
#include <span>

#include "reference/linear.h"

namespace touchstone {

/// u[t, g, r] = bf16(sum over d of o[t, g, d] * wo_a[g R + r, d]): group g of `o` [rows, groups, K] meets
/// rows g R .. g R + R - 1 of the weight [groups R, K]; `u` is [rows, groups, R]. The weight is fp8 in the
/// checkpoint and dequantised to bf16 for use (rounded once; exact for scale bytes 3..246); `o` is NOT
/// quantised. Sums are those of wo_a in the split and lane table, N being the outputs of all groups. NaN
/// results are canonical. Throws UserError, with nothing written, when sizes do not match.
void grouped_linear(Arithmetic arithmetic, std::span<const Bf16> o, int64_t rows, int64_t groups,
                    const Fp8Weight& weight, std::span<Bf16> u);

}  // namespace touchstone
