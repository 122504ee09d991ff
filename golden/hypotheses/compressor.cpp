// What kernels of the compressor have got wrong.
#include "reference/compressor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "golden/hypotheses/component_words.h"
#include "reference/registry/entry.h"
#include "reference/rope.h"
#include "reference/truth/compressor.h"
#include "reference/truth/rms_norm.h"
#include "reference/truth/rope.h"

namespace touchstone {

namespace {

const std::vector<std::string> here{"compressor"};

/// The sequence from the open group's first token on, in double, of the reference's projections.
struct Tokens {
    truth::Matrix kv, score;
};

truth::Matrix projected(Arithmetic arithmetic, const Call& call, SumOperator op, std::string_view weight) {
    truth::Matrix result(call["rows"], call["channels"]);
    std::vector<float> values(static_cast<size_t>(result.size()));
    linear_bf16(arithmetic, op, call.in<Bf16>("x"), call["rows"],
                bf16_weight(call, weight, call["channels"], call["hidden"]), std::span<float>(values));
    std::ranges::copy(values, result.data());
    return result;
}

truth::Matrix below(const truth::Matrix& above, const truth::Matrix& rows) {
    truth::Matrix all(above.rows() + rows.rows(), rows.cols());
    all << above, rows;
    return all;
}

int64_t open_tokens(const Call& call) {
    return call["first_position"] % call["ratio"];
}

Tokens tokens_of(Arithmetic arithmetic, const Call& call) {
    const int64_t open = open_tokens(call);
    return {
        below(matrix(call, "open_kv", open), projected(arithmetic, call, SumOperator::compressor_wkv, "wkv")),
        below(matrix(call, "open_score", open),
              projected(arithmetic, call, SumOperator::compressor_wgate, "wgate"))};
}

truth::Matrix normed(const Call& call, const truth::Matrix& rows) {
    return truth::rms_norm(rows, vector(call, "norm"), static_cast<double>(call.real("eps")));
}

/// Writes groups as pooled, and their normed rows as latents.
bool put_pooled(const Call& call, const truth::Matrix& pooled) {
    store(call, "pooled", pooled);
    store(call, "latents", normed(call, truth::Ledger::released().bf16(pooled)));
    return true;
}

/// Weights of the tokens of a group, [tokens, channels] of their scores.
using Weigh = truth::Matrix (*)(const truth::Matrix& score);

/// Groups whose tokens begin `shift` tokens late, pooled with other weights. Tokens that are not there are
/// left out.
bool pool(Arithmetic arithmetic, const Call& call, int64_t shift, Weigh weigh) {
    const int64_t ratio = call["ratio"];
    if (ratio == 1) return false;
    const Tokens tokens = tokens_of(arithmetic, call);
    truth::Matrix pooled(tokens.kv.rows() / ratio, tokens.kv.cols());
    for (Eigen::Index group = 0; group < pooled.rows(); ++group) {
        const int64_t first = std::max<int64_t>(group * ratio + shift, 0);
        const int64_t last = std::min<int64_t>((group + 1) * ratio + shift, tokens.kv.rows());
        if (last <= first) return false;
        const truth::Matrix weights = weigh(tokens.score.middleRows(first, last - first));
        pooled.row(group) = weights.cwiseProduct(tokens.kv.middleRows(first, last - first)).colwise().sum();
    }
    return put_pooled(call, pooled);
}

Outputs pooled_by(Weigh weigh) {
    return recomputed(
        [weigh](Arithmetic arithmetic, const Call& call) { return pool(arithmetic, call, 0, weigh); });
}

truth::Matrix softmax_of_tokens(const truth::Matrix& score) {
    const truth::Matrix e = (score.rowwise() - score.colwise().maxCoeff()).array().exp();
    return e.array().rowwise() / e.colwise().sum().array();
}

truth::Matrix softmax_of_channels(const truth::Matrix& score) {
    return softmax_of_tokens(score.transpose()).transpose();
}

truth::Matrix softmax_of_scaled(const truth::Matrix& score) {
    return softmax_of_tokens(score / std::sqrt(static_cast<double>(score.cols())));
}

truth::Matrix sigmoids(const truth::Matrix& score) {
    return 1 / (1 + (-score.array()).exp());
}

truth::Matrix mean(const truth::Matrix& score) {
    return truth::Matrix::Constant(score.rows(), score.cols(), 1 / static_cast<double>(score.rows()));
}

truth::Matrix first_token(const truth::Matrix& score) {
    truth::Matrix weights = truth::Matrix::Zero(score.rows(), score.cols());
    weights.row(0).setOnes();
    return weights;
}

truth::Matrix last_token(const truth::Matrix& score) {
    return first_token(score).colwise().reverse();
}

/// The weights of the group's tokens in reverse: each token has another's.
truth::Matrix weights_reversed(const truth::Matrix& score) {
    return softmax_of_tokens(score).colwise().reverse();
}

bool groups_one_token_early(Arithmetic arithmetic, const Call& call) {
    return pool(arithmetic, call, -1, softmax_of_tokens);
}

bool groups_one_token_late(Arithmetic arithmetic, const Call& call) {
    return pool(arithmetic, call, 1, softmax_of_tokens);
}

bool groups_from_the_chunk(Arithmetic arithmetic, const Call& call) {
    const int64_t open = open_tokens(call);
    return open != 0 && pool(arithmetic, call, open, softmax_of_tokens);
}

/// kv and scores as bf16, the open group's too.
bool pool_bf16_rows(Arithmetic arithmetic, const Call& call) {
    const int64_t ratio = call["ratio"];
    if (ratio == 1) return false;
    const truth::Ledger ledger = truth::Ledger::released();
    const Tokens tokens = tokens_of(arithmetic, call);
    const truth::Matrix kv = ledger.bf16(tokens.kv), score = ledger.bf16(tokens.score);
    const Eigen::Index groups = kv.rows() / ratio, closed = groups * ratio;
    store(call, "still_open_kv", kv.bottomRows(kv.rows() - closed));
    store(call, "still_open_score", score.bottomRows(kv.rows() - closed));
    return put_pooled(call, truth::pooled_groups(kv.topRows(closed), score.topRows(closed), ratio));
}

/// Each token's kv is normed, then pooled.
bool norm_then_pool(Arithmetic arithmetic, const Call& call) {
    const int64_t ratio = call["ratio"];
    if (ratio == 1) return false;
    const Tokens tokens = tokens_of(arithmetic, call);
    const Eigen::Index closed = tokens.kv.rows() / ratio * ratio;
    const truth::Matrix pooled =
        truth::pooled_groups(normed(call, tokens.kv.topRows(closed)), tokens.score.topRows(closed), ratio);
    store(call, "pooled", pooled);
    store(call, "latents", pooled);
    return true;
}

/// The pooled rows stay fp32 in front of the norm.
bool norm_unrounded(Arithmetic arithmetic, const Call& call) {
    const int64_t ratio = call["ratio"];
    if (ratio == 1) return false;
    const Tokens tokens = tokens_of(arithmetic, call);
    const Eigen::Index closed = tokens.kv.rows() / ratio * ratio;
    store(call, "latents",
          normed(call, truth::pooled_groups(tokens.kv.topRows(closed), tokens.score.topRows(closed), ratio)));
    return true;
}

truth::Matrix output(const Call& call, std::string_view name) {
    const Tensor& tensor = call.outputs.find(name)->second;
    return matrix(tensor, tensor.shape.front());
}

bool not_normed(const Call& call) {
    store(call, "latents", output(call, "pooled"));
    return true;
}

bool normed_as_layer_norm(const Call& call) {
    truth::Matrix centred = output(call, "pooled");
    const truth::Vector means = centred.rowwise().mean();
    centred.colwise() -= means;
    store(call, "latents", normed(call, centred));
    return true;
}

bool latents_rotated(const Call& call) {
    const truth::Matrix latents = output(call, "latents");
    ModelConfig config = released_config();
    if (call["channels"] < config.qk_rope_head_dim) return false;
    std::vector<int64_t> positions;
    for (int64_t group = 0; group < latents.rows(); ++group)
        positions.push_back((call["first_position"] / call["ratio"] + group) * call["ratio"]);
    store(call, "latents",
          truth::rope(latents, call["channels"], positions,
                      truth::rope_frequencies(config, truth::RopeTable::compress)));
    return true;
}

bool latents_quantised(const Call& call) {
    if (call["channels"] % 16 != 0) return false;
    store(call, "latents", truth::Ledger::released().q4m(output(call, "latents")));
    return true;
}

/// The open group's tensors of a call that has some.
std::optional<std::pair<std::span<float>, std::span<float>>> open_rows(TensorMap& inputs) {
    const auto kv = inputs.find("open_kv"), score = inputs.find("open_score");
    if (kv == inputs.end() || kv->second.bytes.empty()) return std::nullopt;
    return std::pair(kv->second.view<float>(), score->second.view<float>());
}

bool open_group_dropped(TensorMap& inputs, const OperatorRun&) {
    const auto open = open_rows(inputs);
    if (open) std::ranges::fill(open->second, -std::numeric_limits<float>::infinity());
    return open.has_value();
}

bool open_group_zeroed(TensorMap& inputs, const OperatorRun&) {
    const auto open = open_rows(inputs);
    if (open) std::ranges::fill(open->first, 0.0f);
    if (open) std::ranges::fill(open->second, 0.0f);
    return open.has_value();
}

bool open_group_scores_zeroed(TensorMap& inputs, const OperatorRun&) {
    const auto open = open_rows(inputs);
    if (open) std::ranges::fill(open->second, 0.0f);
    return open.has_value();
}

bool open_group_swapped(TensorMap& inputs, const OperatorRun&) {
    const auto open = open_rows(inputs);
    if (open) std::ranges::swap_ranges(open->first, open->second);
    return open.has_value();
}

bool weights_swapped(TensorMap& inputs, const OperatorRun&) {
    const auto gate = inputs.find("wgate");
    if (gate == inputs.end()) return false;
    std::swap(inputs.find("wkv")->second.bytes, gate->second.bytes);
    return true;
}

std::vector<Hypothesis> pooling_rows() {
    const Cause fault = Cause::fault;
    return {
        {"pooled_unrounded_before_norm", "order", "pooled rows are not rounded to bf16 in front of the norm",
         Cause::order, here, recomputed(norm_unrounded)},
        {"pooling_by_mean", "K07", "the gate is ignored: every token of a group counts alike", fault, here,
         pooled_by(mean)},
        {"pooling_softmax_over_channels", "K07", "the softmax runs over channels, not over a group's tokens",
         fault, here, pooled_by(softmax_of_channels)},
        {"pooling_by_sigmoid", "K07", "sigmoids of the scores stand for their softmax", fault, here,
         pooled_by(sigmoids)},
        {"pooling_scores_scaled", "K07", "the scores are multiplied by channels^-1/2", fault, here,
         pooled_by(softmax_of_scaled)},
        {"pooling_takes_first_token", "K07", "a group is its first token", fault, here,
         pooled_by(first_token)},
        {"pooling_takes_last_token", "K07", "a group is its last token", fault, here, pooled_by(last_token)},
        {"pooling_weights_reversed", "K07", "a group's tokens have each other's weights, in reverse", fault,
         here, pooled_by(weights_reversed)},
        {"groups_one_token_early", "K07", "groups begin one token before their first", fault, here,
         recomputed(groups_one_token_early)},
        {"groups_one_token_late", "K07", "groups begin one token behind their first", fault, here,
         recomputed(groups_one_token_late)},
        {"groups_begin_with_the_chunk", "K08", "groups are counted from the chunk's first token", fault, here,
         recomputed(groups_from_the_chunk)},
        {"projections_in_bf16", "K07", "kv and scores are rounded to bf16 before they are pooled or kept",
         fault, here, recomputed(pool_bf16_rows)},
    };
}

std::vector<Hypothesis> other_rows() {
    const Cause fault = Cause::fault;
    return {
        {"open_group_dropped", "K07", "the tokens that a call before left open are not pooled", fault, here,
         with_inputs(open_group_dropped)},
        {"open_group_zeroed", "K07", "the group left open is read as zeros", fault, here,
         with_inputs(open_group_zeroed)},
        {"open_group_scores_zeroed", "K07", "the scores of the group left open are read as zeros", fault,
         here, with_inputs(open_group_scores_zeroed)},
        {"open_group_kv_and_scores_swapped", "K07", "kv and scores of the group left open are swapped", fault,
         here, with_inputs(open_group_swapped)},
        {"wkv_and_wgate_swapped", "K07", "the two projections are swapped", fault, here,
         with_inputs(weights_swapped)},
        {"latent_norm_missing", "K20", "the latent is not normed", fault, here, computed(not_normed)},
        {"latent_norm_before_pooling", "K20", "each token is normed, then the group is pooled", fault, here,
         recomputed(norm_then_pool)},
        {"latent_layer_norm", "K20", "the latent's mean is taken off in front of the norm", fault, here,
         computed(normed_as_layer_norm)},
        {"latent_norm_gain_missing", "K20", "the gain of the latent's norm is left out", fault, here,
         with_inputs([](TensorMap& inputs, const OperatorRun&) {
             std::ranges::fill(inputs.find("norm")->second.view<Bf16>(), bf16_from_float(1));
             return true;
         })},
        {"latents_rotated", "K10", "the latents have been rotated in place, as the cache stores them", fault,
         here, computed(latents_rotated)},
        {"latents_quantised", "K07", "the latents have been quantised in place, as the cache stores them",
         fault, here, computed(latents_quantised)},
    };
}

}  // namespace

std::vector<Hypothesis> compressor_hypotheses() {
    std::vector<Hypothesis> all = pooling_rows();
    for (Hypothesis& row : other_rows()) all.push_back(std::move(row));
    return all;
}

}  // namespace touchstone
