#include "reference/layout/kv_page.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <vector>

#include "reference/io/user_error.h"
#include "tests/quantize_cases.h"

using namespace touchstone;

namespace {

std::vector<std::byte> random_bytes(uint64_t seed, int64_t size) {
    std::vector<std::byte> bytes(static_cast<size_t>(size));
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = std::byte(random_bits(seed, i) & 0xFF);
    return bytes;
}

/// Pages of the shared cases, without the quantisers.
struct NamedPage {
    std::string name;
    KvPage page;
};

std::vector<NamedPage> pages() {
    std::vector<NamedPage> result;
    for (const QuantizeCase& c : quantize_cases()) result.push_back({c.name, c.page});
    return result;
}

void zero_padding(const KvPage& page, std::vector<std::byte>& bytes) {
    for (const KvSpan& span : page_map(page))
        if (span.section == KvSection::record_padding || span.section == KvSection::page_padding)
            std::fill_n(bytes.begin() + span.offset_bytes, span.size_bytes, std::byte{0});
}

}  // namespace

TEST_CASE("kv_page: page sizes of the real model with their alignments") {
    const KvPageLayout planar = KvPageLayout::planar;
    CHECK(KvPage{fp4_main_record(512), planar, 128, 512}.page_bytes() == 36864);
    CHECK(KvPage{fp4_index_key_record(128), planar, 128, 512}.page_bytes() == 8704);
    CHECK(KvPage{fp8_record(512), planar, 32, 512}.page_bytes() == 16896);
    CHECK(KvPage{fp8_record(512), planar, 128, 512}.page_bytes() == 67584);
    CHECK(KvPage{v4_record(512, 64), planar, 64, 576}.page_bytes() == 37440);
    CHECK(KvPage{v4_record(512, 64), planar, 64, 576}.payload_bytes() == 37376);
    CHECK(KvPage{fp8_index_key_record(128), planar, 64, 576}.page_bytes() == 8640);
    CHECK(KvPage{fp8_index_key_record(128), planar, 64, 576}.payload_bytes() == 8448);
    CHECK(KvPage{v4_record(512, 64), planar, 32, 576}.page_bytes() == 19008);
}

TEST_CASE("kv_page: V4's planar page is all 576-byte rows, then all 8-byte scale rows") {
    const KvPage page{v4_record(512, 64), KvPageLayout::planar, 64, 576};
    CHECK(page.values_offset(0) == 0);
    CHECK(page.values_offset(1) == 576);
    CHECK(page.tail_offset(0) == 448);
    CHECK(page.tail_offset(63) == 63 * 576 + 448);
    CHECK(page.scales_offset(0) == 64 * 576);
    CHECK(page.scales_offset(63) == 64 * 576 + 63 * 8);
    CHECK(page.padding_offset(0) == 64 * 576 + 7);
}

TEST_CASE("kv_page: V4.1's planar pages are block x values, then block x scales; per token inline") {
    const KvPage fp8{fp8_record(512), KvPageLayout::planar, 32, 512};
    CHECK(fp8.values_offset(3) == 3 * 512);
    CHECK(fp8.scales_offset(3) == 32 * 512 + 3 * 16);
    const KvPage fp4{fp4_main_record(512), KvPageLayout::planar, 128, 512};
    CHECK(fp4.values_offset(3) == 3 * 256);
    CHECK(fp4.scales_offset(3) == 128 * 256 + 3 * 32);
    const KvPage fp8_inline{fp8_record(512), KvPageLayout::per_token, 32, 512};
    CHECK(fp8_inline.values_offset(3) == 3 * 528);
    CHECK(fp8_inline.scales_offset(3) == 3 * 528 + 512);
    const KvPage fp4_inline{fp4_main_record(512), KvPageLayout::per_token, 128, 512};
    CHECK(fp4_inline.scales_offset(3) == 3 * 288 + 256);
}

TEST_CASE("kv_page: V3.2's row is 512 values, 16 scale bytes, 128 tail bytes inline") {
    const KvPage page{v32_record(512, 64), KvPageLayout::per_token, 64, 1};
    CHECK(page.values_offset(1) == 656);
    CHECK(page.scales_offset(1) == 656 + 512);
    CHECK(page.tail_offset(1) == 656 + 528);
    KvPage after = page;
    after.record.scales_before_tail = false;
    CHECK(after.tail_offset(1) == 656 + 512);
    CHECK(after.scales_offset(1) == 656 + 640);
}

TEST_CASE("kv_page: index keys are planar per page of 64 (values 0..8191, scales 8192..8447)") {
    const KvPage page{fp8_index_key_record(128), KvPageLayout::planar, 64, 1};
    CHECK(page.values_offset(1) == 128);
    CHECK(page.scales_offset(0) == 8192);
    CHECK(page.scales_offset(63) + 4 == 8448);
    CHECK(KvPage{page.record, KvPageLayout::per_token, 64, 1}.values_offset(1) == 132);
    const KvPage fp4{fp4_index_key_record(128), KvPageLayout::planar, 64, 1};
    CHECK(fp4.values_offset(1) == 64);
    CHECK(fp4.scales_offset(1) == 64 * 64 + 4);
}

