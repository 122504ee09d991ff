// The model that a command is about, with its weights.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "reference/model/tensor_source.h"

namespace touchstone::cli {

/// A checkpoint folder, or a small preset with random weights (`weights_seed` empty: 1), which are said in
/// `assumptions`. Throws UserError for a baseline, a preset too large for made-up weights, a seed beside a
/// checkpoint, and as Checkpoint does.
std::unique_ptr<TensorSource> open_source(const std::string& config, const std::string& weights_seed,
                                          std::vector<std::string>& assumptions);

}  // namespace touchstone::cli
