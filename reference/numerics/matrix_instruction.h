// The matrix instructions that device cases name, and how a kernel issues them. Read by the kernels
// (cuda/numerics/tensor_core.cu) and by the cases that feed them (golden/).
#pragma once

#include <array>
#include <string_view>

namespace touchstone {

/// One instruction of sm_90a. A tile is A [m, K], B [n, K], C and D [m, n], K a multiple of k; one step of a
/// chain reads k * operand_bytes = 32 bytes of every row.
struct MatrixInstruction {
    std::string_view name;  ///< that of the row of tensor_core_instructions() that predicts its bits
    int m, n, k;
    int operand_bytes;
    bool warpgroup;        ///< wgmma: four warps, B in shared memory, A in registers or in shared memory
    bool integer = false;  ///< has no such row: exact int32 sums, which wrap
};

inline constexpr std::array matrix_instructions{
    MatrixInstruction{"hopper.wgmma.bf16", 64, 8, 16, 2, true},
    MatrixInstruction{"hopper.wgmma.f16", 64, 8, 16, 2, true},
    MatrixInstruction{"hopper.wgmma.tf32", 64, 8, 8, 4, true},
    MatrixInstruction{"hopper.wgmma.e4m3", 64, 8, 32, 1, true},
    MatrixInstruction{"hopper.mma.bf16", 16, 8, 16, 2, false},
    MatrixInstruction{"hopper.mma.f16", 16, 8, 16, 2, false},
    MatrixInstruction{"hopper.mma.tf32", 16, 8, 8, 4, false},
    MatrixInstruction{"hopper.mma.e4m3", 16, 8, 32, 1, false},
    MatrixInstruction{"hopper.mma.s8", 16, 8, 32, 1, false, true},
};

/// The instruction of that name, or null.
constexpr const MatrixInstruction* find_matrix_instruction(std::string_view name) {
    for (const MatrixInstruction& instruction : matrix_instructions)
        if (instruction.name == name) return &instruction;
    return nullptr;
}

}  // namespace touchstone
