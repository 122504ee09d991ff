#include "reference/hyper_connections.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/elementary.h"
#include "reference/numerics/sum_order.h"
#include "reference/numerics/sums.h"
#include "reference/truth/hyper_connections.h"
#include "tests/random_tensors.h"

using namespace touchstone;
using namespace touchstone::random_tensors;

namespace {

constexpr int64_t n = 4, outputs = 24;

HyperConnectionShape shape_of(int64_t hidden_size) {
    return {n, hidden_size, 20, 1e-6f, 1e-20f};
}

/// Weights of a sublayer and what they refer to.
struct Sublayer {
    std::vector<float> fn, base, scale;

    explicit Sublayer(int64_t hidden_size, int64_t projections = outputs, size_t scales = 3)
        : fn(fp32(projections * n * hidden_size, {11}, 2 / std::sqrt(static_cast<float>(n * hidden_size)))),
          base(fp32(projections, {12}, 0.5f)),
          scale{1.5f, 0.75f, 1.25f} {
        scale.resize(scales);
    }
    HyperConnectionWeights weights() const { return {fn, base, scale}; }
};

/// out[k] for `comb` and the rest of a row, D = 1.
std::vector<float> expand_one(float y, std::array<float, 4> h, std::array<float, 4> post,
                              std::array<float, 16> comb) {
    std::vector<Bf16> streams, out(4);
    for (float value : h) streams.push_back(bf16_from_float(value));
    const std::array<Bf16, 1> sublayer{bf16_from_float(y)};
    expand(sublayer, streams, 1, post, comb, out);
    std::vector<float> result;
    for (Bf16 value : out) result.push_back(to_float(value));
    return result;
}

/// First-order bound of the relative error of sinkhorn's entries, `entry_error` being that of exp(a -
/// rowmax). Errors are of two kinds. Entries' own (one rounding by each division, one by + eps) stay: D.
/// Those of whole rows and columns (the sums': n roundings with + eps) the next step takes back, but for what
/// it passes on: a step with weights W (rows of W sum to 1) passes on tau(W) = half the largest distance of
/// two rows.
double sinkhorn_bound(truth::Matrix m, int iterations, double entry_error) {
    const auto tau = [](const truth::Matrix& rows) {
        double most = 0;
        for (Eigen::Index i = 0; i < rows.rows(); ++i)
            for (Eigen::Index j = 0; j < rows.rows(); ++j)
                most = std::max(most, (rows.row(i) - rows.row(j)).cwiseAbs().sum() / 2);
        return most;
    };
    const double sum_error = static_cast<double>(m.rows()) * u;
    double entries = entry_error + u, lines = 0, before = 0;
    m = (m.colwise() - m.rowwise().maxCoeff()).array().exp();
    for (int step = 0; step < 2 * iterations; ++step) {
        if (step % 2 == 0)
            m = (m.array().colwise() / m.rowwise().sum().array().eval()).eval();
        else
            m = (m.array().rowwise() / m.colwise().sum().array().eval()).eval();
        // The spread of the averages that are divided by.
        before = lines;
        lines = 2 * entries + 2 * sum_error + tau(step % 2 == 0 ? m : truth::Matrix(m.transpose())) * lines;
        entries += u;
    }
    return 1.01 * (2 * entries + before + sum_error);
}

}  // namespace

TEST_CASE("hyper_connections: Sinkhorn gives the published matrix to its digits (text model 18.2)") {
    std::array<float, 16> a{0.5f, -1, 0.25f, 0,     1,      2,      -0.5f, 0.75f,
                            -2,   0,  1.5f,  0.25f, 0.125f, -0.25f, 0.5f,  3};
    constexpr std::array<const char*, 16> published{"0.5585634", "0.1004560", "0.2319104", "0.1090693",
                                                    "0.2808478", "0.6153261", "0.0334086", "0.0704165",
                                                    "0.0361490", "0.2152818", "0.6381562", "0.1104119",
                                                    "0.1244388", "0.0689351", "0.0965238", "0.7101013"};
    sinkhorn(a, 4, 20, 1e-6f);
    for (size_t i = 0; i < 16; ++i) CHECK(fmt::format("{:.7f}", a[i]) == published[i]);
}

