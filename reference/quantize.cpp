#include "reference/quantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

constexpr float amax_floor_fp8 = 1e-4f, amax_floor_index = 0x6p-126f, amax_floor_main = 0x6p-9f;
constexpr float smallest_normal = 0x1p-126f;
constexpr float reciprocal_448 = 1.0f / 448.0f, reciprocal_6 = 1.0f / 6.0f;
static_assert(float_bits(amax_floor_fp8) == 0x38D1B717);
static_assert(float_bits(reciprocal_448) == 0x3B124925 && float_bits(reciprocal_6) == 0x3E2AAAAB);

constexpr BlockRule fp8_rule(KvScale scale, int64_t block) {
    return {.element = KvElement::fp8_e4m3, .scale = scale, .block = block, .range = 448};
}

constexpr BlockRule q8_rule() {
    BlockRule rule = fp8_rule(KvScale::e8m0, 32);
    rule.amax_floor = amax_floor_fp8;
    rule.range_reciprocal = reciprocal_448;
    return rule;
}

/// FlashMLA floors the quotient, where vLLM floors the maximum: 448 times further up.
constexpr BlockRule flashmla_rule(KvScale scale, int64_t block) {
    BlockRule rule = fp8_rule(scale, block);
    rule.scale_floor = 1e-4f;
    rule.power_of_two = scale == KvScale::fp32;
    return rule;
}

constexpr BlockRule floored_maximum_rule(KvScale scale, int64_t block, bool power_of_two) {
    BlockRule rule = fp8_rule(scale, block);
    rule.amax_floor = amax_floor_fp8;
    rule.power_of_two = power_of_two;
    return rule;
}

constexpr BlockRule vllm_v32_rule() {
    BlockRule rule = fp8_rule(KvScale::fp32, 128);
    rule.scale_floor = smallest_normal;
    return rule;
}

constexpr BlockRule deepgemm_rule() {
    BlockRule rule = floored_maximum_rule(KvScale::fp32, 0, false);
    rule.codes_by_reciprocal = true;
    return rule;
}

constexpr BlockRule q4i_rule() {
    return {.element = KvElement::fp4_e2m1,
            .scale = KvScale::e8m0,
            .block = 32,
            .amax_floor = amax_floor_index,
            .range = 6,
            .range_reciprocal = reciprocal_6};
}

constexpr BlockRule q4m_rule() {
    return {.element = KvElement::fp4_e2m1,
            .scale = KvScale::e4m3,
            .block = 16,
            .amax_floor = amax_floor_main,
            .range = 6};
}

