// The total order of every selection (numerics contract, section 6): the larger value first, equal values by
// the lower index. -0 counts as +0 and every NaN as one value below -infinity.
#pragma once

#include <cstdint>

#include "reference/numerics/small_float.h"

namespace touchstone {

/// Unsigned integers that order like the values: 0 for NaN, 0x007FFFFF for -infinity, 0x80000000 for both
/// zeros, 0xFF800000 for +infinity.
TOUCHSTONE_HOST_DEVICE constexpr uint32_t order_mapped(float value) {
    const uint32_t bits = float_bits(value + 0.0f);  // -0 + 0 is +0
    const uint32_t mapped = bits >> 31 ? ~bits : bits | 0x80000000;
    return is_nan(value) ? 0 : mapped;
}

/// The key of one candidate: no two are equal, and the larger key is selected first.
TOUCHSTONE_HOST_DEVICE constexpr uint64_t total_order_key(float value, uint32_t index) {
    return uint64_t{order_mapped(value)} << 32 | static_cast<uint32_t>(~index);
}

/// The index that a key was made from.
TOUCHSTONE_HOST_DEVICE constexpr uint32_t index_of_key(uint64_t key) {
    return ~static_cast<uint32_t>(key);
}

}  // namespace touchstone