TEST_CASE("hyper_connections: Sinkhorn's steps in their order (by the definition, 1, 2 and 20 iterations)") {
    for (uint64_t seed = 0; seed < 50; ++seed)
        for (int iterations : {1, 2, 20}) {
            std::vector<float> a = fp32(16, {seed, 21}, 4), expected = a;
            sinkhorn(a, 4, iterations, 1e-6f);
            const auto at = [&](size_t j, size_t k) -> float& { return expected[4 * j + k]; };
            const auto divide_rows = [&](float eps) {
                for (size_t j = 0; j < 4; ++j) {
                    const float sum = at(j, 0) + at(j, 1) + at(j, 2) + at(j, 3) + eps;
                    for (size_t k = 0; k < 4; ++k) at(j, k) = at(j, k) / sum;
                }
            };
            const auto divide_columns = [&] {
                for (size_t k = 0; k < 4; ++k) {
                    const float sum = at(0, k) + at(1, k) + at(2, k) + at(3, k) + 1e-6f;
                    for (size_t j = 0; j < 4; ++j) at(j, k) = at(j, k) / sum;
                }
            };
            for (size_t j = 0; j < 4; ++j) {
                const float most = std::max({at(j, 0), at(j, 1), at(j, 2), at(j, 3)});
                for (size_t k = 0; k < 4; ++k) at(j, k) = elementary::exp(at(j, k) - most);
            }
            divide_rows(0);
            for (float& value : expected) value += 1e-6f;
            divide_columns();
            for (int i = 1; i < iterations; ++i) divide_rows(1e-6f), divide_columns();
            CAPTURE(seed);
            CAPTURE(iterations);
            REQUIRE(differing(a, expected) == 0);
        }
}

TEST_CASE("hyper_connections: Sinkhorn's error against truth is within its bound and a hundredth of it") {
    double nearest = 0;
    for (uint64_t seed = 0; seed < 300; ++seed) {
        std::vector<float> a = fp32(16, {seed, 22}, 3);
        truth::Matrix exact = matrix(a, 4);
        // exp: 1 ulp is two u, its argument's rounding at most u |a - rowmax|.
        const double spread = exact.maxCoeff() - exact.minCoeff();
        const double bound = sinkhorn_bound(exact, 20, (2 + spread) * u);
        exact = truth::sinkhorn(exact, 20, widened(1e-6f));
        sinkhorn(a, 4, 20, 1e-6f);
        double worst = 0;
        for (size_t i = 0; i < 16; ++i)
            worst = std::max(worst, std::abs(widened(a[i]) / exact.data()[i] - 1) / bound);
        CAPTURE(seed);
        CHECK(worst <= 1);
        nearest = std::max(nearest, worst);
    }
    CAPTURE(nearest);
    CHECK(nearest >= 0.01);
}

