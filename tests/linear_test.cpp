#include "reference/linear.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/gemm.h"
#include "reference/numerics/random.h"
#include "reference/truth/linear.h"

using namespace touchstone;

namespace {

constexpr std::array arithmetics{Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper};

/// Sum of four uniform numbers: near normal, of variance 1/3.
float bell(const RandomStream& random, uint64_t i) {
    const PhiloxBlock block = random.block(i);
    float sum = 0;
    for (uint32_t word : block.words) sum += static_cast<float>(word >> 8) * 0x1p-24f - 0.5f;
    return sum;
}

std::vector<Bf16> random_bf16(int64_t count, uint64_t stream, float scale = 1) {
    std::vector<Bf16> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = bf16_from_float(scale * bell({7, stream}, i));
    return values;
}

/// Owns what a weight refers to.
struct Fp8Storage {
    std::vector<E4m3> codes;
    std::vector<E8m0> scales;
    Fp8Weight weight;

    Fp8Storage(int64_t outputs, int64_t inputs)
        : codes(static_cast<size_t>(outputs * inputs)),
          scales(static_cast<size_t>((outputs + 31) / 32 * (inputs / 32))),
          weight{"layers.0.attn.wq_a.weight", outputs, inputs, codes, scales} {
        for (size_t i = 0; i < codes.size(); ++i)
            codes[i] = e4m3_from_float_saturating(200 * bell({7, 11}, i));
        const RandomStream random{7, 12};
        for (size_t i = 0; i < scales.size(); ++i)
            scales[i] = {static_cast<uint8_t>(112 + random.word(i) % 4)};
    }
};

struct Fp4Storage {
    std::vector<uint8_t> codes;
    std::vector<E8m0> scales;
    Fp4Weight weight;

    Fp4Storage(int64_t outputs, int64_t inputs)
        : codes(static_cast<size_t>(outputs * inputs / 2)),
          scales(static_cast<size_t>(outputs * (inputs / 32))),
          weight{"layers.0.ffn.experts.0.w1.weight", outputs, inputs, codes, scales} {
        const RandomStream random{7, 13};
        for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(random.word(i) >> 7);
        for (size_t i = 0; i < scales.size(); ++i)
            scales[i] = {static_cast<uint8_t>(117 + random.word(codes.size() + i) % 4)};
    }
};

struct Bf16Storage {
    std::vector<Bf16> values;
    Bf16Weight weight;

