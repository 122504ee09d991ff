// Compressed rows in pages.
#include "reference/kv_cache.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/fill.h"
#include "reference/numerics/random.h"

using namespace touchstone;

namespace {

struct Kind {
    const char* name;
    KvRecord record;
    Quantizer quantizer;
};

const Kind kinds[] = {{"Q4m, main rows", fp4_main_record(128), Quantizer::q4m},
                      {"Q4i, index keys", fp4_index_key_record(64), Quantizer::q4i},
                      {"Q8, window rows", fp8_record(128), Quantizer::q8}};

std::vector<Bf16> filled_rows(const Kind& kind, uint64_t seed, int64_t count) {
    std::vector<Bf16> rows(static_cast<size_t>(count * kind.record.channels));
    fill<Bf16>(Filler::trap, {seed}, rows);
    return rows;
}

std::span<const Bf16> part(const Kind& kind, std::span<const Bf16> rows, int64_t first, int64_t count) {
    return rows.subspan(static_cast<size_t>(first * kind.record.channels),
                        static_cast<size_t>(count * kind.record.channels));
}

KvCache filled_cache(const Kind& kind, std::span<const Bf16> rows) {
    KvCache cache(kind.record, kind.quantizer);
    cache.append(rows);
    return cache;
}

/// The bytes of one row, wherever they lie.
std::vector<std::byte> row_bytes(const KvCache& cache, int64_t row) {
    const KvPageMap map = cache.page().addresses();
    const KvRowOffsets at = map.row(row);
    std::vector<std::byte> bytes;
    const auto add = [&](int64_t offset, int64_t size) {
        const auto section = cache.pages().subspan(static_cast<size_t>(offset), static_cast<size_t>(size));
        bytes.insert(bytes.end(), section.begin(), section.end());
    };
    add(at.values, map.values.size_bytes);
    add(at.scales, map.scales.size_bytes);
    return bytes;
}

}  // namespace

TEST_CASE("kv cache: rows read back are the quantiser's view of the bf16 rows") {
    for (const Kind& kind : kinds) {
        INFO(kind.name);
        const int64_t count = 130, width = kind.record.channels;
        const std::vector<Bf16> rows = filled_rows(kind, 1, count);
        const KvCache cache = filled_cache(kind, rows);
        // The same quantiser into a page of another layout, which holds each row alone.
        const KvPage single{kind.record, KvPageLayout::per_token, 1, 1};
        for (int64_t row = 0; row < count; ++row) {
            std::vector<std::byte> bytes(static_cast<size_t>(single.page_bytes()));
            std::vector<float> expected(static_cast<size_t>(width)), read(expected.size());
            quantize_rows(single, kind.quantizer, part(kind, rows, row, 1), bytes, 0);
            dequantize_rows(single, bytes, 0, 1, expected);
            cache.read(row, read);
            REQUIRE(std::ranges::equal(std::as_bytes(std::span(read)), std::as_bytes(std::span(expected))));
            REQUIRE(row_bytes(cache, row) == bytes);
        }
    }
}

TEST_CASE("kv cache: however rows are cut into calls, the same pages; bytes never change once written") {
    for (const Kind& kind : kinds)
        for (uint64_t seed = 0; seed < 10; ++seed) {
            INFO(kind.name << ", seed " << seed);
            const int64_t count = 200;
            const std::vector<Bf16> rows = filled_rows(kind, 2, count);
            KvCache cache(kind.record, kind.quantizer);
            std::vector<std::vector<std::byte>> written;
            for (int64_t at = 0; at < count;) {
                const int64_t most = seed % 2 == 0 ? 5 : 100;
                const int64_t n = std::min<int64_t>(
                    count - at, RandomStream{seed, 3}.word(static_cast<uint64_t>(at)) % most + 1);
                cache.append(part(kind, rows, at, n));
                cache.append({});
                at += n;
                REQUIRE(cache.rows() == at);
                REQUIRE(std::ssize(cache.pages()) == (at + 63) / 64 * cache.page().page_bytes());
                for (int64_t row = 0; row < std::ssize(written); ++row)
                    REQUIRE(row_bytes(cache, row) == written[static_cast<size_t>(row)]);
                for (int64_t row = std::ssize(written); row < at; ++row)
                    written.push_back(row_bytes(cache, row));
            }
            CHECK(cache == filled_cache(kind, rows));
        }
}

TEST_CASE("kv cache: truncated is never having seen the rows") {
    for (const Kind& kind : kinds) {
        INFO(kind.name);
        const std::vector<Bf16> rows = filled_rows(kind, 4, 200), others = filled_rows(kind, 5, 70);
        for (const int64_t left : {0, 1, 2, 63, 64, 65, 127, 128, 129, 199, 200}) {
            CAPTURE(left);
            KvCache cache = filled_cache(kind, rows);
            cache.truncate(left);
            KvCache expected = filled_cache(kind, part(kind, rows, 0, left));
            REQUIRE(cache == expected);
            cache.append(others);
            expected.append(others);
            REQUIRE(cache == expected);
        }
    }
}

