// Tensors that are stored otherwise than row by row: declared layouts, and row-major copies of them.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/io/tensor_view.h"
#include "reference/layout/kv_page.h"
#include "reference/registry/tensor.h"

namespace touchstone {

enum class LayoutKind : uint8_t {
    row_major,
    transpose,  ///< axes in another order
    fp4,        ///< two codes to a byte
    page,       ///< KV pages, planar or per token
    padded,     ///< rows with a stride
};

/// A layout that a user declares; parse_layout's text says the same.
struct Layout {
    LayoutKind kind = LayoutKind::row_major;
    /// transpose: axis i of the row-major tensor is axis axes[i] of the stored one, as in numpy.transpose;
    /// empty: all axes reversed.
    std::vector<int64_t> axes = {};
    bool high_nibble_first = false;  ///< fp4
    KvPage page = {};
    std::string record = {};                        ///< page: the record's name
    int64_t row_elements = 0, stride_elements = 0;  ///< padded

    friend bool operator==(const Layout&, const Layout&) = default;
};

/// A form of layout, for help texts.
struct LayoutForm {
    std::string_view form, meaning;
};
std::span<const LayoutForm> layout_forms();

/// Reads one of layout_forms(). Throws UserError naming `where`.
Layout parse_layout(std::string_view text, const std::string& where);
/// The text that parse_layout reads.
std::string layout_text(const Layout& layout);

/// The row-major copy: the same type and the axes in their order; of fp4 "E2M1" [.., 2 n], a code per byte;
/// of pages "U8" [pages x records, bytes of a record], each record as a per-token page has it (kv_page.h),
/// padding zeroed; of padded rows [.., row_elements]. Throws UserError naming `where` and the expected
/// size when the tensor cannot have that layout.
Tensor row_major(const TensorView& stored, const Layout& layout, const std::string& where);

}  // namespace touchstone
