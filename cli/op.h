// What the two halves of the op command share.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.h"
#include "reference/registry/registry.h"

namespace touchstone::cli {

/// op --list and op --describe.
void list_operators(const OutputFormat& output);
void describe_operator(const OperatorInfo& info, const OutputFormat& output);

/// "exact, hopper; released_hopper gives the bits of hopper".
std::string profiles_text(const OperatorInfo& info);

/// The extents: "[3, 5120]".
std::string shape_string(const std::vector<int64_t>& shape);

}  // namespace touchstone::cli
