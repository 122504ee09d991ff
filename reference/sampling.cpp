#include "reference/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "reference/io/user_error.h"
#include "reference/numerics/elementary_vector.h"
#include "reference/numerics/sum_order.h"
#include "reference/numerics/sums.h"
#include "reference/numerics/total_order.h"

namespace touchstone {

namespace {

[[noreturn]] void refuse(std::string what, std::string expected, std::string remedy = "") {
    throw UserError({std::move(what), "sampling", std::move(expected), std::move(remedy)});
}

void require_temperature(float temperature) {
    if (!(temperature >= 0)) refuse(fmt::format("temperature {}", temperature), "a number, at least 0");
}

int32_t index_of_largest(std::span<const float> values) {
    if (values.empty()) refuse("no logits", "one per token of the vocabulary");
    uint64_t best = 0;
    for (size_t i = 0; i < values.size(); ++i)
        best = std::max(best, total_order_key(values[i], static_cast<uint32_t>(i)));
    return static_cast<int32_t>(index_of_key(best));
}

/// -ln(1 - v) of v = fp32(word) 2^-32 + 2^-33, each step an fp32 rounding; v stays below 1. Taken from the
/// side of 0, where fp32 is dense: the smallest of many such numbers decides which token wins.
float exponential(uint32_t word) {
    const float v = static_cast<float>(word) * 0x1p-32f + 0x1p-33f;
    return -elementary::log1p(-std::min(v, 1.0f - 0x1p-24f));
}

}  // namespace

int32_t greedy_token(std::span<const float> logits) {
    return index_of_largest(logits);
}

void token_probabilities(std::span<const float> logits, float temperature, std::span<float> probabilities) {
    require_temperature(temperature);
    if (probabilities.size() != logits.size())
        refuse(fmt::format("{} probabilities", probabilities.size()),
               fmt::format("{}, one per logit", logits.size()));
    const float divisor = std::max(temperature, 1e-5f);
    std::transform(logits.begin(), logits.end(), probabilities.begin(),
                   [divisor](float logit) { return logit / divisor; });
    const float most = largest(probabilities);
    for (float& x : probabilities) x -= most;
    elementary::exp(probabilities, probabilities);
    const Lanes lanes = sum_order(SumOperator::sampling_softmax, std::ssize(logits), 1).lanes;
    const float total = sum(lanes, probabilities);
    for (float& x : probabilities) x = with_canonical_nan(x / total);
}

int32_t sample_token(std::span<const float> logits, float temperature, const RandomStream& random,
                     uint64_t first) {
    require_temperature(temperature);
    if (temperature == 0) return greedy_token(logits);
    if (logits.empty()) refuse("no logits", "one per token of the vocabulary");
    std::vector<float> probabilities(logits.size());
    token_probabilities(logits, temperature, probabilities);
    if (is_nan(probabilities[0]))
        refuse("the softmax of the logits is NaN", "logits without NaN and +infinity, not all -infinity",
               "look for the first NaN of the forward pass, or take temperature 0");
    PhiloxBlock block = random.block(first / 4);
    for (size_t i = 0; i < probabilities.size(); ++i) {
        const uint64_t counter = first + i;
        if (counter % 4 == 0) block = random.block(counter / 4);
        probabilities[i] /= exponential(block.words[counter % 4]);
    }
    return index_of_largest(probabilities);
}

}  // namespace touchstone
