// What compare is made of: layouts, names, selections.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <regex>
#include <string>
#include <vector>

#include "golden/compare/layout_change.h"
#include "golden/compare/name_map.h"
#include "golden/compare/printable.h"
#include "golden/compare/selection_compare.h"
#include "reference/io/user_error.h"

using namespace touchstone;

namespace {

template <class T>
Tensor tensor(const std::string& type, std::vector<int64_t> shape, const std::vector<T>& values) {
    Tensor result{type, std::move(shape), std::vector<std::byte>(values.size() * sizeof(T))};
    if (!values.empty()) std::memcpy(result.bytes.data(), values.data(), result.bytes.size());
    return result;
}

Tensor bytes(std::vector<int64_t> shape, const std::vector<uint8_t>& values) {
    return tensor("U8", std::move(shape), values);
}

Tensor laid_out(const Tensor& stored, const std::string& layout) {
    return row_major(view_of(stored), parse_layout(layout, "test"), "x");
}

template <class Call>
std::string refusal(Call call) {
    try {
        call();
    } catch (const UserError& error) {
        return fmt::format("{} | {} | {}", error.parts().what, error.parts().where, error.parts().expected);
    }
    return "";
}

bool contains(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

std::string ours(const std::string& map, const std::string& theirs) {
    const std::vector<NameRule> rules = parse_name_map(map, "map");
    return map_names(rules, std::vector{theirs}).by_their_name.at(theirs).ours;
}

constexpr int32_t int_max = std::numeric_limits<int32_t>::max();

Tensor indices(std::vector<int64_t> shape, const std::vector<int32_t>& values) {
    return tensor("I32", std::move(shape), values);
}

/// One row against one row.
SelectionRow compare_rows(const std::vector<int32_t>& expected, const std::vector<int32_t>& got,
                          const std::vector<float>& scores) {
    const int64_t k = std::ssize(expected);
    const Tensor e = indices({1, k}, expected), g = indices({1, k}, got);
    const Tensor s = tensor("F32", {1, std::ssize(scores)}, scores);
    return compare_selection(view_of(e), view_of(g), view_of(s), "x").worst;
}

}  // namespace

TEST_CASE("layout: transposed axes") {
    const Tensor stored = bytes({2, 3}, {1, 2, 3, 4, 5, 6});
    const Tensor swapped = laid_out(stored, "transpose");
    CHECK(swapped == bytes({3, 2}, {1, 4, 2, 5, 3, 6}));
    CHECK(laid_out(swapped, "transpose 1,0") == stored);
    std::vector<float> values(24);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i);
    const Tensor cube = tensor("F32", {2, 3, 4}, values);
    const Tensor turned = laid_out(cube, "transpose 2,0,1");
    CHECK(turned.shape == std::vector<int64_t>{4, 2, 3});
    for (int64_t i = 0; i < 4; ++i)
        for (int64_t j = 0; j < 2; ++j)
            for (int64_t k = 0; k < 3; ++k)
                REQUIRE(element_as_double(turned, (i * 2 + j) * 3 + k) ==
                        element_as_double(cube, (j * 3 + k) * 4 + i));
    CHECK(laid_out(bytes({0, 3}, {}), "transpose") == bytes({3, 0}, {}));
    CHECK(contains(refusal([&] { laid_out(cube, "transpose 1,0"); }), "2 axes"));
}

TEST_CASE("layout: fp4 codes leave their bytes, low or high nibble first") {
    CHECK(laid_out(bytes({1, 2}, {0x21, 0x98}), "fp4 low") == tensor<uint8_t>("E2M1", {1, 4}, {1, 2, 8, 9}));
    CHECK(laid_out(bytes({1, 2}, {0x21, 0x98}), "fp4 high") == tensor<uint8_t>("E2M1", {1, 4}, {2, 1, 9, 8}));
    CHECK(
        contains(refusal([&] { laid_out(tensor<float>("F32", {1}, {1}), "fp4 low"); }), "a tensor of bytes"));
}

TEST_CASE("layout: padded rows, whole or flat") {
    const std::vector<uint8_t> rows{1, 2, 9, 3, 4, 9};
    CHECK(laid_out(bytes({2, 3}, rows), "padded 2 of 3") == bytes({2, 2}, {1, 2, 3, 4}));
    CHECK(laid_out(bytes({6}, rows), "padded 2 of 3") == bytes({2, 2}, {1, 2, 3, 4}));
    CHECK(laid_out(bytes({5}, {1, 2, 9, 3, 4}), "padded 2 of 3") == bytes({2, 2}, {1, 2, 3, 4}));
    CHECK(contains(refusal([&] { laid_out(bytes({4}, {1, 2, 9, 3}), "padded 2 of 3"); }), "rows of 3 bytes"));
    CHECK(contains(refusal([&] { laid_out(bytes({3, 2}, rows), "padded 2 of 3"); }), "rows of 3 bytes"));
}

