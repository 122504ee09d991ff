// Matrix products in every order of summation that the project knows, 16 outputs at a time: the drivers that
// walk rows, column panels and K, over the kernels of gemm_vector.cpp. What each sum is lies in
// tensor_core.h, sums.h and the numerics contract; the bits depend on none of M, tiling, instruction set and
// thread count. All throw UserError, with nothing written, when sizes do not match.
#pragma once

#include <cstdint>
#include <span>

#include "reference/numerics/isa.h"
#include "reference/numerics/small_float.h"
#include "reference/numerics/tensor_core.h"

namespace touchstone {

/// Columns of D that are worked on together.
inline constexpr int64_t panel_columns = 16;

/// The second operand, [N, K] with K along a row, decoded in panels: exact fp32 values.
class PanelSource {
  public:
    virtual ~PanelSource() = default;
    /// values[k][column] for k < count and column < 16 is element (first_row + column, first_k + k). Every
    /// element is asked for at most once per 16 rows of the first operand. Does not throw: it is called
    /// inside parallel loops.
    virtual void pack(int64_t first_row, int64_t columns, int64_t first_k, int64_t count,
                      float* values) const = 0;
};

/// A piece of K that is summed on its own; pieces are added in fp32, ascending.
struct KPiece {
    int64_t first, count;
};

/// d[m, n] = sum over pieces of the tensor-core chain (tensor_core.h) over that piece; a piece starts from
/// +0, or where there is one piece from c[m, n] if `c` is not empty. `a` [rows, k] holds values that are
/// exact in the instruction's operand format, and so does `b`. Piece counts are multiples of the
/// instruction's k.
void chain_gemm(const TensorCoreInstruction& instruction, std::span<const float> a, int64_t rows,
                const PanelSource& b, int64_t columns, int64_t k, std::span<const KPiece> pieces,
                std::span<const float> c, std::span<float> d, Isa isa = active_isa());

/// d[m, n] by fp32 FMA into `lanes` interleaved lanes and the adjacent-pair tree (numerics contract, section
/// 4).
void lanes_gemm(std::span<const float> a, int64_t rows, const PanelSource& b, int64_t columns, int64_t k,
                int64_t lanes, std::span<float> d, Isa isa = active_isa());

/// Scales of both operands per block of 32 along K: value(row, block).
struct BlockScales {
    std::span<const float> a;  ///< [rows, k / 32]
    std::span<const float> b;  ///< [columns, k / 32]
};

/// How the 32 products of a block are summed.
enum class BlockSum : uint8_t {
    exact,             ///< exactly, rounded once to fp32
    hopper_fp8_wgmma,  ///< one step of hopper.wgmma.e4m3 from +0
};

/// d[m, n] = over blocks of 32 along K, ascending from +0: acc = fma(block sum, a scale * b scale, acc), the
/// product of scales rounded to fp32 (exact unless it leaves fp32's range). `a` and `b` hold codes' values:
/// of e4m3 or e2m1.
void block_scaled_gemm(BlockSum sum, std::span<const float> a, int64_t rows, const PanelSource& b,
                       int64_t columns, int64_t k, BlockScales scales, std::span<float> d,
                       Isa isa = active_isa());

enum class CodeFormat : uint8_t {
    e4m3,  ///< a byte per element
    e2m1,  ///< two elements to a byte, the even one low
};

/// A second operand [columns, k] as checkpoints store it: codes row-major, and a scale per 32 elements along
/// K and `columns_per_scale` columns: [ceil(columns / columns_per_scale), k / 32].
struct ScaledCodes {
    CodeFormat format;
    std::span<const uint8_t> codes;
    std::span<const E8m0> scales;
    int64_t columns_per_scale;

