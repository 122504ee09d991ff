#include "reference/layout/kv_record.h"

#include <fmt/format.h>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

const char* element_name(KvElement element) {
    switch (element) {
        case KvElement::none: return "none";
        case KvElement::fp8_e4m3: return "e4m3";
        case KvElement::fp4_e2m1: return "e2m1";
        case KvElement::int8: return "int8";
    }
    return "?";
}

const char* scale_name(KvScale scale) {
    switch (scale) {
        case KvScale::none: return "none";
        case KvScale::e8m0: return "e8m0";
        case KvScale::e4m3: return "e4m3";
        case KvScale::fp16: return "fp16";
        case KvScale::fp32: return "fp32";
    }
    return "?";
}

}  // namespace

int element_bits(KvElement element) {
    switch (element) {
        case KvElement::none: return 0;
        case KvElement::fp4_e2m1: return 4;
        case KvElement::fp8_e4m3:
        case KvElement::int8: return 8;
    }
    return 0;
}

int scale_bytes(KvScale scale) {
    switch (scale) {
        case KvScale::none: return 0;
        case KvScale::e8m0:
        case KvScale::e4m3: return 1;
        case KvScale::fp16: return 2;
        case KvScale::fp32: return 4;
    }
    return 0;
}

int64_t KvRecord::value_bytes() const {
    return channels * element_bits(element) / 8;
}

int64_t KvRecord::scale_count() const {
    return scale_block == 0 ? 0 : channels / scale_block;
}

int64_t KvRecord::scale_bytes() const {
    return scale_count() * touchstone::scale_bytes(scale);
}

std::string KvRecord::describe() const {
    std::string text;
    if (channels > 0) text = fmt::format("{} {}", channels, element_name(element));
    if (scale_block > 0) text += fmt::format(" /{} {}", scale_block, scale_name(scale));
    if (tail_channels > 0) text += fmt::format("{}{} bf16", text.empty() ? "" : " + ", tail_channels);
    if (padding_bytes > 0) text += fmt::format(" + {} pad", padding_bytes);
    return text.empty() ? "empty" : text;
}

void KvRecord::validate(const std::string& where) const {
    const auto refuse = [&](const char* what, const char* expected) {
        throw UserError({fmt::format("KV record \"{}\": {}", describe(), what), where, expected, ""});
    };
    constexpr int64_t max_channels = int64_t{1} << 24;  // keeps every byte count far from overflow
    if (channels < 0 || tail_channels < 0 || padding_bytes < 0 || scale_block < 0)
        refuse("negative count", "counts of 0 or more");
    if (channels > max_channels || tail_channels > max_channels || padding_bytes > max_channels)
        refuse("too many channels", "at most 16777216");
    if ((channels > 0) != (element != KvElement::none))
        refuse("channels and element type disagree", "both or neither");
    if ((scale_block > 0) != (scale != KvScale::none))
        refuse("scale block and scale type disagree", "both or neither");
    if (element == KvElement::fp4_e2m1 && channels % 2 != 0)
        refuse("an odd number of fp4 channels", "an even number: two share a byte");
    if (scale_block > 0 && channels % scale_block != 0)
        refuse("channels are not whole scale blocks", "channels divisible by the scale block");
}

KvRecord fp8_record(int64_t head_dim) {
    return {.channels = head_dim, .element = KvElement::fp8_e4m3, .scale_block = 32, .scale = KvScale::e8m0};
}

KvRecord fp4_main_record(int64_t head_dim) {
    return {.channels = head_dim, .element = KvElement::fp4_e2m1, .scale_block = 16, .scale = KvScale::e4m3};
}

KvRecord fp4_index_key_record(int64_t index_head_dim) {
    return {.channels = index_head_dim,
            .element = KvElement::fp4_e2m1,
            .scale_block = 32,
            .scale = KvScale::e8m0};
}

KvRecord v4_record(int64_t head_dim, int64_t rope_head_dim) {
    KvRecord record{.channels = head_dim - rope_head_dim,
                    .element = KvElement::fp8_e4m3,
                    .scale_block = 64,
                    .scale = KvScale::e8m0,
                    .tail_channels = rope_head_dim};
    record.padding_bytes = (8 - record.scale_bytes() % 8) % 8;
    return record;
}

KvRecord fp8_index_key_record(int64_t index_head_dim) {
    return {.channels = index_head_dim,
            .element = KvElement::fp8_e4m3,
            .scale_block = index_head_dim,
            .scale = KvScale::fp32};
}

KvRecord v32_record(int64_t kv_lora_rank, int64_t rope_head_dim) {
    return {.channels = kv_lora_rank,
            .element = KvElement::fp8_e4m3,
            .scale_block = 128,
            .scale = KvScale::fp32,
            .tail_channels = rope_head_dim,
            .scales_before_tail = true};
}

KvRecord int8_index_key_record(int64_t index_head_dim) {
    return {.channels = index_head_dim,
            .element = KvElement::int8,
            .scale_block = index_head_dim,
            .scale = KvScale::fp16};
}

KvRecord bf16_record(int64_t channels) {
    return {.tail_channels = channels};
}

KvRecord fp8_unscaled_record(int64_t channels) {
    return {.channels = channels, .element = KvElement::fp8_e4m3};
}

}  // namespace touchstone
