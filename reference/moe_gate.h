// The router of the experts (spec: text model, 9.1).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/linear.h"

namespace touchstone {

struct GateWeights {
    Bf16Weight weight;               ///< [E, D]
    std::span<const float> bias;     ///< [E]: added for the selection alone
    std::span<const float> bias_vl;  ///< [E]: in its place for rows inside an image; may be empty without
};

struct GateSettings {
    int64_t experts_per_token;  ///< k
    float routed_scaling_factor;
};

/// Which experts a row goes to, and with what weight.
struct Routing {
    int64_t rows = 0;
    std::vector<float> scores;     ///< [rows, E]: sqrt(softplus(logit)), without bias
    std::vector<int32_t> experts;  ///< [rows, k]: largest biased score first, ties to the lower id
    std::vector<float> weights;    ///< [rows, k], of `experts`
};

/// Scores are LF products (`moe_gate` of the table) through sqrt_softplus; selected are the k largest of
/// score + bias; a weight is score / (sum of the selected scores, in selection order, + 1e-20) * scaling
/// factor, undivided where k = 1. `image_rows` is empty or [rows], nonzero inside an image. `forced` is empty
/// or [rows, k]: the experts to take instead, in that order, or -1 alone in rows that choose for themselves.
/// Throws UserError when sizes do not match or a forced expert is out of range or twice in a row.
Routing moe_gate(Arithmetic arithmetic, std::span<const Bf16> x, int64_t rows, const GateWeights& weights,
                 const GateSettings& settings, std::span<const uint8_t> image_rows = {},
                 std::span<const int32_t> forced = {});

}  // namespace touchstone
