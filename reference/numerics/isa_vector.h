// For files that are compiled once per instruction set: which one this compilation is, read from the
// compiler's own macros, so that a table of kernels cannot claim another, and its vectors of fp32.
#pragma once

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "reference/numerics/host_device.h"
#include "reference/numerics/isa.h"

namespace touchstone::TOUCHSTONE_ISA_NAMESPACE {

#if defined(__AVX512F__)
inline constexpr Isa compiled_isa = Isa::avx512;
#elif defined(__AVX2__)
inline constexpr Isa compiled_isa = Isa::avx2;
#else
inline constexpr Isa compiled_isa = Isa::scalar;
#endif

/// fp32 lanes of a vector.
inline constexpr int vector_width = compiled_isa == Isa::avx512 ? 16 : compiled_isa == Isa::avx2 ? 8 : 4;

typedef float Floats __attribute__((vector_size(4 * vector_width)));

/// a * b + c in every lane, rounded once.
[[gnu::always_inline]] inline Floats fma_rn(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#else
    for (int i = 0; i < vector_width; ++i) c[i] = touchstone::fma_rn(a[i], b[i], c[i]);
    return c;
#endif
}

}  // namespace touchstone::TOUCHSTONE_ISA_NAMESPACE
