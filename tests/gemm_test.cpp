#include "reference/numerics/gemm.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/random.h"
#include "reference/numerics/small_float.h"

#ifdef TOUCHSTONE_DNNL
#include <dnnl.hpp>
#endif

using namespace touchstone;

namespace {

/// A panel source of values at hand, [rows, k].
class Values final : public PanelSource {
  public:
    Values(std::vector<float> values, int64_t k) : values_(std::move(values)), k_(k) {}
    void pack(int64_t first_row, int64_t columns, int64_t first_k, int64_t count, float* out) const override {
        for (int64_t column = 0; column < columns; ++column)
            for (int64_t i = 0; i < count; ++i)
                out[i * panel_columns + column] = at(first_row + column, first_k + i);
    }
    float at(int64_t row, int64_t i) const { return values_[static_cast<size_t>(row * k_ + i)]; }

  private:
    std::vector<float> values_;
    int64_t k_;
};

std::vector<float> random_e4m3(int64_t count, uint64_t stream) {
    std::vector<float> values(static_cast<size_t>(count));
    const RandomStream random{11, stream};
    for (size_t i = 0; i < values.size(); ++i) {
        const uint8_t code = static_cast<uint8_t>(random.word(i));
        values[i] = to_float(E4m3{static_cast<uint8_t>((code & 0x7F) == 0x7F ? code ^ 0x40 : code)});
    }
    return values;
}

/// Calls check(isa) for every instruction set of this machine.
template <class Check>
void for_each_isa(const Check& check) {
    for (Isa isa : compiled_isas())
        if (isa_supported(isa)) check(isa);
}

void check_equal(std::span<const float> expected, std::span<const float> actual, const std::string& what) {
    int64_t differing = 0;
    std::string first;
    for (size_t i = 0; i < expected.size(); ++i) {
        if (float_bits(expected[i]) == float_bits(actual[i])) continue;
        if (differing++ == 0)
            first = fmt::format("{}: output {}: expected {:08x}, got {:08x}", what, i,
                                float_bits(expected[i]), float_bits(actual[i]));
    }
    INFO(first);
    CHECK(differing == 0);
}

struct Fp4Operand {
    std::vector<uint8_t> codes, scales;
    int64_t rows, k;

    Fp4Operand(int64_t rows_, int64_t k_, uint64_t stream) : rows(rows_), k(k_) {
        const RandomStream random{12, stream};
        for (int64_t i = 0; i < rows * k / 2; ++i)
            codes.push_back(static_cast<uint8_t>(random.word(static_cast<uint64_t>(i))));
        for (int64_t i = 0; i < rows * k / 32; ++i)
            scales.push_back(
                static_cast<uint8_t>(120 + random.word(static_cast<uint64_t>(i) + (1 << 30)) % 12));
    }
    int doubled(int64_t row, int64_t i) const {
        const uint8_t byte = codes[static_cast<size_t>((row * k + i) / 2)];
        return static_cast<int>(2 * to_float(i % 2 == 0 ? even_e2m1(byte) : odd_e2m1(byte)));
    }
    int scale_exponent(int64_t row, int64_t group) const {
        return scales[static_cast<size_t>(row * (k / 32) + group)] - 127;
    }
};

/// numerics contract, section 1, word for word.
std::vector<float> fp4_by_definition(const Fp4Operand& a, const Fp4Operand& b) {
    std::vector<float> d;
    for (int64_t m = 0; m < a.rows; ++m)
        for (int64_t n = 0; n < b.rows; ++n) {
            float accumulator = 0;
            for (int64_t g = 0; g < a.k / 32; ++g) {
                int32_t sum = 0;
                for (int64_t i = 32 * g; i < 32 * (g + 1); ++i) sum += a.doubled(m, i) * b.doubled(n, i);
                const float scale = std::ldexp(1.0f, a.scale_exponent(m, g) + b.scale_exponent(n, g) - 2);
                accumulator = fma_rn(static_cast<float>(sum), scale, accumulator);
            }
            d.push_back(accumulator);
        }
    return d;
}

/// A stored operand of random codes, every code of the format among them.
struct Stored {
    std::vector<uint8_t> codes;
    std::vector<E8m0> scales;
    ScaledCodes view;
    int64_t columns, k;

