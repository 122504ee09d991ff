// Reading a configuration file's keys. Internal to reference/model: callers use load_config.
#pragma once

#include <string>
#include <vector>

#include "reference/io/config_json.h"
#include "reference/model/config.h"

namespace touchstone {

/// Keys that files hold on purpose, so that none of them is taken for a slip of another.
std::vector<std::string> known_config_keys();

/// The configuration that a file's root object stands for, fields in range one by one; validate() checks the
/// rest. Throws UserError: unknown model_type, missing, renamed, wrong-typed or contradictory keys.
ModelConfig read_any_form(const JsonObject& root);

}  // namespace touchstone
