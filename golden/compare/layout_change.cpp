#include "golden/compare/layout_change.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <numeric>
#include <optional>

#include "golden/compare/element_types.h"
#include "reference/io/config_json.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace {

constexpr LayoutForm forms[]{
    {"transpose", "all axes in reverse order"},
    {"transpose 1,0,2", "axis i of the row-major tensor is that axis of the stored one"},
    {"fp4 low", "two fp4 codes to a byte, the even element in the low nibble"},
    {"fp4 high", "the same, the even element in the high nibble"},
    {"page planar 64xfp4_index", "KV pages of 64 records: all values, then all scales"},
    {"page per_token 64xfp8 align 576", "KV pages of whole records, pages padded to a multiple of 576 bytes"},
    {"padded 512 of 576", "rows of 512 elements that begin 576 elements apart"},
};

/// The records that pages hold, by name: their widths alone do not tell them apart.
struct NamedRecord {
    std::string_view name;
    KvRecord record;
};

const std::vector<NamedRecord>& records() {
    static const std::vector<NamedRecord> known{
        {"fp8", fp8_record(512)},
        {"fp4_main", fp4_main_record(512)},
        {"fp4_index", fp4_index_key_record(128)},
        {"v4", v4_record(512, 64)},
        {"fp8_index", fp8_index_key_record(128)},
        {"v32", v32_record(512, 64)},
        {"v32_without_rope", {512, KvElement::fp8_e4m3, 128, KvScale::fp32, 0, 0, false}},
        {"int8_index", int8_index_key_record(128)},
        {"bf16", bf16_record(512)},
    };
    return known;
}

[[noreturn]] void refuse(std::string_view text, const std::string& where, const std::string& what) {
    std::vector<std::string_view> known;
    for (const LayoutForm& form : forms) known.push_back(form.form);
    throw UserError({fmt::format("layout {}: {}", quoted(std::string(text)), what), where,
                     fmt::format("a form such as \"{}\"", fmt::join(known, "\", \"")), ""});
}

std::vector<std::string_view> words_of(std::string_view text) {
    std::vector<std::string_view> words;
    for (size_t at = 0; at < text.size();) {
        const size_t begin = text.find_first_not_of(' ', at);
        if (begin == std::string_view::npos) break;
        const size_t end = std::min(text.find(' ', begin), text.size());
        words.push_back(text.substr(begin, end - begin));
        at = end;
    }
    return words;
}

std::optional<int64_t> count_of(std::string_view word) {
    constexpr int64_t most = int64_t{1} << 31;
    int64_t value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    if (error != std::errc{} || end != word.data() + word.size() || value < 0 || value > most) return {};
    return value;
}

/// A permutation of 0 .. n - 1.
bool is_permutation_of_axes(const std::vector<int64_t>& axes) {
    std::vector<int64_t> sorted = axes, all(axes.size());
    std::ranges::sort(sorted);
    std::iota(all.begin(), all.end(), 0);
    return sorted == all;
}

std::optional<Layout> transpose_of(const std::vector<std::string_view>& words) {
    Layout layout{LayoutKind::transpose};
    if (words.size() == 1) return layout;
    if (words.size() != 2) return {};
    std::string_view rest = words[1];
    while (true) {
        const size_t comma = rest.find(',');
        const std::optional<int64_t> axis = count_of(rest.substr(0, comma));
        if (!axis) return {};
        layout.axes.push_back(*axis);
        if (comma == std::string_view::npos) break;
        rest.remove_prefix(comma + 1);
    }
    if (!is_permutation_of_axes(layout.axes)) return {};
    return layout;
}

std::optional<Layout> fp4_of(const std::vector<std::string_view>& words) {
    if (words.size() != 2 || (words[1] != "low" && words[1] != "high")) return {};
    Layout layout{LayoutKind::fp4};
    layout.high_nibble_first = words[1] == "high";
    return layout;
}

/// By name, or by a width that one record alone has.
std::optional<NamedRecord> record_of(std::string_view word) {
    const std::optional<int64_t> width = count_of(word);
    std::optional<NamedRecord> found;
    for (const NamedRecord& known : records()) {
        if (known.name == word) return known;
        if (!width || known.record.record_bytes() != *width) continue;
        if (found) return {};
        found = known;
    }
    return found;
}

