// The hash by which device receipts compare tensors: a sum over elements, so any order of adding gives the
// same value (threads, blocks, chunks), keyed by position, so swapped elements do not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reference/numerics/host_device.h"

namespace touchstone {

/// One element's share: the finaliser of SplitMix64 (Steele, Lea, Flood 2014) over position and bits.
/// Elements are at most 32 bits wide, zero-extended; `index` counts elements.
TOUCHSTONE_HOST_DEVICE constexpr uint64_t element_hash(uint64_t index, uint32_t bits) {
    uint64_t x = (index + 1) * 0x9E3779B97F4A7C15u ^ uint64_t { bits } * 0xD6E8FEB86659FD93u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

/// The hash of `count` 32-bit elements that stand at positions first_index .. of a tensor; hashes of its
/// parts add up, mod 2^64, to that of the whole.
TOUCHSTONE_HOST_DEVICE constexpr uint64_t tensor_hash(const uint32_t* bits, size_t count,
                                                      uint64_t first_index = 0) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; ++i) sum += element_hash(first_index + i, bits[i]);
    return sum;
}

}  // namespace touchstone
