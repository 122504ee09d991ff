// Linear layers as somebody else might have written them, with faults to choose from.
#pragma once

#include "tests/foreign_numbers.h"

namespace foreign {

/// Decoded operands of a layer; groups > 1 for grouped_linear alone.
struct Layer {
    size_t rows, groups, inputs, outputs;
    std::vector<float> a, b;                ///< codes or bf16 values
    std::vector<float> a_scales, b_scales;  ///< per row and 32 of K; 1 where there are none

    size_t blocks() const { return inputs / 32; }
    size_t a_row(size_t row, size_t output) const { return row * groups + output / (outputs / groups); }
};

/// Activations by the Q8 rule: 32 to a scale, or `block`.
inline void quantise(Layer& layer, const std::vector<float>& x, const Fault& fault) {
    const size_t block = fault.is("activation_block_128") ? 128 : 32;
    const float floor = fault.is("activation_floor_1e_12") ? 1e-12f : 1e-4f;
    for (size_t first = 0; first < x.size(); first += block) {
        float largest = floor;
        for (size_t i = first; i < first + block; ++i)
            if (!std::isnan(x[i])) largest = std::max(largest, std::abs(x[i]));
        int exponent = exponent_above(largest * (1.0f / 448));
        if (fault.is("activation_scale_floored")) exponent = std::ilogb(largest * (1.0f / 448));
        const float scale = std::ldexp(1.0f, exponent);
        for (size_t i = first; i < first + block; ++i)
            layer.a.push_back(e4m3(nearest_code(x[i] / scale, true,
                                                fault.is("activation_ties_away") ? Ties::away : Ties::even)));
        layer.a_scales.insert(layer.a_scales.end(), block / 32, scale);
    }
}

inline float weight_scale(uint8_t byte, const Fault& fault) {
    if (fault.is("scale_as_number")) return byte;
    if (fault.is("scale_unused")) return 1;
    if (fault.is("scale_bias_126")) return 2 * e8m0(byte);
    return e8m0(byte);
}

/// Which stored scale weight row `n` takes for block `b`; a tensor [rows of scales, blocks].
inline size_t scale_at(const Layer& layer, size_t n, size_t b, bool tiles, const Fault& fault) {
    const size_t blocks = layer.blocks();
    if (fault.is("tiles_of_128")) return n / 128 * blocks + b / 4;
    if (fault.is("scales_transposed")) return b * blocks + n / 32;
    if (fault.is("scale_of_next_block")) b = std::min(b + 1, blocks - 1);
    if (fault.is("fp4_scale_of_tile")) return n / 32 * 32 * blocks + b;
    return (tiles ? n / 32 : n) * blocks + b;
}

inline void read_weight(Layer& layer, const touchstone::TensorMap& inputs, bool fp8, const Fault& fault) {
    const std::vector<uint8_t> codes = byte_tensor(inputs, "weight"), scales = byte_tensor(inputs, "scale");
    for (size_t i = 0; i < layer.outputs * layer.inputs; ++i) {
        if (fp8) {
            const bool nan = (codes[i] & 0x7F) == 0x7F;
            layer.b.push_back(nan && fault.is("nan_code_is_480") ? 480 : e4m3(codes[i]));
            continue;
        }
        const bool high = (i % 2 == 1) != fault.is("nibbles_swapped");
        layer.b.push_back(e2m1(high ? codes[i / 2] >> 4 : codes[i / 2] & 15));
    }
    for (size_t n = 0; n < layer.outputs; ++n)
        for (size_t b = 0; b < layer.blocks(); ++b)
            layer.b_scales.push_back(weight_scale(scales[scale_at(layer, n, b, fp8, fault)], fault));
}

/// Times that a block of K is counted.
inline float times_counted(const Layer& layer, size_t block, const Fault& fault) {
    const size_t blocks = layer.blocks();
    if (fault.is("last_block_missing") && block == blocks - 1) return 0;
    if (fault.is("first_64_missing") && block < 2) return 0;
    if (fault.is("first_block_twice") && block == 0) return 2;
    if (fault.is("tail_of_128_missing") && block >= blocks / 4 * 4) return 0;
    if (fault.is("block_5_thrice") && block == 5) return 3;
    if (fault.is("block_7_missing") && block == 7) return 0;
    return 1;
}

/// Products of 32 in order, then their scales; blocks in order.
inline float dot(const Layer& layer, size_t row, size_t n, const Fault& fault) {
    if (fault.is("row_before") && row > 0) --row;
    if (fault.is("next_weight_row")) n = std::min(n + 1, layer.outputs - 1);
    const size_t group_row =
        fault.is("group_major_activations") ? layer.a_row(0, n) * layer.rows + row : layer.a_row(row, n);
    const size_t weight_row = fault.is("first_group_weights") ? n % (layer.outputs / layer.groups) : n;
    float sum = 0;
    for (size_t b = 0; b < layer.blocks(); ++b) {
        const size_t from = fault.is("block_3_of_other_activations") && b == 3 ? 4 : b;
        float products = 0;
        for (size_t i = 0; i < 32; ++i)
            products += layer.a[group_row * layer.inputs + 32 * from + i] *
                        layer.b[weight_row * layer.inputs + 32 * b + i];
        if (!layer.a_scales.empty()) {
            const size_t next =
                fault.is("activation_scale_of_next_block") ? std::min(b + 1, layer.blocks() - 1) : b;
            products *= layer.a_scales[group_row * layer.blocks() + next];
            products *= layer.b_scales[weight_row * layer.blocks() + b];
        }
        sum += products * times_counted(layer, b, fault);
        if (fault.is("accumulator_bf16_per_block")) sum = through_bf16(sum);
    }
    return sum;
}

/// K in two halves, each rounded to bf16.
inline float two_ranks(const Layer& layer, size_t row, size_t n) {
    float sum = 0;
    for (size_t half = 0; half < 2; ++half) {
        float part = 0;
        for (size_t i = half * layer.inputs / 2; i < (half + 1) * layer.inputs / 2; ++i) {
            float product = layer.a[row * layer.inputs + i] * layer.b[n * layer.inputs + i];
            if (!layer.a_scales.empty())
                product *= layer.a_scales[row * layer.blocks() + i / 32] *
                           layer.b_scales[n * layer.blocks() + i / 32];
            part += product;
        }
        sum += through_bf16(part);
    }
    return sum;
}

/// The fp8 tensor core's sum: terms cut to 13 bits below the largest exponent, and so is the result.
inline float fp8_chain(const Layer& layer, size_t row, size_t n) {
    double accumulator = 0;
    const auto exponent_of = [](double x) { return x == 0 ? -1000 : std::ilogb(x); };
    for (size_t b = 0; b < layer.blocks(); ++b) {
        std::vector<std::pair<double, int>> terms{{accumulator, exponent_of(accumulator)}};
        const double scale = static_cast<double>(layer.a_scales[row * layer.blocks() + b]) *
                             static_cast<double>(layer.b_scales[n * layer.blocks() + b]);
        for (size_t i = 32 * b; i < 32 * (b + 1); ++i) {
            const double x = static_cast<double>(layer.a[row * layer.inputs + i]);
            const double w = static_cast<double>(layer.b[n * layer.inputs + i]);
            terms.emplace_back(x * w * scale, exponent_of(x) + exponent_of(w) + std::ilogb(scale));
        }
        int largest = -1000;
        for (const auto& term : terms) largest = std::max(largest, term.second);
        double sum = 0;
        for (const auto& term : terms)
            sum += std::ldexp(std::trunc(std::ldexp(term.first, 13 - largest)), largest - 13);
        const int last = exponent_of(sum) - 13;
        accumulator = sum == 0 ? 0 : std::ldexp(std::trunc(std::ldexp(sum, -last)), last);
    }
    return static_cast<float>(accumulator);
}

inline Layer read_layer(const touchstone::ParsedCase& parsed, const touchstone::TensorMap& inputs,
                        const Fault& fault) {
    const std::string& name = parsed.info->name;
    const bool grouped = name == "grouped_linear", quantised = name == "linear_fp8" || name == "linear_fp4";
    const auto extent = [&](const char* key) { return static_cast<size_t>(parsed.parameters[key]); };
    Layer layer{
        extent("rows"), grouped ? extent("groups") : 1, extent("inputs"), extent("outputs"), {}, {}, {}, {}};
    const std::vector<float> x = bf16_tensor(inputs, "x");
    if (quantised && !fault.is("activations_unquantised"))
        quantise(layer, x, fault);
    else
        layer.a = x;
    if (fault.is("activations_unquantised")) layer.a_scales.assign(x.size() / 32, 1);
    if (!quantised && fault.is("activations_in_fp8")) {
        layer.a.clear();
        quantise(layer, x, fault);
        for (size_t i = 0; i < x.size(); ++i) layer.a[i] *= layer.a_scales[i / 32];
        layer.a_scales.clear();
    }
    if (quantised || grouped) read_weight(layer, inputs, name != "linear_fp4", fault);
    if (grouped)
        for (size_t i = 0; i < layer.b.size(); ++i) layer.b[i] *= layer.b_scales[i / 32];
    if (!quantised && !grouped) layer.b = bf16_tensor(inputs, "weight");
    if (fault.is("weight_transposed")) {
        const std::vector<float> w = layer.b;
        for (size_t i = 0; i < w.size(); ++i)
            layer.b[i] = w[i % layer.inputs * layer.outputs + i / layer.inputs];
    }
    return layer;
}

/// Changes of the finished result.
inline void spoil(std::vector<float>& y, const Layer& layer, const Fault& fault) {
    if (fault.is("first_64_missing_and_halves_swapped") || fault.is("halves_swapped"))
        for (size_t row = 0; row < layer.rows; ++row)
            std::rotate(y.begin() + static_cast<int64_t>(row * layer.outputs),
                        y.begin() + static_cast<int64_t>(row * layer.outputs + layer.outputs / 2),
                        y.begin() + static_cast<int64_t>((row + 1) * layer.outputs));
    if (fault.is("rows_1_and_3_swapped"))
        std::swap_ranges(y.begin() + static_cast<int64_t>(layer.outputs),
                         y.begin() + static_cast<int64_t>(2 * layer.outputs),
                         y.begin() + static_cast<int64_t>(3 * layer.outputs));
    if (fault.is("bit_flipped")) y[y.size() / 2 + 7] *= 4;
    if (fault.is("group_1_doubled"))
        for (size_t i = 0; i < y.size(); ++i)
            if (i % layer.outputs / (layer.outputs / layer.groups) == 1) y[i] *= 2;
    if (fault.is("fp32_in_bf16"))
        for (float& value : y) value = through_bf16(value);
    if (fault.is("columns_beyond_64_missing"))
        for (size_t i = 0; i < y.size(); ++i)
            if (i % layer.outputs >= layer.outputs / 64 * 64) y[i] = 0;
    if (fault.is("offsets_of_16_bits"))
        for (size_t i = 65536; i < y.size(); ++i) y[i] = y[i - 65536];
    if (fault.is("written_by_column")) {
        const std::vector<float> old = y;
        for (size_t i = 0; i < y.size(); ++i) y[i] = old[i % layer.rows * layer.outputs + i / layer.rows];
    }
}

inline uint16_t bf16_output(float x, const Fault& fault) {
    if (fault.is("bf16_truncated")) return static_cast<uint16_t>(bits_of(x) >> 16);
    if (fault.is("bf16_half_away")) return static_cast<uint16_t>((bits_of(x) + 0x8000) >> 16);
    const uint16_t bits = bf16_nearest(x);
    if (fault.is("bytes_swapped")) return static_cast<uint16_t>(bits << 8 | bits >> 8);
    return bits;
}

/// linear_fp8, linear_fp4, linear_bf16, lm_head, grouped_linear.
inline touchstone::TensorMap linear(const touchstone::ParsedCase& parsed, const touchstone::TensorMap& inputs,
                                    const Fault& fault) {
    const Layer layer = read_layer(parsed, inputs, fault);
    const Fault part{fault.is("first_64_missing_and_halves_swapped") ? "first_64_missing" : fault.name};
    std::vector<float> y;
    for (size_t row = 0; row < layer.rows; ++row)
        for (size_t n = 0; n < layer.outputs; ++n) {
            if (fault.is("two_ranks_in_bf16"))
                y.push_back(two_ranks(layer, row, n));
            else if (fault.is("fp8_chain_never_promoted"))
                y.push_back(fp8_chain(layer, row, n));
            else
                y.push_back(dot(layer, row, n, part));
        }
    spoil(y, layer, fault);
    touchstone::TensorMap outputs = outputs_of(parsed);
    for (auto& [name, tensor] : outputs)
        for (size_t i = 0; i < y.size(); ++i)
            if (tensor.type == "F32")
                tensor.view<float>()[i] = y[i];
            else
                tensor.view<touchstone::Bf16>()[i] = {bf16_output(y[i], fault)};
    return outputs;
}

}  // namespace foreign
