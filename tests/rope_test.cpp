#include "reference/rope.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/model/model.h"
#include "reference/truth/rope.h"
#include "tests/random_tensors.h"

using namespace touchstone;
using namespace touchstone::random_tensors;

namespace {

const ModelConfig& released() {
    static const Model model = find_model("deepseek-v4.1-flash");
    return *model.config();
}

/// Published (text model 3.2), i = 0 .. 31.
constexpr std::array<uint32_t, 32> main_frequencies{
    0x3f800000, 0x3f3ff911, 0x3f0ff59a, 0x3ed7e89b, 0x3ea1e89b, 0x3e72d423, 0x3e361887, 0x3e088d77,
    0x3dcccccd, 0x3d99940d, 0x3d6655c2, 0x3d2cba15, 0x3d0186e3, 0x3cc2434f, 0x3c91ad39, 0x3c5a7bf2,
    0x3c23d70a, 0x3bf5b9b0, 0x3bb8449c, 0x3b8a2e77, 0x3b4f3e38, 0x3b1b690d, 0x3ae91528, 0x3aaec98e,
    0x3a83126f, 0x3a44948c, 0x3a136a16, 0x39dd1725, 0x39a5cb60, 0x3978a815, 0x393a7753, 0x390bd472};
constexpr std::array<uint32_t, 32> compress_frequencies{
    0x3f800000, 0x3f300a3a, 0x3ef21c1f, 0x3ea67d01, 0x3e64f92e, 0x3e1d7475, 0x3dd88cb4, 0x3d94e963,
    0x3d4ccccd, 0x3d0cd4fb, 0x3cc1b019, 0x3c8530ce, 0x3c372dbf, 0x3bfbed88, 0x3bad3d5e, 0x3b6e4237,
    0x3b147ae1, 0x3ab714e0, 0x3a5ebdb6, 0x3a0530ce, 0x399bb3af, 0x39305978, 0x38be904d, 0x383e9b5f,
    0x37a3d70c, 0x36b443d0, 0x3677eba6, 0x362a7be8, 0x35ea77ff, 0x35a13bdc, 0x355dbf30, 0x35187c4d};

std::vector<RopePair> row(const RopeTable& table, int64_t position) {
    std::vector<RopePair> pairs(static_cast<size_t>(table.rope_dim() / 2));
    table.row(position, pairs);
    return pairs;
}

std::vector<Bf16> turned(const RopeTable& table, RopeDirection direction, std::span<const int64_t> positions,
                         int64_t heads, int64_t head_dim, std::vector<Bf16> x) {
    rope(table, direction, positions, heads, head_dim, x);
    return x;
}

constexpr std::array<int64_t, 8> limits{0, 1, 127, 128, 200, 65535, 65536, 1048575};

}  // namespace

TEST_CASE("rope: frequencies are the published ones, bit for bit (both tables of the released model)") {
    const RopeTable main = main_rope_table(released()), compress = compress_rope_table(released());
    REQUIRE(main.rope_dim() == 64);
    REQUIRE(compress.rope_dim() == 64);
    for (size_t i = 0; i < 32; ++i) {
        CAPTURE(i);
        CHECK(float_bits(main.frequencies()[i]) == main_frequencies[i]);
        CHECK(float_bits(compress.frequencies()[i]) == compress_frequencies[i]);
    }
}

TEST_CASE("rope: frequencies are those of pow in double (other dimensions and bases)") {
    ModelConfig config = released();
    for (int64_t rope_dim : {2, 6, 16, 32, 48, 64, 96, 128})
        for (double base : {1.5, 10000.0, 160000.0, 5e6}) {
            config.qk_rope_head_dim = rope_dim;
            config.rope_theta = config.compress_rope_theta = base;
            const std::vector<float> main = truth::rope_frequencies(config, truth::RopeTable::main),
                                     compress = truth::rope_frequencies(config, truth::RopeTable::compress);
            CAPTURE(rope_dim);
            CAPTURE(base);
            CHECK(differing(main_rope_table(config).frequencies(), main) == 0);
            CHECK(differing(compress_rope_table(config).frequencies(), compress) == 0);
        }
}

TEST_CASE("rope: table rows are cos and sin of the rounded angle (K10 B73: positions 0 to 1,048,575)") {
    const RopeTable main = main_rope_table(released()), compress = compress_rope_table(released());
    for (int64_t position : limits)
        for (const RopeTable* table : {&main, &compress}) {
            const std::vector<RopePair> pairs = row(*table, position);
            for (size_t i = 0; i < pairs.size(); ++i) {
                const truth::RopeEntry expected = truth::rope_entry(position, table->frequencies()[i]);
                CAPTURE(position);
                CAPTURE(i);
                CHECK(pairs[i].cos == static_cast<float>(expected.cos));
                CHECK(pairs[i].sin == static_cast<float>(expected.sin));
            }
        }
    // Text model 18.3: the angle's rounding is visible.
    const RopePair pair = row(compress, 1000000)[1];
    CHECK(1e6f * compress.frequencies()[1] == 687656.0625f);
    CHECK(pair.cos == doctest::Approx(0.64463).epsilon(1e-5));
    // A main table's rows for a compress layer are wrong from the first positions on.
    const std::vector<RopePair> right = row(compress, 200), wrong = row(main, 200);
    float most = 0;
    for (size_t i = 0; i < right.size(); ++i) most = std::max(most, std::abs(right[i].cos - wrong[i].cos));
    CHECK(most > 0.5f);
}