    Bf16Storage(int64_t outputs, int64_t inputs)
        : values(random_bf16(outputs * inputs, 14, 0.05f)),
          weight{"layers.2.attn.indexer.weights_proj.weight", outputs, inputs, values} {}
};

/// Every linear layer behind one call: fp32 accumulators.
struct Layer {
    const char* name;
    SumOperator op;
    std::vector<float> (*run)(Arithmetic arithmetic, SumOperator op, std::span<const Bf16> x, int64_t rows,
                              int64_t outputs, int64_t inputs);
};

template <class Storage, auto linear>
std::vector<float> run(Arithmetic arithmetic, SumOperator op, std::span<const Bf16> x, int64_t rows,
                       int64_t outputs, int64_t inputs) {
    const Storage storage(outputs, inputs);
    std::vector<float> y(static_cast<size_t>(rows * outputs));
    linear(arithmetic, op, x, rows, storage.weight, std::span<float>(y));
    return y;
}

using Fp8Function = void (*)(Arithmetic, SumOperator, std::span<const Bf16>, int64_t, const Fp8Weight&,
                             std::span<float>);
using Fp4Function = void (*)(Arithmetic, SumOperator, std::span<const Bf16>, int64_t, const Fp4Weight&,
                             std::span<float>);
using Bf16Function = void (*)(Arithmetic, SumOperator, std::span<const Bf16>, int64_t, const Bf16Weight&,
                              std::span<float>);

const std::array layers{
    Layer{"L8", SumOperator::wq_a, run<Fp8Storage, static_cast<Fp8Function>(linear_fp8)>},
    Layer{"L4", SumOperator::expert_w1_w3, run<Fp4Storage, static_cast<Fp4Function>(linear_fp4)>},
    Layer{"LB and LF", SumOperator::index_weights_proj,
          run<Bf16Storage, static_cast<Bf16Function>(linear_bf16)>},
};

int64_t differing(std::span<const float> left, std::span<const float> right) {
    int64_t count = 0;
    for (size_t i = 0; i < left.size(); ++i) count += float_bits(left[i]) != float_bits(right[i]);
    return count;
}

struct Shape {
    int64_t rows, outputs, inputs;
};

/// Small shapes around every edge, and some long rows.
constexpr std::array shapes{Shape{3, 33, 32}, Shape{2, 16, 512}, Shape{5, 40, 1280}, Shape{2, 1290, 320},
                            Shape{2, 24, 5120}};

template <class Storage>
truth::LinearOperands operands_of(std::span<const Bf16> x, const Shape& shape) {
    const Storage storage(shape.outputs, shape.inputs);
    return truth::linear_operands(x, shape.rows, storage.weight);
}

truth::Matrix bound_of(Arithmetic arithmetic, const Layer& layer, const truth::LinearOperands& operands,
                       const Shape& shape) {
    const bool block_scaled = layer.op != SumOperator::index_weights_proj;
    const SumOrder order = sum_order(layer.op, shape.inputs, shape.outputs);
    if (arithmetic == Arithmetic::exact)
        return block_scaled ? truth::exact_blocks_bound(operands)
                            : truth::exact_lanes_bound(operands, order.lanes);
    if (arithmetic == Arithmetic::released_hopper && block_scaled)
        return truth::released_hopper_bound(operands);
    return truth::hopper_bound(operands, order);
}

}  // namespace

TEST_CASE(
    "linear: errors against truth stay within the bound and reach a hundredth of it (every layer and "
    "arithmetic)") {
    for (const Layer& layer : layers) {
        for (Arithmetic arithmetic : arithmetics) {
            double nearest = 0;
            for (const Shape& shape : shapes) {
                const std::vector<Bf16> x = random_bf16(shape.rows * shape.inputs, 1);
                const truth::LinearOperands operands =
                    layer.op == SumOperator::wq_a           ? operands_of<Fp8Storage>(x, shape)
                    : layer.op == SumOperator::expert_w1_w3 ? operands_of<Fp4Storage>(x, shape)
                                                            : operands_of<Bf16Storage>(x, shape);
                const std::vector<float> y =
                    layer.run(arithmetic, layer.op, x, shape.rows, shape.outputs, shape.inputs);
                const truth::Matrix exact = truth::linear(operands),
                                    bound = bound_of(arithmetic, layer, operands, shape);
                double worst = 0;
                for (Eigen::Index i = 0; i < exact.size(); ++i)
                    worst = std::max(
                        worst, std::abs(static_cast<double>(y[static_cast<size_t>(i)]) - exact.data()[i]) /
                                   bound.data()[i]);
                const std::string shown =
                    fmt::format("{}, {}, rows {}, outputs {}, inputs {}: {:.4f} of the bound", layer.name,
                                arithmetic_name(arithmetic), shape.rows, shape.outputs, shape.inputs, worst);
                INFO(shown);
                CHECK(worst <= 1.0);
                nearest = std::max(nearest, worst);
            }
            const std::string reached = fmt::format("{}, {}: at most {:.4f} of the bound", layer.name,
                                                    arithmetic_name(arithmetic), nearest);
            INFO(reached);
            CHECK(nearest >= 0.01);  // a bound that nothing comes near proves nothing
        }
    }
}

