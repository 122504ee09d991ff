// What the files of the golden command share.
#pragma once

#include <filesystem>
#include <optional>

#include "cli/commands.h"

namespace touchstone::cli {

/// The folder of the store: --store, else TOUCHSTONE_GOLDEN, else the checkout's golden/. Nothing, and a line
/// on stderr, where that holds no store.
std::optional<std::filesystem::path> find_golden_store(const GoldenOptions& options);

}  // namespace touchstone::cli
