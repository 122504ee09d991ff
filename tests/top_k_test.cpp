#include "reference/top_k.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/random.h"
#include "reference/numerics/small_float.h"

using namespace touchstone;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// A second opinion, by stable sort and plain comparisons.
std::vector<int32_t> sorted_top_k(const std::vector<float>& scores, int64_t k, int64_t visible,
                                  const std::vector<uint8_t>& mask, TopKOutput output) {
    std::vector<int32_t> columns;
    for (int64_t column = 0; column < visible; ++column)
        if (mask.empty() || mask[size_t(column)] != 0) columns.push_back(int32_t(column));
    const auto before = [&](int32_t a, int32_t b) {
        const float x = scores[size_t(a)], y = scores[size_t(b)];
        if (std::isnan(x) || std::isnan(y)) return !std::isnan(x) && std::isnan(y);
        return x > y;  // -0 > +0 is false both ways
    };
    std::stable_sort(columns.begin(), columns.end(), before);
    columns.resize(std::min(columns.size(), size_t(k)));
    if (output == TopKOutput::ascending) std::sort(columns.begin(), columns.end());
    columns.resize(size_t(k), -1);
    return columns;
}

enum class Scores { distinct, ties, specials, equal, zeros };

float score(Scores kind, PhiloxBlock random) {
    const uint32_t r = random.words[0];
    switch (kind) {
        case Scores::distinct: return float(int32_t(r)) * 0x1p-20f;
        case Scores::ties: return float(int32_t(r % 7) - 3);
        case Scores::specials: break;
        case Scores::equal: return 1.0f;
        case Scores::zeros: return r % 2 == 0 ? 0.0f : -0.0f;
    }
    constexpr float values[]{0.0f, -0.0f, infinity, -infinity, 1.0f, -1.0f, 0x1p-149f, -0x1p-149f};
    if (r % 9 == 8) return float_from_bits(0x7F800001 | (random.words[1] & 0x80FFFFFF));  // NaN of any kind
    return values[r % 9];
}

std::vector<float> scores_of(Scores kind, uint64_t seed, int64_t count) {
    std::vector<float> scores(size_t(count), 0.0f);
    for (size_t i = 0; i < scores.size(); ++i) scores[i] = score(kind, RandomStream{seed}.block(i));
    return scores;
}

std::vector<int32_t> row_top_k(const std::vector<float>& scores, int64_t k, TopKOutput output,
                               std::vector<int32_t> visible = {}, const std::vector<uint8_t>& mask = {}) {
    std::vector<int32_t> indices(size_t(k), -7);
    top_k(scores, 1, std::ssize(scores), k, {visible, mask}, output, indices);
    return indices;
}

}  // namespace

TEST_CASE("top-k: equals a stable sort (ties, NaN, zeros, infinities; k of 0, 1, n, n + 1; both orders)") {
    for (const Scores kind : {Scores::distinct, Scores::ties, Scores::specials, Scores::equal, Scores::zeros})
        for (const int64_t n : {0, 1, 2, 3, 7, 8, 64, 127, 384, 513})
            for (const int64_t k : {int64_t{0}, int64_t{1}, int64_t{2}, int64_t{6}, n / 2, n - 1, n, n + 1}) {
                if (k < 0) continue;
                const std::vector<float> scores = scores_of(kind, uint64_t(n), n);
                for (const TopKOutput output : {TopKOutput::ascending, TopKOutput::selection}) {
                    CAPTURE(int(kind));
                    CAPTURE(n);
                    CAPTURE(k);
                    CAPTURE(int(output));
                    CHECK(row_top_k(scores, k, output) == sorted_top_k(scores, k, n, {}, output));
                }
            }
}

TEST_CASE("top-k: a pool of 512 among 16,384 positions (ReLU zeros, as the indexer has them)") {
    std::vector<float> scores = scores_of(Scores::distinct, 21, 16384);
    for (float& s : scores) s = to_float(bf16_from_float(std::max(s, 0.0f)));
    for (const int64_t k : {int64_t{512}, int64_t{9000}})  // 9,000 reaches into the zeros
        for (const TopKOutput output : {TopKOutput::ascending, TopKOutput::selection}) {
            CAPTURE(k);
            CHECK(row_top_k(scores, k, output) == sorted_top_k(scores, k, 16384, {}, output));
        }
}

