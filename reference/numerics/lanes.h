// Which lane of a sum an element belongs to (numerics contract, section 4).
#pragma once

#include <cstdint>

#include "reference/numerics/host_device.h"

namespace touchstone {

/// interleaved: element e in lane e mod L. chunked: lane (e / 8) mod L, eight elements in order. sequential:
/// one lane, every element in order.
enum class LaneArrangement : uint8_t { interleaved, chunked, sequential };

/// The lanes of one sum on ordinary cores; a plain value, which kernels take by copy.
struct Lanes {
    static constexpr int most = 1024;
    static constexpr int chunk = 8;  ///< elements; what a thread loads at once of bf16: 16 bytes

    LaneArrangement arrangement = LaneArrangement::interleaved;
    int count = 1;  ///< L: a power of two from 1 to `most`; 1 when sequential

    /// Elements in a row that share a lane.
    TOUCHSTONE_HOST_DEVICE constexpr int run() const {
        return arrangement == LaneArrangement::chunked ? chunk : 1;
    }
    TOUCHSTONE_HOST_DEVICE constexpr int lane_of(int64_t element) const {
        return static_cast<int>(element / run() % count);
    }
    TOUCHSTONE_HOST_DEVICE constexpr bool valid() const {
        const bool power_of_two = count >= 1 && count <= most && (count & (count - 1)) == 0;
        return power_of_two && (arrangement != LaneArrangement::sequential || count == 1);
    }
    friend bool operator==(const Lanes&, const Lanes&) = default;
};

}  // namespace touchstone
