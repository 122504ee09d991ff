// From hidden states to the latent of a group of tokens: the source of compressed KV rows and of index keys
// (spec: text model, 5).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/linear.h"

namespace touchstone {

struct CompressorWeights {
    Bf16Weight wkv;              ///< [Dh, D]
    Bf16Weight wgate;            ///< [Dh, D]; no outputs at ratio 1
    std::span<const Bf16> norm;  ///< [Dh]
};

/// The fp32 rows of tokens whose group is still open: less than `ratio` of them, oldest first.
struct OpenGroup {
    std::vector<float> kv;     ///< [tokens, Dh]
    std::vector<float> score;  ///< [tokens, Dh]
    friend bool operator==(const OpenGroup&, const OpenGroup&) = default;
};

/// Groups that a call has closed.
struct Latents {
    int64_t first_group = 0;
    std::vector<float> kv;      ///< [rows, Dh] of the call's rows; empty at ratio 1
    std::vector<float> score;   ///< likewise
    std::vector<Bf16> pooled;   ///< [groups, Dh]: what the norm sees
    std::vector<Bf16> latents;  ///< [groups, Dh]: normed, UNROTATED, unquantised
};

/// Rows `x` [rows, D] stand at positions first_position, first_position + 1, .. of one sequence; `open` holds
/// what came before and is brought up to date. Ratio 1: pooled = LB(x, wkv). Ratio r: kv = LF(x, wkv), score
/// = LF(x, wgate); of each closed group, per channel, e_i = exp(score_i - largest), w_i = e_i / sum of e,
/// pooled = bf16(sum of kv_i * w_i), sums and products ascending in fp32 (`compressor_pool`). Then the norm.
/// Any cutting of a sequence into calls gives the same groups and the same bits. Throws UserError, with
/// `open` as it was, when sizes do not match or `open` does not hold first_position mod ratio tokens.
Latents compress(Arithmetic arithmetic, std::span<const Bf16> x, int64_t rows, int64_t first_position,
                 int64_t ratio, const CompressorWeights& weights, float norm_eps, OpenGroup& open);

/// Groups that are visible to a query at `position`: those whose last token is not after it.
constexpr int64_t visible_groups(int64_t position, int64_t ratio) {
    return (position + 1) / ratio;
}

}  // namespace touchstone
