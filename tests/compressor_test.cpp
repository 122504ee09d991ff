#include "reference/compressor.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/elementary.h"
#include "reference/numerics/fill.h"
#include "reference/rms_norm.h"
#include "reference/truth/compressor.h"

using namespace touchstone;

namespace {

constexpr Arithmetic arithmetics[]{Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper};
constexpr float eps = 1e-20f;

/// Owns what the weights refer to.
struct Storage {
    int64_t head_dim, inputs;
    std::vector<Bf16> wkv, wgate, norm;

    Storage(int64_t head_dim_, int64_t inputs_)
        : head_dim(head_dim_),
          inputs(inputs_),
          wkv(size_t(head_dim * inputs)),
          wgate(size_t(head_dim * inputs)),
          norm(size_t(head_dim)) {
        for (size_t i = 0; i < wkv.size(); ++i) {
            wkv[i] = bf16_from_float(filled<float>(Filler::normal, {4, 1}, i) * 0.125f);
            wgate[i] = bf16_from_float(filled<float>(Filler::normal, {4, 2}, i) * 0.125f);
        }
        fill<Bf16>(Filler::normal, {4, 3}, norm);
    }

    CompressorWeights weights() const {
        return {{"layers.2.attn.compressor.wkv.weight", head_dim, inputs, wkv},
                {"layers.2.attn.compressor.wgate.weight", head_dim, inputs, wgate},
                norm};
    }
};

/// kv = x and score = gate * x, channel by channel.
Storage identity(float gate) {
    Storage storage(16, 16);
    for (size_t i = 0; i < storage.wkv.size(); ++i) {
        const bool diagonal = i % 17 == 0;
        storage.wkv[i] = bf16_from_float(diagonal ? 1.0f : 0.0f);
        storage.wgate[i] = bf16_from_float(diagonal ? gate : 0.0f);
    }
    std::ranges::fill(storage.norm, bf16_from_float(1.0f));
    return storage;
}

std::vector<Bf16> inputs(int64_t rows, int64_t width) {
    std::vector<Bf16> x(size_t(rows * width));
    fill<Bf16>(Filler::normal, {4, 9}, x);
    return x;
}

/// One call from position 0.
Latents run(Arithmetic arithmetic, std::span<const Bf16> x, int64_t ratio, const Storage& storage,
            OpenGroup* open = nullptr) {
    OpenGroup none;
    return compress(arithmetic, x, std::ssize(x) / storage.inputs, 0, ratio, storage.weights(), eps,
                    open == nullptr ? none : *open);
}

std::vector<Bf16> rows_of(float first, float second) {
    std::vector<Bf16> x(32);
    std::fill_n(x.begin(), 16, bf16_from_float(first));
    std::fill_n(x.begin() + 16, 16, bf16_from_float(second));
    return x;
}

/// pooled of the first channel of a group of two tokens with kv `first`, `second` and scores gate * kv.
float pooled_pair(float first, float second, float gate) {
    return to_float(run(Arithmetic::exact, rows_of(first, second), 2, identity(gate)).pooled[0]);
}

template <class T>
void append(std::vector<T>& to, const std::vector<T>& from) {
    to.insert(to.end(), from.begin(), from.end());
}

bool same(const Latents& left, const Latents& right) {
    const auto bits = [](const std::vector<float>& values) {
        std::vector<uint32_t> result;
        for (float x : values) result.push_back(float_bits(x));
        return result;
    };
    return left.first_group == right.first_group && bits(left.kv) == bits(right.kv) &&
           bits(left.score) == bits(right.score) && left.pooled == right.pooled &&
           left.latents == right.latents;
}

truth::Matrix matrix(std::span<const Bf16> values, int64_t width) {
    truth::Matrix result(std::ssize(values) / width, width);
    for (Eigen::Index i = 0; i < result.size(); ++i)
        result.data()[i] = double{to_float(values[static_cast<size_t>(i)])};
    return result;
}

}  // namespace