TEST_CASE("kv_page: the map covers every byte exactly once, ascending, where the addresses say") {
    for (const NamedPage& named : pages())
        for (const int64_t records : {0, 1, 3, 64})
            for (const int64_t alignment : {1, 512, 576}) {
                KvPage page = named.page;
                page.records = records;
                page.alignment_bytes = alignment;
                CAPTURE(named.name);
                CAPTURE(records);
                CAPTURE(alignment);
                int64_t next = 0, values = 0, tail = 0, scales = 0, padding = 0;
                for (const KvSpan& span : page_map(page)) {
                    REQUIRE(span.offset_bytes == next);
                    REQUIRE(span.size_bytes > 0);
                    next += span.size_bytes;
                    switch (span.section) {
                        case KvSection::values:
                            REQUIRE(span.offset_bytes == page.values_offset(span.slot));
                            values += span.size_bytes;
                            break;
                        case KvSection::tail:
                            REQUIRE(span.offset_bytes == page.tail_offset(span.slot));
                            tail += span.size_bytes;
                            break;
                        case KvSection::scales:
                            REQUIRE(span.offset_bytes == page.scales_offset(span.slot));
                            scales += span.size_bytes;
                            break;
                        case KvSection::record_padding:
                            REQUIRE(span.offset_bytes == page.padding_offset(span.slot));
                            padding += span.size_bytes;
                            break;
                        case KvSection::page_padding:
                            REQUIRE(span.slot == -1);
                            REQUIRE(span.offset_bytes == page.payload_bytes());
                            break;
                    }
                }
                CHECK(next == page.page_bytes());
                CHECK(next % alignment == 0);
                CHECK(values == records * page.record.value_bytes());
                CHECK(tail == records * page.record.tail_bytes());
                CHECK(scales == records * page.record.scale_bytes());
                CHECK(padding == records * page.record.padding_bytes);
            }
}

TEST_CASE("kv_page: rows are counted through pages that lie one after another") {
    const KvPage page{v4_record(512, 64), KvPageLayout::planar, 64, 576};
    const KvPageMap map = page.addresses();
    CHECK(map.row(64).values == 37440);
    CHECK(map.row(130).tail == 2 * 37440 + 2 * 576 + 448);
    CHECK(map.row(130).scales == 2 * 37440 + 64 * 576 + 2 * 8);
    CHECK(map.row(130).record_padding == 2 * 37440 + 64 * 576 + 2 * 8 + 7);
}

TEST_CASE("kv_page: converting there and back gives every byte but padding, which is zero") {
    for (const NamedPage& named : pages()) {
        CAPTURE(named.name);
        const KvPage from = named.page;
        KvPage to = from;
        to.layout = from.layout == KvPageLayout::planar ? KvPageLayout::per_token : KvPageLayout::planar;
        to.alignment_bytes = 100;
        const std::vector<std::byte> original = random_bytes(11, from.page_bytes());
        std::vector<std::byte> other(size_t(to.page_bytes()), std::byte{0xA5});
        std::vector<std::byte> back(original.size(), std::byte{0xA5});
        convert_page(from, original, to, other);
        convert_page(to, other, from, back);

        std::vector<std::byte> expected = original;
        zero_padding(from, expected);
        CHECK(back == expected);
        std::vector<std::byte> cleared = other;
        zero_padding(to, cleared);
        CHECK(other == cleared);
        for (int64_t slot = 0; slot < from.records; ++slot) {
            CHECK(std::equal(original.begin() + from.values_offset(slot),
                             original.begin() + from.values_offset(slot) + from.record.value_bytes(),
                             other.begin() + to.values_offset(slot)));
            CHECK(std::equal(original.begin() + from.scales_offset(slot),
                             original.begin() + from.scales_offset(slot) + from.record.scale_bytes(),
                             other.begin() + to.scales_offset(slot)));
        }
    }
}

TEST_CASE("kv_page: a page of constant tokens reads the same by both paths (token i = i)") {
    const KvPage planar{fp8_index_key_record(128), KvPageLayout::planar, 64, 1};
    KvPage per_token = planar;
    per_token.layout = KvPageLayout::per_token;
    std::vector<std::byte> page(size_t(planar.page_bytes())), other(page.size());
    for (int64_t i = 0; i < 64; ++i) {
        std::fill_n(page.begin() + 128 * i, 128, std::byte(i));
        std::fill_n(page.begin() + 8192 + 4 * i, 4, std::byte(i));
    }
    convert_page(planar, page, per_token, other);
    for (int64_t i = 0; i < 64; ++i)
        CHECK(std::count(other.begin() + 132 * i, other.begin() + 132 * (i + 1), std::byte(i)) == 132);
}

TEST_CASE("kv_page: pages that do not match are refused and nothing is written") {
    const KvPage fp8{fp8_record(128), KvPageLayout::planar, 4, 1};
    const KvPage index_key{fp8_index_key_record(128), KvPageLayout::per_token, 4, 1};  // 132 bytes as well
    REQUIRE(fp8.page_bytes() == index_key.page_bytes());
    const std::vector<std::byte> source(size_t(fp8.page_bytes()), std::byte{1});
    std::vector<std::byte> destination(source.size(), std::byte{0xA5});
    const std::vector<std::byte> before = destination;
    CHECK_THROWS_AS(convert_page(fp8, source, index_key, destination), UserError);
    KvPage more = fp8;
    more.records = 5;
    CHECK_THROWS_AS(convert_page(fp8, source, more, destination), UserError);
    KvPage aligned = fp8;
    aligned.alignment_bytes = 576;
    CHECK_THROWS_AS(convert_page(fp8, source, aligned, destination), UserError);
    CHECK_THROWS_AS(convert_page(fp8, std::span(source).first(source.size() - 1), fp8, destination),
                    UserError);
    KvPage invalid = fp8;
    invalid.alignment_bytes = 0;
    CHECK_THROWS_AS(convert_page(fp8, source, invalid, destination), UserError);
    invalid = fp8;
    invalid.records = -1;
    CHECK_THROWS_AS(page_map(invalid), UserError);
    invalid = fp8;
    invalid.record.scale_block = 33;
    CHECK_THROWS_AS(page_map(invalid), UserError);
    CHECK(destination == before);
}
