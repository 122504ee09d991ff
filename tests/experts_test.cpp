#include "reference/experts.h"

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
#include "reference/truth/moe.h"
#include "tests/random_tensors.h"

using namespace touchstone;
using namespace touchstone::random_tensors;

namespace {

constexpr std::array arithmetics{Arithmetic::exact, Arithmetic::hopper};
constexpr float limit = 10;
constexpr int64_t width = 256, inter = 96, expert_count = 12;

struct RoutedStorage {
    Fp4Storage w1, w2, w3;
    RoutedStorage(int64_t d, int64_t i, uint64_t seed)
        : w1(i, d, {seed, 1}), w2(d, i, {seed, 2}), w3(i, d, {seed, 3}) {}
    RoutedExpertWeights weights() const { return {w1.weight(), w2.weight(), w3.weight()}; }
};

struct SharedStorage {
    Fp8Storage w1, w2, w3;
    SharedStorage(int64_t d, int64_t i, uint64_t seed)
        : w1(i, d, {seed, 1}), w2(d, i, {seed, 2}), w3(i, d, {seed, 3}) {}
    SharedExpertWeights weights() const { return {w1.weight(), w2.weight(), w3.weight()}; }
};

/// The experts of a layer.
struct Layer {
    std::vector<RoutedStorage> routed;
    SharedStorage shared{width, inter, 99};
    Layer() {
        for (uint64_t id = 0; id < expert_count; ++id) routed.emplace_back(width, inter, 100 + id);
    }
    ExpertsResult run(Arithmetic arithmetic, std::span<const Bf16> x, const Routing& routing) const {
        return experts(
            arithmetic, x, routing,
            [this](int32_t id) { return routed.at(static_cast<size_t>(id)).weights(); }, shared.weights(),
            limit);
    }
};

const Layer& layer() {
    static const Layer storage;
    return storage;
}

/// k different experts for every row, in no order, and weights.
Routing random_routing(int64_t rows, int64_t k, uint64_t seed) {
    Routing routing{rows, {}, {}, fp32(rows * k, {seed, 5})};
    for (int64_t t = 0; t < rows; ++t)
        for (int64_t i = 0; i < k; ++i) {
            const uint32_t step = RandomStream{seed, 6}.word(static_cast<uint64_t>(t)) % 11 + 1;
            routing.experts.push_back(static_cast<int32_t>((step * (i + 1) + 5 * t) % 13 % expert_count));
        }
    for (int64_t t = 0; t < rows; ++t)  // 12 and 0 fell together: whoever is doubled moves on
        for (int64_t i = 1; i < k; ++i) {
            const auto first = routing.experts.begin() + t * k;
            while (std::find(first, first + i, first[i]) != first + i)
                first[i] = (first[i] + 1) % expert_count;
        }
    return routing;
}

Bf16 swiglu_of(float gate, float up, std::vector<float> weights = {}) {
    const std::array<Bf16, 1> g{bf16_from_float(gate)}, v{bf16_from_float(up)};
    std::array<Bf16, 1> y{};
    swiglu(g, v, 1, limit, weights, y);
    return y[0];
}

double silu(double x) {
    return x / (1 + std::exp(-x));
}

truth::Matrix dequantized(const truth::LinearOperands& operands) {
    return operands.b;
}

}  // namespace

TEST_CASE("swiglu: gate clamped above alone, up on both sides (K19 B133)") {
    CHECK(to_float(swiglu_of(12, -15)) == to_float(bf16_from_float(-99.99546f)));
    for (double gate : {9.99, 10.0, 10.01, 50.0, -9.99, -10.0, -10.01, -50.0})
        for (double up : {9.99, 10.0, 10.01, 50.0, -9.99, -10.0, -10.01, -50.0}) {
            const float g = to_float(bf16_from_float(static_cast<float>(gate))),
                        v = to_float(bf16_from_float(static_cast<float>(up)));
            const double expected = silu(std::min(widened(g), 10.0)) * std::clamp(widened(v), -10.0, 10.0);
            CAPTURE(gate);
            CAPTURE(up);
            CHECK(rounds_within(swiglu_of(g, v), expected, 6 * u * std::abs(expected)));
        }
    // Below: silu(-50) is -9.6e-21, silu(-10) would be -4.5e-4.
    CHECK(std::abs(to_float(swiglu_of(-50, 5))) < 1e-18f);
}

