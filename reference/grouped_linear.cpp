#include "reference/grouped_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/gemm.h"
#include "reference/numerics/sum_order.h"

namespace touchstone {

namespace {

constexpr int64_t block = 32;

/// Rows first_output .. of the weight, dequantised to bf16.
class DequantizedPanels final : public PanelSource {
  public:
    DequantizedPanels(const Fp8Weight& weight, int64_t first_output)
        : weight_(weight), first_output_(first_output) {}
    void pack(int64_t first_row, int64_t columns, int64_t first_k, int64_t count,
              float* values) const override {
        for (int64_t column = 0; column < columns; ++column) {
            const int64_t row = first_output_ + first_row + column;
            const E4m3* codes = weight_.codes.data() + row * weight_.inputs + first_k;
            const E8m0* scales = weight_.scales.data() + row / block * (weight_.inputs / block);
            for (int64_t k = 0; k < count; ++k)
                values[k * panel_columns + column] =
                    to_float(bf16_from_float(to_float(codes[k]) * to_float(scales[(first_k + k) / block])));
        }
    }

  private:
    const Fp8Weight& weight_;
    int64_t first_output_;
};

void require(bool holds, const Fp8Weight& weight, size_t o, int64_t rows, int64_t groups, size_t u) {
    if (holds) return;
    throw UserError(
        {fmt::format("{} inputs, {} outputs, {} rows, {} groups, weight [{}, {}]", o, u, rows, groups,
                     weight.outputs, weight.inputs),
         fmt::format("grouped_linear, {}", weight.name),
         "o [rows, groups, inputs], weight [groups R, inputs], u [rows, groups, R]; inputs a multiple "
         "of 32",
         ""});
}

}  // namespace

void grouped_linear(Arithmetic arithmetic, std::span<const Bf16> o, int64_t rows, int64_t groups,
                    const Fp8Weight& weight, std::span<Bf16> u) {
    const int64_t k = weight.inputs, outputs = weight.outputs;
    require(rows >= 0 && groups > 0 && outputs % groups == 0 && k % block == 0 &&
                std::ssize(o) == rows * groups * k && std::ssize(u) == rows * outputs &&
                std::ssize(weight.codes) == outputs * k &&
                std::ssize(weight.scales) == (outputs + block - 1) / block * (k / block),
            weight, o.size(), rows, groups, u.size());
    const SumOrder order = sum_order(SumOperator::wo_a, k, outputs);
    const int64_t group_outputs = outputs / groups;
    std::vector<KPiece> pieces;
    for (int i = 0; i < order.pieces; ++i) {
        const PieceRange range = piece(order, k, i);
        pieces.push_back({range.first, range.last - range.first});
    }
    std::vector<float> group_o(static_cast<size_t>(rows * k)),
        sums(static_cast<size_t>(rows * group_outputs));
    for (int64_t group = 0; group < groups; ++group) {
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t d = 0; d < k; ++d)
                group_o[static_cast<size_t>(row * k + d)] =
                    to_float(o[static_cast<size_t>((row * groups + group) * k + d)]);
        const DequantizedPanels panels(weight, group * group_outputs);
        if (arithmetic == Arithmetic::exact)
            lanes_gemm(group_o, rows, panels, group_outputs, k, order.lanes.count, sums);
        else
            chain_gemm(tensor_core_instruction("hopper.wgmma.bf16"), group_o, rows, panels, group_outputs, k,
                       pieces, {}, sums);
        for (int64_t row = 0; row < rows; ++row)
            std::transform(sums.begin() + row * group_outputs, sums.begin() + (row + 1) * group_outputs,
                           u.begin() + (row * groups + group) * group_outputs, bf16_from_float);
    }
}

}  // namespace touchstone
