#include "reference/layout/kv_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

constexpr int64_t max_records = int64_t{1} << 31;  // keeps every offset of a page far from overflow

void require_bytes(const KvPage& page, int64_t size_bytes, const char* which) {
    if (size_bytes == page.page_bytes()) return;
    throw UserError(
        {fmt::format("a page of {} bytes", size_bytes), fmt::format("convert_page: {}", which),
         fmt::format("{} bytes: {} rows of \"{}\"", page.page_bytes(), page.records, page.record.describe()),
         ""});
}

}  // namespace

int64_t KvPage::page_bytes() const {
    return (payload_bytes() + alignment_bytes - 1) / alignment_bytes * alignment_bytes;
}

KvPageMap KvPage::addresses() const {
    const int64_t values = record.value_bytes(), tail = record.tail_bytes(), scales = record.scale_bytes();
    KvPageMap map;
    map.records = records;
    map.payload_bytes = payload_bytes();
    map.page_bytes = page_bytes();
    if (layout == KvPageLayout::planar) {
        const int64_t data_row = values + tail, scale_row = scales + record.padding_bytes;
        const int64_t scale_plane = records * data_row;
        map.values = {0, data_row, values};
        map.tail = {values, data_row, tail};
        map.scales = {scale_plane, scale_row, scales};
        map.record_padding = {scale_plane + scales, scale_row, record.padding_bytes};
    } else {
        const int64_t row = record.record_bytes();
        map.values = {0, row, values};
        map.tail = {values + (record.scales_before_tail ? scales : 0), row, tail};
        map.scales = {values + (record.scales_before_tail ? 0 : tail), row, scales};
        map.record_padding = {values + tail + scales, row, record.padding_bytes};
    }
    return map;
}

void KvPage::validate(const std::string& where) const {
    record.validate(where);
    if (records < 0 || records > max_records)
        throw UserError({fmt::format("a page of {} records", records), where,
                         fmt::format("0 to {} records", max_records), ""});
    if (alignment_bytes < 1 || alignment_bytes > max_records)
        throw UserError({fmt::format("a page alignment of {} bytes", alignment_bytes), where,
                         fmt::format("1 to {} bytes", max_records), ""});
}

std::vector<KvSpan> page_map(const KvPage& page) {
    page.validate("page_map");
    const KvPageMap map = page.addresses();
    const std::array<std::pair<KvSection, KvSectionAddress>, 4> sections{
        {{KvSection::values, map.values},
         {KvSection::tail, map.tail},
         {KvSection::scales, map.scales},
         {KvSection::record_padding, map.record_padding}}};
    std::vector<KvSpan> spans;
    for (const auto& [section, address] : sections)
        for (int64_t slot = 0; address.size_bytes > 0 && slot < page.records; ++slot)
            spans.push_back({section, slot, address.at(slot), address.size_bytes});
    if (map.page_bytes > map.payload_bytes)
        spans.push_back({KvSection::page_padding, -1, map.payload_bytes, map.page_bytes - map.payload_bytes});
    std::ranges::sort(spans, {}, &KvSpan::offset_bytes);
    return spans;
}

void convert_page(const KvPage& from, std::span<const std::byte> source, const KvPage& to,
                  std::span<std::byte> destination) {
    from.validate("convert_page: source");
    to.validate("convert_page: destination");
    if (from.record != to.record || from.records != to.records)
        throw UserError({fmt::format("{} rows of \"{}\"", to.records, to.record.describe()),
                         "convert_page: destination",
                         fmt::format("the source's {} rows of \"{}\"", from.records, from.record.describe()),
                         "a conversion changes the layout of a page, never its records"});
    require_bytes(from, std::ssize(source), "source");
    require_bytes(to, std::ssize(destination), "destination");

    const KvPageMap in = from.addresses(), out = to.addresses();
    std::ranges::fill(destination, std::byte{0});
    const auto copy = [&](const KvSectionAddress& a, const KvSectionAddress& b, int64_t slot) {
        if (a.size_bytes > 0)
            std::memcpy(destination.data() + b.at(slot), source.data() + a.at(slot), size_t(a.size_bytes));
    };
    for (int64_t slot = 0; slot < from.records; ++slot) {
        copy(in.values, out.values, slot);
        copy(in.tail, out.tail, slot);
        copy(in.scales, out.scales, slot);
    }
}

}  // namespace touchstone
