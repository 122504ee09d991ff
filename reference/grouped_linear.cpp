#include "reference/grouped_linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/gemm.h"
#include "reference/numerics/isa.h"
#include "reference/numerics/sum_order.h"
#include "reference/numerics/sums.h"

namespace touchstone {

namespace {

constexpr int64_t block = 32;

/// Per e4m3 code: its value as bf16 (exact), and whether a scale 2^e moves its exponent (not of zeros and
/// NaN).
struct CodeAsBf16 {
    uint16_t bits, scaled;
};
constexpr auto codes_as_bf16 = [] {
    std::array<CodeAsBf16, 256> table{};
    for (size_t code = 0; code < 256; ++code) {
        const float value = to_float(E4m3{static_cast<uint8_t>(code)});
        const bool number = value != 0 && !is_nan(value);
        table[code] = {bf16_from_float(value).bits, static_cast<uint16_t>(number ? 0xFFFF : 0)};
    }
    return table;
}();

/// `count` elements from `first_k` on of a row, each bf16(code * scale). Under scale bytes 10 to 246 every
/// product is a normal number, whose exponent is the sum of both.
void dequantise(const Fp8Weight& weight, int64_t row, int64_t first_k, int64_t count, Bf16* out) {
    const E4m3* codes = weight.codes.data() + row * weight.inputs;
    const E8m0* scales = weight.scales.data() + row / block * (weight.inputs / block);
    for (int64_t k = first_k, next; k < first_k + count; k = next) {
        next = std::min(first_k + count, k / block * block + block);
        const E8m0 scale = scales[k / block];
        Bf16* to = out + (k - first_k);
        if (scale.bits >= 10 && scale.bits <= 246) {
            const uint16_t exponent = static_cast<uint16_t>((scale.bits - 127) * 128);
            for (int64_t i = k; i < next; ++i) {
                const CodeAsBf16 code = codes_as_bf16[codes[i].bits];
                *to++ = Bf16{static_cast<uint16_t>(code.bits + (exponent & code.scaled))};
            }
        } else {
            for (int64_t i = k; i < next; ++i)
                *to++ = bf16_from_float(with_canonical_nan(to_float(codes[i]) * to_float(scale)));
        }
    }
}

/// Rows first_output .. of the weight, dequantised to bf16.
class DequantisedPanels final : public PanelSource {
  public:
    DequantisedPanels(const Fp8Weight& weight, int64_t first_output)
        : weight_(weight), first_output_(first_output) {}
    void pack(int64_t first_row, int64_t columns, int64_t first_k, int64_t count,
              float* values) const override {
        std::vector<Bf16> decoded(static_cast<size_t>(columns * count));
        const Bf16* rows[panel_columns];
        for (int64_t j = 0; j < panel_columns; ++j) {
            Bf16* row = decoded.data() + std::min(j, columns - 1) * count;
            if (j < columns) dequantise(weight_, first_output_ + first_row + j, first_k, count, row);
            rows[j] = row;
        }
        gemm_kernels(active_isa()).pack_bf16(rows, count, values);
    }

  private:
    const Fp8Weight& weight_;
    int64_t first_output_;
};

/// What lanes_gemm gives, of one row: along the weight's rows, without panels.
void dots(const Fp8Weight& weight, int64_t first_output, std::span<const Bf16> o, Lanes lanes,
          std::span<float> sums) {
    const SumsKernels& kernels = sums_kernels(active_isa());
#pragma omp parallel
    {
        std::vector<Bf16> row(static_cast<size_t>(weight.inputs));
#pragma omp for schedule(static)
        for (size_t n = 0; n < sums.size(); ++n) {
            dequantise(weight, first_output + static_cast<int64_t>(n), 0, weight.inputs, row.data());
            sums[n] = kernels.dot_bf16(lanes, o.data(), row.data(), weight.inputs);
        }
    }
}

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
        const DequantisedPanels panels(weight, group * group_outputs);
        if (arithmetic == Arithmetic::exact && rows == 1)
            dots(weight, group * group_outputs,
                 o.subspan(static_cast<size_t>(group * k), static_cast<size_t>(k)), order.lanes, sums);
        else if (arithmetic == Arithmetic::exact)
            lanes_gemm(group_o, rows, panels, group_outputs, k, order.lanes.count, sums);
        else
            chain_gemm(tensor_core_instruction("hopper.wgmma.bf16"), group_o, rows, panels, group_outputs, k,
                       pieces, {}, sums);
        for (int64_t row = 0; row < rows; ++row)
            std::transform(sums.begin() + row * group_outputs, sums.begin() + (row + 1) * group_outputs,
                           u.begin() + (row * groups + group) * group_outputs,
                           [](float sum) { return bf16_from_float(sum); });
    }
}

}  // namespace touchstone
