#include "reference/numerics/sum_order.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <string_view>

using namespace touchstone;

namespace {

std::string stored_text() {
    std::ifstream file(TOUCHSTONE_GOLDEN "/numerics/sum_order.txt", std::ios::binary);
    REQUIRE_MESSAGE(file.is_open(), "cannot read " TOUCHSTONE_GOLDEN "/numerics/sum_order.txt");
    return {std::istreambuf_iterator<char>(file), {}};
}

constexpr int64_t k_values[]{0,    1,    2,    7,    8,    15,   16,   17,    127,   128,   129,
                             256,  511,  512,  513,  588,  1000, 1024, 1040,  1280,  2304,  4095,
                             4096, 5119, 5120, 5121, 5376, 8192, 9216, 15360, 20480, 129280};
constexpr int64_t n_values[]{1, 32, 128, 512, 513, 1280, 1281, 5120, 129280};

}  // namespace

TEST_CASE("sum order: the table is the frozen one, row by row (golden/numerics/sum_order.txt)") {
    std::istringstream stored(stored_text()), now(sum_order_text());
    std::string stored_line, now_line;
    for (int line = 1;; ++line) {
        const bool more_stored = bool(std::getline(stored, stored_line));
        const bool more_now = bool(std::getline(now, now_line));
        CHECK_MESSAGE(more_stored == more_now, "one of them ends at line ", line);
        if (!more_stored || !more_now) break;
        CAPTURE(line);
        CHECK(now_line == stored_line);
    }
}

TEST_CASE("sum order: lanes are a power of two that no element count leaves empty (every operator, K)") {
    for (const SumOrderRow& row : sum_order_table)
        for (const int64_t k : k_values) {
            const Lanes lanes = sum_order(row.op, k, 512).lanes;
            CAPTURE(row.name);
            CAPTURE(k);
            CAPTURE(lanes.count);
            CHECK(lanes.valid());
            const int64_t runs = (k + lanes.run() - 1) / lanes.run();
            CHECK((lanes.count == 1 || lanes.count / 2 < runs));
        }
}

TEST_CASE("sum order: pieces cover K once, in whole steps, none empty (every operator, K, N)") {
    for (const SumOrderRow& row : sum_order_table)
        for (const int64_t k : k_values)
            for (const int64_t n : n_values) {
                const SumOrder order = sum_order(row.op, k, n);
                CAPTURE(row.name);
                CAPTURE(k);
                CAPTURE(n);
                CHECK((order.pieces == 1 || row.chain == TensorCoreChain::by_outputs));
                int64_t next = 0;
                for (int i = 0; i < order.pieces; ++i) {
                    const PieceRange range = piece(order, k, i);
                    CAPTURE(i);
                    CHECK(range.first == next);
                    CHECK((range.last > range.first || k == 0));
                    CHECK((range.last % 16 == 0 || range.last == k));
                    if (i < order.pieces - 1) CHECK(range.last - range.first == piece(order, k, 0).last);
                    next = range.last;
                }
                CHECK(next == k);
            }
}

TEST_CASE("sum order: the shapes that the contract names (N of 512, 1280 and more)") {
    using enum SumOperator;
    CHECK(sum_order(wkv, 5120, 512).pieces == 8);
    CHECK(sum_order(wq_a, 5120, 1280).pieces == 4);
    CHECK(sum_order(expert_w2, 2304, 5120).pieces == 1);
    CHECK(sum_order(rms_norm, 5120, 1).lanes == Lanes{LaneArrangement::interleaved, 1024});
    CHECK(sum_order(rms_norm, 128, 1).lanes == Lanes{LaneArrangement::interleaved, 128});
    CHECK(sum_order(mhc_mix, 20480, 24).lanes == Lanes{LaneArrangement::chunked, 256});
    CHECK(sum_order(attention_softmax, 64, 1).lanes == Lanes{LaneArrangement::interleaved, 8});
    CHECK(sum_order(expert_combine, 7, 5120).lanes == Lanes{LaneArrangement::sequential, 1});
    const SumOrder wkv_order = sum_order(wkv, 5120, 512);
    CHECK(piece(wkv_order, 5120, 7).first == 4480);
    static_assert(sum_order(wq_b, 1280, 32768).pieces == 1);  // usable in constant expressions
}

TEST_CASE("lanes: elements go where the contract says (interleaved e mod L, chunked (e / 8) mod L)") {
    const Lanes interleaved{LaneArrangement::interleaved, 16}, chunked{LaneArrangement::chunked, 16};
    for (int64_t e = 0; e < 1000; ++e) {
        CAPTURE(e);
        CHECK(interleaved.lane_of(e) == e % 16);
        CHECK(chunked.lane_of(e) == e / 8 % 16);
        CHECK(Lanes{LaneArrangement::sequential, 1}.lane_of(e) == 0);
    }
    for (const int count : {0, -1, 3, 6, 2048}) {
        CAPTURE(count);
        CHECK_FALSE(Lanes{LaneArrangement::interleaved, count}.valid());
    }
    CHECK_FALSE(Lanes{LaneArrangement::sequential, 2}.valid());
}

TEST_CASE("sum order: names are unique") {
    std::set<std::string_view> names;
    for (const SumOrderRow& row : sum_order_table) names.insert(row.name);
    CHECK(names.size() == sum_order_table.size());
}
