#include "reference/window_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

[[noreturn]] void refuse(std::string what, std::string where, std::string expected) {
    throw UserError({std::move(what), std::move(where), std::move(expected), ""});
}

int64_t ring_slots(int64_t window_tokens, int64_t spare_tokens) {
    constexpr int64_t most = int64_t{1} << 30;  // of both together, records of a page
    if (window_tokens < 1 || window_tokens > most || spare_tokens < 0 || spare_tokens > most)
        refuse(fmt::format("a window of {} tokens and {} spare ones", window_tokens, spare_tokens),
               "WindowCache", fmt::format("1 to {} and 0 to {}", most, most));
    return window_tokens + spare_tokens;
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
    : page_{record, KvPageLayout::planar, ring_slots(window_tokens, spare_tokens), 1},
      quantizer_(quantizer),
      window_tokens_(window_tokens) {
    rule_for(quantizer, record, "WindowCache");
    ring_.resize(static_cast<size_t>(page_.page_bytes()));
}

int64_t WindowCache::first() const {
    return std::max(held_from_, end_ - window_tokens_);
}

void WindowCache::append(int64_t position, std::span<const Bf16> rows) {
    const int64_t width = page_.record.channels, n = std::ssize(rows) / width;
    if (position < end_ || n * width != std::ssize(rows))
        refuse(fmt::format("{} values for positions from {}", rows.size(), position), "WindowCache::append",
               fmt::format("rows of {} channels from position {} on", width, end_));
    if (n == 0) return;
    if (position > end_) {
        empty_end_ = end_;
        lost_end_ = first() < end_ ? position : lost_end_;
        held_from_ = begun_at_ = end_ = position;
    }
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
    if (end >= end_) return true;
    if (end <= begun_at_) return end > lost_end_;
    return std::max(end - window_tokens_, begun_at_) >= held_from_;
}

void WindowCache::truncate(int64_t end) {
    if (!can_truncate(end))
        refuse(fmt::format("truncating a window of positions {} to {} to {} tokens", first(), end_, end),
               "WindowCache::truncate", "a window whose rows are still there");
    if (end >= end_) return;
    end_ = end;
    if (end <= begun_at_) held_from_ = begun_at_ = empty_end_ = end_ = std::min(end, empty_end_);
}

void WindowCache::clear(int64_t end) {
    held_from_ = begun_at_ = empty_end_ = end_ = end;
    lost_end_ = -1;
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
    // A full window may go back further than its rows; of a short one it is not known what came before.
    begun_at_ = empty_end_ = end - first == window_tokens_ ? 0 : first;
    lost_end_ = begun_at_ == 0 || first == end ? begun_at_ - 1 : begun_at_;
}

}  // namespace touchstone
