// Faults of number formats: how values are rounded, coded and decoded.
#include <cmath>

#include "golden/hypotheses/bf16_rounding.h"
#include "golden/hypotheses/linear_operands.h"
#include "golden/hypotheses/quantizer_rule.h"

namespace touchstone {

namespace {

const std::vector<std::string> quantizing{"quantize_q8", "quantize_q4i", "quantize_q4m", "linear_fp8",
                                          "linear_fp4"};
const std::vector<std::string> decoding{"dequantize_q8", "dequantize_q4i", "dequantize_q4m",
                                        "linear_fp8",    "linear_fp4",     "grouped_linear"};

/// A departure of a quantiser; false where it makes no sense.
struct QuantizerVariant {
    const char *name, *cause;
    bool (*change)(QuantizerRule& rule);
};

template <auto member, auto value>
bool set(QuantizerRule& rule) {
    if (rule.*member == value) return false;
    rule.*member = value;
    return true;
}

template <auto member, auto value>
bool set_fp8(QuantizerRule& rule) {
    return rule.fp8 && set<member, value>(rule);
}

bool amax_floor(QuantizerRule& rule, float floor) {
    if (rule.amax_floor == floor) return false;
    rule.amax_floor = floor;
    return true;
}

bool range_240(QuantizerRule& rule) {
    rule.range = rule.largest_code = 240;
    return rule.fp8;
}

bool floored_to_nan(QuantizerRule& rule) {
    rule.scale_rounding = ScaleRounding::floor;
    rule.overflow_is_nan = true;
    return rule.fp8;
}

using Rule = QuantizerRule;
const QuantizerVariant quantizer_variants[] = {
    {"amax_floor_1e_4", "a block's maximum is at least 1e-4",
     [](Rule& rule) { return amax_floor(rule, 1e-4f); }},
    {"amax_floor_1e_12", "a block's maximum is at least 1e-12",
     [](Rule& rule) { return amax_floor(rule, 1e-12f); }},
    {"amax_floor_6_smallest_normals", "a block's maximum is at least 6 * 2^-126",
     [](Rule& rule) { return amax_floor(rule, 6 * 0x1p-126f); }},
    {"amax_floor_6_e4m3_steps", "a block's maximum is at least 6 * 2^-9",
     [](Rule& rule) { return amax_floor(rule, 6 * 0x1p-9f); }},
    {"scale_floored", "the scale is the power of two below, not above",
     set<&Rule::scale_rounding, ScaleRounding::floor>},
    {"scale_floored_overflow_nan", "the scale is the power of two below, and what overflows becomes NaN",
     floored_to_nan},
    {"scale_nearest_power", "the scale is the nearest power of two",
     set<&Rule::scale_rounding, ScaleRounding::nearest>},
    {"scale_power_of_two", "the scale is a power of two where its type could say more",
     [](Rule& rule) {
         return rule.e4m3_scale && set<&Rule::scale_rounding, ScaleRounding::power_of_two>(rule);
     }},
    {"scale_not_power_of_two", "the scale is kept in fp32, no power of two",
     set<&Rule::scale_rounding, ScaleRounding::kept>},
    {"scale_range_240", "the largest code is taken to be 240, as in e4m3fnuz", range_240},
    {"codes_by_reciprocal", "values are multiplied with the scale's reciprocal, not divided by the scale",
     set<&Rule::codes_by_reciprocal, true>},
    {"codes_half_away", "ties between codes go away from zero",
     set<&Rule::code_rounding, CodeRounding::half_away>},
    {"codes_half_up", "ties between codes go up", set<&Rule::code_rounding, CodeRounding::half_up>},
    {"codes_truncated", "codes are cut toward zero, not rounded",
     set<&Rule::code_rounding, CodeRounding::truncated>},
    {"codes_nan_dropped", "a NaN becomes the largest code", set<&Rule::nan_dropped, true>},
    {"codes_negative_zero_lost", "-0 becomes +0", set<&Rule::negative_zero_lost, true>},
    {"codes_subnormals_flushed", "codes below the smallest normal become 0",
     set<&Rule::subnormals_flushed, true>},
    {"maximum_of_signed_values", "a block's maximum is that of the values, not of their magnitudes",
     set<&Rule::maximum_of_signed, true>},
    {"scale_block_16", "one scale per 16 values", set<&Rule::block, int64_t{16}>},
    {"scale_block_32", "one scale per 32 values", set<&Rule::block, int64_t{32}>},
    {"scale_block_64", "one scale per 64 values", set<&Rule::block, int64_t{64}>},
    {"scale_block_128", "one scale per 128 values", set<&Rule::block, int64_t{128}>},
    {"scale_block_row", "one scale per row", set<&Rule::block, int64_t{0}>},
};

/// A record written so, or activations quantised so.
Outputs quantised(bool (*change)(QuantizerRule&)) {
    const Outputs records = with_quantizer(change);
    const Outputs activations = with_operands([change](LinearOperands& operands, const OperatorRun& run) {
        QuantizerRule rule = of_quantizer(Quantizer::q8);
        if (!change(rule)) return false;
        CodesAndScales made = quantized(rule, run.inputs.find("x")->second.view<Bf16>(), operands.inputs);
        operands.a = std::move(made.codes);
        operands.a_scales = std::move(made.scales);
        return true;
    });
    return [=](const OperatorRun& run) { return quantizer_of(run) ? records(run) : activations(run); };
}

/// A departure in reading codes and scales; false where it makes no sense.
struct DecodeVariant {
    const char *name, *kind, *cause;
    bool (*change)(DecodeRule& rule, Quantizer quantizer);
};

bool is_fp4(Quantizer quantizer) {
    return quantizer != Quantizer::q8;
}
bool has_e8m0(Quantizer quantizer) {
    return quantizer != Quantizer::q4m;
}

float flushed_e4m3(uint8_t byte) {
    return std::abs(e4m3_value(byte)) < 0x1p-6f ? 0.0f : e4m3_value(byte);
}
float fnuz_e4m3(uint8_t byte) {
    if (byte == 0x80) return float_from_bits(canonical_nan_bits);
    return (byte & 0x7F) == 0x7F ? std::copysign(240.0f, byte & 0x80 ? -1.0f : 1.0f) : e4m3_value(byte) / 2;
}
float e4m3_of_480(uint8_t byte) {
    return (byte & 0x7F) == 0x7F ? std::copysign(480.0f, byte & 0x80 ? -1.0f : 1.0f) : e4m3_value(byte);
}
float e8m0_as_number(uint8_t byte) {
    return static_cast<float>(byte);
}
float e8m0_without_nan(uint8_t byte) {
    return byte == 255 ? HUGE_VALF : to_float(E8m0{byte});
}
float e8m0_of_byte_0(uint8_t byte) {
    return byte == 0 ? 0.0f : to_float(E8m0{byte});
}
float one(uint8_t) {
    return 1;
}

template <int bias>
float e8m0_of_bias(uint8_t byte) {
    return byte == 255 ? float_from_bits(canonical_nan_bits) : std::ldexp(1.0f, byte - bias);
}
float e8m0_value(uint8_t byte) {
    return to_float(E8m0{byte});
}

template <auto member, auto value>
bool read(DecodeRule& rule, Quantizer) {
    rule.*member = value;
    return true;
}
template <auto member, auto value>
bool read_fp8(DecodeRule& rule, Quantizer quantizer) {
    rule.*member = value;
    return !is_fp4(quantizer);
}
template <auto member, auto value>
bool read_e8m0(DecodeRule& rule, Quantizer quantizer) {
    rule.*member = value;
    return has_e8m0(quantizer);
}

using Decode = DecodeRule;
const DecodeVariant decode_variants[] = {
    {"nibbles_read_swapped", "K16", "the even element is read from the high nibble",
     [](Decode& rule, Quantizer quantizer) {
         rule.nibbles_swapped = true;
         return is_fp4(quantizer);
     }},
    {"scale_byte_as_number", "K16", "scale byte 120 is taken as the number 120, not as 2^-7",
     read_e8m0<&Decode::scale, e8m0_as_number>},
    {"scale_ignored", "K16", "block scales are not applied", read<&Decode::scale, one>},
    {"scale_bias_126", "K16", "the scale's exponent has the bias 126",
     read_e8m0<&Decode::scale, e8m0_of_bias<126>>},
    {"scale_bias_128", "K16", "the scale's exponent has the bias 128",
     read_e8m0<&Decode::scale, e8m0_of_bias<128>>},
    {"scale_e8m0_read_as_e4m3", "K16", "e8m0 scales are read as e4m3", read_e8m0<&Decode::scale, e4m3_value>},
    {"scale_e4m3_read_as_e8m0", "K16", "e4m3 scales are read as e8m0",
     [](Decode& rule, Quantizer quantizer) {
         rule.scale = e8m0_value;
         return !has_e8m0(quantizer);
     }},
    {"scale_byte_0_is_zero", "K16", "scale byte 0 is read as 0, not as 2^-127",
     read_e8m0<&Decode::scale, e8m0_of_byte_0>},
    {"scale_byte_255_is_infinite", "K16", "scale byte 255 is read as 2^128, not as NaN",
     read_e8m0<&Decode::scale, e8m0_without_nan>},
    {"scale_nan_is_480", "K15", "an e4m3 scale of NaN is read as 480",
     [](Decode& rule, Quantizer quantizer) {
         rule.scale = e4m3_of_480;
         return !has_e8m0(quantizer);
     }},
    {"code_nan_is_480", "K15", "e4m3 codes of NaN are read as 480", read_fp8<&Decode::e4m3, e4m3_of_480>},
    {"code_subnormals_flushed", "K15", "subnormal e4m3 codes are read as 0",
     read_fp8<&Decode::e4m3, flushed_e4m3>},
    {"code_e4m3fnuz", "K15", "codes are read as e4m3fnuz, with half their values",
     read_fp8<&Decode::e4m3, fnuz_e4m3>},
    {"code_negative_zero_lost", "K15", "fp4 code 8 is read as +0",
     [](Decode& rule, Quantizer quantizer) {
         rule.e2m1 = [](uint8_t code) { return code == 8 ? 0.0f : e2m1_value(code); };
         return is_fp4(quantizer);
     }},
    {"scale_of_the_next_block", "K16", "a block gets the scale of the block after it",
     read<&Decode::scale_index, +[](int64_t b, int64_t n) { return std::min(b + 1, n - 1); }>},
    {"scale_of_the_block_before", "K16", "a block gets the scale of the block before it",
     read<&Decode::scale_index, +[](int64_t b, int64_t) { return std::max(b - 1, int64_t{0}); }>},
    {"scale_of_the_first_block", "K16", "all blocks of a row get its first scale",
     read<&Decode::scale_index, +[](int64_t, int64_t) { return int64_t{0}; }>},
    {"scale_of_twice_the_block", "K16", "two blocks share a scale, the index is block / 2",
     read<&Decode::scale_index, +[](int64_t b, int64_t) { return b / 2; }>},
    {"scale_of_four_blocks", "K16", "four blocks share a scale, as of 128 channels: the index is block / 4",
     read<&Decode::scale_index, +[](int64_t b, int64_t) { return b / 4; }>},
    {"scale_first_of_four_blocks", "K16", "four blocks share the first one's scale",
     read<&Decode::scale_index, +[](int64_t b, int64_t) { return b / 4 * 4; }>},
    {"scales_reversed", "K16", "the scales of a row are read from its end",
     read<&Decode::scale_index, +[](int64_t b, int64_t n) { return n - 1 - b; }>},
};

/// Records read so, or a weight.
Outputs decoded(bool (*change)(DecodeRule&, Quantizer)) {
    const Outputs records = with_decoding(change);
    return [=](const OperatorRun& run) -> std::optional<TensorMap> {
        if (quantizer_of(run)) return records(run);
        DecodeRule rule;
        if (!change(rule, run.info.name == "linear_fp4" ? Quantizer::q4i : Quantizer::q8))
            return std::nullopt;
        const std::optional<LinearOperands> operands = linear_operands(run, rule);
        if (!operands) return std::nullopt;
        return linear_outputs(run, *operands);
    };
}

/// How outputs are rounded to bf16, and how fp32 ones might be.
struct OutputRounding {
    const char *name, *cause;
    double (*round)(double value);
    bool of_fp32 = false;
};

const OutputRounding output_roundings[] = {
    {"bf16_truncated", "the result is cut to bf16 toward zero", bf16_truncated},
    {"bf16_half_away", "0x8000 is added to the result's bits: ties go away from zero", bf16_half_away},
    {"bf16_half_up", "ties go up, toward plus infinity, when the result is rounded to bf16", bf16_half_up},
    {"bf16_through_fp16", "the result is rounded to fp16, then to bf16", bf16_through_fp16},
    {"bf16_subnormals_flushed", "subnormal results become 0", subnormals_flushed},
    {"fp32_result_in_bf16", "a result that stays fp32 is rounded to bf16", to_bf16, true},
    {"fp32_result_in_fp16", "a result that stays fp32 is rounded to fp16", to_fp16, true},
    {"fp32_result_in_tf32", "a result that stays fp32 is cut to the bits of tf32", to_tf32, true},
};

}  // namespace

std::vector<Hypothesis> number_format_hypotheses() {
    std::vector<Hypothesis> all;
    for (const QuantizerVariant& one : quantizer_variants)
        all.push_back({one.name, "K15", one.cause, Cause::fault, quantizing, quantised(one.change)});
    for (const DecodeVariant& one : decode_variants)
        all.push_back({one.name, one.kind, one.cause, Cause::fault, decoding, decoded(one.change)});
    for (const OutputRounding& one : output_roundings)
        all.push_back({one.name,
                       "K15",
                       one.cause,
                       Cause::fault,
                       {},
                       one.of_fp32 ? with_fp32_outputs(one.round) : with_bf16_outputs(one.round)});
    return all;
}

}  // namespace touchstone
