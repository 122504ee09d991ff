#include "reference/linear.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/gemm.h"
#include "reference/numerics/sums.h"
#include "reference/quantize.h"

namespace touchstone {

namespace {

constexpr int64_t block = 32;

[[noreturn]] void refuse(std::string what, std::string where, std::string expected, std::string remedy) {
    throw UserError({std::move(what), std::move(where), std::move(expected), std::move(remedy)});
}

void require_size(std::string_view tensor, size_t size, int64_t rows, int64_t width) {
    if (rows >= 0 && width >= 0 && static_cast<int64_t>(size) == rows * width) return;
    refuse(fmt::format("{} has {} elements", tensor, size), "linear", fmt::format("[{}, {}]", rows, width),
           "pass tensors whose shapes agree");
}

void require_multiple(std::string_view tensor, int64_t inputs, int64_t of) {
    if (inputs % of == 0) return;
    refuse(fmt::format("{} has {} inputs", tensor, inputs), "linear", fmt::format("a multiple of {}", of),
           of == block ? "pad the tensors to whole scale blocks" : "use the exact arithmetic, or pad");
}

void require_storage(const Fp8Weight& weight) {
    require_multiple(weight.name, weight.inputs, block);
    require_size(weight.name, weight.codes.size(), weight.outputs, weight.inputs);
    require_size(fmt::format("the scale of {}", weight.name), weight.scales.size(),
                 (weight.outputs + block - 1) / block, weight.inputs / block);
}

void require_storage(const Fp4Weight& weight) {
    require_multiple(weight.name, weight.inputs, block);
    require_size(weight.name, weight.codes.size(), weight.outputs, weight.inputs / 2);
    require_size(fmt::format("the scale of {}", weight.name), weight.scales.size(), weight.outputs,
                 weight.inputs / block);
}

void require_storage(const Bf16Weight& weight) {
    require_size(weight.name, weight.values.size(), weight.outputs, weight.inputs);
}

template <class Weight>
void require_shapes(std::span<const Bf16> x, int64_t rows, const Weight& weight, size_t outputs) {
    require_storage(weight);
    require_size(fmt::format("the input of {}", weight.name), x.size(), rows, weight.inputs);
    require_size(fmt::format("the output of {}", weight.name), outputs, rows, weight.outputs);
}

/// code * scale, or a refusal when that is not a bf16 number. Zero times any scale but NaN is zero, and NaN
/// stays NaN.
float folded(float code, float scale, std::string_view tensor, int64_t row, int64_t column) {
    const float value = code * scale;
    const bool exact = (float_bits(value) & 0xFFFF) == 0 && float_bits(value) << 1 != 0xFF000000;
    if (!exact && code != 0 && !is_nan(value))
        refuse(fmt::format("{} times its scale {} is not exact in bf16", code, scale),
               fmt::format("{}[{}, {}]", tensor, row, column),
               "a nonzero code whose product with its scale bf16 can hold (e4m3: scale bytes 3..246, e2m1: "
               "0..252)",
               "use the exact arithmetic");
    return with_canonical_nan(value);
}

constexpr auto e4m3_values = [] {
    std::array<float, 256> values{};
    for (size_t code = 0; code < 256; ++code) values[code] = to_float(E4m3{static_cast<uint8_t>(code)});
    return values;
}();

ScaledCodes stored_codes(const Fp8Weight& weight) {
    static_assert(sizeof(E4m3) == 1);
    return {CodeFormat::e4m3,
            {reinterpret_cast<const uint8_t*>(weight.codes.data()), weight.codes.size()},
            weight.scales,
            block};
}

ScaledCodes stored_codes(const Fp4Weight& weight) {
    return {CodeFormat::e2m1, weight.codes, weight.scales, 1};
}

/// Codes' values times scales; every product was found to be exact in bf16 by require_exact_fold.
class FoldedPanels final : public PanelSource {
  public:
    FoldedPanels(const ScaledCodes& codes, int64_t inputs) : codes_(codes), inputs_(inputs) {}
    void pack(int64_t first_row, int64_t columns, int64_t first_k, int64_t count,
              float* values) const override {
        pack_codes(codes_, inputs_, first_row, columns, first_k, count, values);
        alignas(64) float scales[panel_columns] = {};
        for (int64_t k = 0, next; k < count; k = next) {
            next = std::min(count, (first_k + k) / block * block + block - first_k);
            for (int64_t j = 0; j < columns; ++j)
                scales[j] = to_float(codes_.column_scales(first_row + j, inputs_)[(first_k + k) / block]);
            gemm_kernels(active_isa()).scale_panel(scales, next - k, values + k * panel_columns);
        }
    }

