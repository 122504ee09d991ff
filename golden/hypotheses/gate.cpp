// What kernels of the experts' gate have got wrong.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>

#include "golden/hypotheses/component_words.h"
#include "reference/moe_gate.h"
#include "reference/registry/entry.h"

namespace touchstone {

namespace {

const std::vector<std::string> here{"moe_gate"};

/// The parts of a gate; as they stand here, the reference's.
struct GateRule {
    double (*score)(double logit) = nullptr;  ///< null: the reference's scores
    bool logits_in_bf16 = false;
    bool softmax = false;  ///< over all experts, in the scores' place
    bool ties_to_higher = false;
    bool ascending = false;  ///< the chosen by id, not by score
    int64_t groups = 1;      ///< half of which are left, by the sum of their two best
    enum Divisor : uint8_t { chosen, all, none } divisor = chosen;
    bool biased_weights = false;     ///< weights of score + bias
    bool unfloored = false;          ///< the divisor lacks its 1e-20
    bool softmax_of_chosen = false;  ///< in the place of the division
};

truth::Matrix logits(Arithmetic arithmetic, const Call& call) {
    truth::Matrix result(call["rows"], call["experts"]);
    std::vector<float> values(static_cast<size_t>(result.size()));
    linear_bf16(arithmetic, SumOperator::moe_gate, call.in<Bf16>("x"), call["rows"],
                bf16_weight(call, "weight", call["experts"], call["hidden"]), std::span<float>(values));
    std::ranges::copy(values, result.data());
    return result;
}

double sqrt_softplus(double x) {
    return std::sqrt(x > 20 ? x : std::log1p(std::exp(x)));
}

truth::Matrix scores_by(const GateRule& rule, Arithmetic arithmetic, const Call& call) {
    if (rule.score == nullptr && !rule.softmax && !rule.logits_in_bf16)
        return matrix(call.outputs.find("scores")->second, call["rows"]);
    truth::Matrix x = logits(arithmetic, call);
    if (rule.logits_in_bf16) x = truth::Ledger::released().bf16(std::move(x));
    if (!rule.softmax) return x.unaryExpr(std::function(rule.score != nullptr ? rule.score : sqrt_softplus));
    x = (x.colwise() - x.rowwise().maxCoeff()).array().exp().eval();
    const truth::Vector sums = x.rowwise().sum();
    return (x.array().colwise() / sums.array()).matrix();
}

/// Scores of the worse half of the groups become -infinity.
void leave_groups(truth::Vector& biased, int64_t groups) {
    const Eigen::Index size = biased.size() / groups;
    std::vector<std::pair<double, Eigen::Index>> order;
    for (Eigen::Index group = 0; group < groups; ++group) {
        truth::Vector scores = biased.segment(group * size, size);
        std::sort(scores.begin(), scores.end(), std::greater<>());
        order.emplace_back(-(scores[0] + (size > 1 ? scores[1] : 0)), group);
    }
    std::ranges::sort(order);
    for (size_t i = static_cast<size_t>(groups / 2); i < order.size(); ++i)
        biased.segment(order[i].second * size, size).setConstant(-std::numeric_limits<double>::infinity());
}

std::vector<int32_t> chosen_by(const GateRule& rule, truth::Vector biased, int64_t k) {
    if (rule.groups > 1) leave_groups(biased, rule.groups);
    std::vector<int32_t> ids(static_cast<size_t>(biased.size()));
    std::iota(ids.begin(), ids.end(), 0);
    if (rule.ties_to_higher) std::ranges::reverse(ids);
    // fp32, as the reference adds bias: what ties there must tie here.
    std::ranges::stable_sort(ids, std::greater<>(),
                             [&](int32_t id) { return static_cast<float>(biased[id]); });
    ids.resize(static_cast<size_t>(k));
    if (rule.ascending) std::ranges::sort(ids);
    return ids;
}

truth::Vector weights_by(const GateRule& rule, const truth::Vector& scores, const truth::Vector& biased,
                         const std::vector<int32_t>& chosen, double factor) {
    const auto k = std::ssize(chosen);
    truth::Vector weights(k);
    for (Eigen::Index i = 0; i < k; ++i)
        weights[i] = (rule.biased_weights ? biased : scores)[chosen[static_cast<size_t>(i)]];
    if (rule.softmax_of_chosen) {
        weights = (weights.array() - weights.maxCoeff()).exp().eval();
        weights /= weights.sum();
    } else if (rule.divisor == GateRule::all) {
        weights /= scores.sum();
    } else if (rule.divisor == GateRule::chosen && k > 1) {
        weights /= weights.sum() + (rule.unfloored ? 0 : 1e-20);
    }
    return weights * factor;
}

bool route(const GateRule& rule, Arithmetic arithmetic, const Call& call) {
    const int64_t k = call["experts_per_token"], experts = call["experts"];
    if (experts % rule.groups != 0 || experts / rule.groups * (rule.groups + 1) / 2 < k) return false;
    const truth::Matrix scores = scores_by(rule, arithmetic, call);
    truth::Matrix weights(call["rows"], k);
    for (Eigen::Index row = 0; row < scores.rows(); ++row) {
        const bool image = call.in<uint8_t>("image_rows")[static_cast<size_t>(row)] != 0;
        const truth::Vector score = scores.row(row);
        const truth::Vector biased = score + vector(call, image ? "bias_vl" : "bias");
        const auto chosen =
            call.out<int32_t>("chosen").subspan(static_cast<size_t>(row * k), static_cast<size_t>(k));
        if (call["forced"] == 0) std::ranges::copy(chosen_by(rule, biased, k), chosen.begin());
        weights.row(row) = weights_by(rule, score, biased, {chosen.begin(), chosen.end()},
                                      static_cast<double>(call.real("scaling_factor")));
    }
    store(call, "scores", scores);
    store(call, "weights", weights);
    return true;
}

Outputs gate_with(const GateRule& rule) {
    return recomputed(
        [rule](Arithmetic arithmetic, const Call& call) { return route(rule, arithmetic, call); });
}

double sigmoid(double x) {
    return 1 / (1 + std::exp(-x));
}
double softplus(double x) {
    return x > 20 ? x : std::log1p(std::exp(x));
}
double exponential(double x) {
    return std::exp(x);
}
double logit_itself(double x) {
    return x;
}
/// In fp32: 1 + e^x is 1 from x = -16.64 down.
double vanishing(double x) {
    const float sum = 1 + static_cast<float>(std::exp(x));
    return std::sqrt(x > 20 ? x : std::log(static_cast<double>(sum)));
}
/// In fp32, without the threshold: e^x is infinite from x = 88.73 up.
double overflowing(double x) {
    const auto e = static_cast<float>(std::exp(x));
    return std::sqrt(std::log1p(static_cast<double>(e)));
}

bool biases_zeroed(TensorMap& inputs, const OperatorRun&) {
    for (const char* name : {"bias", "bias_vl"})
        std::ranges::fill(inputs.find(name)->second.view<float>(), 0.0f);
    return true;
}

/// The mask of image rows by `change`.
Outputs image_rows_by(uint8_t (*change)(uint8_t)) {
    return with_inputs([change](TensorMap& inputs, const OperatorRun&) {
        const std::span<uint8_t> rows = inputs.find("image_rows")->second.view<uint8_t>();
        std::ranges::transform(rows, rows.begin(), change);
        return true;
    });
}

uint8_t none(uint8_t) {
    return 0;
}
uint8_t all(uint8_t) {
    return 1;
}
uint8_t inverted(uint8_t flag) {
    return flag == 0 ? 1 : 0;
}

bool ids_from_one(TensorMap& outputs, const OperatorRun&) {
    for (int32_t& id : outputs.find("chosen")->second.view<int32_t>()) ++id;
    return true;
}

std::vector<Hypothesis> score_rows() {
    const Cause fault = Cause::fault;
    return {
        {"gate_sigmoid", "K18", "scores are sigmoids of the logits", fault, here,
         gate_with({.score = sigmoid})},
        {"gate_softmax", "K18", "scores are a softmax over the experts", fault, here,
         gate_with({.softmax = true})},
        {"gate_softplus", "K18", "scores lack the square root of the softplus", fault, here,
         gate_with({.score = softplus})},
        {"gate_exponential", "K18", "scores are exponentials of the logits", fault, here,
         gate_with({.score = exponential})},
        {"gate_logits", "K18", "the logits themselves are the scores", fault, here,
         gate_with({.score = logit_itself})},
        {"gate_softplus_vanishes", "K18", "log(1 + e^x) is 0 for logits below -16.6", fault, here,
         gate_with({.score = vanishing})},
        {"gate_softplus_overflows", "K18", "log1p(e^x) is infinite for logits above 88.7", fault, here,
         gate_with({.score = overflowing})},
        {"gate_logits_in_bf16", "K18", "the logits are rounded to bf16", fault, here,
         gate_with({.logits_in_bf16 = true})},
    };
}

std::vector<Hypothesis> routing_rows() {
    const Cause fault = Cause::fault;
    return {
        {"gate_chosen_by_id", "order", "the chosen experts stand by id, not by score", Cause::order, here,
         gate_with({.ascending = true})},
        {"gate_bias_in_weights", "K18", "weights are taken from score + bias", fault, here,
         gate_with({.biased_weights = true})},
        {"gate_bias_missing", "K18", "experts are chosen without the bias", fault, here,
         with_inputs(biases_zeroed)},
        {"gate_image_bias_ignored", "K18", "rows inside an image have the text's bias", fault, here,
         image_rows_by(none)},
        {"gate_image_bias_everywhere", "K18", "every row has the images' bias", fault, here,
         image_rows_by(all)},
        {"gate_image_mask_inverted", "K18", "the images' bias goes to the rows outside", fault, here,
         image_rows_by(inverted)},
        {"gate_weights_not_normalised", "K18", "weights are not divided by their sum", fault, here,
         gate_with({.divisor = GateRule::none})},
        {"gate_sum_not_floored", "K18", "scores that are all 0 are divided by 0", fault, here,
         gate_with({.unfloored = true})},
        {"gate_weights_normalised_over_all", "K18", "weights are divided by the sum over all experts", fault,
         here, gate_with({.divisor = GateRule::all})},
        {"gate_weights_softmax_of_chosen", "K18", "weights are a softmax over the chosen scores", fault, here,
         gate_with({.softmax_of_chosen = true})},
        {"gate_scale_missing", "K18",
         "weights lack the scaling factor, or have it in front of their normalisation", fault, here,
         with_parameters([](Parameters& parameters, const OperatorRun&) {
             return set_real(parameters, "scaling_factor", 1);
         })},
        {"gate_ties_to_higher_id", "K12", "of equal scores the higher id wins", fault, here,
         gate_with({.ties_to_higher = true})},
        {"gate_limited_to_groups", "K18", "experts are chosen from four of eight groups, as in V3", fault,
         here, gate_with({.groups = 8})},
        {"gate_ids_from_one", "K18", "ids are counted from one", fault, here, with_outputs(ids_from_one)},
    };
}

}  // namespace

std::vector<Hypothesis> gate_hypotheses() {
    std::vector<Hypothesis> rows = score_rows();
    for (Hypothesis& row : routing_rows()) rows.push_back(std::move(row));
    return rows;
}

}  // namespace touchstone
