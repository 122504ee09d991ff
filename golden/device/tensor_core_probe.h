// The probe: does a chip obey the table of tensor_core_instructions()? Which cases it runs, how a device's
// answers are compared with the CPU's, and whether they refute every other model. The device is a function,
// so that tests can put a faulty one in its place.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "golden/device/tensor_core_alternatives.h"
#include "golden/device/tensor_core_case.h"

namespace touchstone {

/// The bits of D for a case's inputs.
using TensorCoreDevice =
    std::function<std::vector<uint32_t>(const TensorCoreCase& device_case, const TensorCoreInputs& inputs)>;

/// An output that is not what the CPU says, with all that went into it.
struct TensorCoreDifference {
    int64_t tile;
    int m, n;
    std::vector<uint32_t> a, b;  ///< operand bits over K
    uint32_t c, cpu, device;
};

struct TensorCoreComparison {
    TensorCoreCase device_case;
    int64_t steps = 0;  ///< sums of one instruction step that were compared, chains counted per step
    int64_t outputs = 0, differing = 0;
    std::optional<TensorCoreDifference> first;
    CaseHashes hashes;  ///< of the inputs and of the device's outputs
};

/// Runs the case on the device and on the CPU. Throws std::runtime_error when the device returns another
/// number of outputs.
TensorCoreComparison compare_with_device(const TensorCoreCase& device_case, const TensorCoreDevice& device);

/// Several lines: case, tile, row and column, operands in hexadecimal, C, both results, and the command that
/// runs the case alone.
std::string describe(const TensorCoreCase& device_case, const TensorCoreDifference& difference);

/// For every instruction and variant at least `steps` steps. Every kind in chains of 1 and 3, small enough at
/// the default of 10^8 for a CPU's default tests; then directed kinds in chains of 2, and random kinds, most
/// of all steps, in chains of 8.
std::vector<TensorCoreCase> probe_cases(int64_t steps);

/// How one wrong model fares on a device's outputs.
struct AlternativeComparison {
    std::string instruction, alternative;
    int64_t outputs = 0, differing = 0;
};

/// The right model among the alternatives.
inline constexpr const char* table_model_name = "the table's";

/// First the right model, table_model_name, which must not differ, over all kinds of inputs that the others
/// need; then refuted_alternatives(), each over its own. Single steps, about `outputs` outputs of each kind.
std::vector<AlternativeComparison> compare_alternatives(const MatrixInstruction& instruction, int64_t outputs,
                                                        const TensorCoreDevice& device);

/// Two instructions, or two variants, given the same inputs.
struct PairComparison {
    std::string left, right;  ///< "instruction, variant"
    bool expected_equal = true;
    int64_t outputs = 0, differing = 0;
};

/// wgmma with A from shared memory and mma.sync, each against wgmma with A from registers, over all kinds of
/// inputs, about `outputs` outputs per pair. fp8 is expected to differ: mma.sync emulates it.
std::vector<PairComparison> compare_pairs(int64_t outputs, const TensorCoreDevice& device);

}  // namespace touchstone
