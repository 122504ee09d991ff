// The ring of a sliding window, against a plain list of rows.
#include "reference/window_cache.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/kv_cache.h"
#include "reference/numerics/fill.h"
#include "reference/numerics/random.h"

using namespace touchstone;

namespace {

constexpr int64_t width = 64;
const KvRecord record = fp8_record(width);

using Rows = std::vector<Bf16>;

Rows filled_rows(uint64_t seed, int64_t count) {
    Rows rows(static_cast<size_t>(count * width));
    fill<Bf16>(Filler::trap, {seed}, rows);
    return rows;
}

/// A row as it comes back from a cache: Q8 there and back.
std::vector<float> stored(std::span<const Bf16> row) {
    KvCache cache(record, Quantizer::q8);
    cache.append(row);
    std::vector<float> out(width);
    cache.read(0, out);
    return out;
}

std::vector<uint32_t> bits(std::span<const float> values) {
    std::vector<uint32_t> result;
    for (const float value : values) result.push_back(float_bits(value));
    return result;
}

/// The window of W rows as the words of the header say, with every window that ever was, by its end.
class PlainWindow {
  public:
    PlainWindow(int64_t window_tokens, int64_t spare_tokens)
        : window_(window_tokens), slots_(window_tokens + spare_tokens) {}

    using Window = std::map<int64_t, std::vector<float>>;

    int64_t end() const { return windows_.rbegin()->first; }
    const Window& held() const { return windows_.rbegin()->second; }

    void append(int64_t position, std::span<const Bf16> rows) {
        if (rows.empty()) return;
        if (position > end() && !held().empty()) {  // what was held is gone, and cannot come back
            lost_ = position;
            windows_[position] = {};
        }
        for (size_t i = 0; i < rows.size(); i += width, ++position) {
            Window next = held();
            next[position] = stored(rows.subspan(i, width));
            if (std::ssize(next) > window_) next.erase(next.begin());
            windows_[position + 1] = std::move(next);
            newest_[position % slots_] = position;
        }
    }
    bool can_truncate(int64_t end) const {
        if (end >= this->end()) return true;
        if (end < 0) return false;
        const Window& window = std::prev(windows_.upper_bound(end))->second;
        return end > lost_ && std::ranges::all_of(window, [&](const auto& row) {
                   return newest_.at(row.first % slots_) == row.first;
               });
    }
    void truncate(int64_t end) {
        if (end < this->end()) windows_.erase(windows_.upper_bound(end), windows_.end());
    }
    void clear(int64_t end) {
        windows_.clear();
        for (int64_t at = 0; at <= end; ++at) windows_[at] = {};
        lost_ = -1;
    }

  private:
    int64_t window_, slots_, lost_ = -1;
    std::map<int64_t, Window> windows_{{0, {}}};
    std::map<int64_t, int64_t> newest_;  ///< position last written to a slot
};

void require_same(const WindowCache& cache, const PlainWindow& plain) {
    REQUIRE(cache.end() == plain.end());
    REQUIRE(cache.end() - cache.first() == std::ssize(plain.held()));
    std::vector<float> out(width);
    for (const auto& [position, row] : plain.held()) {
        cache.read(position, out);
        REQUIRE(bits(out) == bits(row));
    }
    REQUIRE_THROWS_AS(cache.read(cache.end(), out), UserError);
    REQUIRE_THROWS_AS(cache.read(-1, out), UserError);
}

}  // namespace

