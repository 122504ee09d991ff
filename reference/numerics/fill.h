// Fillers: the inputs of cases, tests and benchmarks. Element i is a function of seed, stream and i alone, by
// integer arithmetic and correctly rounded steps, so every machine and any part of a tensor gives the same
// bits.
#pragma once

#include <cstdint>
#include <span>

#include "reference/numerics/random.h"
#include "reference/numerics/small_float.h"

namespace touchstone {

enum class Filler : uint8_t {
    /// Multiples of 1/4 from -2 to 1.75 (e2m1: every code; e8m0: 1/2, 1, 2), so that every order of adding,
    /// by
    /// FMA or through tensor cores, gives one fp32: sums of 2^21 of them, or of 100,000 products; under two
    /// e8m0
    /// scales 16,000 products, 10,000 when one factor is e2m1, 7,000 when both are.
    exact,
    /// About N(0, 1), the sum of eight 16-bit integers (e4m3: times 128, so that about one in 2,000 clamps;
    /// e2m1:
    /// times 2; e8m0: 2^-6 to 2^2, thinning out downwards).
    normal,
    /// Shaped to trip known faults, all finite, sixteen neighbours of a kind: ties between bf16, e4m3 and
    /// e2m1
    /// codes of both parities and what lies beside them, both zeros, the limits 6, 10, 20, 448 and what lies
    /// beside them, of both signs, subnormals, huge values, and many equal ones. Of e4m3, e2m1 and e8m0: any
    /// code
    /// but NaN.
    trap,
    /// NaN with all bits set, for memory that nobody may read. e2m1 has none.
    poison,
};

/// Element `index`, T one of float, Bf16, E4m3, E2m1, E8m0. Throws UserError for poison of E2m1.
template <class T>
T filled(Filler filler, RandomStream random, uint64_t index);

/// Elements first_index, first_index + 1, ... Throws as `filled` does, with nothing written.
template <class T>
void fill(Filler filler, RandomStream random, std::span<T> out, uint64_t first_index = 0);

}  // namespace touchstone
