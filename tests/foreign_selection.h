// Selections as somebody else might have written them, with faults to choose from.
#pragma once

#include <limits>

#include "tests/foreign_numbers.h"

namespace foreign {

/// fp16 to nearest, for scores of ordinary size.
inline float through_fp16(float x) {
    if (x == 0 || !std::isfinite(x)) return x;
    const int exponent = std::ilogb(x) - 10;
    return std::ldexp(std::nearbyint(std::ldexp(x, -exponent)), exponent);
}

inline bool comes_first(float a, size_t at_a, float b, size_t at_b, const Fault& fault) {
    if (fault.is("scores_in_fp16")) a = through_fp16(a), b = through_fp16(b);
    if (fault.is("scores_in_bf16")) a = through_bf16(a), b = through_bf16(b);
    const float of_nan = fault.is("nan_largest") ? 2 : 0;
    const float rank_a = std::isnan(a) ? of_nan : 1, rank_b = std::isnan(b) ? of_nan : 1;
    if (rank_a != rank_b) return rank_a > rank_b;
    if (!std::isnan(a) && a != b) return a > b;
    return fault.is("higher_index_wins") ? at_a > at_b : at_a < at_b;
}

/// Every pass takes the best that is left.
inline touchstone::TensorMap top_k(const touchstone::ParsedCase& parsed, const touchstone::TensorMap& inputs,
                                   const Fault& fault) {
    const touchstone::Parameters& p = parsed.parameters;
    const auto columns = static_cast<size_t>(p["columns"]), rows = static_cast<size_t>(p["rows"]),
               k = static_cast<size_t>(p["k"]);
    const auto scores = inputs.find("scores")->second.view<float>();
    const std::vector<uint8_t> mask = byte_tensor(inputs, "mask");
    touchstone::TensorMap outputs = outputs_of(parsed);
    const auto out = outputs.find("indices")->second.view<int32_t>();
    std::ranges::fill(out, fault.is("padding_0") ? 0 : -1);
    for (size_t row = 0; row < rows; ++row) {
        auto visible = static_cast<size_t>(inputs.find("visible")->second.view<int32_t>()[row]);
        if (fault.is("one_too_many_visible")) visible = std::min(visible + 1, columns);
        std::vector<size_t> chosen;
        std::vector<bool> taken(columns);
        for (size_t round = 0; round < (fault.is("one_fewer") ? k - 1 : k); ++round) {
            size_t best = columns;
            for (size_t c = 0; c < visible; ++c) {
                if (taken[c] || (mask[row * columns + c] == 0 && !fault.is("mask_ignored"))) continue;
                if (best == columns ||
                    comes_first(scores[row * columns + c], c, scores[row * columns + best], best, fault))
                    best = c;
            }
            if (best == columns) break;
            taken[best] = true;
            chosen.push_back(best);
        }
        if ((p.choice("order") == "ascending") != fault.is("other_order")) std::ranges::sort(chosen);
        for (size_t i = 0; i < chosen.size(); ++i) out[row * k + i] = static_cast<int32_t>(chosen[i]);
    }
    if (fault.is("entry_5_of_row_1_wrong")) out[k + 5] = out[k + 4];
    return outputs;
}

inline touchstone::TensorMap candidate_pool(const touchstone::ParsedCase& parsed,
                                            const touchstone::TensorMap& inputs, const Fault& fault) {
    const touchstone::Parameters& p = parsed.parameters;
    const auto size = static_cast<size_t>(p["block_size"]);
    auto keep = static_cast<size_t>(p["topk_blocks"]);
    const auto scores = inputs.find("scores")->second.view<float>();
    const size_t blocks = (scores.size() + size - 1) / size;
    std::vector<float> best(blocks, -std::numeric_limits<float>::infinity());
    if (fault.is("padding_zero") && scores.size() % size != 0) best.back() = 0;
    std::vector<float> sums(blocks);
    for (size_t i = 0; i < scores.size(); ++i) {
        best[i / size] = std::max(best[i / size], scores[i]);
        sums[i / size] += scores[i];
    }
    if (fault.is("block_mean"))
        for (size_t b = 0; b < blocks; ++b)
            best[b] = sums[b] / static_cast<float>(std::min(size, scores.size() - b * size));
    const bool forced = !fault.is("newest_not_forced") && !fault.is("padding_zero");
    if (forced) best.back() = std::numeric_limits<float>::infinity();
    if (fault.is("one_block_more")) ++keep;
    std::vector<size_t> order;
    for (size_t b = 0; b < blocks; ++b)
        if (best[b] > -std::numeric_limits<float>::infinity()) order.push_back(b);
    std::ranges::stable_sort(order, [&](size_t a, size_t b) {
        return best[a] > best[b] || (fault.is("higher_block_wins") && best[a] == best[b] && a > b);
    });
    order.resize(std::min(order.size(), keep));
    if (!fault.is("blocks_by_score")) std::ranges::sort(order);
    touchstone::TensorMap outputs = outputs_of(parsed);
    put_f32(outputs, "block_scores", best);
    const auto list = outputs.find("blocks")->second.view<int32_t>();
    const auto mask = outputs.find("mask")->second.view<uint8_t>();
    std::ranges::fill(list, -1);
    for (size_t i = 0; i < order.size(); ++i) {
        if (i < list.size()) list[i] = static_cast<int32_t>(order[i]);
        for (size_t row = order[i] * size; row < std::min((order[i] + 1) * size, mask.size()); ++row)
            mask[row] = 1;
    }
    if (fault.is("mask_one_row_on")) std::rotate(mask.begin(), mask.end() - 1, mask.end());
    return outputs;
}

inline touchstone::TensorMap greedy(const touchstone::ParsedCase& parsed, const touchstone::TensorMap& inputs,
                                    const Fault& fault) {
    const auto logits = inputs.find("logits")->second.view<float>();
    size_t best = 0;
    for (size_t i = 1; i < logits.size(); ++i) {
        const bool last = fault.is("last_of_equal") && logits[i] == logits[best];
        const bool nan = fault.is("nan_wins") && std::isnan(logits[i]) && !std::isnan(logits[best]);
        const bool stays_nan = fault.is("nan_wins") && std::isnan(logits[best]);
        if (nan || last || (!stays_nan && (logits[i] > logits[best] || std::isnan(logits[best])))) best = i;
    }
    touchstone::TensorMap outputs = outputs_of(parsed);
    outputs.find("token")->second.view<int32_t>()[0] = static_cast<int32_t>(best);
    return outputs;
}

inline touchstone::TensorMap probabilities(const touchstone::ParsedCase& parsed,
                                           const touchstone::TensorMap& inputs, const Fault& fault) {
    const auto logits = inputs.find("logits")->second.view<float>();
    float t = parsed.parameters.real("temperature"), sum = 0;
    if (fault.is("temperature_ignored")) t = 1;
    if (fault.is("temperature_multiplied")) t = 1 / t;
    const float largest = fault.is("maximum_kept") ? 0 : *std::ranges::max_element(logits);
    std::vector<float> p;
    for (const float x : logits) p.push_back(std::exp((x - largest) / t));
    for (const float x : p) sum += x;
    for (float& x : p) x /= sum;
    if (fault.is("token_9_twice")) p[9] *= 2;
    touchstone::TensorMap outputs = outputs_of(parsed);
    put_f32(outputs, "probabilities", p);
    return outputs;
}

}  // namespace foreign
