// What kernels of index scores have got wrong.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "golden/hypotheses/component_words.h"
#include "reference/registry/entry.h"

namespace touchstone {

namespace {

const std::vector<std::string> on_scores{"index_scores"};

/// One key: dots of all heads and the heads' weights give its score, rounded to bf16 afterwards.
using Combine = std::function<double(const truth::Vector& dots, const truth::Vector& weights)>;

Outputs scored(const Combine& combine) {
    return computed([combine](const Call& call) {
        const truth::Matrix dots = matrix(call.outputs.find("dot")->second, call["heads"]);
        const truth::Vector weights = vector(call, "weights");
        truth::Matrix scores(1, call["visible"]);
        for (Eigen::Index key = 0; key < scores.cols(); ++key)
            scores(0, key) = truth::nearest_bf16(combine(dots.col(key), weights));
        store(call, "scores", scores);
        return true;
    });
}

double with_relu(const truth::Vector& dots, const truth::Vector& weights) {
    double sum = 0;
    for (Eigen::Index head = 0; head < dots.size(); ++head)
        sum += truth::nearest_bf16(std::max(dots[head], 0.0) * weights[head]);
    return sum;
}

double without_relu(const truth::Vector& dots, const truth::Vector& weights) {
    return dots.dot(weights);
}

double relu_of_sum(const truth::Vector& dots, const truth::Vector& weights) {
    return std::max(dots.dot(weights), 0.0);
}

double relu_of_weighted(const truth::Vector& dots, const truth::Vector& weights) {
    return dots.cwiseProduct(weights).cwiseMax(0).sum();
}

double without_weights(const truth::Vector& dots, const truth::Vector&) {
    return dots.cwiseMax(0).sum();
}

double magnitudes(const truth::Vector& dots, const truth::Vector& weights) {
    return dots.cwiseAbs().dot(weights);
}

double largest_head(const truth::Vector& dots, const truth::Vector& weights) {
    return dots.cwiseMax(0).cwiseProduct(weights).maxCoeff();
}

double weights_of_next_head(const truth::Vector& dots, const truth::Vector& weights) {
    truth::Vector rotated = weights;
    std::rotate(rotated.begin(), rotated.begin() + 1, rotated.end());
    return with_relu(dots, rotated);
}

/// All scores by a factor heads^a head_dim^b.
Outputs scores_scaled(double heads_power, double head_dim_power) {
    return computed([heads_power, head_dim_power](const Call& call) {
        const double factor = std::pow(static_cast<double>(call["heads"]), heads_power) *
                              std::pow(static_cast<double>(call["head_dim"]), head_dim_power);
        for (float& score : call.out<float>("scores"))
            score = static_cast<float>(truth::nearest_bf16(factor * static_cast<double>(score)));
        return true;
    });
}

/// No rounding between the products and the score.
bool scores_in_fp32(const Call& call) {
    const truth::Matrix dots = matrix(call.outputs.find("dot")->second, call["heads"]);
    store(call, "scores", vector(call, "weights").transpose() * dots.cwiseMax(0));
    return true;
}

/// IEEE half precision, as some engines keep scores.
double to_fp16(double x) {
    const double step = std::ldexp(1.0, std::max(std::ilogb(x), -14) - 10);
    return x == 0 ? x : std::nearbyint(x / step) * step;
}

bool scores_in_fp16(const Call& call) {
    const truth::Matrix dots = matrix(call.outputs.find("dot")->second, call["heads"]);
    const truth::Matrix scores = vector(call, "weights").transpose() * dots.cwiseMax(0);
    store(call, "scores", scores.unaryExpr(std::function(to_fp16)));
    return true;
}

/// Keys from `count` on are masked: a loop that ends with the first chunk.
Outputs scored_up_to(int64_t count) {
    return with_outputs([count](TensorMap& outputs, const OperatorRun&) {
        const std::span<float> scores = outputs.find("scores")->second.view<float>();
        if (std::ssize(scores) <= count) return false;
        std::fill(scores.begin() + count, scores.end(), -std::numeric_limits<float>::infinity());
        return true;
    });
}

bool last_key_masked(TensorMap& outputs, const OperatorRun& run) {
    if (run.parameters["visible"] == 0) return false;
    outputs.find("scores")->second.view<float>().back() = -std::numeric_limits<float>::infinity();
    return true;
}

bool keys_one_row_on(TensorMap& inputs, const OperatorRun& run) {
    const int64_t keys = run.parameters["keys"], width = run.parameters["head_dim"];
    rotate_extent(inputs.find("key_codes")->second.view<uint8_t>(), keys, width / 2);
    rotate_extent(inputs.find("key_scales")->second.view<E8m0>(), keys, width / 32);
    return keys > 1;
}

Outputs blocks_rotated(const std::string& scales) {
    return with_inputs([scales](TensorMap& inputs, const OperatorRun& run) {
        const int64_t blocks = run.parameters["head_dim"] / 32;
        rotate_extent(inputs.find(scales)->second.view<E8m0>(), blocks, 1);
        return blocks > 1;
    });
}

Outputs scales_of_one(const std::string& scales) {
    return with_inputs([scales](TensorMap& inputs, const OperatorRun&) {
        std::ranges::fill(inputs.find(scales)->second.view<E8m0>(), E8m0{127});
        return true;
    });
}

}  // namespace

std::vector<Hypothesis> index_score_hypotheses() {
    const Cause fault = Cause::fault;
    return {
        {"scores_in_fp32", "order", "weighted dots and scores are not rounded to bf16", Cause::order,
         on_scores, computed(scores_in_fp32)},
        {"scores_in_fp16", "order", "scores are rounded to fp16, once", Cause::order, on_scores,
         computed(scores_in_fp16)},
        {"relu_missing", "K11", "the dot products are not cut off at zero before the head weights", fault,
         on_scores, scored(without_relu)},
        {"relu_after_head_sum", "K11", "the sum over heads is cut off at zero, not each dot product", fault,
         on_scores, scored(relu_of_sum)},
        {"relu_after_head_weight", "K11", "weighted dot products are cut off at zero", fault, on_scores,
         scored(relu_of_weighted)},
        {"head_weights_missing", "K11", "the heads are added without their weights", fault, on_scores,
         scored(without_weights)},
        {"head_weights_of_next_head", "K11", "each head has the next head's weight", fault, on_scores,
         scored(weights_of_next_head)},
        {"magnitude_for_relu", "K11", "the magnitudes of dot products stand for their positive parts", fault,
         on_scores, scored(magnitudes)},
        {"largest_head_for_sum", "K11", "the largest head stands for the sum over heads", fault, on_scores,
         scored(largest_head)},
        {"score_scaled_again", "K11", "the factor (head_dim heads)^-1/2 is applied a second time", fault,
         on_scores, scores_scaled(-0.5, -0.5)},
        {"score_scaled_by_head_dim_again", "K11", "the factor head_dim^-1/2 is applied a second time", fault,
         on_scores, scores_scaled(0, -0.5)},
        {"score_scaled_by_heads_again", "K11", "the factor heads^-1/2 is applied a second time", fault,
         on_scores, scores_scaled(-0.5, 0)},
        {"last_visible_key_masked", "K07", "the last visible key is masked", fault, on_scores,
         with_outputs(last_key_masked)},
        {"keys_behind_128_masked", "K08", "keys behind the first 128 are not scored", fault, on_scores,
         scored_up_to(128)},
        {"keys_behind_512_masked", "K08", "keys behind the first 512 are not scored", fault, on_scores,
         scored_up_to(512)},
        {"keys_one_row_on", "K07", "each key is the one stored behind it", fault, on_scores,
         with_inputs(keys_one_row_on)},
        {"key_scales_of_next_block", "K16", "blocks of 32 channels of a key have the next block's scale",
         fault, on_scores, blocks_rotated("key_scales")},
        {"query_scales_of_next_block_read", "K16",
         "blocks of 32 channels of the query have the next block's scale", fault, on_scores,
         blocks_rotated("scales")},
        {"key_scales_ignored", "K16", "the keys' scales are taken as 1", fault, on_scores,
         scales_of_one("key_scales")},
        {"query_scales_ignored", "K16", "the query's scales are taken as 1", fault, on_scores,
         scales_of_one("scales")},
    };
}

}  // namespace touchstone
