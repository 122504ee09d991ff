// Components of the text path in double against published values (spec: text model, section 18; Engram A.6
// and A.7) and against what can be said of them without computing.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "reference/model/model.h"
#include "reference/numerics/fill.h"
#include "reference/truth/candidate_pool.h"
#include "reference/truth/compressor.h"
#include "reference/truth/engram.h"
#include "reference/truth/hyper_connections.h"
#include "reference/truth/indexer.h"
#include "reference/truth/ledger.h"
#include "reference/truth/moe.h"
#include "reference/truth/rms_norm.h"
#include "reference/truth/rope.h"
#include "reference/truth/sparse_attention.h"
#include "reference/truth/top_k.h"

using namespace touchstone;
using namespace touchstone::truth;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// About N(0, 1).
Matrix normal(Eigen::Index rows, Eigen::Index columns, uint64_t seed) {
    Matrix result(rows, columns);
    for (Eigen::Index i = 0; i < result.size(); ++i)
        result.data()[i] = static_cast<double>(
            filled<float>(Filler::normal, {.seed = seed, .stream = 0}, static_cast<uint64_t>(i)));
    return result;
}

Matrix row(std::initializer_list<double> values) {
    Matrix result(1, static_cast<Eigen::Index>(values.size()));
    std::copy(values.begin(), values.end(), result.data());
    return result;
}

double largest_difference(const Matrix& a, const Matrix& b) {
    REQUIRE(a.rows() == b.rows());
    REQUIRE(a.cols() == b.cols());
    return a.size() == 0 ? 0 : (a - b).cwiseAbs().maxCoeff();
}

ModelConfig preset(const char* name) {
    return *find_model(name).config();
}

}  // namespace

TEST_CASE("ledger: bf16 rounds once, ties to even, and a tie seen only by fp32 is none") {
    CHECK(nearest_bf16(1.0) == 1.0);
    CHECK(nearest_bf16(1 + 0x1p-8) == 1.0);
    CHECK(nearest_bf16(1 + 0x3p-8) == 1 + 0x1p-6);
    CHECK(nearest_bf16(1 + 0x1p-8 + 0x1p-40) == 1 + 0x1p-7);
    CHECK(nearest_bf16(-1 - 0x1p-8 - 0x1p-40) == -1 - 0x1p-7);
    CHECK(nearest_bf16(1 + 0x3p-8 - 0x1p-40) == 1 + 0x1p-7);
    CHECK(nearest_bf16(0x1p-133 * 1.5) == 0x1p-132);  // subnormal, tie to even
    CHECK(nearest_bf16(0x1p-134) == 0);
    CHECK(nearest_bf16(0x1p-134 + 0x1p-180) == 0x1p-133);
    CHECK(std::signbit(nearest_bf16(-0.0)));
    CHECK(nearest_bf16(255.5 * 0x1p120) == infinity);
    CHECK(nearest_bf16(255.4999999 * 0x1p120) == 255 * 0x1p120);
    CHECK(nearest_bf16(1e300) == infinity);
    CHECK(std::isnan(nearest_bf16(std::nan(""))));
}

TEST_CASE(
    "ledger: bf16 of every fp32 that lies at, before and after a midpoint is the library's conversion") {
    int64_t wrong = 0;
    for (uint32_t upper = 0; upper < 0xFF80; ++upper)
        for (const uint32_t lower : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
            const float x = std::bit_cast<float>(upper << 16 | lower);
            if (std::isnan(x)) continue;
            wrong +=
                nearest_bf16(static_cast<double>(x)) != static_cast<double>(to_float(bf16_from_float(x)));
        }
    CHECK(wrong == 0);
}

