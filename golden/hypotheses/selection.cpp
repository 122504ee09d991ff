// Faults of selections: top-k, the candidate pool, the next token.
#include <algorithm>
#include <cmath>
#include <string>

#include "golden/hypotheses/bf16_rounding.h"
#include "golden/hypotheses/selection_rule.h"
#include "reference/sampling.h"

namespace touchstone {

namespace {

float in_bf16(float x) {
    return static_cast<float>(to_bf16(static_cast<double>(x)));
}
float in_fp16(float x) {
    return static_cast<float>(to_fp16(static_cast<double>(x)));
}
/// The upper 13 bits of the order-mapped fp32, which one radix selection bins by.
float in_coarse_bins(float x) {
    return float_from_bits(float_bits(x) & 0xFFF80000);
}
float magnitude(float x) {
    return std::abs(x);
}

struct TopKFault {
    const char *name, *cause;
    void (*change)(TopKRule& rule);
};

using K = TopKRule;
const TopKFault top_k_faults[] = {
    {"top_k_higher_index_wins", "of equal scores the higher column is taken",
     [](K& r) { r.higher_index_wins = true; }},
    {"top_k_nan_largest", "NaN counts as the largest score", [](K& r) { r.nan_largest = true; }},
    {"top_k_negative_zero_below", "-0 counts as less than +0", [](K& r) { r.negative_zero_below = true; }},
    {"top_k_scores_in_bf16", "scores are rounded to bf16 before they are compared",
     [](K& r) { r.score = in_bf16; }},
    {"top_k_scores_in_fp16", "scores are rounded to fp16 before they are compared",
     [](K& r) { r.score = in_fp16; }},
    {"top_k_coarse_bins", "scores are told apart by their upper 13 bits alone",
     [](K& r) { r.score = in_coarse_bins; }},
    {"top_k_of_magnitudes", "magnitudes are compared", [](K& r) { r.score = magnitude; }},
    {"top_k_smallest", "the smallest are taken", [](K& r) { r.smallest = true; }},
    {"top_k_one_fewer", "only k - 1 are taken", [](K& r) { r.more = -1; }},
    {"top_k_best_dropped", "k + 1 are taken and cut to k after they are sorted by column",
     [](K& r) { r.more = 1; }},
    {"top_k_one_row_too_many_visible", "one column beyond the visible ones may be selected",
     [](K& r) { r.more_visible = 1; }},
    {"top_k_one_row_too_few_visible", "the last visible column is never selected",
     [](K& r) { r.more_visible = -1; }},
    {"top_k_visible_ignored", "columns that are not visible may be selected",
     [](K& r) { r.visible_ignored = true; }},
    {"top_k_mask_ignored", "masked columns may be selected: the candidate pool is ignored",
     [](K& r) { r.mask_ignored = true; }},
    {"top_k_sorted_by_value", "the selected columns stand in order of their scores",
     [](K& r) { r.output = SelectionOutput::selection; }},
    {"top_k_sorted_by_column", "the selected columns stand in their own order",
     [](K& r) { r.output = SelectionOutput::ascending; }},
    {"top_k_sorted_descending", "the selected columns stand in descending order",
     [](K& r) { r.output = SelectionOutput::descending_index; }},
    {"top_k_padding_0", "rows with fewer candidates than k are filled with 0, not -1",
     [](K& r) { r.padding = 0; }},
    {"top_k_padding_int_max", "rows with fewer candidates than k are filled with 2^31 - 1",
     [](K& r) { r.padding = 0x7FFFFFFF; }},
};

struct PoolFault {
    const char *name, *cause;
    void (*change)(PoolRule& rule);
};

using P = PoolRule;
const PoolFault pool_faults[] = {
    {"pool_newest_not_forced", "the newest block has to earn its place",
     [](P& r) { r.newest_forced = false; }},
    {"pool_newest_of_the_next_row", "the newest block is V / size, not (V - 1) / size",
     [](P& r) { r.newest_is_visible_by_size = true; }},
    {"pool_first_forced", "the first block is always kept too", [](P& r) { r.first_forced = true; }},
    {"pool_padding_zero", "rows beyond the visible ones count as 0, not as -infinity",
     [](P& r) {
         r.zeros_behind_the_last = true;
         r.newest_forced = false;
     }},
    {"pool_block_mean", "a block's score is the mean of its rows", [](P& r) { r.score = BlockScore::mean; }},
    {"pool_block_sum", "a block's score is the sum of its rows", [](P& r) { r.score = BlockScore::sum; }},
    {"pool_block_first_row", "a block's score is its first row's", [](P& r) { r.score = BlockScore::first; }},
    {"pool_block_last_row", "a block's score is its last row's", [](P& r) { r.score = BlockScore::last; }},
    {"pool_block_smallest", "a block's score is its smallest row's",
     [](P& r) { r.score = BlockScore::smallest; }},
    {"pool_higher_block_wins", "of equal blocks the higher one is kept",
     [](P& r) { r.higher_block_wins = true; }},
    {"pool_masked_blocks_kept", "blocks without a score may be kept",
     [](P& r) { r.masked_blocks_kept = true; }},
    {"pool_one_block_fewer", "one block fewer is kept", [](P& r) { r.more_blocks = -1; }},
    {"pool_one_block_more", "one block more is kept: the newest stands beside topk_blocks others",
     [](P& r) { r.more_blocks = 1; }},
    {"pool_blocks_by_score", "the kept blocks stand in order of their scores",
     [](P& r) { r.blocks_by_score = true; }},
    {"pool_padding_of_blocks_0", "unused places of the list hold 0, not -1", [](P& r) { r.padding = 0; }},
};

// The next token.

/// The largest of logits by any order: `better(a, b)` says that a replaces b.
Outputs greedy(bool (*better)(float a, float b)) {
    return computed([better](const Call& call) {
        const auto logits = call.in<float>("logits");
        size_t best = 0;
        for (size_t i = 1; i < logits.size(); ++i)
            if (better(logits[i], logits[best])) best = i;
        call.out<int32_t>("token")[0] = static_cast<int32_t>(best);
        return true;
    });
}

bool last_largest(float a, float b) {
    return std::isnan(b) || a >= b;
}
bool first_nan_or_largest(float a, float b) {
    return !std::isnan(b) && (std::isnan(a) || a > b);
}
bool larger_magnitude(float a, float b) {
    return std::isnan(b) || std::abs(a) > std::abs(b);
}
bool larger_in_bf16(float a, float b) {
    return std::isnan(b) || in_bf16(a) > in_bf16(b);
}

Outputs temperature(double (*other)(double temperature)) {
    return with_parameters([other](Parameters& parameters, const OperatorRun& run) {
        const double t = static_cast<double>(run.parameters.real("temperature"));
        parameters.values["temperature"] = other(t);
        return other(t) != t && t > 0;
    });
}

Outputs random_counter(int64_t (*other)(int64_t first)) {
    return with_parameters([other](Parameters& parameters, const OperatorRun& run) {
        parameters.values["first"] = other(run.parameters["first"]);
        return other(run.parameters["first"]) >= 0;
    });
}

/// Softmax without the largest logit taken away first: where nothing overflows, that is rounding.
bool softmax_without_maximum(const Call& call) {
    const auto logits = call.in<float>("logits");
    const auto p = call.out<float>("probabilities");
    const float t = std::max(call.real("temperature"), 1e-5f);
    float sum = 0;
    for (size_t i = 0; i < p.size(); ++i) sum += p[i] = std::exp(logits[i] / t);
    for (float& x : p) x = with_canonical_nan(x / sum);
    return std::ranges::any_of(p, [](float x) { return !std::isfinite(x); });
}

bool softmax_of_base_2(const Call& call) {
    const auto logits = call.in<float>("logits");
    const auto p = call.out<float>("probabilities");
    const float t = std::max(call.real("temperature"), 1e-5f);
    const float largest = *std::ranges::max_element(logits);
    double sum = 0;
    for (size_t i = 0; i < p.size(); ++i)
        sum += static_cast<double>(p[i] = std::exp2((logits[i] - largest) / t));
    for (float& x : p) x = static_cast<float>(static_cast<double>(x) / sum);
    return true;
}

/// The probabilities are divided by the uniform numbers themselves.
bool uniform_for_exponential(const Call& call) {
    const auto logits = call.in<float>("logits");
    std::vector<float> values(logits.size());
    token_probabilities(logits, call.real("temperature"), values);
    const RandomStream random{static_cast<uint64_t>(call["random_seed"])};
    for (size_t i = 0; i < values.size(); ++i)
        values[i] /=
            static_cast<float>(random.word(static_cast<uint64_t>(call["first"]) + i)) * 0x1p-32f + 0x1p-33f;
    call.out<int32_t>("token")[0] = greedy_token(values);
    return call.real("temperature") > 0;
}

std::vector<Hypothesis> next_token_faults() {
    const Cause fault = Cause::fault;
    const std::vector<std::string> argmax{"greedy_token"}, sample{"sample_token"},
        tempered{"token_probabilities", "sample_token"}, softmax{"token_probabilities"};
    return {
        {"greedy_last_of_equal", "K12", "of equal largest logits the last one is taken", fault, argmax,
         greedy(last_largest)},
        {"greedy_nan_largest", "K12", "a NaN counts as the largest logit", fault, argmax,
         greedy(first_nan_or_largest)},
        {"greedy_largest_magnitude", "K12", "the largest magnitude is taken", fault, argmax,
         greedy(larger_magnitude)},
        {"greedy_logits_in_bf16", "K12", "logits are rounded to bf16 before they are compared", fault, argmax,
         greedy(larger_in_bf16)},
        {"temperature_ignored", "K12", "the temperature is taken to be 1", fault, tempered,
         temperature([](double) { return 1.0; })},
        {"temperature_multiplied", "K12", "logits are multiplied with the temperature", fault, tempered,
         temperature([](double t) { return 1 / t; })},
        {"sample_always_greedy", "K12", "the largest logit is taken whatever the temperature", fault, sample,
         temperature([](double) { return 0.0; })},
        {"sample_counter_ignores_first", "K12", "random numbers are counted from 0 for every token", fault,
         sample, random_counter([](int64_t) { return int64_t{0}; })},
        {"sample_counter_one_late", "K12", "token i gets the random number of token i + 1", fault, sample,
         random_counter([](int64_t first) { return first + 1; })},
        {"sample_uniform", "K12", "probabilities are divided by uniform numbers, not by exponential ones",
         fault, sample, computed(uniform_for_exponential)},
        {"softmax_without_maximum", "K14", "the largest logit is not taken away before exp", fault, softmax,
         computed(softmax_without_maximum)},
        {"softmax_of_base_2", "K12", "the softmax has base 2", fault, softmax, computed(softmax_of_base_2)},
    };
}

}  // namespace

std::vector<Hypothesis> selection_hypotheses() {
    std::vector<Hypothesis> all;
    for (const TopKFault& one : top_k_faults)
        all.push_back({one.name, "K12", one.cause, Cause::fault, {"top_k"}, with_top_k(one.change)});
    for (const PoolFault& one : pool_faults)
        all.push_back({one.name, "K13", one.cause, Cause::fault, {"candidate_pool"}, with_pool(one.change)});
    const std::vector<Hypothesis> next_token = next_token_faults();
    all.insert(all.end(), next_token.begin(), next_token.end());
    return all;
}

}  // namespace touchstone