TEST_CASE("hyper_connections: coefficients against truth, within their bounds (256 and 5120 channels)") {
    std::array<double, 4> nearest{};
    for (int64_t hidden_size : {256, 5120}) {
        constexpr int64_t rows = 20;
        const int64_t width = n * hidden_size;
        const Sublayer sublayer(hidden_size);
        const std::vector<Bf16> h = bf16(rows * width, {13}, 2);
        const MixCoefficients ours = mix(h, rows, sublayer.weights(), shape_of(hidden_size));
        const truth::LinearOperands operands{matrix(h, rows), matrix(sublayer.fn, outputs)};
        const Lanes lanes = sum_order(SumOperator::mhc_mix, width, outputs).lanes;
        const truth::Matrix dot_bound = truth::exact_lanes_bound(operands, lanes);
        const double rms_error =
            reciprocal_rms_error(width, sum_order(SumOperator::mhc_mean_square, width, 1).lanes);
        const truth::HyperConnectionWeights weights{operands.b, matrix(sublayer.base, 1).row(0).transpose(),
                                                    matrix(sublayer.scale, 1).row(0).transpose()};
        const truth::HyperConnectionMix exact =
            truth::hyper_connection_mix(operands.a, weights, n, 20, widened(1e-20f), widened(1e-6f));

        const auto check = [&](size_t which, double got, double expected, double bound) {
            const double share = std::abs(got - expected) / bound;
            CAPTURE(which);
            REQUIRE(share <= 1);
            nearest[which] = std::max(nearest[which], share);
        };
        for (int64_t t = 0; t < rows; ++t) {
            const double rms = std::sqrt(operands.a.row(t).squaredNorm() / static_cast<double>(width));
            const auto mix_bound = [&](int64_t i) {
                return dot_bound(t, i) / rms + std::abs(exact.mixes(t, i)) * (rms_error + u);
            };
            // scale * mix + base, two roundings.
            const auto affine_bound = [&](int64_t i, Eigen::Index part) {
                const double product = std::abs(exact.mixes(t, i) * weights.scale[part]);
                return mix_bound(i) * weights.scale[part] + u * (2 * product + std::abs(weights.base[i]));
            };
            for (int64_t i = 0; i < outputs; ++i)
                check(0, widened(ours.mixes[static_cast<size_t>(t * outputs + i)]), exact.mixes(t, i),
                      mix_bound(i));
            for (int64_t c = 0; c < n; ++c) {
                // A sigmoid's slope is at most 1/4; its own error: exp 2u, and three roundings.
                const auto at = static_cast<size_t>(t * n + c);
                check(1, widened(ours.pre[at]), exact.pre(t, c),
                      affine_bound(c, 0) / 4 + 6 * u * exact.pre(t, c));
                check(2, widened(ours.post[at]), exact.post(t, c),
                      affine_bound(n + c, 1) / 2 + 5 * u * exact.post(t, c));
            }
            // comb from our mixes, or their bound would hide what the 40 steps err by.
            truth::Matrix a(n, n);
            double affine_error = 0;
            for (int64_t i = 0; i < n * n; ++i) {
                const double product =
                    widened(ours.mixes[static_cast<size_t>(t * outputs + 2 * n + i)]) * weights.scale[2];
                a.data()[i] = product + weights.base[2 * n + i];
                affine_error =
                    std::max(affine_error, u * (2 * std::abs(product) + std::abs(weights.base[2 * n + i])));
            }
            const double spread = a.maxCoeff() - a.minCoeff();
            const double comb_bound = sinkhorn_bound(a, 20, 2 * affine_error + (2 + spread) * u);
            const truth::Matrix comb = truth::sinkhorn(a, 20, widened(1e-6f));
            for (int64_t i = 0; i < n * n; ++i)
                check(3, widened(ours.comb[static_cast<size_t>(t * n * n + i)]), comb.data()[i],
                      comb_bound * comb.data()[i]);
        }
    }
    for (size_t which = 0; which < nearest.size(); ++which) {
        CAPTURE(which);
        CHECK(nearest[which] >= 0.01);
    }
}

TEST_CASE("hyper_connections: coefficients by the definition, bit for bit (K20 B138)") {
    constexpr int64_t rows = 2, hidden_size = 640, width = n * hidden_size;
    const Sublayer sublayer(hidden_size);
    const std::vector<Bf16> h = bf16(rows * width, {14});
    const MixCoefficients ours = mix(h, rows, sublayer.weights(), shape_of(hidden_size));
    const Lanes lanes{LaneArrangement::chunked, 256};  // the table's: mhc_mix and mhc_mean_square
    for (int64_t t = 0; t < rows; ++t) {
        const Bf16* row = h.data() + t * width;
        const float mean = sum_of_squares_by_definition(lanes, row, width) / static_cast<float>(width);
        const float r = 1.0f / sqrt_rn(mean + 1e-20f);
        std::vector<float> a(16);
        for (int64_t i = 0; i < outputs; ++i) {
            const float g = dot_by_definition(lanes, row, sublayer.fn.data() + i * width, width) * r;
            const float scaled = g * sublayer.scale[i < 4 ? 0 : i < 8 ? 1 : 2];
            const float affine = scaled + sublayer.base[static_cast<size_t>(i)];
            REQUIRE(float_bits(ours.mixes[static_cast<size_t>(t * outputs + i)]) == float_bits(g));
            const auto at = static_cast<size_t>(t * n + i % 4);
            if (i < 4)
                REQUIRE(ours.pre[at] == elementary::sigmoid(affine) + 1e-6f);
            else if (i < 8)
                REQUIRE(ours.post[at] == 2 * elementary::sigmoid(affine));
            else
                a[static_cast<size_t>(i - 8)] = affine;
        }
        sinkhorn(a, n, 20, 1e-6f);
        REQUIRE(differing(std::span(ours.comb).subspan(static_cast<size_t>(t) * 16, 16), a) == 0);
    }
}

