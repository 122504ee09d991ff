#include "reference/candidate_pool.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/fill.h"
#include "reference/top_k.h"
#include "reference/truth/candidate_pool.h"

using namespace touchstone;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();
constexpr CandidatePoolShape released{8, 2048};

std::vector<float> random_scores(int64_t count, uint64_t seed) {
    std::vector<float> scores(size_t(count), 0.0f);
    for (size_t i = 0; i < scores.size(); ++i)  // bf16, so that blocks tie
        scores[i] = to_float(bf16_from_float(filled<float>(Filler::normal, {seed}, i)));
    return scores;
}

std::vector<int32_t> counted(int32_t count) {
    std::vector<int32_t> blocks(static_cast<size_t>(count));
    std::iota(blocks.begin(), blocks.end(), 0);
    return blocks;
}

}  // namespace

TEST_CASE("candidate pool: nothing is lost up to 16,384 rows, and the 16,385th costs a block") {
    std::vector<float> scores = random_scores(16384, 3);
    scores[size_t(8 * 77)] = -100;
    for (size_t i = 8 * 77; i < 8 * 78; ++i) scores[i] = -100;  // the worst block
    CHECK(candidate_pool(scores, released).blocks == counted(2048));
    scores.push_back(-1000);  // alone in block 2,048, the newest
    std::vector<int32_t> expected = counted(2049);
    expected.erase(expected.begin() + 77);
    const CandidatePool pool = candidate_pool(scores, released);
    CHECK(pool.blocks == expected);
    CHECK(pool.block_scores.size() == 2049);
    CHECK(pool.block_scores.back() == infinity);
}

TEST_CASE("candidate pool: the newest block is kept whatever its score, also with one row (B91)") {
    std::vector<float> scores(4 * 8, 1.0f);
    scores.push_back(-3.0f);
    for (const int64_t kept : {1, 2, 3}) {
        const CandidatePool pool = candidate_pool(scores, {8, kept});
        CAPTURE(kept);
        CHECK(std::ssize(pool.blocks) == kept);
        CHECK(pool.blocks.back() == 4);
    }
}

TEST_CASE("candidate pool: rows that are not there count as -infinity (all scores negative)") {
    // Padded with 0, the newest block would look best of all; so would any short block of a consumer.
    const std::vector<float> scores{-1, -2, -3, -4, -5, -6, -7};
    const CandidatePool pool = candidate_pool(scores, {4, 2});
    CHECK(pool.block_scores == std::vector<float>{-1, infinity});
    std::vector<float> longer = scores;
    longer.insert(longer.end(), {-0.5f, -9, -9, -9, -9, -8});
    CHECK(candidate_pool(longer, {4, 2}).block_scores == std::vector<float>{-1, -0.5f, -9, infinity});
    CHECK(candidate_pool(longer, {4, 2}).blocks == std::vector<int32_t>{1, 3});
}

TEST_CASE("candidate pool: ties go to the lower block, kept blocks come ascending") {
    const std::vector<float> scores{2, 0, 5, 5, 5, 1, 5, 2, 5, 0, 1, 1};
    CHECK(candidate_pool(scores, {2, 1}).blocks == std::vector<int32_t>{5});
    CHECK(candidate_pool(scores, {2, 2}).blocks == std::vector<int32_t>{1, 5});
    CHECK(candidate_pool(scores, {2, 3}).blocks == std::vector<int32_t>{1, 2, 5});
    CHECK(candidate_pool(scores, {2, 4}).blocks == std::vector<int32_t>{1, 2, 3, 5});
    CHECK(candidate_pool(scores, {2, 99}).blocks == counted(6));
    CHECK(candidate_pool(std::vector<float>(40, 0.0f), {4, 3}).blocks == std::vector<int32_t>{0, 1, 9});
}

TEST_CASE("candidate pool: blocks of -infinity or NaN alone are never kept, the newest one always") {
    const float nan = float_from_bits(canonical_nan_bits);
    const std::vector<float> scores{-infinity, -infinity, nan, nan, nan, 1, -infinity, -infinity};
    const CandidatePool pool = candidate_pool(scores, {2, 9});
    CHECK(pool.blocks == std::vector<int32_t>{2, 3});
    CHECK(pool.block_scores[2] == 1);  // a NaN is the smallest row, not the block's score
    CHECK(candidate_pool({}, released).blocks.empty());
    CHECK(candidate_pool({}, released).block_scores.empty());
    CHECK(candidate_pool(scores, {2, 0}).blocks.empty());
}

TEST_CASE("candidate pool: equals truth, mask included (random)") {
    for (uint64_t seed = 0; seed < 60; ++seed) {
        CAPTURE(seed);
        const RandomStream random{seed, 5};
        const int64_t rows = 1 + random.word(0) % 300;
        const CandidatePoolShape shape{1 + random.word(1) % 9, random.word(2) % 40 + 1};
        const std::vector<float> scores = random_scores(rows, seed);
        truth::Vector wide(rows);
        for (int64_t i = 0; i < rows; ++i) wide[i] = double{scores[size_t(i)]};
        const truth::CandidatePool expected =
            truth::candidate_pool(wide, rows, shape.block_size, shape.topk_blocks);
        const CandidatePool pool = candidate_pool(scores, shape);
        REQUIRE(std::ssize(pool.block_scores) == expected.block_scores.size());
        for (size_t block = 0; block < pool.block_scores.size(); ++block)
            CHECK(double{pool.block_scores[block]} == expected.block_scores[Eigen::Index(block)]);
        std::vector<uint8_t> mask(size_t(rows), uint8_t{9});
        pool_mask(pool.blocks, shape, mask);
        for (size_t i = 0; i < mask.size(); ++i) CHECK(mask[i] == (expected.mask[i] ? 1 : 0));
    }
}

TEST_CASE("candidate pool: a consumer's best row outside the pool is not selected") {
    std::vector<float> producer(6 * 4, 0.0f), consumer(6 * 4, 0.0f);
    producer[5] = 1;  // block 1; block 5 is the newest
    consumer[9] = 100;
    consumer[6] = 2;
    const CandidatePoolShape shape{4, 2};
    std::vector<uint8_t> mask(producer.size());
    pool_mask(candidate_pool(producer, shape).blocks, shape, mask);
    std::vector<int32_t> selected(3);
    top_k(consumer, 1, std::ssize(consumer), 3, {{}, mask}, TopKOutput::selection, selected);
    CHECK(selected == std::vector<int32_t>{6, 4, 5});
}

TEST_CASE("candidate pool: shapes and blocks that make no sense are refused, and nothing is written") {
    std::vector<uint8_t> mask(9, uint8_t{7});
    CHECK_THROWS_AS(candidate_pool(std::vector<float>(4), {0, 1}), UserError);
    CHECK_THROWS_AS(candidate_pool(std::vector<float>(4), {4, -1}), UserError);
    for (const int32_t block : {-1, 3}) {
        const std::vector<int32_t> blocks{0, block};
        CHECK_THROWS_AS(pool_mask(blocks, {4, 2}, mask), UserError);
    }
    CHECK(mask == std::vector<uint8_t>(9, uint8_t{7}));
}
