// The tiny model with the checkpoint that the released code was recorded with (golden/parity), for tests that
// need a whole model.
#pragma once

#include <numeric>
#include <optional>
#include <vector>

#include "reference/model/checkpoint.h"
#include "reference/model/checkpoint_weights.h"
#include "reference/numerics/random.h"
#include "reference/text_model.h"

namespace touchstone::tiny {

inline const Checkpoint& checkpoint() {
    static const Checkpoint opened(TOUCHSTONE_GOLDEN "/parity/official_tiny");
    return opened;
}

inline const ModelConfig& config() {
    return checkpoint().config();
}

inline const CheckpointWeights& weights() {
    static const CheckpointWeights views(checkpoint());
    return views;
}

inline TextModel model(Arithmetic arithmetic, ReleasedBehaviour released = {}) {
    return TextModel(config(), weights(), arithmetic, released);
}

/// `count` tokens of the sequence that `seed` names.
inline std::vector<int32_t> tokens(uint64_t seed, int64_t count) {
    std::vector<int32_t> result(static_cast<size_t>(count));
    for (size_t i = 0; i < result.size(); ++i)
        result[i] =
            static_cast<int32_t>(RandomStream{seed, 77}.word(i) % static_cast<uint32_t>(config().vocab_size));
    return result;
}

}  // namespace touchstone::tiny
