// Chains of one matrix instruction over many independent tiles, for comparing what a chip computes with the
// table of reference/numerics/tensor_core.h.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "reference/numerics/matrix_instruction.h"

namespace touchstone::cuda {

/// Where a warpgroup's A comes from; warp-wide instructions know registers alone.
enum class OperandSource : uint8_t { registers, shared };

/// Steps of a chain that the kernels take.
inline constexpr int most_chain_steps = 8;

/// D = chain(C, A, B) of every tile, `steps` instructions each: A [tiles, m, steps * k], B [tiles, n,
/// steps * k], rows contiguous; C and D [tiles, m, n], the 32 bits of fp32 or int32. Step s reads columns
/// s * k ..; its D is the C of step s + 1. All device memory, 16-byte aligned; asynchronous on `stream`. D
/// holds the bits that the instruction made, NaN payloads included.
/// Throws UserError for an instruction without such a kernel, a source that it does not have, or steps
/// outside 1 .. most_chain_steps; std::runtime_error when the launch fails.
void tensor_core_chain(const MatrixInstruction& instruction, OperandSource source, const std::byte* a,
                       const std::byte* b, const uint32_t* c, uint32_t* d, int64_t tiles, int steps,
                       cudaStream_t stream);

}  // namespace touchstone::cuda
