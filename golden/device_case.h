// Device cases: lines of text that say what was run on a GPU, so exactly that a CPU can run it again and know
// every output bit (numerics contract, section 8).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "golden/tensor_core_inputs.h"

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

/// conversion(name=): a conversion of reference/numerics/conversions.h over all 2^32 fp32 inputs.
struct ConversionCase {
    std::string name;
    friend bool operator==(const ConversionCase&, const ConversionCase&) = default;
};

/// matmul(m=,n=,k=,piece_k=,seed=): D [m, n] = X [m, k] W [n, k]^T of bf16, fp32 out, K ascending in steps of
/// hopper.wgmma.bf16. Where piece_k < k, each piece of piece_k is a chain from +0 and the pieces' results are
/// added in fp32, ascending: what a split-K kernel does.
struct MatmulCase {
    int64_t m = 1, n = 1, k = 16, piece_k = 16;
    uint64_t seed = 0;
    friend bool operator==(const MatmulCase&, const MatmulCase&) = default;
};

using DeviceCase = std::variant<TensorCoreCase, ConversionCase, MatmulCase>;

/// Throws UserError naming `where` for a case that no device could have run.
DeviceCase parse_device_case(std::string_view text, const std::string& where);

/// The text that parse_device_case reads; parameters in a fixed order.
std::string to_text(const DeviceCase& device_case);

/// What receipts compare: tensor_hash of the inputs, one tensor after the other at running positions, and of
/// the outputs. Cases over all 2^32 inputs have nothing to hash on the input side: 0.
struct CaseHashes {
    uint64_t input = 0, output = 0;
    int64_t outputs = 0;
    friend bool operator==(const CaseHashes&, const CaseHashes&) = default;
};

/// Runs the case on the CPU, in parallel.
CaseHashes hashes_on_cpu(const DeviceCase& device_case);

/// About how long that takes, in multiply-accumulates of a tensor-core chain.
int64_t cpu_cost(const DeviceCase& device_case);

// The parts, for those who compare element by element.

const MatrixInstruction& instruction_of(const TensorCoreCase& device_case);
TensorCoreInputs inputs_of(const TensorCoreCase& device_case);
uint64_t input_hash(const MatrixInstruction& instruction, const TensorCoreInputs& inputs);
/// The bits of D [tiles, m, n] through tensor_core_gemm; int32 sums that wrap for the integer instruction.
std::vector<uint32_t> outputs_on_cpu(const TensorCoreCase& device_case, const TensorCoreInputs& inputs);

/// X [m, k] and W [n, k], bf16 of 16 binades.
struct MatmulInputs {
    std::vector<uint16_t> x, w;
};
MatmulInputs inputs_of(const MatmulCase& device_case);
uint64_t input_hash(const MatmulInputs& inputs);
std::vector<uint32_t> outputs_on_cpu(const MatmulCase& device_case, const MatmulInputs& inputs);

/// All 2^32 inputs in parts of 2^20, each with its share of the tensor hash, so that a difference can be
/// located; the whole hash is the sum of the parts'.
inline constexpr int unary_parts = 4096;
inline constexpr int64_t unary_part_inputs = int64_t{1} << 20;
using UnaryHashes = std::array<uint64_t, unary_parts>;

std::vector<std::string_view> conversion_names();
UnaryHashes part_hashes_on_cpu(const ConversionCase& device_case);
/// The output for the input of these bits.
uint32_t output_on_cpu(const ConversionCase& device_case, uint32_t input_bits);
uint64_t sum_of(const UnaryHashes& parts);

}  // namespace touchstone