    Stored(CodeFormat format, int64_t columns_, int64_t k_, int64_t columns_per_scale)
        : view{format, {}, {}, columns_per_scale}, columns(columns_), k(k_) {
        const RandomStream random{14, static_cast<uint64_t>(columns)};
        codes.resize(static_cast<size_t>(columns * view.row_bytes(k)));
        for (size_t i = 0; i < codes.size(); ++i) {
            codes[i] = static_cast<uint8_t>(random.word(i));
            if (format == CodeFormat::e4m3 && (codes[i] & 0x7F) == 0x7F) codes[i] = 0x80;
        }
        scales.resize(static_cast<size_t>((columns + columns_per_scale - 1) / columns_per_scale * (k / 32)));
        for (size_t i = 0; i < scales.size(); ++i)
            scales[i] = {static_cast<uint8_t>(117 + random.word(codes.size() + i) % 20)};
        view.codes = codes, view.scales = scales;
    }

    float value(int64_t column, int64_t i) const {
        const size_t place = static_cast<size_t>(column * k + i);
        if (view.format == CodeFormat::e4m3) return to_float(E4m3{codes[place]});
        return to_float(i % 2 == 0 ? even_e2m1(codes[place / 2]) : odd_e2m1(codes[place / 2]));
    }
    /// The same operand as values and a scale for each column.
    Values values() const {
        std::vector<float> all;
        for (int64_t column = 0; column < columns; ++column)
            for (int64_t i = 0; i < k; ++i) all.push_back(value(column, i));
        return {all, k};
    }
    std::vector<float> column_scales() const {
        std::vector<float> all;
        for (int64_t column = 0; column < columns; ++column)
            for (int64_t b = 0; b < k / 32; ++b)
                all.push_back(
                    to_float(scales[static_cast<size_t>(column / view.columns_per_scale * (k / 32) + b)]));
        return all;
    }
};

constexpr std::array code_formats{CodeFormat::e4m3, CodeFormat::e2m1};

}  // namespace

TEST_CASE("gemm: the instruction set of a table is the one it was compiled for") {
    for (Isa isa : compiled_isas()) {
        CHECK(gemm_kernels(isa).isa == isa);
        if (!isa_supported(isa))
            MESSAGE("not on this machine, left out below: " << std::string(isa_name(isa)));
    }
}

TEST_CASE("gemm: exact block sums equal sums in 64-bit integers (every instruction set)") {
    // e4m3 values are multiples of 2^-9: products are integers of units 2^-18, and 32 of them stay below
    // 2^42.
    constexpr int64_t rows = 7, columns = 21, k = 320;
    const std::vector<float> a = random_e4m3(rows * k, 1);
    const Values b(random_e4m3(columns * k, 2), k);
    const RandomStream random{13};
    std::vector<float> a_scales, b_scales, expected, d(rows * columns);
    for (uint64_t i = 0; i < rows * k / 32; ++i)
        a_scales.push_back(std::ldexp(1.0f, static_cast<int>(random.word(i) % 9) - 4));
    for (uint64_t i = 0; i < columns * k / 32; ++i)
        b_scales.push_back(std::ldexp(1.0f, static_cast<int>(random.word(i) >> 8 & 7) - 4));
    for (int64_t m = 0; m < rows; ++m)
        for (int64_t n = 0; n < columns; ++n) {
            float accumulator = 0;
            for (int64_t g = 0; g < k / 32; ++g) {
                int64_t sum = 0;
                for (int64_t i = 32 * g; i < 32 * (g + 1); ++i)
                    sum += static_cast<int64_t>(a[static_cast<size_t>(m * k + i)] * 512) *
                           static_cast<int64_t>(b.at(n, i) * 512);
                const float block_sum = static_cast<float>(sum) * 0x1p-18f;
                accumulator += block_sum * (a_scales[static_cast<size_t>(m * k / 32 + g)] *
                                            b_scales[static_cast<size_t>(n * k / 32 + g)]);
            }
            expected.push_back(accumulator);
        }
    for_each_isa([&](Isa isa) {
        block_scaled_gemm(BlockSum::exact, a, rows, b, columns, k, {a_scales, b_scales}, d, isa);
        check_equal(expected, d, std::string(isa_name(isa)));
    });
}

