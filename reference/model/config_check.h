// Checking a configuration. Internal to reference/model: callers use validate and load_config.
#pragma once

#include <string>

#include "reference/model/config.h"

namespace touchstone {

/// Ranges of all fields and everything that ties them together. `file` names the source in messages, whose
/// keys are those of the inference form when `inference`. Throws UserError.
void check_config(const ModelConfig& config, const std::string& file, bool inference);

}  // namespace touchstone
