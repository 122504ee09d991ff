// All 2^32 fp32 inputs of a function of one number, in parts that host and device hash alike.
#pragma once

#include <cstdint>

namespace touchstone {

/// Part p holds the inputs whose bits are p * part_inputs .. + part_inputs. Its hash is the sum of
/// element_hash(input bits, output bits); the parts' sum, mod 2^64, is the hash of the whole.
inline constexpr int input_parts = 4096;
inline constexpr int64_t part_inputs = int64_t{1} << 20;
static_assert(input_parts * part_inputs == int64_t{1} << 32);

}  // namespace touchstone
