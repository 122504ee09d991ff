// KV records: how one cached row is stored. A record is a geometry, not a constant, so that the tiny
// configuration runs the same code as the real model.
#pragma once

#include <cstdint>
#include <string>

namespace touchstone {

/// Storage type of the quantised channels of a record.
enum class KvElement : uint8_t { none, fp8_e4m3, fp4_e2m1, int8 };

/// Storage type of the block scales of a record.
enum class KvScale : uint8_t { none, e8m0, e4m3, fp16, fp32 };

/// One cached row: `channels` quantised values with one scale per `scale_block` channels, then
/// `tail_channels` bf16 values that are not quantised, then `padding_bytes` of zeros.
///
/// Bytes of a record: the values (fp4: two to a byte, the even channel in the low nibble), the tail, the
/// scales, the padding. `scales_before_tail` says that a per-token row stores scales ahead of the tail
/// (V3.2's 656-byte row); it changes no size.
struct KvRecord {
    int64_t channels = 0;
    KvElement element = KvElement::none;
    int64_t scale_block = 0;  ///< channels per scale; 0 when there are no scales
    KvScale scale = KvScale::none;
    int64_t tail_channels = 0;
    int64_t padding_bytes = 0;
    bool scales_before_tail = false;

    int64_t value_bytes() const;
    int64_t scale_count() const;
    int64_t scale_bytes() const;
    int64_t tail_bytes() const { return 2 * tail_channels; }
    int64_t record_bytes() const { return value_bytes() + tail_bytes() + scale_bytes() + padding_bytes; }

    /// e.g. "512 e2m1 /16 e4m3" or "448 e4m3 /64 e8m0 + 64 bf16 + 1 pad": a name that carries block and
    /// scale type, so that two records of one width (V4.1 FP8 and V3.2 without RoPE, both 528) differ.
    std::string describe() const;

    /// Refuses geometries that cannot be stored: negative counts, channels not a multiple of the block,
    /// an odd number of fp4 channels, scales without a block. Throws UserError naming `where`.
    void validate(const std::string& where) const;

    friend bool operator==(const KvRecord&, const KvRecord&) = default;
};

/// Bits of one element; bytes of one scale.
int element_bits(KvElement element);
int scale_bytes(KvScale scale);

// The records of the field (spec/memory 2.1, gpu_anchors 1.2), as functions of the model's widths.

/// FP8 window and FP8 main row of V4.1: e4m3, one e8m0 per 32, RoPE channels included. 512 -> 528 bytes.
KvRecord fp8_record(int64_t head_dim);
/// FP4 main row of V4.1: e2m1, one e4m3 per 16, RoPE channels included. 512 -> 288 bytes.
KvRecord fp4_main_record(int64_t head_dim);
/// FP4 index key of V4.1: e2m1, one e8m0 per 32. 128 -> 68 bytes.
KvRecord fp4_index_key_record(int64_t index_head_dim);
/// V4's window and main row ("fp8_ds_mla"): e4m3 with one e8m0 per 64 on the channels without RoPE, the RoPE
/// channels in bf16, padding so that the scale row is a multiple of 8 bytes. (512, 64) -> 584 bytes.
KvRecord v4_record(int64_t head_dim, int64_t rope_head_dim);
/// FP8 index key of V4 and V3.2: e4m3 with one fp32 scale for the row. 128 -> 132 bytes.
KvRecord fp8_index_key_record(int64_t index_head_dim);
/// V3.2's main row: e4m3 with one fp32 scale per 128, then RoPE channels in bf16. (512, 64) -> 656 bytes.
KvRecord v32_record(int64_t kv_lora_rank, int64_t rope_head_dim);
/// int8 index key with one fp16 scale, as one Ascend engine stores it. 128 -> 130 bytes.
KvRecord int8_index_key_record(int64_t index_head_dim);
/// Plain bf16 row of `channels`. 512 -> 1024 bytes.
KvRecord bf16_record(int64_t channels);
/// Plain fp8 row of `channels` with no stored scale (per-tensor scale outside the cache).
KvRecord fp8_unscaled_record(int64_t channels);

}  // namespace touchstone
