#include "reference/numerics/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/small_float.h"

namespace touchstone {

namespace isa_scalar {
extern const GemmKernels gemm_kernels;
}
#ifdef __x86_64__
namespace isa_avx2 {
extern const GemmKernels gemm_kernels;
}
namespace isa_avx512 {
extern const GemmKernels gemm_kernels;
}
#endif

namespace {

/// Rows that share one decoding of a panel, and the part of K that is decoded at a time: 256 x 16 fp32 values
/// and their exponents stay in a first-level cache. Every row of a lanes tile has 16 accumulators per lane,
/// so there it is fewer.
constexpr int64_t rows_per_tile = 64, rows_per_lanes_tile = 16, k_per_tile = 256;
constexpr int64_t block = 32;

/// Memory on a cache line's boundary, for whole vectors.
template <class T>
class Aligned {
  public:
    explicit Aligned(int64_t count)
        : data_(static_cast<T*>(
              ::operator new (static_cast<size_t>(count) * sizeof(T), std::align_val_t{64}))) {
        std::fill_n(data_, count, T{});
    }
    ~Aligned() { ::operator delete (data_, std::align_val_t{64}); }
    Aligned(const Aligned&) = delete;
    Aligned& operator=(const Aligned&) = delete;
    T* get() const { return data_; }

  private:
    T* data_;
};

/// Calls work(first row, rows, first column, columns) for every tile of D, in parallel. Tiles are
/// independent; `work` does not throw.
template <class Work>
void for_each_tile(int64_t tile_rows, int64_t rows, int64_t columns, const Work& work) {
    const int64_t row_tiles = (rows + tile_rows - 1) / tile_rows;
    const int64_t panels = (columns + panel_columns - 1) / panel_columns;
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int64_t panel = 0; panel < panels; ++panel) {
        for (int64_t tile = 0; tile < row_tiles; ++tile) {
            const int64_t first_row = tile * tile_rows, first_column = panel * panel_columns;
            work(first_row, std::min(tile_rows, rows - first_row), first_column,
                 std::min(panel_columns, columns - first_column));
        }
    }
}

float step_of_values(const TensorCoreInstruction* instruction, const float* a, const int16_t* a_exponents,
                     const float* b, const int16_t* b_exponents, float c) {
    TensorCoreOperand left[block], right[block];
    for (int k = 0; k < instruction->products; ++k) {
        left[k] = operand_from_float(a[k], a_exponents[k]);
        right[k] = operand_from_float(b[k * panel_columns], b_exponents[k / 2 * 2 * panel_columns + k % 2]);
    }
    return tensor_core_step(*instruction, left, right, c);
}

ChainModel chain_model(const TensorCoreInstruction& instruction) {
    const uint32_t dropped = (1u << (23 - instruction.output_fraction_bits)) - 1;
    return {instruction.products, instruction.fraction_bits, ~dropped, &instruction, step_of_values};
}

/// Where element i of a 32-element group goes so that the two halves of an emulated fp8 step are contiguous.
constexpr int64_t emulated_place(int64_t i) {
    return i % 4 / 2 * (block / 2) + i / 4 * 2 + i % 2;
}

/// `groups` of 32 rows of `width` values in the order of emulated_place.
void reorder_emulated(float* values, int64_t groups, int64_t width) {
    std::vector<float> group(static_cast<size_t>(block * width));
    for (int64_t g = 0; g < groups; ++g) {
        float* from = values + g * block * width;
        for (int64_t i = 0; i < block; ++i)
            std::memcpy(group.data() + emulated_place(i) * width, from + i * width,
                        static_cast<size_t>(width) * sizeof(float));
        std::memcpy(from, group.data(), group.size() * sizeof(float));
    }
}

/// The chains of one or two rows over `count` elements of K; accumulators [rows][16].
void advance_chain(const GemmKernels& kernels, const ChainModel& model, const ChainRows& a, const float* b,
                   const int16_t* b_exponents, int64_t count, float* accumulators) {
    if (!model.instruction->emulated_fp8) {
        kernels.chain(model, a, b, b_exponents, count / model.products, accumulators);
        return;
    }
    for (int64_t k = 0; k < count; k += block) {
        alignas(64) float sums[2 * panel_columns] = {};
        kernels.chain(model, {a.values + k, a.exponents + k, a.stride, a.rows}, b + k * panel_columns,
                      b_exponents + k * panel_columns, 2, sums);
        for (int64_t i = 0; i < a.rows * panel_columns; ++i)
            accumulators[i] = with_canonical_nan(sums[i] + accumulators[i]);
    }
}

void require_pieces(const TensorCoreInstruction& instruction, int64_t k, std::span<const KPiece> pieces) {
    int64_t next = 0;
    for (const KPiece& piece : pieces) {
        if (piece.first != next || piece.count < 0 || piece.count % instruction.k() != 0)
            throw UserError(
                {fmt::format("a piece of K begins at {} and has {} elements", piece.first, piece.count),
                 fmt::format("chain_gemm, {}", instruction.name),
                 fmt::format("it begins at {}, a multiple of {} long", next, instruction.k()), "pad K"});
        next += piece.count;
    }
    if (next != k)
        throw UserError({fmt::format("pieces of K cover {} of {} elements", next, k), "chain_gemm",
                         "all of them", "pass pieces of this K"});
}

}  // namespace

