#include "reference/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

[[noreturn]] void refuse(std::string what, std::string where, std::string expected) {
    throw UserError({std::move(what), std::move(where), std::move(expected), ""});
}

/// Zeroes rows [first, last) of pages: bytes that no row owns are zero, so equal rows make equal caches.
void zero_rows(const KvPage& page, std::span<std::byte> pages, int64_t first, int64_t last) {
    const KvPageMap map = page.addresses();
    for (int64_t row = first; row < last; ++row) {
        const KvRowOffsets at = map.row(row);
        std::fill_n(pages.data() + at.values, map.values.size_bytes, std::byte{0});
        std::fill_n(pages.data() + at.tail, map.tail.size_bytes, std::byte{0});
        std::fill_n(pages.data() + at.scales, map.scales.size_bytes, std::byte{0});
    }
}

int64_t pages_for(const KvPage& page, int64_t rows) {
    return rows / page.records + (rows % page.records == 0 ? 0 : 1);  // no sum that could leave 64 bits
}

}  // namespace

KvCache::KvCache(const KvRecord& record, Quantizer quantizer)
    : page_{record, KvPageLayout::planar, cache_page_records, 1}, quantizer_(quantizer) {
    rule_for(quantizer, record, "KvCache");
}

void KvCache::append(std::span<const Bf16> rows) {
    const int64_t n = std::ssize(rows) / page_.record.channels;
    if (n * page_.record.channels != std::ssize(rows))
        refuse(fmt::format("{} values of new rows", rows.size()), "KvCache::append",
               fmt::format("rows of {} channels", page_.record.channels));
    pages_.resize(static_cast<size_t>(pages_for(page_, rows_ + n) * page_.page_bytes()));
    quantize_rows(page_, quantizer_, rows, pages_, rows_);
    rows_ += n;
}

void KvCache::read(int64_t row, std::span<float> out) const {
    if (row < 0 || row >= rows_)
        refuse(fmt::format("row {}", row), "KvCache::read", fmt::format("0 to {}", rows_ - 1));
    dequantize_rows(page_, pages_, row, 1, out);
}

void KvCache::truncate(int64_t rows) {
    if (rows < 0 || rows > rows_)
        refuse(fmt::format("truncating to {} rows", rows), "KvCache::truncate",
               fmt::format("0 to {}", rows_));
    zero_rows(page_, pages_, rows, rows_);
    pages_.resize(static_cast<size_t>(pages_for(page_, rows) * page_.page_bytes()));
    rows_ = rows;
}

void KvCache::restore(int64_t rows, std::span<const std::byte> pages) {
    const int64_t size = std::ssize(pages), page_bytes = page_.page_bytes();
    if (rows < 0 || size % page_bytes != 0 || size / page_bytes != pages_for(page_, rows))
        refuse(fmt::format("{} bytes for {} rows", size, rows), "KvCache::restore",
               fmt::format("{} rows to a page of {} bytes, as many pages as the rows fill", page_.records,
                           page_bytes));
    pages_.assign(pages.begin(), pages.end());
    zero_rows(page_, pages_, rows, size / page_bytes * page_.records);
    rows_ = rows;
}

}  // namespace touchstone
