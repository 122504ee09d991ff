#include "reference/hyper_connections.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "reference/io/user_error.h"
#include "reference/numerics/elementary.h"
#include "reference/numerics/sum_order.h"
#include "reference/numerics/sums.h"

namespace touchstone {

namespace {

constexpr int64_t parallel_elements = 1 << 14;

void require(std::string_view tensor, size_t size, std::initializer_list<int64_t> shape) {
    int64_t elements = 1;
    bool valid = true;
    for (int64_t extent : shape) valid = valid && extent >= 0, elements *= extent;
    if (valid && static_cast<int64_t>(size) == elements) return;
    throw UserError({fmt::format("{} has {} elements", tensor, size), "hyper-connections",
                     fmt::format("[{}]", fmt::join(shape, ", ")), "pass tensors whose shapes agree"});
}

/// Projections of one row of streams times 1 / rms: `width` values of h, each output its own dot product.
void project(const Bf16* h, int64_t width, std::span<const float> fn, float norm_eps,
             std::span<float> mixes) {
    const std::span<const Bf16> row(h, static_cast<size_t>(width));
    const Lanes square_lanes = sum_order(SumOperator::mhc_mean_square, width, 1).lanes;
    const Lanes lanes = sum_order(SumOperator::mhc_mix, width, std::ssize(mixes)).lanes;
    const float mean = sum_of_squares(square_lanes, row) / static_cast<float>(width);
    const float reciprocal_rms = elementary::reciprocal_sqrt(mean + norm_eps);
    std::vector<float> wide(row.size());  // widened once for all outputs
    std::transform(row.begin(), row.end(), wide.begin(), [](Bf16 v) { return to_float(v); });
    const std::span<const float> values(wide);
    for (size_t i = 0; i < mixes.size(); ++i) {
        const float product = dot(lanes, values, fn.subspan(i * row.size(), row.size()));
        mixes[i] = with_canonical_nan(product * reciprocal_rms);
    }
}

/// a[j][k] /= sum over k of a[j][k], plus eps in the divisor; `by_columns`: over j.
void normalise(std::span<float> a, int64_t n, float eps, bool by_columns) {
    const int64_t line_step = by_columns ? 1 : n, step = by_columns ? n : 1;
    for (int64_t line = 0; line < n; ++line) {
        float* first = a.data() + line * line_step;
        float sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += first[i * step];
        for (int64_t i = 0; i < n; ++i) first[i * step] /= sum + eps;
    }
}

}  // namespace

MixCoefficients mix(std::span<const Bf16> h, int64_t rows, const HyperConnectionWeights& weights,
                    const HyperConnectionShape& shape) {
    const int64_t n = shape.streams, width = n * shape.hidden_size, outputs = (2 + n) * n;
    require("h", h.size(), {rows, n, shape.hidden_size});
    require("fn", weights.fn.size(), {outputs, width});
    require("base", weights.base.size(), {outputs});
    require("scale", weights.scale.size(), {3});
    const auto sized = [&](int64_t per_row) {
        return std::vector<float>(static_cast<size_t>(rows * per_row));
    };
    MixCoefficients result{sized(outputs), sized(n), sized(n), sized(n * n)};
#pragma omp parallel for schedule(static) if (rows > 1)
    for (int64_t row = 0; row < rows; ++row) {
        // 1. Projection first, scaling by 1 / rms after.
        float* g = result.mixes.data() + row * outputs;
        project(h.data() + row * width, width, weights.fn, shape.norm_eps, {g, static_cast<size_t>(outputs)});
        const auto affine = [&](int64_t i, size_t part) {
            return g[i] * weights.scale[part] + weights.base[static_cast<size_t>(i)];
        };
        // 2. pre has + eps, post has the factor 2.
        for (int64_t c = 0; c < n; ++c) {
            const auto at = static_cast<size_t>(row * n + c);
            result.pre[at] = with_canonical_nan(elementary::sigmoid(affine(c, 0)) + shape.hc_eps);
            result.post[at] = with_canonical_nan(2.0f * elementary::sigmoid(affine(n + c, 1)));
        }
        // 3. comb.
        float* comb = result.comb.data() + row * n * n;
        for (int64_t i = 0; i < n * n; ++i) comb[i] = affine(2 * n + i, 2);
        sinkhorn({comb, static_cast<size_t>(n * n)}, n, shape.sinkhorn_iterations, shape.hc_eps);
    }
    return result;
}

void sinkhorn(std::span<float> a, int64_t n, int iterations, float eps) {
    require("the matrix of sinkhorn", a.size(), {n, n});
    for (int64_t j = 0; j < n; ++j) {
        const std::span<float> row = a.subspan(static_cast<size_t>(j * n), static_cast<size_t>(n));
        const float most = largest(std::span<const float>(row));
        for (float& value : row) value = elementary::exp(value - most);
    }
    normalise(a, n, 0, false);  // no eps in this divisor: it is added to the quotient
    for (float& value : a) value += eps;
    normalise(a, n, eps, true);
    for (int i = 1; i < iterations; ++i) {
        normalise(a, n, eps, false);
        normalise(a, n, eps, true);
    }
    for (float& value : a) value = with_canonical_nan(value);
}

void collapse(std::span<const Bf16> h, int64_t rows, std::span<const float> pre, std::span<Bf16> y) {
    const int64_t n = rows > 0 ? std::ssize(pre) / rows : 0, width = rows > 0 ? std::ssize(y) / rows : 0;
    require("pre", pre.size(), {rows, n});
    require("y", y.size(), {rows, width});
    require("h", h.size(), {rows, n, width});
#pragma omp parallel if (rows > 1 && std::ssize(h) >= parallel_elements)
    {
        std::vector<float> sums(static_cast<size_t>(width));
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; ++row) {
            std::fill(sums.begin(), sums.end(), 0.0f);
            for (int64_t c = 0; c < n; ++c) {
                const float factor = pre[static_cast<size_t>(row * n + c)];
                const Bf16* stream = h.data() + (row * n + c) * width;
                for (int64_t d = 0; d < width; ++d)
                    sums[static_cast<size_t>(d)] += factor * to_float(stream[d]);
            }
            std::transform(sums.begin(), sums.end(), y.begin() + row * width,
                           [](float sum) { return bf16_from_float(sum); });
        }
    }
}

