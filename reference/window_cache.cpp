#include "reference/window_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

[[noreturn]] void refuse(std::string what, std::string where, std::string expected) {
    throw UserError({std::move(what), std::move(where), std::move(expected), ""});
}

/// Copies a record between pages of one record type.
void copy_record(const KvPage& from, const std::byte* source, int64_t from_slot, const KvPage& to,
                 std::byte* destination, int64_t to_slot) {
    const KvPageMap map = from.addresses();
    const KvRowOffsets a = map.row(from_slot), b = to.addresses().row(to_slot);
    std::copy_n(source + a.values, map.values.size_bytes, destination + b.values);
    std::copy_n(source + a.tail, map.tail.size_bytes, destination + b.tail);
    std::copy_n(source + a.scales, map.scales.size_bytes, destination + b.scales);
}

}  // namespace

WindowCache::WindowCache(const KvRecord& record, Quantizer quantizer, int64_t window_tokens,
                         int64_t spare_tokens)
    : page_{record, KvPageLayout::planar, window_tokens + spare_tokens, 1},
      quantizer_(quantizer),
      window_tokens_(window_tokens),
      ring_(static_cast<size_t>(page_.page_bytes())) {
    rule_for(quantizer, record, "WindowCache");
}

int64_t WindowCache::first() const {
    return std::max(held_from_, end_ - window_tokens_);
}

void WindowCache::append(int64_t position, std::span<const Bf16> rows) {
    const int64_t width = page_.record.channels, n = std::ssize(rows) / width;
    if (position < end_ || n * width != std::ssize(rows))
        refuse(fmt::format("{} values for positions from {}", rows.size(), position), "WindowCache::append",
               fmt::format("rows of {} channels from position {} on", width, end_));
    if (position > end_) clear(position);
    // Of more rows than there are slots only the last ones stay.
    for (int64_t i = std::max<int64_t>(n - slots(), 0); i < n;) {
        const int64_t slot = (position + i) % slots(), run = std::min(n - i, slots() - slot);
        quantize_rows(page_, quantizer_,
                      rows.subspan(static_cast<size_t>(i * width), static_cast<size_t>(run * width)), ring_,
                      slot);
        i += run;
    }
    end_ = position + n;
    held_from_ = std::max(held_from_, end_ - slots());
}

void WindowCache::read(int64_t position, std::span<float> out) const {
    if (position < held_from_ || position >= end_)
        refuse(fmt::format("position {}", position), "WindowCache::read",
               fmt::format("{} to {}", held_from_, end_ - 1));
    dequantize_rows(page_, ring_, position % slots(), 1, out);
}

bool WindowCache::can_truncate(int64_t end) const {
    if (begun_at_ >= end) return end <= end_;
    return end <= end_ && std::max(end - window_tokens_, begun_at_) >= held_from_;
}

void WindowCache::truncate(int64_t end) {
    if (begun_at_ >= end && end <= end_) return clear(end);
    if (!can_truncate(end))
        refuse(fmt::format("truncating the window to {} tokens", end), "WindowCache::truncate",
               fmt::format("at most {}, and no rows that have been overwritten", end_));
    end_ = end;
}

void WindowCache::clear(int64_t end) {
    held_from_ = begun_at_ = end_ = end;
}

std::vector<std::byte> WindowCache::saved() const {
    const KvPage page{page_.record, KvPageLayout::planar, window_tokens_, 1};
    std::vector<std::byte> bytes(static_cast<size_t>(page.page_bytes()));
    for (int64_t position = first(); position < end_; ++position)
        copy_record(page_, ring_.data(), position % slots(), page, bytes.data(), position % window_tokens_);
    return bytes;
}

void WindowCache::restore(int64_t first, int64_t end, std::span<const std::byte> saved) {
    const KvPage page{page_.record, KvPageLayout::planar, window_tokens_, 1};
    if (std::ssize(saved) != page.page_bytes() || first < 0 || first > end || end - first > window_tokens_)
        refuse(fmt::format("a window of {} bytes, positions {} to {}", saved.size(), first, end),
               "WindowCache::restore",
               fmt::format("{} bytes, at most {} positions", page.page_bytes(), window_tokens_));
    for (int64_t position = first; position < end; ++position)
        copy_record(page, saved.data(), position % window_tokens_, page_, ring_.data(), position % slots());
    held_from_ = first;
    end_ = end;
    begun_at_ = end - first < window_tokens_ ? first : 0;  // a full window may go back further
}

}  // namespace touchstone
