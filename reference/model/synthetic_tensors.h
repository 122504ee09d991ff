// The tensors of a synthetic checkpoint without the checkpoint.
#pragma once

#include <map>
#include <mutex>
#include <string_view>
#include <vector>

#include "reference/model/tensor_source.h"

namespace touchstone {

/// Makes each tensor when it is first asked for, the bytes that write_synthetic_checkpoint writes, and keeps
/// it: a model of the released size needs a checkpoint on disk.
class SyntheticTensors final : public TensorSource {
  public:
    /// Throws UserError for families other than V4.1.
    SyntheticTensors(const ModelConfig& config, uint64_t seed);

  protected:
    std::span<const std::byte> stored_bytes(const TensorSpec& spec, size_t alignment) const override;

  private:
    uint64_t seed_;
    mutable std::mutex mutex_;
    mutable std::map<const TensorSpec*, std::vector<std::byte>> made_;
};

}  // namespace touchstone