TEST_CASE("linear: a row's bits do not depend on the number of rows (1, 2, 3, 15, 16, 17, 64, 1000)") {
    constexpr int64_t outputs = 20, inputs = 256, most = 1000;
    const std::vector<Bf16> x = random_bf16(most * inputs, 2);
    for (const Layer& layer : layers) {
        for (Arithmetic arithmetic : arithmetics) {
            const std::vector<float> all = layer.run(arithmetic, layer.op, x, most, outputs, inputs);
            for (int64_t rows : {1, 2, 3, 15, 16, 17, 64}) {
                // From the end, so that a row also changes its place.
                const int64_t first = most - rows;
                const std::vector<float> some =
                    layer.run(arithmetic, layer.op, std::span(x).subspan(static_cast<size_t>(first * inputs)),
                              rows, outputs, inputs);
                const std::string shown =
                    fmt::format("{}, {}, {} rows", layer.name, arithmetic_name(arithmetic), rows);
                INFO(shown);
                CHECK(differing(some, std::span(all).subspan(static_cast<size_t>(first * outputs))) == 0);
            }
        }
    }
}

TEST_CASE("linear: the thread count changes no bit (1, 2, 7)") {
    constexpr int64_t rows = 70, outputs = 100, inputs = 512;
    const std::vector<Bf16> x = random_bf16(rows * inputs, 3);
    const int threads = omp_get_max_threads();
    for (const Layer& layer : layers) {
        for (Arithmetic arithmetic : arithmetics) {
            omp_set_num_threads(1);
            const std::vector<float> alone = layer.run(arithmetic, layer.op, x, rows, outputs, inputs);
            for (int count : {2, 7}) {
                omp_set_num_threads(count);
                const std::string shown =
                    fmt::format("{}, {}, {} threads", layer.name, arithmetic_name(arithmetic), count);
                INFO(shown);
                CHECK(differing(alone, layer.run(arithmetic, layer.op, x, rows, outputs, inputs)) == 0);
            }
        }
    }
    omp_set_num_threads(threads);
}

TEST_CASE("linear: L8 by hand (one block, and the order of two)") {
    // Q8 of a row whose maximum is 448: scale 1, codes are the values.
    std::vector<Bf16> x(64, bf16_from_float(0));
    x[0] = bf16_from_float(448), x[1] = bf16_from_float(-2), x[32] = bf16_from_float(448),
    x[33] = bf16_from_float(1);
    std::vector<E4m3> codes(64, E4m3{0});
    codes[0] = e4m3_from_float_saturating(3), codes[1] = e4m3_from_float_saturating(0.5f);
    codes[32] = e4m3_from_float_saturating(1), codes[33] = e4m3_from_float_saturating(-1);
    const std::vector<E8m0> scales{E8m0{128}, E8m0{126}};  // 2 and 1/2
    const Fp8Weight weight{"w", 1, 64, codes, scales};
    for (Arithmetic arithmetic : arithmetics) {
        float y = 0;
        linear_fp8(arithmetic, SumOperator::wq_a, x, 1, weight, {&y, 1});
        CHECK(y == (448 * 3 - 1) * 2.0f + 447 * 0.5f);
        Bf16 rounded{};
        linear_fp8(arithmetic, SumOperator::wq_a, x, 1, weight, {&rounded, 1});
        CHECK(rounded == bf16_from_float(y));
    }
}

TEST_CASE(
    "linear: L8 exact is the definition of text model 2.5 (block sums in double, one rounding, one FMA)") {
    constexpr int64_t rows = 4, outputs = 70, inputs = 640;
    const Fp8Storage storage(outputs, inputs);
    const std::vector<Bf16> x = random_bf16(rows * inputs, 4);
    const QuantizedRows q = quantize_linear_input(x, rows, inputs);
    std::vector<float> y(rows * outputs), expected(rows * outputs);
    linear_fp8(Arithmetic::exact, SumOperator::wq_a, x, rows, storage.weight, std::span<float>(y));
    for (int64_t m = 0; m < rows; ++m)
        for (int64_t n = 0; n < outputs; ++n) {
            float accumulator = 0;
            for (int64_t b = 0; b < inputs / 32; ++b) {
                double sum = 0;
                for (int64_t k = 32 * b; k < 32 * (b + 1); ++k)
                    sum += static_cast<double>(q.values[static_cast<size_t>(m * inputs + k)]) *
                           static_cast<double>(to_float(storage.codes[static_cast<size_t>(n * inputs + k)]));
                const float scale = q.scales[static_cast<size_t>(m * inputs / 32 + b)] *
                                    to_float(storage.scales[static_cast<size_t>(n / 32 * (inputs / 32) + b)]);
                accumulator = fma_rn(static_cast<float>(sum), scale, accumulator);
            }
            expected[static_cast<size_t>(m * outputs + n)] = accumulator;
        }
    CHECK(differing(y, expected) == 0);
}

