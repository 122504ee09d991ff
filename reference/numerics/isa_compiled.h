// For files that are compiled once per instruction set: which one this compilation is, read from the
// compiler's own macros, so that a table of kernels cannot claim another.
#pragma once

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

}  // namespace touchstone::TOUCHSTONE_ISA_NAMESPACE