// The peers' powers of two are written there as exp2(ceil(log2 q)) in fp32. For the quotients of bf16 maxima,
// which are powers of two or at least 2^-8 away from one, that equals the ceil on the bits used here.
constexpr std::array<QuantizerInfo, 12> all_quantizers{{
    {Quantizer::q8, "q8", q8_rule(), false, "2^ceil(log2(max(amax, 1e-4) * fp32(1/448)))",
     "DeepSeek-V4.1-Flash inference code: GEMM inputs and window KV"},
    {Quantizer::q4i, "q4i", q4i_rule(), false, "2^ceil(log2(max(amax, 6*2^-126) * fp32(1/6)))",
     "DeepSeek-V4.1-Flash inference code: indexer queries and keys"},
    {Quantizer::q4m, "q4m", q4m_rule(), false, "e4m3(max(amax, 6*2^-9) / 6), saturating",
     "DeepSeek-V4.1-Flash inference code: compressed main KV"},
    {Quantizer::flashmla_v41, "flashmla-v41", flashmla_rule(KvScale::e8m0, 32), false,
     "2^ceil(log2(max(amax / 448, 1e-4)))", "FlashMLA tests/quant.py, V4.1 FP8 layout"},
    {Quantizer::flashmla_v4, "flashmla-v4", flashmla_rule(KvScale::e8m0, 64), false,
     "2^ceil(log2(max(amax / 448, 1e-4)))", "FlashMLA tests/quant.py at 520fec6, MODEL1_FP8Sparse"},
    {Quantizer::vllm_v4, "vllm-v4", floored_maximum_rule(KvScale::e8m0, 64, false), false,
     "2^ceil(log2(max(amax, 1e-4) / 448))",
     "vLLM vllm/models/deepseek_v4/common/ops/cache_utils.py at 03dc564, quantize_and_insert_k_kernel"},
    {Quantizer::flashmla_v32, "flashmla-v32", flashmla_rule(KvScale::fp32, 128), true,
     "2^ceil(log2(max(amax / 448, 1e-4))), stored as fp32",
     "FlashMLA tests/quant.py at 520fec6, V32_FP8Sparse"},
    {Quantizer::vllm_v32, "vllm-v32", vllm_v32_rule(), true, "max(amax / 448, 2^-126)",
     "vLLM csrc/cache_kernels.cu, concat_and_cache_ds_mla_kernel"},
    {Quantizer::vllm_index_key, "vllm-index-key", floored_maximum_rule(KvScale::fp32, 0, false), false,
     "max(amax, 1e-4) / 448",
     "vLLM csrc/cache_kernels.cu, indexer_k_quant_and_cache_kernel without use_ue8m0"},
    {Quantizer::vllm_index_key_power_of_two, "vllm-index-key-power-of-two",
     floored_maximum_rule(KvScale::fp32, 0, true), false,
     "2^ceil(log2(max(amax, 1e-4) / 448)), stored as fp32",
     "vLLM csrc/cache_kernels.cu, indexer_k_quant_and_cache_kernel with use_ue8m0"},
    {Quantizer::deepgemm_index_key, "deepgemm-index-key", deepgemm_rule(), false,
     "max(amax, 1e-4) / 448; codes from x * (1 / scale)",
     "DeepGEMM tests/test_attention.py, kv_cache_cast_to_fp8"},
    {Quantizer::copy, "copy", BlockRule{}, false, "none: bf16 rows as they are", "bf16 caches"},
}};

constexpr bool in_order() {
    for (size_t i = 0; i < all_quantizers.size(); ++i)
        if (size_t(all_quantizers[i].quantizer) != i) return false;
    return true;
}
static_assert(in_order(), "the table is indexed by the enumeration");

int64_t row_width(const KvRecord& record) {
    return record.channels + record.tail_channels;
}

void require_count(int64_t got, int64_t n, int64_t width, const char* what, const char* where) {
    if (got == n * width) return;
    throw UserError({fmt::format("{} has {} elements", what, got), where,
                     fmt::format("{}: {} rows of {}", n * width, n, width), ""});
}

void require_sections(const KvRecord& record, int64_t n, int64_t codes, int64_t scales, int64_t tail,
                      const char* where) {
    require_count(codes, n, record.channels, "codes", where);
    require_count(scales, n, record.scale_bytes(), "scales", where);
    require_count(tail, n, record.tail_channels, "tail", where);
}

/// Zeroes the padding of n rows and of the pages that they touch.
void zero_padding(const KvPageMap& map, std::byte* pages, int64_t first_slot, int64_t n) {
    const auto zero = [](std::byte* bytes, int64_t size) { std::fill_n(bytes, size, std::byte{0}); };
    for (int64_t slot = first_slot; slot < first_slot + n; ++slot) {
        zero(pages + map.row(slot).record_padding, map.record_padding.size_bytes);
        if (slot == first_slot || slot % map.records == 0)
            zero(pages + map.page_of(slot) + map.payload_bytes, map.page_bytes - map.payload_bytes);
    }
}

/// Codes by the upper 16 bits of a float, whose lowest also stands for all bits below. That decides every
/// rounding: e4m3, e2m1 and their midpoints have at most 4 significant bits, the index has 7 and the sticky
/// bit.
using CodeTable = std::array<uint8_t, 65536>;