TEST_CASE("ledger: quantisers give the published values (18.1), and nothing without a ledger") {
    constexpr std::array<uint16_t, 16> bits{0x3de1, 0xbf05, 0x3fa6, 0x0000, 0xc02d, 0x3cfe, 0x3f40, 0xbf80,
                                            0x4049, 0xbbe5, 0x3e80, 0x3ff3, 0xbea9, 0x3f1a, 0xc07a, 0x400d};
    Matrix x = Matrix::Zero(1, 32);
    for (Eigen::Index i = 0; i < 16; ++i)
        x(0, i) = static_cast<double>(to_float(Bf16{bits[static_cast<size_t>(i)]}));
    const Ledger released = Ledger::released();
    const Matrix q4m = row(
        {0, -0.625, 1.25, 0, -2.5, 0, 0.625, -0.9375, 3.75, -0.0, 0.3125, 1.875, -0.3125, 0.625, -3.75, 2.5});
    CHECK(largest_difference(released.q4m(x).leftCols(16), q4m) == 0);
    const Matrix q4i = row({0, -0.5, 1.5, 0, -3, 0, 1, -1, 3, 0, 0, 2, -0.5, 0.5, -4, 2});
    CHECK(largest_difference(released.q4i(x).leftCols(16), q4i) == 0);
    constexpr std::array<uint8_t, 16> q8_codes{0x4e, 0xe0, 0x6a, 0x00, 0xf3, 0x40, 0x64, 0xe8,
                                               0x75, 0xae, 0x58, 0x6f, 0xdb, 0x62, 0xf8, 0x71};
    for (Eigen::Index i = 0; i < 16; ++i)
        CHECK(released.q8(x)(0, i) ==
              0x1p-6 * static_cast<double>(to_float(E4m3{q8_codes[static_cast<size_t>(i)]})));
    const Ledger none = Ledger::none();
    CHECK(largest_difference(none.q8(x), x) + largest_difference(none.q4i(x), x) +
              largest_difference(none.q4m(x), x) ==
          0);
    CHECK(none.bf16(0.3) == 0.3);
    CHECK(released.bf16(0.3) == 0.30078125);
}

TEST_CASE("ledger: fp32 constants are rounded, also side by side (gcc 12 forgets it in vectors)") {
    const std::array<double, 4> rounded{fp32_constant(0.1), fp32_constant(0.2), fp32_constant(0.3),
                                        fp32_constant(0.7)};
    CHECK(rounded[0] == static_cast<double>(0.1f));
    CHECK(rounded[1] == static_cast<double>(0.2f));
    CHECK(rounded[2] == static_cast<double>(0.3f));
    CHECK(rounded[3] == static_cast<double>(0.7f));
    const RopeEntry entry = rope_entry(3, 0.5623413f);
    CHECK(entry.cos == static_cast<double>(static_cast<float>(entry.cos)));
    CHECK(entry.sin == static_cast<double>(static_cast<float>(entry.sin)));
    CHECK(std::bit_cast<uint32_t>(static_cast<float>(fp32_constant(1 / std::sqrt(512.0)))) == 0x3d3504f3);
    CHECK(std::bit_cast<uint32_t>(static_cast<float>(fp32_constant(1 / std::sqrt(5120.0)))) == 0x3c64f92e);
    CHECK(index_weight_scale(32, 128) == 0x1p-6);
    CHECK(index_weight_scale(4, 64) == 0x1p-4);
}

TEST_CASE("rms_norm: rows have their weights' magnitude, and zeros stay zeros") {
    Matrix x(2, 4);
    x << 3, -4, 0, 0, 0, 0, 0, 0;
    Vector weight(4);
    weight << 1, 2, 3, 4;
    const Matrix y = rms_norm(x, weight, 1e-20);
    Matrix expected(2, 4);
    expected << 1.2, -3.2, 0, 0, 0, 0, 0, 0;  // the root mean square of the first row is 2.5
    CHECK(largest_difference(y, expected) <= 1e-15);
}

