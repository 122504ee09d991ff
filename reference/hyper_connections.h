// Manifold-constrained hyper-connections: n residual streams, mixed by coefficients that the streams
// themselves give (spec: text model, 8). Single-pass: `pre` is used one sublayer after it was made, so that
// projecting the streams and collapsing them are one scan.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "reference/numerics/small_float.h"

namespace touchstone {

/// Of one sublayer; everything fp32. n = streams, D = hidden size.
struct HyperConnectionWeights {
    std::span<const float> fn;     ///< [(2 + n) n, n D]: rows of pre, post, then comb row-major
    std::span<const float> base;   ///< [(2 + n) n]
    std::span<const float> scale;  ///< [3]: of pre, post, comb
};

struct HyperConnectionShape {
    int64_t streams;      ///< n
    int64_t hidden_size;  ///< D
    int sinkhorn_iterations;
    float hc_eps;    ///< of pre and of the Sinkhorn steps: 1e-6
    float norm_eps;  ///< of the mean square: 1e-20
};

/// Per row: what `mix` finds.
struct MixCoefficients {
    std::vector<float> mixes;  ///< [rows, (2 + n) n]: projections times 1 / rms, before scale and base
    std::vector<float> pre;    ///< [rows, n]
    std::vector<float> post;   ///< [rows, n]
    std::vector<float> comb;   ///< [rows, n, n]: comb[j][k] carries stream j into stream k
};

/// Coefficients of `h` [rows, n, D] (text model 8.1): m = fn . h and the mean square of all n D values, both
/// in the lanes of the table (mhc_mix, mhc_mean_square; ordinary cores in every profile); g = m * 1/sqrt(mean
/// + norm_eps); pre = sigmoid(g * scale + base) + hc_eps; post = 2 sigmoid(g * scale + base); comb by
/// `sinkhorn`. Products and sums are separate fp32 roundings. Throws UserError when sizes do not match.
MixCoefficients mix(std::span<const Bf16> h, int64_t rows, const HyperConnectionWeights& weights,
                    const HyperConnectionShape& shape);

/// In place on `a` [n, n]: softmax of each row, plus eps; columns divided by (sum + eps); then iterations - 1
/// times rows and columns, each divided by (sum + eps). Sums ascending. The first row step divides by the
/// plain sum.
void sinkhorn(std::span<float> a, int64_t n, int iterations, float eps);

/// y [rows, D] = bf16(sum over c of pre[c] * h[c]): products and ascending sums in fp32, from +0, so that the
/// one-hot pre of the first layer gives the embedding itself, but +0 for its -0. Throws UserError, with
/// nothing written, when sizes do not match; so does expand.
void collapse(std::span<const Bf16> h, int64_t rows, std::span<const float> pre, std::span<Bf16> y);

/// out [rows, n, D]: out[k] = bf16(post[k] * y + sum over j of comb[j][k] * h[j]); the sum over j, ascending,
/// is formed first. j is comb's FIRST index: the transposed sum has the right shape and wrong values. `out`
/// may be `h` itself.
void expand(std::span<const Bf16> y, std::span<const Bf16> h, int64_t rows, std::span<const float> post,
            std::span<const float> comb, std::span<Bf16> out);

/// For comparison, V4's head: coefficients of the stream it collapses (two passes over it), fn [n, n D],
/// base [n], scale [1]; pre = sigmoid(g * scale + base) + hc_eps, no Sinkhorn. `y` is [rows, D]. (V4's
/// sublayers are mix, then collapse with that same mix's pre.)
void v4_head_collapse(std::span<const Bf16> h, int64_t rows, const HyperConnectionWeights& weights,
                      const HyperConnectionShape& shape, std::span<Bf16> y);

}  // namespace touchstone
