#include "golden/store/sha256.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

namespace touchstone {

namespace {

// The first 32 fraction bits of the cube roots of the first 64 primes.
constexpr std::array<uint32_t, 64> round_constants{
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

// The first 32 fraction bits of the square roots of the first 8 primes.
constexpr std::array<uint32_t, 8> initial_state{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                                0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

void add_block(std::array<uint32_t, 8>& state, std::span<const std::byte> block) {
    std::array<uint32_t, 64> w{};
    for (size_t i = 0; i < 64; ++i) w[i / 4] = w[i / 4] << 8 | std::to_integer<uint32_t>(block[i]);
    for (size_t i = 16; i < 64; ++i) {
        const uint32_t s0 = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
        const uint32_t s1 = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    std::array<uint32_t, 8> v = state;
    for (size_t i = 0; i < 64; ++i) {
        const uint32_t s1 = std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25);
        const uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + round_constants[i] + w[i];
        const uint32_t s0 = std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22);
        const uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        std::rotate(v.begin(), v.end() - 1, v.end());
        v[0] = t1 + t2;
        v[4] += t1;
    }
    for (size_t i = 0; i < 8; ++i) state[i] += v[i];
}

}  // namespace

std::string sha256(std::span<const std::byte> message) {
    std::array<uint32_t, 8> state = initial_state;
    const size_t whole = message.size() / 64 * 64;
    for (size_t i = 0; i < whole; i += 64) add_block(state, message.subspan(i, 64));
    // A one bit, zeros, and the length in bits, which may need a block of its own.
    const std::span<const std::byte> rest = message.subspan(whole);
    std::array<std::byte, 128> end{};
    std::ranges::copy(rest, end.begin());
    end[rest.size()] = std::byte{0x80};
    const size_t end_bytes = rest.size() < 56 ? 64 : 128;
    for (size_t i = 0; i < 8; ++i)
        end[end_bytes - 1 - i] = static_cast<std::byte>(uint64_t{message.size()} * 8 >> (8 * i));
    for (size_t i = 0; i < end_bytes; i += 64) add_block(state, std::span(end).subspan(i, 64));
    std::string digits;
    for (const uint32_t word : state) digits += fmt::format("{:08x}", word);
    return digits;
}

}  // namespace touchstone
