#include "reference/numerics/total_order.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "reference/numerics/random.h"

using namespace touchstone;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// Ascending; each entry's members are equal under the order.
const std::vector<std::vector<float>> ladder{{float_from_bits(0x7FFFFFFF), float_from_bits(0xFFFFFFFF),
                                              float_from_bits(0x7F800001), float_from_bits(0xFFC00000)},
                                             {-infinity},
                                             {-std::numeric_limits<float>::max()},
                                             {-1.5f},
                                             {-1.0f},
                                             {-std::numeric_limits<float>::min()},
                                             {-std::numeric_limits<float>::denorm_min()},
                                             {-0.0f, 0.0f},
                                             {std::numeric_limits<float>::denorm_min()},
                                             {std::numeric_limits<float>::min()},
                                             {1.0f},
                                             {1.0f + std::numeric_limits<float>::epsilon()},
                                             {std::numeric_limits<float>::max()},
                                             {infinity}};

}  // namespace

TEST_CASE(
    "total order: NaN, infinities, numbers, zeros stand as the contract says (every pair of a ladder)") {
    for (size_t a = 0; a < ladder.size(); ++a)
        for (size_t b = 0; b < ladder.size(); ++b)
            for (const float x : ladder[a])
                for (const float y : ladder[b]) {
                    CAPTURE(float_bits(x));
                    CAPTURE(float_bits(y));
                    CHECK((order_mapped(x) < order_mapped(y)) == (a < b));
                    CHECK((order_mapped(x) == order_mapped(y)) == (a == b));
                }
}

TEST_CASE("total order: agrees with < on random numbers (a million pairs)") {
    int64_t wrong = 0;
    uint64_t first_wrong = 0;
    for (uint64_t i = 0; i < 1'000'000; ++i) {
        const PhiloxBlock random = RandomStream{11}.block(i);
        const float x = float_from_bits(random.words[0]);
        // Half of the pairs are neighbours, where one lost bit shows.
        const float y = float_from_bits(i % 2 == 0 ? random.words[1] : random.words[0] + random.words[1] % 5);
        if (is_nan(x) || is_nan(y)) continue;
        if ((order_mapped(x) < order_mapped(y)) == (x < y) &&
            (order_mapped(x) == order_mapped(y)) == (x == y))
            continue;
        if (wrong++ == 0) first_wrong = i;
    }
    CAPTURE(first_wrong);
    CHECK(wrong == 0);
}

TEST_CASE("total order: equal values go to the lower index, and a larger value beats any index") {
    constexpr uint32_t last = 0xFFFFFFFF;
    for (const std::vector<float>& equal : ladder)
        for (const float x : equal)
            for (const float y : equal) {
                CHECK(total_order_key(x, 0) > total_order_key(y, 1));
                CHECK(total_order_key(x, last - 1) > total_order_key(y, last));
            }
    for (size_t i = 1; i < ladder.size(); ++i) {
        CAPTURE(i);
        CHECK(total_order_key(ladder[i][0], last) > total_order_key(ladder[i - 1][0], 0));
    }
}

TEST_CASE("total order: a key gives its index back") {
    for (const uint32_t index : {0u, 1u, 511u, 0x7FFFFFFFu, 0x80000000u, 0xFFFFFFFFu})
        for (const float x : {-0.0f, 1.0f, -infinity, float_from_bits(0x7FC00000)})
            CHECK(index_of_key(total_order_key(x, index)) == index);
}
