// Packed records as somebody else might have written and read them, with faults to choose from.
#pragma once

#include "tests/foreign_numbers.h"

namespace foreign {

/// What the three formats differ in.
struct RecordFormat {
    bool fp8, e4m3_scale;
    size_t block;
    float floor, range;
};

inline RecordFormat record_format(const std::string& operator_name) {
    if (operator_name.ends_with("q8")) return {true, false, 32, 1e-4f, 448};
    if (operator_name.ends_with("q4i")) return {false, false, 32, 6 * std::ldexp(1.0f, -126), 6};
    return {false, true, 16, 6 * std::ldexp(1.0f, -9), 6};
}

inline RecordFormat with_fault(RecordFormat format, const Fault& fault) {
    if (fault.is("floor_1e_4")) format.floor = 1e-4f;
    if (fault.is("floor_1e_12")) format.floor = 1e-12f;
    if (fault.is("range_240")) format.range = 240;
    if (fault.is("range_400")) format.range = 400;
    return format;
}

/// A block's scale: its stored byte and its value.
struct Scale {
    uint8_t byte;
    float value;
};

inline Scale scale_of(const RecordFormat& format, float largest, const Fault& fault) {
    largest = std::max(largest, format.floor);
    if (format.e4m3_scale && !fault.is("scale_power_of_two")) {
        const uint8_t byte = nearest_code(largest / 6, true);
        return {byte, e4m3(byte)};
    }
    const float quotient = format.e4m3_scale ? largest / 6 : largest * (1.0f / format.range);
    int exponent = exponent_above(quotient);
    if (fault.is("scale_floored")) exponent = std::ilogb(quotient);
    if (fault.is("scale_nearest")) exponent = static_cast<int>(std::lround(std::log2(quotient)));
    const float value = std::ldexp(1.0f, exponent);
    const uint8_t byte = format.e4m3_scale ? nearest_code(value, true) : static_cast<uint8_t>(exponent + 127);
    return {byte, format.e4m3_scale ? e4m3(byte) : value};
}

inline uint8_t code_of(const RecordFormat& format, float x, float scale, const Fault& fault) {
    float scaled = fault.is("reciprocal") ? x * (1.0f / scale) : x / scale;
    if (fault.is("range_240")) scaled = std::clamp(scaled, -240.0f, 240.0f);
    if (fault.is("nan_dropped") && std::isnan(scaled)) return format.fp8 ? 0x7E : 7;
    uint8_t code = nearest_code(scaled, format.fp8, fault.is("ties_away") ? Ties::away : Ties::even);
    const uint8_t sign = format.fp8 ? 0x80 : 8;
    if (fault.is("negative_zero_lost") && (code & ~sign) == 0) code = 0;
    if (fault.is("subnormals_flushed") && (code & 0x7F) < 8) code &= sign;
    if (fault.is("truncated") && std::abs(format.fp8 ? e4m3(code) : e2m1(code)) > std::abs(scaled)) --code;
    return code;
}

/// quantize_q8, quantize_q4i, quantize_q4m.
inline touchstone::TensorMap quantize(const touchstone::ParsedCase& parsed,
                                      const touchstone::TensorMap& inputs, const Fault& fault) {
    const RecordFormat format = with_fault(record_format(parsed.info->name), fault);
    const std::vector<float> x = bf16_tensor(inputs, "x");
    const auto width = static_cast<size_t>(parsed.parameters["channels"]);
    const size_t rows = x.size() / width, value_bytes = format.fp8 ? width : width / 2,
                 record_bytes = value_bytes + width / format.block;
    const size_t shared = fault.is("block_doubled") ? 2 : fault.is("block_128") ? 128 / format.block : 1;
    std::vector<float> values(x.size());
    std::vector<uint8_t> records(rows * record_bytes);
    for (size_t i = 0; i < x.size(); ++i) {
        const size_t first = i / (shared * format.block) * shared * format.block;
        float largest = 0;
        for (size_t j = first; j < first + shared * format.block; ++j)
            if (!std::isnan(x[j]))
                largest = std::max(largest, fault.is("signed_maximum") ? x[j] : std::abs(x[j]));
        const Scale scale = scale_of(format, largest, fault);
        const uint8_t code = code_of(format, x[i], scale.value, fault);
        const size_t row = i / width, channel = i % width;
        values[i] = (format.fp8 ? e4m3(code) : e2m1(code)) * scale.value;
        if (std::isnan(values[i])) values[i] = float_of_bits(0x7FFFFFFF);
        const bool high = (channel % 2 == 1) != fault.is("nibbles_swapped");
        uint8_t* record = records.data() + row * record_bytes;
        uint8_t* place = fault.is("planar") ? records.data() + row * value_bytes
                                            : record + (fault.is("scales_first") ? width / format.block : 0);
        if (format.fp8)
            place[channel] = code;
        else
            place[channel / 2] = static_cast<uint8_t>(place[channel / 2] | code << (high ? 4 : 0));
        uint8_t* scales = fault.is("planar")
                              ? records.data() + rows * value_bytes + row * (width / format.block)
                              : record + (fault.is("scales_first") ? 0 : value_bytes);
        scales[channel / format.block] = scale.byte;
    }
    if (fault.is("byte_flipped")) records[record_bytes + 9] ^= 0x20;
    if (fault.is("rows_1_and_2_swapped"))
        std::swap_ranges(records.begin() + static_cast<int64_t>(record_bytes),
                         records.begin() + static_cast<int64_t>(2 * record_bytes),
                         records.begin() + static_cast<int64_t>(2 * record_bytes));
    touchstone::TensorMap outputs = outputs_of(parsed);
    put_f32(outputs, "values", values);
    std::ranges::copy(records, outputs.find("records")->second.view<uint8_t>().begin());
    return outputs;
}

inline float decoded_scale(const RecordFormat& format, uint8_t byte, const Fault& fault) {
    if (fault.is("scale_as_number")) return byte;
    if (fault.is("scale_unused")) return 1;
    if (fault.is("scale_bias_128")) return e8m0(byte) / 2;
    if (fault.is("other_scale_type")) return format.e4m3_scale ? e8m0(byte) : e4m3(byte);
    if (fault.is("scale_byte_0_is_zero") && byte == 0) return 0;
    return format.e4m3_scale ? e4m3(byte) : e8m0(byte);
}

/// dequantize_q8, dequantize_q4i, dequantize_q4m.
inline touchstone::TensorMap dequantize(const touchstone::ParsedCase& parsed,
                                        const touchstone::TensorMap& inputs, const Fault& fault) {
    const RecordFormat format = record_format(parsed.info->name);
    const std::vector<uint8_t> records = byte_tensor(inputs, "records");
    const auto width = static_cast<size_t>(parsed.parameters["channels"]),
               rows = static_cast<size_t>(parsed.parameters["rows"]);
    const size_t value_bytes = format.fp8 ? width : width / 2, scale_bytes = width / format.block;
    std::vector<float> values(rows * width);
    for (size_t i = 0; i < values.size(); ++i) {
        const size_t row = i / width, channel = i % width;
        const bool planar = fault.is("planar");
        const uint8_t* codes = records.data() + row * (planar ? value_bytes : value_bytes + scale_bytes);
        const uint8_t* scales =
            planar ? records.data() + rows * value_bytes + row * scale_bytes : codes + value_bytes;
        const bool high = (channel % 2 == 1) != fault.is("nibbles_swapped");
        float code = 0;
        if (format.fp8) {
            code = e4m3(codes[channel]);
            if (std::isnan(code) && fault.is("nan_code_is_480"))
                code = codes[channel] & 0x80 ? -480.0f : 480.0f;
            if (fault.is("fnuz")) {
                const bool largest = (codes[channel] & 0x7F) == 0x7F;
                code = largest ? (codes[channel] & 0x80 ? -240.0f : 240.0f) : code / 2;
                if (codes[channel] == 0x80) code = std::nanf("");
            }
        } else {
            code = e2m1(high ? codes[channel / 2] >> 4 : codes[channel / 2] & 15);
        }
        size_t block = channel / format.block;
        if (fault.is("scale_of_next_block")) block = std::min(block + 1, scale_bytes - 1);
        if (fault.is("scale_of_128")) block = block / 4;
        values[i] = code * decoded_scale(format, scales[block], fault);
        if (std::isnan(values[i])) values[i] = float_of_bits(0x7FFFFFFF);
    }
    touchstone::TensorMap outputs = outputs_of(parsed);
    put_f32(outputs, "values", values);
    return outputs;
}

}  // namespace foreign
