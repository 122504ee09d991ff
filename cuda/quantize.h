// reference/quantize.h on the device: the same names, rows, pages and bytes. Rows and pages are device
// memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "reference/quantize.h"

namespace touchstone::cuda {

/// touchstone::quantize_rows of `n` rows, bf16 [n, channels + tail_channels], into `pages` of `pages_bytes`
/// bytes, bit for bit, padding included. Pages need no alignment. One thread per scale block; asynchronous on
/// `stream`. Throws UserError as the CPU's does, std::runtime_error when the launch fails; what fails later
/// is reported by the next call that synchronises.
void quantize_rows(const KvPage& page, Quantizer quantizer, const Bf16* rows, int64_t n, std::byte* pages,
                   int64_t pages_bytes, int64_t first_slot, cudaStream_t stream);

/// touchstone::dequantize_rows of `n` rows into `out`, fp32 [n, channels + tail_channels], bit for bit. One
/// thread per channel; asynchronous on `stream`; throws as quantize_rows does.
void dequantize_rows(const KvPage& page, const std::byte* pages, int64_t pages_bytes, int64_t first_slot,
                     int64_t n, float* out, cudaStream_t stream);

}  // namespace touchstone::cuda
