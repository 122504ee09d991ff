// A checkpoint folder: config.json and safetensors files, one or many, whose tensors have the released names,
// types and shapes (text model 2.4 and 21). Files are mapped when first used and read as they are touched, so
// 510 GB stream through a small machine layer by layer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/io/safetensors.h"
#include "reference/linear.h"
#include "reference/model/config.h"
#include "reference/model/tensor_source.h"
#include "reference/model/weights.h"

namespace touchstone {

/// What `model.safetensors.index.json` says.
struct ShardIndex {
    std::map<std::string, std::string, std::less<>> shard_of_tensor;
    std::optional<int64_t> total_bytes;  ///< metadata.total_size: of all tensors
};

/// Parses an index; `source` stands for it in messages. Throws UserError: not JSON, a tensor named twice, no
/// weight_map, a shard that is no plain file name ending in .safetensors (a path could leave the folder).
ShardIndex parse_shard_index(std::string_view text, const std::string& source);

enum class CheckpointFault : uint8_t {
    shard,      ///< a file is absent, cannot be read or is not well formed
    missing,    ///< a tensor of the configuration
    extra,      ///< a tensor that the configuration does not have, or that the index does not list
    duplicate,  ///< a tensor in a second file
    type,
    shape,
    size,   ///< metadata.total_size of the index is another
    value,  ///< NaN or infinity
};
std::string_view name(CheckpointFault fault);

struct CheckpointProblem {
    CheckpointFault fault;
    std::string subject;  ///< the tensor, or the file
    std::string what;     ///< e.g. "F8_E8M0 [1, 1] in model.safetensors, not F8_E8M0 [4, 4]"
};

struct CheckpointReport {
    int64_t expected_tensors = 0;  ///< of the configuration, or of the layer asked for
    int64_t sound_tensors = 0;     ///< of them, present with the right type, shape and, if asked for, values
    int64_t sound_bytes = 0;
    std::vector<CheckpointProblem> problems;  ///< the first `most_problems`
    int64_t problem_count = 0;                ///< all
};

/// A folder opened for reading. After the constructor every const member may be called from any thread.
class Checkpoint final : public TensorSource {
  public:
    /// Reads config.json and either the header of model.safetensors or the index. A folder that lacks tensors
    /// or shards opens: what is absent is refused when asked for. Throws UserError: no such folder, no or two
    /// lists of tensors, and what load_config, for_each_tensor, SafetensorsFile and parse_shard_index say.
    explicit Checkpoint(const std::filesystem::path& folder);

    /// Whether the header or the index lists the tensor.
    bool has(std::string_view name) const { return shard_of_.contains(name); }

    void release_layer(int layer) const override;

    struct VerifyOptions {
        std::optional<int> layer = std::nullopt;  ///< only tensors of this layer
        /// Look for NaN scales and codes, and bf16 and fp32 that are not finite: reads every tensor but
        /// packed e2m1, of which every code is a number.
        bool values = false;
        int64_t most_problems = 100;
        /// Called from the calling thread: bytes read so far, bytes to read.
        std::function<void(int64_t, int64_t)> progress = nullptr;
    };
    /// Compares the whole folder with the configuration. Throws UserError for a layer that there is not.
    CheckpointReport verify(const VerifyOptions& options) const;
    /// Throws UserError that lists the first problems of `verify`, unless there are none.
    void require_complete() const;

  private:
    struct Verification;

    const SafetensorsFile& shard(std::string_view file_name) const;
    const SafetensorsTensor& stored(const TensorSpec& spec) const;
    std::span<const std::byte> stored_bytes(const TensorSpec& spec, size_t alignment) const override;

    std::filesystem::path folder_;
    std::map<std::string, std::string, std::less<>> shard_of_;
    std::optional<int64_t> total_bytes_;

    mutable std::mutex mutex_;  ///< of the two maps below, which only grow
    mutable std::map<std::string, std::unique_ptr<SafetensorsFile>, std::less<>> shards_;
    mutable std::map<std::string_view, std::vector<std::byte>> copies_;
};

}  // namespace touchstone
