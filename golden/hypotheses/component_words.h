// Words that the hypotheses about the model's components share, beside those of hypothesis.h.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "golden/hypotheses/hypothesis.h"
#include "reference/truth/linear.h"

namespace touchstone {

/// `computed` that is told the reference's arithmetic: the operator put together from other parts of the
/// reference. The outputs that `make` gets are copies of the reference's, to read or to overwrite.
Outputs recomputed(std::function<bool(Arithmetic arithmetic, const Call& call)> make);

/// The reference run on these fp32 inputs, those that there are, with every element changed.
Outputs with_each(const std::vector<std::string>& inputs, float (*change)(float));

float rounded_to_bf16(float x);
float to_zero(float x);
float to_one(float x);

/// Writes an output, F32 or BF16, from numbers in double; NaN becomes the canonical one.
void store(const Call& call, std::string_view output, const truth::Matrix& values);

/// Every element of these outputs, F32 or BF16, is NaN.
void fill_with_nan(TensorMap& outputs, const std::vector<std::string>& names);

/// Row-major tensors [.., extent, .., inner]: what stood at index i of the extent stands at i - 1, the first
/// at the end.
template <class T>
void rotate_extent(std::span<T> values, int64_t extent, int64_t inner);

/// An integer parameter is set, unless it has that value already.
bool set_integer(Parameters& parameters, std::string_view name, int64_t value);
/// A real one likewise.
bool set_real(Parameters& parameters, std::string_view name, double value);

}  // namespace touchstone
