#include <algorithm>
#include <stdexcept>
#include <string>

#include "cuda/quantize.h"

namespace touchstone::cuda {

namespace {

constexpr int64_t threads_per_block = 128, most_blocks = 65536;

/// What a kernel knows of the rows; a plain value, passed by copy.
struct Rows {
    KvPageMap map;
    KvElement element;
    KvScale scale;
    int64_t first_slot, n;
    int64_t channels, tail_channels;
    int64_t block_channels, blocks;    ///< channels per scale; scales per row
    int64_t block_bytes, scale_bytes;  ///< of one block's codes; of one scale
};

Rows rows_of(const KvPage& page, int64_t first_slot, int64_t n) {
    const KvRecord& record = page.record;
    return {
        .map = page.addresses(),
        .element = record.element,
        .scale = record.scale,
        .first_slot = first_slot,
        .n = n,
        .channels = record.channels,
        .tail_channels = record.tail_channels,
        .block_channels = record.scale_block > 0 ? record.scale_block : std::max<int64_t>(record.channels, 1),
        .blocks = record.scale_count(),
        .block_bytes = record.scale_block * element_bits(record.element) / 8,
        .scale_bytes = scale_bytes(record.scale)};
}

/// The parts of row i that are not quantised: tail copied, padding zeroed, as the CPU does.
__device__ void copy_tail_and_zero_padding(const Rows& rows, const Bf16* x, int64_t i, std::byte* pages) {
    const int64_t slot = rows.first_slot + i;
    const KvRowOffsets at = rows.map.row(slot);
    for (int64_t t = 0; t < rows.tail_channels; ++t) {
        const uint32_t bits = x[rows.channels + t].bits;
        pages[at.tail + 2 * t] = static_cast<std::byte>(bits & 0xFF);  // byte by byte: rows of odd width
        pages[at.tail + 2 * t + 1] = static_cast<std::byte>(bits >> 8);
    }
    for (int64_t p = 0; p < rows.map.record_padding.size_bytes; ++p)
        pages[at.record_padding + p] = std::byte{0};
    if (i > 0 && slot % rows.map.records != 0) return;
    for (int64_t p = rows.map.payload_bytes; p < rows.map.page_bytes; ++p)
        pages[rows.map.page_of(slot) + p] = std::byte{0};
}

/// Thread u: block u % (blocks + 1) of row u / (blocks + 1); the last stands for tail and padding.
__global__ void quantize_kernel(Rows rows, BlockRule rule, const Bf16* input, std::byte* pages) {
    const int64_t width = rows.channels + rows.tail_channels, units = rows.n * (rows.blocks + 1);
    const int64_t stride = int64_t{gridDim.x} * blockDim.x;
    for (int64_t u = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; u < units; u += stride) {
        const int64_t i = u / (rows.blocks + 1), b = u % (rows.blocks + 1);
        const Bf16* x = input + i * width;
        if (b == rows.blocks) {
            copy_tail_and_zero_padding(rows, x, i, pages);
            continue;
        }
        const KvRowOffsets at = rows.map.row(rows.first_slot + i);
        quantize_block(rule, x + b * rule.block, pages + at.values + b * rows.block_bytes,
                       pages + at.scales + b * rows.scale_bytes);
    }
}

/// Thread u: channel u % width of row u / width.
__global__ void dequantize_kernel(Rows rows, const std::byte* pages, float* out) {
    const int64_t width = rows.channels + rows.tail_channels;
    const int64_t stride = int64_t{gridDim.x} * blockDim.x;
    for (int64_t u = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; u < rows.n * width; u += stride) {
        const int64_t c = u % width;
        const KvRowOffsets at = rows.map.row(rows.first_slot + u / width);
        if (c < rows.channels) {
            const std::byte* scale = pages + at.scales + c / rows.block_channels * rows.scale_bytes;
            out[u] =
                dequantized(code_value(rows.element, pages + at.values, c), stored_scale(rows.scale, scale));
        } else {
            const std::byte* tail = pages + at.tail + 2 * (c - rows.channels);
            const uint32_t bits = static_cast<uint32_t>(tail[0]) | static_cast<uint32_t>(tail[1]) << 8;
            out[u] = to_float(Bf16{static_cast<uint16_t>(bits)});
        }
    }
}

unsigned grid_for(int64_t threads) {
    return static_cast<unsigned>(
        std::clamp((threads + threads_per_block - 1) / threads_per_block, int64_t{1}, most_blocks));
}

void check_launch(const char* where) {
    const cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return;
    throw std::runtime_error(std::string("cuda::") + where + ": launch failed: " + cudaGetErrorString(error));
}

}  // namespace

void quantize_rows(const KvPage& page, Quantizer quantizer, const Bf16* rows, int64_t n, std::byte* pages,
                   int64_t pages_bytes, int64_t first_slot, cudaStream_t stream) {
    const char* where = "quantize_rows";
    require_slots(page, pages_bytes, first_slot, n, where);
    const BlockRule rule = rule_for(quantizer, page.record, where);
    if (n == 0) return;
    const Rows launch = rows_of(page, first_slot, n);
    quantize_kernel<<<grid_for(n * (launch.blocks + 1)), threads_per_block, 0, stream>>>(launch, rule, rows,
                                                                                         pages);
    check_launch(where);
}

void dequantize_rows(const KvPage& page, const std::byte* pages, int64_t pages_bytes, int64_t first_slot,
                     int64_t n, float* out, cudaStream_t stream) {
    const char* where = "dequantize_rows";
    require_slots(page, pages_bytes, first_slot, n, where);
    if (n == 0) return;
    const Rows launch = rows_of(page, first_slot, n);
    const int64_t channels = n * (launch.channels + launch.tail_channels);
    dequantize_kernel<<<grid_for(channels), threads_per_block, 0, stream>>>(launch, pages, out);
    check_launch(where);
}

}  // namespace touchstone::cuda