  private:
    const ScaledCodes& codes_;
    int64_t inputs_;
};

class Bf16Panels final : public PanelSource {
  public:
    explicit Bf16Panels(const Bf16Weight& weight) : weight_(weight) {}
    void pack(int64_t first_row, int64_t columns, int64_t first_k, int64_t count,
              float* values) const override {
        const Bf16* rows[panel_columns];
        for (int64_t j = 0; j < panel_columns; ++j)
            rows[j] =
                weight_.values.data() + (first_row + std::min(j, columns - 1)) * weight_.inputs + first_k;
        gemm_kernels(active_isa()).pack_bf16(rows, count, values);
    }

  private:
    const Bf16Weight& weight_;
};

float code_value(const ScaledCodes& codes, int64_t element) {
    if (codes.format == CodeFormat::e4m3) return e4m3_values[codes.codes[static_cast<size_t>(element)]];
    const uint8_t pair = codes.codes[static_cast<size_t>(element / 2)];
    return to_float(element % 2 == 0 ? even_e2m1(pair) : odd_e2m1(pair));
}

/// Looks at elements only where a scale could be a trouble, which real weights do not have.
void require_exact_fold(const ScaledCodes& codes, std::string_view name, int64_t outputs, int64_t inputs) {
    const auto always_safe = [](E8m0 scale) {
        return scale.bits >= 3 && scale.bits <= 246;
    };  // of e4m3; e2m1 more
    bool safe = true;
    for (E8m0 scale : codes.scales) safe &= always_safe(scale);
    if (safe) return;
    for (int64_t row = 0; row < outputs; ++row)
        for (int64_t b = 0; b < inputs / block; ++b) {
            const E8m0 scale = codes.column_scales(row, inputs)[b];
            if (always_safe(scale)) continue;
            for (int64_t k = b * block; k < (b + 1) * block; ++k)
                folded(code_value(codes, row * inputs + k), to_float(scale), name, row, k);
        }
}

std::vector<float> folded_input(const QuantizedRows& x, int64_t inputs, std::string_view weight_name) {
    std::vector<float> values(x.values.size());
    const std::string tensor = fmt::format("the input of {}, quantised", weight_name);
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = folded(x.values[i], x.scales[i / block], tensor, static_cast<int64_t>(i) / inputs,
                           static_cast<int64_t>(i) % inputs);
    return values;
}

void chain(SumOperator op, std::span<const float> x, int64_t rows, const PanelSource& panels, int64_t outputs,
           int64_t inputs, std::span<float> y) {
    const SumOrder order = sum_order(op, inputs, outputs);
    std::vector<KPiece> pieces;
    for (int i = 0; i < order.pieces; ++i) {
        const PieceRange range = piece(order, inputs, i);
        pieces.push_back({range.first, range.last - range.first});
    }
    chain_gemm(tensor_core_instruction("hopper.wgmma.bf16"), x, rows, panels, outputs, inputs, pieces, {}, y);
}

template <class Weight>
void block_scaled_linear(Arithmetic arithmetic, SumOperator op, std::span<const Bf16> x, int64_t rows,
                         const Weight& weight, std::span<float> y) {
    require_shapes(x, rows, weight, y.size());
    const QuantizedRows quantized = quantize_linear_input(x, rows, weight.inputs);
    const ScaledCodes codes = stored_codes(weight);
    if (arithmetic == Arithmetic::hopper) {
        require_exact_fold(codes, weight.name, weight.outputs, weight.inputs);
        chain(op, folded_input(quantized, weight.inputs, weight.name), rows,
              FoldedPanels(codes, weight.inputs), weight.outputs, weight.inputs, y);
        return;
    }
    block_scaled_gemm(arithmetic == Arithmetic::exact ? BlockSum::exact : BlockSum::hopper_fp8_wgmma,
                      quantized.values, quantized.scales, rows, codes, weight.outputs, weight.inputs, y);
}

/// What lanes_gemm gives, of one row: it is faster to go along the weight's rows than to decode panels.
void dots(SumOperator op, std::span<const Bf16> x, const Bf16Weight& weight, std::span<float> y) {
    const SumsKernels& kernels = sums_kernels(active_isa());
    const Lanes lanes = sum_order(op, weight.inputs, weight.outputs).lanes;
#pragma omp parallel for schedule(static)
    for (size_t n = 0; n < y.size(); ++n) {
        const Bf16* row = weight.values.data() + static_cast<int64_t>(n) * weight.inputs;
        y[n] = kernels.dot_bf16(lanes, x.data(), row, weight.inputs);
    }
}

/// Calls `linear` with an fp32 output and rounds that to bf16.
template <class Linear>
void rounded(std::span<Bf16> y, const Linear& linear) {
    std::vector<float> accumulators(y.size());
    linear(std::span<float>(accumulators));
    std::ranges::transform(accumulators, y.begin(), [](float sum) { return bf16_from_float(sum); });
}

}  // namespace

std::string_view arithmetic_name(Arithmetic arithmetic) {
    constexpr std::array<std::string_view, 3> names{"exact", "hopper", "released_hopper"};
    return names.at(static_cast<size_t>(arithmetic));
}

QuantizedRows quantize_linear_input(std::span<const Bf16> x, int64_t rows, int64_t inputs) {
    require_multiple("the input", inputs, block);
    require_size("the input", x.size(), rows, inputs);
    const BlockRule& rule = quantizer_info(Quantizer::q8).rule;
    QuantizedRows result{std::vector<float>(x.size()), std::vector<float>(x.size() / block)};
    const int64_t blocks = static_cast<int64_t>(result.scales.size());
#pragma omp parallel for schedule(static)
    for (int64_t b = 0; b < blocks; ++b) {
        std::byte codes[block], scale[4];
        quantize_block(rule, x.data() + b * block, codes, scale);
        result.scales[static_cast<size_t>(b)] = stored_scale(rule.scale, scale);
        for (int64_t i = 0; i < block; ++i)
            result.values[static_cast<size_t>(b * block + i)] = e4m3_values[static_cast<uint8_t>(codes[i])];
    }
    return result;
}

void linear_fp8(Arithmetic arithmetic, SumOperator op, std::span<const Bf16> x, int64_t rows,
                const Fp8Weight& weight, std::span<float> y) {
    block_scaled_linear(arithmetic, op, x, rows, weight, y);
}

void linear_fp8(Arithmetic arithmetic, SumOperator op, std::span<const Bf16> x, int64_t rows,
                const Fp8Weight& weight, std::span<Bf16> y) {
    rounded(y, [&](std::span<float> acc) { block_scaled_linear(arithmetic, op, x, rows, weight, acc); });
}

void linear_fp4(Arithmetic arithmetic, SumOperator op, std::span<const Bf16> x, int64_t rows,
                const Fp4Weight& weight, std::span<float> y) {
    block_scaled_linear(arithmetic, op, x, rows, weight, y);
}

void linear_fp4(Arithmetic arithmetic, SumOperator op, std::span<const Bf16> x, int64_t rows,
                const Fp4Weight& weight, std::span<Bf16> y) {
    rounded(y, [&](std::span<float> acc) { block_scaled_linear(arithmetic, op, x, rows, weight, acc); });
}

void linear_bf16(Arithmetic arithmetic, SumOperator op, std::span<const Bf16> x, int64_t rows,
                 const Bf16Weight& weight, std::span<float> y) {
    require_shapes(x, rows, weight, y.size());
    if (arithmetic == Arithmetic::exact && rows == 1) return dots(op, x, weight, y);
    std::vector<float> values(x.size());
    std::transform(x.begin(), x.end(), values.begin(), [](Bf16 v) { return to_float(v); });
    const Bf16Panels panels(weight);
    if (arithmetic == Arithmetic::exact) {
        const SumOrder order = sum_order(op, weight.inputs, weight.outputs);
        lanes_gemm(values, rows, panels, weight.outputs, weight.inputs, order.lanes.count, y);
        return;
    }
    require_multiple(weight.name, weight.inputs, 16);
    chain(op, values, rows, panels, weight.outputs, weight.inputs, y);
}

void linear_bf16(Arithmetic arithmetic, SumOperator op, std::span<const Bf16> x, int64_t rows,
                 const Bf16Weight& weight, std::span<Bf16> y) {
    rounded(y, [&](std::span<float> acc) { linear_bf16(arithmetic, op, x, rows, weight, acc); });
}

}  // namespace touchstone
