// The two files of a case whose tensors the store keeps: case.json says what it is, tensors.safetensors holds
// the bits.
#pragma once

#include <filesystem>
#include <string>

#include "golden/store/golden_case.h"

namespace touchstone {

inline constexpr std::string_view case_file_name = "case.json";
inline constexpr std::string_view tensors_file_name = "tensors.safetensors";

/// Schema touchstone.golden_case/1: case, parameters, profiles, generator, versions, tolerances, claim. Names
/// neither time nor revision.
std::string case_json(const GoldenCase& golden, bool inputs_kept);
/// The case text of a case.json. Throws UserError, naming `where`, for anything else.
std::string case_of_json(std::string_view text, const std::string& where);

/// Tensors under the names "inputs/x", "exact/y", "hopper/y". Throws UserError when it cannot be written.
void write_case_tensors(const std::filesystem::path& path, const CaseTensors& tensors,
                        const std::string& case_line);
/// Throws UserError as SafetensorsFile does, and for a name without a part.
CaseTensors read_case_tensors(const std::filesystem::path& path);

/// Whether a case keeps its inputs beside its outputs: where they are small.
bool keeps_inputs(const CaseTensors& tensors);

}  // namespace touchstone
