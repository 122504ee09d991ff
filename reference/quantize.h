// Quantisers of the KV cache: bf16 rows into pages of records and back. Q8, Q4i and Q4m are DeepSeek-V4.1's
// (spec: text model, section 2.3); the others are what serving engines write into the records of V4, V3.2 and
// the FP8 index key, under their own names because floors and roundings differ between them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "reference/layout/kv_page.h"
#include "reference/quantize_block.h"

namespace touchstone {

enum class Quantizer : uint8_t {
    q8,
    q4i,
    q4m,
    flashmla_v41,
    flashmla_v4,
    vllm_v4,
    flashmla_v32,
    vllm_v32,
    vllm_index_key,
    vllm_index_key_power_of_two,
    deepgemm_index_key,
    copy,
};

/// A row of the table of quantisers.
struct QuantizerInfo {
    Quantizer quantizer;
    std::string_view name;
    BlockRule rule;
    bool scales_before_tail;   ///< of the records it writes; tells V3.2's rows from index keys of one block
    std::string_view formula;  ///< of the scale
    std::string_view source;
};

/// Every quantiser, in the order of the enumeration.
std::span<const QuantizerInfo> quantizers();
const QuantizerInfo& quantizer_info(Quantizer quantizer);

/// Whether `quantizer` writes such records: same element, scale type, scale block and section order. Widths
/// decide nothing: 132 bytes are an FP8 index key of 128 channels or an FP8 row of V4.1's tiny configuration.
bool fits(Quantizer quantizer, const KvRecord& record);

/// Quantises and packs. `rows` is bf16 [n, channels + tail_channels]; row i goes to slot first_slot + i of
/// `pages`, a whole number of pages one after another (slot s is row s mod records of page s / records). Tail
/// channels are copied bit for bit. The records' padding and the page padding of every page touched are
/// zeroed; other slots keep their bytes. Rows are independent: results do not depend on n or on the thread
/// count. Throws UserError, with nothing written, when the quantiser does not fit or sizes do not match.
void quantize_rows(const KvPage& page, Quantizer quantizer, std::span<const Bf16> rows,
                   std::span<std::byte> pages, int64_t first_slot);

/// Unpacks and dequantises n rows into `out`, fp32 [n, channels + tail_channels]: f32(code) * scale (one fp32
/// rounding; exact in bf16 for what Q8, Q4i and Q4m wrote), tail channels widened. Every byte pattern is
/// defined: NaN codes and NaN scales give the canonical NaN, a record without scales has scale 1. Throws
/// UserError when sizes do not match.
void dequantize_rows(const KvPage& page, std::span<const std::byte> pages, int64_t first_slot, int64_t n,
                     std::span<float> out);

/// The codes of n rows as stored, without arithmetic: `codes` [n, channels], one to a byte (fp4: 0..15),
/// `scales` [n, scale_bytes] as stored, `tail` bf16 [n, tail_channels]. Throws UserError when sizes do not
/// match.
void unpack_codes(const KvPage& page, std::span<const std::byte> pages, int64_t first_slot, int64_t n,
                  std::span<uint8_t> codes, std::span<std::byte> scales, std::span<Bf16> tail);

/// The inverse of unpack_codes; zeroes padding as quantize_rows does. Throws UserError, with nothing written,
/// when sizes do not match or an fp4 code is above 15.
void pack_codes(const KvPage& page, int64_t n, std::span<const uint8_t> codes,
                std::span<const std::byte> scales, std::span<const Bf16> tail, std::span<std::byte> pages,
                int64_t first_slot);

/// What the functions above and their device twins check before they touch memory: that the page is valid,
/// that `pages_bytes` is a whole number of pages, and that slots first_slot .. first_slot + n - 1 exist.
void require_slots(const KvPage& page, int64_t pages_bytes, int64_t first_slot, int64_t n, const char* where);
/// The quantiser's rule for this record, whole-row blocks resolved. Throws UserError when it does not fit.
BlockRule rule_for(Quantizer quantizer, const KvRecord& record, const char* where);

}  // namespace touchstone
