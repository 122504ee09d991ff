// The next token (spec: text model, 10.1).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/numerics/random.h"

namespace touchstone {

/// The largest logit's index; ties to the lower id, NaN below everything. Throws UserError for no logits.
int32_t greedy_token(std::span<const float> logits);

/// softmax(logits / max(temperature, 1e-5)): exp(x - largest), summed in the lanes of `sampling_softmax`. A
/// NaN or +infinity among the logits makes every probability NaN. Throws UserError for a negative temperature
/// and for sizes that differ.
void token_probabilities(std::span<const float> logits, float temperature, std::span<float> probabilities);

/// The index of the largest probability / e, ties to the lower id; e is an exponential number of its own per
/// token, -log1p(-v), v = fp32(word) 2^-32 + 2^-33 in fp32, below 1, the word of `random` at counter first +
/// token. Temperature 0 is greedy_token. Throws UserError for a negative temperature, for no logits and,
/// above temperature 0, where the probabilities are NaN.
int32_t sample_token(std::span<const float> logits, float temperature, const RandomStream& random,
                     uint64_t first);

}  // namespace touchstone
