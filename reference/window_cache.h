// The sliding window of one layer: the last rows, in a ring of packed records (spec: text model, 4.2;
// numerics contract, section 7).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "reference/layout/kv_page.h"
#include "reference/numerics/small_float.h"
#include "reference/quantize.h"

namespace touchstone {

/// Rows by position: position p in slot p mod (W + spare) of a ring. The spare slots let drafted tokens be
/// taken back: without them the rows that those overwrote would be lost. They belong neither to the saved nor
/// to the compared state, which is the last W rows.
class WindowCache {
  public:
    /// Throws UserError when the quantiser does not write such records, for a window of no tokens and for
    /// negative spare tokens.
    WindowCache(const KvRecord& record, Quantizer quantizer, int64_t window_tokens, int64_t spare_tokens);

    /// Positions first() .. end() - 1 are held, at most W of them; equal when nothing is.
    int64_t first() const;
    int64_t end() const { return end_; }
    int64_t window_tokens() const { return window_tokens_; }

    /// Quantises bf16 rows [n, channels] of positions position .. position + n - 1. A gap after end() empties
    /// the ring first: what lies before it is no neighbour of what follows. No rows change nothing. Throws
    /// UserError for a position below end().
    void append(int64_t position, std::span<const Bf16> rows);
    /// A held position's row, dequantised, into `out` [channels]. Throws UserError for another position.
    void read(int64_t position, std::span<float> out) const;
    /// Whether the window as it stood at `end` is still there: not when rows of it have been overwritten
    /// (more than spare_tokens are taken back), nor when a gap or a restored state has left them behind.
    bool can_truncate(int64_t end) const;
    /// Forgets positions from `end` on, if any are held. Throws UserError, with nothing changed, when
    /// can_truncate says no.
    void truncate(int64_t end);
    /// As a prefix cache does, which keeps no windows. Positions before `end` count as passed, and are no
    /// loss: what is truncated below `end` is an empty window too.
    void clear(int64_t end);

    /// The window as it is accounted for and saved: W records, planar, position p in slot p mod W, slots that
    /// hold nothing zero.
    std::vector<std::byte> saved() const;
    /// What saved() gave; slots that hold nothing are not read. Throws UserError, with nothing changed, when
    /// sizes or positions do not fit.
    void restore(int64_t first, int64_t end, std::span<const std::byte> saved);

    /// The same positions with the same bytes.
    friend bool operator==(const WindowCache& a, const WindowCache& b) {
        return a.first() == b.first() && a.end_ == b.end_ && a.saved() == b.saved();
    }

  private:
    int64_t slots() const { return page_.records; }

    KvPage page_;
    Quantizer quantizer_;
    int64_t window_tokens_;
    int64_t held_from_ = 0, end_ = 0;  ///< spare rows included
    int64_t begun_at_ = 0;             ///< rows before it never were part of this window
    int64_t empty_end_ = 0;            ///< where the window ended before that, empty
    int64_t lost_end_ = -1;            ///< a window that ended here or before cannot come back
    std::vector<std::byte> ring_;
};

}  // namespace touchstone
