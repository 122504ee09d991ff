// Sums on ordinary cores (numerics contract, section 4). The templates are the definition, for host and
// device; the functions at the end are the same, vectorised. A sum is a function of its elements and its
// lanes: instruction set, thread count, and the rows beside it change no bit.
//
// Every NaN result is canonical. Sums start at +0, so that of nothing or of zeros alone is +0 (also of -0).
// Infinities and subnormals are ordinary numbers.
#pragma once

#include <cstdint>
#include <span>

#include "reference/numerics/isa.h"
#include "reference/numerics/lanes.h"
#include "reference/numerics/small_float.h"

namespace touchstone {

namespace sums_detail {

TOUCHSTONE_HOST_DEVICE constexpr float value(float x) {
    return x;
}
TOUCHSTONE_HOST_DEVICE constexpr float value(Bf16 x) {
    return to_float(x);
}

// How element e enters the accumulator of its lane.
template <class X>
struct Term {
    const X* x;
    TOUCHSTONE_HOST_DEVICE float operator()(int64_t e, float sum) const { return sum + value(x[e]); }
};
template <class X>
struct Square {
    const X* x;
    TOUCHSTONE_HOST_DEVICE float operator()(int64_t e, float sum) const {
        return fma_rn(value(x[e]), value(x[e]), sum);
    }
};
template <class X, class Y>
struct Product {
    const X* x;
    const Y* y;
    TOUCHSTONE_HOST_DEVICE float operator()(int64_t e, float sum) const {
        return fma_rn(value(x[e]), value(y[e]), sum);
    }
};

/// One lane: its elements, ascending, from +0.
template <class Accumulate>
TOUCHSTONE_HOST_DEVICE inline float lane_sum(Lanes lanes, int lane, int64_t k, Accumulate accumulate) {
    const int64_t run = lanes.run();
    float sum = 0;
    for (int64_t first = lane * run; first < k; first += run * lanes.count)
        for (int64_t e = first; e < first + run && e < k; ++e) sum = accumulate(e, sum);
    return sum;
}

/// All lanes: adjacent pairs, then pairs of pairs. `pending[level]` is the sum of 2^level lanes that waits
/// for its right-hand neighbour.
template <class Accumulate>
TOUCHSTONE_HOST_DEVICE inline float sum_in_lanes(Lanes lanes, int64_t k, Accumulate accumulate) {
    constexpr int levels = 11;
    static_assert(Lanes::most == 1 << (levels - 1));
    float pending[levels] = {};
    for (int lane = 0;; ++lane) {
        float sum = lane_sum(lanes, lane, k, accumulate);
        int level = 0;
        for (; lane >> level & 1; ++level) sum = pending[level] + sum;
        if (lane == lanes.count - 1) return with_canonical_nan(sum);
        pending[level] = sum;
    }
}

}  // namespace sums_detail

/// sum x. Adding is fma(x, 1, sum), which is sum + x.
template <class X>
TOUCHSTONE_HOST_DEVICE inline float sum_by_definition(Lanes lanes, const X* x, int64_t k) {
    return sums_detail::sum_in_lanes(lanes, k, sums_detail::Term<X>{x});
}

/// sum x^2, one rounding per element.
template <class X>
TOUCHSTONE_HOST_DEVICE inline float sum_of_squares_by_definition(Lanes lanes, const X* x, int64_t k) {
    return sums_detail::sum_in_lanes(lanes, k, sums_detail::Square<X>{x});
}

/// sum x * y, one rounding per element.
template <class X, class Y>
TOUCHSTONE_HOST_DEVICE inline float dot_by_definition(Lanes lanes, const X* x, const Y* y, int64_t k) {
    return sums_detail::sum_in_lanes(lanes, k, sums_detail::Product<X, Y>{x, y});
}

/// The larger; a NaN on either side wins, canonical; -0 counts as +0.
TOUCHSTONE_HOST_DEVICE constexpr float larger(float a, float b) {
    const float x = a + 0.0f, y = b + 0.0f;  // -0 + 0 is +0
    const float number = x < y ? y : x;
    return is_nan(a) || is_nan(b) ? float_from_bits(canonical_nan_bits) : number;
}

/// The largest; -infinity of nothing. NaN and -0 as in `larger`; no order, hence no lanes.
template <class X>
TOUCHSTONE_HOST_DEVICE constexpr float largest_by_definition(const X* x, int64_t k) {
    float largest = float_from_bits(0xFF800000);
    for (int64_t e = 0; e < k; ++e) largest = larger(largest, sums_detail::value(x[e]));
    return largest;
}

/// The functions below, compiled for one instruction set.
struct SumsKernels {
    Isa isa;  ///< what the compiler was told, not what was asked for
    float (*sum_f32)(Lanes lanes, const float* x, int64_t k);
    float (*sum_bf16)(Lanes lanes, const Bf16* x, int64_t k);
    float (*squares_f32)(Lanes lanes, const float* x, int64_t k);
    float (*squares_bf16)(Lanes lanes, const Bf16* x, int64_t k);
    float (*dot_f32)(Lanes lanes, const float* x, const float* y, int64_t k);
    float (*dot_bf16)(Lanes lanes, const Bf16* x, const Bf16* y, int64_t k);
    float (*dot_bf16_f32)(Lanes lanes, const Bf16* x, const float* y, int64_t k);
    float (*largest_f32)(const float* x, int64_t k);
    float (*largest_bf16)(const Bf16* x, int64_t k);
};

/// The kernels of `isa`, which this CPU has to support.
const SumsKernels& sums_kernels(Isa isa);

/// sum x over the lanes. Throws UserError when the lanes are not a power of two from 1 to 1024.
float sum(Lanes lanes, std::span<const float> x);
float sum(Lanes lanes, std::span<const Bf16> x);

/// sum x^2; throws as sum does.
float sum_of_squares(Lanes lanes, std::span<const float> x);
float sum_of_squares(Lanes lanes, std::span<const Bf16> x);

/// sum x * y; throws as sum does, and when the lengths differ.
float dot(Lanes lanes, std::span<const float> x, std::span<const float> y);
float dot(Lanes lanes, std::span<const Bf16> x, std::span<const Bf16> y);
float dot(Lanes lanes, std::span<const Bf16> x, std::span<const float> y);

/// The largest element; see largest_by_definition.
float largest(std::span<const float> x);
float largest(std::span<const Bf16> x);

/// What is formed of each row.
enum class RowSum : uint8_t { sum, sum_of_squares, dot, largest };

/// One number per row of `x`, row-major [rows, k], into `out` [rows]; `y`, [rows, k], is for the dot product
/// alone and empty otherwise. Rows in parallel, each independent of the others. Throws UserError, with
/// nothing written, when sizes do not match or lanes are invalid.
void sum_rows(RowSum what, Lanes lanes, std::span<const float> x, std::span<const float> y, int64_t k,
              std::span<float> out);
void sum_rows(RowSum what, Lanes lanes, std::span<const Bf16> x, std::span<const Bf16> y, int64_t k,
              std::span<float> out);

}  // namespace touchstone
