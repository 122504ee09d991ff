// Other roundings of an operator's results than the reference's.
#pragma once

#include "golden/hypotheses/hypothesis.h"

namespace touchstone {

/// Roundings of a number: what a tensor of that type would hold.
double to_bf16(double x);
double to_fp16(double x);  ///< to nearest even, subnormals kept, beyond 65504 infinite
double to_tf32(double x);  ///< 10 fraction bits, toward zero
double bf16_truncated(double x);
double bf16_half_away(double x);
double bf16_half_up(double x);  ///< ties toward plus infinity
double bf16_through_fp16(double x);
double subnormals_flushed(double x);  ///< to nearest even bf16, but 0 below its smallest normal

/// Every bf16 output from the number that the reference rounds: an fp32 output of the same run where there is
/// one, else that of `truth`.
Outputs with_bf16_outputs(double (*round)(double));
/// Every fp32 output that is judged by a bound or tolerance, rounded.
Outputs with_fp32_outputs(double (*round)(double));

}  // namespace touchstone