TEST_CASE("compressor: the larger score has the larger weight (two tokens, by hand)") {
    CHECK(pooled_pair(1, 3, 0) == 2);
    CHECK(pooled_pair(1, 3, 40) == 3);
    CHECK(pooled_pair(1, 3, -40) == 1);
    CHECK(pooled_pair(3, 1, 40) == 3);
    // Scores 1 and 3: weights 1 / (1 + e^2) = 0.1192 and 0.8808, so 0.1192 + 2.6424 = 2.7616.
    CHECK(pooled_pair(1, 3, 1) == to_float(bf16_from_float(2.7616f)));
    CHECK(pooled_pair(-3, -1, 1) == to_float(bf16_from_float(-1.2384f)));
}

TEST_CASE("compressor: huge scores do not overflow, signed zeros give +0, NaN stays") {
    CHECK(pooled_pair(1, 1.0078125f, 0x1p100f) == 1.0078125f);
    CHECK(pooled_pair(-0.0f, -0.0f, 1) == 0);
    CHECK_FALSE(std::signbit(pooled_pair(-0.0f, -0.0f, 1)));
    const float nan = float_from_bits(canonical_nan_bits);
    CHECK(std::isnan(pooled_pair(nan, 1, 0)));
    CHECK(std::isnan(pooled_pair(1, std::numeric_limits<float>::infinity(), 1)));
}

TEST_CASE(
    "compressor: pooled is the softmax-weighted sum, each step one fp32 rounding (ratios, arithmetics)") {
    const Storage storage(48, 64);
    for (const Arithmetic arithmetic : arithmetics)
        for (const int64_t ratio : {2, 3, 4, 128}) {
            CAPTURE(arithmetic_name(arithmetic));
            CAPTURE(ratio);
            const int64_t rows = 2 * ratio + 1;
            const std::vector<Bf16> x = inputs(rows, 64);
            const Latents result = run(arithmetic, x, ratio, storage);
            std::vector<float> kv(size_t(rows * 48)), score(kv.size());
            linear_bf16(arithmetic, SumOperator::compressor_wkv, x, rows, storage.weights().wkv,
                        std::span(kv));
            linear_bf16(arithmetic, SumOperator::compressor_wgate, x, rows, storage.weights().wgate,
                        std::span(score));
            CHECK(result.kv == kv);
            CHECK(result.score == score);
            REQUIRE(result.pooled.size() == 2 * 48);
            for (size_t i = 0; i < result.pooled.size(); ++i) {
                const size_t first = i / 48 * size_t(ratio) * 48 + i % 48;
                float highest = score[first], total = 0, sum = 0;
                for (size_t t = 1; t < size_t(ratio); ++t) highest = std::max(highest, score[first + t * 48]);
                std::vector<float> e;
                for (size_t t = 0; t < size_t(ratio); ++t) {
                    e.push_back(elementary::exp(score[first + t * 48] - highest));
                    total += e.back();
                }
                for (size_t t = 0; t < size_t(ratio); ++t) {
                    const float weight = e[t] / total, product = kv[first + t * 48] * weight;
                    sum += product;
                }
                if (result.pooled[i] != bf16_from_float(sum)) FAIL_CHECK("element " << i);
            }
            std::vector<Bf16> latents(result.pooled.size());
            rms_norm(result.pooled, 2, storage.norm, eps, std::span(latents));
            CHECK(result.latents == latents);
        }
}

TEST_CASE("compressor: ratio 1 is LB and the norm, without a gate") {
    Storage storage(48, 64);
    storage.wgate.clear();
    CompressorWeights weights = storage.weights();
    weights.wgate = {};
    const std::vector<Bf16> x = inputs(5, 64);
    for (const Arithmetic arithmetic : arithmetics) {
        std::vector<Bf16> pooled(5 * 48), latents(pooled.size());
        linear_bf16(arithmetic, SumOperator::compressor_wkv, x, 5, weights.wkv, std::span(pooled));
        rms_norm(pooled, 5, storage.norm, eps, std::span(latents));
        OpenGroup open;
        const Latents result = compress(arithmetic, x, 5, 7, 1, weights, eps, open);
        CHECK(result.first_group == 7);
        CHECK(result.pooled == pooled);
        CHECK(result.latents == latents);
        CHECK(result.kv.empty());
        CHECK(open == OpenGroup{});
    }
}

