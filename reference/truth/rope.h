// Rotary position embedding in double (spec: text model, section 3.2 and 3.3). Frequencies, angles and table
// entries are fp32 in the released model, by definition: near position 10^6 an angle is up to 0.03 rad from
// the product that was not rounded. `ideal` keeps them.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/model/config.h"
#include "reference/truth/ledger.h"

namespace touchstone::truth {

enum class RopeTable : uint8_t {
    main,      ///< rope_theta, no YaRN: layers without compressed positions
    compress,  ///< compress_rope_theta with YaRN: every tensor of the layers that have them
};

enum class RopeDirection : uint8_t { forward, inverse };

/// Radians per position of each pair of channels, fp32, [qk_rope_head_dim / 2].
std::vector<float> rope_frequencies(const ModelConfig& config, RopeTable table);

/// One entry of the table: cos and sin of fp32(position * frequency), rounded to fp32.
struct RopeEntry {
    double cos, sin;
};
RopeEntry rope_entry(int64_t position, float frequency);

/// Rotates the last 2 * frequencies.size() channels of each head, in adjacent pairs (even real, odd
/// imaginary): (a, b) -> (a c - b s, a s + b c), inverse with -s. x [T, heads * head_dim]; row t is at
/// positions[t].
Matrix rope(Matrix x, int64_t head_dim, const std::vector<int64_t>& positions,
            const std::vector<float>& frequencies, RopeDirection direction = RopeDirection::forward);

}  // namespace touchstone::truth