TEST_CASE("linear: hopper is the tensor-core chain of the dequantised operands, in the table's pieces") {
    constexpr int64_t rows = 3, outputs = 40, inputs = 5120;  // 8 pieces
    const Fp4Storage storage(outputs, inputs);
    const std::vector<Bf16> x = random_bf16(rows * inputs, 5);
    const QuantizedRows q = quantize_linear_input(x, rows, inputs);
    std::vector<Bf16> a(rows * inputs), b(outputs * inputs);
    for (size_t i = 0; i < a.size(); ++i) a[i] = bf16_from_float(q.values[i] * q.scales[i / 32]);
    for (size_t i = 0; i < b.size(); ++i) {
        const E2m1 code = i % 2 == 0 ? even_e2m1(storage.codes[i / 2]) : odd_e2m1(storage.codes[i / 2]);
        b[i] = bf16_from_float(to_float(code) * to_float(storage.scales[i / 32]));
    }
    const SumOrder order = sum_order(SumOperator::expert_w1_w3, inputs, outputs);
    REQUIRE(order.pieces == 8);
    std::vector<float> y(rows * outputs), expected(rows * outputs, 0.0f);
    linear_fp4(Arithmetic::hopper, SumOperator::expert_w1_w3, x, rows, storage.weight, std::span<float>(y));
    const TensorCoreInstruction& instruction = tensor_core_instruction("hopper.wgmma.bf16");
    for (int64_t m = 0; m < rows; ++m)
        for (int64_t n = 0; n < outputs; ++n) {
            float& sum = expected[static_cast<size_t>(m * outputs + n)];
            for (int i = 0; i < order.pieces; ++i) {
                const PieceRange range = piece(order, inputs, i);
                float chain = 0;
                for (int64_t k = range.first; k < range.last; k += 16) {
                    uint32_t left[16], right[16];
                    for (int64_t j = 0; j < 16; ++j) {
                        left[j] = a[static_cast<size_t>(m * inputs + k + j)].bits;
                        right[j] = b[static_cast<size_t>(n * inputs + k + j)].bits;
                    }
                    chain = tensor_core_step(instruction, left, right, chain);
                }
                sum = i == 0 ? chain : sum + chain;
            }
        }
    CHECK(differing(y, expected) == 0);
}

TEST_CASE("gemm: a weight is decoded at most once per 16 rows (counted)") {
    constexpr int64_t columns = 33, k = 512;
    class Counting final : public PanelSource {
      public:
        void pack(int64_t, int64_t width, int64_t, int64_t count, float* values) const override {
            std::fill_n(values, count * panel_columns, 1.0f);
            decoded += width * count;
        }
        mutable std::atomic<int64_t> decoded{0};
    };
    const KPiece pieces[2] = {{0, 256}, {256, 256}};
    for (int64_t rows : {1, 16, 17, 64, 65, 200}) {
        CAPTURE(rows);
        const std::vector<float> a(static_cast<size_t>(rows * k), 1.0f),
            ones(static_cast<size_t>(rows * k / 32 + 64 * 16), 1.0f);
        std::vector<float> d(static_cast<size_t>(rows * columns));
        const int64_t most = (rows + 15) / 16 * columns * k;
        const auto decoded_by = [&](auto gemm) {
            const Counting source;
            gemm(source);
            return source.decoded.load();
        };
        const int64_t by_chain = decoded_by([&](const PanelSource& source) {
            chain_gemm(tensor_core_instruction("hopper.wgmma.bf16"), a, rows, source, columns, k, pieces, {},
                       d);
        });
        const int64_t by_lanes =
            decoded_by([&](const PanelSource& source) { lanes_gemm(a, rows, source, columns, k, 256, d); });
        const int64_t by_blocks = decoded_by([&](const PanelSource& source) {
            block_scaled_gemm(BlockSum::exact, a, rows, source, columns, k,
                              {std::span(ones).first(static_cast<size_t>(rows * k / 32)),
                               std::span(ones).first(columns * k / 32)},
                              d);
        });
        for (int64_t decoded : {by_chain, by_lanes, by_blocks}) {
            CHECK(decoded >= columns * k);
            CHECK(decoded <= most);
        }
    }
}

