#include "golden/hypotheses/quantizer_rule.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace touchstone {

namespace {

/// The power of two of `rounding` for a positive fp32 number.
float power_of_two(float x, ScaleRounding rounding) {
    switch (rounding) {
        case ScaleRounding::floor: return std::ldexp(1.0f, std::ilogb(x));
        case ScaleRounding::nearest: return std::ldexp(1.0f, static_cast<int>(std::lround(std::log2(x))));
        default: return to_float(e8m0_from_float_ceil(x));
    }
}

float block_scale(const QuantizerRule& rule, float amax) {
    amax = std::max(amax, rule.amax_floor);
    const float quotient = rule.reciprocal_of_range ? amax * (1.0f / rule.range) : amax / rule.range;
    if (rule.scale_rounding == ScaleRounding::kept) return quotient;
    if (rule.e4m3_scale && rule.scale_rounding == ScaleRounding::reference)
        return to_float(e4m3_from_float_saturating(quotient));
    const float scale = power_of_two(quotient, rule.scale_rounding);
    return rule.e4m3_scale ? to_float(e4m3_from_float_saturating(scale)) : scale;
}

float rounded(float steps, CodeRounding rounding) {
    switch (rounding) {
        case CodeRounding::nearest_even: return std::nearbyint(steps);
        case CodeRounding::half_away: return std::round(steps);
        case CodeRounding::half_up: return std::floor(steps + 0.5f);
        case CodeRounding::truncated: return std::trunc(steps);
    }
    return steps;
}

/// The value of x's code.
float code_of(const QuantizerRule& rule, float x) {
    if (std::isnan(x)) return rule.nan_dropped ? rule.largest_code : x;
    const int smallest_exponent = rule.fp8 ? -6 : 0, mantissa_bits = rule.fp8 ? 3 : 1;
    if (std::abs(x) > rule.largest_code) {
        const float middle = rule.largest_code * (1 + std::ldexp(0.5f, -mantissa_bits));
        if (rule.overflow_is_nan && std::abs(x) >= middle) return float_from_bits(canonical_nan_bits);
        return std::copysign(rule.largest_code, x);
    }
    const int exponent = x == 0 ? smallest_exponent : std::max(std::ilogb(x), smallest_exponent);
    const float step = std::ldexp(1.0f, exponent - mantissa_bits);
    float code = std::copysign(rounded(x / step, rule.code_rounding) * step, x);
    if (rule.subnormals_flushed && std::abs(code) < std::ldexp(1.0f, smallest_exponent))
        code = std::copysign(0.0f, x);
    return rule.negative_zero_lost && code == 0 ? 0.0f : code;
}

struct Maximum {
    float value = 0;
    bool has_nan = false;
};

Maximum maximum_of(const QuantizerRule& rule, std::span<const Bf16> block) {
    Maximum maximum;
    for (const Bf16 element : block) {
        const float x = to_float(element);
        if (std::isnan(x))
            maximum.has_nan = true;
        else
            maximum.value = std::max(maximum.value, rule.maximum_of_signed ? x : std::abs(x));
    }
    return maximum;
}

/// One block with its own scale.
float quantize(const QuantizerRule& rule, std::span<const Bf16> block, std::span<float> codes) {
    const Maximum maximum = maximum_of(rule, block);
    const bool lost = !rule.fp8 && maximum.has_nan && !rule.nan_dropped;  // fp4 has no code for NaN
    const float nan = float_from_bits(canonical_nan_bits);
    const float scale =
        lost || (!rule.e4m3_scale && std::isinf(maximum.value)) ? nan : block_scale(rule, maximum.value);
    for (size_t i = 0; i < block.size(); ++i) {
        const float x = to_float(block[i]);
        const float scaled = rule.codes_by_reciprocal ? x * (1.0f / scale) : x / scale;
        codes[i] = !rule.fp8 && std::isnan(scale) ? 0 : code_of(rule, scaled);
    }
    return scale;
}

uint8_t e4m3_bits(float value) {
    return e4m3_from_float_saturating(value).bits;
}

uint8_t scale_byte(const QuantizerRule& rule, float scale) {
    return rule.e4m3_scale ? e4m3_bits(scale) : e8m0_from_float_ceil(scale).bits;
}

void put_record(const QuantizerRule& rule, std::span<const float> codes, std::span<const float> scales,
                std::span<uint8_t> record) {
    const size_t value_bytes = rule.fp8 ? codes.size() : codes.size() / 2;
    for (size_t i = 0; i < value_bytes; ++i)
        record[i] = rule.fp8 ? e4m3_bits(codes[i])
                             : pack_e2m1(e2m1_from_float_saturating(codes[2 * i]),
                                         e2m1_from_float_saturating(codes[2 * i + 1]));
    for (size_t i = 0; i < scales.size(); ++i) record[value_bytes + i] = scale_byte(rule, scales[i]);
}

struct NamedQuantizer {
    const char* suffix;
    Quantizer quantizer;
};
constexpr NamedQuantizer quantizers_of_operators[] = {
    {"quantize_q8", Quantizer::q8}, {"quantize_q4i", Quantizer::q4i}, {"quantize_q4m", Quantizer::q4m}};

DecodeRule reference_decoding(const QuantizerRule& rule) {
    DecodeRule decode;
    decode.e4m3 = e4m3_value;
    decode.e2m1 = e2m1_value;
    decode.scale = rule.e4m3_scale ? e4m3_value : [](uint8_t byte) { return to_float(E8m0{byte}); };
    decode.scale_index = [](int64_t block, int64_t) { return block; };
    return decode;
}

/// The value of a channel: `values` and `scales` are the row's.
float decoded(const DecodeRule& decode, const QuantizerRule& rule, const uint8_t* values,
              const uint8_t* scales, int64_t channel, int64_t scale_count) {
    const uint8_t pair = values[channel / 2];
    const bool low = (channel % 2 == 0) != decode.nibbles_swapped;
    const float code = rule.fp8 ? decode.e4m3(values[channel])
                                : decode.e2m1(static_cast<uint8_t>(low ? pair & 0xF : pair >> 4));
    return with_canonical_nan(
        code * decode.scale(scales[decode.scale_index(channel / rule.record_block, scale_count)]));
}

}  // namespace