TEST_CASE("gemm: released Hopper blocks are one fp8 wgmma step each (every instruction set)") {
    constexpr int64_t rows = 5, columns = 18, k = 288;
    const std::vector<float> a = random_e4m3(rows * k, 3), row_ones(rows * k / 32, 1.0f),
                             column_ones(columns * k / 32, 1.0f);
    const Values b(random_e4m3(columns * k, 4), k);
    const TensorCoreInstruction& instruction = tensor_core_instruction("hopper.wgmma.e4m3");
    std::vector<float> expected, d(rows * columns);
    for (int64_t m = 0; m < rows; ++m)
        for (int64_t n = 0; n < columns; ++n) {
            float accumulator = 0;
            for (int64_t g = 0; g < k / 32; ++g) {
                uint32_t left[32], right[32];
                for (int64_t i = 0; i < 32; ++i) {
                    left[i] = e4m3_from_float_saturating(a[static_cast<size_t>(m * k + 32 * g + i)]).bits;
                    right[i] = e4m3_from_float_saturating(b.at(n, 32 * g + i)).bits;
                }
                accumulator += tensor_core_step(instruction, left, right, 0.0f);
            }
            expected.push_back(accumulator);
        }
    for_each_isa([&](Isa isa) {
        block_scaled_gemm(BlockSum::hopper_fp8_wgmma, a, rows, b, columns, k, {row_ones, column_ones}, d,
                          isa);
        check_equal(expected, d, std::string(isa_name(isa)));
    });
}

TEST_CASE("gemm: lanes are FMA in order and the adjacent-pair tree (every instruction set, lane counts)") {
    constexpr int64_t rows = 18, columns = 17, k = 300;
    const std::vector<float> a = random_e4m3(rows * k, 5);
    const Values b(random_e4m3(columns * k, 6), k);
    for (int64_t lanes : {1, 2, 8, 64, 256}) {
        std::vector<float> expected, d(rows * columns);
        for (int64_t m = 0; m < rows; ++m)
            for (int64_t n = 0; n < columns; ++n) {
                std::vector<float> lane(static_cast<size_t>(lanes), 0.0f);
                for (int64_t i = 0; i < k; ++i) {
                    float& sum = lane[static_cast<size_t>(i % lanes)];
                    sum = fma_rn(a[static_cast<size_t>(m * k + i)], b.at(n, i), sum);
                }
                for (; lane.size() > 1; lane.resize(lane.size() / 2))
                    for (size_t i = 0; i < lane.size() / 2; ++i) lane[i] = lane[2 * i] + lane[2 * i + 1];
                expected.push_back(lane[0]);
            }
        for_each_isa([&](Isa isa) {
            lanes_gemm(a, rows, b, columns, k, lanes, d, isa);
            check_equal(expected, d, fmt::format("{} lanes, {}", lanes, isa_name(isa)));
        });
    }
    std::vector<float> d(rows * columns);
    CHECK_THROWS_AS(lanes_gemm(a, rows, b, columns, k, 12, d), UserError);
}

