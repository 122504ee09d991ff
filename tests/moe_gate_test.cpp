#include "reference/moe_gate.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/elementary.h"
#include "reference/numerics/sum_order.h"
#include "reference/truth/moe.h"
#include "tests/random_tensors.h"

using namespace touchstone;
using namespace touchstone::random_tensors;

namespace {

constexpr std::array arithmetics{Arithmetic::exact, Arithmetic::hopper};
constexpr GateSettings released{6, 1.5f};

/// A gate and what its weights refer to.
struct Gate {
    std::vector<Bf16> values;
    std::vector<float> bias, bias_vl;
    int64_t experts, inputs;

    Gate(int64_t experts_, int64_t inputs_)
        : values(bf16(experts_ * inputs_, {11}, 4 / std::sqrt(static_cast<float>(inputs_)))),
          bias(fp32(experts_, {12}, 0.5f)),
          bias_vl(fp32(experts_, {13}, 0.5f)),
          experts(experts_),
          inputs(inputs_) {}
    GateWeights weights() const {
        return {{"layers.0.ffn.gate.weight", experts, inputs, values}, bias, bias_vl};
    }
};

/// A gate whose logits are the 16 inputs: expert i sees channel i alone.
Routing route_logits(std::span<const float> logits, const GateSettings& settings,
                     std::vector<float> bias = {}, std::vector<float> bias_vl = {},
                     std::span<const uint8_t> image_rows = {}, std::span<const int32_t> forced = {}) {
    constexpr int64_t width = 16;
    std::vector<Bf16> identity(width * width, bf16_from_float(0)), x;
    for (size_t i = 0; i < width; ++i) identity[i * width + i] = bf16_from_float(1);
    for (float logit : logits) x.push_back(bf16_from_float(logit));
    bias.resize(width), bias_vl.resize(width);
    return moe_gate(Arithmetic::exact, x, std::ssize(x) / width,
                    {{"gate", width, width, identity}, bias, bias_vl}, settings, image_rows, forced);
}

/// 16 logits, the first ones given, the rest far below.
std::vector<float> logits_of(std::initializer_list<float> first) {
    std::vector<float> logits(16, -200.0f);
    std::copy(first.begin(), first.end(), logits.begin());
    return logits;
}

}  // namespace

TEST_CASE("moe_gate: scores and weights against truth, within their bounds (exact and hopper)") {
    for (Arithmetic arithmetic : arithmetics) {
        double nearest_score = 0, nearest_weight = 0;
        for (int64_t inputs : {256, 5120}) {
            constexpr int64_t rows = 10, experts = 384;
            const Gate gate(experts, inputs);
            const std::vector<Bf16> x = bf16(rows * inputs, {14}, 1.5f);
            const Routing ours = moe_gate(arithmetic, x, rows, gate.weights(), released);
            const truth::LinearOperands operands = truth::linear_operands(x, rows, gate.weights().weight);
            const SumOrder order = sum_order(SumOperator::moe_gate, inputs, experts);
            const truth::Matrix logits = truth::linear(operands),
                                logit_bound = arithmetic == Arithmetic::exact
                                                  ? truth::exact_lanes_bound(operands, order.lanes)
                                                  : truth::hopper_bound(operands, order),
                                scores = truth::gate_scores(operands.a, operands.b);
            // sqrt(softplus) has the slope sigmoid / (2 score). exp, log1p: 1 ulp (2u) each, halved by the
            // root, which rounds itself.
            const auto score_bound = [&](int64_t t, int64_t e) {
                const double sigmoid = 1 / (1 + std::exp(-logits(t, e)));
                return 1.01 * (logit_bound(t, e) * sigmoid / (2 * scores(t, e)) + 3 * u * scores(t, e));
            };
            std::vector<std::vector<int64_t>> chosen(rows);
            for (size_t i = 0; i < ours.experts.size(); ++i) chosen[i / 6].push_back(ours.experts[i]);
            const truth::Routing exact = truth::route(scores, chosen, 1.5);
            for (int64_t t = 0; t < rows; ++t) {
                double relative = 0;
                for (int64_t e = 0; e < experts; ++e) {
                    const double error =
                        std::abs(widened(ours.scores[static_cast<size_t>(t * experts + e)]) - scores(t, e)) /
                        score_bound(t, e);
                    REQUIRE(error <= 1);
                    nearest_score = std::max(nearest_score, error);
                }
                for (int64_t e : chosen[static_cast<size_t>(t)])
                    relative = std::max(relative, score_bound(t, e) / scores(t, e));
                // The score's error and the sum's; five additions, + 1e-20, a quotient, a product.
                const double bound = 1.01 * (2 * relative + 8 * u);
                for (int64_t i = 0; i < 6; ++i) {
                    const double error =
                        std::abs(widened(ours.weights[static_cast<size_t>(t * 6 + i)]) / exact.weights(t, i) -
                                 1) /
                        bound;
                    REQUIRE(error <= 1);
                    nearest_weight = std::max(nearest_weight, error);
                }
            }
            // Selection: truth's own, unless two biased scores are as near as their bounds.
            const truth::Matrix biased = scores.rowwise() + matrix(gate.bias, 1).row(0);
            const auto theirs = truth::select_experts(scores, matrix(gate.bias, 1).row(0).transpose(), 6);
            for (int64_t t = 0; t < rows; ++t)
                for (size_t i = 0; i < 6; ++i) {
                    const int64_t a = chosen[static_cast<size_t>(t)][i],
                                  b = theirs[static_cast<size_t>(t)][i];
                    CHECK(biased(t, b) - biased(t, a) <= score_bound(t, a) + score_bound(t, b) + 4 * u);
                }
        }
        CAPTURE(arithmetic_name(arithmetic));
        CHECK(nearest_score >= 0.01);
        CHECK(nearest_weight >= 0.01);
    }
}