TEST_CASE("rope: frequencies are the published fp32 ones (3.2), one ulp where the power is not certain") {
    constexpr std::array<uint32_t, 32> main_bits{
        0x3f800000, 0x3f3ff911, 0x3f0ff59a, 0x3ed7e89b, 0x3ea1e89b, 0x3e72d423, 0x3e361887, 0x3e088d77,
        0x3dcccccd, 0x3d99940d, 0x3d6655c2, 0x3d2cba15, 0x3d0186e3, 0x3cc2434f, 0x3c91ad39, 0x3c5a7bf2,
        0x3c23d70a, 0x3bf5b9b0, 0x3bb8449c, 0x3b8a2e77, 0x3b4f3e38, 0x3b1b690d, 0x3ae91528, 0x3aaec98e,
        0x3a83126f, 0x3a44948c, 0x3a136a16, 0x39dd1725, 0x39a5cb60, 0x3978a815, 0x393a7753, 0x390bd472};
    constexpr std::array<uint32_t, 32> compress_bits{
        0x3f800000, 0x3f300a3a, 0x3ef21c1f, 0x3ea67d01, 0x3e64f92e, 0x3e1d7475, 0x3dd88cb4, 0x3d94e963,
        0x3d4ccccd, 0x3d0cd4fb, 0x3cc1b019, 0x3c8530ce, 0x3c372dbf, 0x3bfbed88, 0x3bad3d5e, 0x3b6e4237,
        0x3b147ae1, 0x3ab714e0, 0x3a5ebdb6, 0x3a0530ce, 0x399bb3af, 0x39305978, 0x38be904d, 0x383e9b5f,
        0x37a3d70c, 0x36b443d0, 0x3677eba6, 0x362a7be8, 0x35ea77ff, 0x35a13bdc, 0x355dbf30, 0x35187c4d};
    const ModelConfig config = preset("deepseek-v4.1-flash");
    const auto main = rope_frequencies(config, RopeTable::main),
               compress = rope_frequencies(config, RopeTable::compress);
    REQUIRE(main.size() == 32);
    REQUIRE(compress.size() == 32);
    for (size_t i = 0; i < 32; ++i) {
        CAPTURE(i);
        CHECK(std::bit_cast<uint32_t>(main[i]) == main_bits[i]);
        CHECK(std::bit_cast<uint32_t>(compress[i]) == compress_bits[i]);
    }
}

TEST_CASE("rope: the angle is rounded to fp32 before its cosine (18.3)") {
    const float frequency = rope_frequencies(preset("deepseek-v4.1-flash"), RopeTable::compress)[1];
    CHECK(rope_entry(1000000, frequency).cos == doctest::Approx(0.64463).epsilon(1e-5));
}

TEST_CASE("rope: turns the last channels of every head, and back") {
    const std::vector<float> frequencies{1.0f, 0.25f};
    const Matrix x = normal(3, 2 * 6, 1);  // two heads of 6 channels, of which the last 4 turn
    const Matrix y = rope(x, 6, {0, 1, 7}, frequencies);
    CHECK(largest_difference(y.row(0), x.row(0)) == 0);
    CHECK(largest_difference(y.leftCols(2), x.leftCols(2)) == 0);
    CHECK(largest_difference(y.middleCols(6, 2), x.middleCols(6, 2)) == 0);
    CHECK(y(2, 8) == doctest::Approx(x(2, 8) * std::cos(7.0) - x(2, 9) * std::sin(7.0)).epsilon(1e-6));
    CHECK(y(2, 9) == doctest::Approx(x(2, 8) * std::sin(7.0) + x(2, 9) * std::cos(7.0)).epsilon(1e-6));
    CHECK(y(1, 10) == doctest::Approx(x(1, 10) * std::cos(0.25) - x(1, 11) * std::sin(0.25)).epsilon(1e-6));
    const Matrix back = rope(y, 6, {0, 1, 7}, frequencies, RopeDirection::inverse);
    CHECK(largest_difference(back, x) <= 1e-6);
}

TEST_CASE("hyper_connections: Sinkhorn gives the published matrix (18.2)") {
    Matrix a(4, 4), expected(4, 4);
    a << 0.5, -1, 0.25, 0, 1, 2, -0.5, 0.75, -2, 0, 1.5, 0.25, 0.125, -0.25, 0.5, 3;
    expected << 0.5585634, 0.1004560, 0.2319104, 0.1090693, 0.2808478, 0.6153261, 0.0334086, 0.0704165,
        0.0361490, 0.2152818, 0.6381562, 0.1104119, 0.1244388, 0.0689351, 0.0965238, 0.7101013;
    CHECK(largest_difference(sinkhorn(a, 20, 1e-6), expected) <= 1e-7);
    // Few rounds and a large eps show the order, which 20 rounds hide. One: rows without eps in the divisor,
    // eps added, then columns. Every other: rows, then columns, eps in both divisors.
    constexpr double eps = 0.125;
    Matrix two(2, 2), rounds(2, 2);
    two << std::log(3.0), 0, 0, 0;
    rounds << 0.75 + eps, 0.25 + eps, 0.5 + eps, 0.5 + eps;
    const auto divide_columns = [&rounds] {
        for (Eigen::Index k = 0; k < 2; ++k) rounds.col(k) /= rounds(0, k) + rounds(1, k) + eps;
    };
    divide_columns();
    CHECK(largest_difference(sinkhorn(two, 1, eps), rounds) <= 1e-15);
    for (Eigen::Index j = 0; j < 2; ++j) rounds.row(j) /= rounds(j, 0) + rounds(j, 1) + eps;
    divide_columns();
    CHECK(largest_difference(sinkhorn(two, 2, eps), rounds) <= 1e-15);
}

