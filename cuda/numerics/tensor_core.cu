#include <string>

#include "cuda/device_buffer.h"
#include "cuda/numerics/tensor_core.h"
#include "reference/io/user_error.h"

namespace touchstone::cuda {

namespace {

constexpr int row_bytes = 32;  // of one step, whatever the operands: 8 words of a row

/// The part of a tile's accumulators that one thread holds: rows g and g + 8 of its warp's 16, columns 2q and
/// 2q + 1, with g = lane / 4 and q = lane % 4 (PTX ISA, "Matrix Fragments for mma.m16n8k16").
template <class T>
struct Accumulators {
    T d0, d1, d2, d3;
};

/// A thread's words of A for one step: rows g and g + 8, words q and q + 4. The same for every operand type.
struct FragmentA {
    uint32_t a0, a1, a2, a3;
};

// Each instruction: its accumulator, and the PTX of one step. mma.sync reads B from registers (words q and
// q + 4 of row g), wgmma from shared memory.

struct MmaBf16 {
    using Accumulator = float;
    static __device__ void step(Accumulators<float>& d, const FragmentA& a, uint32_t b0, uint32_t b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(d.d0), "+f"(d.d1), "+f"(d.d2), "+f"(d.d3)
            : "r"(a.a0), "r"(a.a1), "r"(a.a2), "r"(a.a3), "r"(b0), "r"(b1));
    }
};

struct MmaF16 {
    using Accumulator = float;
    static __device__ void step(Accumulators<float>& d, const FragmentA& a, uint32_t b0, uint32_t b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(d.d0), "+f"(d.d1), "+f"(d.d2), "+f"(d.d3)
            : "r"(a.a0), "r"(a.a1), "r"(a.a2), "r"(a.a3), "r"(b0), "r"(b1));
    }
};

struct MmaTf32 {
    using Accumulator = float;
    static __device__ void step(Accumulators<float>& d, const FragmentA& a, uint32_t b0, uint32_t b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(d.d0), "+f"(d.d1), "+f"(d.d2), "+f"(d.d3)
            : "r"(a.a0), "r"(a.a1), "r"(a.a2), "r"(a.a3), "r"(b0), "r"(b1));
    }
};

struct MmaE4m3 {
    using Accumulator = float;
    static __device__ void step(Accumulators<float>& d, const FragmentA& a, uint32_t b0, uint32_t b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+f"(d.d0), "+f"(d.d1), "+f"(d.d2), "+f"(d.d3)
            : "r"(a.a0), "r"(a.a1), "r"(a.a2), "r"(a.a3), "r"(b0), "r"(b1));
    }
};

struct MmaS8 {
    using Accumulator = int32_t;
    static __device__ void step(Accumulators<int32_t>& d, const FragmentA& a, uint32_t b0, uint32_t b1) {
        asm volatile(
            "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
            : "+r"(d.d0), "+r"(d.d1), "+r"(d.d2), "+r"(d.d3)
            : "r"(a.a0), "r"(a.a1), "r"(a.a2), "r"(a.a3), "r"(b0), "r"(b1));
    }
};

struct WgmmaBf16 {
    using Accumulator = float;
    static __device__ void step(Accumulators<float>& d, const FragmentA& a, uint64_t b) {
        asm volatile(
            "{.reg .pred add; setp.ne.b32 add, 1, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},%8, add, 1, 1, 0;}"
            : "+f"(d.d0), "+f"(d.d1), "+f"(d.d2), "+f"(d.d3)
            : "r"(a.a0), "r"(a.a1), "r"(a.a2), "r"(a.a3), "l"(b));
    }
    static __device__ void step(Accumulators<float>& d, uint64_t a, uint64_t b) {
        asm volatile(
            "{.reg .pred add; setp.ne.b32 add, 1, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 "
            "{%0,%1,%2,%3},%4,%5, add, 1, 1, 0, 0;}"
            : "+f"(d.d0), "+f"(d.d1), "+f"(d.d2), "+f"(d.d3)
            : "l"(a), "l"(b));
    }
};

