// Compressed rows and index keys of one source, in the packed records of layout/ (spec: text model, 2.3 and
// 5.5).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "reference/layout/kv_page.h"
#include "reference/numerics/small_float.h"
#include "reference/quantize.h"

namespace touchstone {

/// Records of a page: a power of two, so that pages of 64 columns fill whole panels of a product.
inline constexpr int64_t cache_page_records = 64;

/// Rows 0 .. rows() - 1 of one source, planar pages one after another. A row's bytes never change once it is
/// appended; truncate and append again is the only way to another row.
class KvCache {
  public:
    /// Throws UserError when the quantiser does not write such records.
    KvCache(const KvRecord& record, Quantizer quantizer);

    int64_t rows() const { return rows_; }
    const KvPage& page() const { return page_; }
    std::span<const std::byte> pages() const { return pages_; }

    /// Quantises bf16 rows [n, channels] behind the last one.
    void append(std::span<const Bf16> rows);
    /// Row `row`, dequantised, into `out` [channels].
    void read(int64_t row, std::span<float> out) const;
    /// Forgets rows from `rows` on and zeroes their bytes.
    void truncate(int64_t rows);
    /// Replaces everything: for state that is read back from disk. `pages` holds whole pages, no more of them
    /// than `rows` fill; bytes that no row owns are not taken over. Throws UserError, with nothing changed,
    /// when it does not.
    void restore(int64_t rows, std::span<const std::byte> pages);

    friend bool operator==(const KvCache&, const KvCache&) = default;

  private:
    KvPage page_;
    Quantizer quantizer_;
    int64_t rows_ = 0;
    std::vector<std::byte> pages_;
};

}  // namespace touchstone