TEST_CASE("hyper_connections: coefficients of zeros and of huge and tiny streams (K20 B138)") {
    constexpr int64_t hidden_size = 256, width = n * hidden_size;
    const Sublayer sublayer(hidden_size);
    const std::vector<Bf16> zeros(width, bf16_from_float(0)), one = bf16(width, {15});
    const MixCoefficients of_zeros = mix(zeros, 1, sublayer.weights(), shape_of(hidden_size));
    std::vector<float> comb(sublayer.base.begin() + 8, sublayer.base.end());
    sinkhorn(comb, n, 20, 1e-6f);
    for (size_t c = 0; c < 4; ++c) {
        CHECK(of_zeros.pre[c] == elementary::sigmoid(sublayer.base[c]) + 1e-6f);
        CHECK(of_zeros.post[c] == 2 * elementary::sigmoid(sublayer.base[4 + c]));
    }
    CHECK(differing(of_zeros.comb, comb) == 0);
    // The statistic takes a common factor out: a power of two changes no bit while nothing leaves fp32.
    const MixCoefficients plain = mix(one, 1, sublayer.weights(), shape_of(hidden_size));
    for (float factor : {0x1p20f, 0x1p-10f}) {
        std::vector<Bf16> scaled;
        for (Bf16 value : one) scaled.push_back(bf16_from_float(to_float(value) * factor));
        const MixCoefficients ours = mix(scaled, 1, sublayer.weights(), shape_of(hidden_size));
        CHECK(differing(ours.mixes, plain.mixes) == 0);
        CHECK(differing(ours.comb, plain.comb) == 0);
    }
    // eps 1e-20 decides at 1e-11, as in the norms: mixes shrink instead of staying.
    std::vector<Bf16> tiny;
    for (Bf16 value : one) tiny.push_back(bf16_from_float(to_float(value) * 0x1p-37f));
    const MixCoefficients of_tiny = mix(tiny, 1, sublayer.weights(), shape_of(hidden_size));
    CHECK(std::abs(of_tiny.mixes[0]) < 0.2f * std::abs(plain.mixes[0]));
    CHECK(std::abs(of_tiny.mixes[0]) > 0.005f * std::abs(plain.mixes[0]));
}

TEST_CASE("hyper_connections: a NaN in the streams makes every coefficient of its row NaN, and of no other") {
    constexpr int64_t hidden_size = 64;
    const Sublayer sublayer(hidden_size);
    std::vector<Bf16> h = bf16(3 * n * hidden_size, {16});
    h[static_cast<size_t>(n * hidden_size) + 5] = {0xFFFF};
    const MixCoefficients ours = mix(h, 3, sublayer.weights(), shape_of(hidden_size));
    for (const std::vector<float>* values : {&ours.mixes, &ours.pre, &ours.post, &ours.comb})
        for (size_t i = 0; i < values->size(); ++i) {
            const bool second = i / (values->size() / 3) == 1;
            CHECK(is_nan((*values)[i]) == second);
            if (second) CHECK(float_bits((*values)[i]) == canonical_nan_bits);
        }
}

TEST_CASE("hyper_connections: collapse and expand are bf16 of truth within the bound") {
    constexpr int64_t rows = 12, hidden_size = 5120, width = n * hidden_size;
    const std::vector<Bf16> h = bf16(rows * width, {17}, 3), y = bf16(rows * hidden_size, {18}, 5);
    const std::vector<float> pre = fp32(rows * n, {19}), post = fp32(rows * n, {20}),
                             comb = fp32(rows * n * n, {21});
    std::vector<Bf16> collapsed(y.size()), expanded(h.size());
    collapse(h, rows, pre, collapsed);
    expand(y, h, rows, post, comb, expanded);
    const truth::Matrix streams = matrix(h, rows),
                        exact_collapsed = truth::collapse(streams, matrix(pre, rows)),
                        exact_expanded =
                            truth::expand(matrix(y, rows), streams, matrix(post, rows), matrix(comb, rows)),
                        sizes = streams.cwiseAbs(),
                        size_collapsed = truth::collapse(sizes, matrix(pre, rows).cwiseAbs()),
                        size_expanded =
                            truth::expand(matrix(y, rows).cwiseAbs(), sizes, matrix(post, rows).cwiseAbs(),
                                          matrix(comb, rows).cwiseAbs());
    int64_t inexact = 0, off = 0;
    for (size_t i = 0; i < collapsed.size(); ++i) {
        const double bound = 5 * u * size_collapsed.data()[i];  // a product, then four sums
        REQUIRE(rounds_within(collapsed[i], exact_collapsed.data()[i], bound));
        off += widened(collapsed[i]) != truth::nearest_bf16(exact_collapsed.data()[i]);
    }
    for (size_t i = 0; i < expanded.size(); ++i) {
        const double bound = 6 * u * size_expanded.data()[i];
        REQUIRE(rounds_within(expanded[i], exact_expanded.data()[i], bound));
        off += widened(expanded[i]) != truth::nearest_bf16(exact_expanded.data()[i]);
        inexact += 1;
    }
    CHECK(off > 0);  // some fp32 error crosses a rounding boundary, so that the bound matters
    CHECK(off * 100 <= inexact);
}