TEST_CASE("compressor: any cutting of a sequence gives the same bits, open group included (B59, B61)") {
    const Storage storage(48, 64);
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper})
        for (const int64_t ratio : {1, 2, 3, 4})
            for (uint64_t seed = 0; seed < 8; ++seed) {
                CAPTURE(arithmetic_name(arithmetic));
                CAPTURE(ratio);
                CAPTURE(seed);
                const RandomStream random{seed, 6};
                const int64_t tokens = 21 + random.word(0) % 100;
                const std::vector<Bf16> x = inputs(tokens, 64);
                OpenGroup open, expected_open;
                const Latents expected = run(arithmetic, x, ratio, storage, &expected_open);
                CHECK(std::ssize(expected.latents) == visible_groups(tokens - 1, ratio) * 48);
                CHECK(std::ssize(expected_open.kv) == tokens % ratio * 48);
                Latents joined;
                uint64_t cut = 1;
                for (int64_t position = 0; position < tokens;) {
                    const int64_t rows = std::min(tokens - position, int64_t{1} + random.word(cut++) % 40);
                    const Latents part =
                        compress(arithmetic, std::span(x).subspan(size_t(position * 64), size_t(rows * 64)),
                                 rows, position, ratio, storage.weights(), eps, open);
                    CHECK(part.first_group == std::ssize(joined.latents) / 48);
                    append(joined.kv, part.kv);
                    append(joined.score, part.score);
                    append(joined.pooled, part.pooled);
                    append(joined.latents, part.latents);
                    position += rows;
                }
                CHECK(same(joined, expected));
                CHECK(open == expected_open);
            }
}

TEST_CASE("compressor: a call without rows changes nothing; results do not depend on the thread count") {
    const Storage storage(48, 64);
    OpenGroup open{std::vector<float>(48, 1.0f), std::vector<float>(48, 2.0f)};
    const OpenGroup before = open;
    const Latents none = compress(Arithmetic::exact, {}, 0, 5, 2, storage.weights(), eps, open);
    CHECK(none.first_group == 2);
    CHECK(none.latents.empty());
    CHECK(open == before);

    const std::vector<Bf16> x = inputs(40, 64);
    omp_set_num_threads(1);
    const Latents expected = run(Arithmetic::exact, x, 2, storage);
    for (const int threads : {2, 7}) {
        omp_set_num_threads(threads);
        CHECK(same(run(Arithmetic::exact, x, 2, storage), expected));
    }
    omp_set_num_threads(2);
}

TEST_CASE("compressor: visible groups are those whose last token is not after the query (B58)") {
    const auto visible = [](int64_t ratio) {
        std::vector<int64_t> groups;
        for (int64_t position = 0; position < 8; ++position)
            groups.push_back(visible_groups(position, ratio));
        return groups;
    };
    CHECK(visible(1) == std::vector<int64_t>{1, 2, 3, 4, 5, 6, 7, 8});
    CHECK(visible(2) == std::vector<int64_t>{0, 1, 1, 2, 2, 3, 3, 4});
    CHECK(visible(4) == std::vector<int64_t>{0, 0, 0, 1, 1, 1, 1, 2});
    CHECK(visible_groups(1048575, 2) == 524288);
}