TEST_CASE("hyper_connections: copy j feeds copy k by comb(j, k)") {
    Matrix stream(1, 4), y(1, 2), post(1, 2), comb(1, 4), expected(1, 4);
    stream << 1, 2, 10, 20;
    y << 100, 200;
    post << 0.5, 2;
    comb << 3, 5, 7, 11;  // comb(0, 1) = 5
    expected << 50 + 3 * 1 + 7 * 10, 100 + 3 * 2 + 7 * 20, 200 + 5 * 1 + 11 * 10, 400 + 5 * 2 + 11 * 20;
    CHECK(largest_difference(expand(y, stream, post, comb), expected) == 0);
    CHECK(largest_difference(collapse(stream, row({2, -1})), row({-8, -16})) == 0);
    CHECK(largest_difference(mean_of_copies(stream, 2), row({5.5, 11})) == 0);
}

TEST_CASE("hyper_connections: coefficients come from the normalised projection, in three groups") {
    const int64_t n = 2, width = 3;
    HyperConnectionWeights weights{normal(2 * n + n * n, n * width, 2), Vector(8), Vector(3)};
    weights.base << 0.1, -0.2, 0.3, 0.4, -0.5, 0.6, 0.7, -0.8;
    weights.scale << 0.5, 2, 3;
    const Matrix stream = 8 * normal(2, n * width, 3);
    const HyperConnectionMix mix = hyper_connection_mix(stream, weights, n, 20, 1e-20, 1e-6);
    const double rms = std::sqrt(stream.row(1).squaredNorm() / static_cast<double>(n * width));
    const auto projected = [&](Eigen::Index i) { return weights.fn.row(i).dot(stream.row(1)) / rms; };
    const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
    CHECK(mix.mixes(1, 5) == doctest::Approx(projected(5)).epsilon(1e-12));
    CHECK(mix.pre(1, 1) == doctest::Approx(sigmoid(projected(1) * 0.5 - 0.2) + 1e-6).epsilon(1e-12));
    CHECK(mix.post(1, 0) == doctest::Approx(2 * sigmoid(projected(2) * 2 + 0.3)).epsilon(1e-12));
    Matrix a(2, 2);
    a << projected(4) * 3 - 0.5, projected(5) * 3 + 0.6, projected(6) * 3 + 0.7, projected(7) * 3 - 0.8;
    CHECK(largest_difference(mix.comb.row(1).reshaped<Eigen::RowMajor>(2, 2), sinkhorn(a, 20, 1e-6)) <=
          1e-12);
    // The scale of the stream does not matter, that of one copy does.
    CHECK(largest_difference(hyper_connection_mix(4 * stream, weights, n, 20, 1e-20, 1e-6).comb, mix.comb) <=
          1e-12);
}

TEST_CASE("compressor: a group is weighed per channel by the softmax of its scores") {
    Matrix kv(2, 2), score(2, 2);
    kv << 1, 10, 5, 20;
    score << 0, std::log(3.0) + 900, 0, 900;  // far beyond exp's range without the maximum
    CHECK(largest_difference(pooled_groups(kv, score, 2), row({3, 12.5})) <= 1e-9);
}

TEST_CASE("compressor: chunks carry the open group (ratio 2), ratio 1 has none") {
    for (const Ledger& ledger : {Ledger::released(), Ledger::none()})
        for (const int64_t ratio : {1, 2}) {
            const CompressorWeights weights{normal(8, 16, 4), ratio == 2 ? normal(8, 16, 5) : Matrix(),
                                            Vector::Ones(8)};
            const Matrix x = normal(7, 16, 6);
            CompressorPending whole_pending, pending;
            const Matrix whole = compressor(x, weights, ratio, 1e-20, whole_pending, ledger).latent;
            CHECK(whole.rows() == 7 / ratio);
            Eigen::Index groups = 0, first = 0;
            for (const Eigen::Index tokens : {1, 1, 3, 2}) {
                const Matrix part =
                    compressor(x.middleRows(first, tokens), weights, ratio, 1e-20, pending, ledger).latent;
                CHECK(largest_difference(part, whole.middleRows(groups, part.rows())) <= 1e-12);
                groups += part.rows();
                first += tokens;
            }
            CHECK(groups == whole.rows());
            CHECK(pending.kv.rows() == 7 % ratio);
        }
}

