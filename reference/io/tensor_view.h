// A tensor that lies somewhere else: in a mapped file, in a buffer of the caller's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace touchstone {

/// Whoever made it keeps the bytes.
struct TensorView {
    std::string
        type;  ///< as safetensors writes it: "F32", "BF16", "F8_E4M3", "F8_E8M0", "I8", "I32", "U8", ..
    std::vector<int64_t> shape;
    std::span<const std::byte> bytes;  ///< little-endian elements, row-major

    int64_t elements() const;
};

}  // namespace touchstone