TEST_CASE("compressor: errors against truth stay within the bound and reach a hundredth of it") {
    constexpr double u = 0x1p-24;
    const Storage storage(48, 512);
    const std::vector<Bf16> x = inputs(40, 512);
    const truth::CompressorWeights wide{matrix(storage.wkv, 512), matrix(storage.wgate, 512),
                                        matrix(storage.norm, 48).transpose()};
    for (const Arithmetic arithmetic : arithmetics) {
        const Latents result = run(arithmetic, x, 2, storage);
        truth::CompressorPending pending;
        const truth::CompressorOutput expected =
            truth::compressor(matrix(x, 512), wide, 2, double{eps}, pending, truth::Ledger::released());
        const truth::Matrix unrounded = truth::pooled_groups(expected.kv, expected.score, 2);
        const auto bound = [&](SumOperator op, const Bf16Weight& weight) {
            const truth::LinearOperands operands = truth::linear_operands(x, 40, weight);
            const SumOrder order = sum_order(op, 512, 48);
            return arithmetic == Arithmetic::exact ? truth::exact_lanes_bound(operands, order.lanes)
                                                   : truth::hopper_bound(operands, order);
        };
        const truth::Matrix kv_bound = bound(SumOperator::compressor_wkv, storage.weights().wkv),
                            score_bound = bound(SumOperator::compressor_wgate, storage.weights().wgate);
        double worst_kv = 0, worst_pooled = 0;
        int64_t differing = 0;
        for (Eigen::Index group = 0; group < 20; ++group)
            for (Eigen::Index channel = 0; channel < 48; ++channel) {
                const auto at = static_cast<size_t>(group * 48 + channel);
                worst_kv = std::max(
                    worst_kv, std::abs(double{result.kv[at]} - expected.kv.data()[at]) / kv_bound.data()[at]);
                // A weight moves with both scores, two exps of 1 ulp, their differences, sum and quotient.
                double loss = 0, magnitude = 0;
                const double spread = std::abs(expected.score(2 * group, channel) -
                                               expected.score(2 * group + 1, channel)),
                             score_error = score_bound(2 * group, channel) +
                                           score_bound(2 * group + 1, channel) + u * spread;
                for (Eigen::Index token = 2 * group; token < 2 * group + 2; ++token) {
                    const double kv = std::abs(expected.kv(token, channel));
                    loss += kv * (std::expm1(score_error) + 4 * u + 3 * u) + kv_bound(token, channel);
                    magnitude += kv;
                }
                const double value = unrounded(group, channel);
                loss += 2 * u * magnitude + std::abs(value) * 0x1p-8;  // bf16: half a unit of 8 bits
                const double error = std::abs(double{to_float(result.pooled[at])} - value);
                worst_pooled = std::max(worst_pooled, error / loss);
                differing += double{to_float(result.latents[at])} != expected.latent(group, channel);
            }
        const std::string shown = fmt::format("{}: kv {:.4f}, pooled {:.4f} of the bound, {} latents differ",
                                              arithmetic_name(arithmetic), worst_kv, worst_pooled, differing);
        INFO(shown);
        CHECK(worst_kv <= 1);
        CHECK(worst_kv >= 0.01);
        CHECK(worst_pooled <= 1);
        CHECK(worst_pooled >= 0.01);
        CHECK(differing * 100 <= 20 * 48);
    }
}

TEST_CASE("compressor: inputs that do not fit are refused, and the open group stays as it was") {
    const Storage storage(48, 64);
    const std::vector<Bf16> x = inputs(3, 64);
    const auto refused = [&](int64_t rows, int64_t position, int64_t ratio, const CompressorWeights& weights,
                             OpenGroup open, const std::string& words) {
        CAPTURE(words);
        const OpenGroup before = open;
        try {
            compress(Arithmetic::exact, x, rows, position, ratio, weights, eps, open);
            FAIL_CHECK("accepted");
        } catch (const UserError& error) {
            CHECK(std::string(error.what()).find(words) != std::string::npos);
        }
        CHECK(open == before);
    };
    const OpenGroup one{std::vector<float>(48, 1.0f), std::vector<float>(48, 2.0f)};
    CompressorWeights narrow = storage.weights(), short_norm = storage.weights(), cut = storage.weights();
    narrow.wgate.outputs = 47;
    short_norm.norm = short_norm.norm.first(47);
    cut.wgate.values = cut.wgate.values.first(100);
    refused(3, 1, 2, storage.weights(), {}, "0 kv elements in the open group");
    refused(3, 0, 2, storage.weights(), one, "48 kv elements in the open group");
    refused(3, 1, 2, storage.weights(), {one.kv, {}}, "0 score elements in the open group");
    refused(3, -1, 2, storage.weights(), one, "position -1");
    refused(3, 1, 0, storage.weights(), one, "ratio 0");
    refused(4, 1, 2, storage.weights(), one, "192 elements");
    refused(-1, 1, 2, storage.weights(), one, "192 elements");
    refused(3, 1, 2, narrow, one, "47 outputs of wgate");
    refused(3, 1, 2, short_norm, one, "47 elements of norm");
    refused(3, 1, 2, cut, one, "100 elements");
}