TEST_CASE("swiglu: within the bound of truth, the weight before the rounding to bf16") {
    constexpr int64_t rows = 400, columns = 2304;
    const std::vector<Bf16> gate = bf16(rows * columns, {1}, 12), up = bf16(rows * columns, {2}, 12);
    const std::vector<float> weights = fp32(rows, {3});
    for (bool weighted : {false, true}) {
        std::vector<Bf16> y(gate.size());
        swiglu(gate, up, rows, limit, weighted ? weights : std::vector<float>{}, y);
        int64_t off = 0;
        for (size_t i = 0; i < y.size(); ++i) {
            const double exact = silu(std::min(widened(gate[i]), 10.0)) *
                                 std::clamp(widened(up[i]), -10.0, 10.0) *
                                 (weighted ? widened(weights[i / columns]) : 1);
            // silu: exp 1 ulp (2u), a sum, a quotient; two products; subnormals by their unit.
            REQUIRE(rounds_within(y[i], exact, 6.01 * u * std::abs(exact) + 0x1p-149));
            off += widened(y[i]) != truth::nearest_bf16(exact);
        }
        CAPTURE(weighted);
        CHECK(off > 0);  // some fp32 error crosses a rounding boundary, so that the bound matters
        CHECK(off * 1000 < std::ssize(y));
    }
}

TEST_CASE("swiglu: NaN stays, in its row and column") {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN();
    CHECK(swiglu_of(nan, 1).bits == canonical_nan_bf16_bits);
    CHECK(swiglu_of(1, nan).bits == canonical_nan_bf16_bits);
    CHECK(swiglu_of(1, 1, {nan}).bits == canonical_nan_bf16_bits);
    CHECK(to_float(swiglu_of(std::numeric_limits<float>::infinity(),
                             -std::numeric_limits<float>::infinity())) == to_float(swiglu_of(10, -10)));
}

TEST_CASE("experts: the clamp comes before the quantisation (K19 B135)") {
    // One block of w2's input: a gate of 40 among gates of 1. Clamped first, its product is 9.9995 and the
    // block's fp8 scale 2^-5; clamped after quantising, the scale would be 2^-3.
    std::vector<Bf16> gate(32, bf16_from_float(1)), up(32, bf16_from_float(1)), y(32);
    gate[7] = bf16_from_float(40);
    swiglu(gate, up, 1, limit, {}, y);
    const QuantizedRows quantized = quantize_linear_input(y, 1, 32);
    CHECK(quantized.scales[0] == 0x1p-5f);
    CHECK(quantized.values[7] * quantized.scales[0] == 10);
    // silu(1) = 0.7311 in steps of 2^-5 2^1 (codes 16 to 32 lie 2 apart).
    CHECK(quantized.values[0] * quantized.scales[0] == doctest::Approx(0.75));
}

TEST_CASE("experts: one expert is its three products and swiglu, in both arithmetics") {
    constexpr int64_t rows = 9;
    const std::vector<Bf16> x = bf16(rows * width, {21}, 3);
    const std::vector<float> weights = fp32(rows, {22});
    const RoutedStorage routed(width, inter, 23);
    const SharedStorage shared(width, inter, 24);
    for (Arithmetic arithmetic : arithmetics) {
        std::vector<Bf16> gate(rows * inter), up(gate.size()), a(gate.size()), y(rows * width),
            expected(y.size());
        const RoutedExpertWeights r = routed.weights();
        linear_fp4(arithmetic, SumOperator::expert_w1_w3, x, rows, r.w1, std::span(gate));
        linear_fp4(arithmetic, SumOperator::expert_w1_w3, x, rows, r.w3, std::span(up));
        for (size_t i = 0; i < a.size(); ++i) {
            const float g = std::min(to_float(gate[i]), 10.0f),
                        v = std::clamp(to_float(up[i]), -10.0f, 10.0f);
            const float activation = elementary::silu(g) * v;
            a[i] = bf16_from_float(activation * weights[i / inter]);
        }
        linear_fp4(arithmetic, SumOperator::expert_w2, a, rows, r.w2, std::span(expected));
        routed_expert(arithmetic, x, rows, r, weights, limit, y);
        CHECK(differing(std::span<const Bf16>(y), expected) == 0);

        const SharedExpertWeights s = shared.weights();
        linear_fp8(arithmetic, SumOperator::shared_w1_w3, x, rows, s.w1, std::span(gate));
        linear_fp8(arithmetic, SumOperator::shared_w1_w3, x, rows, s.w3, std::span(up));
        int64_t clamped = 0;
        for (size_t i = 0; i < a.size(); ++i) {
            const float g = std::min(to_float(gate[i]), 10.0f),
                        v = std::clamp(to_float(up[i]), -10.0f, 10.0f);
            clamped += to_float(gate[i]) > 10 || std::abs(to_float(up[i])) > 10;
            a[i] = bf16_from_float(elementary::silu(g) * v);
        }
        CHECK(clamped > 0);  // the shared expert has the limit too (K19 B133), and these values meet it
        linear_fp8(arithmetic, SumOperator::shared_w2, a, rows, s.w2, std::span(expected));
        shared_expert(arithmetic, x, rows, s, limit, y);
        CHECK(differing(std::span<const Bf16>(y), expected) == 0);
    }
}

