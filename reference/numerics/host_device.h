// What lets one header serve the CPU reference and the CUDA kernels: the marker of functions that run on both
// sides, the casts between a number and its bits, and the operations that are spelled differently on the two.
#pragma once

#include <cstdint>

/// Marks a function that host and device both call. Always inlined: files that are compiled for AVX2 or
/// AVX-512 (numerics/isa.h) include these headers too, and the linker would be free to take their copy of an
/// ordinary inline function for everybody, also on a CPU that has no such instructions.
#ifdef __CUDACC__
#define TOUCHSTONE_HOST_DEVICE __host__ __device__ __attribute__((always_inline))
#else
#define TOUCHSTONE_HOST_DEVICE __attribute__((always_inline))
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

/// The 64 bits of `x`: sign, 11 exponent bits, 52 mantissa bits.
TOUCHSTONE_HOST_DEVICE constexpr uint64_t double_bits(double x) {
    return __builtin_bit_cast(uint64_t, x);
}

/// The double whose bits are `bits`.
TOUCHSTONE_HOST_DEVICE constexpr double double_from_bits(uint64_t bits) {
    return __builtin_bit_cast(double, bits);
}

/// a * b + c, rounded once, to nearest even.
TOUCHSTONE_HOST_DEVICE inline float fma_rn(float a, float b, float c) {
#ifdef __CUDA_ARCH__
    return __fmaf_rn(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
}

/// a * b + c, rounded once, to nearest even.
TOUCHSTONE_HOST_DEVICE inline double fma_rn(double a, double b, double c) {
#ifdef __CUDA_ARCH__
    return __fma_rn(a, b, c);
#else
    return __builtin_fma(a, b, c);
#endif
}

/// The square root, correctly rounded. Below zero: NaN, of the bits that the machine makes.
TOUCHSTONE_HOST_DEVICE inline float sqrt_rn(float x) {
#ifdef __CUDA_ARCH__
    return __fsqrt_rn(x);
#else
    return __builtin_sqrtf(x);
#endif
}

}  // namespace touchstone