TEST_CASE("gemm: stored codes give what their values give (formats, rows, columns, special numbers)") {
    struct Shape {
        int64_t rows, columns, k, columns_per_scale;
    };
    const float nan = float_from_bits(canonical_nan_bits);
    for (const Shape& shape : {Shape{1, 1, 32, 1}, Shape{1, 37, 288, 32}, Shape{2, 6, 512, 32},
                               Shape{2, 5, 32, 1}, Shape{3, 17, 96, 1}, Shape{4, 33, 320, 32},
                               Shape{5, 64, 64, 1}, Shape{19, 35, 160, 32}, Shape{70, 18, 64, 1}})
        for (const CodeFormat format : code_formats) {
            Stored b(format, shape.columns, shape.k, shape.columns_per_scale);
            std::vector<float> a = random_e4m3(shape.rows * shape.k, 20), a_scales;
            for (uint64_t i = 0; i < a.size() / 32; ++i)
                a_scales.push_back(std::ldexp(1.0f, static_cast<int>(RandomStream{15}.word(i) % 9) - 4));
            // Largest sums in the first row, a NaN in the last, where there are so many.
            for (size_t i = 0; i < 32; ++i) a[i] = b.value(0, static_cast<int64_t>(i)) < 0 ? -448.0f : 448.0f;
            if (shape.rows > 2) a[a.size() - 7] = nan;
            if (shape.columns > 4) {
                b.scales[0] = E8m0{0}, b.scales[1] = E8m0{254}, b.scales.back() = E8m0{255};
                if (format == CodeFormat::e4m3) b.codes[b.codes.size() / 2] = 0xFF;  // NaN
            }
            for (const BlockSum sum : {BlockSum::exact, BlockSum::hopper_fp8_wgmma}) {
                std::vector<float> expected(static_cast<size_t>(shape.rows * shape.columns)),
                    d(expected.size());
                const std::vector<float> b_scales = b.column_scales();
                block_scaled_gemm(sum, a, shape.rows, b.values(), shape.columns, shape.k,
                                  {a_scales, b_scales}, expected, Isa::scalar);
                for_each_isa([&](Isa isa) {
                    std::fill(d.begin(), d.end(), -1.0f);
                    block_scaled_gemm(sum, a, a_scales, shape.rows, b.view, shape.columns, shape.k, d, isa);
                    check_equal(expected, d,
                                fmt::format("format {}, sum {}, [{}, {}, {}], {}", static_cast<int>(format),
                                            static_cast<int>(sum), shape.rows, shape.columns, shape.k,
                                            isa_name(isa)));
                });
            }
        }
}

TEST_CASE(
    "gemm: panels hold the values of codes and of bf16 (every code, cut panels, every instruction set)") {
    constexpr int64_t k = 288;
    for (const CodeFormat format : code_formats)
        for (const int64_t columns : {1, 15, 16, 19}) {
            Stored b(format, columns, k, 1);
            for (size_t i = 0; i < b.codes.size(); ++i) b.codes[i] = static_cast<uint8_t>(i + i / 256);
            for (const auto& [first, count] : {std::array<int64_t, 2>{0, 256}, {256, 32}, {16, 16}, {48, 80}})
                for_each_isa([&, first = first, count = count](Isa isa) {
                    const int64_t first_row = columns > 16 ? 16 : 0, width = columns - first_row;
                    std::vector<float> panel(static_cast<size_t>(count * panel_columns), -1.0f), expected,
                        actual;
                    pack_codes(b.view, k, first_row, width, first, count, panel.data(), isa);
                    for (int64_t i = 0; i < count; ++i)
                        for (int64_t j = 0; j < width; ++j) {
                            expected.push_back(b.value(first_row + j, first + i));
                            actual.push_back(
                                with_canonical_nan(panel[static_cast<size_t>(i * panel_columns + j)]));
                        }
                    check_equal(expected, actual,
                                fmt::format("format {}, {} columns, k {} + {}, {}", static_cast<int>(format),
                                            columns, first, count, isa_name(isa)));
                });
        }
    std::vector<Bf16> rows(16 * 4096);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = {static_cast<uint16_t>(i)};
    const Bf16* starts[16];
    for (size_t j = 0; j < 16; ++j) starts[j] = rows.data() + j * 4096;
    for (const int64_t count : {1, 7, 8, 13, 4096})
        for_each_isa([&](Isa isa) {
            std::vector<float> panel(static_cast<size_t>(count * 16)), expected;
            gemm_kernels(isa).pack_bf16(starts, count, panel.data());
            for (int64_t i = 0; i < count; ++i)
                for (const Bf16* start : starts) expected.push_back(to_float(start[i]));
            check_equal(expected, panel, fmt::format("bf16, {}, {}", count, isa_name(isa)));
        });
}

