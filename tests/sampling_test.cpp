#include "reference/sampling.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/sum_order.h"
#include "tests/random_tensors.h"

using namespace touchstone;
using namespace touchstone::random_tensors;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity(),
                not_a_number = std::numeric_limits<float>::quiet_NaN();

std::vector<float> probabilities_of(std::span<const float> logits, float temperature) {
    std::vector<float> result(logits.size());
    token_probabilities(logits, temperature, result);
    return result;
}

/// Sum of (count - expected)^2 / expected of `samples` tokens with logits ln(weight).
double chi_squared(const std::vector<double>& weights, float temperature, int samples, uint64_t seed) {
    std::vector<float> logits;
    for (double weight : weights) logits.push_back(static_cast<float>(std::log(weight)) * temperature);
    std::vector<double> counts(weights.size(), 0.0);
    for (int i = 0; i < samples; ++i)
        counts[static_cast<size_t>(
            sample_token(logits, temperature, {seed}, static_cast<uint64_t>(i) * weights.size()))] += 1;
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    double result = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
        const double expected = samples * weights[i] / total;
        result += (counts[i] - expected) * (counts[i] - expected) / expected;
    }
    return result;
}

}  // namespace

TEST_CASE("sampling: greedy takes the largest, ties to the lower id, NaN below everything") {
    CHECK(greedy_token(std::array<float, 4>{1, 3, 2, 3}) == 1);
    CHECK(greedy_token(std::array<float, 3>{-0.0f, 0.0f, -1}) == 0);
    CHECK(greedy_token(std::array<float, 4>{not_a_number, -infinity, not_a_number, -infinity}) == 1);
    CHECK(greedy_token(std::array<float, 3>{not_a_number, not_a_number, not_a_number}) == 0);
    CHECK(greedy_token(std::array<float, 3>{1, infinity, infinity}) == 1);
    std::vector<float> logits = fp32(129280, {1}, 10);
    logits[100000] = 60;
    CHECK(greedy_token(logits) == 100000);
    CHECK_THROWS_AS(greedy_token({}), UserError);
}

TEST_CASE("sampling: probabilities within the bound of a softmax in double, and near it") {
    constexpr int64_t vocabulary = 129280;
    const Lanes lanes = sum_order(SumOperator::sampling_softmax, vocabulary, 1).lanes;
    for (float temperature : {0.6f, 1.0f, 2.0f}) {
        const std::vector<float> logits = fp32(vocabulary, {2}, 8), p = probabilities_of(logits, temperature);
        const double largest = widened(*std::max_element(logits.begin(), logits.end()));
        double total = 0, worst = 0, sum_error = 0;
        const auto argument_error = [&](float x) {  // two quotients and a difference
            return u * (std::abs(widened(x)) + largest + (largest - widened(x))) / widened(temperature);
        };
        for (float x : logits) {
            const double term = std::exp((widened(x) - largest) / widened(temperature));
            total += term, sum_error += term * (argument_error(x) + 2 * u);
        }
        // A lane's FMAs and the tree.
        const double sum_rounds =
            (static_cast<double>(vocabulary) / lanes.count + std::log2(lanes.count)) * u;
        for (size_t i = 0; i < p.size(); ++i) {
            const double exact = std::exp((widened(logits[i]) - largest) / widened(temperature)) / total;
            const double bound = argument_error(logits[i]) + 2 * u + sum_error / total + sum_rounds + u;
            worst = std::max(worst, std::abs(widened(p[i]) / exact - 1) / (1.01 * bound));
        }
        CAPTURE(temperature);
        CHECK(worst <= 1);
        CHECK(worst >= 0.01);
        CHECK(std::accumulate(p.begin(), p.end(), 0.0) == doctest::Approx(1).epsilon(1e-5));
    }
}

TEST_CASE("sampling: small temperatures count as 1e-5, and 0 is greedy") {
    const std::array<float, 3> logits{1, 1 + 0x1p-10f, 0.5f};
    const std::vector<float> p = probabilities_of(logits, 1e-9f);
    CHECK(p == probabilities_of(logits, 1e-5f));
    CHECK(p[1] == 1);
    for (uint64_t first = 0; first < 50; ++first) CHECK(sample_token(logits, 0, {7}, first * 3) == 1);
    CHECK(sample_token(std::array<float, 3>{not_a_number, 1, 2}, 0, {7}, 0) == 2);
    CHECK(sample_token(std::array<float, 3>{5, 5, 5}, 0, {7}, 0) == 0);
    CHECK(sample_token(std::array<float, 3>{5, 5, 5}, -0.0f, {7}, 0) == 0);
}