TEST_CASE("linear: special codes and scales (NaN codes, NaN scales, zeros under any scale)") {
    std::vector<Bf16> x = random_bf16(64, 6);
    Fp8Storage storage(2, 64);
    storage.codes[70] = E4m3{0x7F};
    for (Arithmetic arithmetic : arithmetics) {
        CAPTURE(arithmetic_name(arithmetic));
        std::vector<float> y(2);
        linear_fp8(arithmetic, SumOperator::wq_a, x, 1, storage.weight, std::span<float>(y));
        CHECK(!is_nan(y[0]));
        CHECK(float_bits(y[1]) == canonical_nan_bits);
    }
    // A block of zeros is exact under every scale, and its scale changes nothing.
    std::fill_n(storage.codes.begin(), 32, E4m3{0});
    std::fill_n(storage.codes.begin() + 64, 32, E4m3{0x80});
    storage.codes[96] = E4m3{0x38};
    storage.codes[70] = E4m3{0};
    for (int scale : {0, 1, 250, 254}) {
        storage.scales[0] = {static_cast<uint8_t>(scale)};
        for (Arithmetic arithmetic : arithmetics) {
            std::vector<float> y(2);
            linear_fp8(arithmetic, SumOperator::wq_a, x, 1, storage.weight, std::span<float>(y));
            CAPTURE(scale);
            CHECK(!is_nan(y[0]));
            CHECK(!is_nan(y[1]));
        }
    }
}

TEST_CASE("linear: a NaN or an infinity of the input is never lost") {
    for (const Layer& layer : layers) {
        for (Arithmetic arithmetic : arithmetics) {
            for (uint16_t bits : {uint16_t{0x7FC1}, uint16_t{0xFF80}, uint16_t{0x7F80}}) {
                std::vector<Bf16> x = random_bf16(2 * 64, 7);
                x[5] = {bits};
                const std::vector<float> y = layer.run(arithmetic, layer.op, x, 2, 3, 64);
                const std::string shown =
                    fmt::format("{}, {}, {:04x}", layer.name, arithmetic_name(arithmetic), bits);
                INFO(shown);
                for (int n = 0; n < 3; ++n) {
                    CHECK(!std::isfinite(y[static_cast<size_t>(n)]));
                    if (is_nan(y[static_cast<size_t>(n)]))
                        CHECK(float_bits(y[static_cast<size_t>(n)]) == canonical_nan_bits);
                    CHECK(std::isfinite(y[static_cast<size_t>(3 + n)]));
                }
            }
        }
    }
}

