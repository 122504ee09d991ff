// KV pages: where each byte of a page of records lies. Writer and reader, host and device, share the one
// address function here (KvSectionAddress::at): a planar writer with an interleaved reader gives plausible
// rows and scales read from value bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "reference/layout/kv_record.h"
#include "reference/numerics/host_device.h"

namespace touchstone {

/// planar:    all data rows (values, then tail) of the page, then all scale rows (scales, then padding).
/// per_token: each record whole, one after another: values, tail, scales, padding, or
///            values, scales, tail, padding when the record says `scales_before_tail`.
enum class KvPageLayout : uint8_t { planar, per_token };

/// Where one section of every row lies in its page: row `slot` at first_bytes + slot * stride_bytes.
struct KvSectionAddress {
    int64_t first_bytes = 0;
    int64_t stride_bytes = 0;
    int64_t size_bytes = 0;  ///< of one row's section; 0 when the record has none

    TOUCHSTONE_HOST_DEVICE constexpr int64_t at(int64_t slot) const {
        return first_bytes + slot * stride_bytes;
    }
};

/// Where the sections of one row lie in a run of pages, as offsets from the first page.
struct KvRowOffsets {
    int64_t values, tail, scales, record_padding;
};

/// The four sections of a page's rows and what lies behind them. A plain value: kernels take it by copy.
struct KvPageMap {
    KvSectionAddress values{}, tail{}, scales{}, record_padding{};
    int64_t records = 0;
    int64_t payload_bytes = 0;  ///< page padding runs from here to page_bytes
    int64_t page_bytes = 0;

    /// Offset of the page that holds `slot`, slots counted through pages that lie one after another.
    TOUCHSTONE_HOST_DEVICE constexpr int64_t page_of(int64_t slot) const {
        return slot / records * page_bytes;
    }
    TOUCHSTONE_HOST_DEVICE constexpr KvRowOffsets row(int64_t slot) const {
        const int64_t page = page_of(slot), in_page = slot % records;
        return {page + values.at(in_page), page + tail.at(in_page), page + scales.at(in_page),
                page + record_padding.at(in_page)};
    }
};

/// A page of `records` rows. `page_bytes()` is rounded up to `alignment_bytes`; what is beyond the rows is
/// page padding, written as zero (V4's planar pages are multiples of 576).
struct KvPage {
    KvRecord record;
    KvPageLayout layout = KvPageLayout::planar;
    int64_t records = 0;
    int64_t alignment_bytes = 1;

    int64_t payload_bytes() const { return records * record.record_bytes(); }
    int64_t page_bytes() const;

    /// The addresses of this page; every reader and writer of pages goes through them.
    KvPageMap addresses() const;

    /// Byte offset of the sections of row `slot` inside the page; 0 <= slot < records.
    int64_t values_offset(int64_t slot) const { return addresses().values.at(slot); }
    int64_t tail_offset(int64_t slot) const { return addresses().tail.at(slot); }
    int64_t scales_offset(int64_t slot) const { return addresses().scales.at(slot); }
    int64_t padding_offset(int64_t slot) const { return addresses().record_padding.at(slot); }

    /// Throws UserError for an invalid record, records or alignment out of range (0 to 2^31, 1 to 2^31).
    void validate(const std::string& where) const;

    friend bool operator==(const KvPage&, const KvPage&) = default;
};

/// What a byte of a page is for.
enum class KvSection : uint8_t { values, tail, scales, record_padding, page_padding };

struct KvSpan {
    KvSection section;
    int64_t slot;  ///< -1 for page padding
    int64_t offset_bytes;
    int64_t size_bytes;
};

/// Every byte of the page exactly once, ascending by offset; no empty spans. Throws UserError for an invalid
/// page.
std::vector<KvSpan> page_map(const KvPage& page);

/// Rewrites a page in another layout. Both pages describe the same record (its geometry, not only its width)
/// and number of records; record and page padding of `destination` are zeroed. Sizes must be page_bytes() of
/// each. Throws UserError when they do not match; nothing is written then.
void convert_page(const KvPage& from, std::span<const std::byte> source, const KvPage& to,
                  std::span<std::byte> destination);

}  // namespace touchstone
