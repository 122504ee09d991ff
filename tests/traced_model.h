// Passes of small models as traces, for the tests of bisect.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "golden/bisect/reference_pass.h"
#include "golden/bisect/trace_steps.h"
#include "reference/model/checkpoint_weights.h"
#include "reference/model/model.h"
#include "reference/model/synthetic_tensors.h"
#include "reference/model/trace_file.h"
#include "reference/numerics/random.h"
#include "reference/text_model.h"

namespace touchstone::traced {

inline const TensorSource& tiny() {
    static const SyntheticTensors made(*find_model("tiny").config(), 1);
    return made;
}

inline std::vector<int32_t> tokens(const ModelConfig& config, int64_t count) {
    std::vector<int32_t> result(static_cast<size_t>(count));
    for (size_t i = 0; i < result.size(); ++i)
        result[i] =
            static_cast<int32_t>(RandomStream{5, 77}.word(i) % static_cast<uint32_t>(config.vocab_size));
    return result;
}

/// Runs calls of those many tokens, one after another, and traces them all.
inline TensorMap pass(const TextModel& model, std::span<const int64_t> calls) {
    TraceTensors made;
    SequenceState state(model.config());
    int64_t total = 0;
    for (const int64_t count : calls) total += count;
    const std::vector<int32_t> all = tokens(model.config(), total);
    int64_t first = 0;
    for (const int64_t count : calls) {
        ForwardOptions options;
        options.trace = Trace(&made, call_prefix(first));
        const Request request{&state,
                              std::span(all).subspan(static_cast<size_t>(first), static_cast<size_t>(count))};
        model.forward({&request, 1}, options);
        first += count;
    }
    return std::move(made.tensors);
}

inline TensorMap pass(const TensorSource& source, Arithmetic arithmetic, std::span<const int64_t> calls,
                      ReleasedBehaviour released = {}) {
    const CheckpointWeights views(source);
    return pass(TextModel(source.config(), views, arithmetic, released), calls);
}

/// The backbone's layers.
inline std::vector<LayerRole> backbone(const ModelConfig& config) {
    std::vector<LayerRole> roles = layer_roles(config);
    std::erase_if(roles, [](const LayerRole& role) { return role.half == LayerHalf::draft; });
    return roles;
}

}  // namespace touchstone::traced