TEST_CASE("hyper_connections: collapse by hand (one-hot, order, zeros)") {
    const auto run = [](std::array<float, 4> h, std::array<float, 4> pre) {
        std::vector<Bf16> streams;
        for (float value : h) streams.push_back(bf16_from_float(value));
        std::vector<Bf16> y(1);
        collapse(streams, 1, pre, y);
        return to_float(y[0]);
    };
    CHECK(run({3, 5, 7, 9}, {1, 0, 0, 0}) == 3);
    CHECK(run({3, 5, 7, 9}, {0, 0, 1, 0}) == 7);
    CHECK(run({1, 1, 1, 1}, {0x1p24f, 1, 1, -0x1p24f}) == 0);  // ascending: each 1 is lost
    CHECK(run({1, 1, 1, 1}, {0x1p24f, -0x1p24f, 1, 1}) == 2);
    CHECK(float_bits(run({-0.0f, 0, 0, 0}, {1, 0, 0, 0})) == 0);  // a sum starts at +0
    // Products are rounded before they are added: an FMA would leave -2^-30.
    constexpr float almost = 1 + 0x1p-23f;
    CHECK(run({1 + 0x1p-7f, 1 + 0x1p-7f, 0, 0}, {almost, -almost, 0, 0}) == 0);
}