TEST_CASE("top-k: masked and invisible columns are never selected, whatever their scores") {
    const std::vector<float> scores{1, 9, infinity, -infinity, 5, float_from_bits(0x7FC00000), 5, 7};
    const std::vector<uint8_t> mask{1, 0, 0, 1, 1, 1, 255, 1};
    CHECK(row_top_k(scores, 3, TopKOutput::ascending, {}, mask) == std::vector<int32_t>{4, 6, 7});
    CHECK(row_top_k(scores, 8, TopKOutput::selection, {}, mask) ==
          std::vector<int32_t>{7, 4, 6, 0, 3, 5, -1, -1});
    CHECK(row_top_k(scores, 3, TopKOutput::ascending, {4}) == std::vector<int32_t>{0, 1, 2});
    CHECK(row_top_k(scores, 3, TopKOutput::ascending, {4}, mask) == std::vector<int32_t>{0, 3, -1});
    CHECK(row_top_k(scores, 2, TopKOutput::selection, {0}) == std::vector<int32_t>{-1, -1});
    CHECK(row_top_k(scores, 2, TopKOutput::selection, {}, std::vector<uint8_t>(8)) ==
          std::vector<int32_t>{-1, -1});
}

TEST_CASE("top-k: masks and visible counts equal a stable sort of what is left (random)") {
    for (uint64_t seed = 0; seed < 40; ++seed) {
        CAPTURE(seed);
        const std::vector<float> scores = scores_of(Scores::specials, seed, 300);
        std::vector<uint8_t> mask(300);
        for (size_t i = 0; i < mask.size(); ++i) mask[i] = RandomStream{seed, 1}.word(i) % 4 != 0;
        const int32_t visible = int32_t(RandomStream{seed, 2}.word(0) % 301);
        const int64_t k = RandomStream{seed, 2}.word(1) % 310;
        CHECK(row_top_k(scores, k, TopKOutput::ascending, {visible}, mask) ==
              sorted_top_k(scores, k, visible, mask, TopKOutput::ascending));
    }
}

TEST_CASE("top-k: a row's result is the same alone and in a batch, on any number of threads") {
    constexpr int64_t rows = 37, columns = 700, k = 64;
    const std::vector<float> scores = scores_of(Scores::ties, 5, rows * columns);
    std::vector<int32_t> visible(size_t(rows), 0);
    for (size_t row = 0; row < visible.size(); ++row) visible[row] = int32_t(row * 20 % (columns + 1));
    std::vector<int32_t> alone(size_t(rows * k));
    for (int64_t row = 0; row < rows; ++row)
        top_k(std::span(scores).subspan(size_t(row * columns), columns), 1, columns, k,
              {std::span(visible).subspan(size_t(row), 1), {}}, TopKOutput::selection,
              std::span(alone).subspan(size_t(row * k), k));
    for (const int threads : {1, 2, 7}) {
        CAPTURE(threads);
        omp_set_num_threads(threads);
        std::vector<int32_t> batch(size_t(rows * k));
        top_k(scores, rows, columns, k, {visible, {}}, TopKOutput::selection, batch);
        CHECK(batch == alone);
    }
}

TEST_CASE("top-k: sizes that do not match are refused with both numbers, and nothing is written") {
    const std::vector<float> scores(12);
    std::vector<int32_t> indices(6, -7);
    const std::vector<int32_t> visible{4, 5, 4}, two{4, 4};
    const std::vector<uint8_t> mask(11);
    const auto refused = [&](int64_t rows, int64_t columns, int64_t k, const TopKCandidates& candidates,
                             const std::string& words) {
        CAPTURE(words);
        try {
            top_k(scores, rows, columns, k, candidates, TopKOutput::ascending, indices);
            FAIL_CHECK("accepted");
        } catch (const UserError& error) {
            CHECK(std::string(error.what()).find(words) != std::string::npos);
        }
    };
    refused(3, 5, 2, {}, "scores has 12 elements");
    refused(3, 4, 3, {}, "indices has 6 elements");
    refused(3, 4, -1, {}, "k = -1");
    refused(3, 4, 2, {two, {}}, "visible has 2 elements");
    refused(3, 4, 2, {visible, {}}, "visible[1] is 5");
    refused(3, 4, 2, {{}, mask}, "mask has 11 elements");
    CHECK(indices == std::vector<int32_t>(6, -7));
}
