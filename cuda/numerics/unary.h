// Functions of one fp32 number over all 2^32 inputs on the device, hashed where they are computed.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string_view>

#include "reference/numerics/all_inputs.h"

namespace touchstone::cuda {

/// hashes[p] = the hash of part p (reference/numerics/all_inputs.h), input_parts values of device memory.
/// `kind` and `name` are those of device cases: "conversion" and a name of reference/numerics/conversions.h,
/// or "elementary" and a name of elementary_functions(). Asynchronous on `stream`. Throws UserError for any
/// other name, std::runtime_error when the launch fails.
void unary_part_hashes(std::string_view kind, std::string_view name, uint64_t* hashes, cudaStream_t stream);

/// The outputs of one part, part_inputs values of device memory: bits, zero-extended.
void unary_part_outputs(std::string_view kind, std::string_view name, int part, uint32_t* outputs,
                        cudaStream_t stream);

}  // namespace touchstone::cuda