TEST_CASE("layout: KV pages become record rows (every record, planar and per token)") {
    for (const char* record :
         {"fp8", "fp4_main", "fp4_index", "v4", "fp8_index", "v32", "v32_without_rope"}) {
        for (const char* arrangement : {"planar", "per_token"}) {
            const Layout layout =
                parse_layout(fmt::format("page {} 4x{} align 64", arrangement, record), "test");
            CAPTURE(layout_text(layout));
            const KvPage& page = layout.page;
            std::vector<uint8_t> stored(static_cast<size_t>(2 * page.page_bytes()), 0xA5);
            std::vector<uint8_t> rows(static_cast<size_t>(8 * page.record.record_bytes()), 0);
            // Every byte of every section is written through the page's own addresses.
            for (int64_t slot = 0; slot < 8; ++slot) {
                const KvRowOffsets at = page.addresses().row(slot);
                int64_t byte = 0;
                const auto put = [&](int64_t offset, int64_t size) {
                    for (int64_t i = 0; i < size; ++i, ++byte) {
                        const uint8_t value = static_cast<uint8_t>(slot * 31 + byte * 7 + 1);
                        stored[static_cast<size_t>(offset + i)] = value;
                        rows[static_cast<size_t>(slot * page.record.record_bytes() + byte)] = value;
                    }
                };
                put(at.values, page.record.value_bytes());
                if (page.record.scales_before_tail) put(at.scales, page.record.scale_bytes());
                put(at.tail, page.record.tail_bytes());
                if (!page.record.scales_before_tail) put(at.scales, page.record.scale_bytes());
            }
            const Tensor result = row_major(view_of(bytes({std::ssize(stored)}, stored)), layout, "x");
            CHECK(result == bytes({8, page.record.record_bytes()}, rows));
        }
    }
    CHECK(contains(refusal([] {
                       laid_out(bytes({3}, {1, 2, 3}), "page planar 64x68");
                   }),
                   "a multiple of 4352 bytes"));
}

TEST_CASE("layout: texts are read and written back, others are refused by name") {
    for (const LayoutForm& form : layout_forms()) {
        CAPTURE(form.form);
        CHECK(layout_text(parse_layout(form.form, "test")) == form.form);
    }
    CHECK(layout_text(parse_layout("page planar 64x68", "test")) == "page planar 64xfp4_index");
    CHECK(contains(refusal([] { parse_layout("page planar 64x528", "test"); }), "v32_without_rope"));
    for (const char* text :
         {"", "rows", "transpose 0,0", "transpose 1", "transpose 0,1,", "fp4", "fp4 middle", "page planar",
          "page flat 64x68", "page planar 0x68", "page planar 64x69", "page planar 64x68 align 0",
          "padded 3 of 2", "padded 0 of 2", "padded 2"}) {
        CAPTURE(text);
        CHECK(refusal([&] { parse_layout(text, "test"); }) != "");
    }
}

TEST_CASE("name map: placeholders, numbers, comments") {
    const std::string map =
        "# theirs = ours\n\nmodel.layers.{n}.attn.{part}.w = L{n:02}.{part}  # here too\n";
    CHECK(ours(map, "model.layers.7.attn.q.w") == "L07.q");
    CHECK(ours(map, "model.layers.123.attn.kv_a.w") == "L123.kv_a");
    CHECK(ours(map, "model.layers.7.attn.q.w.more") == "model.layers.7.attn.q.w.more");
    CHECK(ours(map, "model.layers..attn.q.w") == "model.layers..attn.q.w");
    CHECK(ours("L{n:02}.x = layers.{n}.x", "L07.x") == "layers.07.x");
    CHECK(ours("L{n:02}.x = layers.{n:0}.x", "L07.x") == "layers.7.x");
    CHECK(ours("a{n}b = {n}", "axbyb") == "xby");
    CHECK(contains(refusal([] { ours("x.{n} = {n:02}", "x.y"); }), "no number"));
}

