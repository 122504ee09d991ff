#include "reference/compressor.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "reference/io/user_error.h"
#include "reference/numerics/elementary.h"
#include "reference/numerics/sums.h"
#include "reference/rms_norm.h"

namespace touchstone {

namespace {

void require(int64_t got, int64_t expected, const std::string& what, const char* remedy) {
    if (got == expected) return;
    throw UserError({fmt::format("{} {}", got, what), "compress", fmt::format("{}", expected), remedy});
}

void require_inputs(int64_t first_position, int64_t ratio, const CompressorWeights& weights,
                    const OpenGroup& open) {
    if (first_position < 0 || ratio < 1)
        throw UserError({fmt::format("position {}, ratio {}", first_position, ratio), "compress",
                         "a position from 0 on, a ratio from 1 on", ""});
    const int64_t head_dim = weights.wkv.outputs, waiting = first_position % ratio * head_dim;
    const char* shapes = "pass tensors whose shapes agree";
    require(std::ssize(weights.norm), head_dim, "elements of norm", shapes);
    const char* order = "pass every token of the sequence once and in order, with the group that was left";
    require(std::ssize(open.kv), waiting, "kv elements in the open group", order);
    require(std::ssize(open.score), waiting, "score elements in the open group", order);
    if (ratio == 1) return;
    require(weights.wgate.outputs, head_dim, "outputs of wgate", shapes);
    require(weights.wgate.inputs, weights.wkv.inputs, "inputs of wgate", shapes);
}

/// One channel of one group: kv[i * stride] weighed by the softmax of score[i * stride] over its tokens.
float pooled_channel(const float* kv, const float* score, int64_t tokens, int64_t stride) {
    float highest = score[0];
    for (int64_t i = 1; i < tokens; ++i) highest = larger(highest, score[i * stride]);
    float total = 0;
    for (int64_t i = 0; i < tokens; ++i) total += elementary::exp(score[i * stride] - highest);
    float sum = 0;
    for (int64_t i = 0; i < tokens; ++i)
        sum += kv[i * stride] * (elementary::exp(score[i * stride] - highest) / total);
    return sum;
}

/// The first `groups` groups of rows [tokens, head_dim].
std::vector<Bf16> pooled_groups(std::span<const float> kv, std::span<const float> score, int64_t groups,
                                int64_t ratio, int64_t head_dim) {
    std::vector<Bf16> pooled(static_cast<size_t>(groups * head_dim));
#pragma omp parallel for schedule(static)
    for (int64_t group = 0; group < groups; ++group)
        for (int64_t channel = 0; channel < head_dim; ++channel) {
            const int64_t at = group * ratio * head_dim + channel;
            pooled[static_cast<size_t>(group * head_dim + channel)] =
                bf16_from_float(pooled_channel(kv.data() + at, score.data() + at, ratio, head_dim));
        }
    return pooled;
}

std::vector<float> behind(const std::vector<float>& open, const std::vector<float>& rows) {
    std::vector<float> all = open;
    all.insert(all.end(), rows.begin(), rows.end());
    return all;
}

}  // namespace

Latents compress(Arithmetic arithmetic, std::span<const Bf16> x, int64_t rows, int64_t first_position,
                 int64_t ratio, const CompressorWeights& weights, float norm_eps, OpenGroup& open) {
    require_inputs(first_position, ratio, weights, open);
    const int64_t head_dim = weights.wkv.outputs;
    const auto call_size = static_cast<size_t>(std::max<int64_t>(rows, 0) * head_dim);
    Latents result;
    result.first_group = first_position / ratio;
    OpenGroup next;
    int64_t groups = rows;
    if (ratio == 1) {
        result.pooled.resize(call_size);
        linear_bf16(arithmetic, SumOperator::compressor_wkv, x, rows, weights.wkv,
                    std::span<Bf16>(result.pooled));
    } else {
        // 1. The rows in fp32, behind those that wait.
        result.kv.resize(call_size);
        result.score.resize(call_size);
        linear_bf16(arithmetic, SumOperator::compressor_wkv, x, rows, weights.wkv,
                    std::span<float>(result.kv));
        linear_bf16(arithmetic, SumOperator::compressor_wgate, x, rows, weights.wgate,
                    std::span<float>(result.score));
        const std::vector<float> kv = behind(open.kv, result.kv), score = behind(open.score, result.score);
        // 2. Groups that are whole; what is left waits.
        groups = (first_position % ratio + rows) / ratio;
        result.pooled = pooled_groups(kv, score, groups, ratio, head_dim);
        const int64_t closed = groups * ratio * head_dim;
        next = {{kv.begin() + closed, kv.end()}, {score.begin() + closed, score.end()}};
    }
    result.latents.resize(result.pooled.size());
    rms_norm(result.pooled, groups, weights.norm, norm_eps, std::span<Bf16>(result.latents));
    open = std::move(next);
    return result;
}

}  // namespace touchstone
