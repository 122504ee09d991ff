#include <algorithm>
#include <stdexcept>
#include <string>

#include "cuda/numerics/sums.cuh"
#include "cuda/numerics/sums.h"
#include "reference/io/user_error.h"

namespace touchstone::cuda {

namespace {

constexpr int64_t most_blocks = 65536;
constexpr int most_threads = 1024;
constexpr int warps_per_block = 4;  // of the kernels that give each row a warp

template <class Step, class X, class Y>
__global__ void warp_kernel(Lanes lanes, const X* x, const Y* y, int64_t rows, int64_t k, float* out) {
    const int64_t stride = int64_t{gridDim.x} * warps_per_block;
    const int thread = threadIdx.x % warp_threads, threads = threads_of(lanes);
    for (int64_t row = int64_t{blockIdx.x} * warps_per_block + threadIdx.x / warp_threads; row < rows;
         row += stride) {
        const Y* const factors = y == nullptr ? nullptr : y + row * k;
        // Threads beyond those that own lanes take part in the shuffles with +0.
        const float mine = thread < threads ? thread_sum(Step{}, lanes, thread, x + row * k, factors, k) : 0;
        const float sum = combine_warp(mine, threads);
        if (thread == 0) out[row] = with_canonical_nan(sum);
    }
}

template <class Step, class X, class Y>
__global__ void __launch_bounds__(most_threads)
    block_kernel(Lanes lanes, const X* x, const Y* y, int64_t rows, int64_t k, float* out) {
    __shared__ float warp_sums[warp_threads];
    const int thread = static_cast<int>(threadIdx.x), threads = threads_of(lanes);
    for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
        const Y* const factors = y == nullptr ? nullptr : y + row * k;
        const float mine = thread_sum(Step{}, lanes, thread, x + row * k, factors, k);
        const float sum = combine_block(mine, threads, warp_sums);
        if (thread == 0) out[row] = with_canonical_nan(sum);
    }
}

template <class X>
__global__ void largest_kernel(const X* x, int64_t rows, int64_t k, float* out) {
    const int64_t stride = int64_t{gridDim.x} * warps_per_block;
    const int thread = threadIdx.x % warp_threads;
    for (int64_t row = int64_t{blockIdx.x} * warps_per_block + threadIdx.x / warp_threads; row < rows;
         row += stride) {
        const float largest = largest_of_warp(thread_largest(thread, warp_threads, x + row * k, k));
        if (thread == 0) out[row] = largest;
    }
}

unsigned grid_of(int64_t blocks) {
    return static_cast<unsigned>(std::clamp(blocks, int64_t{1}, most_blocks));
}

unsigned warp_grid(int64_t rows) {
    return grid_of((rows + warps_per_block - 1) / warps_per_block);
}

void check_launch() {
    const cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return;
    throw std::runtime_error(std::string("cuda::sum_rows: launch failed: ") + cudaGetErrorString(error));
}

void require(bool good, const std::string& what, const std::string& expected) {
    if (!good) throw UserError({what, "cuda::sum_rows", expected, ""});
}

void require_arguments(RowSum what, Lanes lanes, bool has_y, int64_t rows, int64_t k) {
    require(lanes.valid(), std::to_string(lanes.count) + " lanes",
            "a power of two from 1 to " + std::to_string(Lanes::most) + ", 1 when sequential");
    require(rows >= 0 && k >= 0, std::to_string(rows) + " rows of " + std::to_string(k), "none negative");
    require(rows * k == 0 || has_y == (what == RowSum::dot), has_y ? "y is given" : "y is null",
            "y for dot and for nothing else");
}

template <class Step, class X, class Y>
void launch(Lanes lanes, const X* x, const Y* y, int64_t rows, int64_t k, float* out, cudaStream_t stream) {
    const int threads = threads_of(lanes);
    if (threads <= warp_threads) {
        warp_kernel<Step>
            <<<warp_grid(rows), warps_per_block * warp_threads, 0, stream>>>(lanes, x, y, rows, k, out);
    } else {
        block_kernel<Step>
            <<<grid_of(rows), static_cast<unsigned>(threads), 0, stream>>>(lanes, x, y, rows, k, out);
    }
    check_launch();
}

template <class X>
void sum_rows_of(RowSum what, Lanes lanes, const X* x, const X* y, int64_t rows, int64_t k, float* out,
                 cudaStream_t stream) {
    require_arguments(what, lanes, y != nullptr, rows, k);
    if (rows == 0) return;
    switch (what) {
        case RowSum::sum: return launch<SumStep>(lanes, x, y, rows, k, out, stream);
        case RowSum::sum_of_squares: return launch<SquareStep>(lanes, x, y, rows, k, out, stream);
        case RowSum::dot: return launch<ProductStep>(lanes, x, y, rows, k, out, stream);
        case RowSum::largest: break;
    }
    largest_kernel<<<warp_grid(rows), warps_per_block * warp_threads, 0, stream>>>(x, rows, k, out);
    check_launch();
}

}  // namespace

void sum_rows(RowSum what, Lanes lanes, const float* x, const float* y, int64_t rows, int64_t k, float* out,
              cudaStream_t stream) {
    sum_rows_of(what, lanes, x, y, rows, k, out, stream);
}

void sum_rows(RowSum what, Lanes lanes, const Bf16* x, const Bf16* y, int64_t rows, int64_t k, float* out,
              cudaStream_t stream) {
    sum_rows_of(what, lanes, x, y, rows, k, out, stream);
}

void dot_rows(Lanes lanes, const Bf16* x, const float* y, int64_t rows, int64_t k, float* out,
              cudaStream_t stream) {
    require_arguments(RowSum::dot, lanes, y != nullptr, rows, k);
    if (rows == 0) return;
    launch<ProductStep>(lanes, x, y, rows, k, out, stream);
}

}  // namespace touchstone::cuda
