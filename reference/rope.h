// Rotary position embedding: adjacent pairs of the trailing channels (spec: text model, 3.2 and 3.3).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "reference/model/config.h"
#include "reference/numerics/small_float.h"

namespace touchstone {

/// What YaRN does to the frequencies: those that turn less than beta_slow times within the original context
/// are divided by `factor`, those that turn more than beta_fast times stay, in between it is a ramp.
struct YarnScaling {
    double factor, beta_fast, beta_slow;
    int64_t original_max_position_embeddings;
};

/// cos and sin of one pair's angle.
struct RopePair {
    float cos, sin;
};

/// The frequencies of one table, and the table's rows, made when asked for: a table of a million positions
/// would take 256 MB.
class RopeTable {
  public:
    /// `rope_dim` channels, even. fp32 steps as published: e = 2i / rope_dim, f = 1 / base^e with base^e
    /// correctly rounded, then YaRN's blend, each operation rounded. Throws UserError for an odd dimension or
    /// a base that is not above 1.
    RopeTable(int64_t rope_dim, double base, const std::optional<YarnScaling>& yarn);

    std::span<const float> frequencies() const { return frequencies_; }
    int64_t rope_dim() const { return 2 * static_cast<int64_t>(frequencies_.size()); }

    /// The row of `position`, at least 0: cos and sin (sin_cos of numerics/trigonometry.h) of the angle
    /// fl32(fl32(position) * f). The angle is rounded BEFORE cos and sin: near position 10^6 that moves it by
    /// up to 0.03, which the model has been trained with. Throws UserError for a negative position or another
    /// number of pairs.
    void row(int64_t position, std::span<RopePair> pairs) const;

  private:
    std::vector<float> frequencies_;
};

/// The table of layers without compressed rows: rope_theta, no YaRN.
RopeTable main_rope_table(const ModelConfig& config);
/// The table of every tensor of layers with compressed rows: compress_rope_theta with YaRN.
RopeTable compress_rope_table(const ModelConfig& config);

enum class RopeDirection : uint8_t { forward, inverse };

/// Turns the last rope_dim of `head_dim` channels of `x` [rows, heads, head_dim] in place; row i stands at
/// positions[i]. (a, b) -> (a c - b s, a s + b c), forward; inverse takes -s. Both products and their sum are
/// fp32 roundings (no FMA), the result is rounded to bf16; other channels keep their bits. Throws UserError,
/// with nothing written, when sizes do not match or a position is negative.
void rope(const RopeTable& table, RopeDirection direction, std::span<const int64_t> positions, int64_t heads,
          int64_t head_dim, std::span<Bf16> x);

}  // namespace touchstone