TEST_CASE("experts: one expert agrees with truth but for codes that a rounding flipped") {
    constexpr int64_t rows = 40;
    const std::vector<Bf16> x = bf16(rows * width, {31}, 2);
    const std::vector<float> weights = fp32(rows, {32});
    const RoutedStorage routed(width, inter, 33);
    const RoutedExpertWeights r = routed.weights();
    const auto of = [&](const Fp4Weight& weight, std::span<const Bf16> in) {
        return dequantized(truth::linear_operands(in, 1, weight));
    };
    const std::vector<Bf16> row(x.begin(), x.begin() + width), inner(inter, bf16_from_float(0));
    const truth::ExpertWeights in_double{of(r.w1, row), of(r.w2, inner), of(r.w3, row)};
    const truth::Matrix exact = truth::expert(matrix(x, rows), in_double, matrix(weights, rows).col(0), 10,
                                              truth::Ledger::released());
    for (Arithmetic arithmetic : arithmetics) {
        std::vector<Bf16> y(x.size());
        routed_expert(arithmetic, x, rows, r, weights, limit, y);
        int64_t off = 0;
        double squares = 0, errors = 0;
        for (size_t i = 0; i < y.size(); ++i) {
            const double error = widened(y[i]) - exact.data()[i];
            off += error != 0;
            squares += exact.data()[i] * exact.data()[i], errors += error * error;
        }
        CAPTURE(arithmetic_name(arithmetic));
        CAPTURE(off);
        CHECK(off * 100 <= 5 * std::ssize(y));
        CHECK(std::sqrt(errors / squares) < 2e-3);  // a bf16 step is 2^-8 of an element
    }
}

TEST_CASE("experts: ascending ids from 0, the shared expert last, one rounding (by the definition)") {
    constexpr int64_t rows = 30, k = 5;
    const std::vector<Bf16> x = bf16(rows * width, {41}, 2);
    const Routing routing = random_routing(rows, k, 42);
    for (Arithmetic arithmetic : arithmetics) {
        const ExpertsResult ours = layer().run(arithmetic, x, routing);
        std::vector<Bf16> one(width);
        for (size_t t = 0; t < rows; ++t) {
            const std::span<const Bf16> row = std::span(x).subspan(t * width, width);
            std::vector<float> sums(width, 0.0f);
            std::vector<std::vector<Bf16>> outputs;
            std::vector<std::pair<int32_t, size_t>> ascending;
            for (size_t i = 0; i < k; ++i) {
                const int32_t id = routing.experts[t * k + i];
                const std::array<float, 1> weight{routing.weights[t * k + i]};
                routed_expert(arithmetic, row, 1, layer().routed[static_cast<size_t>(id)].weights(), weight,
                              limit, one);
                outputs.push_back(one);
                ascending.emplace_back(id, i);
            }
            std::sort(ascending.begin(), ascending.end());
            for (const auto& chosen : ascending)
                for (size_t d = 0; d < width; ++d) sums[d] += to_float(outputs[chosen.second][d]);
            shared_expert(arithmetic, row, 1, layer().shared.weights(), limit, one);
            for (size_t d = 0; d < width; ++d) {
                REQUIRE(ours.shared[t * width + d] == one[d]);
                REQUIRE(ours.out[t * width + d] == bf16_from_float(sums[d] + to_float(one[d])));
            }
        }
    }
}

TEST_CASE("experts: the order of addition shows (outputs that cancel)") {
    // w1 and w3 of one row: gate and up are large, so that every expert gives its w2 times about 100 *
    // weight. Outputs of experts 0, 1, 2 and the shared one: big, 1, -big, 1.
    constexpr int64_t d = 32, i = 32;
    const std::vector<Bf16> x(d, bf16_from_float(1));
    struct Constant4 {
        std::vector<uint8_t> codes;
        std::vector<E8m0> scales;
        Constant4(int64_t outputs, int64_t inputs, uint8_t code, int exponent)
            : codes(static_cast<size_t>(outputs * inputs / 2)),
              scales(static_cast<size_t>(outputs * inputs / 32), E8m0{static_cast<uint8_t>(127 + exponent)}) {
            std::fill(codes.begin(), codes.end(), static_cast<uint8_t>(code | code << 4));
        }
    };
    const Constant4 ones(i, d, 2, 0);                                         // g = u = 32, clamped to 10
    const Constant4 w2[3] = {{d, i, 2, 20}, {d, i, 2, -10}, {d, i, 10, 20}};  // 2^20, 2^-10, -2^20
    const std::vector<E4m3> shared_codes(d * i, e4m3_from_float_saturating(1));
    const std::vector<E8m0> shared_up(1, E8m0{127}), shared_down(1, E8m0{127 - 10});
    const SharedExpertWeights shared{{"w1", i, d, shared_codes, shared_up},
                                     {"w2", d, i, shared_codes, shared_down},
                                     {"w3", i, d, shared_codes, shared_up}};
    std::vector<int32_t> asked;
    const auto expert = [&](int32_t id) {
        asked.push_back(id);
        const Constant4& down = w2[static_cast<size_t>(id)];
        return RoutedExpertWeights{{"w1", i, d, ones.codes, ones.scales},
                                   {"w2", d, i, down.codes, down.scales},
                                   {"w3", i, d, ones.codes, ones.scales}};
    };
    const auto run = [&](std::vector<int32_t> ids) {
        asked.clear();
        const Routing routing{1, {}, ids, std::vector<float>(ids.size(), 1.0f)};
        return to_float(experts(Arithmetic::exact, x, routing, expert, shared, limit).out[0]);
    };
    // big + small - big = 0 in fp32 (small is lost), then the shared expert's.
    const float small = run({1}) / 2;  // expert 1 and the shared one give the same
    CHECK(small > 0);
    CHECK(run({0, 1, 2}) == small);
    CHECK(run({2, 0, 1}) == small);  // the order of selection does not count
    CHECK(asked == std::vector<int32_t>{0, 1, 2});
}