constexpr uint16_t table_index(float x) {
    const uint32_t bits = float_bits(x);
    return uint16_t(bits >> 16 | uint32_t((bits & 0xFFFF) != 0));
}

const CodeTable& code_table(KvElement element) {
    const auto tabulate = [](auto code) {
        CodeTable codes;
        for (uint32_t i = 0; i < codes.size(); ++i) codes[i] = code(float_from_bits(i << 16)).bits;
        return codes;
    };
    static const CodeTable e4m3 = tabulate(e4m3_from_float_saturating);
    static const CodeTable e2m1 = tabulate(e2m1_from_float_saturating);
    return element == KvElement::fp4_e2m1 ? e2m1 : e4m3;
}

constexpr int64_t chunk = 128;  // channels at a time: the buffers of a block stay in registers and L1

/// What quantize_block computes, with the rounding looked up: divisions vectorise, look-ups are one load.
void quantize_row_block(const BlockRule& rule, const CodeTable& table, const Bf16* x, std::byte* codes,
                        std::byte* scale_bytes) {
    const BlockScale scale = block_scale(rule, block_maximum(x, rule.block));
    store_scale(rule, scale, scale_bytes);
    std::array<uint16_t, chunk> index;
    for (int64_t first = 0; first < rule.block; first += chunk) {
        const int64_t count = std::min(chunk, rule.block - first);
        for (int64_t i = 0; i < count; ++i)
            index[size_t(i)] = table_index(scaled_value(x[first + i], scale.value, rule.codes_by_reciprocal));
        if (rule.element == KvElement::fp8_e4m3) {
            for (int64_t i = 0; i < count; ++i) codes[first + i] = std::byte{table[index[size_t(i)]]};
        } else {
            for (int64_t i = 0; i < count; i += 2)
                codes[(first + i) / 2] =
                    std::byte(table[index[size_t(i)]] | table[index[size_t(i) + 1]] << 4);
        }
    }
    if (rule.element == KvElement::fp4_e2m1 && is_nan(scale.value))
        std::fill_n(codes, rule.block / 2, std::byte{0});  // no NaN code: the scale says it for the block
}

void quantize_row(const BlockRule& rule, const KvRecord& record, const Bf16* x, KvRowOffsets at,
                  std::byte* pages) {
    const int64_t block_bytes = rule.block * element_bits(rule.element) / 8;
    const int64_t blocks = record.scale_count(), stored_bytes = scale_bytes(rule.scale);
    const CodeTable& table = code_table(rule.element);
    for (int64_t b = 0; b < blocks; ++b)
        quantize_row_block(rule, table, x + b * rule.block, pages + at.values + b * block_bytes,
                           pages + at.scales + b * stored_bytes);
    if (record.tail_channels > 0)
        std::memcpy(pages + at.tail, x + record.channels, size_t(record.tail_bytes()));
}

/// Values of the channels that a byte holds: one, or two for fp4 (even, odd).
using ValueTable = std::array<std::array<float, 2>, 256>;

const ValueTable& value_table(KvElement element) {
    const auto tabulate = [](KvElement e) {
        ValueTable values;
        for (size_t i = 0; i < values.size(); ++i) {
            const std::byte byte{uint8_t(i)};
            values[i] = {code_value(e, &byte, 0), e == KvElement::fp4_e2m1 ? code_value(e, &byte, 1) : 0};
        }
        return values;
    };
    static const std::array<ValueTable, 4> tables{tabulate(KvElement::none), tabulate(KvElement::fp8_e4m3),
                                                  tabulate(KvElement::fp4_e2m1), tabulate(KvElement::int8)};
    return tables[size_t(element)];
}