struct WgmmaF16 {
    using Accumulator = float;
    static __device__ void step(Accumulators<float>& d, const FragmentA& a, uint64_t b) {
        asm volatile(
            "{.reg .pred add; setp.ne.b32 add, 1, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},%8, add, 1, 1, 0;}"
            : "+f"(d.d0), "+f"(d.d1), "+f"(d.d2), "+f"(d.d3)
            : "r"(a.a0), "r"(a.a1), "r"(a.a2), "r"(a.a3), "l"(b));
    }
    static __device__ void step(Accumulators<float>& d, uint64_t a, uint64_t b) {
        asm volatile(
            "{.reg .pred add; setp.ne.b32 add, 1, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 "
            "{%0,%1,%2,%3},%4,%5, add, 1, 1, 0, 0;}"
            : "+f"(d.d0), "+f"(d.d1), "+f"(d.d2), "+f"(d.d3)
            : "l"(a), "l"(b));
    }
};

struct WgmmaTf32 {
    using Accumulator = float;
    static __device__ void step(Accumulators<float>& d, const FragmentA& a, uint64_t b) {
        asm volatile(
            "{.reg .pred add; setp.ne.b32 add, 1, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},%8, add, 1, 1;}"
            : "+f"(d.d0), "+f"(d.d1), "+f"(d.d2), "+f"(d.d3)
            : "r"(a.a0), "r"(a.a1), "r"(a.a2), "r"(a.a3), "l"(b));
    }
    static __device__ void step(Accumulators<float>& d, uint64_t a, uint64_t b) {
        asm volatile(
            "{.reg .pred add; setp.ne.b32 add, 1, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n8k8.f32.tf32.tf32 "
            "{%0,%1,%2,%3},%4,%5, add, 1, 1;}"
            : "+f"(d.d0), "+f"(d.d1), "+f"(d.d2), "+f"(d.d3)
            : "l"(a), "l"(b));
    }
};

struct WgmmaE4m3 {
    using Accumulator = float;
    static __device__ void step(Accumulators<float>& d, const FragmentA& a, uint64_t b) {
        asm volatile(
            "{.reg .pred add; setp.ne.b32 add, 1, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 "
            "{%0,%1,%2,%3},{%4,%5,%6,%7},%8, add, 1, 1;}"
            : "+f"(d.d0), "+f"(d.d1), "+f"(d.d2), "+f"(d.d3)
            : "r"(a.a0), "r"(a.a1), "r"(a.a2), "r"(a.a3), "l"(b));
    }
    static __device__ void step(Accumulators<float>& d, uint64_t a, uint64_t b) {
        asm volatile(
            "{.reg .pred add; setp.ne.b32 add, 1, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 "
            "{%0,%1,%2,%3},%4,%5, add, 1, 1;}"
            : "+f"(d.d0), "+f"(d.d1), "+f"(d.d2), "+f"(d.d3)
            : "l"(a), "l"(b));
    }
};

/// Where a thread's share of a 16-row block lies.
struct Lane {
    int g, q;
    __device__ Lane() : g(threadIdx.x % 32 / 4), q(threadIdx.x % 4) {}
};

/// 16 rows x 8 columns of 32-bit values.
template <class T>
__device__ Accumulators<T> load_accumulators(const uint32_t* c, Lane lane) {
    const uint32_t* at = c + lane.g * 8 + lane.q * 2;
    return {__builtin_bit_cast(T, at[0]), __builtin_bit_cast(T, at[1]), __builtin_bit_cast(T, at[64]),
            __builtin_bit_cast(T, at[65])};
}

template <class T>
__device__ void store_accumulators(const Accumulators<T>& values, uint32_t* d, Lane lane) {
    uint32_t* at = d + lane.g * 8 + lane.q * 2;
    at[0] = __builtin_bit_cast(uint32_t, values.d0);
    at[1] = __builtin_bit_cast(uint32_t, values.d1);
    at[64] = __builtin_bit_cast(uint32_t, values.d2);
    at[65] = __builtin_bit_cast(uint32_t, values.d3);
}

/// Word `word` of step `s` in row `row`; rows are `steps` steps long.
__device__ uint32_t operand_word(const std::byte* rows, int row, int steps, int s, int word) {
    return reinterpret_cast<const uint32_t*>(rows)[(row * steps + s) * (row_bytes / 4) + word];
}