const GemmKernels& gemm_kernels(Isa isa) {
#ifdef __x86_64__
    if (isa == Isa::avx512) return isa_avx512::gemm_kernels;
    if (isa == Isa::avx2) return isa_avx2::gemm_kernels;
#endif
    return isa_scalar::gemm_kernels;
}

void chain_gemm(const TensorCoreInstruction& instruction, std::span<const float> a, int64_t rows,
                const PanelSource& b, int64_t columns, int64_t k, std::span<const KPiece> pieces,
                std::span<const float> c, std::span<float> d, Isa isa) {
    require_pieces(instruction, k, pieces);
    const GemmKernels& kernels = gemm_kernels(isa);
    const ChainModel model = chain_model(instruction);
    const int smallest =
        smallest_exponent(instruction.emulated_fp8 ? OperandFormat::f16 : instruction.format);

    // 1. The rows of a, once: values in the order of the steps, and exponents.
    std::vector<float> values(a.begin(), a.end());
    if (instruction.emulated_fp8) reorder_emulated(values.data(), rows * k / block, 1);
    std::vector<int16_t> exponents(values.size());
    kernels.operand_exponents(values.data(), rows * k, smallest, exponents.data());

    for_each_tile(
        rows_per_tile, rows, columns,
        [&](int64_t first_row, int64_t tile_rows, int64_t first_column, int64_t width) {
            Aligned<float> panel(k_per_tile * panel_columns), running(tile_rows * panel_columns),
                totals(tile_rows * panel_columns);
            Aligned<int16_t> panel_exponents(k_per_tile * panel_columns);
            for (size_t p = 0; p < pieces.size(); ++p) {
                // 2. A piece starts from +0 or, alone, from c.
                std::fill_n(running.get(), tile_rows * panel_columns, 0.0f);
                for (int64_t row = 0; row < tile_rows && !c.empty() && pieces.size() == 1; ++row)
                    std::copy_n(c.data() + (first_row + row) * columns + first_column, width,
                                running.get() + row * panel_columns);
                // 3. K ascending; each part of the panel decoded once and used by every row.
                for (int64_t at = pieces[p].first, end = at + pieces[p].count; at < end; at += k_per_tile) {
                    const int64_t count = std::min(k_per_tile, end - at);
                    b.pack(first_column, width, at, count, panel.get());
                    if (instruction.emulated_fp8) reorder_emulated(panel.get(), count / block, panel_columns);
                    kernels.panel_exponents(panel.get(), count, smallest, panel_exponents.get());
                    for (int64_t row = 0; row < tile_rows; row += 2) {
                        const int64_t start = (first_row + row) * k + at;
                        advance_chain(kernels, model,
                                      {values.data() + start, exponents.data() + start, k,
                                       std::min<int64_t>(2, tile_rows - row)},
                                      panel.get(), panel_exponents.get(), count,
                                      running.get() + row * panel_columns);
                    }
                }
                // 4. Pieces are added in fp32, ascending.
                for (int64_t i = 0; i < tile_rows * panel_columns; ++i)
                    totals.get()[i] =
                        p == 0 ? running.get()[i] : with_canonical_nan(totals.get()[i] + running.get()[i]);
            }
            for (int64_t row = 0; row < tile_rows; ++row)
                std::copy_n(totals.get() + row * panel_columns, width,
                            d.data() + (first_row + row) * columns + first_column);
        });
}

