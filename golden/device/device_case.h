// Device cases: lines of text that say what was run on a GPU, so exactly that a CPU can run it again and know
// every output bit (numerics contract, section 8).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "golden/device/matmul_case.h"
#include "golden/device/sums_case.h"
#include "golden/device/tensor_core_case.h"
#include "golden/device/unary_case.h"

namespace touchstone {

using DeviceCase = std::variant<TensorCoreCase, UnaryCase, SumsCase, MatmulCase>;

/// Throws UserError naming `where` for a case that no device could have run.
DeviceCase parse_device_case(std::string_view text, const std::string& where);

/// The text that parse_device_case reads; parameters in a fixed order.
std::string to_text(const DeviceCase& device_case);

/// Runs the case on the CPU, in parallel.
CaseHashes hashes_on_cpu(const DeviceCase& device_case);

/// About how long that takes, in nanoseconds of one core with AVX2.
int64_t cpu_cost(const DeviceCase& device_case);

}  // namespace touchstone
