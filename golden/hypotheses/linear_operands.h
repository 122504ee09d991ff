// What a linear layer's run multiplies, decoded: linear_fp8, linear_fp4, linear_bf16, lm_head,
// grouped_linear. Hypotheses change it and sum it again.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "golden/hypotheses/hypothesis.h"
#include "golden/hypotheses/quantizer_rule.h"

namespace touchstone {

/// Names of the registry's linear layers.
inline const std::vector<std::string> linear_layers{"linear_fp8", "linear_fp4", "linear_bf16", "lm_head",
                                                    "grouped_linear"};

/// Both operands row-major with K along a row. Those of scale blocks hold the codes' values, and scales per
/// 32 of K; others (bf16, and grouped_linear's weight, which is made bf16) have no scales.
struct LinearOperands {
    int64_t rows = 0, groups = 1, inputs = 0, outputs = 0;  ///< outputs of all groups
    std::vector<float> a, a_scales;                         ///< [rows, groups, inputs], [.., inputs / 32]
    std::vector<float> b, b_scales;                         ///< [outputs, inputs], [outputs, inputs / 32]
    SumOperator op = SumOperator::lm_head;                  ///< row of the split and lane table

    bool block_scaled() const { return !a_scales.empty(); }
    /// Elements of K that share a scale, or that one tensor-core step takes of bf16 operands.
    int64_t block() const { return block_scaled() ? 32 : 16; }
    int64_t outputs_per_group() const { return outputs / groups; }
    /// Where the row of `a` begins that output `output` of row `row` meets.
    int64_t a_row(int64_t row, int64_t output) const { return row * groups + output / outputs_per_group(); }
};

/// Nothing where the run is not of a linear layer, or has no rows. `decode`: how codes and scales of the
/// weight are read; what it leaves out is the reference's.
std::optional<LinearOperands> linear_operands(const OperatorRun& run, const DecodeRule& decode = {});

/// [rows, outputs]: the accumulators, in the order of `arithmetic`; of a run's own operands the reference's
/// bits. Operands that the instruction of `hopper` cannot hold are rounded to bf16.
std::vector<float> linear_sums(const LinearOperands& operands, Arithmetic arithmetic);

/// One output's products. `a` and `b` have their scales in them; codes and scales apart are there where
/// operands are block scaled.
struct DotOperands {
    std::span<const float> a, b;
    std::span<const float> a_codes, b_codes, a_scales, b_scales;

    size_t size() const { return a.size(); }
};

/// [rows, outputs]: every dot product by `dot`.
std::vector<float> linear_sums(const LinearOperands& operands,
                               const std::function<float(const DotOperands&)>& dot);

/// The outputs of a linear layer with these accumulators: `accumulator` and `logits` hold them, `y` rounds.
void put_linear_sums(std::span<const float> sums, TensorMap& outputs);

/// The run's outputs on these operands, summed as the reference does.
TensorMap linear_outputs(const OperatorRun& run, const LinearOperands& operands);

/// The layer on altered operands: `change` returns false where the hypothesis
/// makes no sense.
Outputs with_operands(std::function<bool(LinearOperands& operands, const OperatorRun& run)> change);

}  // namespace touchstone