TEST_CASE("top_k: larger first, ties to the lower index, NaN last, -0 equals +0") {
    Vector values(6);
    values << 1, std::nan(""), 3, -0.0, 0.0, 3;
    CHECK(top_k(values, 3) == std::vector<int64_t>{2, 5, 0});
    CHECK(top_k(values, 9) == std::vector<int64_t>{2, 5, 0, 3, 4, 1});
    CHECK(top_k(Vector(), 4).empty());
}

TEST_CASE("indexer: negative dots count as zero, weights may be negative, and four roundings are bf16") {
    Matrix query(1, 4), keys(2, 2), weights(1, 2);
    query << 1, 0, 0, 1;  // head 0, head 1
    keys << 3, 5, -7, 2;
    weights << 2, -0.5;
    const IndexScores ideal = index_scores(query, weights, keys, Ledger::none());
    CHECK(largest_difference(ideal.dot, row({3, -7, 5, 2})) == 0);
    CHECK(largest_difference(ideal.scores, row({6 - 2.5, 0 - 1})) == 0);

    // One head: dot 1 + 2^-8 + 2^-9 rounds to 1 + 2^-7; times 1 + 2^-7 is 1 + 2^-6 + 2^-14, which rounds
    // down.
    const Matrix one = row({1}), key = row({1 + 0x1p-8 + 0x1p-9}), weight = row({1 + 0x1p-7});
    CHECK(index_scores(one, weight, key, Ledger::released()).scores(0, 0) == 1 + 0x1p-6);
    // Two heads whose products are rounded before they are added: 1 + 2^-9 alone is 1.
    const Matrix both = row({1, 1}), units = row({1, 1});
    const Matrix small = row({1 + 0x1p-9});
    CHECK(index_scores(both, units, small, Ledger::released()).scores(0, 0) == 2);
    CHECK(index_scores(both, units, small, Ledger::none()).scores(0, 0) == 2 + 0x1p-8);
}

TEST_CASE("indexer: selection is ascending, over what is visible and in the pool") {
    Vector scores(6);
    scores << 1, 5, 3, 5, 2, 9;
    CHECK(select_positions(scores, 5, 3, {}) == std::vector<int64_t>{1, 2, 3});
    CHECK(select_positions(scores, 0, 3, {}).empty());
    CHECK(select_positions(scores, 2, 3, {}) == std::vector<int64_t>{0, 1});
    const std::vector<bool> mask{true, false, false, false, true, true};
    CHECK(select_positions(scores, 5, 3, mask) == std::vector<int64_t>{0, 4});
    CHECK(select_positions(scores, 5, 3, mask, MaskedPositions::released_attended) ==
          std::vector<int64_t>{0, 1, 4});
}

TEST_CASE("candidate_pool: best blocks by their maximum, the newest always, none without a visible score") {
    Vector scores(10);
    scores << 1, 1, 9, 0, 3, 3, -5, -6, 0, 99;  // blocks of 2; with 9 visible the 99 is not
    const CandidatePool pool = candidate_pool(scores, 9, 2, 2);
    CHECK(pool.block_scores[0] == 1);
    CHECK(pool.block_scores[1] == 9);
    CHECK(pool.block_scores[3] == -5);
    CHECK(pool.block_scores[4] == infinity);
    CHECK(pool.mask == std::vector<bool>{false, false, true, true, false, false, false, false, true, true});
    // Blocks beyond the newest are not kept for want of others.
    CHECK(candidate_pool(scores, 3, 2, 5).mask ==
          std::vector<bool>{true, true, true, true, false, false, false, false, false, false});
    CHECK(candidate_pool(scores, 0, 2, 5).mask == std::vector<bool>(10, false));
    // Ties: the lower block.
    CHECK(candidate_pool(Vector::Zero(6), 6, 2, 2).mask ==
          std::vector<bool>{true, true, false, false, true, true});
}