void lanes_gemm(std::span<const float> a, int64_t rows, const PanelSource& b, int64_t columns, int64_t k,
                int64_t lanes, std::span<float> d, Isa isa) {
    if (lanes <= 0 || !std::has_single_bit(static_cast<uint64_t>(lanes)))
        throw UserError(
            {fmt::format("{} lanes", lanes), "lanes_gemm", "a power of two", "see numerics/sum_order.h"});
    const GemmKernels& kernels = gemm_kernels(isa);
    const int64_t row_accumulators = lanes * panel_columns;
    for_each_tile(rows_per_lanes_tile, rows, columns,
                  [&](int64_t first_row, int64_t tile_rows, int64_t first_column, int64_t width) {
                      Aligned<float> panel(k_per_tile * panel_columns),
                          accumulators(tile_rows * row_accumulators);
                      for (int64_t at = 0; at < k; at += k_per_tile) {
                          const int64_t count = std::min(k_per_tile, k - at);
                          b.pack(first_column, width, at, count, panel.get());
                          for (int64_t row = 0; row < tile_rows; ++row)
                              kernels.lane_products(a.data() + (first_row + row) * k + at, panel.get(), count,
                                                    at, lanes, accumulators.get() + row * row_accumulators);
                      }
                      for (int64_t row = 0; row < tile_rows; ++row) {
                          alignas(64) float sums[panel_columns];
                          kernels.lane_tree(accumulators.get() + row * row_accumulators, lanes, sums);
                          std::copy_n(sums, width, d.data() + (first_row + row) * columns + first_column);
                      }
                  });
}

namespace {
/// Sums of one block of 32 for all rows of a tile: [rows][16] fp32.
class BlockSummer {
  public:
    BlockSummer(BlockSum sum, std::span<const float> a, int64_t k, const GemmKernels& kernels)
        : kernels_(kernels),
          k_(k),
          a_(a.data()),
          exact_(sum == BlockSum::exact),
          model_(chain_model(tensor_core_instruction("hopper.wgmma.e4m3"))) {
        if (exact_) {
            wide_.resize(a.size());
            kernels_.widen(a_, static_cast<int64_t>(a.size()), wide_.data());
        } else {
            exponents_.resize(a.size());
            kernels_.operand_exponents(a_, static_cast<int64_t>(a.size()),
                                       smallest_exponent(OperandFormat::e4m3), exponents_.data());
        }
    }