__device__ FragmentA load_a(const std::byte* a, Lane lane, int steps, int s) {
    return {operand_word(a, lane.g, steps, s, lane.q), operand_word(a, lane.g + 8, steps, s, lane.q),
            operand_word(a, lane.g, steps, s, lane.q + 4), operand_word(a, lane.g + 8, steps, s, lane.q + 4)};
}

/// One warp per tile, 16 x 8.
template <class Instruction>
__global__ void mma_kernel(const std::byte* a, const std::byte* b, const uint32_t* c, uint32_t* d,
                           int64_t tiles, int steps) {
    const int64_t tile = (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32;
    if (tile >= tiles) return;  // whole warps leave together
    const Lane lane;
    a += tile * 16 * steps * row_bytes;
    b += tile * 8 * steps * row_bytes;
    auto sums = load_accumulators<typename Instruction::Accumulator>(c + tile * 16 * 8, lane);
    for (int s = 0; s < steps; ++s)
        Instruction::step(sums, load_a(a, lane, steps, s), operand_word(b, lane.g, steps, s, lane.q),
                          operand_word(b, lane.g, steps, s, lane.q + 4));
    store_accumulators(sums, d + tile * 16 * 8, lane);
}

/// Copies `rows` rows of all steps into shared memory, one step after the other, each as core matrices of
/// 8 rows x 16 bytes: the two of a row group are 128 bytes apart, row groups 256 bytes.
__device__ void copy_core_matrices(const std::byte* from, int rows, int steps, std::byte* to) {
    for (int i = threadIdx.x; i < rows * steps * (row_bytes / 4); i += blockDim.x) {
        const int word = i % 8, s = i / 8 % steps, row = i / 8 / steps;
        const int at = s * rows * row_bytes + row / 8 * 256 + word / 4 * 128 + row % 8 * 16 + word % 4 * 4;
        *reinterpret_cast<uint32_t*>(to + at) = operand_word(from, row, steps, s, word);
    }
}

/// The matrix descriptor of core matrices laid out as above, without swizzle (PTX ISA, "Matrix Descriptor
/// Format"): address, leading dimension byte offset 128, stride dimension byte offset 256, all in 16 bytes.
__device__ uint64_t descriptor_of(const std::byte* shared) {
    const uint64_t address = __cvta_generic_to_shared(shared);
    return (address & 0x3FFFF) >> 4 | uint64_t{128 >> 4} << 16 | uint64_t{256 >> 4} << 32;
}

/// One warpgroup per tile, 64 x 8.
template <class Instruction, OperandSource source>
__global__ void wgmma_kernel(const std::byte* a, const std::byte* b, const uint32_t* c, uint32_t* d,
                             int steps) {
    __shared__ __align__(128) std::byte shared_b[most_chain_steps * 8 * row_bytes];
    __shared__ __align__(128)
        std::byte shared_a[source == OperandSource::shared ? most_chain_steps * 64 * row_bytes : 16];
    const int64_t tile = blockIdx.x;
    const int warp = threadIdx.x / 32;
    const Lane lane;
    a += tile * 64 * steps * row_bytes;
    b += tile * 8 * steps * row_bytes;
    copy_core_matrices(b, 8, steps, shared_b);
    if constexpr (source == OperandSource::shared) copy_core_matrices(a, 64, steps, shared_a);
    // wgmma reads shared memory through the asynchronous proxy, which sees our stores only after this fence.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    const int64_t outputs = tile * 64 * 8 + warp * 16 * 8;
    auto sums = load_accumulators<typename Instruction::Accumulator>(c + outputs, lane);
    for (int s = 0; s < steps; ++s) {
        const uint64_t b_descriptor = descriptor_of(shared_b + s * 8 * row_bytes);
        if constexpr (source == OperandSource::shared) {
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            Instruction::step(sums, descriptor_of(shared_a + s * 64 * row_bytes), b_descriptor);
        } else {
            const FragmentA fragment = load_a(a + warp * 16 * steps * row_bytes, lane, steps, s);
            asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
            Instruction::step(sums, fragment, b_descriptor);
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        // The sums are registers that the instruction writes late: wait before anything reads them.
        asm volatile("wgmma.wait_group.sync.aligned 0;"
                     : "+f"(sums.d0), "+f"(sums.d1), "+f"(sums.d2), "+f"(sums.d3)::"memory");
    }
    store_accumulators(sums, d + outputs, lane);
}

struct Launch {
    const std::byte *a, *b;
    const uint32_t* c;
    uint32_t* d;
    int64_t tiles;
    int steps;
    cudaStream_t stream;
};

template <class Instruction>
void launch_mma(const Launch& x) {
    constexpr int warps = 4;
    const auto blocks = static_cast<unsigned>((x.tiles + warps - 1) / warps);
    mma_kernel<Instruction><<<blocks, 32 * warps, 0, x.stream>>>(x.a, x.b, x.c, x.d, x.tiles, x.steps);
}

template <class Instruction, OperandSource source>
void launch_wgmma(const Launch& x) {
    wgmma_kernel<Instruction, source>
        <<<static_cast<unsigned>(x.tiles), 128, 0, x.stream>>>(x.a, x.b, x.c, x.d, x.steps);
}

struct Kernel {
    std::string_view instruction;
    OperandSource source;
    void (*launch)(const Launch&);
};

constexpr Kernel kernels[] = {
    {"hopper.wgmma.bf16", OperandSource::registers, launch_wgmma<WgmmaBf16, OperandSource::registers>},
    {"hopper.wgmma.bf16", OperandSource::shared, launch_wgmma<WgmmaBf16, OperandSource::shared>},
    {"hopper.wgmma.f16", OperandSource::registers, launch_wgmma<WgmmaF16, OperandSource::registers>},
    {"hopper.wgmma.f16", OperandSource::shared, launch_wgmma<WgmmaF16, OperandSource::shared>},
    {"hopper.wgmma.tf32", OperandSource::registers, launch_wgmma<WgmmaTf32, OperandSource::registers>},
    {"hopper.wgmma.tf32", OperandSource::shared, launch_wgmma<WgmmaTf32, OperandSource::shared>},
    {"hopper.wgmma.e4m3", OperandSource::registers, launch_wgmma<WgmmaE4m3, OperandSource::registers>},
    {"hopper.wgmma.e4m3", OperandSource::shared, launch_wgmma<WgmmaE4m3, OperandSource::shared>},
    {"hopper.mma.bf16", OperandSource::registers, launch_mma<MmaBf16>},
    {"hopper.mma.f16", OperandSource::registers, launch_mma<MmaF16>},
    {"hopper.mma.tf32", OperandSource::registers, launch_mma<MmaTf32>},
    {"hopper.mma.e4m3", OperandSource::registers, launch_mma<MmaE4m3>},
    {"hopper.mma.s8", OperandSource::registers, launch_mma<MmaS8>},
};

const Kernel& kernel_of(const MatrixInstruction& instruction, OperandSource source) {
    for (const Kernel& kernel : kernels)
        if (kernel.instruction == instruction.name && kernel.source == source) return kernel;
    throw UserError({"no kernel issues " + std::string(instruction.name) + " with A in " +
                         (source == OperandSource::shared ? "shared memory" : "registers"),
                     "tensor_core_chain", "an instruction of matrix_instructions; A in shared memory: wgmma",
                     ""});
}

}  // namespace

void tensor_core_chain(const MatrixInstruction& instruction, OperandSource source, const std::byte* a,
                       const std::byte* b, const uint32_t* c, uint32_t* d, int64_t tiles, int steps,
                       cudaStream_t stream) {
    const Kernel& kernel = kernel_of(instruction, source);
    if (steps < 1 || steps > most_chain_steps)
        throw UserError({"a chain of " + std::to_string(steps) + " steps", "tensor_core_chain",
                         "1 to " + std::to_string(most_chain_steps), ""});
    if (tiles == 0) return;
    kernel.launch({a, b, c, d, tiles, steps, stream});
    check(cudaGetLastError(), "tensor_core_chain: launch");
}

}  // namespace touchstone::cuda