TEST_CASE("sparse_attention: one softmax with the sink in its denominator, whatever the blocks") {
    const Eigen::Index slots = 200, width = 16;
    const Matrix q = 3 * normal(2, width, 7);
    AttentionList list{normal(slots, width, 8), std::vector<bool>(static_cast<size_t>(slots), true)};
    for (size_t slot = 0; slot < 200; slot += 3) list.taken[slot] = false;
    for (size_t slot = 0; slot < 70; ++slot) list.taken[slot] = false;  // a first block without entries
    Vector sink(2);
    sink << 0.5, -3;
    const Matrix o = sparse_attention(q, list, sink, Ledger::none());
    for (Eigen::Index head = 0; head < 2; ++head) {
        double sum = std::exp(sink[head]);
        Eigen::RowVectorXd weighted = Eigen::RowVectorXd::Zero(width);
        for (Eigen::Index slot = 0; slot < slots; ++slot) {
            if (!list.taken[static_cast<size_t>(slot)]) continue;
            const double p = std::exp(q.row(head).dot(list.rows.row(slot)) / 4);
            sum += p;
            weighted += p * list.rows.row(slot);
        }
        CHECK(largest_difference(o.row(head), weighted / sum) <= 1e-12);
    }
}

TEST_CASE("sparse_attention: nothing taken gives zero, a huge sink gives zero, a low one changes nothing") {
    const Matrix q = row({1, 1});
    AttentionList list{Matrix::Constant(3, 2, 5), std::vector<bool>(3, false)};
    CHECK(sparse_attention(q, list, Vector::Zero(1), Ledger::released()).isZero(0));
    list.taken[1] = true;
    CHECK(sparse_attention(q, list, Vector::Constant(1, 1000), Ledger::released()).isZero(0));
    CHECK(sparse_attention(q, list, Vector::Constant(1, -1000), Ledger::released())(0, 0) == 5);
}

TEST_CASE("sparse_attention: P is rounded relative to the running maximum of blocks of 64, not its sum") {
    // One channel, so the scale is 1. P of slot 0 is rounded relative to slot 1, the maximum of its block,
    // before slot 64 raises the maximum.
    const double score = 0.3;  // exp(-0.3) is not a bf16
    AttentionList list{Matrix::Zero(65, 1), std::vector<bool>(65, false)};
    list.rows(0, 0) = 1;
    list.rows(1, 0) = 1 + score;
    list.rows(64, 0) = 1 + 2 * score;
    list.taken[0] = list.taken[1] = list.taken[64] = true;
    const Vector sink = Vector::Constant(1, -1000);
    const double rounded = nearest_bf16(std::exp(-score)), factor = std::exp(-score);
    CHECK(rounded != factor);
    const double sum = (factor + 1) * factor + 1;
    const double expected = ((rounded * 1 + 1 * (1 + score)) * factor + (1 + 2 * score)) / sum;
    CHECK(sparse_attention(row({1}), list, sink, Ledger::released())(0, 0) ==
          doctest::Approx(expected).epsilon(1e-12));
}

TEST_CASE("moe: gate, selection by biased scores, weights by unbiased ones") {
    const Matrix scores = gate_scores(row({1}), (Matrix(3, 1) << 0, 25, -800).finished());
    CHECK(scores(0, 0) == doctest::Approx(std::sqrt(std::log(2.0))).epsilon(1e-14));
    CHECK(scores(0, 1) == 5);
    CHECK(scores(0, 2) == 0);
    Vector bias(4);
    bias << 0, 10, 0, 0;
    const Matrix given = row({0.5, 0.25, 0.5, 1});
    const auto experts = select_experts(given, bias, 3);
    CHECK(experts.front() == std::vector<int64_t>{1, 3, 0});  // the tie of 0 and 2 goes to 0
    const Routing routing = route(given, experts, 1.5);
    CHECK(largest_difference(routing.weights, row({0.25, 1, 0.5}) * (1.5 / 1.75)) <= 1e-15);
    // One expert is not normalised.
    CHECK(route(given, {{1}}, 1.5).weights(0, 0) == 0.375);
}