    /// `panel` [32][16]; rows first_row .. + rows of a, elements k_first .. + 32.
    void sum(int64_t first_row, int64_t rows, int64_t k_first, const float* panel, float* sums) const {
        const int64_t start = first_row * k_ + k_first;
        if (exact_) {
            alignas(64) double wide_panel[block * panel_columns];
            kernels_.widen(panel, block * panel_columns, wide_panel);
            for (int64_t row = 0; row < rows; row += 4)
                kernels_.block_sums(wide_.data() + start + row * k_, k_, std::min<int64_t>(4, rows - row),
                                    wide_panel, sums + row * panel_columns);
            return;
        }
        alignas(64) int16_t panel_exponents[block * panel_columns];
        kernels_.panel_exponents(panel, block, smallest_exponent(OperandFormat::e4m3), panel_exponents);
        std::fill_n(sums, rows * panel_columns, 0.0f);
        for (int64_t row = 0; row < rows; row += 2)
            kernels_.chain(model_,
                           {a_ + start + row * k_, exponents_.data() + start + row * k_, k_,
                            std::min<int64_t>(2, rows - row)},
                           panel, panel_exponents, 1, sums + row * panel_columns);
    }

  private:
    const GemmKernels& kernels_;
    int64_t k_;
    const float* a_;
    bool exact_;
    ChainModel model_;
    std::vector<double> wide_;
    std::vector<int16_t> exponents_;
};

}  // namespace

void block_scaled_gemm(BlockSum sum, std::span<const float> a, int64_t rows, const PanelSource& b,
                       int64_t columns, int64_t k, BlockScales scales, std::span<float> d, Isa isa) {
    const GemmKernels& kernels = gemm_kernels(isa);
    const BlockSummer summer(sum, a, k, kernels);
    const int64_t blocks = k / block;
    for_each_tile(
        rows_per_tile, rows, columns,
        [&](int64_t first_row, int64_t tile_rows, int64_t first_column, int64_t width) {
            Aligned<float> panel(k_per_tile * panel_columns), sums(tile_rows * panel_columns),
                accumulators(tile_rows * panel_columns);
            alignas(64) float column_scales[panel_columns] = {};
            for (int64_t at = 0; at < k; at += block) {
                const int64_t in_tile = at % k_per_tile, b_index = at / block;
                if (in_tile == 0) b.pack(first_column, width, at, std::min(k_per_tile, k - at), panel.get());
                for (int64_t j = 0; j < width; ++j)
                    column_scales[j] = scales.b[static_cast<size_t>((first_column + j) * blocks + b_index)];
                summer.sum(first_row, tile_rows, at, panel.get() + in_tile * panel_columns, sums.get());
                for (int64_t row = 0; row < tile_rows; ++row)
                    kernels.add_scaled(sums.get() + row * panel_columns,
                                       scales.a[static_cast<size_t>((first_row + row) * blocks + b_index)],
                                       column_scales, accumulators.get() + row * panel_columns);
            }
            for (int64_t row = 0; row < tile_rows; ++row)
                for (int64_t j = 0; j < width; ++j)
                    d[static_cast<size_t>((first_row + row) * columns + first_column + j)] =
                        with_canonical_nan(accumulators.get()[row * panel_columns + j]);
        });
}

