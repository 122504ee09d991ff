// Somebody else's gate and experts (tests/foreign.h).
#pragma once

#include <limits>
#include <numeric>

#include "tests/foreign.h"

namespace touchstone::foreign {

inline float gate_score(float logit, const Fault& fault) {
    if (fault("gate_sigmoid")) return 1 / (1 + std::exp(-logit));
    if (fault("gate_softplus_vanishes")) return std::sqrt(logit > 20 ? logit : std::log(1 + std::exp(logit)));
    if (fault("gate_softplus_overflows")) return std::sqrt(std::log1p(std::exp(logit)));
    const float softplus = logit > 20 ? logit : std::log1p(std::exp(logit));
    return fault("gate_softplus") ? softplus : std::sqrt(softplus);
}

/// The k largest, ids of equal ones ascending.
inline std::vector<int32_t> largest(const Floats& biased, int64_t k, const Fault& fault) {
    std::vector<int32_t> ids(biased.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
        const float x = biased[static_cast<size_t>(a)], y = biased[static_cast<size_t>(b)];
        if (x != y) return x > y;
        return fault("gate_ties_to_higher_id") ? a > b : a < b;
    });
    ids.resize(static_cast<size_t>(k));
    if (fault("gate_chosen_by_id")) std::sort(ids.begin(), ids.end());
    return ids;
}

inline void moe_gate(const Call& call, const Fault& fault) {
    const auto experts = static_cast<size_t>(call["experts"]),
               k = static_cast<size_t>(call["experts_per_token"]);
    Floats scores = product(floats(call, "x"), floats(call, "weight"), call["rows"], call["experts"]);
    if (fault("gate_logits_in_bf16")) scores = rounded(scores);
    for (float& score : scores) score = gate_score(score, fault);
    const Floats text = floats(call, "bias"), images = floats(call, "bias_vl");
    Floats weights;
    for (size_t row = 0; row < static_cast<size_t>(call["rows"]); ++row) {
        const bool image = call.in<uint8_t>("image_rows")[row] != 0 && !fault("gate_image_bias_ignored");
        Floats biased(&scores[row * experts], &scores[row * experts] + experts);
        for (size_t i = 0; i < experts && !fault("gate_bias_missing"); ++i)
            biased[i] += image ? images[i] : text[i];
        const std::vector<int32_t> chosen = largest(biased, static_cast<int64_t>(k), fault);
        float sum = 0;
        Floats taken;
        for (const int32_t id : chosen) {
            const auto at = static_cast<size_t>(id);
            taken.push_back(fault("gate_bias_in_weights") ? biased[at] : scores[row * experts + at]);
            sum += taken.back();
        }
        for (size_t i = 0; i < k; ++i) {
            float weight = taken[i];
            if (k > 1 && !fault("gate_weights_not_normalised"))
                weight /= sum + (fault("gate_sum_not_floored") ? 0 : 1e-20f);
            weights.push_back(weight * (fault("gate_scale_missing") ? 1 : call.real("scaling_factor")));
            call.out<int32_t>("chosen")[row * k + i] = chosen[i] + (fault("gate_ids_from_one") ? 1 : 0);
        }
    }
    put(call, "scores", scores);
    put(call, "weights", weights);
}

/// What goes into w2, before its rounding.
inline float activation(float gate, float up, float limit, const Fault& fault, bool is_shared = false) {
    if (fault("gate_and_up_swapped")) std::swap(gate, up);
    const bool clamps = !fault("clamps_missing") && !(is_shared && fault("shared_expert_not_clamped"));
    if (clamps && !fault("clamp_after_product")) {
        gate = std::min(gate, limit);
        up = std::min(up, limit);
        if (!fault("up_clamped_above_alone")) up = std::max(up, -limit);
        if (fault("gate_clamped_on_both_sides")) gate = std::max(gate, -limit);
    }
    float y = gate / (1 + std::exp(-gate)) * up;
    if (fault("tanh_gelu_for_silu"))
        y = 0.5f * gate * (1 + std::tanh(0.7978845608f * (gate + 0.044715f * gate * gate * gate))) * up;
    if (fault("swiglu_of_gpt_oss")) y = gate / (1 + std::exp(-1.702f * gate)) * (up + 1);
    if (fault("clamp_after_product")) y = std::clamp(y, -limit, limit);
    return y;
}

inline void swiglu(const Call& call, const Fault& fault) {
    const Floats gate = floats(call, "gate"), up = floats(call, "up");
    const auto width = static_cast<size_t>(call["width"]);
    Floats y;
    for (size_t i = 0; i < gate.size(); ++i) {
        float weight = call["weighted"] != 0 ? call.in<float>("weights")[i / width] : 1;
        if (fault("expert_weight_missing")) weight = 1;
        y.push_back(activation(gate[i], up[i], call.real("limit"), fault) * weight);
    }
    put(call, "y", y);
}

/// Dequantised: w1 and w3 [width, hidden], w2 [hidden, width].
struct Expert {
    Floats w1, w3, w2;
};

