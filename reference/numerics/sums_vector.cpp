// The sums of sums.h, compiled once per instruction set. Lanes of a sum are lanes of vectors: a group of
// vectors stays in registers while its elements pass, then the lanes are added in a plain array.
#include <cstdint>

#include "reference/numerics/isa_vector.h"
#include "reference/numerics/sums.h"

namespace touchstone::TOUCHSTONE_ISA_NAMESPACE {

namespace {

#define TOUCHSTONE_INLINE inline __attribute__((always_inline))

constexpr int width = vector_width;

using Vector = Floats;
using Bits __attribute__((vector_size(width * sizeof(uint32_t)))) = uint32_t;
using HalfBits __attribute__((vector_size(width * sizeof(uint16_t)))) = uint16_t;

TOUCHSTONE_INLINE Vector load(const float* x) {
    Vector values;
    __builtin_memcpy(&values, x, sizeof(values));
    return values;
}
TOUCHSTONE_INLINE Vector load(const Bf16* x) {
    HalfBits bits;
    __builtin_memcpy(&bits, x, sizeof(bits));
    const Bits widened = __builtin_convertvector(bits, Bits) << 16;
    Vector values;
    __builtin_memcpy(&values, &widened, sizeof(values));
    return values;
}
constexpr int group_vectors = 8;  // accumulators in registers: enough to hide the latency of an addition
constexpr int group = group_vectors * width;

// What passes: one element by the definition's step, or a vector of them.
template <class X>
struct Terms : sums_detail::Term<X> {
    TOUCHSTONE_INLINE Vector vector(int64_t e, Vector sum) const { return sum + load(this->x + e); }
};
template <class X>
struct Squares : sums_detail::Square<X> {
    TOUCHSTONE_INLINE Vector vector(int64_t e, Vector sum) const {
        const Vector v = load(this->x + e);
        return fma_rn(v, v, sum);
    }
};
template <class X, class Y>
struct Products : sums_detail::Product<X, Y> {
    TOUCHSTONE_INLINE Vector vector(int64_t e, Vector sum) const {
        return fma_rn(load(this->x + e), load(this->y + e), sum);
    }
};

/// Lanes first .. first + vectors * width - 1 of an interleaved sum, into `lane`.
template <int vectors, class Step>
TOUCHSTONE_INLINE void pass_lanes(const Step& step, int first, int64_t count, int64_t k, float* lane) {
    Vector sums[vectors];
    for (int v = 0; v < vectors; ++v) sums[v] = Vector{};
    int64_t e = first;
    for (; e + vectors * width <= k; e += count)
        for (int v = 0; v < vectors; ++v) sums[v] = step.vector(e + v * width, sums[v]);
    for (int v = 0; v < vectors; ++v) __builtin_memcpy(lane + first + v * width, &sums[v], sizeof(Vector));
    // The row ends inside this pass; no later one reaches these lanes.
    for (int64_t l = first; e < k && l < first + vectors * width; ++e, ++l) lane[l] = step(e, lane[l]);
}

/// Adjacent pairs, then pairs of pairs; `lane` is overwritten.
TOUCHSTONE_INLINE float combine(float* lane, int count) {
    float half[Lanes::most / 2];
    float *from = lane, *to = half;
    for (int left = count / 2; left > 0; left /= 2) {
        for (int i = 0; i < left; ++i) to[i] = from[2 * i] + from[2 * i + 1];
        float* const next = from;
        from = to;
        to = next;
    }
    return with_canonical_nan(from[0]);
}

/// Fills the lanes, then combines them.
template <class Step>
TOUCHSTONE_INLINE float pass(Lanes lanes, int64_t k, const Step& step) {
    float lane[Lanes::most];
    const int count = lanes.count;
    if (lanes.run() > 1 || count < width) {
        for (int l = 0; l < count; ++l) lane[l] = sums_detail::lane_sum(lanes, l, k, step);
        return combine(lane, count);
    }
    int first = 0;
    for (; first + group <= count; first += group) pass_lanes<group_vectors>(step, first, count, k, lane);
    for (; first < count; first += width) pass_lanes<1>(step, first, count, k, lane);
    return combine(lane, count);
}

template <class X>
float sum(Lanes lanes, const X* x, int64_t k) {
    return pass(lanes, k, Terms<X>{{x}});
}
template <class X>
float squares(Lanes lanes, const X* x, int64_t k) {
    return pass(lanes, k, Squares<X>{{x}});
}
template <class X, class Y>
float dot(Lanes lanes, const X* x, const Y* y, int64_t k) {
    return pass(lanes, k, Products<X, Y>{{x, y}});
}

/// Magnitudes and signs as integers that order like the numbers, NaN above all; a plain loop vectorises.
template <class X>
float largest(const X* x, int64_t k) {
    int32_t best = static_cast<int32_t>(0x807FFFFF);  // -infinity
    int32_t nan = 0;
    for (int64_t e = 0; e < k; ++e) {
        const float value = sums_detail::value(x[e]) + 0.0f;  // -0 becomes +0
        const int32_t bits = static_cast<int32_t>(float_bits(value));
        const int32_t ordered = bits ^ (bits >> 31 & 0x7FFFFFFF);
        nan |= is_nan(value);
        best = ordered > best ? ordered : best;
    }
    const int32_t bits = best ^ (best >> 31 & 0x7FFFFFFF);
    return float_from_bits(nan != 0 ? canonical_nan_bits : static_cast<uint32_t>(bits));
}

}  // namespace

extern const SumsKernels sums_kernels;
const SumsKernels sums_kernels{.isa = compiled_isa,
                               .sum_f32 = sum<float>,
                               .sum_bf16 = sum<Bf16>,
                               .squares_f32 = squares<float>,
                               .squares_bf16 = squares<Bf16>,
                               .dot_f32 = dot<float, float>,
                               .dot_bf16 = dot<Bf16, Bf16>,
                               .dot_bf16_f32 = dot<Bf16, float>,
                               .largest_f32 = largest<float>,
                               .largest_bf16 = largest<Bf16>};

}  // namespace touchstone::TOUCHSTONE_ISA_NAMESPACE