TEST_CASE("name map: mistakes are refused with their line") {
    const std::pair<const char*, const char*> mistakes[]{
        {"\nno equals sign", "map:2"},   {"a = ", "without a name"},      {"a.{n = b", "without its '}'"},
        {"a.n} = b", "without its '{'"}, {"{a}{b} = x", "side by side"},  {"{a}.{a} = x", "twice"},
        {"a = {b}", "right alone"},      {"a = b [transpose", "its ']'"}, {"a = b [flat]", "unknown kind"},
        {"{} = b", "without a name"},    {"{n:2} = {n}", "format"},
    };
    for (const auto& entry : mistakes) {
        const auto& text = entry.first;
        const auto& words = entry.second;
        CAPTURE(text);
        CHECK(contains(refusal([&] { parse_name_map(text, "map"); }), words));
    }
}

TEST_CASE("name map: ambiguous rules and names that meet are refused, unused rules are told") {
    const std::vector<NameRule> rules = parse_name_map("a.{n} = x.{n}\n{m}.1 = y.{m}\nz = w", "map");
    const std::vector<std::string> clear{"a.2"}, both{"a.1"};
    CHECK(map_names(rules, clear).unused_rules ==
          std::vector<std::string>{"map:2: {m}.1 = y.{m}", "map:3: z = w"});
    CHECK(contains(refusal([&] { map_names(rules, both); }), "map:1"));
    const std::vector<NameRule> same = parse_name_map("a = c\nb = c", "map");
    CHECK(contains(refusal([&] {
                       map_names(same, std::vector<std::string>{"a", "b"});
                   }),
                   "both become \"c\""));
    const std::vector<NameRule> with_layout = parse_name_map("q = q [fp4 high]", "map");
    CHECK(map_names(with_layout, std::vector<std::string>{"q"}).by_their_name.at("q").layout ==
          parse_layout("fp4 high", "test"));
}

TEST_CASE("selection: equal, reordered, tie and wrong") {
    const std::vector<float> scores{1, 3, 3, 0, 2};
    CHECK(compare_rows({1, 2, 4}, {1, 2, 4}, scores).row == -1);
    CHECK(compare_rows({1, 2, 4}, {4, 2, 1}, scores).verdict == SelectionVerdict::reordered);
    CHECK(compare_rows({1, 4}, {2, 4}, scores).verdict == SelectionVerdict::tie);
    CHECK(compare_rows({1, 4}, {2, 0}, scores).verdict == SelectionVerdict::wrong);
    CHECK(compare_rows({1, 2}, {1, 1}, scores).verdict == SelectionVerdict::wrong);
}

TEST_CASE("selection: zeros of both signs tie, so do NaNs, neighbours do not") {
    const float nan = std::nanf("");
    CHECK(compare_rows({0}, {1}, {0.0f, -0.0f}).verdict == SelectionVerdict::tie);
    CHECK(compare_rows({0}, {1}, {nan, -nan}).verdict == SelectionVerdict::tie);
    CHECK(compare_rows({0}, {1}, {1, std::nextafter(1.0f, 2.0f)}).verdict == SelectionVerdict::wrong);
}

TEST_CASE("selection: what is wrong with an index is named") {
    const std::vector<float> scores{4, 3, 2, 1};
    const std::pair<std::vector<int32_t>, IndexFault> rows[]{{{0, 4, 2}, IndexFault::out_of_range},
                                                             {{0, -2, 2}, IndexFault::negative},
                                                             {{0, int_max, 2}, IndexFault::largest_integer},
                                                             {{0, 0, 2}, IndexFault::duplicate},
                                                             {{0, -1, 2}, IndexFault::hole},
                                                             {{0, 1, -1}, IndexFault::length}};
    for (const auto& entry : rows) {
        const auto& got = entry.first;
        const auto& fault = entry.second;
        CAPTURE(name_of(fault));
        const SelectionRow row = compare_rows({0, 1, 2}, got, scores);
        CHECK(row.verdict == SelectionVerdict::wrong);
        CHECK(row.fault == fault);
        CHECK(row.column == (fault == IndexFault::length ? 2 : 1));
    }
    const SelectionRow hole = compare_rows({0, 1, -1}, {0, -1, 1}, scores);
    CHECK(hole.verdict == SelectionVerdict::reordered);
    CHECK(hole.fault == IndexFault::hole);
}

