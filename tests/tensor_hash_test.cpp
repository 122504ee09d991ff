#include "reference/numerics/tensor_hash.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "reference/numerics/random.h"

using namespace touchstone;

namespace {

std::vector<uint32_t> random_elements(size_t count) {
    std::vector<uint32_t> elements(count);
    for (size_t i = 0; i < count; ++i) elements[i] = RandomStream{3}.word(i);
    return elements;
}

uint64_t hash_of(const std::vector<uint32_t>& elements) {
    return tensor_hash(elements.data(), elements.size());
}

}  // namespace

TEST_CASE("tensor hash: the hashes of parts add up to that of the whole (every cut of 257 elements)") {
    const std::vector<uint32_t> elements = random_elements(257);
    for (size_t cut = 0; cut <= elements.size(); ++cut) {
        CAPTURE(cut);
        const uint64_t left = tensor_hash(elements.data(), cut);
        const uint64_t right = tensor_hash(elements.data() + cut, elements.size() - cut, cut);
        CHECK(left + right == hash_of(elements));
    }
}

TEST_CASE("tensor hash: any order of adding elements gives the same value") {
    const std::vector<uint32_t> elements = random_elements(1000);
    uint64_t backwards = 0;
    for (size_t i = elements.size(); i-- > 0;) backwards += element_hash(i, elements[i]);
    CHECK(backwards == hash_of(elements));
}

TEST_CASE("tensor hash: is keyed by position (swapped neighbours, shifted tensor, appended zero)") {
    std::vector<uint32_t> elements = random_elements(64);
    const uint64_t before = hash_of(elements);
    for (size_t i = 0; i + 1 < elements.size(); ++i) {
        CAPTURE(i);
        std::swap(elements[i], elements[i + 1]);
        CHECK(hash_of(elements) != before);
        std::swap(elements[i], elements[i + 1]);
    }
    CHECK(tensor_hash(elements.data(), elements.size(), 1) != before);
    elements.push_back(0);
    CHECK(hash_of(elements) != before);
}

TEST_CASE("tensor hash: one flipped bit anywhere changes it (64 elements of 32 bits)") {
    std::vector<uint32_t> elements = random_elements(64);
    std::set<uint64_t> hashes{hash_of(elements)};
    for (uint32_t& element : elements)
        for (uint32_t bit = 0; bit < 32; ++bit) {
            element ^= 1u << bit;
            hashes.insert(hash_of(elements));
            element ^= 1u << bit;
        }
    CHECK(hashes.size() == 1 + 64 * 32);
}

TEST_CASE("tensor hash: a value that receipts already hold does not move (three elements)") {
    const std::vector<uint32_t> elements{0x00000000, 0x3F800000, 0xFFFFFFFF};
    CHECK(hash_of(elements) ==
          element_hash(0, 0) + element_hash(1, 0x3F800000) + element_hash(2, 0xFFFFFFFF));
    CHECK(hash_of({}) == 0);
    CHECK(hash_of(elements) == 0x7DC1C8014E154C3F);
}
