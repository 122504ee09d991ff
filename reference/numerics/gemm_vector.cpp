// Inner loops of gemm.h for 16 outputs, compiled once per instruction set (numerics/isa.h). The order of
// every sum is that of the definitions; vectors run across outputs, so their width changes nothing.
#include <cstdint>

#include "reference/numerics/gemm.h"
#include "reference/numerics/host_device.h"
#include "reference/numerics/isa_vector.h"
#include "reference/numerics/small_float.h"
#include "reference/numerics/tensor_core_operand.h"

namespace touchstone::TOUCHSTONE_ISA_NAMESPACE {

namespace {

constexpr int columns = 16;
constexpr int width = vector_width;
constexpr int parts = columns / width;

typedef int32_t Ints __attribute__((vector_size(4 * width)));
typedef uint32_t Words __attribute__((vector_size(4 * width)));
typedef double Doubles __attribute__((vector_size(4 * width)));  // width / 2 lanes
typedef float HalfFloats __attribute__((vector_size(2 * width)));
typedef int16_t Shorts __attribute__((vector_size(4 * width)));  // 2 * width lanes

template <class Vector>
[[gnu::always_inline]] inline Vector load(const void* from) {
    Vector vector;
    __builtin_memcpy(&vector, from, sizeof(Vector));
    return vector;
}

template <class Vector>
[[gnu::always_inline]] inline void store(void* to, Vector vector) {
    __builtin_memcpy(to, &vector, sizeof(Vector));
}

/// The 32 bits at `from` in every lane. As a float: an integer would go through a general register and take
/// the place of arithmetic on its way to the vector.
[[gnu::always_inline]] inline Ints broadcast_bits(const void* from) {
#if defined(__AVX512F__)
    return (Ints)_mm512_set1_ps(load<float>(from));
#elif defined(__AVX2__)
    return (Ints)_mm256_set1_ps(load<float>(from));
#else
    return Ints{} + load<int32_t>(from);
#endif
}

[[gnu::always_inline]] inline bool any(Ints mask) {
#if defined(__AVX512F__)
    const __m512i bits = (__m512i)mask;
    return _mm512_test_epi32_mask(bits, bits) != 0;
#elif defined(__AVX2__)
    const __m256i bits = (__m256i)mask;
    return !_mm256_testz_si256(bits, bits);
#else
    int32_t joined = 0;
    for (int i = 0; i < width; ++i) joined |= mask[i];
    return joined != 0;
#endif
}

/// For products and sums that are exact in double, where one rounding or two are the same.
[[gnu::always_inline]] inline Doubles multiply_add_exact(Doubles a, Doubles b, Doubles c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_pd(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_pd(a, b, c);
#else
    return c + a * b;
#endif
}

// AVX-512 below by the forms with a mask, here of every lane: the others give gcc 12 a variable that is never
// set, and a warning.

/// The smaller of two numbers.
[[gnu::always_inline]] inline Floats smaller(Floats a, Floats b) {
#if defined(__AVX512F__)
    return _mm512_maskz_min_ps(0xFFFF, a, b);
#elif defined(__AVX2__)
    return _mm256_min_ps(a, b);
#else
    return a < b ? a : b;
#endif
}

[[gnu::always_inline]] inline Doubles low_half(Floats x) {
#if defined(__AVX512F__)
    return _mm512_maskz_cvtps_pd(0xFF, _mm512_maskz_extractf32x8_ps(0xFF, x, 0));
#elif defined(__AVX2__)
    return _mm256_cvtps_pd(_mm256_castps256_ps128(x));
#else
    return Doubles{x[0], x[1]};
#endif
}

[[gnu::always_inline]] inline Doubles high_half(Floats x) {
#if defined(__AVX512F__)
    return _mm512_maskz_cvtps_pd(0xFF, _mm512_maskz_extractf32x8_ps(0xFF, x, 1));
#elif defined(__AVX2__)
    return _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
#else
    return Doubles{x[2], x[3]};
#endif
}

/// `width` bytes, one in each lane.
[[gnu::always_inline]] inline Ints load_bytes(const uint8_t* from) {
#if defined(__AVX512F__)
    return (Ints)_mm512_maskz_cvtepu8_epi32(0xFFFF, load<__m128i>(from));
#elif defined(__AVX2__)
    return (Ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
    return Ints{from[0], from[1], from[2], from[3]};
#endif
}

/// Values of codes, one in each lane. With the implicit one that subnormals lack, a magnitude reads as f,
/// which is right from the smallest normal s on; below, the value is 2 f - s. Everywhere it is the smaller of
/// the two.
template <CodeFormat format>
[[gnu::always_inline]] inline Floats code_values(Ints codes) {
    constexpr bool e4m3 = format == CodeFormat::e4m3;
    constexpr int bits = e4m3 ? 7 : 3, mantissa_bits = e4m3 ? 3 : 1, bias = e4m3 ? 7 : 1;
    constexpr float smallest_normal = e4m3 ? 0x1p-6f : 1.0f;
    const Ints magnitude = codes & ((1 << bits) - 1);
    const Floats normal = (Floats)((magnitude << (23 - mantissa_bits)) + ((127 - bias) << 23));
    const Ints value = (Ints)smaller(normal, normal + normal - smallest_normal);
    const Ints sign = (codes >> bits) << 31;  // of a code in an otherwise empty lane
    if constexpr (e4m3) return (Floats)(value | sign | (magnitude == 0x7F));  // all ones: NaN
    return (Floats)(value | sign);
}

typedef uint8_t Codes __attribute__((vector_size(16)));
typedef uint16_t CodePairs __attribute__((vector_size(16)));
typedef uint64_t CodeOctets __attribute__((vector_size(16)));

/// The first, or last, elements of a and b in turn.
template <class Vector>
[[gnu::always_inline]] inline void interleave(Codes a, Codes b, Codes& first, Codes& last) {
    const Vector x = (Vector)a, y = (Vector)b;
    if constexpr (sizeof(x[0]) == 1) {
        first = (Codes)__builtin_shufflevector(x, y, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        last = (Codes)__builtin_shufflevector(x, y, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15,
                                              31);
    } else {
        first = (Codes)__builtin_shufflevector(x, y, 0, 8, 1, 9, 2, 10, 3, 11);
        last = (Codes)__builtin_shufflevector(x, y, 4, 12, 5, 13, 6, 14, 7, 15);
    }
}

/// A matrix of 16-byte rows, transposed: each perfect shuffle, rows i and i + count / 2 to 2i and 2i + 1,
/// moves one bit of the row's number into the column's.
template <class Vector, int count, int stages>
[[gnu::always_inline]] inline void transpose(Codes* rows) {
    for (int stage = 0; stage < stages; ++stage) {
        Codes shuffled[count];
        for (int i = 0; i < count / 2; ++i)
            interleave<Vector>(rows[i], rows[i + count / 2], shuffled[2 * i], shuffled[2 * i + 1]);
        for (int i = 0; i < count; ++i) rows[i] = shuffled[i];
    }
}

/// The 16 codes of one k, in each byte or in the nibble `shift` bits up, as fp32.
template <CodeFormat format>
[[gnu::always_inline]] inline void store_values(const Codes& codes, int shift, float* values) {
    for (int part = 0; part < parts; ++part) {
        const Ints loaded = load_bytes((const uint8_t*)&codes + part * width);
        store(values + part * width,
              code_values<format>(format == CodeFormat::e4m3 ? loaded : loaded >> shift & 15));
    }
}

void pack_e4m3(const uint8_t* const* rows, int64_t count, float* values) {
    for (int64_t k = 0; k < count; k += 16) {
        alignas(64) Codes codes[16];
        for (int column = 0; column < columns; ++column) codes[column] = load<Codes>(rows[column] + k);
        transpose<Codes, 16, 4>(codes);
        for (int i = 0; i < 16; ++i) store_values<CodeFormat::e4m3>(codes[i], 0, values + (k + i) * columns);
    }
}

/// Bytes are transposed with the two elements that they hold.
void pack_e2m1(const uint8_t* const* rows, int64_t count, float* values) {
    for (int64_t k = 0; k < count; k += 32) {
        const bool whole = count - k >= 32;  // or 16 elements are left, 8 bytes
        alignas(64) Codes pairs[16];
        for (int column = 0; column < columns; ++column) {
            const uint8_t* from = rows[column] + k / 2;
            pairs[column] = whole ? load<Codes>(from) : (Codes)CodeOctets{load<uint64_t>(from), 0};
        }
        transpose<Codes, 16, 4>(pairs);
        for (int i = 0; i < (whole ? 16 : 8); ++i) {
            float* even = values + (k + 2 * i) * columns;
            store_values<CodeFormat::e2m1>(pairs[i], 0, even);
            store_values<CodeFormat::e2m1>(pairs[i], 4, even + columns);
        }
    }
}

void pack_codes(CodeFormat format, const uint8_t* const* rows, int64_t count, float* values) {
    if (format == CodeFormat::e4m3) return pack_e4m3(rows, count, values);
    pack_e2m1(rows, count, values);
}

void pack_bf16(const Bf16* const* rows, int64_t count, float* values) {
    int64_t k = 0;
    for (; k + 8 <= count; k += 8) {
        Codes halves[2][8];  // columns 0..7, 8..15
        for (int column = 0; column < columns; ++column)
            halves[column / 8][column % 8] = load<Codes>(rows[column] + k);
        transpose<CodePairs, 8, 3>(halves[0]);
        transpose<CodePairs, 8, 3>(halves[1]);
        for (int i = 0; i < 8; ++i)
            for (int half = 0; half < 2; ++half) {
                // Zeros below each half: its fp32.
                Codes low, high;
                interleave<CodePairs>(Codes{}, halves[half][i], low, high);
                store(values + (k + i) * columns + 8 * half, low);
                store(values + (k + i) * columns + 8 * half + 4, high);
            }
    }
    for (; k < count; ++k)
        for (int column = 0; column < columns; ++column)
            values[k * columns + column] = to_float(rows[column][k]);
}

void scale_panel(const float* scales, int64_t count, float* values) {
    for (int64_t k = 0; k < count; ++k)
        for (int part = 0; part < parts; ++part) {
            float* at = values + k * columns + part * width;
            const Ints product = (Ints)(load<Floats>(at) * load<Floats>(scales + part * width));
            store(at, (product & 0x7FFFFFFF) > 0x7F800000 ? Ints{} + (int32_t)canonical_nan_bits : product);
        }
}

/// operand_exponent of magnitudes' bits, none of them infinite or NaN.
[[gnu::always_inline]] inline Ints finite_exponents(Ints magnitudes, int32_t smallest) {
    const Ints exponents = (magnitudes >> 23) - 127;
    const Ints numbers = exponents > smallest ? exponents : Ints{} + smallest;
    return magnitudes == 0 ? Ints{} + TensorCoreOperand::zero_exponent : numbers;
}

void panel_exponents(const float* values, int64_t count, int32_t smallest, int16_t* exponents) {
    constexpr int32_t largest_finite = 0x7F7FFFFF;
    for (int64_t k = 0; k < count; k += 2) {
        const float* row = values + k * columns;
        int16_t* pairs = exponents + k * columns;
        Ints special = {};
        for (int part = 0; part < parts; ++part) {
            const Ints even = load<Ints>(row + part * width) & 0x7FFFFFFF;
            const Ints odd = load<Ints>(row + columns + part * width) & 0x7FFFFFFF;
            special |= (even > largest_finite) | (odd > largest_finite);
            store(pairs + 2 * part * width,
                  (finite_exponents(even, smallest) & 0xFFFF) | finite_exponents(odd, smallest) << 16);
        }
        if (any(special)) [[unlikely]]
            for (int column = 0; column < columns; ++column)
                for (int odd = 0; odd < 2; ++odd)
                    pairs[2 * column + odd] =
                        static_cast<int16_t>(operand_exponent(row[odd * columns + column], smallest));
    }
}

void operand_exponents(const float* values, int64_t count, int32_t smallest, int16_t* exponents) {
    for (int64_t i = 0; i < count; ++i)
        exponents[i] = static_cast<int16_t>(operand_exponent(values[i], smallest));
}

/// Exponents between which the fast form is exact: the unit 2^(e - F) and every scaled term are normal
/// fp32 numbers, the result neither subnormal nor infinite, and what a tiny product loses by underflow
/// lies below the unit.
constexpr int32_t lowest_fast = -100, highest_fast = 120;

struct PanelExponents {
    Ints largest[parts];
    bool fast;
};

/// The largest exponent of one step's terms, per column.
template <int products>
[[gnu::always_inline]] inline PanelExponents largest_exponents(const int16_t* a_exponents,
                                                               const int16_t* b_exponents,
                                                               const float* accumulators) {
    PanelExponents result;
    Ints slow = {};
    for (int part = 0; part < parts; ++part) {
        // Two k at a time, one in each half of a column's 32 bits.
        const int16_t* pairs = b_exponents + 2 * part * width;
        Shorts of_pairs = (Shorts)broadcast_bits(a_exponents) + load<Shorts>(pairs);
        for (int k = 2; k < products; k += 2) {
            const Shorts exponent =
                (Shorts)broadcast_bits(a_exponents + k) + load<Shorts>(pairs + k * columns);
            of_pairs = of_pairs > exponent ? of_pairs : exponent;
        }
        const Ints even = (Ints)((Words)of_pairs << 16) >> 16, odd = (Ints)of_pairs >> 16;
        const Ints of_products = even > odd ? even : odd;
        const Ints magnitude = load<Ints>(accumulators + part * width) & 0x7FFFFFFF;
        const Ints field = magnitude >> 23;
        const Ints subnormal = magnitude == 0 ? Ints{} + TensorCoreOperand::zero_exponent : Ints{} - 126;
        const Ints of_accumulator = field == 0 ? subnormal : field - 127;
        const Ints largest = of_products > of_accumulator ? of_products : of_accumulator;
        slow |= (largest > highest_fast) |
                ((largest < lowest_fast) & (largest > TensorCoreOperand::all_zero_below));
        result.largest[part] = largest > lowest_fast ? largest : Ints{} + lowest_fast;
    }
    result.fast = !any(slow);
    return result;
}

/// int32 to fp32, truncated: clearing, of the bits that will be dropped, those under the leading ones of
/// `magnitude` shifted down by 24 leaves less than half a unit, and nearest rounds that down.
[[gnu::always_inline]] inline Floats truncated_floats(Ints total) {
    const Ints sign = total >> 31;
    const Ints magnitude = (total ^ sign) - sign;
    const Ints kept = magnitude & ~(magnitude >> 24);
    return (Floats)((Ints) __builtin_convertvector(kept, Floats) | (sign & INT32_MIN));
}

void slow_step(const ChainModel& model, const float* a, const int16_t* a_exponents, const float* b,
               const int16_t* b_exponents, int first, int count, float* accumulators) {
    for (int column = first; column < first + count; ++column)
        accumulators[column] = model.step(model.instruction, a, a_exponents, b + column,
                                          b_exponents + 2 * column, accumulators[column]);
}

/// One step for 16 columns. Terms are scaled so that the unit is 1 and converted to integers, which
/// truncates.
template <int products>
[[gnu::always_inline]] inline void chain_step(const ChainModel& model, const float* a,
                                              const int16_t* a_exponents, const float* b,
                                              const int16_t* b_exponents, float* accumulators) {
    const PanelExponents exponents = largest_exponents<products>(a_exponents, b_exponents, accumulators);
    if (!exponents.fast) [[unlikely]] {
        slow_step(model, a, a_exponents, b, b_exponents, 0, columns, accumulators);
        return;
    }
    for (int part = 0; part < parts; ++part) {
        const Ints shift = exponents.largest[part] - model.fraction_bits;
        const Floats to_unit = (Floats)((127 - shift) << 23), from_unit = (Floats)((127 + shift) << 23);
        Ints sums[4] = {};  // integers: any order gives their sum, and four do not wait for each other
        for (int k = 0; k < products; k += 4) {
            for (int i = 0; i < 4; ++i) {
                const Floats product = a[k + i] * load<Floats>(b + (k + i) * columns + part * width);
                sums[i] += __builtin_convertvector(product * to_unit, Ints);
            }
        }
        const Ints sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        const Floats accumulator = load<Floats>(accumulators + part * width);
        const Ints carried = __builtin_convertvector(accumulator * to_unit, Ints);
        // The products alone fit int32 (16 * 4 * 2^25 = 2^31, and no product reaches 4); with C they may
        // not.
        const Ints total = (Ints)((Words)sum + (Words)carried);
        if (any(((sum ^ total) & (carried ^ total)) < 0)) [[unlikely]] {
            slow_step(model, a, a_exponents, b, b_exponents, part * width, width, accumulators);
            continue;
        }
        const Ints result = (Ints)(truncated_floats(total) * from_unit) & (int32_t)model.output_mask;
        store(accumulators + part * width, result);
    }
}

/// Steps of the rows alternate: each waits for its own accumulator, and meanwhile the next row's can go on.
template <int products, int rows>
void chain_of(const ChainModel& model, const ChainRows& a, const float* b, const int16_t* b_exponents,
              int64_t steps, float* accumulators) {
    alignas(64) float local[rows][columns];
    __builtin_memcpy(local, accumulators, sizeof local);
    for (int64_t step = 0; step < steps; ++step) {
        const int64_t k = step * products;
        for (int row = 0; row < rows; ++row)
            chain_step<products>(model, a.values + row * a.stride + k, a.exponents + row * a.stride + k,
                                 b + k * columns, b_exponents + k * columns, local[row]);
    }
    __builtin_memcpy(accumulators, local, sizeof local);
}

template <int products>
void chain_rows(const ChainModel& model, const ChainRows& a, const float* b, const int16_t* b_exponents,
                int64_t steps, float* accumulators) {
    if (a.rows == 2) return chain_of<products, 2>(model, a, b, b_exponents, steps, accumulators);
    chain_of<products, 1>(model, a, b, b_exponents, steps, accumulators);
}

void chain(const ChainModel& model, const ChainRows& a, const float* b, const int16_t* b_exponents,
           int64_t steps, float* accumulators) {
    switch (model.products) {
        case 4: return chain_rows<4>(model, a, b, b_exponents, steps, accumulators);
        case 8: return chain_rows<8>(model, a, b, b_exponents, steps, accumulators);
        case 16: return chain_rows<16>(model, a, b, b_exponents, steps, accumulators);
        case 32: return chain_rows<32>(model, a, b, b_exponents, steps, accumulators);
        default: __builtin_trap();
    }
}

constexpr int block = 32;

template <int rows>
[[gnu::always_inline]] inline void block_sums_of(const double* a, int64_t stride, const double* b,
                                                 float* sums) {
    constexpr int half = width / 2, vectors = columns / half;
    // Two accumulators per row and pass on machines of 16 registers.
    constexpr int group = rows * vectors <= 8 ? vectors : 8 / rows;
    for (int first = 0; first < vectors; first += group) {
        Doubles sum[rows][group] = {};
        for (int k = 0; k < block; ++k) {
            for (int v = 0; v < group; ++v) {
                const Doubles column = load<Doubles>(b + k * columns + (first + v) * half);
                for (int row = 0; row < rows; ++row)
                    sum[row][v] = multiply_add_exact(Doubles{} + a[row * stride + k], column, sum[row][v]);
            }
        }
        for (int row = 0; row < rows; ++row)
            for (int v = 0; v < group; ++v)
                store(sums + row * columns + (first + v) * half,
                      __builtin_convertvector(sum[row][v], HalfFloats));
    }
}

void block_sums(const double* a, int64_t stride, int64_t rows, const double* b, float* sums) {
    switch (rows) {
        case 1: return block_sums_of<1>(a, stride, b, sums);
        case 2: return block_sums_of<2>(a, stride, b, sums);
        case 3: return block_sums_of<3>(a, stride, b, sums);
        case 4: return block_sums_of<4>(a, stride, b, sums);
        default: __builtin_trap();
    }
}

/// Columns whose sums are added together: one vector of fp32 per row.
constexpr int stored_columns = 4;
typedef float Floats4 __attribute__((vector_size(16)));
typedef int32_t Ints4 __attribute__((vector_size(16)));

/// Scales of one block of the columns; to_float of each.
[[gnu::always_inline]] inline Floats4 scales_of(const StoredColumns& b, int64_t index) {
    const Ints4 bits{b.scales[0][index].bits, b.scales[1][index].bits, b.scales[2][index].bits,
                     b.scales[3][index].bits};
    const Ints4 number = bits == 0 ? Ints4{} + 0x00400000 : bits << 23;
    return (Floats4)(bits == 255 ? Ints4{} + (int32_t)canonical_nan_bits : number);
}

[[gnu::always_inline]] inline Floats4 fma_of_four(Floats4 a, Floats4 b, Floats4 c) {
#if defined(__AVX2__)
    return _mm_fmadd_ps(a, b, c);
#else
    for (int i = 0; i < 4; ++i) c[i] = touchstone::fma_rn(a[i], b[i], c[i]);
    return c;
#endif
}

/// The sum of each vector's lanes, exact in any order, rounded to fp32.
[[gnu::always_inline]] inline Floats4 totals(const Doubles (&sums)[stored_columns]) {
#if defined(__AVX2__)
    __m256d quarters[stored_columns];
    for (int i = 0; i < stored_columns; ++i) {
#if defined(__AVX512F__)
        quarters[i] = _mm256_add_pd(_mm512_maskz_extractf64x4_pd(0xFF, sums[i], 0),
                                    _mm512_maskz_extractf64x4_pd(0xFF, sums[i], 1));
#else
        quarters[i] = sums[i];
#endif
    }
    const __m256d first = _mm256_hadd_pd(quarters[0], quarters[1]),
                  last = _mm256_hadd_pd(quarters[2], quarters[3]);
    const __m256d low = _mm256_permute2f128_pd(first, last, 0x20),
                  high = _mm256_permute2f128_pd(first, last, 0x31);
    return _mm256_cvtpd_ps(_mm256_add_pd(low, high));
#else
    Floats4 result;
    for (int i = 0; i < stored_columns; ++i) result[i] = (float)(sums[i][0] + sums[i][1]);
    return result;
#endif
}

/// Rows share what is decoded of b, columns what is read of a.
template <int rows>
void fp8_dots_of(const WideRows& a, const StoredColumns& b, float* d) {
    Floats4 accumulators[rows] = {};
    for (int64_t index = 0; index < a.k / block; ++index) {
        Doubles sums[rows][stored_columns] = {};
        for (int64_t k = index * block; k < (index + 1) * block; k += width)
            for (int column = 0; column < stored_columns; ++column) {
                const Floats values = code_values<CodeFormat::e4m3>(load_bytes(b.codes[column] + k));
                const Doubles low = low_half(values), high = high_half(values);
                for (int row = 0; row < rows; ++row) {
                    const double* left = a.values + row * a.k + k;
                    Doubles& sum = sums[row][column];
                    sum = multiply_add_exact(load<Doubles>(left), low, sum);
                    sum = multiply_add_exact(load<Doubles>(left + width / 2), high, sum);
                }
            }
        const Floats4 scales = scales_of(b, index);
        for (int row = 0; row < rows; ++row)
            accumulators[row] = fma_of_four(totals(sums[row]), a.scales[row * (a.k / block) + index] * scales,
                                            accumulators[row]);
    }
    __builtin_memcpy(d, accumulators, sizeof accumulators);
}

void fp8_dots(const WideRows& a, const StoredColumns& b, float* d) {
    // More accumulators than those of two rows would not stay in 16 registers.
    for (int64_t row = 0; row < a.rows; row += 2) {
        const WideRows rows{a.values + row * a.k, a.scales + row * (a.k / block), 0, a.k};
        if (row + 1 < a.rows)
            fp8_dots_of<2>(rows, b, d + row * stored_columns);
        else
            fp8_dots_of<1>(rows, b, d + row * stored_columns);
    }
}

#if defined(__AVX2__)
/// Doubled values of a block's codes: of the low nibbles, then of the high ones.
[[gnu::always_inline]] inline __m256i doubled_values(const uint8_t* codes) {
    const __m128i pairs = load<__m128i>(codes);
    const __m256i nibbles =
        _mm256_and_si256(_mm256_inserti128_si256(_mm256_castsi128_si256(pairs), _mm_srli_epi16(pairs, 4), 1),
                         _mm256_set1_epi8(15));
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12));
    return _mm256_shuffle_epi8(table, nibbles);
}

/// Eight partial sums of a block of ByteRows with doubled values. A pair of byte products is at most 2 * 255
/// * 12, the whole sum 32 * 448 * 2^9 * 12 < 2^27.
[[gnu::always_inline]] inline __m256i byte_products(const uint8_t* a, __m256i values) {
    const __m256i with_sign = _mm256_sign_epi8(values, load<__m256i>(a));
    const auto of_byte = [&](int byte, int16_t weight) __attribute__((always_inline)) {
        const __m256i pairs = _mm256_maddubs_epi16(load<__m256i>(a + (1 + byte) * block), with_sign);
        return _mm256_madd_epi16(pairs, _mm256_set1_epi16(weight));
    };
    const __m256i high = _mm256_slli_epi32(of_byte(2, 256), 8);
    return _mm256_add_epi32(_mm256_add_epi32(of_byte(0, 1), of_byte(1, 256)), high);
}

/// fp32 of the sum of each vector's lanes.
[[gnu::always_inline]] inline Floats4 totals(const __m256i (&sums)[stored_columns]) {
    const __m256i halves =
        _mm256_hadd_epi32(_mm256_hadd_epi32(sums[0], sums[1]), _mm256_hadd_epi32(sums[2], sums[3]));
    return _mm_cvtepi32_ps(
        _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1)));
}

template <int rows>
void fp4_dots_of(const ByteRows& a, const StoredColumns& b, float* d) {
    Floats4 accumulators[rows] = {};
    for (int64_t index = 0; index < a.k / block; ++index) {
        __m256i values[stored_columns];
        for (int column = 0; column < stored_columns; ++column)
            values[column] = doubled_values(b.codes[column] + index * (block / 2));
        const Floats4 scales = scales_of(b, index);
        for (int row = 0; row < rows; ++row) {
            const int64_t place = row * (a.k / block) + index;
            __m256i sums[stored_columns];
            for (int column = 0; column < stored_columns; ++column)
                sums[column] = byte_products(a.bytes + place * ByteRows::block_bytes, values[column]);
            // The unit of the sums: 2^-9 of a, 2^-1 of doubled values.
            accumulators[row] =
                fma_of_four(totals(sums) * 0x1p-10f, a.scales[place] * scales, accumulators[row]);
        }
    }
    __builtin_memcpy(d, accumulators, sizeof accumulators);
}
#else
template <int rows>
void fp4_dots_of(const ByteRows& a, const StoredColumns& b, float* d) {
    constexpr int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    Floats4 accumulators[rows] = {};
    for (int64_t index = 0; index < a.k / block; ++index) {
        int8_t values[stored_columns][block];
        for (int column = 0; column < stored_columns; ++column)
            for (int i = 0; i < block / 2; ++i) {
                const uint8_t pair = b.codes[column][index * (block / 2) + i];
                values[column][i] = doubled[pair & 15], values[column][block / 2 + i] = doubled[pair >> 4];
            }
        const Floats4 scales = scales_of(b, index);
        for (int row = 0; row < rows; ++row) {
            const int64_t place = row * (a.k / block) + index;
            const uint8_t* bytes = a.bytes + place * ByteRows::block_bytes;
            int32_t left[block];
            for (int i = 0; i < block; ++i) {
                const int32_t magnitude =
                    bytes[block + i] | bytes[2 * block + i] << 8 | bytes[3 * block + i] << 16;
                left[i] = (int8_t)bytes[i] * magnitude;
            }
            Ints4 sums = {};
            for (int column = 0; column < stored_columns; ++column)
                for (int i = 0; i < block; ++i) sums[column] += left[i] * values[column][i];
            accumulators[row] = fma_of_four(__builtin_convertvector(sums, Floats4) * 0x1p-10f,
                                            a.scales[place] * scales, accumulators[row]);
        }
    }
    __builtin_memcpy(d, accumulators, sizeof accumulators);
}
#endif

void fp4_dots(const ByteRows& a, const StoredColumns& b, float* d) {
    switch (a.rows) {
        case 1: return fp4_dots_of<1>(a, b, d);
        case 2: return fp4_dots_of<2>(a, b, d);
        case 3: return fp4_dots_of<3>(a, b, d);
        case 4: return fp4_dots_of<4>(a, b, d);
        default: __builtin_trap();
    }
}

void widen(const float* values, int64_t count, double* wide) {
    for (int64_t i = 0; i < count; ++i) wide[i] = values[i];
}

void add_scaled(const float* sums, float a_scale, const float* b_scales, float* accumulators) {
    for (int part = 0; part < parts; ++part) {
        const Floats scale = a_scale * load<Floats>(b_scales + part * width);
        const Floats accumulator = load<Floats>(accumulators + part * width);
        store(accumulators + part * width, fma_rn(load<Floats>(sums + part * width), scale, accumulator));
    }
}

void lane_products(const float* a, const float* b, int64_t count, int64_t first, int64_t lanes,
                   float* accumulators) {
    for (int64_t k = 0; k < count; ++k) {
        float* lane = accumulators + ((first + k) & (lanes - 1)) * columns;
        for (int part = 0; part < parts; ++part) {
            const Floats left = Floats{} + a[k], right = load<Floats>(b + k * columns + part * width);
            store(lane + part * width, fma_rn(left, right, load<Floats>(lane + part * width)));
        }
    }
}

void lane_tree(float* accumulators, int64_t lanes, float* sums) {
    for (; lanes > 1; lanes /= 2)
        for (int64_t lane = 0; lane < lanes / 2; ++lane)
            for (int column = 0; column < columns; ++column)
                accumulators[lane * columns + column] = accumulators[2 * lane * columns + column] +
                                                        accumulators[(2 * lane + 1) * columns + column];
    for (int column = 0; column < columns; ++column) sums[column] = with_canonical_nan(accumulators[column]);
}

/// Sums of one group's products of doubled values for `width` columns; see GemmKernels::fp4_rows for the
/// operands.
[[gnu::always_inline]] inline Ints group_dots(const int8_t* a, int32_t offset, const uint8_t* b) {
#if defined(__AVX512F__)
    // Two accumulators: one would wait for its own last product eight times.
    __m512i even = _mm512_set1_epi32(-offset), odd = _mm512_setzero_si512();
    for (int quad = 0; quad < block / 4; quad += 2) {
        const auto product = [&](__m512i sum, int q) __attribute__((always_inline)) {
            return _mm512_dpbusd_epi32(sum, load<__m512i>(b + 64 * q), (__m512i)broadcast_bits(a + 4 * q));
        };
        even = product(even, quad);
        odd = product(odd, quad + 1);
    }
    return (Ints)_mm512_add_epi32(even, odd);
#elif defined(__AVX2__)
    // Pairs of products are at most 2 * 24 * 12, and eight of them at most 4,608: int16 holds them.
    __m256i pairs = _mm256_setzero_si256();
    for (int quad = 0; quad < block / 4; ++quad) {
        const __m256i left = (__m256i)broadcast_bits(a + 4 * quad);
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(load<__m256i>(b + 64 * quad), left));
    }
    return (Ints)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)) - offset;