void dequantize_row(const KvRecord& record, const std::byte* pages, KvRowOffsets at, float* out) {
    const ValueTable& table = value_table(record.element);
    const std::byte* values = pages + at.values;
    if (record.element == KvElement::fp4_e2m1)
        for (int64_t i = 0; i < record.channels / 2; ++i)
            std::memcpy(out + 2 * i, table[size_t(values[i])].data(), 2 * sizeof(float));
    else
        for (int64_t i = 0; i < record.channels; ++i) out[i] = table[size_t(values[i])][0];

    const int64_t block = record.scale_block > 0 ? record.scale_block : record.channels;
    const int64_t stored_bytes = scale_bytes(record.scale);
    for (int64_t first = 0; first < record.channels; first += block) {
        const float scale = stored_scale(record.scale, pages + at.scales + first / block * stored_bytes);
        for (int64_t i = first; i < first + block; ++i) out[i] = dequantized(out[i], scale);
    }
    for (int64_t i = 0; i < record.tail_channels; ++i) {
        Bf16 x;
        std::memcpy(&x, pages + at.tail + 2 * i, sizeof x);  // rows of odd width are not aligned
        out[record.channels + i] = to_float(x);
    }
}

constexpr int64_t parallel_rows = 64;  // fewer rows cost less than waking a thread

}  // namespace

std::span<const QuantizerInfo> quantizers() {
    return all_quantizers;
}

const QuantizerInfo& quantizer_info(Quantizer quantizer) {
    return all_quantizers.at(size_t(quantizer));
}

bool fits(Quantizer quantizer, const KvRecord& record) {
    const QuantizerInfo& info = quantizer_info(quantizer);
    const BlockRule& rule = info.rule;
    const int64_t block = rule.scale != KvScale::none && rule.block == 0 ? record.channels : rule.block;
    return record.element == rule.element && record.scale == rule.scale && record.scale_block == block &&
           record.scales_before_tail == info.scales_before_tail;
}

BlockRule rule_for(Quantizer quantizer, const KvRecord& record, const char* where) {
    BlockRule rule = quantizer_info(quantizer).rule;
    rule.block = record.scale_block;
    if (fits(quantizer, record)) return rule;
    std::string fitting;
    for (const QuantizerInfo& info : all_quantizers)
        if (fits(info.quantizer, record))
            fitting += fmt::format("{}{}", fitting.empty() ? "" : ", ", info.name);
    throw UserError(
        {fmt::format("quantiser {} for the record \"{}\"", quantizer_info(quantizer).name, record.describe()),
         where, fitting.empty() ? "no quantiser writes such records" : "one of: " + fitting, ""});
}

void require_slots(const KvPage& page, int64_t pages_bytes, int64_t first_slot, int64_t n,
                   const char* where) {
    page.validate(where);
    const int64_t page_bytes = page.page_bytes();
    if (page_bytes == 0 ? pages_bytes != 0 : pages_bytes % page_bytes != 0)
        throw UserError({fmt::format("{} bytes of pages", pages_bytes), where,
                         fmt::format("a whole number of pages of {} bytes", page_bytes), ""});
    const int64_t slots = page_bytes == 0 ? 0 : pages_bytes / page_bytes * page.records;
    if (first_slot < 0 || n < 0 || first_slot > slots || n > slots - first_slot)
        throw UserError({fmt::format("{} rows from slot {}", n, first_slot), where,
                         fmt::format("slots inside 0 to {}", slots), ""});
}

void quantize_rows(const KvPage& page, Quantizer quantizer, std::span<const Bf16> rows,
                   std::span<std::byte> pages, int64_t first_slot) {
    const char* where = "quantize_rows";
    page.validate(where);
    const BlockRule rule = rule_for(quantizer, page.record, where);
    const int64_t width = row_width(page.record), n = width == 0 ? 0 : std::ssize(rows) / width;
    require_count(std::ssize(rows), n, width, "rows", where);
    require_slots(page, std::ssize(pages), first_slot, n, where);

    const KvPageMap map = page.addresses();
#pragma omp parallel for schedule(static) if (n >= parallel_rows)
    for (int64_t i = 0; i < n; ++i)
        quantize_row(rule, page.record, rows.data() + i * width, map.row(first_slot + i), pages.data());
    zero_padding(map, pages.data(), first_slot, n);
}