TEST_CASE("window: any order of appending, gaps, taking back and clearing keeps the last W rows") {
    struct Shape {
        int64_t window, spare;
    };
    for (const Shape shape : {Shape{1, 0}, Shape{1, 3}, Shape{5, 0}, Shape{5, 2}, Shape{12, 8}}) {
        for (uint64_t seed = 0; seed < 40; ++seed) {
            CAPTURE(shape.window);
            CAPTURE(shape.spare);
            CAPTURE(seed);
            const RandomStream random{seed, 1};
            WindowCache cache(record, Quantizer::q8, shape.window, shape.spare);
            PlainWindow plain(shape.window, shape.spare);
            for (uint64_t step = 0; step < 30; ++step) {
                const PhiloxBlock r = random.block(step);
                const uint32_t what = r.words[0] % 16;
                const int64_t slots = shape.window + shape.spare;
                if (what == 0) {
                    const int64_t end = plain.end() + r.words[1] % 3;
                    cache.clear(end);
                    plain.clear(end);
                } else if (what < 6) {
                    const int64_t end = plain.end() - static_cast<int64_t>(r.words[1] % (slots + 2));
                    REQUIRE(cache.can_truncate(end) == plain.can_truncate(end));
                    if (!cache.can_truncate(end)) {
                        REQUIRE_THROWS_AS(cache.truncate(end), UserError);
                    } else {
                        cache.truncate(end);
                        plain.truncate(end);
                    }
                } else {
                    const int64_t gap = what == 6 ? 1 + r.words[2] % 4 : 0;
                    const int64_t most = what < 9 ? 3 * slots : 4;
                    const Rows rows = filled_rows(1000 * seed + step, r.words[1] % (most + 1));
                    const int64_t position = plain.end() + gap;
                    cache.append(position, rows);
                    plain.append(position, rows);
                }
                require_same(cache, plain);
            }
        }
    }
}

TEST_CASE("window: position p lies in slot p mod W of what is saved, and nothing else is there") {
    constexpr int64_t window = 5;
    for (const int64_t count : {0, 1, 4, 5, 6, 9, 10, 11, 27}) {
        CAPTURE(count);
        WindowCache cache(record, Quantizer::q8, window, 3);
        const Rows rows = filled_rows(2, count);
        cache.append(0, rows);
        const KvPage page{record, KvPageLayout::planar, window, 1};
        std::vector<std::byte> expected(static_cast<size_t>(page.page_bytes()));
        for (int64_t p = std::max<int64_t>(count - window, 0); p < count; ++p)
            quantize_rows(page, Quantizer::q8, std::span(rows).subspan(static_cast<size_t>(p * width), width),
                          expected, p % window);
        CHECK(cache.saved() == expected);
    }
}

TEST_CASE("window: however rows are cut into calls, the same window") {
    const Rows rows = filled_rows(3, 50);
    WindowCache whole(record, Quantizer::q8, 12, 8);
    whole.append(0, rows);
    for (uint64_t seed = 0; seed < 20; ++seed) {
        WindowCache cut(record, Quantizer::q8, 12, seed % 9);
        for (int64_t at = 0; at < 50;) {
            const int64_t n =
                std::min<int64_t>(50 - at, 1 + RandomStream{seed, 2}.word(static_cast<uint64_t>(at)) % 30);
            cut.append(
                at, std::span(rows).subspan(static_cast<size_t>(at * width), static_cast<size_t>(n * width)));
            at += n;
        }
        INFO("seed " << seed);
        CHECK(cut == whole);
    }
}

TEST_CASE("window: what is saved and restored goes on with the same rows, poison in free slots or not") {
    for (const int64_t first : {0, 3, 40})
        for (const int64_t count : {0, 1, 11, 12, 13, 30}) {
            CAPTURE(first);
            CAPTURE(count);
            WindowCache cache(record, Quantizer::q8, 12, 8);
            cache.append(first, filled_rows(4, count));
            if (count == 0) cache.clear(first);
            std::vector<std::byte> saved = cache.saved();

            // A ring full of NaN codes, and NaN in the slots that hold nothing.
            WindowCache loaded(record, Quantizer::q8, 12, 8);
            Rows nan(20 * width, Bf16{0x7FC0});
            loaded.append(0, nan);
            const KvPageMap map = KvPage{record, KvPageLayout::planar, 12, 1}.addresses();
            for (int64_t slot = 0; slot < 12; ++slot) {
                bool held = false;
                for (int64_t p = cache.first(); p < cache.end(); ++p) held = held || p % 12 == slot;
                if (!held) {
                    std::fill_n(saved.begin() + map.row(slot).values, map.values.size_bytes, std::byte{0x7F});
                    std::fill_n(saved.begin() + map.row(slot).scales, map.scales.size_bytes, std::byte{0xFF});
                }
            }
            loaded.restore(cache.first(), cache.end(), saved);
            CHECK(loaded == cache);
            CHECK(loaded.saved() == cache.saved());
            const Rows more = filled_rows(5, 7);
            loaded.append(cache.end(), more);
            cache.append(cache.end(), more);
            CHECK(loaded == cache);
            // What was appended since can be taken back; what was lost before saving cannot.
            loaded.truncate(cache.end() - 7);
            cache.truncate(cache.end() - 7);
            CHECK(loaded == cache);
            if (loaded.first() > 1) CHECK_FALSE(loaded.can_truncate(loaded.first() - 1));
        }
}

