// The loops of a comparison that run over every element, compiled once per instruction set
// (difference_vector.cpp). The same bits from every set: lanes and trees are those written here.
#pragma once

#include <cstdint>

#include "golden/compare/element_types.h"
#include "reference/numerics/isa.h"

namespace touchstone::difference_parts {

/// Elements whose sums are added as one tree, and blocks that are measured together.
inline constexpr int64_t block_elements = 32, batch_blocks = 8;

/// Bins of the histogram but the last.
inline constexpr int ulp_bounds = 7;

/// Blocks of one row that hold differing elements. Behind a row's last element stand pairs of zeros, which
/// change nothing.
template <class Bits>
struct Batch {
    alignas(64) Bits expected[batch_blocks * block_elements];
    alignas(64) Bits got[batch_blocks * block_elements];
    int64_t begin[batch_blocks];  ///< each block's first element
    int64_t blocks = 0;
};

/// Elements and zeros, infinities and NaNs among them.
struct ElementCounts {
    int64_t zeros = 0, not_finite = 0;
};

/// What lets a differing element of one row pass; a limit that is not given lets nothing pass.
struct RowLimits {
    bool exact;     ///< nothing passes
    bool has_ulp;   ///< `ulp` is given
    uint64_t ulp;   ///< distance in units in the last place
    double of_rms;  ///< distance of values, at most this; -1: none
    double absolute, relative;
};

/// What the elements of one batch come to.
struct BatchResult {
    int64_t differing, outside;
    int64_t beyond[ulp_bounds];  ///< elements farther apart than each of ulp_bin_ends
    uint64_t largest_ulp;
    double largest_distance;
};

/// What is kept from batch to batch.
struct RunningSums {
    double differences = 0;     ///< (e - g)^2 of finite pairs
    double partner_excess = 0;  ///< g^2 - e^2 of finite pairs
    double largest_relative = 0;
    /// `largest_relative` is a quotient of two numbers of at most 24 bits: see may_be_larger.
    bool quotient_is_narrow = true;
};

/// The loops for one type.
template <class Type>
struct TypeKernels {
    using Bits = typename Type::Bits;

    /// Counts `count` elements from `bytes` on.
    ElementCounts (*count)(const std::byte* bytes, int64_t count);

    /// Sum of squares of the finite elements in eight lanes, element i in lane i mod 8, lanes added as a
    /// tree.
    double (*sum_of_squares)(const std::byte* bytes, int64_t count);

    /// Fills `batch` with the blocks of elements `begin` to `end` that differ, or with all of them where
    /// `all`; returns the first element that is not looked at yet.
    int64_t (*collect)(const std::byte* expected, const std::byte* got, int64_t begin, int64_t end, bool all,
                       Batch<Bits>& batch);

    /// Whether any element of the batch is not finite; such a batch is not to be measured.
    bool (*has_special)(const Batch<Bits>& batch);

    BatchResult (*measure)(const Batch<Bits>& batch, const RowLimits& limits, RunningSums& sums);
};

/// One instruction set's loops for all types.
struct DifferenceKernels : TypeKernels<element_types::F64>,
                           TypeKernels<element_types::F32>,
                           TypeKernels<element_types::F16>,
                           TypeKernels<element_types::Bfloat16>,
                           TypeKernels<element_types::F8E5m2>,
                           TypeKernels<element_types::F8E4m3>,
                           TypeKernels<element_types::F4E2m1>,
                           TypeKernels<element_types::F8E8m0>,
                           TypeKernels<element_types::Integer<uint8_t, uint8_t>>,
                           TypeKernels<element_types::Integer<uint8_t, int8_t>>,
                           TypeKernels<element_types::Integer<uint16_t, uint16_t>>,
                           TypeKernels<element_types::Integer<uint16_t, int16_t>>,
                           TypeKernels<element_types::Integer<uint32_t, uint32_t>>,
                           TypeKernels<element_types::Integer<uint32_t, int32_t>>,
                           TypeKernels<element_types::Integer<uint64_t, uint64_t>>,
                           TypeKernels<element_types::Integer<uint64_t, int64_t>> {
    Isa isa;
};

/// The loops of `isa`, which this CPU has to support.
const DifferenceKernels& difference_kernels(Isa isa);

}  // namespace touchstone::difference_parts