namespace {
/// The doubled value of an e2m1 code, -12 .. 12.
constexpr std::array<int8_t, 16> doubled_e2m1{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void require_fp4(std::span<const uint8_t> codes, std::span<const uint8_t> scales, int64_t rows, int64_t k,
                 const char* name) {
    if (k % block != 0)
        throw UserError(
            {fmt::format("k is {}", k), "fp4_gemm", "a multiple of 32, the channels of one scale", ""});
    if (static_cast<int64_t>(codes.size()) != rows * k / 2 ||
        static_cast<int64_t>(scales.size()) != rows * k / block)
        throw UserError(
            {fmt::format("{} has {} bytes of codes and {} scales", name, codes.size(), scales.size()),
             "fp4_gemm", fmt::format("[{}, {}] and [{}, {}]", rows, k / 2, rows, k / block), ""});
}

/// The doubled values of a packed byte, plus 12: the even element first.
constexpr std::array<std::array<uint8_t, 2>, 256> offset_pairs = [] {
    std::array<std::array<uint8_t, 2>, 256> pairs{};
    for (size_t byte = 0; byte < 256; ++byte)
        pairs[byte] = {static_cast<uint8_t>(12 + doubled_e2m1[byte & 15]),
                       static_cast<uint8_t>(12 + doubled_e2m1[byte >> 4])};
    return pairs;
}();

/// 16 rows of codes as GemmKernels::fp4_rows wants them; rows that are not there are zeros.
void pack_fp4_panel(std::span<const uint8_t> codes, int64_t first_row, int64_t rows, int64_t k,
                    uint8_t* panel) {
    if (rows < panel_columns) std::memset(panel, 12, static_cast<size_t>(k * panel_columns));
    for (int64_t column = 0; column < rows; ++column) {
        const uint8_t* row = codes.data() + (first_row + column) * k / 2;
        uint8_t* to = panel + column * 4;
        for (int64_t quad = 0; quad < k / 4; ++quad, to += 4 * panel_columns) {
            std::memcpy(to, offset_pairs[row[2 * quad]].data(), 2);
            std::memcpy(to + 2, offset_pairs[row[2 * quad + 1]].data(), 2);
        }
    }
}

/// What Fp4Rows (gemm.h) points to. Scales are a quarter of the operand's: 0.25 undoes the doubling
/// of both operands, and even of the smallest scale it is exact, so that the scale of a group is
/// rounded once.
struct UnpackedFp4Rows {
    std::vector<int8_t> values;
    std::vector<int32_t> offsets;
    std::vector<float> scales;
};

UnpackedFp4Rows unpacked_fp4_rows(std::span<const uint8_t> codes, std::span<const uint8_t> scales) {
    UnpackedFp4Rows rows;
    rows.values.resize(2 * codes.size());
    rows.offsets.resize(scales.size());
    for (size_t i = 0; i < rows.values.size(); ++i) {
        rows.values[i] = doubled_e2m1[i % 2 == 0 ? codes[i / 2] & 15 : codes[i / 2] >> 4];
        rows.offsets[i / block] += 12 * rows.values[i];
    }
    for (uint8_t scale : scales) rows.scales.push_back(0.25f * to_float(E8m0{scale}));
    return rows;
}

}  // namespace

void fp4_gemm(std::span<const uint8_t> a, std::span<const uint8_t> a_scales, int64_t rows,
              std::span<const uint8_t> b, std::span<const uint8_t> b_scales, int64_t columns, int64_t k,
              std::span<float> d, Isa isa) {
    require_fp4(a, a_scales, rows, k, "a");
    require_fp4(b, b_scales, columns, k, "b");
    const GemmKernels& kernels = gemm_kernels(isa);
    const int64_t groups = k / block;
    const UnpackedFp4Rows left = unpacked_fp4_rows(a, a_scales);
    for_each_tile(rows_per_tile, rows, columns,
                  [&](int64_t first_row, int64_t tile_rows, int64_t first_column, int64_t width) {
                      Aligned<uint8_t> panel(k * panel_columns);
                      Aligned<float> column_scales(groups * panel_columns);
                      pack_fp4_panel(b, first_column, width, k, panel.get());
                      for (int64_t j = 0; j < width; ++j)
                          for (int64_t g = 0; g < groups; ++g)
                              column_scales.get()[g * panel_columns + j] = to_float(
                                  E8m0{b_scales[static_cast<size_t>((first_column + j) * groups + g)]});
                      Aligned<float> sums(tile_rows * panel_columns);
                      const Fp4Rows rows_of_tile{left.values.data() + first_row * k,
                                                 left.offsets.data() + first_row * groups,
                                                 left.scales.data() + first_row * groups, tile_rows, groups};
                      kernels.fp4_rows(rows_of_tile, panel.get(), column_scales.get(), sums.get());
                      for (int64_t row = 0; row < tile_rows; ++row)
                          std::copy_n(sums.get() + row * panel_columns, width,
                                      d.data() + (first_row + row) * columns + first_column);
                  });
}

}  // namespace touchstone
