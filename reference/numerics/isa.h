// Vector instruction sets of the CPU. Every vectorised routine exists once in source, `<name>_vector.cpp`,
// compiled once per set into a namespace of its own (isa_scalar, isa_avx2, isa_avx512); all give the same
// bits, so the choice changes only the speed.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace touchstone {

/// scalar: what the compiler makes for the baseline of the architecture. avx2: AVX2 and FMA. avx512: AVX-512
/// F, BW, DQ, VL and VNNI.
enum class Isa : uint8_t { scalar, avx2, avx512 };

/// Those that were compiled in: all three on x86-64, scalar alone elsewhere.
std::span<const Isa> compiled_isas();

/// "scalar", "avx2", "avx512".
std::string_view isa_name(Isa isa);

/// Compiled in, and this CPU and its operating system have it.
bool isa_supported(Isa isa);

/// The one that vectorised routines use: that of the environment variable TOUCHSTONE_ISA where it is set,
/// else the widest supported. Read once; later changes of the environment have no effect. Throws UserError
/// when the variable names no set or one that this machine lacks: falling back would show a reader the wrong
/// set's results.
Isa active_isa();

/// What active_isa does with the variable's value; an empty one chooses the widest.
Isa isa_from_variable(std::string_view value);

}  // namespace touchstone