TEST_CASE("sampling: tokens come as often as their probability says (chi-squared)") {
    // 9 degrees of freedom: 27.88 is passed once in 1,000 seeds and 1.15 missed as often.
    const std::vector<double> weights{20, 10, 5, 40, 1, 8, 3, 2, 6, 5};
    for (float temperature : {1.0f, 0.5f, 3.0f}) {
        const double found = chi_squared(weights, temperature, 100000, 3);
        CAPTURE(temperature);
        CAPTURE(found);
        CHECK(found < 27.88);
        CHECK(found > 1.15);
    }
    // Of a wrong distribution the same count says so.
    std::vector<double> other = weights;
    std::swap(other[0], other[1]);
    std::vector<float> logits;
    for (double weight : other) logits.push_back(static_cast<float>(std::log(weight)));
    int64_t first_token = 0;
    for (uint64_t i = 0; i < 20000; ++i) first_token += sample_token(logits, 1, {3}, i * 10) == 0;
    CHECK(first_token == doctest::Approx(2000).epsilon(0.1));
}

TEST_CASE("sampling: many improbable tokens keep their share (1,000 of 1e-6 each)") {
    std::vector<float> logits(1001, static_cast<float>(std::log(1e-6)));
    logits[0] = static_cast<float>(std::log(1 - 1e-3));
    int64_t improbable = 0;
    constexpr uint64_t samples = 30000;
    for (uint64_t i = 0; i < samples; ++i) improbable += sample_token(logits, 1, {5}, i * 1001) != 0;
    CHECK(improbable >= 10);  // 30 expected, standard deviation 5.5
    CHECK(improbable <= 50);
}

TEST_CASE("sampling: the token is a function of seed, stream and counter (any first)") {
    const std::vector<float> logits = fp32(37, {6}, 2);
    // Token i of a call at `first` uses word first + i: shifting logits and counter together shifts the
    // token.
    for (uint64_t first = 0; first < 40; ++first) {
        const int32_t token = sample_token(logits, 1, {8, 9}, first);
        CHECK(sample_token(logits, 1, {8, 9}, first) == token);
        std::vector<float> padded(3, -infinity);
        padded.insert(padded.end(), logits.begin(), logits.end());
        CHECK(sample_token(padded, 1, {8, 9}, first + 4 - 3) ==
              sample_token(logits, 1, {8, 9}, first + 4) + 3);
    }
    int different = 0;
    for (uint64_t stream = 1; stream < 50; ++stream)
        different += sample_token(logits, 1, {8, stream}, 0) != sample_token(logits, 1, {8, 0}, 0);
    CHECK(different > 25);
    // A masked token never comes.
    for (uint64_t i = 0; i < 200; ++i)
        CHECK(sample_token(std::array<float, 3>{-infinity, 0, -infinity}, 1, {8}, 3 * i) == 1);
}

TEST_CASE("sampling: what has no distribution is refused") {
    const std::array<float, 3> logits{1, 2, 3};
    std::array<float, 2> few{7, 7};
    CHECK_THROWS_AS(sample_token(logits, -1, {1}, 0), UserError);
    CHECK_THROWS_AS(sample_token(logits, not_a_number, {1}, 0), UserError);
    CHECK_THROWS_AS(sample_token({}, 1, {1}, 0), UserError);
    CHECK_THROWS_AS(sample_token({}, 0, {1}, 0), UserError);
    CHECK_THROWS_AS(token_probabilities(logits, 1, few), UserError);
    CHECK(few == std::array<float, 2>{7, 7});
    CHECK_THROWS_AS(sample_token(std::array<float, 3>{1, not_a_number, 3}, 1, {1}, 0), UserError);
    CHECK_THROWS_AS(sample_token(std::array<float, 3>{1, infinity, 3}, 1, {1}, 0), UserError);
    CHECK_THROWS_AS(sample_token(std::array<float, 2>{-infinity, -infinity}, 1, {1}, 0), UserError);
    for (float p : probabilities_of(std::array<float, 3>{1, not_a_number, 3}, 1))
        CHECK(float_bits(p) == canonical_nan_bits);
}