TEST_CASE("moe_gate: by the definition, bit for bit (selection order, sum, literal 1e-20, factor)") {
    constexpr int64_t rows = 30, experts = 96, inputs = 256;
    const Gate gate(experts, inputs);
    const std::vector<Bf16> x = bf16(rows * inputs, {15}, 2);
    std::vector<uint8_t> images(rows);
    for (size_t t = 0; t < images.size(); ++t) images[t] = t % 3 == 1;
    const Routing ours = moe_gate(Arithmetic::hopper, x, rows, gate.weights(), released, images);
    std::vector<float> logits(rows * experts);
    linear_bf16(Arithmetic::hopper, SumOperator::moe_gate, x, rows, gate.weights().weight, std::span(logits));
    for (size_t t = 0; t < rows; ++t) {
        std::vector<int32_t> ids(experts);
        for (size_t e = 0; e < experts; ++e) ids[e] = static_cast<int32_t>(e);
        const auto score = [&](int32_t e) {
            return elementary::sqrt_softplus(logits[t * experts + static_cast<size_t>(e)]);
        };
        const std::vector<float>& bias = images[t] != 0 ? gate.bias_vl : gate.bias;
        std::stable_sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
            return score(a) + bias[static_cast<size_t>(a)] > score(b) + bias[static_cast<size_t>(b)];
        });
        float sum = 0;
        for (size_t i = 0; i < 6; ++i) sum += score(ids[i]);
        for (size_t i = 0; i < 6; ++i) {
            REQUIRE(ours.experts[t * 6 + i] == ids[i]);
            const float normalised = score(ids[i]) / (sum + 1e-20f);
            REQUIRE(float_bits(ours.weights[t * 6 + i]) == float_bits(normalised * 1.5f));
        }
        for (int32_t e = 0; e < experts; ++e)
            REQUIRE(float_bits(ours.scores[t * experts + static_cast<size_t>(e)]) == float_bits(score(e)));
    }
}

TEST_CASE("moe_gate: the score is sqrt(softplus) (K18 B125)") {
    const Routing routing = route_logits(logits_of({0, 3, 1, -1}), {2, 1.5f});
    CHECK(routing.scores[0] == doctest::Approx(0.8325546).epsilon(1e-6));  // sqrt(ln 2); a sigmoid gives 0.5
    CHECK(routing.scores[1] == doctest::Approx(1.7460204).epsilon(1e-6));
    CHECK(routing.experts == std::vector<int32_t>{1, 2});
    CHECK(routing.weights[0] + routing.weights[1] == doctest::Approx(1.5).epsilon(1e-6));
    CHECK(routing.weights[0] / routing.weights[1] == doctest::Approx(1.7460204 / 1.1459763).epsilon(1e-5));
}

