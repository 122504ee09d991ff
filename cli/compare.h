// touchstone compare: the options it was given, and its report for programs.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "cli/table.h"
#include "golden/compare/compare.h"
#include "golden/compare/compare_text.h"

namespace touchstone::cli {

/// Schema touchstone.compare/1.
nlohmann::json compare_json(const CompareReport& report, const CompareCommands& commands);
/// One row a tensor.
Table compare_table(const CompareReport& report);

}  // namespace touchstone::cli
