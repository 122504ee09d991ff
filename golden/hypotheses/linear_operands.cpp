#include "golden/hypotheses/linear_operands.h"

#include <algorithm>
#include <utility>

#include "reference/numerics/gemm.h"
#include "reference/quantize.h"

namespace touchstone {

namespace {

constexpr int64_t scale_block = 32;

/// A second operand of decoded values.
class ValuePanels final : public PanelSource {
  public:
    ValuePanels(std::span<const float> values, int64_t inputs) : values_(values), inputs_(inputs) {}
    void pack(int64_t first_row, int64_t columns, int64_t first_k, int64_t count,
              float* values) const override {
        for (int64_t j = 0; j < panel_columns; ++j) {
            const int64_t row = first_row + std::min(j, columns - 1);
            const float* from = values_.data() + row * inputs_ + first_k;
            for (int64_t k = 0; k < count; ++k) values[k * panel_columns + j] = from[k];
        }
    }

  private:
    std::span<const float> values_;
    int64_t inputs_;
};

std::vector<float> bf16_values(const Tensor& tensor) {
    std::vector<float> values;
    for (const Bf16 x : tensor.view<Bf16>()) values.push_back(to_float(x));
    return values;
}

float e8m0_value(uint8_t byte) {
    return to_float(E8m0{byte});
}

/// Codes of the weight, one by one.
std::vector<float> weight_values(const Tensor& weight, const DecodeRule& decode) {
    if (weight.type == "BF16") return bf16_values(weight);
    const auto e4m3 = decode.e4m3 == nullptr ? e4m3_value : decode.e4m3;
    const auto e2m1 = decode.e2m1 == nullptr ? e2m1_value : decode.e2m1;
    std::vector<float> values;
    for (const std::byte byte : weight.bytes) {
        const auto code = static_cast<uint8_t>(byte);
        if (weight.type == "F8_E4M3") {
            values.push_back(e4m3(code));
            continue;
        }
        const float low = e2m1(code & 0xF), high = e2m1(code >> 4);
        values.push_back(decode.nibbles_swapped ? high : low);
        values.push_back(decode.nibbles_swapped ? low : high);
    }
    return values;
}

/// A scale per output and block, whatever the tensor's tiles are.
std::vector<float> weight_scales(const Tensor& scale, int64_t outputs, const DecodeRule& decode) {
    const auto value = decode.scale == nullptr ? e8m0_value : decode.scale;
    const int64_t blocks = scale.shape[1], tile = scale.shape[0] == outputs ? 1 : scale_block;
    std::vector<float> values;
    for (int64_t n = 0; n < outputs; ++n)
        for (int64_t b = 0; b < blocks; ++b) {
            const int64_t from = decode.scale_index == nullptr ? b : decode.scale_index(b, blocks);
            values.push_back(
                value(static_cast<uint8_t>(scale.bytes[static_cast<size_t>(n / tile * blocks + from)])));
        }
    return values;
}

/// values * the scale of their block, each product one fp32 rounding.
std::vector<float> folded(std::span<const float> values, std::span<const float> scales) {
    std::vector<float> result(values.begin(), values.end());
    if (!scales.empty())
        for (size_t i = 0; i < result.size(); ++i) result[i] *= scales[i / scale_block];
    return result;
}

void round_to_bf16(std::vector<float>& values) {
    for (float& x : values) x = to_float(bf16_from_float(x));
}

std::vector<KPiece> pieces_of(const LinearOperands& operands) {
    const SumOrder order = sum_order(operands.op, operands.inputs, operands.outputs);
    std::vector<KPiece> pieces;
    for (int i = 0; i < order.pieces; ++i) {
        const PieceRange range = piece(order, operands.inputs, i);
        pieces.push_back({range.first, range.last - range.first});
    }
    return pieces;
}

/// One group's operands, with `rows` * 1 rows of a.
LinearOperands group_of(const LinearOperands& all, int64_t group) {
    const int64_t k = all.inputs, each = all.outputs_per_group(), blocks = k / scale_block;
    LinearOperands one{all.rows, 1, k, each, {}, {}, {}, {}, all.op};
    const auto rows_of = [&](const std::vector<float>& from, int64_t width, std::vector<float>& to) {
        for (int64_t row = 0; row < all.rows && !from.empty(); ++row) {
            const auto first = from.begin() + (row * all.groups + group) * width;
            to.insert(to.end(), first, first + width);
        }
    };
    rows_of(all.a, k, one.a);
    rows_of(all.a_scales, blocks, one.a_scales);
    one.b.assign(all.b.begin() + group * each * k, all.b.begin() + (group + 1) * each * k);
    if (!all.b_scales.empty())
        one.b_scales.assign(all.b_scales.begin() + group * each * blocks,
                            all.b_scales.begin() + (group + 1) * each * blocks);
    return one;
}

/// `d` [rows, outputs] of operands of one group; pieces and lanes are those of the whole layer.
void sum_group(const LinearOperands& whole, const LinearOperands& one, Arithmetic arithmetic,
               std::span<float> d) {
    const int64_t k = one.inputs;
    if (one.block_scaled() && arithmetic != Arithmetic::hopper) {
        const BlockSum sum = arithmetic == Arithmetic::exact ? BlockSum::exact : BlockSum::hopper_fp8_wgmma;
        block_scaled_gemm(sum, one.a, one.rows, ValuePanels(one.b, k), one.outputs, k,
                          {one.a_scales, one.b_scales}, d);
        return;
    }
    std::vector<float> a = folded(one.a, one.a_scales), b = folded(one.b, one.b_scales);
    if (arithmetic == Arithmetic::exact) {
        const Lanes lanes = sum_order(whole.op, k, whole.outputs).lanes;
        lanes_gemm(a, one.rows, ValuePanels(b, k), one.outputs, k, lanes.count, d);
        return;
    }
    round_to_bf16(a);
    round_to_bf16(b);
    chain_gemm(tensor_core_instruction("hopper.wgmma.bf16"), a, one.rows, ValuePanels(b, k), one.outputs, k,
               pieces_of(whole), {}, d);
}

SumOperator sum_operator(const OperatorRun& run) {
    if (run.info.name == "grouped_linear") return SumOperator::wo_a;
    return std::ranges::find(sum_order_table, run.parameters.choice("sum"), &SumOrderRow::name)->op;
}

}  // namespace

std::optional<LinearOperands> linear_operands(const OperatorRun& run, const DecodeRule& decode) {
    if (std::ranges::find(linear_layers, run.info.name) == linear_layers.end()) return std::nullopt;
    const bool grouped = run.info.name == "grouped_linear";
    const Tensor &x = run.inputs.find("x")->second, &weight = run.inputs.find("weight")->second;
    LinearOperands operands;
    operands.rows = run.parameters["rows"];
    operands.groups = grouped ? run.parameters["groups"] : 1;
    operands.inputs = run.parameters["inputs"];
    operands.outputs = run.parameters["outputs"];
    operands.op = sum_operator(run);
    if (operands.rows == 0) return std::nullopt;
    operands.b = weight_values(weight, decode);
    const auto scale = run.inputs.find("scale");
    if (scale != run.inputs.end()) operands.b_scales = weight_scales(scale->second, operands.outputs, decode);
    if (scale == run.inputs.end() || grouped) {
        operands.a = bf16_values(x);
        operands.b = folded(operands.b, operands.b_scales);
        round_to_bf16(operands.b);
        operands.b_scales.clear();
        return operands;
    }
    QuantizedRows quantized = quantize_linear_input(x.view<Bf16>(), operands.rows, operands.inputs);
    operands.a = std::move(quantized.values);
    operands.a_scales = std::move(quantized.scales);
    return operands;
}

std::vector<float> linear_sums(const LinearOperands& operands, Arithmetic arithmetic) {
    const int64_t each = operands.outputs_per_group();
    std::vector<float> all(static_cast<size_t>(operands.rows * operands.outputs)),
        d(static_cast<size_t>(operands.rows * each));
    for (int64_t group = 0; group < operands.groups; ++group) {
        sum_group(operands, group_of(operands, group), arithmetic, d);
        for (int64_t row = 0; row < operands.rows; ++row)
            std::copy_n(d.begin() + row * each, each, all.begin() + row * operands.outputs + group * each);
    }
    return all;
}

std::vector<float> linear_sums(const LinearOperands& operands,
                               const std::function<float(const DotOperands&)>& dot) {
    const std::vector<float> a = folded(operands.a, operands.a_scales),
                             b = folded(operands.b, operands.b_scales);
    std::vector<float> sums(static_cast<size_t>(operands.rows * operands.outputs));
    const auto row_of = [](const std::vector<float>& values, int64_t row, int64_t width) {
        if (values.empty()) return std::span<const float>();
        return std::span(values).subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
    };
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < std::ssize(sums); ++i) {
        const int64_t n = i % operands.outputs, m = operands.a_row(i / operands.outputs, n);
        const int64_t k = operands.inputs, blocks = k / scale_block;
        sums[static_cast<size_t>(i)] =
            dot({row_of(a, m, k), row_of(b, n, k), row_of(operands.a, m, k), row_of(operands.b, n, k),
                 row_of(operands.a_scales, m, blocks), row_of(operands.b_scales, n, blocks)});
    }
    return sums;
}

void put_linear_sums(std::span<const float> sums, TensorMap& outputs) {
    for (auto& [name, tensor] : outputs)
        for (size_t i = 0; i < sums.size(); ++i)
            if (tensor.type == "F32")
                tensor.view<float>()[i] = with_canonical_nan(sums[i]);
            else
                tensor.view<Bf16>()[i] = bf16_from_float(sums[i]);
}

TensorMap linear_outputs(const OperatorRun& run, const LinearOperands& operands) {
    TensorMap outputs = run.expected;
    put_linear_sums(linear_sums(operands, profile_of(run.info, run.arithmetic)), outputs);
    return outputs;
}

Outputs with_operands(std::function<bool(LinearOperands&, const OperatorRun&)> change) {
    return [change = std::move(change)](const OperatorRun& run) -> std::optional<TensorMap> {
        std::optional<LinearOperands> operands = linear_operands(run);
        if (!operands || !change(*operands, run)) return std::nullopt;
        return linear_outputs(run, *operands);
    };
}

}  // namespace touchstone
