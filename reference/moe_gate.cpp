#include "reference/moe_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "reference/io/user_error.h"
#include "reference/numerics/elementary_vector.h"
#include "reference/top_k.h"

namespace touchstone {

namespace {

[[noreturn]] void refuse(std::string what, std::string expected, std::string remedy = "") {
    throw UserError({std::move(what), "moe_gate", std::move(expected), std::move(remedy)});
}

void require(std::string_view tensor, size_t size, int64_t rows, int64_t width) {
    if (rows >= 0 && static_cast<int64_t>(size) == rows * width) return;
    refuse(fmt::format("{} has {} elements", tensor, size), fmt::format("[{}, {}]", rows, width),
           "pass tensors whose shapes agree");
}

/// A row of -1 alone among forced ones.
bool left_to_the_gate(std::span<const int32_t> chosen) {
    return std::ranges::all_of(chosen, [](int32_t expert) { return expert == -1; });
}

void require_forced(std::span<const int32_t> forced, int64_t rows, int64_t k, int64_t experts) {
    for (int64_t row = 0; row < rows; ++row) {
        const std::span<const int32_t> chosen =
            forced.subspan(static_cast<size_t>(row * k), static_cast<size_t>(k));
        if (left_to_the_gate(chosen)) continue;
        for (size_t i = 0; i < chosen.size(); ++i) {
            if (chosen[i] < 0 || chosen[i] >= experts)
                refuse(fmt::format("forced expert {} of row {}", chosen[i], row),
                       fmt::format("0 to {}", experts - 1));
            if (std::count(chosen.begin(), chosen.end(), chosen[i]) > 1)
                refuse(fmt::format("expert {} is forced twice in row {}", chosen[i], row),
                       fmt::format("{} different experts", k));
        }
    }
}

/// The row's weights: its unbiased scores over their sum, in selection order, times the factor.
void weigh(std::span<const float> scores, std::span<const int32_t> chosen, float factor,
           std::span<float> weights) {
    float sum = 0;
    for (int32_t expert : chosen) sum += scores[static_cast<size_t>(expert)];
    for (size_t i = 0; i < chosen.size(); ++i) {
        float weight = scores[static_cast<size_t>(chosen[i])];
        if (chosen.size() > 1) weight /= sum + 1e-20f;  // a literal of the released code, not norm_eps
        weights[i] = with_canonical_nan(weight * factor);
    }
}

}  // namespace

Routing moe_gate(Arithmetic arithmetic, std::span<const Bf16> x, int64_t rows, const GateWeights& weights,
                 const GateSettings& settings, std::span<const uint8_t> image_rows,
                 std::span<const int32_t> forced) {
    const int64_t experts = weights.weight.outputs, k = settings.experts_per_token;
    if (k < 1 || k > experts) refuse(fmt::format("{} experts per token", k), fmt::format("1 to {}", experts));
    require("bias", weights.bias.size(), 1, experts);
    if (!image_rows.empty()) require("image_rows", image_rows.size(), rows, 1);
    const auto in_image = [](uint8_t flag) { return flag != 0; };
    if (std::any_of(image_rows.begin(), image_rows.end(), in_image))
        require("bias_vl", weights.bias_vl.size(), 1, experts);
    if (!forced.empty()) {
        require("forced", forced.size(), rows, k);
        require_forced(forced, rows, k, experts);
    }

    // 1. Scores, without bias.
    Routing routing{rows, std::vector<float>(static_cast<size_t>(rows * experts)), {}, {}};
    linear_bf16(arithmetic, SumOperator::moe_gate, x, rows, weights.weight, std::span(routing.scores));
    elementary::sqrt_softplus(routing.scores, routing.scores);

    // 2. Selection, by score + bias.
    routing.experts.resize(static_cast<size_t>(rows * k));
    std::vector<float> biased(routing.scores.size());
    for (size_t i = 0; i < biased.size(); ++i) {
        const size_t row = i / static_cast<size_t>(experts), expert = i % static_cast<size_t>(experts);
        const bool image = !image_rows.empty() && image_rows[row] != 0;
        biased[i] = routing.scores[i] + (image ? weights.bias_vl : weights.bias)[expert];
    }
    top_k(biased, rows, experts, k, {}, TopKOutput::selection, routing.experts);
    for (int64_t row = 0; row < rows && !forced.empty(); ++row) {
        const auto chosen = forced.subspan(static_cast<size_t>(row * k), static_cast<size_t>(k));
        if (!left_to_the_gate(chosen)) std::ranges::copy(chosen, routing.experts.begin() + row * k);
    }

    // 3. Weights, from the scores without bias.
    routing.weights.resize(routing.experts.size());
    for (int64_t row = 0; row < rows; ++row) {
        const auto first = static_cast<size_t>(row * k), count = static_cast<size_t>(k);
        weigh(std::span(routing.scores)
                  .subspan(static_cast<size_t>(row * experts), static_cast<size_t>(experts)),
              std::span(routing.experts).subspan(first, count), settings.routed_scaling_factor,
              std::span(routing.weights).subspan(first, count));
    }
    return routing;
}

}  // namespace touchstone
