#include "reference/numerics/random.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <vector>

using namespace touchstone;

namespace {

void check_block(PhiloxBlock got, PhiloxBlock expected) {
    for (int i = 0; i < 4; ++i) {
        CAPTURE(i);
        CHECK(got.words[i] == expected.words[i]);
    }
}

}  // namespace

TEST_CASE("philox: known answers of 4x32 with 10 rounds (Random123, kat_vectors)") {
    check_block(philox4x32({{0, 0, 0, 0}}, 0, 0), {{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}});
    constexpr uint32_t ones = 0xFFFFFFFF;
    check_block(philox4x32({{ones, ones, ones, ones}}, ones, ones),
                {{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}});
    check_block(philox4x32({{0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344}}, 0xA4093822, 0x299F31D0),
                {{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}});
}

TEST_CASE("random stream: seed is the key, stream and block number the counter (all 64 bits of each)") {
    const RandomStream random{0x299F31D0A4093822, 0x0370734413198A2E};
    check_block(random.block(0x85A308D3243F6A88), {{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}});
    for (uint64_t i : {uint64_t{0}, uint64_t{1}, uint64_t{7}, uint64_t{1} << 40, ~uint64_t{0}}) {
        CAPTURE(i);
        CHECK(random.word(i) == random.block(i / 4).words[i % 4]);
    }
    static_assert(RandomStream{1}.word(0) != RandomStream{2}.word(0));  // usable in constant expressions
}

TEST_CASE("random stream: neighbouring seeds, streams and indices give other words (4,096 of them)") {
    std::set<uint32_t> words;
    for (uint64_t seed = 0; seed < 16; ++seed)
        for (uint64_t stream = 0; stream < 16; ++stream)
            for (uint64_t i = 0; i < 16; ++i) words.insert(RandomStream{seed, stream}.word(i));
    CHECK(words.size() >= 4094);  // two collisions among 4,096 words of 32 bits have probability 2e-6
}

TEST_CASE("random stream: every bit is set half of the time (65,536 words)") {
    std::vector<int> set(32);
    for (uint64_t i = 0; i < 65536; ++i)
        for (uint32_t bit = 0; bit < 32; ++bit) set[bit] += int(RandomStream{5, 6}.word(i) >> bit & 1);
    const auto [least, most] = std::ranges::minmax(set);
    CHECK(least > 32768 - 5 * 128);  // the standard deviation is 128
    CHECK(most < 32768 + 5 * 128);
}
