#include "reference/numerics/gemm.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
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

/// A tile of D.
struct Tile {
    int64_t first_row, rows, first_column, columns;
};

/// Calls work(tile) for every tile of D, in parallel. Tiles are independent; `work` does not throw.
template <class Work>
void for_each_tile(int64_t tile_rows, int64_t rows, int64_t columns, const Work& work) {
    const int64_t row_tiles = (rows + tile_rows - 1) / tile_rows;
    const int64_t panels = (columns + panel_columns - 1) / panel_columns;
#pragma omp parallel for schedule(dynamic) collapse(2)
    for (int64_t panel = 0; panel < panels; ++panel) {
        for (int64_t tile = 0; tile < row_tiles; ++tile) {
            const int64_t first_row = tile * tile_rows, first_column = panel * panel_columns;
            work(Tile{first_row, std::min(tile_rows, rows - first_row), first_column,
                      std::min(panel_columns, columns - first_column)});
        }
    }
}

/// Values [rows][16] of a tile from and to a matrix of `columns` columns.
void load_tile(const Tile& tile, std::span<const float> from, int64_t columns, float* values) {
    for (int64_t row = 0; row < tile.rows; ++row)
        std::copy_n(from.data() + (tile.first_row + row) * columns + tile.first_column, tile.columns,
                    values + row * panel_columns);
}
void store_tile(const Tile& tile, const float* values, int64_t columns, std::span<float> to) {
    for (int64_t row = 0; row < tile.rows; ++row)
        std::copy_n(values + row * panel_columns, tile.columns,
                    to.data() + (tile.first_row + row) * columns + tile.first_column);
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

void require_size(const char* where, const char* name, size_t size, int64_t rows, int64_t width) {
    if (rows >= 0 && width >= 0 && static_cast<int64_t>(size) == rows * width) return;
    throw UserError({fmt::format("{} has {} elements", name, size), where,
                     fmt::format("[{}, {}]", rows, width), "pass operands of matching shapes"});
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

namespace {

/// The operands of a chain product: rows of a in the order of the steps, with exponents, and panels of b.
class ChainOperands {
  public:
    ChainOperands(const TensorCoreInstruction& instruction, std::span<const float> a, int64_t k,
                  const PanelSource& b, const GemmKernels& kernels)
        : kernels_(kernels),
          model_(chain_model(instruction)),
          b_(b),
          k_(k),
          values_(a.begin(), a.end()),
          exponents_(a.size()) {
        const int64_t count = std::ssize(values_);
        if (instruction.emulated_fp8) reorder_emulated(values_.data(), count / block, 1);
        kernels_.operand_exponents(values_.data(), count, smallest(), exponents_.data());
    }

    /// Carries the chains of a tile, sums [rows][16], over a piece of K. Every part of a panel is decoded
    /// once and used by all rows.
    void advance(const Tile& tile, const KPiece& piece, float* sums) const {
        Aligned<float> panel(k_per_tile * panel_columns);
        Aligned<int16_t> panel_exponents(k_per_tile * panel_columns);
        for (int64_t at = piece.first, end = at + piece.count; at < end; at += k_per_tile) {
            const int64_t count = std::min(k_per_tile, end - at);
            b_.pack(tile.first_column, tile.columns, at, count, panel.get());
            if (model_.instruction->emulated_fp8) reorder_emulated(panel.get(), count / block, panel_columns);
            kernels_.panel_exponents(panel.get(), count, smallest(), panel_exponents.get());
            for (int64_t row = 0; row < tile.rows; row += 2) {
                const int64_t start = (tile.first_row + row) * k_ + at;
                const ChainRows rows{values_.data() + start, exponents_.data() + start, k_,
                                     std::min<int64_t>(2, tile.rows - row)};
                advance_chain(kernels_, model_, rows, panel.get(), panel_exponents.get(), count,
                              sums + row * panel_columns);
            }
        }
    }

  private:
    int smallest() const {
        return smallest_exponent(model_.instruction->emulated_fp8 ? OperandFormat::f16
                                                                  : model_.instruction->format);
    }

    const GemmKernels& kernels_;
    ChainModel model_;
    const PanelSource& b_;
    int64_t k_;
    std::vector<float> values_;
    std::vector<int16_t> exponents_;
};

}  // namespace

void chain_gemm(const TensorCoreInstruction& instruction, std::span<const float> a, int64_t rows,
                const PanelSource& b, int64_t columns, int64_t k, std::span<const KPiece> pieces,
                std::span<const float> c, std::span<float> d, Isa isa) {
    require_pieces(instruction, k, pieces);
    require_size("chain_gemm", "a", a.size(), rows, k);
    require_size("chain_gemm", "d", d.size(), rows, columns);
    if (!c.empty()) require_size("chain_gemm", "c", c.size(), rows, columns);
    const ChainOperands operands(instruction, a, k, b, gemm_kernels(isa));
    for_each_tile(rows_per_tile, rows, columns, [&](const Tile& tile) {
        const int64_t count = tile.rows * panel_columns;
        Aligned<float> sums(count), totals(count);
        for (size_t p = 0; p < pieces.size(); ++p) {
            // A piece starts from +0 or, alone, from c; pieces are added in fp32, ascending.
            std::fill_n(sums.get(), count, 0.0f);
            if (pieces.size() == 1 && !c.empty()) load_tile(tile, c, columns, sums.get());
            operands.advance(tile, pieces[p], sums.get());
            for (int64_t i = 0; i < count; ++i)
                totals.get()[i] =
                    p == 0 ? sums.get()[i] : with_canonical_nan(totals.get()[i] + sums.get()[i]);
        }
        store_tile(tile, totals.get(), columns, d);
    });
}

void lanes_gemm(std::span<const float> a, int64_t rows, const PanelSource& b, int64_t columns, int64_t k,
                int64_t lanes, std::span<float> d, Isa isa) {
    if (lanes <= 0 || !std::has_single_bit(static_cast<uint64_t>(lanes)))
        throw UserError(
            {fmt::format("{} lanes", lanes), "lanes_gemm", "a power of two", "see numerics/sum_order.h"});
    require_size("lanes_gemm", "a", a.size(), rows, k);
    require_size("lanes_gemm", "d", d.size(), rows, columns);
    const GemmKernels& kernels = gemm_kernels(isa);
    const int64_t row_lanes = lanes * panel_columns;
    for_each_tile(rows_per_lanes_tile, rows, columns, [&](const Tile& tile) {
        Aligned<float> panel(k_per_tile * panel_columns), accumulators(tile.rows * row_lanes);
        for (int64_t at = 0; at < k; at += k_per_tile) {
            const int64_t count = std::min(k_per_tile, k - at);
            b.pack(tile.first_column, tile.columns, at, count, panel.get());
            for (int64_t row = 0; row < tile.rows; ++row)
                kernels.lane_products(a.data() + (tile.first_row + row) * k + at, panel.get(), count, at,
                                      lanes, accumulators.get() + row * row_lanes);
        }
        Aligned<float> sums(tile.rows * panel_columns);
        for (int64_t row = 0; row < tile.rows; ++row)
            kernels.lane_tree(accumulators.get() + row * row_lanes, lanes, sums.get() + row * panel_columns);
        store_tile(tile, sums.get(), columns, d);
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

namespace {

constexpr const char* block_where = "block_scaled_gemm";

void require_whole_blocks(int64_t k) {
    if (k % block == 0) return;
    throw UserError(
        {fmt::format("k is {}", k), block_where, "a multiple of 32, the elements of one scale", ""});
}

/// block_scaled_gemm over panels: pack(first column, columns, first k, count, values) decodes one,
/// column_scale(column, block) is a scale of b.
template <class Pack, class ColumnScale>
void block_scaled_panels(BlockSum sum, std::span<const float> a, std::span<const float> a_scales,
                         int64_t rows, const Pack& pack, const ColumnScale& column_scale, int64_t columns,
                         int64_t k, std::span<float> d, const GemmKernels& kernels) {
    const BlockSummer summer(sum, a, k, kernels);
    const int64_t blocks = k / block;
    for_each_tile(rows_per_tile, rows, columns, [&](const Tile& tile) {
        const int64_t count = tile.rows * panel_columns;
        Aligned<float> panel(k_per_tile * panel_columns), sums(count), accumulators(count);
        alignas(64) float column_scales[panel_columns] = {};
        for (int64_t index = 0; index < blocks; ++index) {
            const int64_t at = index * block, in_panel = at % k_per_tile;
            if (in_panel == 0)
                pack(tile.first_column, tile.columns, at, std::min(k_per_tile, k - at), panel.get());
            for (int64_t j = 0; j < tile.columns; ++j)
                column_scales[j] = column_scale(tile.first_column + j, index);
            summer.sum(tile.first_row, tile.rows, at, panel.get() + in_panel * panel_columns, sums.get());
            for (int64_t row = 0; row < tile.rows; ++row)
                kernels.add_scaled(sums.get() + row * panel_columns,
                                   a_scales[static_cast<size_t>((tile.first_row + row) * blocks + index)],
                                   column_scales, accumulators.get() + row * panel_columns);
        }
        std::transform(accumulators.get(), accumulators.get() + count, accumulators.get(),
                       [](float x) { return with_canonical_nan(x); });
        store_tile(tile, accumulators.get(), columns, d);
    });
}

/// Up to so many rows it is faster to go along columns of e4m3 than to decode panels of them; along e2m1 it
/// always is.
constexpr int64_t few_rows = 2;

/// What ByteRows points to.
struct ByteRowsOf {
    std::vector<uint8_t> bytes;
    std::vector<float> scales;

    ByteRowsOf(std::span<const float> a, std::span<const float> a_scales)
        : bytes(a.size() * 4), scales(a_scales.begin(), a_scales.end()) {
#pragma omp parallel for schedule(static)
        for (size_t index = 0; index < scales.size(); ++index)
            for (size_t i = 0; i < block; ++i) {
                const float value = a[index * block + i];
                if (is_nan(value)) {
                    scales[index] = value;
                    continue;
                }
                uint8_t* to = bytes.data() + index * ByteRows::block_bytes + i % 2 * (block / 2) + i / 2;
                const int32_t units = static_cast<int32_t>(value * 512), magnitude = std::abs(units);
                to[0] = static_cast<uint8_t>((units > 0) - (units < 0));
                for (int byte = 0; byte < 3; ++byte)
                    to[(1 + byte) * block] = static_cast<uint8_t>(magnitude >> 8 * byte);
            }
    }
};

/// Columns first .. first + 3; beyond `columns` the last is repeated.
StoredColumns stored_columns(const ScaledCodes& b, int64_t first, int64_t columns, int64_t k) {
    StoredColumns result;
    for (int64_t j = 0; j < 4; ++j) {
        const int64_t column = std::min(first + j, columns - 1);
        result.codes[j] = b.codes.data() + column * b.row_bytes(k);
        result.scales[j] = b.column_scales(column, k);
    }
    return result;
}

/// dots(first row, rows, columns, d) for every four columns and up to four rows. Sixteen rows of a stay in a
/// cache while b goes by.
template <class Dots>
void for_stored_columns(int64_t rows, const ScaledCodes& b, int64_t columns, int64_t k, std::span<float> d,
                        const Dots& dots) {
    constexpr int64_t some = 4, rows_in_cache = 16;
#pragma omp parallel for schedule(static) collapse(2)
    for (int64_t tile = 0; tile < rows; tile += rows_in_cache) {
        for (int64_t first = 0; first < columns; first += some) {
            const StoredColumns stored = stored_columns(b, first, columns, k);
            const int64_t count = std::min(some, columns - first), end = std::min(rows, tile + rows_in_cache);
            for (int64_t row = tile; row < end; row += some) {
                alignas(16) float sums[some * some];
                dots(row, std::min(some, end - row), stored, sums);
                for (int64_t i = 0; i < std::min(some, end - row); ++i)
                    std::transform(sums + i * some, sums + i * some + count,
                                   d.data() + (row + i) * columns + first,
                                   [](float sum) { return with_canonical_nan(sum); });
            }
        }
    }
}

void exact_dots(std::span<const float> a, std::span<const float> a_scales, int64_t rows, const ScaledCodes& b,
                int64_t columns, int64_t k, std::span<float> d, const GemmKernels& kernels) {
    const int64_t blocks = k / block;
    if (b.format == CodeFormat::e4m3) {
        const std::vector<double> wide(a.begin(), a.end());
        for_stored_columns(rows, b, columns, k, d,
                           [&](int64_t row, int64_t count, const StoredColumns& stored, float* sums) {
                               kernels.fp8_dots(
                                   {wide.data() + row * k, a_scales.data() + row * blocks, count, k}, stored,
                                   sums);
                           });
    } else {
        const ByteRowsOf left(a, a_scales);
        for_stored_columns(rows, b, columns, k, d,
                           [&](int64_t row, int64_t count, const StoredColumns& stored, float* sums) {
                               kernels.fp4_dots({left.bytes.data() + row * blocks * ByteRows::block_bytes,
                                                 left.scales.data() + row * blocks, count, k},
                                                stored, sums);
                           });
    }
}

}  // namespace

void block_scaled_gemm(BlockSum sum, std::span<const float> a, int64_t rows, const PanelSource& b,
                       int64_t columns, int64_t k, BlockScales scales, std::span<float> d, Isa isa) {
    require_whole_blocks(k);
    require_size(block_where, "a", a.size(), rows, k);
    require_size(block_where, "the scales of a", scales.a.size(), rows, k / block);
    require_size(block_where, "the scales of b", scales.b.size(), columns, k / block);
    require_size(block_where, "d", d.size(), rows, columns);
    const auto pack = [&b](int64_t first, int64_t count, int64_t first_k, int64_t count_k, float* values) {
        b.pack(first, count, first_k, count_k, values);
    };
    const auto column_scale = [&](int64_t column, int64_t index) {
        return scales.b[static_cast<size_t>(column * (k / block) + index)];
    };
    block_scaled_panels(sum, a, scales.a, rows, pack, column_scale, columns, k, d, gemm_kernels(isa));
}

void pack_codes(const ScaledCodes& b, int64_t k, int64_t first_row, int64_t columns, int64_t first_k,
                int64_t count, float* values, Isa isa) {
    const uint8_t* rows[panel_columns];
    for (int64_t j = 0; j < panel_columns; ++j)
        rows[j] = b.codes.data() + b.row_bytes((first_row + std::min(j, columns - 1)) * k + first_k);
    gemm_kernels(isa).pack_codes(b.format, rows, count, values);
}

void block_scaled_gemm(BlockSum sum, std::span<const float> a, std::span<const float> a_scales, int64_t rows,
                       const ScaledCodes& b, int64_t columns, int64_t k, std::span<float> d, Isa isa) {
    require_whole_blocks(k);
    require_size(block_where, "a", a.size(), rows, k);
    require_size(block_where, "the scales of a", a_scales.size(), rows, k / block);
    require_size(block_where, "b", b.codes.size(), columns, b.row_bytes(k));
    require_size(block_where, "the scales of b", b.scales.size(),
                 (columns + b.columns_per_scale - 1) / b.columns_per_scale, k / block);
    require_size(block_where, "d", d.size(), rows, columns);
    const GemmKernels& kernels = gemm_kernels(isa);
    if (sum == BlockSum::exact && (b.format == CodeFormat::e2m1 || rows <= few_rows))
        return exact_dots(a, a_scales, rows, b, columns, k, d, kernels);
    const auto pack = [&](int64_t first, int64_t count, int64_t first_k, int64_t count_k, float* values) {
        pack_codes(b, k, first, count, first_k, count_k, values, isa);
    };
    const auto column_scale = [&](int64_t column, int64_t index) {
        return to_float(b.column_scales(column, k)[index]);
    };
    block_scaled_panels(sum, a, a_scales, rows, pack, column_scale, columns, k, d, kernels);
}

namespace {
/// The doubled value of an e2m1 code, -12 .. 12.
constexpr std::array<int8_t, 16> doubled_e2m1{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

void require_fp4(std::span<const uint8_t> codes, std::span<const uint8_t> scales, int64_t rows, int64_t k,
                 const char* name, const char* scales_name) {
    if (k % block != 0)
        throw UserError(
            {fmt::format("k is {}", k), "fp4_gemm", "a multiple of 32, the elements of one scale", ""});
    require_size("fp4_gemm", name, codes.size(), rows, k / 2);
    require_size("fp4_gemm", scales_name, scales.size(), rows, k / block);
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
    require_fp4(a, a_scales, rows, k, "a", "the scales of a");
    require_fp4(b, b_scales, columns, k, "b", "the scales of b");
    require_size("fp4_gemm", "d", d.size(), rows, columns);
    const GemmKernels& kernels = gemm_kernels(isa);
    const int64_t groups = k / block;
    const UnpackedFp4Rows left = unpacked_fp4_rows(a, a_scales);
    for_each_tile(rows_per_tile, rows, columns, [&](const Tile& tile) {
        Aligned<uint8_t> panel(k * panel_columns);
        Aligned<float> column_scales(groups * panel_columns), sums(tile.rows * panel_columns);
        pack_fp4_panel(b, tile.first_column, tile.columns, k, panel.get());
        for (int64_t j = 0; j < tile.columns; ++j)
            for (int64_t g = 0; g < groups; ++g)
                column_scales.get()[g * panel_columns + j] =
                    to_float(E8m0{b_scales[static_cast<size_t>((tile.first_column + j) * groups + g)]});
        const Fp4Rows tile_rows{left.values.data() + tile.first_row * k,
                                left.offsets.data() + tile.first_row * groups,
                                left.scales.data() + tile.first_row * groups, tile.rows, groups};
        kernels.fp4_rows(tile_rows, panel.get(), column_scales.get(), sums.get());
        store_tile(tile, sums.get(), columns, d);
    });
}

}  // namespace touchstone