TEST_CASE("linear: scales outside the fold's exact range are refused with tensor, index and value") {
    const std::vector<Bf16> x = random_bf16(64, 8);
    std::vector<float> y(40, -1.0f);
    Fp8Storage storage(40, 64);
    std::fill(storage.codes.begin(), storage.codes.end(), E4m3{0});
    storage.codes[35 * 64 + 40] = E4m3{0x01};  // 2^-9
    storage.codes[35 * 64 + 41] = E4m3{0x7E};  // 448
    const auto run = [&](Arithmetic arithmetic, int scale) {
        storage.scales[3] = {static_cast<uint8_t>(scale)};  // rows 32.., inputs 32..63
        linear_fp8(arithmetic, SumOperator::wq_a, x, 1, storage.weight, std::span<float>(y));
    };
    for (int scale : {3, 246}) CHECK_NOTHROW(run(Arithmetic::hopper, scale));
    std::fill(y.begin(), y.end(), -1.0f);
    CHECK_THROWS_WITH_AS(run(Arithmetic::hopper, 2), doctest::Contains("layers.0.attn.wq_a.weight[35, 40]"),
                         UserError);
    CHECK_THROWS_WITH_AS(run(Arithmetic::hopper, 2), doctest::Contains("0.001953125 times its scale"),
                         UserError);
    CHECK_THROWS_WITH_AS(run(Arithmetic::hopper, 247), doctest::Contains("layers.0.attn.wq_a.weight[35, 41]"),
                         UserError);
    CHECK(std::all_of(y.begin(), y.end(), [](float v) { return v == -1.0f; }));
    CHECK_NOTHROW(run(Arithmetic::exact, 2));
    CHECK_NOTHROW(run(Arithmetic::released_hopper, 247));

    Fp4Storage fp4(2, 32);
    std::fill(fp4.codes.begin(), fp4.codes.end(), uint8_t{0});
    fp4.codes[16] = 0x10;  // row 1, input 1: 0.5
    for (int scale : {0, 252}) {
        fp4.scales[1] = {static_cast<uint8_t>(scale)};
        std::vector<float> z(2);
        CHECK_NOTHROW(linear_fp4(Arithmetic::hopper, SumOperator::expert_w2, std::span(x).first(32), 1,
                                 fp4.weight, std::span<float>(z)));
    }
    fp4.codes[17] = 0x07;  // row 1, input 2: 6
    fp4.scales[1] = {253};
    std::vector<float> z(2);
    CHECK_THROWS_WITH_AS(linear_fp4(Arithmetic::hopper, SumOperator::expert_w2, std::span(x).first(32), 1,
                                    fp4.weight, std::span<float>(z)),
                         doctest::Contains("experts.0.w1.weight[1, 2]"), UserError);
}

TEST_CASE("linear: an input whose codes leave bf16 under their scale is refused, not rounded (255 * 2^120)") {
    std::vector<Bf16> x(32, bf16_from_float(0));
    x[3] = Bf16{0x7F7F};
    const Fp8Storage storage(1, 32);
    float y = 0;
    CHECK_THROWS_WITH_AS(
        linear_fp8(Arithmetic::hopper, SumOperator::wq_a, x, 1, storage.weight, std::span<float>(&y, 1)),
        doctest::Contains("[0, 3]"), UserError);
}

TEST_CASE("linear: shapes that do not match are refused with the tensor named") {
    Fp8Storage storage(4, 64);
    const std::vector<Bf16> x = random_bf16(64, 9);
    std::vector<float> y(4);
    const auto run = [&](const Fp8Weight& weight, std::span<const Bf16> input, std::span<float> output) {
        linear_fp8(Arithmetic::exact, SumOperator::wq_a, input, 1, weight, output);
    };
    CHECK_NOTHROW(run(storage.weight, x, y));
    Fp8Weight ragged = storage.weight;
    ragged.inputs = 63;
    CHECK_THROWS_WITH_AS(run(ragged, x, y), doctest::Contains("has 63 inputs"), UserError);
    Fp8Weight few_scales = storage.weight;
    few_scales.scales = few_scales.scales.first(1);
    CHECK_THROWS_WITH_AS(run(few_scales, x, y), doctest::Contains("the scale of layers.0.attn.wq_a.weight"),
                         UserError);
    CHECK_THROWS_WITH_AS(run(storage.weight, std::span(x).first(32), y), doctest::Contains("the input of"),
                         UserError);
    CHECK_THROWS_WITH_AS(run(storage.weight, x, std::span(y).first(3)), doctest::Contains("the output of"),
                         UserError);
    const Bf16Storage bf16(2, 24);
    CHECK_THROWS_WITH_AS(linear_bf16(Arithmetic::hopper, SumOperator::moe_gate, std::span(x).first(24), 1,
                                     bf16.weight, std::span(y).first(2)),
                         doctest::Contains("multiple of 16"), UserError);
    CHECK_NOTHROW(linear_bf16(Arithmetic::exact, SumOperator::moe_gate, std::span(x).first(24), 1,
                              bf16.weight, std::span(y).first(2)));
}
