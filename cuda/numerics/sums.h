// reference/numerics/sums.h on the device: sums of rows, the same bits. Rows and results are device memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "reference/numerics/sums.h"

namespace touchstone::cuda {

/// touchstone::sum_rows of `rows` rows of k elements, bit for bit. `y` is null unless what is RowSum::dot.
/// Rows need no alignment beyond their type's; those on 16 bytes are read faster. Up to 256 interleaved lanes
/// a warp per row, above and for chunked lanes a block per row. Asynchronous on `stream`. Throws UserError
/// for invalid lanes, negative sizes or a `y` that does not fit `what`, std::runtime_error when the launch
/// fails.
void sum_rows(RowSum what, Lanes lanes, const float* x, const float* y, int64_t rows, int64_t k, float* out,
              cudaStream_t stream);
void sum_rows(RowSum what, Lanes lanes, const Bf16* x, const Bf16* y, int64_t rows, int64_t k, float* out,
              cudaStream_t stream);

/// The dot product of bf16 rows with fp32 rows (mHC's mix).
void dot_rows(Lanes lanes, const Bf16* x, const float* y, int64_t rows, int64_t k, float* out,
              cudaStream_t stream);

}  // namespace touchstone::cuda