TEST_CASE("kv cache: restored pages are the same cache, whatever lies in bytes that no row owns") {
    for (const Kind& kind : kinds)
        for (const int64_t count : {0, 1, 63, 64, 65, 130}) {
            INFO(kind.name << ", " << count);
            const std::vector<Bf16> rows = filled_rows(kind, 6, count), more = filled_rows(kind, 7, 3);
            KvCache cache = filled_cache(kind, rows);
            std::vector<std::byte> pages(cache.pages().begin(), cache.pages().end());
            const KvPageMap map = cache.page().addresses();
            for (int64_t slot = count; slot < (count + 63) / 64 * 64; ++slot) {
                std::fill_n(pages.begin() + map.row(slot).values, map.values.size_bytes, std::byte{0xFF});
                std::fill_n(pages.begin() + map.row(slot).scales, map.scales.size_bytes, std::byte{0xFF});
            }
            KvCache loaded = filled_cache(kind, more);
            loaded.restore(count, pages);
            CHECK(loaded == cache);
            loaded.append(more);
            cache.append(more);
            CHECK(loaded == cache);
        }
}

TEST_CASE("kv cache: equality sees every byte of a row") {
    for (const Kind& kind : kinds) {
        const KvCache cache = filled_cache(kind, filled_rows(kind, 8, 64));
        for (size_t at = 0; at < cache.pages().size(); ++at) {
            std::vector<std::byte> pages(cache.pages().begin(), cache.pages().end());
            pages[at] ^= std::byte{0x40};
            KvCache other(kind.record, kind.quantizer);
            other.restore(64, pages);
            REQUIRE_FALSE(other == cache);
        }
    }
}

TEST_CASE("kv cache: refusals leave it as it was") {
    const Kind& kind = kinds[0];
    KvCache cache = filled_cache(kind, filled_rows(kind, 9, 70));
    const KvCache before = cache;
    std::vector<float> out(static_cast<size_t>(kind.record.channels));
    CHECK_THROWS_AS(cache.read(70, out), UserError);
    CHECK_THROWS_AS(cache.read(-1, out), UserError);
    CHECK_THROWS_AS(cache.append(std::vector<Bf16>(127)), UserError);
    CHECK_THROWS_AS(cache.truncate(71), UserError);
    CHECK_THROWS_AS(cache.truncate(-1), UserError);
    const std::vector<std::byte> pages(before.pages().begin(), before.pages().end());
    const std::span<const std::byte> all(pages);
    constexpr int64_t huge = std::numeric_limits<int64_t>::max();
    for (const int64_t rows : {int64_t{-1}, int64_t{0}, int64_t{64}, int64_t{129}, huge, huge / 64 * 64})
        CHECK_THROWS_AS(cache.restore(rows, all), UserError);
    CHECK_THROWS_AS(cache.restore(70, all.first(all.size() - 1)), UserError);
    CHECK_THROWS_AS(cache.restore(70, all.first(all.size() / 2)), UserError);
    CHECK(cache == before);
    CHECK_THROWS_AS(KvCache(kind.record, Quantizer::q8), UserError);
}

TEST_CASE("kv pages: offsets of rows beyond 2^31 bytes (K17)") {
    // A published failure: the first slot whose page of 149,760 bytes lies beyond 2^31.
    const KvPage v4{v4_record(512, 64), KvPageLayout::planar, 256, 576};
    REQUIRE(v4.page_bytes() == 149'760);
    CHECK(v4.addresses().row(14'339 * 256).values < (int64_t{1} << 31));
    CHECK(v4.addresses().row(14'340 * 256).values == 2'147'558'400);
    CHECK(v4.addresses().row(31'726'592 - 1).values == 123'931 * int64_t{149'760} + 255 * 576);

    for (const KvPageLayout layout : {KvPageLayout::planar, KvPageLayout::per_token})
        for (const KvRecord& record :
             {fp4_main_record(512), fp4_index_key_record(128), fp8_record(512), v32_record(512, 64)})
            for (const int64_t records : {1, 64, 256}) {
                const KvPage page{record, layout, records, 1};
                const KvPageMap map = page.addresses();
                for (const int64_t bytes :
                     {int64_t{1} << 31, int64_t{1} << 32, int64_t{1} << 40, int64_t{1} << 50}) {
                    const int64_t near = bytes / record.record_bytes();
                    for (const int64_t slot : {near - 1, near, near + 1, near + 255}) {
                        // Whole pages, then the row as it lies in the first page.
                        const int64_t first = slot / records * page.page_bytes();
                        const KvRowOffsets at = map.row(slot);
                        const int64_t in_page = slot % records;
                        REQUIRE(at.values == first + page.values_offset(in_page));
                        REQUIRE(at.tail == first + page.tail_offset(in_page));
                        REQUIRE(at.scales == first + page.scales_offset(in_page));
                        REQUIRE(map.page_of(slot) == first);
                    }
                }
            }
}
