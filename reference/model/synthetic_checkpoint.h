// Checkpoints made up of random numbers: the released names, types and shapes, magnitudes with which a
// forward pass stays in a healthy range.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reference/model/config.h"
#include "reference/model/weights.h"

namespace touchstone {

struct SyntheticCheckpointOptions {
    uint64_t seed = 0;
    /// Only the tensors of this layer (as in TensorSpec: draft stages follow the backbone).
    std::optional<int> layer = std::nullopt;
    /// With `layer`: its Engram table too, 101 GB in the released configuration. Whole checkpoints have it.
    bool engram_tables = false;
    /// Files hold at most this many bytes of tensors, if no single tensor has more.
    int64_t shard_bytes = 5'000'000'000;
    /// Called from the calling thread: bytes written so far, bytes to write.
    std::function<void(int64_t, int64_t)> progress = nullptr;
};

/// The tensors that the options ask for, in the order of for_each_tensor. Throws UserError for a layer that
/// there is not.
std::vector<TensorSpec> synthetic_tensors(const ModelConfig& config,
                                          const SyntheticCheckpointOptions& options);

/// Stored elements first_element .. of a tensor (bytes of packed e2m1 are elements), as many as `out` holds.
/// An element is a function of seed, name, shape and index alone. Every value is finite. Weights have a
/// standard deviation of a gain over the root of their inputs, norms are near 1 (the table in the .cpp, after
/// the checkpoint that the released code was recorded with); block scales vary, and with their codes have
/// that deviation.
void fill_synthetic_tensor(const TensorSpec& tensor, uint64_t seed, int64_t first_element,
                           std::span<std::byte> out);

struct SyntheticCheckpoint {
    int64_t tensors = 0;
    int64_t bytes = 0;  ///< of tensors
    std::vector<std::string> files;
};

/// Writes config.json and model.safetensors, or shards and their index where shard_bytes asks for them, into
/// `folder`, which is made. In bounded memory, in parallel, the same bytes for any number of threads. When it
/// fails nothing is left; config.json comes last, so a killed process leaves no folder that opens. Throws
/// UserError before anything is written: a family other than V4.1, no such layer, a folder that is not empty,
/// less room on the disk than the tensors need; and when writing fails.
SyntheticCheckpoint write_synthetic_checkpoint(const ModelConfig& config, const std::filesystem::path& folder,
                                               const SyntheticCheckpointOptions& options);

/// The configuration as the config.json of a Hugging Face folder: what dump_config gives, and the keys that
/// other readers of that form ask for.
std::string hugging_face_config(const ModelConfig& config);

}  // namespace touchstone
