// Compressor of the KV sources in double (spec: text model, section 5).
#pragma once

#include <cstdint>

#include "reference/truth/ledger.h"

namespace touchstone::truth {

/// kv and gate [Dh, D], norm [Dh]. At ratio 1 the gate is empty.
struct CompressorWeights {
    Matrix kv, gate;
    Vector norm;
};

/// Rows of tokens whose group is not complete yet: fewer than the ratio, [.., Dh] each (spec 5.3).
struct CompressorPending {
    Matrix kv, score;
};

/// What a call computes: kv and score per token [T, Dh] (at ratio 1 score is empty and kv is bf16); pooled
/// and latent per group that the call closed [groups, Dh], latent being unrotated.
struct CompressorOutput {
    Matrix kv, score, pooled, latent;
};

/// The groups' convex combination: per channel a softmax over the `ratio` scores of a group weighs its kv.
/// Both [groups * ratio, Dh].
Matrix pooled_groups(const Matrix& kv, const Matrix& score, int64_t ratio);

/// x [T, D], the tokens that follow those of `pending`, which is read and updated. Rounds pooled to bf16
/// before the norm, and the latent. eps is rms_norm_eps.
CompressorOutput compressor(const Matrix& x, const CompressorWeights& weights, int64_t ratio, double eps,
                            CompressorPending& pending, const Ledger& ledger);

}  // namespace touchstone::truth
