// KV pages: where each byte of a page of records lies. Writer and reader share the one address function here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "reference/layout/kv_record.h"

namespace touchstone {

/// planar:    all data rows (values, then tail) of the page, then all scale rows (scales, then padding).
/// per_token: each record whole, one after another: values, tail, scales, padding, or
///            values, scales, tail, padding when the record says `scales_before_tail`.
enum class KvPageLayout : uint8_t { planar, per_token };

/// A page of `records` rows. `page_bytes()` is rounded up to `alignment_bytes`; what is beyond the rows is page
/// padding, written as zero (V4's planar pages are multiples of 576).
struct KvPage {
    KvRecord record;
    KvPageLayout layout = KvPageLayout::planar;
    int64_t records = 0;
    int64_t alignment_bytes = 1;

    int64_t payload_bytes() const { return records * record.record_bytes(); }
    int64_t page_bytes() const;

    /// Byte offset of the sections of row `slot` inside the page; 0 <= slot < records.
    int64_t values_offset(int64_t slot) const;
    int64_t tail_offset(int64_t slot) const;
    int64_t scales_offset(int64_t slot) const;
    int64_t padding_offset(int64_t slot) const;

    /// Throws UserError for an invalid record, records < 0 or alignment < 1.
    void validate(const std::string& where) const;
};

/// What a byte of a page is for.
enum class KvSection : uint8_t { values, tail, scales, record_padding, page_padding };

struct KvSpan {
    KvSection section;
    int64_t slot;  ///< -1 for page padding
    int64_t offset_bytes;
    int64_t size_bytes;
};

/// Every byte of the page exactly once, ascending by offset.
std::vector<KvSpan> page_map(const KvPage& page);

/// Rewrites a page in another layout. Both pages describe the same record and number of records; page padding of
/// `destination` is zeroed. Sizes must be page_bytes() of each. Throws UserError when they do not match.
void convert_page(const KvPage& from, std::span<const std::byte> source, const KvPage& to,
                  std::span<std::byte> destination);

}  // namespace touchstone