TEST_CASE("hyper_connections: expand sums over comb's first index (K20 B137)") {
    // Stream j goes to stream j + 1.
    constexpr std::array<float, 16> shift{0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0};
    CHECK(expand_one(0, {1, 0, 0, 0}, {0, 0, 0, 0}, shift) == std::vector<float>{0, 1, 0, 0});
    CHECK(expand_one(0, {1, 2, 3, 4}, {0, 0, 0, 0}, shift) == std::vector<float>{4, 1, 2, 3});
    CHECK(expand_one(10, {1, 2, 3, 4}, {1, 2, 0, -1}, shift) == std::vector<float>{14, 21, 2, -7});
    // The sum over j is formed first, then added to post * y.
    constexpr std::array<float, 16> cancelling{1, 0, 0, 0, -1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    CHECK(expand_one(1, {0x1p25f, 0x1p25f, 0, 0}, {1, 0, 0, 0}, cancelling)[0] == 1);
}

TEST_CASE("hyper_connections: expand in place is expand") {
    constexpr int64_t rows = 9, hidden_size = 512;
    const std::vector<Bf16> h = bf16(rows * n * hidden_size, {31}), y = bf16(rows * hidden_size, {32});
    const std::vector<float> post = fp32(rows * n, {33}), comb = fp32(rows * n * n, {34});
    std::vector<Bf16> apart(h.size()), in_place = h;
    expand(y, h, rows, post, comb, apart);
    expand(y, in_place, rows, post, comb, in_place);
    CHECK(differing(std::span<const Bf16>(apart), in_place) == 0);
}

TEST_CASE("hyper_connections: V4's head collapses with its own coefficients") {
    constexpr int64_t rows = 3, hidden_size = 512, width = n * hidden_size;
    const Sublayer head(hidden_size, n, 1);
    const std::vector<Bf16> h = bf16(rows * width, {41});
    std::vector<Bf16> y(rows * hidden_size), expected(y.size());
    const HyperConnectionShape shape{n, hidden_size, 20, 1e-6f, 1e-6f};
    v4_head_collapse(h, rows, head.weights(), shape, y);
    // The same projections as rows 0 to 3 of a sublayer's, with the same scale and base.
    Sublayer sublayer(hidden_size);
    std::copy(head.fn.begin(), head.fn.end(), sublayer.fn.begin());
    std::copy(head.base.begin(), head.base.end(), sublayer.base.begin());
    collapse(h, rows, mix(h, rows, sublayer.weights(), shape).pre, expected);
    CHECK(differing(std::span<const Bf16>(y), expected) == 0);
    // No Sinkhorn, no sum to 1: a base far up gives the plain sum of the streams (times 1 + eps).
    const std::vector<float> zeros(head.fn.size(), 0.0f), high(4, 40.0f), scale(1, 1.0f);
    const std::vector<Bf16> ones(rows * width, bf16_from_float(1));
    v4_head_collapse(ones, rows, {zeros, high, scale}, shape, y);
    for (Bf16 value : y) CHECK(to_float(value) == 4);
}

TEST_CASE("hyper_connections: a row's bits are its own (alone, in a batch, permuted, 1, 2 and 7 threads)") {
    constexpr int64_t rows = 17, hidden_size = 1280, width = n * hidden_size;
    const Sublayer sublayer(hidden_size);
    const std::vector<Bf16> h = bf16(rows * width, {51}), y = bf16(rows * hidden_size, {52});
    struct Result {
        MixCoefficients mixed;
        std::vector<Bf16> collapsed, expanded;
    };
    const auto run = [&](std::span<const Bf16> streams, std::span<const Bf16> sublayer_out, int64_t count) {
        Result result{mix(streams, count, sublayer.weights(), shape_of(hidden_size)),
                      std::vector<Bf16>(sublayer_out.size()), std::vector<Bf16>(streams.size())};
        collapse(streams, count, result.mixed.pre, result.collapsed);
        expand(sublayer_out, streams, count, result.mixed.post, result.mixed.comb, result.expanded);
        return result;
    };
    const Result all = run(h, y, rows);
    const int threads = omp_get_max_threads();
    for (int count : {1, 2, 7}) {
        omp_set_num_threads(count);
        const Result again = run(h, y, rows);
        CAPTURE(count);
        CHECK(differing(all.mixed.mixes, again.mixed.mixes) == 0);
        CHECK(differing(all.mixed.comb, again.mixed.comb) == 0);
        CHECK(differing(std::span<const Bf16>(all.collapsed), again.collapsed) == 0);
        CHECK(differing(std::span<const Bf16>(all.expanded), again.expanded) == 0);
    }
    omp_set_num_threads(threads);
    std::vector<Bf16> reversed_h, reversed_y;
    for (int64_t t = rows - 1; t >= 0; --t) {
        reversed_h.insert(reversed_h.end(), h.begin() + t * width, h.begin() + (t + 1) * width);
        reversed_y.insert(reversed_y.end(), y.begin() + t * hidden_size, y.begin() + (t + 1) * hidden_size);
    }
    const Result reversed = run(reversed_h, reversed_y, rows);
    for (int64_t t = 0; t < rows; ++t) {
        const auto at = static_cast<size_t>(t * width), y_at = static_cast<size_t>(t * hidden_size),
                   from = static_cast<size_t>((rows - 1 - t) * width);
        const Result alone = run(std::span(h).subspan(at, width), std::span(y).subspan(y_at, hidden_size), 1);
        const auto expected = std::span(all.expanded).subspan(at, width);
        CHECK(differing(std::span<const Bf16>(alone.expanded), expected) == 0);
        CHECK(differing(std::span<const Bf16>(reversed.expanded).subspan(from, width), expected) == 0);
        CHECK(differing(std::span<const Bf16>(alone.collapsed),
                        std::span(all.collapsed).subspan(y_at, hidden_size)) == 0);
    }
}

TEST_CASE("hyper_connections: sizes that do not match are refused, and nothing is written") {
    constexpr int64_t hidden_size = 64;
    const Sublayer sublayer(hidden_size);
    const std::vector<Bf16> h = bf16(2 * n * hidden_size, {61});
    const HyperConnectionShape shape = shape_of(hidden_size);
    CHECK_THROWS_AS(mix(h, 3, sublayer.weights(), shape), UserError);
    HyperConnectionWeights weights = sublayer.weights();
    weights.fn = weights.fn.first(weights.fn.size() - 1);
    CHECK_THROWS_AS(mix(h, 2, weights, shape), UserError);
    weights = sublayer.weights();
    weights.scale = weights.scale.first(2);
    CHECK_THROWS_AS(mix(h, 2, weights, shape), UserError);
    std::vector<float> a(15, 1.0f);
    CHECK_THROWS_AS(sinkhorn(a, 4, 20, 1e-6f), UserError);
    CHECK(std::count(a.begin(), a.end(), 1.0f) == 15);
    std::vector<Bf16> y(2 * hidden_size, Bf16{0x1234}), out(h.size(), Bf16{0x1234});
    const std::vector<float> pre(8, 1.0f), comb(31, 1.0f);
    CHECK_THROWS_AS(collapse(std::span(h).first(h.size() - 4), 2, pre, y), UserError);
    CHECK_THROWS_AS(expand(y, h, 2, pre, comb, out), UserError);
    CHECK(std::count(y.begin(), y.end(), Bf16{0x1234}) == std::ssize(y));
    CHECK(std::count(out.begin(), out.end(), Bf16{0x1234}) == std::ssize(out));
}