std::optional<Layout> page_of(const std::vector<std::string_view>& words) {
    const bool aligned = words.size() == 5 && words[3] == "align";
    if (words.size() != 3 && !aligned) return {};
    const size_t times = words[2].find('x');
    if (times == std::string_view::npos || (words[1] != "planar" && words[1] != "per_token")) return {};
    const std::optional<int64_t> count = count_of(words[2].substr(0, times));
    const std::optional<NamedRecord> record = record_of(words[2].substr(times + 1));
    const std::optional<int64_t> alignment = aligned ? count_of(words[4]) : 1;
    if (!count || *count == 0 || !record || !alignment || *alignment == 0) return {};
    Layout layout{LayoutKind::page};
    layout.record = record->name;
    layout.page = {record->record, words[1] == "planar" ? KvPageLayout::planar : KvPageLayout::per_token,
                   *count, *alignment};
    return layout;
}

std::optional<Layout> padded_of(const std::vector<std::string_view>& words) {
    if (words.size() != 4 || words[2] != "of") return {};
    const std::optional<int64_t> row = count_of(words[1]), stride = count_of(words[3]);
    if (!row || !stride || *row == 0 || *row > *stride) return {};
    Layout layout{LayoutKind::padded};
    layout.row_elements = *row;
    layout.stride_elements = *stride;
    return layout;
}

/// A kind: its first word, how it is read, what may be wrong.
struct KindRow {
    std::string_view word;
    std::optional<Layout> (*parse)(const std::vector<std::string_view>&);
    std::string_view needs;
};

constexpr KindRow kinds[]{
    {"transpose", transpose_of, "every axis once, from 0, with commas between"},
    {"fp4", fp4_of, "low or high"},
    {"page", page_of,
     "planar or per_token, then records x record: fp8, fp4_main, fp4_index, v4, fp8_index, v32, "
     "v32_without_rope, int8_index, bf16, or a width in bytes that one of them alone has (528 has two)"},
    {"padded", padded_of, "elements of a row, \"of\", elements from row to row"},
};

[[noreturn]] void refuse_size(const TensorView& stored, const Layout& layout, const std::string& where,
                              const std::string& expected) {
    throw UserError({fmt::format("{} has {} bytes", describe(stored.type, stored.shape), stored.bytes.size()),
                     where, fmt::format("{} for layout \"{}\"", expected, layout_text(layout)), ""});
}

std::vector<int64_t> axes_for(const TensorView& stored, const Layout& layout, const std::string& where) {
    std::vector<int64_t> axes = layout.axes;
    if (axes.empty()) {
        axes.resize(stored.shape.size());
        std::iota(axes.rbegin(), axes.rend(), 0);
    }
    if (axes.size() != stored.shape.size())
        refuse_size(stored, layout, where, fmt::format("{} axes", axes.size()));
    return axes;
}

Tensor transposed(const TensorView& stored, const Layout& layout, const std::string& where) {
    const std::vector<int64_t> axes = axes_for(stored, layout, where);
    const size_t rank = axes.size();
    std::vector<int64_t> strides(rank, 1), shape(rank), steps(rank);
    for (size_t axis = rank; axis-- > 1;) strides[axis - 1] = strides[axis] * stored.shape[axis];
    for (size_t axis = 0; axis < rank; ++axis) {
        shape[axis] = stored.shape[static_cast<size_t>(axes[axis])];
        steps[axis] = strides[static_cast<size_t>(axes[axis])];
    }
    const size_t width = static_cast<size_t>(element_type_bytes(stored.type));
    Tensor result{stored.type, shape, std::vector<std::byte>(stored.bytes.size())};
    std::vector<int64_t> at(rank, 0);
    int64_t from = 0;
    for (size_t to = 0; to < result.bytes.size(); to += width) {
        std::memcpy(result.bytes.data() + to, stored.bytes.data() + static_cast<size_t>(from) * width, width);
        for (size_t axis = rank; axis-- > 0;) {
            from += steps[axis];
            if (++at[axis] < shape[axis]) break;
            from -= steps[axis] * shape[axis];
            at[axis] = 0;
        }
    }
    return result;
}

Tensor unpacked_fp4(const TensorView& stored, const Layout& layout, const std::string& where) {
    if (element_type_bytes(stored.type) != 1 || stored.shape.empty())
        refuse_size(stored, layout, where, "a tensor of bytes");
    Tensor result{"E2M1", stored.shape, std::vector<std::byte>(2 * stored.bytes.size())};
    result.shape.back() *= 2;
    for (size_t i = 0; i < stored.bytes.size(); ++i) {
        const std::byte low = stored.bytes[i] & std::byte{15}, high = stored.bytes[i] >> 4;
        result.bytes[2 * i] = layout.high_nibble_first ? high : low;
        result.bytes[2 * i + 1] = layout.high_nibble_first ? low : high;
    }
    return result;
}

