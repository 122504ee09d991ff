// Faults of linear layers: what is multiplied with what, and which part of K is summed.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "golden/hypotheses/linear_operands.h"
#include "golden/hypotheses/quantizer_rule.h"

namespace touchstone {

namespace {

const std::vector<std::string> block_scaled{"linear_fp8", "linear_fp4"};
const std::vector<std::string> unquantised{"linear_bf16", "lm_head", "grouped_linear"};

// Parts of K.

/// Elements [first, last) of every activation row times `factor`.
void scale_part(LinearOperands& operands, int64_t first, int64_t last, float factor) {
    for (int64_t i = 0; i < std::ssize(operands.a); ++i) {
        const int64_t k = i % operands.inputs;
        if (k >= first && k < last) operands.a[static_cast<size_t>(i)] *= factor;
    }
}

/// 0: left out, 2: counted twice.
Outputs first_of_k(int64_t length, float factor) {
    return with_operands([=](LinearOperands& operands, const OperatorRun&) {
        scale_part(operands, 0, length, factor);
        return length < operands.inputs && length >= operands.block();
    });
}

Outputs last_of_k(int64_t length, float factor) {
    return with_operands([=](LinearOperands& operands, const OperatorRun&) {
        scale_part(operands, operands.inputs - length, operands.inputs, factor);
        return length < operands.inputs && length >= operands.block();
    });
}

/// K beyond the last whole tile of `tile`.
Outputs tail_missing(int64_t tile) {
    return with_operands([=](LinearOperands& operands, const OperatorRun&) {
        const int64_t whole = operands.inputs / tile * tile;
        scale_part(operands, whole, operands.inputs, 0);
        return whole > 0 && whole < operands.inputs;
    });
}

/// Half `which` of K.
Outputs half_missing(int64_t which) {
    return with_operands([=](LinearOperands& operands, const OperatorRun&) {
        const int64_t half = operands.inputs / 2;
        scale_part(operands, which * half, which == 0 ? half : operands.inputs, 0);
        return operands.inputs >= 2 * operands.block();
    });
}

std::vector<Hypothesis> parts_of_k() {
    std::vector<Hypothesis> all;
    const auto add = [&](std::string name, std::string cause, Outputs outputs) {
        all.push_back(
            {std::move(name), "K17", std::move(cause), Cause::fault, linear_layers, std::move(outputs)});
    };
    for (const int64_t length : {16, 32, 64, 128}) {
        add(fmt::format("k_first_{}_missing", length),
            fmt::format("the first {} of K are not summed", length), first_of_k(length, 0));
        add(fmt::format("k_last_{}_missing", length), fmt::format("the last {} of K are not summed", length),
            last_of_k(length, 0));
        add(fmt::format("k_first_{}_twice", length),
            fmt::format("the first {} of K are summed twice", length), first_of_k(length, 2));
        add(fmt::format("k_last_{}_twice", length), fmt::format("the last {} of K are summed twice", length),
            last_of_k(length, 2));
    }
    for (const int64_t tile : {64, 128, 256, 512})
        add(fmt::format("k_tail_of_{}_missing", tile),
            fmt::format("K is summed in whole tiles of {}, what is left over is not", tile),
            tail_missing(tile));
    add("k_first_half_missing", "the first half of K is not summed", half_missing(0));
    add("k_second_half_missing", "the second half of K is not summed", half_missing(1));
    return all;
}

// Operands.

using ChangeOperands = bool (*)(LinearOperands& operands, const OperatorRun& run);

bool not_quantised(LinearOperands& operands, const OperatorRun& run) {
    const auto x = run.inputs.find("x")->second.view<Bf16>();
    std::ranges::transform(x, operands.a.begin(), [](Bf16 value) { return to_float(value); });
    std::ranges::fill(operands.a_scales, 1.0f);
    return true;
}

/// As fp8 layers do, where the model does not.
bool activations_quantised(LinearOperands& operands, const OperatorRun& run) {
    if (operands.inputs % 32 != 0) return false;
    const CodesAndScales made =
        quantized(of_quantizer(Quantizer::q8), run.inputs.find("x")->second.view<Bf16>(), operands.inputs);
    for (size_t i = 0; i < operands.a.size(); ++i) operands.a[i] = made.codes[i] * made.scales[i / 32];
    return true;
}

/// Rows of `values` moved by `by` rows: row i is what row i - by was, those without a source stay.
void move_rows(std::vector<float>& values, int64_t rows, int64_t by) {
    if (values.empty()) return;
    const std::vector<float> old = values;
    const int64_t width = std::ssize(values) / rows;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t from = row - by;
        if (from >= 0 && from < rows)
            std::copy_n(old.begin() + from * width, width, values.begin() + row * width);
    }
}

bool activations_of_the_row_before(LinearOperands& operands, const OperatorRun&) {
    move_rows(operands.a, operands.rows, 1);
    move_rows(operands.a_scales, operands.rows, 1);
    return operands.rows > 1;
}

bool activation_scales_of_the_row_before(LinearOperands& operands, const OperatorRun&) {
    move_rows(operands.a_scales, operands.rows, 1);
    return operands.rows > 1;
}

bool weights_of_the_next_output(LinearOperands& operands, const OperatorRun&) {
    move_rows(operands.b, operands.outputs, -1);
    move_rows(operands.b_scales, operands.outputs, -1);
    return operands.outputs > 1;
}

bool weights_of_the_output_before(LinearOperands& operands, const OperatorRun&) {
    move_rows(operands.b, operands.outputs, 1);
    move_rows(operands.b_scales, operands.outputs, 1);
    return operands.outputs > 1;
}

bool activation_scales_ignored(LinearOperands& operands, const OperatorRun&) {
    std::ranges::fill(operands.a_scales, 1.0f);
    return true;
}

/// scales'[row][block] = scales[row][source(block)].
void move_blocks(std::vector<float>& scales, int64_t blocks,
                 int64_t (*source)(int64_t block, int64_t blocks)) {
    const std::vector<float> old = scales;
    for (int64_t i = 0; i < std::ssize(scales); ++i)
        scales[static_cast<size_t>(i)] =
            old[static_cast<size_t>(i / blocks * blocks + source(i % blocks, blocks))];
}

bool activation_scales_of_the_next_block(LinearOperands& operands, const OperatorRun&) {
    move_blocks(operands.a_scales, operands.inputs / 32,
                [](int64_t b, int64_t count) { return std::min(b + 1, count - 1); });
    return operands.inputs > 32;
}

bool activation_scales_of_the_first_block(LinearOperands& operands, const OperatorRun&) {
    move_blocks(operands.a_scales, operands.inputs / 32, [](int64_t, int64_t) { return int64_t{0}; });
    return operands.inputs > 32;
}

/// [blocks][rows] as memory, read as [rows][blocks].
bool activation_scales_column_major(LinearOperands& operands, const OperatorRun&) {
    const std::vector<float> old = operands.a_scales;
    const int64_t blocks = operands.inputs / 32;
    for (int64_t i = 0; i < std::ssize(old); ++i)
        operands.a_scales[static_cast<size_t>(i)] =
            old[static_cast<size_t>(i % operands.rows * blocks + i / operands.rows)];
    return operands.rows > 1 && blocks > 1;
}

bool weight_scales_inverted(LinearOperands& operands, const OperatorRun&) {
    for (float& scale : operands.b_scales) scale = 1.0f / scale;
    return true;
}

bool weight_scales_twice(LinearOperands& operands, const OperatorRun&) {
    for (float& scale : operands.b_scales) scale *= scale;
    return true;
}

bool weights_of_the_first_group(LinearOperands& operands, const OperatorRun&) {
    const int64_t size = operands.outputs_per_group() * operands.inputs;
    for (int64_t group = 1; group < operands.groups; ++group)
        std::copy_n(operands.b.begin(), size, operands.b.begin() + group * size);
    return operands.groups > 1;
}

bool activations_of_the_first_group(LinearOperands& operands, const OperatorRun&) {
    for (int64_t i = 0; i < std::ssize(operands.a); ++i) {
        const int64_t row = i / operands.inputs / operands.groups * operands.groups;
        operands.a[static_cast<size_t>(i)] =
            operands.a[static_cast<size_t>(row * operands.inputs + i % operands.inputs)];
    }
    return operands.groups > 1;
}

/// [groups][rows] as memory, where [rows][groups] lies.
bool activations_group_major(LinearOperands& operands, const OperatorRun&) {
    const std::vector<float> old = operands.a;
    const int64_t k = operands.inputs;
    for (int64_t row = 0; row < operands.rows; ++row)
        for (int64_t group = 0; group < operands.groups; ++group)
            std::copy_n(old.begin() + (group * operands.rows + row) * k, k,
                        operands.a.begin() + (row * operands.groups + group) * k);
    return operands.groups > 1 && operands.rows > 1;
}

// Accumulators.

float accumulated_in_bf16(const DotOperands& p) {
    float sum = 0;
    for (size_t i = 0; i < p.size(); ++i) sum = to_float(bf16_from_float(std::fma(p.a[i], p.b[i], sum)));
    return sum;
}

/// Every 32 of K in double, their sum kept in bf16.
float blocks_accumulated_in_bf16(const DotOperands& p) {
    float sum = 0;
    for (size_t first = 0; first < p.size(); first += 32) {
        double block = 0;
        for (size_t i = first; i < std::min(first + 32, p.size()); ++i)
            block += static_cast<double>(p.a[i]) * static_cast<double>(p.b[i]);
        sum = to_float(bf16_from_float(sum + static_cast<float>(block)));
    }
    return sum;
}

/// K in `count` pieces, each rounded to bf16 as ranks of a tensor-parallel layer do.
std::function<float(const DotOperands&)> partials_in_bf16(size_t count) {
    return [count](const DotOperands& p) {
        float sum = 0;
        const size_t length = (p.size() + count - 1) / count;
        for (size_t first = 0; first < p.size(); first += length) {
            double part = 0;
            for (size_t i = first; i < std::min(first + length, p.size()); ++i)
                part += static_cast<double>(p.a[i]) * static_cast<double>(p.b[i]);
            sum += to_float(bf16_from_float(static_cast<float>(part)));
        }
        return sum;
    };
}

Outputs by_dot(std::function<float(const DotOperands&)> dot) {
    return [dot = std::move(dot)](const OperatorRun& run) -> std::optional<TensorMap> {
        const std::optional<LinearOperands> operands = linear_operands(run);
        if (!operands) return std::nullopt;
        TensorMap outputs = run.expected;
        put_linear_sums(linear_sums(*operands, dot), outputs);
        return outputs;
    };
}

struct OperandFault {
    const char *name, *kind, *cause;
    const std::vector<std::string>& operators;
    ChangeOperands change;
};

const std::vector<std::string> grouped{"grouped_linear"};

const OperandFault operand_faults[] = {
    {"activations_not_quantised", "K15", "the activations are not quantised to fp8", block_scaled,
     not_quantised},
    {"activations_quantised", "K15", "activations that stay bf16 are quantised to fp8", unquantised,
     activations_quantised},
    {"activations_of_the_row_before", "K16", "a row meets the activations of the row before it",
     linear_layers, activations_of_the_row_before},
    {"weights_of_the_next_output", "K16", "an output meets the weight row after its own", linear_layers,
     weights_of_the_next_output},
    {"weights_of_the_output_before", "K16", "an output meets the weight row before its own", linear_layers,
     weights_of_the_output_before},
    {"activation_scales_ignored", "K16", "the activations' block scales are not applied", block_scaled,
     activation_scales_ignored},
    {"activation_scales_of_the_next_block", "K16", "activations get the scale of the block after theirs",
     block_scaled, activation_scales_of_the_next_block},
    {"activation_scales_of_the_first_block", "K16", "activations get the scale of their row's first block",
     block_scaled, activation_scales_of_the_first_block},
    {"activation_scales_of_the_row_before", "K16", "activations get the scales of the row before theirs",
     block_scaled, activation_scales_of_the_row_before},
    {"activation_scales_column_major", "K16", "the activations' scales are read in the other order of axes",
     block_scaled, activation_scales_column_major},
    {"weight_scales_inverted", "K16", "values are divided by the weight's scales", block_scaled,
     weight_scales_inverted},
    {"weight_scales_twice", "K16", "the weight's scales are applied twice", block_scaled,
     weight_scales_twice},
    {"weights_of_the_first_group", "K16", "all groups meet the first group's weights", grouped,
     weights_of_the_first_group},
    {"activations_of_the_first_group", "K16", "all groups' weights meet the first group's activations",
     grouped, activations_of_the_first_group},
    {"activations_group_major", "K16", "activations are read group after group, not row after row", grouped,
     activations_group_major},
};

}  // namespace

std::vector<Hypothesis> linear_hypotheses() {
    std::vector<Hypothesis> all = parts_of_k();
    for (const OperandFault& one : operand_faults)
        all.push_back(
            {one.name, one.kind, one.cause, Cause::fault, one.operators, with_operands(one.change)});
    all.push_back({"accumulator_in_bf16", "K15", "the accumulator is rounded to bf16 after every product",
                   Cause::fault, linear_layers, by_dot(accumulated_in_bf16)});
    all.push_back({"accumulator_in_bf16_per_block", "K15",
                   "the accumulator is rounded to bf16 after every 32 of K", Cause::fault, linear_layers,
                   by_dot(blocks_accumulated_in_bf16)});
    for (const size_t count : {2, 4, 8})
        all.push_back(
            {fmt::format("partials_in_bf16_{}", count), "K15",
             fmt::format("partial sums of {} pieces of K are rounded to bf16 before they are added", count),
             Cause::fault, linear_layers, by_dot(partials_in_bf16(count))});
    return all;
}

}  // namespace touchstone
