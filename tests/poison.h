// Bytes that nobody may read, made unmistakable.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "reference/kv_cache.h"

namespace touchstone {

/// Every bit of the slots of `cache` for which `which` holds, also of slots behind the last row: codes of the
/// largest value, scales of NaN.
inline void poison(KvCache& cache, const std::function<bool(int64_t row)>& which) {
    std::vector<std::byte> pages(cache.pages().begin(), cache.pages().end());
    const KvPageMap map = cache.page().addresses();
    const int64_t slots = std::ssize(pages) / map.page_bytes * map.records;
    for (int64_t slot = 0; slot < slots; ++slot) {
        if (!which(slot)) continue;
        const KvRowOffsets at = map.row(slot);
        std::fill_n(pages.data() + at.values, map.values.size_bytes, std::byte{0xFF});
        std::fill_n(pages.data() + at.tail, map.tail.size_bytes, std::byte{0xFF});
        std::fill_n(pages.data() + at.scales, map.scales.size_bytes, std::byte{0xFF});
    }
    cache.restore(cache.rows(), pages);
}

}  // namespace touchstone
