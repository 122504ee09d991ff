// Compiled once per instruction set: a comparison's loops over elements (difference_vector.h).
#include "golden/compare/difference_vector.h"

#include <cstring>
#include <limits>

#include "reference/numerics/isa_vector.h"

namespace touchstone::TOUCHSTONE_ISA_NAMESPACE {

namespace {

using namespace difference_parts;

constexpr int block = block_elements;

/// fp64 lanes of a vector.
constexpr int lanes = vector_width / 2;
typedef double Doubles __attribute__((vector_size(8 * lanes)));
typedef int64_t Masks __attribute__((vector_size(8 * lanes)));

template <class Vector, class T>
[[gnu::always_inline]] inline Vector vector_at(const T* values) {
    Vector result;
    std::memcpy(&result, values, sizeof(result));
    return result;
}
[[gnu::always_inline]] inline Doubles magnitude(Doubles x) {
    return reinterpret_cast<Doubles>(reinterpret_cast<Masks>(x) & std::numeric_limits<int64_t>::max());
}

#if defined(__AVX512F__)
[[gnu::always_inline]] inline auto half_sums(const Doubles& v) {
    return __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
}
#endif

/// Lane i takes lane i + half, until one is left.
[[gnu::always_inline]] inline double tree_sum(const Doubles& v) {
#if defined(__AVX512F__)
    const auto four = half_sums(v);
#else
    const auto& four = v;
#endif
#if defined(__AVX2__)
    const auto two = __builtin_shufflevector(four, four, 0, 1) + __builtin_shufflevector(four, four, 2, 3);
#else
    const auto& two = four;
#endif
    return two[0] + two[1];
}

/// Element i takes element i + half of a block, until one is left.
[[gnu::always_inline]] inline double tree_sum(Doubles (&values)[block / lanes]) {
    for (int half = block / lanes / 2; half > 0; half /= 2)
        for (int i = 0; i < half; ++i) values[i] += values[i + half];
    return tree_sum(values[0]);
}

/// Types of at most two bytes go through fp32, which has all their values: the compiler makes no vectors of a
/// loop that widens from one byte to eight.
template <class Type>
[[gnu::always_inline]] inline void decode(const typename Type::Bits* bits, double (&values)[block]) {
    if constexpr (sizeof(typename Type::Bits) <= 2) {
        alignas(64) float narrow[block];
        for (int i = 0; i < block; ++i) narrow[i] = static_cast<float>(Type::value(bits[i]));
        for (int i = 0; i < block; ++i) values[i] = static_cast<double>(narrow[i]);
    } else {
        for (int i = 0; i < block; ++i) values[i] = Type::value(bits[i]);
    }
}

/// In the element's own width: at most 255 elements, which every width can count.
template <class Type>
void count_run(const std::byte* bytes, int64_t count, ElementCounts& counts) {
    using Bits = typename Type::Bits;
    Bits zeros = 0, special = 0;
    for (int64_t i = 0; i < count; ++i) {
        Bits bits;
        std::memcpy(&bits, bytes + i * static_cast<int64_t>(sizeof(Bits)), sizeof(Bits));
        zeros = static_cast<Bits>(zeros + (Type::zero(bits) ? 1 : 0));
        special = static_cast<Bits>(special + (Type::finite(bits) ? 0 : 1));
    }
    counts.zeros += static_cast<int64_t>(zeros);
    counts.not_finite += static_cast<int64_t>(special);
}

template <class Type>
ElementCounts count(const std::byte* bytes, int64_t elements) {
    constexpr int64_t run = 192, width = sizeof(typename Type::Bits);
    ElementCounts counts;
    int64_t i = 0;
    for (; i + run <= elements; i += run) count_run<Type>(bytes + i * width, run, counts);
    count_run<Type>(bytes + i * width, elements - i, counts);
    return counts;
}

/// Element i goes to lane i mod 8.
template <class Type>
[[gnu::always_inline]] inline void add_squares(const typename Type::Bits* bits, Doubles (&sums)[8 / lanes]) {
    using Bits = typename Type::Bits;
    alignas(64) double values[block];
    alignas(64) Bits finite[block];
    for (int i = 0; i < block; ++i) finite[i] = Type::finite(bits[i]) ? bits[i] : 0;
    decode<Type>(finite, values);
    if (!Type::zero(Bits{0}))
        for (int i = 0; i < block; ++i) values[i] = Type::finite(bits[i]) ? values[i] : 0;
    for (int i = 0; i < block; i += 8)
        for (int j = 0; j < 8 / lanes; ++j) {
            const Doubles value = vector_at<Doubles>(values + i + j * lanes);
            sums[j] += value * value;
        }
}

template <class Type>
double sum_of_squares(const std::byte* bytes, int64_t elements) {
    using Bits = typename Type::Bits;
    constexpr int64_t width = sizeof(Bits);
    Doubles sums[8 / lanes]{};
    alignas(64) Bits bits[block];
    int64_t i = 0;
    for (; i + block <= elements; i += block) {
        std::memcpy(bits, bytes + i * width, sizeof(bits));
        add_squares<Type>(bits, sums);
    }
    if (i < elements) {  // what fills the block counts as 0: not every type has a zero, but those have a NaN
        std::memset(bits, Type::zero(Bits{0}) ? 0 : 0xFF, sizeof(bits));
        std::memcpy(bits, bytes + i * width, static_cast<size_t>((elements - i) * width));
        add_squares<Type>(bits, sums);
    }
    for (int half = 4 / lanes; half > 0; half /= 2)
        for (int j = 0; j < half; ++j) sums[j] += sums[j + half];
    return tree_sum(sums[0]);
}

template <class Type>
int64_t collect(const std::byte* expected, const std::byte* got, int64_t begin, int64_t end, bool all,
                Batch<typename Type::Bits>& batch) {
    using Bits = typename Type::Bits;
    constexpr int64_t width = sizeof(Bits);
    int64_t i = begin;
    for (batch.blocks = 0; i < end && batch.blocks < batch_blocks; i += block) {
        Bits* const e = batch.expected + batch.blocks * block;
        Bits* const g = batch.got + batch.blocks * block;
        if (end - i >= block) {
            std::memcpy(e, expected + i * width, block * width);
            std::memcpy(g, got + i * width, block * width);
        } else {
            std::memset(e, 0, block * width);
            std::memset(g, 0, block * width);
            std::memcpy(e, expected + i * width, static_cast<size_t>((end - i) * width));
            std::memcpy(g, got + i * width, static_cast<size_t>((end - i) * width));
        }
        Bits differing = 0;
        for (int j = 0; j < block; ++j) differing |= static_cast<Bits>(e[j] ^ g[j]);
        batch.begin[batch.blocks] = i;
        batch.blocks += all || differing != 0 ? 1 : 0;
    }
    return i < end ? i : end;
}

template <class Type>
bool has_special(const Batch<typename Type::Bits>& batch) {
    using Bits = typename Type::Bits;
    Bits special = 0;
    for (int64_t i = 0; i < batch.blocks * block; i += block)
        for (int64_t j = i; j < i + block; ++j)
            special |= static_cast<Bits>(static_cast<Bits>(!Type::finite(batch.expected[j])) |
                                         static_cast<Bits>(!Type::finite(batch.got[j])));
    return special != 0;
}

/// Differing elements and distances in units in the last place, in the element's own width.
template <class Type>
[[gnu::always_inline]] inline void count_ulps(const Batch<typename Type::Bits>& batch, BatchResult& result) {
    using Bits = typename Type::Bits;
    constexpr uint64_t bounds[ulp_bounds]{0, 1, 2, 4, 16, 256, 65536};
    constexpr Bits most = static_cast<Bits>(~Bits{0});
    alignas(64) Bits ulps[batch_blocks * block];
    alignas(64) Bits differing[block]{}, largest[block]{};
    for (int64_t first = 0; first < batch.blocks * block; first += block) {
        const Bits *e = batch.expected + first, *g = batch.got + first;
        for (int i = 0; i < block; ++i) ulps[first + i] = element_types::distance<Type>(e[i], g[i]);
        for (int i = 0; i < block; ++i)
            largest[i] = largest[i] < ulps[first + i] ? ulps[first + i] : largest[i];
        for (int i = 0; i < block; ++i)
            differing[i] = static_cast<Bits>(differing[i] + (e[i] != g[i] ? 1 : 0));
    }
    Bits last = 0;
    for (int i = 0; i < block; ++i) last = last < largest[i] ? largest[i] : last;
    result.largest_ulp = last;
    result.differing = 0;
    for (int i = 0; i < block; ++i) result.differing += static_cast<int64_t>(differing[i]);
    for (int bin = 0; bin < ulp_bounds; ++bin) {
        result.beyond[bin] = 0;
        if (bounds[bin] >= most || last <= static_cast<Bits>(bounds[bin])) continue;
        const Bits bound = static_cast<Bits>(bounds[bin]);
        alignas(64) Bits beyond[block]{};
        for (int64_t first = 0; first < batch.blocks * block; first += block)
            for (int i = 0; i < block; ++i)
                beyond[i] = static_cast<Bits>(beyond[i] + (ulps[first + i] > bound ? 1 : 0));
        for (int i = 0; i < block; ++i) result.beyond[bin] += static_cast<int64_t>(beyond[i]);
    }
}

/// Distances of a block's values; doubles would lose that of large integers.
template <class Type>
[[gnu::always_inline]] inline void distances_of(const typename Type::Bits* expected,
                                                const typename Type::Bits* got, double (&distances)[block]) {
    if constexpr (Type::is_float || sizeof(typename Type::Bits) <= 2) {
        alignas(64) double values[block];
        decode<Type>(expected, values);
        decode<Type>(got, distances);
        for (int i = 0; i < block; ++i) distances[i] = __builtin_fabs(distances[i] - values[i]);
    } else {
        for (int i = 0; i < block; ++i)
            distances[i] = element_types::absolute_difference<Type>(expected[i], got[i]);
    }
}

template <class Type>
int64_t count_outside(const Batch<typename Type::Bits>& batch, const RowLimits& limits) {
    using Bits = typename Type::Bits;
    constexpr Bits most = static_cast<Bits>(~Bits{0});
    const Bits ulp = limits.ulp < most ? static_cast<Bits>(limits.ulp) : most;
    const Bits has_ulp = limits.has_ulp ? 1 : 0;
    int64_t sum = 0;
    for (int64_t first = 0; first < batch.blocks * block; first += block) {
        const Bits *e = batch.expected + first, *g = batch.got + first;
        alignas(64) double distances[block], values[block];
        alignas(64) int64_t within[block];
        Bits close[block];
        distances_of<Type>(e, g, distances);
        decode<Type>(e, values);
        for (int i = 0; i < block; ++i)
            close[i] =
                static_cast<Bits>((has_ulp & (element_types::distance<Type>(e[i], g[i]) <= ulp ? 1 : 0)) |
                                  (e[i] == g[i] ? 1 : 0));
        for (int i = 0; i < block; ++i)
            within[i] =
                (distances[i] <= limits.of_rms ? 1 : 0) |
                (distances[i] <= limits.absolute + limits.relative * __builtin_fabs(values[i]) ? 1 : 0);
        for (int i = 0; i < block; ++i) sum += (within[i] | static_cast<int64_t>(close[i])) == 0 ? 1 : 0;
    }
    return sum;
}

template <class Type>
void divide_by_values(const Batch<typename Type::Bits>& batch, double& largest_relative) {
    Doubles largest{};
    for (int64_t first = 0; first < batch.blocks * block; first += block) {
        alignas(64) double distances[block], values[block];
        distances_of<Type>(batch.expected + first, batch.got + first, distances);
        decode<Type>(batch.expected + first, values);
        for (int i = 0; i < block; ++i) {
            const double value = __builtin_fabs(values[i]);
            values[i] = value > 0 ? value : std::numeric_limits<double>::infinity();
        }
        for (int i = 0; i < block; i += lanes) {
            const Doubles quotient = vector_at<Doubles>(distances + i) / vector_at<Doubles>(values + i);
            largest = largest < quotient ? quotient : largest;
        }
    }
    for (int i = 0; i < lanes; ++i)
        largest_relative = largest_relative < largest[i] ? largest[i] : largest_relative;
}

/// Types whose values have at most 24 bits; so have their distances, if the lowest 29 of a double's are zero.
template <class Type>
constexpr bool narrow_values = Type::is_float ? sizeof(typename Type::Bits) <= 4
                                              : sizeof(typename Type::Bits) <= 2;

/// Sums and largest distance of a batch; whether a quotient may be larger than the largest so far, and
/// whether all distances have at most 24 bits. d / m > r implies d >= r m, however it is rounded; where both
/// quotients are of 24 bits each, different ones are 2^-48 apart, and equal ones need no second look.
struct Look {
    double largest_distance;
    bool larger_quotient, narrow;
};

template <class Type>
[[gnu::always_inline]] inline Look add_batch(const Batch<typename Type::Bits>& batch, RunningSums& sums) {
    using Bits = typename Type::Bits;
    constexpr bool direct = Type::is_float || sizeof(Bits) <= 2;
    const bool narrow = narrow_values<Type> && sums.quotient_is_narrow;
    const double bound = sums.largest_relative * (narrow ? 1 + 0x1p-49 : 1);
    Doubles largest{};
    Masks reached{}, low{};
    for (int64_t first = 0; first < batch.blocks * block; first += block) {
        const Bits *e = batch.expected + first, *g = batch.got + first;
        alignas(64) double expected[block], got[block], integers[block];
        decode<Type>(e, expected);
        decode<Type>(g, got);
        if constexpr (!direct) distances_of<Type>(e, g, integers);
        Doubles squares[block / lanes], excesses[block / lanes];
        for (int i = 0; i < block / lanes; ++i) {
            const Doubles x = vector_at<Doubles>(expected + i * lanes),
                          y = vector_at<Doubles>(got + i * lanes);
            const Doubles up = y - x;
            Doubles distance = magnitude(up);
            if constexpr (!direct) distance = vector_at<Doubles>(integers + i * lanes);
            squares[i] = distance * distance;
            excesses[i] = up * (y + x);
            largest = largest < distance ? distance : largest;
            reached |= (distance >= bound * magnitude(x)) & (distance > 0);
            low |= reinterpret_cast<Masks>(distance);
        }
        sums.differences += tree_sum(squares);
        sums.partner_excess += tree_sum(excesses);
    }
    Look look{0, false, true};
    for (int i = 0; i < lanes; ++i) {
        look.largest_distance = look.largest_distance < largest[i] ? largest[i] : look.largest_distance;
        look.larger_quotient |= reached[i] != 0;
        look.narrow &= (low[i] & ((int64_t{1} << 29) - 1)) == 0;
    }
    look.larger_quotient |= narrow && !look.narrow;  // the bound was that of narrow ones
    return look;
}

template <class Type>
BatchResult measure(const Batch<typename Type::Bits>& batch, const RowLimits& limits, RunningSums& sums) {
    BatchResult result;
    count_ulps<Type>(batch, result);
    const Look look = add_batch<Type>(batch, sums);
    result.largest_distance = look.largest_distance;
    if (look.larger_quotient) {
        const double before = sums.largest_relative;
        divide_by_values<Type>(batch, sums.largest_relative);
        if (sums.largest_relative > before) sums.quotient_is_narrow = look.narrow;
    }
    result.outside = limits.exact ? result.differing : count_outside<Type>(batch, limits);
    return result;
}

template <class Type>
constexpr TypeKernels<Type> kernels_of{count<Type>, sum_of_squares<Type>, collect<Type>, has_special<Type>,
                                       measure<Type>};

}  // namespace

extern const DifferenceKernels difference_kernels;
const DifferenceKernels difference_kernels{kernels_of<element_types::F64>,
                                           kernels_of<element_types::F32>,
                                           kernels_of<element_types::F16>,
                                           kernels_of<element_types::Bfloat16>,
                                           kernels_of<element_types::F8E5m2>,
                                           kernels_of<element_types::F8E4m3>,
                                           kernels_of<element_types::F4E2m1>,
                                           kernels_of<element_types::F8E8m0>,
                                           kernels_of<element_types::Integer<uint8_t, uint8_t>>,
                                           kernels_of<element_types::Integer<uint8_t, int8_t>>,
                                           kernels_of<element_types::Integer<uint16_t, uint16_t>>,
                                           kernels_of<element_types::Integer<uint16_t, int16_t>>,
                                           kernels_of<element_types::Integer<uint32_t, uint32_t>>,
                                           kernels_of<element_types::Integer<uint32_t, int32_t>>,
                                           kernels_of<element_types::Integer<uint64_t, uint64_t>>,
                                           kernels_of<element_types::Integer<uint64_t, int64_t>>,
                                           compiled_isa};

}  // namespace touchstone::TOUCHSTONE_ISA_NAMESPACE