TEST_CASE("rope: results are bf16 of truth within the bound (both directions and tables)") {
    constexpr int64_t heads = 3, head_dim = 128, rows = std::ssize(limits);
    const std::vector<Bf16> x = bf16(rows * heads * head_dim, {1}, 4);
    const std::vector<int64_t> positions(limits.begin(), limits.end());
    const RopeTable tables[] = {main_rope_table(released()), compress_rope_table(released())};
    for (const RopeTable& table : tables)
        for (bool inverse : {false, true}) {
            const std::vector<Bf16> y = turned(
                table, inverse ? RopeDirection::inverse : RopeDirection::forward, limits, heads, head_dim, x);
            const std::vector<float> frequencies(table.frequencies().begin(), table.frequencies().end());
            const truth::Matrix exact =
                truth::rope(matrix(x, rows), head_dim, positions, frequencies,
                            inverse ? truth::RopeDirection::inverse : truth::RopeDirection::forward);
            double worst = 0;
            for (size_t i = 0; i < y.size(); ++i) {
                // Two products and their sum: u (|a| + |b|) at most, twice.
                const double pair = std::abs(widened(x[i])) + std::abs(widened(x[i ^ 1]));
                REQUIRE(rounds_within(y[i], exact.data()[i], 2 * u * pair));
                const double bound = std::abs(exact.data()[i]) * 0x1p-8 + 2 * u * pair;
                worst = std::max(worst, std::abs(widened(y[i]) - exact.data()[i]) / bound);
            }
            CHECK(worst <= 1);
            CHECK(worst >= 0.01);
        }
}

TEST_CASE("rope: products and sums round in fp32, without FMA (by the definition)") {
    constexpr int64_t rows = 500, head_dim = 64;
    const RopeTable table = compress_rope_table(released());
    std::vector<int64_t> positions(rows);
    for (int64_t i = 0; i < rows; ++i) positions[static_cast<size_t>(i)] = 131 * i;
    const std::vector<Bf16> x = bf16(rows * head_dim, {2}),
                            y = turned(table, RopeDirection::forward, positions, 1, head_dim, x);
    for (int64_t t = 0; t < rows; ++t) {
        const std::vector<RopePair> pairs = row(table, positions[static_cast<size_t>(t)]);
        for (size_t i = 0; i < pairs.size(); ++i) {
            const auto at = static_cast<size_t>(t * head_dim) + 2 * i;
            const float a = to_float(x[at]), b = to_float(x[at + 1]);
            const float ac = a * pairs[i].cos, bs = b * pairs[i].sin, as = a * pairs[i].sin,
                        bc = b * pairs[i].cos;
            REQUIRE(y[at] == bf16_from_float(ac - bs));
            REQUIRE(y[at + 1] == bf16_from_float(as + bc));
        }
    }
}

TEST_CASE("rope: adjacent pairs of the trailing channels; the others keep their bits (K10 B74)") {
    constexpr int64_t head_dim = 128, heads = 2;
    const RopeTable table = compress_rope_table(released());
    for (int64_t lit : {0, 63, 64, 65, 66, 95, 96, 126, 127}) {
        std::vector<Bf16> x(heads * head_dim, bf16_from_float(0));
        x[static_cast<size_t>(head_dim + lit)] = bf16_from_float(1);
        const std::vector<Bf16> y =
            turned(table, RopeDirection::forward, std::array<int64_t, 1>{1}, heads, head_dim, x);
        for (int64_t i = 0; i < heads * head_dim; ++i) {
            const int64_t channel = i - head_dim;
            const bool self = channel == lit, partner = lit >= 64 && channel == (lit ^ 1);
            CAPTURE(lit);
            CAPTURE(i);
            CHECK((to_float(y[static_cast<size_t>(i)]) != 0) == (self || partner));
        }
        const float there = to_float(y[static_cast<size_t>(head_dim + lit)]);
        if (lit < 64) CHECK(there == 1);
        // Forward: the even channel turns into + sin, the odd one into - sin.
        if (lit >= 64) CHECK((to_float(y[static_cast<size_t>(head_dim + (lit ^ 1))]) > 0) == (lit % 2 == 0));
    }
    // Untouched means the bits: NaN payloads and -0 pass.
    std::vector<Bf16> x(128, Bf16{0xFFA5});
    for (size_t i = 0; i < 64; i += 2) x[i] = {0x8000};
    const std::vector<Bf16> y = turned(table, RopeDirection::forward, std::array<int64_t, 1>{9}, 1, 128, x);
    for (size_t i = 0; i < 64; ++i) CHECK(y[i].bits == x[i].bits);
    for (size_t i = 64; i < 128; ++i) CHECK(y[i].bits == canonical_nan_bf16_bits);
}

