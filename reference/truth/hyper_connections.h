// Single-Pass mHC in double (spec: text model, section 8). A stream of n copies is [T, n * D], copy-major.
#pragma once

#include <cstdint>

#include "reference/truth/ledger.h"

namespace touchstone::truth {

/// Of one sublayer: fn [2n + n^2, n * D], base [2n + n^2], scale [3] (pre, post, comb).
struct HyperConnectionWeights {
    Matrix fn;
    Vector base, scale;
};

/// Coefficients of every token. comb[t] is n x n row-major: comb(j, k) feeds copy j into copy k.
struct HyperConnectionMix {
    Matrix mixes;      ///< [T, 2n + n^2]: fn applied, scaled by the rsqrt, before the sigmoids
    Matrix pre, post;  ///< [T, n]
    Matrix comb;       ///< [T, n * n]
};

/// `iterations` row and as many column normalisations of exp(a - rowmax), rows first, a column step last; the
/// first row step adds eps to the quotient, every later step to the divisor (spec 8.1). a is n x n.
Matrix sinkhorn(const Matrix& a, int64_t iterations, double eps);

/// Spec 8.1. norm_eps is rms_norm_eps, eps the hc_eps of pre and of Sinkhorn.
HyperConnectionMix hyper_connection_mix(const Matrix& stream, const HyperConnectionWeights& weights,
                                        int64_t n, int64_t iterations, double norm_eps, double eps);

/// sum_c pre[c] stream[c], [T, D]; the model rounds it to bf16.
Matrix collapse(const Matrix& stream, const Matrix& pre);

/// Copy k: post[k] y + sum_j comb(j, k) stream[j], [T, n * D]; the model rounds it to bf16. y is [T, D].
Matrix expand(const Matrix& y, const Matrix& stream, const Matrix& post, const Matrix& comb);

/// mean over the copies, [T, D]: what the drafter taps (spec 10.1), rounded to bf16 by the model.
Matrix mean_of_copies(const Matrix& stream, int64_t n);

}  // namespace touchstone::truth
