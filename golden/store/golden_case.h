// The cases that the golden store holds, and what running one gives.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "reference/registry/registry.h"

namespace touchstone {

/// What makes the inputs of cases: fillers over counter-based random numbers (numerics/fill.h). A change of
/// theirs that changes an input is a new version.
inline constexpr std::string_view generator_name = "philox4x32-10 fillers";
inline constexpr int generator_version = 1;

struct GoldenCase {
    const OperatorInfo* info;
    Parameters parameters;
    std::string text;   ///< every parameter and the seed: what parse_case reads and case_text writes
    std::string id;     ///< as short as the list has it: "rows=5,width=512,fill=limits"
    std::string limit;  ///< the fault or edge that it trips; empty for an ordinary case
    std::vector<Arithmetic> profiles;  ///< that it runs in and whose bits differ
    bool representative;               ///< of the registry, or the first of its row of sweep_cases.h
};

/// The registry's default cases, then those of sweep_cases.h: each once, an operator's together.
const std::vector<GoldenCase>& golden_cases();

/// A tensor as the store's tables have it.
struct TensorDigest {
    std::string form;   ///< type and shape: "BF16[5,512]"
    uint64_t hash = 0;  ///< tensor_hash

    friend bool operator==(const TensorDigest&, const TensorDigest&) = default;
};
TensorDigest digest_of(const Tensor& tensor);
/// "BF16[5,512]:0123456789abcdef".
std::string digest_text(const TensorDigest& digest);

/// The part of a case's record that holds its inputs; the others have the names of profiles.
inline constexpr std::string_view inputs_part = "inputs";

/// Tensors by part, then by slot.
using CaseTensors = std::map<std::string, TensorMap, std::less<>>;

/// Inputs and the outputs of those profiles. Throws UserError as run_operator does.
CaseTensors run_case(const OperatorInfo& info, const Parameters& parameters,
                     const std::vector<Arithmetic>& profiles);

/// Whether the store keeps the case's tensors themselves: those of representative cases that trip something
/// and are small, and for an operator without any such the smallest.
bool keeps_tensors(const GoldenCase& golden);

}  // namespace touchstone