TEST_CASE("rope: the inverse turns back; only the distance of positions is left (K10 B76)") {
    constexpr int64_t head_dim = 512;
    const RopeTable table = compress_rope_table(released());
    const std::vector<Bf16> x = bf16(head_dim, {3});
    const auto at = [&](int64_t position, RopeDirection direction, const std::vector<Bf16>& in) {
        return turned(table, direction, std::array<int64_t, 1>{position}, 1, head_dim, in);
    };
    const auto close = [&](const std::vector<Bf16>& left, const std::vector<Bf16>& right) {
        double worst = 0;
        for (size_t i = 0; i < left.size(); ++i)
            worst = std::max(worst, std::abs(widened(left[i]) - widened(right[i])));
        return worst <= 0x1p-6;  // two bf16 roundings of numbers below 2
    };
    for (int64_t position : limits) {
        CAPTURE(position);
        CHECK(close(at(position, RopeDirection::inverse, at(position, RopeDirection::forward, x)), x));
    }
    // A key three positions before the query comes out turned by three steps back.
    const std::vector<Bf16> three_back = at(3, RopeDirection::inverse, x);
    CHECK(close(at(8, RopeDirection::inverse, at(5, RopeDirection::forward, x)), three_back));
    CHECK_FALSE(close(x, three_back));
    // Position 0 changes nothing, not even a bit.
    CHECK(differing(std::span<const Bf16>(at(0, RopeDirection::forward, x)), x) == 0);
    CHECK(differing(std::span<const Bf16>(at(0, RopeDirection::inverse, x)), x) == 0);
}

TEST_CASE("rope: a row's bits are its own (alone, in a batch, 1, 2 and 7 threads)") {
    constexpr int64_t rows = 50, heads = 4, head_dim = 128;
    const RopeTable table = main_rope_table(released());
    const std::vector<Bf16> x = bf16(rows * heads * head_dim, {4});
    std::vector<int64_t> positions(rows);
    for (int64_t i = 0; i < rows; ++i) positions[static_cast<size_t>(i)] = (i * 7919) % 65536;
    const std::vector<Bf16> all = turned(table, RopeDirection::forward, positions, heads, head_dim, x);
    const int threads = omp_get_max_threads();
    for (int count : {1, 2, 7}) {
        omp_set_num_threads(count);
        CAPTURE(count);
        CHECK(differing(
                  std::span<const Bf16>(turned(table, RopeDirection::forward, positions, heads, head_dim, x)),
                  all) == 0);
    }
    omp_set_num_threads(threads);
    constexpr int64_t width = heads * head_dim;
    for (int64_t t = 0; t < rows; ++t) {
        const std::vector<Bf16> one(x.begin() + t * width, x.begin() + (t + 1) * width);
        CHECK(differing(std::span<const Bf16>(turned(table, RopeDirection::forward,
                                                     std::span(positions).subspan(static_cast<size_t>(t), 1),
                                                     heads, head_dim, one)),
                        std::span(all).subspan(static_cast<size_t>(t * width), width)) == 0);
    }
}

TEST_CASE("rope: what cannot be a table or a row is refused, and nothing is written") {
    CHECK_THROWS_AS(RopeTable(63, 10000, std::nullopt), UserError);
    CHECK_THROWS_AS(RopeTable(0, 10000, std::nullopt), UserError);
    CHECK_THROWS_AS(RopeTable(64, 1, std::nullopt), UserError);
    const RopeTable table(64, 10000, std::nullopt);
    std::vector<RopePair> pairs(32), few(31);
    CHECK_THROWS_AS(table.row(-1, pairs), UserError);
    CHECK_THROWS_AS(table.row(1, few), UserError);
    std::vector<Bf16> x(2 * 128, bf16_from_float(1));
    const std::vector<Bf16> before = x;
    CHECK_THROWS_AS(rope(table, RopeDirection::forward, std::array<int64_t, 2>{3, -1}, 1, 128, x), UserError);
    CHECK_THROWS_AS(rope(table, RopeDirection::forward, std::array<int64_t, 1>{3}, 1, 128, x), UserError);
    CHECK_THROWS_AS(rope(table, RopeDirection::forward, std::array<int64_t, 2>{3, 4}, 4, 32, x), UserError);
    CHECK(differing(std::span<const Bf16>(x), before) == 0);
}