TEST_CASE("selection: rows are counted, each against its own scores") {
    const Tensor e = indices({4, 2}, {0, 1, 0, 1, 0, 1, 0, 1});
    const Tensor g = indices({4, 2}, {0, 1, 1, 0, 0, 2, 0, 2});
    const Tensor s = tensor<float>("F32", {4, 3}, {3, 2, 1, 3, 2, 1, 3, 2, 2, 3, 2, 1});
    const SelectionDifference found = compare_selection(view_of(e), view_of(g), view_of(s), "x");
    CHECK(found.rows == 4);
    CHECK(found.equal == 1);
    CHECK(found.reordered == 1);
    CHECK(found.ties == 1);
    CHECK(found.wrong == 1);
    CHECK(found.worst.row == 3);
    CHECK(found.worst.column == 1);
    CHECK(found.worst.got == 2);
    const SelectionDifference without = compare_selection(view_of(e), view_of(g), {}, "x");
    CHECK(without.wrong == 2);
    const Tensor few = tensor<float>("F32", {2, 3}, {1, 2, 3, 4, 5, 6});
    CHECK(contains(refusal([&] { compare_selection(view_of(e), view_of(g), view_of(few), "x"); }),
                   "4 rows, or one"));
    const Tensor narrow = tensor<float>("F32", {1}, {1});
    CHECK(contains(refusal([&] { compare_selection(view_of(e), view_of(g), view_of(narrow), "x"); }),
                   "selects 1"));
}

TEST_CASE("selection: scores and indices of every width") {
    const Tensor e = tensor<int64_t>("I64", {2}, {0, 1}), g = tensor<int64_t>("I64", {2}, {0, 2});
    const Tensor s = tensor<uint16_t>("BF16", {3}, {0x4000, 0x3F80, 0x3F80});
    CHECK(compare_selection(view_of(e), view_of(g), view_of(s), "x").ties == 1);
    const Tensor small = tensor<int8_t>("I8", {2}, {0, 1}), wild = tensor<int8_t>("I8", {2}, {0, -3});
    CHECK(compare_selection(view_of(small), view_of(wild), view_of(s), "x").worst.fault ==
          IndexFault::negative);
    const Tensor huge = tensor<uint64_t>("U64", {2}, {0, ~uint64_t{0}}),
                 fine = tensor<uint64_t>("U64", {2}, {0, 1});
    CHECK(compare_selection(view_of(fine), view_of(huge), view_of(s), "x").worst.fault ==
          IndexFault::out_of_range);
}

TEST_CASE("printable: control characters and bytes that are no text are escapes") {
    CHECK(printable("a b\\c \u00e9\u4e2d\U0001f600") == "a b\\c \u00e9\u4e2d\U0001f600");
    CHECK(printable("a\nb\tc\r\x1b[31m\x7f") == "a\\nb\\tc\\r\\x1B[31m\\x7F");
    CHECK(printable(std::string("\0", 1)) == "\\x00");
    CHECK(printable("\xc2\x9b") == "\\xC2\\x9B");           // C1: begins a command as ESC [ does
    CHECK(printable("\xff\xc3") == "\\xFF\\xC3");           // no first byte; nothing behind it
    CHECK(printable("\xc0\xaf") == "\\xC0\\xAF");           // overlong
    CHECK(printable("\xed\xa0\x80") == "\\xED\\xA0\\x80");  // a surrogate
    CHECK(escaped("<b>&\"\n") == "&lt;b&gt;&amp;&quot;\\n");
}

TEST_CASE("shortened: whole characters of the end") {
    CHECK(shortened("short", 5) == "short");
    CHECK(shortened("longer", 5) == "..ger");
    for (size_t most = 4; most < 12; ++most) {
        CAPTURE(most);
        const std::string text = shortened("\u4e2d\u4e2d\u4e2d\u4e2d", most);
        CHECK(text.size() <= most);
        CHECK(printable(text) == text);
    }
}

TEST_CASE("pattern_of: fits the name alone and can be pasted") {
    std::string every;
    for (int c = 0; c < 256; ++c) every += static_cast<char>(c);
    for (const std::string& name : {std::string("L00.attn/q[1]{2}"), std::string("new\nline"), std::string(),
                                    std::string("tab\tesc\x1b"), std::string("\\n"), every}) {
        const std::string pattern = pattern_of(name);
        CAPTURE(pattern);
        for (const char c : pattern) REQUIRE(((c < 0 || c >= 0x20) && c != 0x7F));
        CHECK(std::regex_search(name, std::regex(pattern)));
        CHECK_FALSE(std::regex_search(name + "x", std::regex(pattern)));
        CHECK_FALSE(std::regex_search("x" + name, std::regex(pattern)));
    }
}
