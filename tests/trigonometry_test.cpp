#include "reference/numerics/trigonometry.h"

#include <doctest/doctest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <vector>

#include "reference/numerics/random.h"
#include "reference/rope.h"

#ifdef TOUCHSTONE_MPFR
#include <mpfr.h>
#endif

using namespace touchstone;

namespace {

/// Angles of every binade, both signs: `count` fp32 patterns at random.
std::vector<float> random_angles(int count) {
    std::vector<float> angles;
    for (uint64_t i = 0; std::ssize(angles) < count; ++i) {
        const float angle = float_from_bits(RandomStream{1}.word(i));
        if (std::isfinite(angle)) angles.push_back(angle);
    }
    return angles;
}

/// Angles of both tables of the released model, of positions all over.
std::vector<float> table_angles(int count) {
    const RopeTable tables[] = {RopeTable(64, 10000, std::nullopt),
                                RopeTable(64, 160000, YarnScaling{16, 32, 1, 65536})};
    std::vector<float> angles;
    for (uint64_t i = 0; std::ssize(angles) < count; ++i) {
        const uint32_t word = RandomStream{2}.word(i);
        const RopeTable& table = tables[word & 1];
        angles.push_back(static_cast<float>(word >> 12) * table.frequencies()[word >> 1 & 31]);
    }
    return angles;
}

/// The fp32 numbers around k pi/2, k to 2^20, where sin or cos is smallest.
std::vector<float> angles_near_quadrants() {
    std::vector<float> angles;
    for (int k = 1; k <= 1 << 20; k = k < 1000 ? k + 1 : k + 997)
        for (int step : {-1, 0, 1}) {
            const auto nearest = static_cast<float>(k * 0x1.921fb54442d18p+0);
            angles.push_back(float_from_bits(float_bits(nearest) + static_cast<uint32_t>(step)));
        }
    // Of all fp32 numbers the nearest to a multiple of pi/2: 16367173 * 2^72.
    angles.push_back(16367173 * 0x1p72f);
    return angles;
}

std::vector<float> all_angles() {
    std::vector<float> angles = random_angles(20000);
    for (const std::vector<float>& more : {table_angles(20000), angles_near_quadrants()})
        angles.insert(angles.end(), more.begin(), more.end());
    return angles;
}

/// Half a unit of fp32 at `truth`, and a little for the errors of double.
bool nearest(float y, double truth) {
    const double unit = std::ldexp(1.0, std::max(std::ilogb(truth), -126) - 23);
    return std::abs(static_cast<double>(y) - truth) <= unit / 2 * (1 + 0x1p-20);
}

}  // namespace

TEST_CASE("trigonometry: nearest fp32 to sin and cos in double (random angles, tables', around quadrants)") {
    int wrong = 0;
    for (float angle : all_angles()) {
        const SinCos y = sin_cos(angle);
        const auto wide = static_cast<double>(angle);
        if (nearest(y.sin, std::sin(wide)) && nearest(y.cos, std::cos(wide))) continue;
        if (++wrong > 5) continue;
        CAPTURE(angle);
        CAPTURE(float_bits(angle));
        CHECK(static_cast<double>(y.sin) == std::sin(wide));
        CHECK(static_cast<double>(y.cos) == std::cos(wide));
    }
    CHECK(wrong == 0);
}

#ifdef TOUCHSTONE_MPFR
TEST_CASE("trigonometry: correctly rounded, says MPFR (random angles, tables', around quadrants)") {
    mpfr_t sin, cos, x;
    mpfr_inits2(24, sin, cos, x, static_cast<mpfr_ptr>(nullptr));
    int wrong = 0;
    for (float angle : all_angles()) {
        if (std::abs(angle) < 0x1p-100f) continue;  // MPFR's 24 bits know no subnormals
        mpfr_set_flt(x, angle, MPFR_RNDN);
        mpfr_sin_cos(sin, cos, x, MPFR_RNDN);
        const SinCos y = sin_cos(angle), expected{mpfr_get_flt(sin, MPFR_RNDN), mpfr_get_flt(cos, MPFR_RNDN)};
        if (float_bits(y.sin) == float_bits(expected.sin) && float_bits(y.cos) == float_bits(expected.cos))
            continue;
        if (++wrong > 5) continue;
        CAPTURE(angle);
        CHECK(float_bits(y.sin) == float_bits(expected.sin));
        CHECK(float_bits(y.cos) == float_bits(expected.cos));
    }
    mpfr_clears(sin, cos, x, static_cast<mpfr_ptr>(nullptr));
    CHECK(wrong == 0);
}
#endif

TEST_CASE("trigonometry: odd sine, even cosine, zeros, and no number where there is no angle") {
    for (float angle : random_angles(1000)) {
        const SinCos plus = sin_cos(angle), minus = sin_cos(-angle);
        CHECK(float_bits(plus.sin) == (float_bits(minus.sin) ^ 0x80000000));
        CHECK(float_bits(plus.cos) == float_bits(minus.cos));
    }
    CHECK(float_bits(sin_cos(0.0f).sin) == 0);
    CHECK(float_bits(sin_cos(-0.0f).sin) == 0x80000000);
    CHECK(sin_cos(-0.0f).cos == 1);
    for (uint32_t bits : {1u, 0x007FFFFFu, 0x00800000u})  // sin x of tiny x is x
        CHECK(float_bits(sin_cos(float_from_bits(bits)).sin) == bits);
    for (uint32_t bits : {0x7F800000u, 0xFF800000u, 0x7FC00000u, 0xFFC00001u}) {
        const SinCos y = sin_cos(float_from_bits(bits));
        CHECK(float_bits(y.sin) == canonical_nan_bits);
        CHECK(float_bits(y.cos) == canonical_nan_bits);
    }
}

TEST_CASE("trigonometry: rounding once, not through double (sums at a tie of fp32)") {
    using trigonometry_detail::rounded_once;
    constexpr double tie = 1 + 0x1p-24, next_tie = 1 + 3 * 0x1p-24;  // to even: down to 1, up to 1 + 2^-22
    CHECK(rounded_once(tie, 0) == 1);
    CHECK(rounded_once(tie, 0x1p-80) == 1 + 0x1p-23f);
    CHECK(rounded_once(tie, -0x1p-80) == 1);
    CHECK(rounded_once(next_tie, 0) == 1 + 0x1p-22f);
    CHECK(rounded_once(next_tie, -0x1p-80) == 1 + 0x1p-23f);
    CHECK(rounded_once(-tie, -0x1p-80) == -1 - 0x1p-23f);
    CHECK(rounded_once(-next_tie, 0x1p-80) == -1 - 0x1p-23f);
}