void dequantize_rows(const KvPage& page, std::span<const std::byte> pages, int64_t first_slot, int64_t n,
                     std::span<float> out) {
    const char* where = "dequantize_rows";
    require_slots(page, std::ssize(pages), first_slot, n, where);
    const int64_t width = row_width(page.record);
    require_count(std::ssize(out), n, width, "out", where);

    const KvPageMap map = page.addresses();
#pragma omp parallel for schedule(static) if (n >= parallel_rows)
    for (int64_t i = 0; i < n; ++i)
        dequantize_row(page.record, pages.data(), map.row(first_slot + i), out.data() + i * width);
}

void unpack_codes(const KvPage& page, std::span<const std::byte> pages, int64_t first_slot, int64_t n,
                  std::span<uint8_t> codes, std::span<std::byte> scales, std::span<Bf16> tail) {
    const char* where = "unpack_codes";
    const KvRecord& record = page.record;
    require_slots(page, std::ssize(pages), first_slot, n, where);
    require_sections(record, n, std::ssize(codes), std::ssize(scales), std::ssize(tail), where);

    const KvPageMap map = page.addresses();
    const bool nibbles = record.element == KvElement::fp4_e2m1;
    for (int64_t i = 0; i < n; ++i) {
        const KvRowOffsets at = map.row(first_slot + i);
        uint8_t* row_codes = codes.data() + i * record.channels;
        for (int64_t c = 0; c < record.channels; ++c) {
            const uint8_t stored = static_cast<uint8_t>(pages[size_t(at.values + (nibbles ? c / 2 : c))]);
            const E2m1 nibble = c % 2 == 0 ? even_e2m1(stored) : odd_e2m1(stored);
            row_codes[c] = nibbles ? nibble.bits : stored;
        }
        std::copy_n(pages.data() + at.scales, record.scale_bytes(), scales.data() + i * record.scale_bytes());
        if (record.tail_channels > 0)
            std::memcpy(tail.data() + i * record.tail_channels, pages.data() + at.tail,
                        size_t(record.tail_bytes()));
    }
}

void pack_codes(const KvPage& page, int64_t n, std::span<const uint8_t> codes,
                std::span<const std::byte> scales, std::span<const Bf16> tail, std::span<std::byte> pages,
                int64_t first_slot) {
    const char* where = "pack_codes";
    const KvRecord& record = page.record;
    require_slots(page, std::ssize(pages), first_slot, n, where);
    require_sections(record, n, std::ssize(codes), std::ssize(scales), std::ssize(tail), where);
    const bool nibbles = record.element == KvElement::fp4_e2m1;
    const auto wide = std::ranges::find_if(codes, [&](uint8_t code) { return nibbles && code > 15; });
    if (wide != codes.end()) throw UserError({fmt::format("fp4 code {}", *wide), where, "codes 0 to 15", ""});

    const KvPageMap map = page.addresses();
    for (int64_t i = 0; i < n; ++i) {
        const KvRowOffsets at = map.row(first_slot + i);
        const uint8_t* row_codes = codes.data() + i * record.channels;
        for (int64_t v = 0; v < record.value_bytes(); ++v) {
            const uint8_t packed =
                nibbles ? pack_e2m1({row_codes[2 * v]}, {row_codes[2 * v + 1]}) : row_codes[v];
            pages[size_t(at.values + v)] = static_cast<std::byte>(packed);
        }
        std::copy_n(scales.data() + i * record.scale_bytes(), record.scale_bytes(), pages.data() + at.scales);
        if (record.tail_channels > 0)
            std::memcpy(pages.data() + at.tail, tail.data() + i * record.tail_channels,
                        size_t(record.tail_bytes()));
    }
    zero_padding(map, pages.data(), first_slot, n);
}

}  // namespace touchstone
