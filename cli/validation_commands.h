// Options of the commands that judge other people's results: golden, compare, bisect.
#pragma once

#include <CLI/CLI.hpp>

namespace touchstone::cli {

/// Each adds its command, which sets `exit_code` when it has run.
void add_golden_command(CLI::App& app, int& exit_code);
void add_compare_command(CLI::App& app, int& exit_code);
void add_bisect_command(CLI::App& app, int& exit_code);

}  // namespace touchstone::cli
