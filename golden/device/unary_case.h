// Cases that run a function of one fp32 number over all 2^32 inputs.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "golden/device/case_hashes.h"
#include "reference/numerics/all_inputs.h"
#include "reference/registry/case_text.h"

namespace touchstone {

/// conversion(name=): one of reference/numerics/conversions.h; elementary(function=): one of
/// elementary_functions().
struct UnaryCase {
    std::string kind;  ///< "conversion" or "elementary"
    std::string name;
    friend bool operator==(const UnaryCase&, const UnaryCase&) = default;
};

/// Every case there is, conversions first.
std::vector<UnaryCase> unary_cases();

UnaryCase parse_unary_case(CaseText& text);
std::string to_text(const UnaryCase& device_case);
CaseHashes hashes_on_cpu(const UnaryCase& device_case);
int64_t cpu_cost(const UnaryCase& device_case);

/// The hashes of the input_parts parts, in parallel.
std::vector<uint64_t> part_hashes_on_cpu(const UnaryCase& device_case);
/// The outputs of one part, zero-extended bits.
std::vector<uint32_t> part_outputs_on_cpu(const UnaryCase& device_case, int part);
/// The sum of the parts', mod 2^64.
uint64_t whole_hash(const std::vector<uint64_t>& part_hashes);

}  // namespace touchstone