TEST_CASE("moe: the gate is clamped above only, the up branch on both sides, before the weight") {
    const auto one = [](double g, double u, double weight) {
        const ExpertWeights weights{Matrix::Constant(1, 1, g), Matrix::Ones(1, 1), Matrix::Constant(1, 1, u)};
        return expert(row({1}), weights, Vector::Constant(1, weight), 10, Ledger::none())(0, 0);
    };
    const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
    CHECK(one(12, 3, 1) == doctest::Approx(silu(10) * 3));
    CHECK(one(-12, 3, 1) == doctest::Approx(silu(-12) * 3));
    CHECK(one(2, 30, 0.5) == doctest::Approx(silu(2) * 5));
    CHECK(one(2, -30, 0.5) == doctest::Approx(silu(2) * -5));
}

TEST_CASE("engram: rows of the worked example, with a dead position (A.6)") {
    const EngramHash hash{{3, 5, 7}, {11, 13, 17, 19}, {0, 11, 24, 41}};
    const std::vector<int64_t> history{4, 9, 6, engram_dead, 8};
    const std::vector<std::vector<int64_t>> expected{
        {6, 17, 32, 49}, {4, 13, 25, 42}, {8, 22, 25, 57}, {1, 23, 26, 43}, {7, 16, 35, 50}};
    CHECK(engram_row_ids(history, 5, 2, 2, hash) == expected);
    CHECK(engram_row_ids(history, 2, 2, 2, hash) ==
          std::vector<std::vector<int64_t>>(expected.begin() + 3, expected.end()));
}

TEST_CASE("engram: rows of the released model are the published ones (18.4)") {
    struct Layer {
        std::vector<int64_t> multipliers, last_digits;
        int64_t thousands;
        std::vector<int64_t> first, last;  ///< columns 0, 7, 8, 15, 16, 23 at positions 0 and 4
    };
    const std::vector<Layer> layers{{{76632096046245, 4839876093313, 35959672319349, 73987337458391},
                                     {57,  79,  81,  97,  121, 129, 133, 183, 189, 207, 211, 253,
                                      277, 289, 307, 321, 339, 381, 393, 399, 403, 409, 447, 463},
                                     16000000,
                                     {5412672, 127351390, 143494632, 247008214, 256353435, 372009279},
                                     {7841506, 127974346, 134978181, 243429729, 271536431, 379584336}},
                                    {{67716810739261, 51510806800915, 30921347202721, 82619226485591},
                                     {477, 487, 499, 507, 511, 573, 609, 627, 667, 669, 693, 697,
                                      711, 729, 759, 769, 781, 799, 813, 819, 841, 877, 879, 889},
                                     16000000,
                                     {6939818, 119840903, 131576092, 243164617, 268363546, 382274687},
                                     {3315102, 127296527, 130509870, 240522805, 260452148, 375629892}}};
    for (const Layer& layer : layers) {
        EngramHash hash{layer.multipliers, {}, {}};
        int64_t offset = 0;
        for (const int64_t digits : layer.last_digits) {
            hash.primes.push_back(layer.thousands + digits);
            hash.offsets.push_back(offset);
            offset += hash.primes.back();
        }
        const auto rows = engram_row_ids({5, 17, 99, 1234, 99091}, 5, 8, 2, hash);
        constexpr std::array<size_t, 6> columns{0, 7, 8, 15, 16, 23};
        for (size_t i = 0; i < columns.size(); ++i) {
            CHECK(rows[0][columns[i]] == layer.first[i]);
            CHECK(rows[4][columns[i]] == layer.last[i]);
        }
    }
}

TEST_CASE("engram: the published gate and update (A.7), and a zero dot's sign") {
    const Matrix h = row({1, -2, 0.5, 3}), key = row({0.5, 1, -1, 2}), q = row({1, 0.5, 2, 1}),
                 k = row({2, 1, 1, 0.5});
    const Matrix gate = engram_gate(h, key, q, k, 1e-20);
    CHECK(gate(0, 0) == doctest::Approx(0.65724431415).epsilon(1e-10));
    CHECK(largest_difference(engram_update(h, gate, row({10, -4, 1, 0})),
                             row({7.572443, -4.628977, 1.157244, 3})) <= 1e-6);
    const Matrix positive = row({1, 0, 0, 0}), across = row({0, 1, 0, 0});
    CHECK(engram_gate(positive, across, q, k, 1e-20)(0, 0) == doctest::Approx(0.50025).epsilon(1e-6));
    CHECK(engram_gate(positive, row({-0.0, -1, -0.0, -0.0}), q, k, 1e-20)(0, 0) ==
          doctest::Approx(0.49975).epsilon(1e-6));
}
