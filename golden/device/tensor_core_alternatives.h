// A second, independent model of a tensor core's sum with its choices as knobs: with the right ones it is
// tensor_core_step, with any wrong one it must differ on a device's results, or those results would not pin
// that choice. Scalar and slow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/numerics/tensor_core.h"

namespace touchstone {

/// How a term that is not a multiple of the common grid is cut.
enum class TermCut : uint8_t { toward_zero, floor, nearest_even };

/// The choices of a fused sum. Defaults are the truncated fused dot product of the numerics contract,
/// section 5.
struct FusedSumModel {
    OperandFormat format = OperandFormat::bf16;
    int products = 16;              ///< of one fused sum
    int fraction_bits = 25;         ///< the grid is 2^(largest exponent - fraction_bits)
    int output_fraction_bits = 23;  ///< kept in the result
    int zero_exponent = -133;       ///< with which a zero term enters the largest exponent
    TermCut cut = TermCut::toward_zero;
    bool accumulator_in_sum = true;     ///< else C is added to the rounded sum by an fp32 addition
    bool output_nearest_even = false;   ///< else toward zero
    bool products_normalised = false;   ///< a product in [2, 4) counts with the next exponent
    bool overflow_saturates = false;    ///< at the largest finite, else infinite
    bool underflow_keeps_sign = false;  ///< of a negative sum below the smallest subnormal, else +0
};

/// The model of a row of the table (not of an emulated one).
FusedSumModel fused_sum_model(const TensorCoreInstruction& instruction);

/// c + the `k` products a[i] * b[i], `products` of them at a time; k is a multiple of it. NaN is canonical.
float fused_sum(const FusedSumModel& model, const uint32_t* a, const uint32_t* b, int k, float c);

/// mma.sync m16n8k32 e4m3 as sm_90a emulates it: operands converted to f16, the elements with (i / 2) even
/// summed from +0, then the others onto that, then c added in fp32.
float emulated_e4m3_sum(const uint32_t* a, const uint32_t* b, float c);

/// A model with one wrong choice, and the kinds of inputs (golden/device/tensor_core_inputs.h) under which it
/// shows.
struct Alternative {
    std::string name;
    FusedSumModel model;
    std::vector<std::string> inputs;
};

/// Random inputs refute: one fraction bit less and more, two chained sums of half the products, floor and
/// nearest instead of toward zero, C after the sum, nearest even at the output, normalised products. Directed
/// ones, for operands of fp32's range: other exponents of zero terms, saturation, -0 for underflow.
std::vector<Alternative> refuted_alternatives(const TensorCoreInstruction& instruction);

}  // namespace touchstone