TEST_CASE("gemm: fp4 products are the contract's definition (every instruction set, shapes)") {
    for (const auto& [rows, columns, k] :
         {std::array<int64_t, 3>{1, 1, 32}, {3, 17, 128}, {64, 40, 128}, {66, 16, 256}}) {
        const Fp4Operand a(rows, k, 7), b(columns, k, 8);
        const std::vector<float> expected = fp4_by_definition(a, b);
        std::vector<float> d(expected.size());
        const std::string shape = fmt::format("[{}, {}, {}]", rows, columns, k);
        for_each_isa([&](Isa isa) {
            fp4_gemm(a.codes, a.scales, a.rows, b.codes, b.scales, b.rows, a.k, d, isa);
            check_equal(expected, d, shape + ", " + std::string(isa_name(isa)));
        });
    }
}

TEST_CASE("gemm: fp4 extremes (largest codes, smallest and largest scales, NaN scale)") {
    Fp4Operand a(1, 32, 9), b(1, 32, 10);
    a.codes.assign(16, 0x77), b.codes.assign(16, 0xFF);  // 6 and -6
    const auto result = [&](uint8_t a_scale, uint8_t b_scale) {
        a.scales[0] = a_scale, b.scales[0] = b_scale;
        float d = 0;
        fp4_gemm(a.codes, a.scales, 1, b.codes, b.scales, 1, 32, {&d, 1});
        return d;
    };
    CHECK(result(127, 127) == -1152.0f);
    CHECK(result(0, 254) == -1152.0f);
    CHECK(result(254, 0) == -1152.0f);
    CHECK(result(0, 127) == -1152.0f * 0x1p-127f);
    CHECK(float_bits(result(255, 127)) == canonical_nan_bits);
    a.codes.pop_back();
    float d = 0;
    CHECK_THROWS_WITH_AS(fp4_gemm(a.codes, a.scales, 1, b.codes, b.scales, 1, 32, {&d, 1}),
                         doctest::Contains("a has 15 elements"), UserError);
    CHECK_THROWS_WITH_AS(fp4_gemm(a.codes, a.scales, 1, b.codes, b.scales, 1, 48, {&d, 1}),
                         doctest::Contains("k is 48"), UserError);
}

