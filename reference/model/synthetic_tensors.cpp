#include "reference/model/synthetic_tensors.h"

#include "reference/model/synthetic_checkpoint.h"

namespace touchstone {

SyntheticTensors::SyntheticTensors(const ModelConfig& config, uint64_t seed) : seed_(seed) {
    set_config(config, "the synthetic checkpoint");
}

std::span<const std::byte> SyntheticTensors::stored_bytes(const TensorSpec& spec, size_t) const {
    const std::lock_guard lock(mutex_);
    std::vector<std::byte>& bytes = made_[&spec];  // of operator new: aligned for every element
    if (bytes.empty()) {
        bytes.resize(static_cast<size_t>(spec.stored_bytes()));
        fill_synthetic_tensor(spec, seed_, 0, bytes);
    }
    return bytes;
}

}  // namespace touchstone
