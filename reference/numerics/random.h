// Counter-based random numbers: Philox 4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3", SC 2011). A number is a function of seed, stream and index alone, so host and
// device, any thread count and any order of generation give the same values.
#pragma once

#include <cstdint>

#include "reference/numerics/host_device.h"

namespace touchstone {

/// The four words of one Philox counter.
struct PhiloxBlock {
    uint32_t words[4];
};

/// Philox 4x32-10 of a 128-bit counter (least significant word first) under a 64-bit key.
TOUCHSTONE_HOST_DEVICE constexpr PhiloxBlock philox4x32(PhiloxBlock counter, uint32_t key0, uint32_t key1) {
    for (int round = 0; round < 10; ++round) {
        const uint64_t product0 = uint64_t{0xD2511F53} * counter.words[0];
        const uint64_t product1 = uint64_t{0xCD9E8D57} * counter.words[2];
        counter = {{static_cast<uint32_t>(product1 >> 32) ^ counter.words[1] ^ key0,
                    static_cast<uint32_t>(product1),
                    static_cast<uint32_t>(product0 >> 32) ^ counter.words[3] ^ key1,
                    static_cast<uint32_t>(product0)}};
        key0 += 0x9E3779B9;
        key1 += 0xBB67AE85;
    }
    return counter;
}

/// A sequence of 32-bit words: word i is word i mod 4 of the block with counter (i / 4, stream) under key
/// `seed`.
struct RandomStream {
    uint64_t seed;
    uint64_t stream = 0;

    /// Words 4b .. 4b + 3.
    TOUCHSTONE_HOST_DEVICE constexpr PhiloxBlock block(uint64_t b) const {
        return philox4x32({{static_cast<uint32_t>(b), static_cast<uint32_t>(b >> 32),
                            static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)}},
                          static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    }
    TOUCHSTONE_HOST_DEVICE constexpr uint32_t word(uint64_t i) const { return block(i / 4).words[i % 4]; }
};

}  // namespace touchstone
