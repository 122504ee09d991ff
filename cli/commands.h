// The subcommands: each binds its options and sets its callback; main only wires them.
#pragma once

#include <CLI/CLI.hpp>

namespace touchstone::cli {

void add_kv_command(CLI::App& app);
void add_layers_command(CLI::App& app);
void add_replay_command(CLI::App& app);

}  // namespace touchstone::cli