Tensor record_rows(const TensorView& stored, const Layout& layout, const std::string& where) {
    const KvPage& page = layout.page;
    const size_t page_bytes = static_cast<size_t>(page.page_bytes());
    if (element_type_bytes(stored.type) != 1 || stored.bytes.size() % page_bytes != 0)
        refuse_size(stored, layout, where, fmt::format("a multiple of {} bytes", page_bytes));
    const int64_t pages = static_cast<int64_t>(stored.bytes.size() / page_bytes);
    KvPage rows = page;
    rows.layout = KvPageLayout::per_token;
    rows.alignment_bytes = 1;
    const size_t row_bytes = static_cast<size_t>(rows.page_bytes());
    Tensor result{"U8",
                  {pages * page.records, page.record.record_bytes()},
                  std::vector<std::byte>(static_cast<size_t>(pages) * row_bytes)};
    for (size_t i = 0; i < static_cast<size_t>(pages); ++i)
        convert_page(page, stored.bytes.subspan(i * page_bytes, page_bytes), rows,
                     std::span(result.bytes).subspan(i * row_bytes, row_bytes));
    return result;
}

Tensor without_padding(const TensorView& stored, const Layout& layout, const std::string& where) {
    const int64_t row = layout.row_elements, stride = layout.stride_elements;
    const int64_t width = element_type_bytes(stored.type), elements = stored.elements();
    Tensor result{stored.type, stored.shape, {}};
    if (stored.shape.size() == 1) {
        // The last row may end with its elements.
        const int64_t rows = (elements + stride - row) / stride;
        if (elements != rows * stride && elements != (rows - 1) * stride + row)
            refuse_size(stored, layout, where, fmt::format("rows of {} bytes", stride * width));
        result.shape = {rows, row};
    } else {
        if (stored.shape.empty() || stored.shape.back() != stride)
            refuse_size(stored, layout, where, fmt::format("rows of {} bytes", stride * width));
        result.shape.back() = row;
    }
    result.bytes.resize(static_cast<size_t>(result.elements() * width));
    const int64_t rows = result.elements() / row;
    for (int64_t r = 0; r < rows; ++r)
        std::memcpy(result.bytes.data() + r * row * width, stored.bytes.data() + r * stride * width,
                    static_cast<size_t>(row * width));
    return result;
}

}  // namespace

std::span<const LayoutForm> layout_forms() {
    return forms;
}

Layout parse_layout(std::string_view text, const std::string& where) {
    const std::vector<std::string_view> words = words_of(text);
    if (words.empty()) refuse(text, where, "it is empty");
    for (const KindRow& kind : kinds) {
        if (kind.word != words[0]) continue;
        const std::optional<Layout> layout = kind.parse(words);
        if (!layout) refuse(text, where, fmt::format("{} needs {}", kind.word, kind.needs));
        return *layout;
    }
    refuse(text, where, "an unknown kind");
}

std::string layout_text(const Layout& layout) {
    switch (layout.kind) {
        case LayoutKind::row_major: return "row_major";
        case LayoutKind::transpose:
            return layout.axes.empty() ? "transpose"
                                       : fmt::format("transpose {}", fmt::join(layout.axes, ","));
        case LayoutKind::fp4: return layout.high_nibble_first ? "fp4 high" : "fp4 low";
        case LayoutKind::page: {
            const char* arrangement = layout.page.layout == KvPageLayout::planar ? "planar" : "per_token";
            const int64_t alignment = layout.page.alignment_bytes;
            return fmt::format("page {} {}x{}{}", arrangement, layout.page.records, layout.record,
                               alignment == 1 ? "" : fmt::format(" align {}", alignment));
        }
        case LayoutKind::padded:
            return fmt::format("padded {} of {}", layout.row_elements, layout.stride_elements);
    }
    std::abort();
}

Tensor row_major(const TensorView& stored, const Layout& layout, const std::string& where) {
    switch (layout.kind) {
        case LayoutKind::row_major:
            return {stored.type, stored.shape, {stored.bytes.begin(), stored.bytes.end()}};
        case LayoutKind::transpose: return transposed(stored, layout, where);
        case LayoutKind::fp4: return unpacked_fp4(stored, layout, where);
        case LayoutKind::page: return record_rows(stored, layout, where);
        case LayoutKind::padded: return without_padding(stored, layout, where);
    }
    std::abort();
}

}  // namespace touchstone
