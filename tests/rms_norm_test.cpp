#include "reference/rms_norm.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/sum_order.h"
#include "reference/numerics/sums.h"
#include "reference/truth/rms_norm.h"
#include "tests/random_tensors.h"

using namespace touchstone;
using namespace touchstone::random_tensors;

namespace {

constexpr float eps = 1e-20f;

std::vector<float> norm(std::span<const Bf16> x, int64_t rows, std::span<const Bf16> weight) {
    std::vector<float> y(x.size());
    rms_norm(x, rows, weight, eps, std::span(y));
    return y;
}

/// One row of `width` equal values under weight 1.
float norm_of_equal(float value, int64_t width = 512) {
    const std::vector<Bf16> x(static_cast<size_t>(width), bf16_from_float(value)),
        weight(x.size(), bf16_from_float(1));
    return norm(x, 1, weight)[0];
}

}  // namespace

TEST_CASE("rms_norm: errors against truth stay within the bound and reach a hundredth of it (every width)") {
    constexpr int64_t rows = 20;
    for (int64_t width : {1, 7, 128, 256, 512, 1280, 4095, 4096, 5120}) {
        const std::vector<Bf16> x = bf16(rows * width, {1, static_cast<uint64_t>(width)}, 3),
                                weight = bf16(width, {2, static_cast<uint64_t>(width)});
        const std::vector<float> y = norm(x, rows, weight);
        const truth::Matrix exact =
            truth::rms_norm(matrix(x, rows), matrix(weight, 1).row(0).transpose(), widened(eps));
        const Lanes lanes = sum_order(SumOperator::rms_norm, width, 1).lanes;
        const double bound = reciprocal_rms_error(width, lanes) + 2 * u;
        double worst = 0;
        for (size_t i = 0; i < y.size(); ++i) {
            const double value = exact.data()[i];
            worst = std::max(worst, value == 0 ? std::abs(widened(y[i])) / u
                                               : std::abs(widened(y[i]) / value - 1) / bound);
        }
        CAPTURE(width);
        CHECK(worst <= 1.0);
        CHECK(worst >= 0.01);
    }
}

TEST_CASE("rms_norm: operations in order, one rounding each, bf16 once at the end (by the definition)") {
    constexpr int64_t rows = 3, width = 5120;
    const std::vector<Bf16> x = bf16(rows * width, {3}, 0.7f), weight = bf16(width, {4});
    const std::vector<float> y = norm(x, rows, weight);
    std::vector<Bf16> rounded(x.size());
    rms_norm(x, rows, weight, eps, std::span(rounded));
    const Lanes lanes{LaneArrangement::interleaved, 1024};
    for (int64_t row = 0; row < rows; ++row) {
        const Bf16* in = x.data() + row * width;
        const float mean = sum_of_squares_by_definition(lanes, in, width) / 5120.0f;
        const float r = 1.0f / sqrt_rn(mean + eps);
        for (int64_t i = 0; i < width; ++i) {
            const auto at = static_cast<size_t>(row * width + i);
            const float scaled = to_float(in[i]) * r;
            REQUIRE(float_bits(y[at]) == float_bits(to_float(weight[static_cast<size_t>(i)]) * scaled));
            REQUIRE(rounded[at] == bf16_from_float(y[at]));
        }
    }
}

TEST_CASE("rms_norm: a row's bits are its own (alone, in a batch, permuted, 1, 2 and 7 threads)") {
    constexpr int64_t rows = 33, width = 1280;
    const std::vector<Bf16> x = bf16(rows * width, {5}), weight = bf16(width, {6});
    const std::vector<float> all = norm(x, rows, weight);
    std::vector<Bf16> reversed;
    for (int64_t row = rows - 1; row >= 0; --row)
        reversed.insert(reversed.end(), x.begin() + row * width, x.begin() + (row + 1) * width);
    const int threads = omp_get_max_threads();
    for (int count : {1, 2, 7}) {
        omp_set_num_threads(count);
        CAPTURE(count);
        CHECK(differing(norm(x, rows, weight), all) == 0);
        const std::vector<float> permuted = norm(reversed, rows, weight);
        for (int64_t row = 0; row < rows; ++row) {
            const auto at = static_cast<size_t>(row * width),
                       from = static_cast<size_t>((rows - 1 - row) * width);
            const std::span<const float> expected = std::span(all).subspan(at, width);
            CHECK(differing(norm(std::span(x).subspan(at, width), 1, weight), expected) == 0);
            CHECK(differing(std::span(permuted).subspan(from, width), expected) == 0);
        }
    }
    omp_set_num_threads(threads);
}

TEST_CASE("rms_norm: eps is 1e-20 (K20 B142: rows of 0, 1e-11, 1e-6, 1)") {
    CHECK(float_bits(norm_of_equal(0)) == 0);
    CHECK(float_bits(norm_of_equal(-0.0f)) == 0x80000000);
    // bf16 of 1e-11 is 1.0004e-11, its square 1.0007e-22: eps alone decides.
    CHECK(norm_of_equal(1e-11f) == doctest::Approx(0.0995).epsilon(1e-3));
    CHECK(norm_of_equal(1e-6f) == doctest::Approx(1).epsilon(1e-6));
    CHECK(norm_of_equal(1) == 1);
    CHECK(norm_of_equal(0x1p-126f) == doctest::Approx(0x1p-126 * 1e10).epsilon(1e-6));
}

TEST_CASE("rms_norm: NaN fills its row alone; what overflows is 0 or NaN") {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    std::vector<Bf16> x(3 * 64, bf16_from_float(1));
    const std::vector<Bf16> weight(64, bf16_from_float(2));
    x[70] = bf16_from_float(std::numeric_limits<float>::quiet_NaN());
    std::vector<float> y = norm(x, 3, weight);
    for (size_t i = 0; i < y.size(); ++i)
        CHECK(float_bits(y[i]) == (i / 64 == 1 ? canonical_nan_bits : float_bits(2)));
    x[70] = bf16_from_float(infinity);
    y = norm(x, 3, weight);
    CHECK(float_bits(y[70]) == canonical_nan_bits);  // inf * 0
    CHECK(y[71] == 0);
    CHECK(norm_of_equal(0x1p100f) == 0);  // the squares overflow, and 1 / inf is 0
}

TEST_CASE("rms_norm: sizes that do not match are refused, and nothing is written") {
    const std::vector<Bf16> x(64, bf16_from_float(1)), weight(16, bf16_from_float(1));
    std::vector<float> y(64, 7.0f), small(63, 7.0f);
    CHECK_THROWS_AS(rms_norm(x, 3, weight, eps, std::span(y)), UserError);
    CHECK_THROWS_AS(rms_norm(x, -4, weight, eps, std::span(y)), UserError);
    CHECK_THROWS_AS(rms_norm(x, 4, weight, eps, std::span(small)), UserError);
    CHECK(std::count(y.begin(), y.end(), 7.0f) == 64);
    CHECK(std::count(small.begin(), small.end(), 7.0f) == 63);
    CHECK_NOTHROW(rms_norm({}, 0, weight, eps, std::span<float>()));
}
