// What lets one header serve the CPU reference and the CUDA kernels: the marker of functions that run on both
// sides, and the casts between a float and its bits.
#pragma once

#include <cstdint>

/// Marks a function that host and device both call; empty for compilers that know no device.
#ifdef __CUDACC__
#define TOUCHSTONE_HOST_DEVICE __host__ __device__
#else
#define TOUCHSTONE_HOST_DEVICE
#endif

namespace touchstone {

/// The 32 bits of `x`: sign, 8 exponent bits, 23 mantissa bits. NaN payloads are kept.
// The builtin under std::bit_cast: device code may not call std::bit_cast, which is a host function to nvcc.
TOUCHSTONE_HOST_DEVICE constexpr uint32_t float_bits(float x) {
    return __builtin_bit_cast(uint32_t, x);
}

/// The float whose bits are `bits`; the inverse of float_bits for every pattern, NaNs included.
TOUCHSTONE_HOST_DEVICE constexpr float float_from_bits(uint32_t bits) {
    return __builtin_bit_cast(float, bits);
}

}  // namespace touchstone