float e4m3_value(uint8_t byte) {
    return to_float(E4m3{byte});
}
float e2m1_value(uint8_t code) {
    return to_float(E2m1{code});
}

QuantizerRule of_quantizer(Quantizer quantizer) {
    const BlockRule& model = quantizer_info(quantizer).rule;
    QuantizerRule rule;
    rule.fp8 = model.element == KvElement::fp8_e4m3;
    rule.e4m3_scale = model.scale == KvScale::e4m3;
    rule.record_block = rule.block = model.block;
    rule.amax_floor = model.amax_floor;
    rule.range = rule.largest_code = model.range;
    rule.reciprocal_of_range = model.range_reciprocal != 0;
    return rule;
}

CodesAndScales quantized(const QuantizerRule& rule, std::span<const Bf16> x, int64_t channels) {
    const auto width = static_cast<size_t>(channels), stored = static_cast<size_t>(rule.record_block);
    const size_t block = rule.block == 0 ? width : static_cast<size_t>(rule.block);
    CodesAndScales result{std::vector<float>(x.size()), std::vector<float>(x.size() / stored)};
    for (size_t row = 0; row < x.size(); row += width)
        for (size_t first = 0; first < width; first += block) {
            const size_t count = std::min(block, width - first), at = row + first;
            const std::span<float> codes = std::span(result.codes).subspan(at, count);
            const float scale = quantize(rule, x.subspan(at, count), codes);
            if (at % stored == 0)
                for (size_t i = 0; i < std::max<size_t>(count / stored, 1); ++i)
                    result.scales[at / stored + i] = scale;
            else
                for (float& code : codes) code *= scale / result.scales[at / stored];
        }
    return result;
}

std::optional<Quantizer> quantizer_of(const OperatorRun& run) {
    for (const NamedQuantizer& one : quantizers_of_operators)
        if (run.info.name.ends_with(one.suffix)) return one.quantizer;
    return std::nullopt;
}

Outputs with_quantizer(std::function<bool(QuantizerRule&)> change) {
    return [change = std::move(change)](const OperatorRun& run) -> std::optional<TensorMap> {
        QuantizerRule rule = of_quantizer(*quantizer_of(run));
        const bool sensible = change(rule);
        const bool stored = rule.scale_rounding != ScaleRounding::kept &&
                            (rule.block == 0 || rule.block >= rule.record_block);
        if (!sensible || !stored) return std::nullopt;  // or no record holds it
        const int64_t channels = run.parameters["channels"];
        TensorMap outputs = run.expected;
        const Call call{run.parameters, run.inputs, outputs};
        const CodesAndScales made = quantized(rule, call.in<Bf16>("x"), channels);
        const auto width = static_cast<size_t>(channels),
                   blocks = width / static_cast<size_t>(rule.record_block);
        const std::span<uint8_t> records = call.out<uint8_t>("records");
        const std::span<float> values = call.out<float>("values");
        for (size_t i = 0; i < values.size(); ++i)
            values[i] =
                with_canonical_nan(made.codes[i] * made.scales[i / static_cast<size_t>(rule.record_block)]);
        for (size_t row = 0; row < values.size() / width; ++row)
            put_record(rule, std::span(made.codes).subspan(row * width, width),
                       std::span(made.scales).subspan(row * blocks, blocks),
                       records.subspan(row * (records.size() / (values.size() / width))));
        return outputs;
    };
}

Outputs with_decoding(std::function<bool(DecodeRule&, Quantizer)> change) {
    return [change = std::move(change)](const OperatorRun& run) -> std::optional<TensorMap> {
        const Quantizer quantizer = *quantizer_of(run);
        const QuantizerRule rule = of_quantizer(quantizer);
        DecodeRule decode = reference_decoding(rule);
        if (!change(decode, quantizer)) return std::nullopt;
        const int64_t channels = run.parameters["channels"], rows = run.parameters["rows"];
        const int64_t value_bytes = rule.fp8 ? channels : channels / 2, count = channels / rule.record_block;
        TensorMap outputs = run.expected;
        const Call call{run.parameters, run.inputs, outputs};
        const uint8_t* records = call.in<uint8_t>("records").data();
        for (int64_t i = 0; i < rows * channels; ++i) {
            const int64_t row = i / channels;
            const uint8_t* values = records + row * (decode.values_first ? value_bytes : value_bytes + count);
            const uint8_t* scales =
                decode.values_first ? records + rows * value_bytes + row * count : values + value_bytes;
            call.out<float>("values")[static_cast<size_t>(i)] =
                decoded(decode, rule, values, scales, i % channels, count);
        }
        return outputs;
    };
}

}  // namespace touchstone