TEST_CASE("experts: a row's bits are its own (alone, in a batch, permuted, 1, 2 and 7 threads)") {
    constexpr int64_t rows = 25, k = 3;
    const std::vector<Bf16> x = bf16(rows * width, {51}, 2);
    const Routing routing = random_routing(rows, k, 52);
    std::vector<Bf16> reversed_x;
    Routing reversed{rows, {}, {}, {}};
    for (int64_t t = rows - 1; t >= 0; --t) {
        reversed_x.insert(reversed_x.end(), x.begin() + t * width, x.begin() + (t + 1) * width);
        for (int64_t i = t * k; i < (t + 1) * k; ++i) {
            reversed.experts.push_back(routing.experts[static_cast<size_t>(i)]);
            reversed.weights.push_back(routing.weights[static_cast<size_t>(i)]);
        }
    }
    const int threads = omp_get_max_threads();
    for (Arithmetic arithmetic : arithmetics) {
        const std::vector<Bf16> all = layer().run(arithmetic, x, routing).out;
        for (int count : {1, 2, 7}) {
            omp_set_num_threads(count);
            CHECK(differing(std::span<const Bf16>(layer().run(arithmetic, x, routing).out), all) == 0);
        }
        omp_set_num_threads(threads);
        const std::vector<Bf16> permuted = layer().run(arithmetic, reversed_x, reversed).out;
        for (size_t t = 0; t < rows; ++t) {
            const auto first = static_cast<int64_t>(t) * k;
            const Routing own{1,
                              {},
                              {routing.experts.begin() + first, routing.experts.begin() + first + k},
                              {routing.weights.begin() + first, routing.weights.begin() + first + k}};
            const std::span<const Bf16> expected = std::span(all).subspan(t * width, width);
            CHECK(differing(std::span<const Bf16>(
                                layer().run(arithmetic, std::span(x).subspan(t * width, width), own).out),
                            expected) == 0);
            CHECK(differing(std::span<const Bf16>(permuted).subspan((rows - 1 - t) * width, width),
                            expected) == 0);
        }
    }
}

TEST_CASE("experts: sizes and routings that do not match are refused") {
    const std::vector<Bf16> x = bf16(2 * width, {61});
    const auto run = [&](const Routing& routing, std::span<const Bf16> in) {
        return layer().run(Arithmetic::exact, in, routing);
    };
    const Routing good{2, {}, {0, 3, 5, 1}, {1, 1, 1, 1}};
    CHECK_NOTHROW(run(good, x));
    CHECK_THROWS_AS(run(good, std::span(x).first(width)), UserError);
    CHECK_THROWS_AS(run({2, {}, {0, 3, 5}, {1, 1, 1}}, x), UserError);
    CHECK_THROWS_AS(run({2, {}, {0, 3, 5, 1}, {1, 1, 1}}, x), UserError);
    CHECK_THROWS_AS(run({2, {}, {0, 3, 5, 5}, {1, 1, 1, 1}}, x), UserError);
    CHECK_THROWS_AS(run({2, {}, {0, 3, -1, 5}, {1, 1, 1, 1}}, x), UserError);
    std::vector<Bf16> y(3);
    const std::vector<Bf16> gate(4), up(4);
    CHECK_THROWS_AS(swiglu(gate, up, 2, limit, {}, y), UserError);
    CHECK_THROWS_AS(swiglu(gate, gate, 2, limit, std::vector<float>{1}, std::span(y).first(3)), UserError);
    CHECK(run({0, {}, {}, {}}, {}).out.empty());
}