void expand(std::span<const Bf16> y, std::span<const Bf16> h, int64_t rows, std::span<const float> post,
            std::span<const float> comb, std::span<Bf16> out) {
    const int64_t n = rows > 0 ? std::ssize(post) / rows : 0, width = rows > 0 ? std::ssize(y) / rows : 0;
    require("post", post.size(), {rows, n});
    require("y", y.size(), {rows, width});
    require("comb", comb.size(), {rows, n, n});
    require("h", h.size(), {rows, n, width});
    require("out", out.size(), {rows, n, width});
#pragma omp parallel if (rows > 1 && std::ssize(h) >= parallel_elements)
    {
        std::vector<float> streams(static_cast<size_t>(n * width)), sums(static_cast<size_t>(width));
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; ++row) {
            const Bf16* in = h.data() + row * n * width;
            std::transform(in, in + n * width, streams.begin(), [](Bf16 v) { return to_float(v); });
            for (int64_t k = 0; k < n; ++k) {
                std::fill(sums.begin(), sums.end(), 0.0f);
                for (int64_t j = 0; j < n; ++j) {
                    const float factor = comb[static_cast<size_t>((row * n + j) * n + k)];
                    const float* stream = streams.data() + j * width;
                    for (int64_t d = 0; d < width; ++d) sums[static_cast<size_t>(d)] += factor * stream[d];
                }
                const float factor = post[static_cast<size_t>(row * n + k)];
                const Bf16* sublayer = y.data() + row * width;
                Bf16* to = out.data() + (row * n + k) * width;
                for (int64_t d = 0; d < width; ++d)
                    to[d] = bf16_from_float(factor * to_float(sublayer[d]) + sums[static_cast<size_t>(d)]);
            }
        }
    }
}

void v4_head_collapse(std::span<const Bf16> h, int64_t rows, const HyperConnectionWeights& weights,
                      const HyperConnectionShape& shape, std::span<Bf16> y) {
    const int64_t n = shape.streams, width = n * shape.hidden_size;
    require("h", h.size(), {rows, n, shape.hidden_size});
    require("fn", weights.fn.size(), {n, width});
    require("base", weights.base.size(), {n});
    require("scale", weights.scale.size(), {1});
    require("y", y.size(), {rows, shape.hidden_size});
    std::vector<float> pre(static_cast<size_t>(rows * n));
#pragma omp parallel for schedule(static) if (rows > 1)
    for (int64_t row = 0; row < rows; ++row) {
        const std::span<float> g(pre.data() + row * n, static_cast<size_t>(n));
        project(h.data() + row * width, width, weights.fn, shape.norm_eps, g);
        for (size_t c = 0; c < g.size(); ++c)
            g[c] = with_canonical_nan(elementary::sigmoid(g[c] * weights.scale[0] + weights.base[c]) +
                                      shape.hc_eps);
    }
    collapse(h, rows, pre, y);
}

}  // namespace touchstone
