// What the registry says of an operator, as JSON.
#pragma once

#include <string>

#include "reference/registry/operator.h"

namespace touchstone {

/// An object with sorted keys, schema touchstone.operator/1.
std::string operator_json(const OperatorInfo& info);

/// A JSON string. Bytes beyond ASCII stay as they are.
std::string json_string(std::string_view text);

}  // namespace touchstone
