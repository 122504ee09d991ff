// The model's quantisers and their records with every choice as data: hypotheses change one of them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "golden/hypotheses/hypothesis.h"
#include "reference/quantize.h"

namespace touchstone {

enum class CodeRounding : uint8_t { nearest_even, half_away, half_up, truncated };
enum class ScaleRounding : uint8_t {
    reference,     ///< e8m0 upwards, e4m3 to nearest
    floor,         ///< the power of two not above
    nearest,       ///< the nearest power of two, in the exponent
    power_of_two,  ///< the power of two not below, whatever the scale's type
    kept,          ///< no rounding: an fp32 scale
};

/// How a block of bf16 values becomes codes and a scale; of_quantizer gives the reference's.
struct QuantizerRule {
    bool fp8 = false;           ///< codes are e4m3, else e2m1
    bool e4m3_scale = false;    ///< else e8m0
    int64_t record_block = 32;  ///< channels per stored scale
    int64_t block = 32;         ///< channels whose maximum makes a scale; 0: the whole row
    float amax_floor = 0, range = 0;
    bool reciprocal_of_range = true;  ///< the maximum is multiplied with fp32(1 / range), else divided
    bool codes_by_reciprocal = false;
    ScaleRounding scale_rounding = ScaleRounding::reference;
    CodeRounding code_rounding = CodeRounding::nearest_even;
    float largest_code = 0;           ///< to which values saturate
    bool overflow_is_nan = false;     ///< beyond the largest code, e4m3 alone
    bool nan_dropped = false;         ///< a NaN's code is that of the largest value
    bool negative_zero_lost = false;  ///< what is or becomes -0 is +0
    bool subnormals_flushed = false;  ///< codes below the smallest normal are 0
    bool maximum_of_signed = false;   ///< of the values, not of their magnitudes
};

QuantizerRule of_quantizer(Quantizer quantizer);

/// Values of the codes and, per record_block channels, the scale that they stand under: code * scale is what
/// the block's own scale gives where blocks are smaller than those of the record.
struct CodesAndScales {
    std::vector<float> codes, scales;
};
CodesAndScales quantized(const QuantizerRule& rule, std::span<const Bf16> x, int64_t channels);

/// How a record's bytes are read; of_record gives the reference's.
struct DecodeRule {
    bool nibbles_swapped = false;
    float (*e4m3)(uint8_t byte) = nullptr;
    float (*e2m1)(uint8_t code) = nullptr;
    float (*scale)(uint8_t byte) = nullptr;
    /// Which of `count` scales block `block` gets.
    int64_t (*scale_index)(int64_t block, int64_t count) = nullptr;
    bool values_first = false;  ///< all rows' values, then all rows' scales: planar
};

/// The run of a quantize_* by a changed rule: values and records. `change` returns false where it makes no
/// sense.
Outputs with_quantizer(std::function<bool(QuantizerRule& rule)> change);
/// The run of a dequantize_* by a changed rule.
Outputs with_decoding(std::function<bool(DecodeRule& rule, Quantizer quantizer)> change);

/// The quantiser that the run of a quantize_* or dequantize_* is of.
std::optional<Quantizer> quantizer_of(const OperatorRun& run);

/// The values of both types' codes, by code.
float e4m3_value(uint8_t byte);
float e2m1_value(uint8_t code);

}  // namespace touchstone
