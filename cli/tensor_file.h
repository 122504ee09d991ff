// Tensors of operators, in and out of safetensors files.
#pragma once

#include <string>

#include "reference/registry/tensor.h"

namespace touchstone::cli {

/// All tensors of a file. Throws UserError as SafetensorsFile does.
TensorMap read_tensors(const std::string& path);

/// Writes them under their names, `case_line` as the metadatum "case". Throws UserError as SafetensorsWriter
/// does.
void write_tensors(const std::string& path, const TensorMap& tensors, const std::string& case_line);

}  // namespace touchstone::cli