/// One expert on rows; `weights` empty for the shared one.
inline Floats run_expert(const Call& call, const Floats& x, const Expert& expert, const Floats& weights,
                         const Fault& fault) {
    const int64_t rows = std::ssize(x) / call["hidden"], width = call["width"];
    const Floats gate = rounded(product(q8(x), expert.w1, rows, width)),
                 up = rounded(product(q8(x), expert.w3, rows, width));
    Floats clamped, unclamped;
    for (size_t i = 0; i < gate.size(); ++i) {
        const float weight = weights.empty() ? 1 : weights[i / static_cast<size_t>(width)];
        const float inside = fault("expert_weight_after_w2") ? 1 : weight;
        clamped.push_back(
            bf16(activation(gate[i], up[i], call.real("limit"), fault, weights.empty()) * inside));
        unclamped.push_back(bf16(gate[i] / (1 + std::exp(-gate[i])) * up[i] * inside));
    }
    Floats input = q8(clamped);
    if (fault("clamp_after_quantisation"))
        for (size_t i = 0; i < input.size(); ++i) {
            const float scale = block_scale(&unclamped[i / 32 * 32], 32, 1e-4f, 448);
            input[i] = e4m3(clamped[i] / scale) * scale;
        }
    Floats y = rounded(product(input, expert.w2, rows, call["hidden"]));
    if (fault("expert_weight_after_w2"))
        for (size_t i = 0; i < y.size(); ++i)
            y[i] = bf16(y[i] * weights[i / static_cast<size_t>(call["hidden"])]);
    return y;
}

inline Floats part_of(const Floats& all, int64_t index, int64_t parts) {
    const std::ptrdiff_t size = std::ssize(all) / parts;
    return {all.begin() + index * size, all.begin() + (index + 1) * size};
}

inline Expert fp4_expert(const Call& call, int64_t id, int64_t experts) {
    const auto weight = [&](const std::string& name) {
        return part_of(unpacked(call, name, floats(call, name + "_scale")), id, experts);
    };
    return {weight("w1"), weight("w3"), weight("w2")};
}

inline Expert fp8_expert(const Call& call, const std::string& prefix) {
    const int64_t hidden = call["hidden"], width = call["width"];
    return {tiles(call, prefix + "w1", width, hidden), tiles(call, prefix + "w3", width, hidden),
            tiles(call, prefix + "w2", hidden, width)};
}

inline void routed_expert(const Call& call, const Fault& fault) {
    put(call, "y",
        run_expert(call, floats(call, "x"), fp4_expert(call, 0, 1), floats(call, "weights"), fault));
}

inline void shared_expert(const Call& call, const Fault& fault) {
    put(call, "y", run_expert(call, floats(call, "x"), fp8_expert(call, ""), {}, fault));
}

/// The row's ids with their weights, ids ascending.
inline std::vector<std::pair<int32_t, float>> choices(const Call& call, size_t row, const Fault& fault) {
    const auto k = static_cast<size_t>(call["experts_per_token"]);
    std::vector<int32_t> ids;
    for (size_t i = row * k; i < (row + 1) * k; ++i) {
        const int32_t moved = call.in<int32_t>("chosen")[i] + (fault("expert_ids_one_up") ? 1 : 0);
        ids.push_back(moved % static_cast<int32_t>(call["experts"]));
    }
    if (fault("expert_weights_not_sorted_with_ids")) std::sort(ids.begin(), ids.end());
    std::vector<std::pair<int32_t, float>> result;
    for (size_t i = 0; i < k; ++i) {
        if (fault("last_choice_dropped") && i == k - 1) continue;
        result.emplace_back(ids[i], call.in<float>("weights")[row * k + i]);
    }
    std::sort(result.begin(), result.end());
    return result;
}

inline void experts(const Call& call, const Fault& fault) {
    const Floats x = floats(call, "x");
    const Floats shared = run_expert(call, x, fp8_expert(call, "shared_"), {}, fault);
    Floats out;
    for (int64_t row = 0; row < call["rows"]; ++row) {
        Floats sum(static_cast<size_t>(call["hidden"]), 0.0f);
        const Floats one = part_of(x, row, call["rows"]), last = part_of(shared, row, call["rows"]);
        for (const auto& [id, weight] : choices(call, static_cast<size_t>(row), fault)) {
            const Floats y = run_expert(call, one, fp4_expert(call, id, call["experts"]), {weight}, fault);
            for (size_t d = 0; d < sum.size(); ++d)
                sum[d] = fault("experts_added_in_bf16") ? bf16(sum[d] + y[d]) : sum[d] + y[d];
        }
        for (size_t d = 0; d < sum.size(); ++d) {
            if (!fault("shared_expert_missing")) sum[d] += last[d];
            if (fault("shared_expert_twice")) sum[d] += last[d];
        }
        out.insert(out.end(), sum.begin(), sum.end());
    }
    put(call, "shared", shared);
    put(call, "out", out);
}

}  // namespace touchstone::foreign