    /// Bytes of a row of k elements.
    int64_t row_bytes(int64_t k) const { return format == CodeFormat::e2m1 ? k / 2 : k; }
    /// The k / 32 scales of a column.
    const E8m0* column_scales(int64_t column, int64_t k) const {
        return scales.data() + column / columns_per_scale * (k / 32);
    }
};

/// A panel, as PanelSource::pack fills it, of codes' values without scales; first_k and count are multiples
/// of 16. Columns that are not there repeat the last.
void pack_codes(const ScaledCodes& b, int64_t k, int64_t first_row, int64_t columns, int64_t first_k,
                int64_t count, float* values, Isa isa = active_isa());

/// block_scaled_gemm with a stored operand: where that is faster it is read along its rows, without decoding
/// panels. `a_scales` [rows, k / 32].
void block_scaled_gemm(BlockSum sum, std::span<const float> a, std::span<const float> a_scales, int64_t rows,
                       const ScaledCodes& b, int64_t columns, int64_t k, std::span<float> d,
                       Isa isa = active_isa());

/// d[m, n] = over groups of 32 along K, ascending from +0: acc = fma(float(S), 2^(ea + eb - 2), acc), S the
/// exact int32 sum of products of doubled e2m1 values. Codes are packed two to a byte, the even element low:
/// a [rows, k / 2], b [columns, k / 2]; scales are e8m0 bytes, [rows, k / 32] and [columns, k / 32].
void fp4_gemm(std::span<const uint8_t> a, std::span<const uint8_t> a_scales, int64_t rows,
              std::span<const uint8_t> b, std::span<const uint8_t> b_scales, int64_t columns, int64_t k,
              std::span<float> d, Isa isa = active_isa());

/// What the kernels of one instruction set need of an instruction. `step` is the definition, taken where the
/// fast form does not reach: exponents near the ends of fp32, infinities, NaNs; b's elements stand
/// panel_columns apart, its exponents as panel_exponents puts them.
struct ChainModel {
    int products;
    int fraction_bits;
    uint32_t output_mask;
    const TensorCoreInstruction* instruction;
    float (*step)(const TensorCoreInstruction* instruction, const float* a, const int16_t* a_exponents,
                  const float* b, const int16_t* b_exponents, float c);
};

/// One or two rows for GemmKernels::chain, `stride` elements apart.
struct ChainRows {
    const float* values;
    const int16_t* exponents;
    int64_t stride, rows;
};

/// Rows of fp4 values for GemmKernels::fp4_rows: doubled values [rows][groups][32]; per row and group the sum
/// of its values times 12, which the offset of the other operand adds to every dot product; and its scale.
struct Fp4Rows {
    const int8_t* values;
    const int32_t* offsets;
    const float* scales;
    int64_t rows, groups;
};

/// Rows for GemmKernels::fp8_dots: values [rows][k], scales [rows][k / 32].
struct WideRows {
    const double* values;
    const float* scales;
    int64_t rows, k;
};

/// Rows of e4m3 values for GemmKernels::fp4_dots, as integers of units 2^-9, whose magnitudes have 18 bits:
/// per row and block of 32 the signs (-1, 0, 1), then three times 32 bytes, magnitude's low, middle and high
/// byte; of the 32, the 16 of even index first. Scales [rows][k / 32], NaN where a block holds a NaN.
struct ByteRows {
    static constexpr int64_t block_bytes = 4 * 32;
    const uint8_t* bytes;
    const float* scales;
    int64_t rows, k;
};

/// Four columns of a stored operand: their codes and their scales.
struct StoredColumns {
    const uint8_t* codes[4];
    const E8m0* scales[4];
};

/// The inner loops, one table per instruction set (gemm_vector.cpp). Panels are [k][16].
struct GemmKernels {
    Isa isa;
    /// Panels of codes' values and of bf16 values: `rows` points to 16 rows' first elements; `count` is a
    /// multiple of 16 for codes. NaN codes give NaN.
    void (*pack_codes)(CodeFormat format, const uint8_t* const* rows, int64_t count, float* values);
    void (*pack_bf16)(const Bf16* const* rows, int64_t count, float* values);
    /// values[k][j] *= scales[j], NaN canonical.
    void (*scale_panel)(const float* scales, int64_t count, float* values);
    /// block_scaled_gemm, exact, of 1 to 4 rows with four columns of e4m3, or of e2m1: d [rows][4].
    void (*fp8_dots)(const WideRows& a, const StoredColumns& b, float* d);
    void (*fp4_dots)(const ByteRows& a, const StoredColumns& b, float* d);
    void (*operand_exponents)(const float* values, int64_t count, int32_t smallest, int16_t* exponents);
    /// Of a panel: [k / 2][16][2], the exponents of an even k and the next one side by side; `count` k, even.
    void (*panel_exponents)(const float* values, int64_t count, int32_t smallest, int16_t* exponents);
    /// `steps` steps for 16 outputs of each row; accumulators [rows][16], in and out.
    void (*chain)(const ChainModel& model, const ChainRows& a, const float* b, const int16_t* b_exponents,
                  int64_t steps, float* accumulators);
    /// fp32(sum of 32 products) of `rows` (1 to 4) rows `stride` apart with a block of the panel: sums
    /// [rows][16].
    void (*block_sums)(const double* a, int64_t stride, int64_t rows, const double* b, float* sums);
    void (*widen)(const float* values, int64_t count, double* wide);
    /// accumulators[j] = fma(sums[j], a_scale * b_scales[j], accumulators[j]) for 16 j.
    void (*add_scaled)(const float* sums, float a_scale, const float* b_scales, float* accumulators);
    /// accumulators [lanes][16]; element i goes to lane (first + i) mod lanes.
    void (*lane_products)(const float* a, const float* b, int64_t count, int64_t first, int64_t lanes,
                          float* accumulators);
    void (*lane_tree)(float* accumulators, int64_t lanes, float* sums);
    /// fp4_gemm of rows with a panel: b [groups][8][16][4] doubled values plus 12, unsigned as the byte dot
    /// products of x86 want one operand; b_scales [groups][16]; sums [rows][16].
    void (*fp4_rows)(const Fp4Rows& a, const uint8_t* b, const float* b_scales, float* sums);
};

const GemmKernels& gemm_kernels(Isa isa);

}  // namespace touchstone
