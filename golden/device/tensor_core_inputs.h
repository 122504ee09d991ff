// Inputs of tensor-core cases: random ones of several exponent spreads, and directed ones for the questions
// that random numbers do not reach (zeros beside subnormals, infinities, overflow, exact cancellation).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "reference/numerics/matrix_instruction.h"

namespace touchstone {

/// One kind of inputs, the key in case strings.
struct TensorCoreInputKind {
    std::string_view name;
    std::string_view asks;  ///< what a difference under it would say
    bool random;            ///< random operands; otherwise directed
    bool (*applies)(const MatrixInstruction& instruction);
};

/// Random kinds first.
std::span<const TensorCoreInputKind> tensor_core_input_kinds();

/// Operands as they lie in memory, A [tiles, m, steps * k] and B [tiles, n, steps * k], and the bits of
/// C [tiles, m, n].
struct TensorCoreInputs {
    std::vector<std::byte> a, b;
    std::vector<uint32_t> c;
};

/// The inputs of `tiles` tiles; tile t is a function of (instruction, kind, steps, seed, t) alone. Throws
/// UserError for a kind that does not exist or does not apply.
TensorCoreInputs make_tensor_core_inputs(const MatrixInstruction& instruction, std::string_view kind,
                                         int steps, int64_t tiles, uint64_t seed);

}  // namespace touchstone
