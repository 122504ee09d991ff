// What receipts hold of a case's tensors.
#pragma once

#include <cstdint>
#include <span>

namespace touchstone {

/// tensor_hash of the inputs, one tensor after the other at running positions, and of the outputs. Cases over
/// all 2^32 fp32 inputs have nothing to hash on the input side: 0.
struct CaseHashes {
    uint64_t input = 0, output = 0;
    int64_t outputs = 0;  ///< how many
    friend bool operator==(const CaseHashes&, const CaseHashes&) = default;
};

/// tensor_hash of 32-bit elements at positions first_index .., in parallel.
uint64_t hash_of(std::span<const uint32_t> elements, uint64_t first_index = 0);
/// The same of 16-bit and 8-bit elements, zero-extended.
uint64_t hash_of(std::span<const uint16_t> elements, uint64_t first_index = 0);
uint64_t hash_of(std::span<const uint8_t> elements, uint64_t first_index = 0);

}  // namespace touchstone