TEST_CASE("moe_gate: deeply negative and large logits (K18 B126)") {
    // -16.64 is not a bf16; -16.625 is its neighbour.
    const std::array<float, 9> logits{-200, -104, -17, -16.625f, 0, 20, 88.5f, 100, 200};
    const std::array<double, 9> scores{0,        2.6102791e-23, 2.0346837e-4, 2.4543177e-4, 0.8325546,
                                       4.472136, 9.4074439,     10,           14.142136};
    std::vector<float> row(16, -1.0f);
    std::copy(logits.begin(), logits.end(), row.begin());
    const Routing routing = route_logits(row, {2, 1.5f});
    for (size_t i = 0; i < logits.size(); ++i) {
        CAPTURE(logits[i]);
        const double softplus =
            std::log1p(std::exp(-std::abs(widened(logits[i])))) + std::max(widened(logits[i]), 0.0);
        CHECK(routing.scores[i] == doctest::Approx(std::sqrt(softplus)).epsilon(1e-6));
        CHECK(routing.scores[i] == doctest::Approx(scores[i]).epsilon(2e-3));
    }
    // All -200: no score, and no NaN.
    const Routing nothing = route_logits(logits_of({}), released);
    for (float weight : nothing.weights) CHECK(float_bits(weight) == 0);
    CHECK(nothing.experts == std::vector<int32_t>{0, 1, 2, 3, 4, 5});
    // Scores of about 1e-20 and less: the literal counts.
    const Routing small = route_logits(std::vector<float>(16, -92.0f), {2, 1.5f});
    const double score = widened(small.scores[0]);
    CHECK(small.weights[0] == doctest::Approx(score / (2 * score + 1e-20) * 1.5).epsilon(1e-6));
    CHECK(small.weights[0] < 0.6f);
}

TEST_CASE("moe_gate: bias decides the selection and nothing else (K18 B128)") {
    std::vector<float> bias(16, 0.0f);
    bias[3] = 2, bias[7] = 5;
    const std::vector<float> logits = logits_of({4, 3, 2, -3, 1, 1, 1, -3});
    const Routing routing = route_logits(logits, {2, 1.5f}, bias);
    CHECK(routing.experts == std::vector<int32_t>{7, 3});
    CHECK(routing.scores[7] == doctest::Approx(0.2204225).epsilon(1e-5));
    CHECK(routing.weights == std::vector<float>{0.75f, 0.75f});  // equal scores, whatever their biases
    bias[7] = 50;
    CHECK(route_logits(logits, {2, 1.5f}, bias).weights == routing.weights);
    // Of one expert the weight is the score itself times the factor, undivided.
    const Routing single = route_logits(logits, {1, 1.5f}, bias);
    CHECK(single.experts == std::vector<int32_t>{7});
    CHECK(single.weights[0] == single.scores[7] * 1.5f);
}

TEST_CASE("moe_gate: rows inside an image take bias_vl (K18 B129: none, all, mixed)") {
    std::vector<float> bias(16, 0.0f), negated;
    bias[2] = 3, bias[5] = -3, bias[9] = 2;
    for (float value : bias) negated.push_back(-value);
    std::vector<float> logits;
    for (int row = 0; row < 4; ++row) {
        const std::vector<float> one = logits_of({1, 1, 1, 1, 1, 1, 1, 1, 1, 1});
        logits.insert(logits.end(), one.begin(), one.end());
    }
    const auto chosen = [&](std::vector<uint8_t> images) {
        return route_logits(logits, {1, 1.5f}, bias, negated, images).experts;
    };
    CHECK(chosen({}) == std::vector<int32_t>{2, 2, 2, 2});
    CHECK(chosen({0, 0, 0, 0}) == std::vector<int32_t>{2, 2, 2, 2});
    CHECK(chosen({1, 1, 1, 1}) == std::vector<int32_t>{5, 5, 5, 5});
    CHECK(chosen({0, 1, 255, 0}) == std::vector<int32_t>{2, 5, 5, 2});
}