TEST_CASE("window: a window that a gap has left behind does not come back empty") {
    WindowCache cache(record, Quantizer::q8, 12, 8);
    cache.append(0, filled_rows(6, 5));
    cache.append(7, filled_rows(7, 2));
    CHECK(cache.first() == 7);
    CHECK(cache.can_truncate(8));
    for (const int64_t end : {7, 6, 5, 3}) {
        CHECK_FALSE(cache.can_truncate(end));
        const WindowCache before = cache;
        CHECK_THROWS_AS(cache.truncate(end), UserError);
        CHECK(cache == before);
    }
    // Before an empty one, there is nothing to lose: it ends where it ended.
    WindowCache empty(record, Quantizer::q8, 12, 8);
    empty.clear(2);
    const WindowCache before = empty;
    empty.append(7, filled_rows(7, 2));
    empty.truncate(6);
    CHECK(empty == before);
    CHECK(empty.end() == 2);
}

TEST_CASE("window: equality sees every byte that is held") {
    WindowCache cache(record, Quantizer::q8, 5, 2);
    cache.append(0, filled_rows(8, 9));
    const std::vector<std::byte> saved = cache.saved();
    for (size_t at = 0; at < saved.size(); ++at) {
        std::vector<std::byte> changed = saved;
        changed[at] ^= std::byte{0x10};
        WindowCache other(record, Quantizer::q8, 5, 2);
        other.restore(4, 9, changed);
        REQUIRE_FALSE(other == cache);
    }
}

TEST_CASE("window: refusals leave it as it was") {
    WindowCache cache(record, Quantizer::q8, 12, 8);
    cache.append(0, filled_rows(9, 30));
    const WindowCache before = cache;
    CHECK_THROWS_AS(cache.append(29, filled_rows(1, 1)), UserError);
    CHECK_THROWS_AS(cache.append(30, Rows(width - 1)), UserError);
    CHECK_THROWS_AS(cache.truncate(21), UserError);
    CHECK_THROWS_AS(cache.truncate(-1), UserError);
    const std::vector<std::byte> saved = cache.saved();
    CHECK_THROWS_AS(cache.restore(18, 30, std::span(saved).first(saved.size() - 1)), UserError);
    CHECK_THROWS_AS(cache.restore(17, 30, saved), UserError);
    CHECK_THROWS_AS(cache.restore(31, 30, saved), UserError);
    CHECK_THROWS_AS(cache.restore(-1, 3, saved), UserError);
    CHECK(cache == before);
    cache.truncate(22);
    CHECK(cache.end() == 22);
    CHECK_THROWS_AS(WindowCache(record, Quantizer::q8, 0, 8), UserError);
    CHECK_THROWS_AS(WindowCache(record, Quantizer::q8, 12, -1), UserError);
    CHECK_THROWS_AS(WindowCache(record, Quantizer::q8, int64_t{1} << 62, int64_t{1} << 62), UserError);
    CHECK_THROWS_AS(WindowCache(record, Quantizer::q4m, 12, 8), UserError);
}