TEST_CASE("gemm: sizes that do not match are refused with the operand named") {
    constexpr int64_t rows = 2, columns = 3, k = 64;
    const std::vector<float> a(rows * k), scales_a(rows * 2), scales_b(columns * 2);
    const Values b(std::vector<float>(columns * k), k);
    std::vector<float> d(rows * columns);
    const TensorCoreInstruction& instruction = tensor_core_instruction("hopper.wgmma.bf16");
    const KPiece whole{0, k}, halves[2] = {{0, 32}, {32, 32}}, gap[2] = {{0, 16}, {32, 32}};
    const auto chain = [&](std::span<const KPiece> pieces, std::span<const float> left,
                           std::span<float> out) {
        chain_gemm(instruction, left, rows, b, columns, k, pieces, {}, out);
    };
    CHECK_NOTHROW(chain({&whole, 1}, a, d));
    CHECK_NOTHROW(chain(halves, a, d));
    CHECK_THROWS_WITH_AS(chain(gap, a, d), doctest::Contains("begins at 32"), UserError);
    CHECK_THROWS_WITH_AS(chain({halves, 1}, a, d), doctest::Contains("cover 32 of 64"), UserError);
    CHECK_THROWS_WITH_AS(chain({&whole, 1}, std::span(a).first(k), d), doctest::Contains("a has 64"),
                         UserError);
    CHECK_THROWS_WITH_AS(chain({&whole, 1}, a, std::span(d).first(5)), doctest::Contains("d has 5"),
                         UserError);
    CHECK_THROWS_WITH_AS(lanes_gemm(a, rows, b, columns, k, 8, std::span(d).first(5)),
                         doctest::Contains("d has 5"), UserError);
    const auto blocks = [&](BlockScales scales, int64_t width) {
        block_scaled_gemm(BlockSum::exact, a, rows, b, columns, width, scales, d);
    };
    CHECK_NOTHROW(blocks({scales_a, scales_b}, k));
    CHECK_THROWS_WITH_AS(blocks({scales_a, scales_b}, 48), doctest::Contains("k is 48"), UserError);
    CHECK_THROWS_WITH_AS(blocks({scales_b, scales_b}, k), doctest::Contains("the scales of a has 6"),
                         UserError);
    CHECK_THROWS_WITH_AS(blocks({scales_a, scales_a}, k), doctest::Contains("the scales of b has 4"),
                         UserError);
    const Stored stored(CodeFormat::e2m1, columns, k, 1);
    const auto codes = [&](ScaledCodes right, int64_t width, std::span<const float> left_scales) {
        block_scaled_gemm(BlockSum::exact, a, left_scales, rows, right, columns, width, d);
    };
    ScaledCodes cut = stored.view;
    CHECK_NOTHROW(codes(cut, k, scales_a));
    CHECK_THROWS_WITH_AS(codes(cut, 48, scales_a), doctest::Contains("k is 48"), UserError);
    CHECK_THROWS_WITH_AS(codes(cut, k, scales_b), doctest::Contains("the scales of a has 6"), UserError);
    cut.columns_per_scale = 32;
    CHECK_THROWS_WITH_AS(codes(cut, k, scales_a), doctest::Contains("the scales of b has 6"), UserError);
    cut.codes = cut.codes.first(95);
    CHECK_THROWS_WITH_AS(codes(cut, k, scales_a), doctest::Contains("b has 95"), UserError);
}

#ifdef TOUCHSTONE_DNNL
TEST_CASE("gemm: fp4 group sums equal oneDNN's s8 x s8 -> s32 product") {
    constexpr int64_t rows = 33, columns = 50,
                      k = 32;  // one group: with scales of 1 the result is the integer / 4
    Fp4Operand a(rows, k, 14), b(columns, k, 15);
    a.scales.assign(a.scales.size(), 127), b.scales.assign(b.scales.size(), 127);
    std::vector<int8_t> left, right;
    for (int64_t m = 0; m < rows; ++m)
        for (int64_t i = 0; i < k; ++i) left.push_back(static_cast<int8_t>(a.doubled(m, i)));
    for (int64_t i = 0; i < k; ++i)
        for (int64_t n = 0; n < columns; ++n) right.push_back(static_cast<int8_t>(b.doubled(n, i)));
    std::vector<int32_t> sums(rows * columns);
    const int32_t zero_offset = 0;
    REQUIRE(dnnl_gemm_s8s8s32('N', 'N', 'F', rows, columns, k, 1.0f, left.data(), k, 0, right.data(), columns,
                              0, 0.0f, sums.data(), columns, &zero_offset) == dnnl_success);
    std::vector<float> expected, d(rows * columns);
    for (int32_t sum : sums) expected.push_back(static_cast<float>(sum) / 4);
    fp4_gemm(a.codes, a.scales, rows, b.codes, b.scales, columns, k, d);
    check_equal(expected, d, "oneDNN");
}
#endif