#else
    Ints sum = Ints{} - offset;
    for (int column = 0; column < width; ++column)
        for (int k = 0; k < block; ++k) sum[column] += a[k] * b[k / 4 * 64 + column * 4 + k % 4];
    return sum;
#endif
}

void fp4_rows(const Fp4Rows& a, const uint8_t* b, const float* b_scales, float* sums) {
    for (int64_t row = 0; row < a.rows; ++row) {
        const int8_t* values = a.values + row * a.groups * block;
        const int32_t* offsets = a.offsets + row * a.groups;
        const float* scales = a.scales + row * a.groups;
        for (int part = 0; part < parts; ++part) {
            Floats accumulator = {};
            for (int64_t group = 0; group < a.groups; ++group) {
                const Ints dots = group_dots(values + group * block, offsets[group],
                                             b + group * block * columns + part * width * 4);
                const Floats scale = scales[group] * load<Floats>(b_scales + group * columns + part * width);
                accumulator = fma_rn(__builtin_convertvector(dots, Floats), scale, accumulator);
            }
            const Ints magnitude = (Ints)accumulator & 0x7FFFFFFF;
            const Ints canonical =
                magnitude > 0x7F800000 ? Ints{} + (int32_t)canonical_nan_bits : (Ints)accumulator;
            store(sums + row * columns + part * width, canonical);
        }
    }
}

}  // namespace

extern const GemmKernels gemm_kernels;
const GemmKernels gemm_kernels{compiled_isa, pack_codes,        pack_bf16,       scale_panel, fp8_dots,
                               fp4_dots,     operand_exponents, panel_exponents, chain,       block_sums,
                               widen,        add_scaled,        lane_products,   lane_tree,   fp4_rows};

}  // namespace touchstone::TOUCHSTONE_ISA_NAMESPACE
