// Tensors for tests of the model's components: Philox fills them, so a seed names a case. And what the judges
// in double need: the same values as matrices, and whether a bf16 lies where its bound allows.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "reference/linear.h"
#include "reference/numerics/random.h"
#include "reference/truth/ledger.h"

namespace touchstone::random_tensors {

/// Sum of four uniform numbers: near normal, of variance 1/3.
inline float bell(const RandomStream& random, uint64_t i) {
    const PhiloxBlock block = random.block(i);
    float sum = 0;
    for (uint32_t word : block.words) sum += static_cast<float>(word >> 8) * 0x1p-24f - 0.5f;
    return sum;
}

inline std::vector<float> fp32(int64_t count, RandomStream random, float scale = 1) {
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = scale * bell(random, i);
    return values;
}

inline std::vector<Bf16> bf16(int64_t count, RandomStream random, float scale = 1) {
    std::vector<Bf16> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = bf16_from_float(scale * bell(random, i));
    return values;
}

/// An L8's weight and what it refers to.
struct Fp8Storage {
    std::vector<E4m3> codes;
    std::vector<E8m0> scales;
    int64_t outputs, inputs;

    Fp8Storage(int64_t outputs_, int64_t inputs_, RandomStream random)
        : codes(static_cast<size_t>(outputs_ * inputs_)),
          scales(static_cast<size_t>((outputs_ + 31) / 32 * (inputs_ / 32))),
          outputs(outputs_),
          inputs(inputs_) {
        for (size_t i = 0; i < codes.size(); ++i)
            codes[i] = e4m3_from_float_saturating(200 * bell(random, i));
        for (size_t i = 0; i < scales.size(); ++i)
            scales[i] = {static_cast<uint8_t>(117 + random.word(4 * codes.size() + i) % 4)};
    }
    Fp8Weight weight() const { return {"an fp8 weight", outputs, inputs, codes, scales}; }
};

/// An L4's.
struct Fp4Storage {
    std::vector<uint8_t> codes;
    std::vector<E8m0> scales;
    int64_t outputs, inputs;

    Fp4Storage(int64_t outputs_, int64_t inputs_, RandomStream random)
        : codes(static_cast<size_t>(outputs_ * inputs_ / 2)),
          scales(static_cast<size_t>(outputs_ * (inputs_ / 32))),
          outputs(outputs_),
          inputs(inputs_) {
        for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(random.word(i) >> 7);
        for (size_t i = 0; i < scales.size(); ++i)
            scales[i] = {static_cast<uint8_t>(122 + random.word(codes.size() + i) % 4)};
    }
    Fp4Weight weight() const { return {"an fp4 weight", outputs, inputs, codes, scales}; }
};

inline double widened(float x) {
    return static_cast<double>(x);
}
inline double widened(Bf16 x) {
    return static_cast<double>(to_float(x));
}

/// A row-major tensor in double, [rows, size / rows].
template <class Tensor>
truth::Matrix matrix(const Tensor& values, int64_t rows) {
    truth::Matrix result(rows, rows == 0 ? 0 : std::ssize(values) / rows);
    for (size_t i = 0; i < values.size(); ++i) result.data()[i] = widened(values[i]);
    return result;
}

/// `value` is the bf16 of some number within `bound` of `exact`.
inline bool rounds_within(Bf16 value, double exact, double bound) {
    const double v = widened(value);
    return truth::nearest_bf16(exact - bound) <= v && v <= truth::nearest_bf16(exact + bound);
}

/// Elements whose bits differ.
inline int64_t differing(std::span<const float> left, std::span<const float> right) {
    int64_t count = std::ssize(left) == std::ssize(right) ? 0 : 1;
    for (size_t i = 0; i < left.size() && i < right.size(); ++i)
        count += float_bits(left[i]) != float_bits(right[i]);
    return count;
}
inline int64_t differing(std::span<const Bf16> left, std::span<const Bf16> right) {
    int64_t count = std::ssize(left) == std::ssize(right) ? 0 : 1;
    for (size_t i = 0; i < left.size() && i < right.size(); ++i) count += left[i].bits != right[i].bits;
    return count;
}

/// What a relative error of one fp32 rounding is at most.
inline constexpr double u = 0x1p-24;

/// Of a sum of squares in lanes and 1 / sqrt(sum / k + eps): relative, at most. A lane adds, the tree adds,
/// division and eps round; the root halves that; root and reciprocal round.
inline double reciprocal_rms_error(int64_t k, const Lanes& lanes) {
    const double rounds = std::ceil(static_cast<double>(k) / lanes.count / lanes.run()) * lanes.run() +
                          std::log2(lanes.count) + 2;
    return (rounds / 2 + 2) * u * 1.001;
}

}  // namespace touchstone::random_tensors
