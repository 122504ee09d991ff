// The next token (spec: text model, 10.1).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/numerics/random.h"

namespace touchstone {

/// The largest logit's index; ties to the lower id, NaN below everything.
int32_t greedy_token(std::span<const float> logits);

/// softmax(logits / max(temperature, 1e-5)): exp(x - largest), summed in the lanes of `sampling_softmax`.
void token_probabilities(std::span<const float> logits, float temperature, std::span<float> probabilities);

/// The index of the largest probability / e, e an exponential number of its own per token: -log(u), u in (0,
/// 1) from `random` at counter first + token. Temperature 0 is greedy_token. Throws UserError for a negative
/// temperature or no logits.
int32_t sample_token(std::span<const float> logits, float temperature, const RandomStream& random,
                     uint64_t first);

}  // namespace touchstone
