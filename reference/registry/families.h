// The entries of the registry, a family to a file.
#pragma once

#include <vector>

#include "reference/registry/operator.h"

namespace touchstone {

std::vector<OperatorInfo> quantize_operators();
std::vector<OperatorInfo> norm_and_rope_operators();
std::vector<OperatorInfo> linear_operators();
std::vector<OperatorInfo> compressor_operators();
std::vector<OperatorInfo> indexer_operators();
std::vector<OperatorInfo> selection_operators();
std::vector<OperatorInfo> attention_operators();
std::vector<OperatorInfo> hyper_connection_operators();
std::vector<OperatorInfo> expert_operators();
std::vector<OperatorInfo> engram_operators();
std::vector<OperatorInfo> sampling_operators();

}  // namespace touchstone
