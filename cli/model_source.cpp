#include "cli/model_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "cli/arguments.h"
#include "cli/table.h"
#include "reference/model/checkpoint.h"
#include "reference/model/model.h"
#include "reference/model/synthetic_tensors.h"

namespace touchstone::cli {

namespace {

/// A preset of this size or more needs a checkpoint on disk.
constexpr int64_t most_synthetic_bytes = 4'000'000'000;

[[noreturn]] void refuse(std::string what, std::string where, std::string expected) {
    throw UserError({std::move(what), std::move(where), std::move(expected), ""});
}

}  // namespace

std::unique_ptr<TensorSource> open_source(const std::string& config, const std::string& weights_seed,
                                          std::vector<std::string>& assumptions) {
    const std::vector<std::string> presets = preset_names();
    std::error_code not_a_folder;
    if (std::ranges::find(presets, config) == presets.end() &&
        std::filesystem::is_directory(config, not_a_folder)) {
        if (!weights_seed.empty())
            refuse("--weights-seed beside a checkpoint", "--weights-seed",
                   "a preset, whose weights are made up");
        return std::make_unique<Checkpoint>(config);
    }
    const Model model = find_model(config);
    if (model.config() == nullptr)
        refuse(fmt::format("model {} is a baseline: only its caches are described", model.name), "--config",
               "a checkpoint folder, or tiny");
    int64_t bytes = 0;
    for_each_tensor(*model.config(), [&](const TensorSpec& spec) { bytes += spec.stored_bytes(); });
    if (bytes >= most_synthetic_bytes)
        refuse(fmt::format("{} has {} bytes of weights", model.name, grouped(bytes)), "--config",
               "a folder with its checkpoint, or a small preset such as tiny, whose weights are made up");
    const uint64_t seed =
        weights_seed.empty() ? 1 : parse_number<uint64_t>("--weights-seed", weights_seed, 0, UINT64_MAX);
    assumptions.push_back(
        fmt::format("weights are random numbers (seed {}): what is said has no meaning", seed));
    return std::make_unique<SyntheticTensors>(*model.config(), seed);
}

}  // namespace touchstone::cli
