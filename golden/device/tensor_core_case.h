// Cases that run chains of one matrix instruction.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "golden/device/case_hashes.h"
#include "golden/device/tensor_core_inputs.h"
#include "reference/registry/case_text.h"

namespace touchstone {

/// tensor_core(instruction=,variant=,inputs=,steps=,tiles=,seed=): `tiles` independent chains of `steps`
/// instructions. The variant says where A is read from: "registers" or, for wgmma, "shared".
struct TensorCoreCase {
    std::string instruction, variant, inputs;
    int steps = 1;
    int64_t tiles = 1;
    uint64_t seed = 0;
    friend bool operator==(const TensorCoreCase&, const TensorCoreCase&) = default;
};

TensorCoreCase parse_tensor_core_case(CaseText& text);
std::string to_text(const TensorCoreCase& device_case);
CaseHashes hashes_on_cpu(const TensorCoreCase& device_case);
int64_t cpu_cost(const TensorCoreCase& device_case);

const MatrixInstruction& instruction_of(const TensorCoreCase& device_case);
TensorCoreInputs inputs_of(const TensorCoreCase& device_case);
uint64_t input_hash(const MatrixInstruction& instruction, const TensorCoreInputs& inputs);
/// The bits of D [tiles, m, n] through tensor_core_gemm; int32 sums that wrap for the integer instruction.
std::vector<uint32_t> outputs_on_cpu(const TensorCoreCase& device_case, const TensorCoreInputs& inputs);

}  // namespace touchstone