TEST_CASE("moe_gate: ties go to the lower id, NaN below everything") {
    CHECK(route_logits(std::vector<float>(16, 2.0f), released).experts ==
          std::vector<int32_t>{0, 1, 2, 3, 4, 5});
    std::vector<float> bias(16, 0.0f);
    bias[0] = bias[4] = std::numeric_limits<float>::quiet_NaN();
    const Routing routing = route_logits(std::vector<float>(16, 2.0f), released, bias);
    CHECK(routing.experts == std::vector<int32_t>{1, 2, 3, 5, 6, 7});
    for (float weight : routing.weights) CHECK(weight == 0.25f);
    std::vector<float> logits(16, 2.0f);
    logits[0] = std::numeric_limits<float>::quiet_NaN();  // the product makes every logit of its row NaN
    const Routing none = route_logits(logits, released);
    CHECK(none.experts == std::vector<int32_t>{0, 1, 2, 3, 4, 5});
    for (float weight : none.weights) CHECK(float_bits(weight) == canonical_nan_bits);
}

TEST_CASE("moe_gate: forced experts are taken in their order, with their own weights") {
    const std::vector<float> logits = logits_of({1, 2, 3, 4});
    const std::array<int32_t, 2> forced{1, 0};
    const Routing routing = route_logits(logits, {2, 1.5f}, {}, {}, {}, forced);
    CHECK(routing.experts == std::vector<int32_t>{1, 0});
    const float sum = routing.scores[1] + routing.scores[0];
    CHECK(routing.weights[0] == routing.scores[1] / sum * 1.5f);
    CHECK(routing.weights[1] == routing.scores[0] / sum * 1.5f);
    for (std::array<int32_t, 2> wrong : {std::array<int32_t, 2>{-1, 0}, {0, 16}, {3, 3}})
        CHECK_THROWS_AS(route_logits(logits, {2, 1.5f}, {}, {}, {}, wrong), UserError);
}

TEST_CASE("moe_gate: a row's routing is its own (alone, in a batch, 1, 2 and 7 threads)") {
    constexpr int64_t rows = 40, experts = 64, inputs = 512;
    const Gate gate(experts, inputs);
    const std::vector<Bf16> x = bf16(rows * inputs, {16}, 2);
    const int threads = omp_get_max_threads();
    for (Arithmetic arithmetic : arithmetics) {
        const Routing all = moe_gate(arithmetic, x, rows, gate.weights(), released);
        for (int count : {1, 2, 7}) {
            omp_set_num_threads(count);
            const Routing again = moe_gate(arithmetic, x, rows, gate.weights(), released);
            CHECK(differing(all.scores, again.scores) == 0);
            CHECK(all.experts == again.experts);
            CHECK(differing(all.weights, again.weights) == 0);
        }
        omp_set_num_threads(threads);
        for (size_t t = 0; t < rows; ++t) {
            const Routing alone =
                moe_gate(arithmetic, std::span(x).subspan(t * inputs, inputs), 1, gate.weights(), released);
            CHECK(std::equal(alone.experts.begin(), alone.experts.end(),
                             all.experts.begin() + 6 * static_cast<int64_t>(t)));
            CHECK(differing(alone.weights, std::span(all.weights).subspan(6 * t, 6)) == 0);
        }
    }
}

TEST_CASE("moe_gate: sizes that do not match are refused") {
    const Gate gate(16, 32);
    const std::vector<Bf16> x = bf16(2 * 32, {17});
    const auto run = [&](const GateWeights& weights, const GateSettings& settings, int64_t rows,
                         std::vector<uint8_t> images = {}) {
        return moe_gate(Arithmetic::exact, x, rows, weights, settings, images);
    };
    CHECK_NOTHROW(run(gate.weights(), released, 2));
    CHECK_THROWS_AS(run(gate.weights(), released, 3), UserError);
    CHECK_THROWS_AS(run(gate.weights(), {0, 1.5f}, 2), UserError);
    CHECK_THROWS_AS(run(gate.weights(), {17, 1.5f}, 2), UserError);
    CHECK_THROWS_AS(run(gate.weights(), released, 2, {1}), UserError);
    GateWeights weights = gate.weights();
    weights.bias_vl = {};
    CHECK_NOTHROW(run(weights, released, 2, {0, 0}));
    CHECK_THROWS_AS(run(weights, released, 2, {0, 1}), UserError);
    weights.bias = weights.bias.first(15);
    CHECK_THROWS_AS(run(weights, released, 2), UserError);
}
