// The sums of reference/numerics/sums.h inside a kernel: one warp, or one block, per row. Thread t owns lanes
// 8t .. 8t + 7 of an interleaved sum and loads their elements 16 bytes of bf16 (or 32 of fp32) at a time; of
// a chunked sum it owns lane t, whose elements are the same 16 bytes. The lanes are combined in registers, by
// xor-shuffles and through shared memory: adjacent pairs throughout, so a warp, four warps and the CPU agree.
#pragma once

#include <cstdint>

#include "reference/numerics/sums.h"

namespace touchstone::cuda {

inline constexpr int lanes_per_thread = 8;
inline constexpr int warp_threads = 32;
inline constexpr unsigned whole_warp = 0xFFFFFFFF;

/// Threads that share a row of interleaved lanes.
TOUCHSTONE_HOST_DEVICE constexpr int threads_of(Lanes lanes) {
    if (lanes.arrangement == LaneArrangement::chunked) return lanes.count;
    return lanes.count <= lanes_per_thread ? 1 : lanes.count / lanes_per_thread;
}

/// Adjacent pairs of the lanes that one thread holds: `count` of them, 1, 2, 4 or 8. Those that the sum does
/// not have stay out: adding their +0 would turn a sum of -0 into +0.
__device__ inline float combine_lanes(const float (&lane)[lanes_per_thread], int count) {
    if (count == 1) return lane[0];
    if (count == 2) return lane[0] + lane[1];
    if (count == 4) return (lane[0] + lane[1]) + (lane[2] + lane[3]);
    return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));
}

/// Adjacent threads of a warp, then pairs of pairs; `threads` a power of two. Every one of them gets the sum.
/// Call it with the whole warp.
__device__ inline float combine_warp(float sum, int threads) {
    for (int distance = 1; distance < threads; distance *= 2)
        sum += __shfl_xor_sync(whole_warp, sum, distance);
    return sum;
}

/// Adjacent threads of a block of `threads` (a power of two, a multiple of 32 from 64 on), then pairs of
/// pairs. Thread 0 gets the sum. `warp_sums` is shared memory for 32 floats. Call it with the whole block.
__device__ inline float combine_block(float sum, int threads, float* warp_sums) {
    sum = combine_warp(sum, threads < warp_threads ? threads : warp_threads);
    if (threads <= warp_threads) return sum;
    const int warps = threads / warp_threads, warp = threadIdx.x / warp_threads;
    if (threadIdx.x % warp_threads == 0) warp_sums[warp] = sum;
    __syncthreads();
    if (warp == 0)
        sum = combine_warp(static_cast<int>(threadIdx.x) < warps ? warp_sums[threadIdx.x] : 0, warps);
    __syncthreads();  // before the next row overwrites warp_sums
    return sum;
}

/// Eight elements from memory in two or one loads of 16 bytes; `x` has that alignment.
__device__ inline void load8(const float* x, float (&values)[8]) {
    const float4 low = *reinterpret_cast<const float4*>(x), high = *reinterpret_cast<const float4*>(x + 4);
    values[0] = low.x, values[1] = low.y, values[2] = low.z, values[3] = low.w;
    values[4] = high.x, values[5] = high.y, values[6] = high.z, values[7] = high.w;
}
__device__ inline void load8(const Bf16* x, float (&values)[8]) {
    const uint4 bits = *reinterpret_cast<const uint4*>(x);
    const uint32_t words[4]{bits.x, bits.y, bits.z, bits.w};
    for (int i = 0; i < 4; ++i) {
        values[2 * i] = float_from_bits(words[i] << 16);
        values[2 * i + 1] = float_from_bits(words[i] & 0xFFFF0000);
    }
}

/// Elements first .. first + 7 of a row of k, or as many as there are; returns how many. Vector loads where
/// the address allows: rows of odd length start anywhere.
template <class X>
__device__ inline int load_run(const X* x, int64_t first, int64_t k, float (&values)[8]) {
    const X* const at = x + first;
    if (first + 8 <= k && reinterpret_cast<uintptr_t>(at) % 16 == 0) {
        load8(at, values);
        return 8;
    }
    const int count = k - first < 8 ? static_cast<int>(k - first) : 8;
    for (int i = 0; i < count; ++i) values[i] = sums_detail::value(at[i]);
    return count;
}

/// One element into its lane, by the definition's step.
struct SumStep {
    __device__ float operator()(float x, float, float sum) const { return sum + x; }
};
struct SquareStep {
    __device__ float operator()(float x, float, float sum) const { return fma_rn(x, x, sum); }
};
struct ProductStep {
    __device__ float operator()(float x, float y, float sum) const { return fma_rn(x, y, sum); }
};

/// This thread's share of a row: its lanes, combined. `thread` is 0 .. threads_of(lanes) - 1 and `y` is null
/// unless the step multiplies. Fewer than eight lanes: one thread has them all.
template <class Step, class X, class Y>
__device__ inline float thread_sum(Step step, Lanes lanes, int thread, const X* x, const Y* y, int64_t k) {
    const bool chunked = lanes.arrangement == LaneArrangement::chunked;
    const int64_t stride = int64_t{lanes_per_thread} * threads_of(lanes);
    float lane[lanes_per_thread] = {};
    for (int64_t first = int64_t{lanes_per_thread} * thread; first < k; first += stride) {
        float values[8], factors[8] = {};
        const int count = load_run(x, first, k, values);
        if (y != nullptr) load_run(y, first, k, factors);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            if (i >= count) continue;
            // Constant indices keep the lanes in registers.
            if (chunked || lanes.count == 1) {
                lane[0] = step(values[i], factors[i], lane[0]);
            } else if (lanes.count == 2) {
                lane[i % 2] = step(values[i], factors[i], lane[i % 2]);
            } else if (lanes.count == 4) {
                lane[i % 4] = step(values[i], factors[i], lane[i % 4]);
            } else {
                lane[i] = step(values[i], factors[i], lane[i]);
            }
        }
    }
    return combine_lanes(lane, chunked ? 1 : lanes.count < lanes_per_thread ? lanes.count : lanes_per_thread);
}

/// This thread's share of a row's largest element, among `threads`.
template <class X>
__device__ inline float thread_largest(int thread, int threads, const X* x, int64_t k) {
    float largest = float_from_bits(0xFF800000);
    for (int64_t first = int64_t{lanes_per_thread} * thread; first < k;
         first += int64_t{lanes_per_thread} * threads) {
        float values[8];
        const int count = load_run(x, first, k, values);
        for (int i = 0; i < count; ++i) largest = larger(largest, values[i]);
    }
    return largest;
}

/// The larger over a warp; every thread gets it. Call it with the whole warp.
__device__ inline float largest_of_warp(float value) {
    for (int distance = 1; distance < warp_threads; distance *= 2)
        value = larger(value, __shfl_xor_sync(whole_warp, value, distance));
    return value;
}

}  // namespace touchstone::cuda
