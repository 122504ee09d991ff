#include "reference/grouped_linear.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/random.h"
#include "reference/numerics/sums.h"
#include "reference/truth/linear.h"

using namespace touchstone;

namespace {

constexpr std::array arithmetics{Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper};

/// Sum of four uniform numbers: near normal, of variance 1/3.
float bell(const RandomStream& random, uint64_t i) {
    float sum = 0;
    for (const uint32_t word : random.block(i).words) sum += static_cast<float>(word >> 8) * 0x1p-24f - 0.5f;
    return sum;
}

std::vector<Bf16> random_bf16(int64_t count, uint64_t stream) {
    std::vector<Bf16> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) values[i] = bf16_from_float(bell({5, stream}, i));
    return values;
}

/// Owns what a weight refers to.
struct Storage {
    std::vector<E4m3> codes;
    std::vector<E8m0> scales;
    Fp8Weight weight;

    Storage(int64_t outputs, int64_t inputs)
        : codes(static_cast<size_t>(outputs * inputs)),
          scales(static_cast<size_t>((outputs + 31) / 32 * (inputs / 32))),
          weight{"layers.0.attn.wo_a.weight", outputs, inputs, codes, scales} {
        for (size_t i = 0; i < codes.size(); ++i)
            codes[i] = e4m3_from_float_saturating(200 * bell({5, 11}, i));
        for (size_t i = 0; i < scales.size(); ++i)
            scales[i] = {static_cast<uint8_t>(112 + RandomStream{5, 12}.word(i) % 4)};
    }
    double value(int64_t row, int64_t k) const {
        return static_cast<double>(to_float(codes[static_cast<size_t>(row * weight.inputs + k)])) *
               static_cast<double>(
                   to_float(scales[static_cast<size_t>(row / 32 * (weight.inputs / 32) + k / 32)]));
    }
};

struct Shape {
    int64_t rows, groups, group_outputs, inputs;
    int64_t outputs() const { return groups * group_outputs; }
};
/// Outputs of all groups around the edges of the table (512 and 1280), tiles cut by groups, one group.
constexpr std::array shapes{Shape{3, 2, 64, 512},   Shape{2, 8, 160, 256}, Shape{1, 4, 24, 1280},
                            Shape{2, 1, 40, 32},    Shape{5, 2, 16, 96},   Shape{2, 8, 64, 2048},
                            Shape{1, 3, 480, 1024}, Shape{2, 2, 641, 64}};

std::vector<Bf16> product(Arithmetic arithmetic, std::span<const Bf16> o, int64_t rows, int64_t groups,
                          const Fp8Weight& weight) {
    std::vector<Bf16> u(static_cast<size_t>(rows * weight.outputs));
    grouped_linear(arithmetic, o, rows, groups, weight, u);
    return u;
}

int64_t differing(std::span<const Bf16> a, std::span<const Bf16> b) {
    int64_t count = 0;
    for (size_t i = 0; i < a.size(); ++i) count += a[i].bits != b[i].bits;
    return count;
}

}  // namespace

TEST_CASE("grouped linear: errors against truth stay within the bound and reach a hundredth of it") {
    for (const Arithmetic arithmetic : arithmetics) {
        double nearest = 0;
        for (const Shape& shape : shapes) {
            const Storage storage(shape.outputs(), shape.inputs);
            const std::vector<Bf16> o = random_bf16(shape.rows * shape.groups * shape.inputs, 1);
            const std::vector<Bf16> u = product(arithmetic, o, shape.rows, shape.groups, storage.weight);
            const SumOrder order = sum_order(SumOperator::wo_a, shape.inputs, shape.outputs());
            for (int64_t g = 0; g < shape.groups; ++g) {
                truth::LinearOperands operands{truth::Matrix(shape.rows, shape.inputs),
                                               truth::Matrix(shape.group_outputs, shape.inputs)};
                for (int64_t t = 0; t < shape.rows; ++t)
                    for (int64_t k = 0; k < shape.inputs; ++k)
                        operands.a(t, k) = static_cast<double>(
                            to_float(o[static_cast<size_t>((t * shape.groups + g) * shape.inputs + k)]));
                for (int64_t r = 0; r < shape.group_outputs; ++r)
                    for (int64_t k = 0; k < shape.inputs; ++k)
                        operands.b(r, k) = storage.value(g * shape.group_outputs + r, k);
                const truth::Matrix exact = truth::linear(operands);
                const truth::Matrix sums = arithmetic == Arithmetic::exact
                                               ? truth::exact_lanes_bound(operands, order.lanes)
                                               : truth::hopper_bound(operands, order);
                for (int64_t t = 0; t < shape.rows; ++t)
                    for (int64_t r = 0; r < shape.group_outputs; ++r) {
                        const double ours = static_cast<double>(to_float(
                            u[static_cast<size_t>((t * shape.groups + g) * shape.group_outputs + r)]));
                        // The sum, then one rounding to bf16: half of 2^-7 of the power of two below it.
                        const double bound = sums(t, r) + (std::abs(exact(t, r)) + sums(t, r)) * 0x1p-8;
                        const double error = std::abs(ours - exact(t, r)) / bound;
                        CAPTURE(arithmetic_name(arithmetic));
                        CAPTURE(g);
                        CAPTURE(r);
                        REQUIRE(error <= 1);
                        nearest = std::max(nearest, error);
                    }
            }
        }
        CHECK(nearest >= 0.01);
    }
}

TEST_CASE("grouped linear: sums are those of wo_a in the table, N being the outputs of all groups") {
    for (const Shape& shape : shapes) {
        const Storage storage(shape.outputs(), shape.inputs);
        const std::vector<Bf16> o = random_bf16(shape.rows * shape.groups * shape.inputs, 2);
        // `exact`: the definition of the lanes, output by output.
        const SumOrder order = sum_order(SumOperator::wo_a, shape.inputs, shape.outputs());
        const std::vector<Bf16> u = product(Arithmetic::exact, o, shape.rows, shape.groups, storage.weight);
        int64_t wrong = 0;
        for (int64_t t = 0; t < shape.rows; ++t)
            for (int64_t n = 0; n < shape.outputs(); ++n) {
                std::vector<Bf16> row(static_cast<size_t>(shape.inputs));
                for (size_t k = 0; k < row.size(); ++k)
                    row[k] = bf16_from_float(static_cast<float>(storage.value(n, static_cast<int64_t>(k))));
                const Bf16* x = o.data() + (t * shape.groups + n / shape.group_outputs) * shape.inputs;
                const Bf16 expected =
                    bf16_from_float(dot_by_definition(order.lanes, x, row.data(), shape.inputs));
                wrong += expected.bits != u[static_cast<size_t>(t * shape.outputs() + n)].bits;
            }
        // `hopper`: an ungrouped product with the same N takes the same pieces; group g is its columns.
        const std::vector<Bf16> chained =
            product(Arithmetic::hopper, o, shape.rows, shape.groups, storage.weight);
        std::vector<Bf16> dequantised(static_cast<size_t>(shape.outputs() * shape.inputs));
        for (size_t i = 0; i < dequantised.size(); ++i)
            dequantised[i] = bf16_from_float(static_cast<float>(storage.value(
                static_cast<int64_t>(i) / shape.inputs, static_cast<int64_t>(i) % shape.inputs)));
        const Bf16Weight plain{"wo_a", shape.outputs(), shape.inputs, dequantised};
        std::vector<Bf16> all(static_cast<size_t>(shape.rows * shape.groups * shape.outputs()));
        linear_bf16(Arithmetic::hopper, SumOperator::wo_a, o, shape.rows * shape.groups, plain,
                    std::span<Bf16>(all));
        for (int64_t t = 0; t < shape.rows; ++t)
            for (int64_t n = 0; n < shape.outputs(); ++n)
                wrong += all[static_cast<size_t>(
                                 (t * shape.groups + n / shape.group_outputs) * shape.outputs() + n)]
                             .bits != chained[static_cast<size_t>(t * shape.outputs() + n)].bits;
        const std::string shown = fmt::format("rows {}, groups {} of {}, inputs {}", shape.rows, shape.groups,
                                              shape.group_outputs, shape.inputs);
        INFO(shown);
        CHECK(wrong == 0);
    }
}

TEST_CASE("grouped linear: attention's output is not quantised (values that fp8 cannot hold)") {
    // One output reads channel 0 with weight 1. 1.0078125 needs bf16's last bit; beside 448 Q8 would lose it.
    Storage storage(2, 32);
    std::ranges::fill(storage.codes, E4m3{0});
    storage.scales = {{127}};
    storage.codes[0] = storage.codes[32] = e4m3_from_float_saturating(1);
    std::vector<Bf16> o(64, bf16_from_float(448));
    o[0] = bf16_from_float(1.0078125f);
    for (const Arithmetic arithmetic : arithmetics)
        CHECK(to_float(product(arithmetic, o, 1, 2, storage.weight)[0]) == 1.0078125f);
}

TEST_CASE("grouped linear: a weight is rounded to bf16 once (subnormal products of code and scale)") {
    Storage storage(1, 32);
    std::ranges::fill(storage.codes, E4m3{0});
    storage.scales = {{0}};                                    // 2^-127
    storage.codes[0] = e4m3_from_float_saturating(1.125f);     // 1.125 * 2^-127: 72 steps of bf16's 2^-133
    storage.codes[1] = e4m3_from_float_saturating(0x1.2p-6f);  // 1.125 * 2^-133: one step, rounded
    std::vector<Bf16> o(32, Bf16{0});
    o[1] = bf16_from_float(0x1p100f);
    CHECK(to_float(product(Arithmetic::exact, o, 1, 1, storage.weight)[0]) == 0x1p-33f);
    o[0] = bf16_from_float(0x1p100f);
    CHECK(to_float(product(Arithmetic::exact, o, 1, 1, storage.weight)[0]) ==
          to_float(bf16_from_float(73 * 0x1p-33f)));
}

TEST_CASE("grouped linear: every e4m3 code under every scale is bf16(code * scale) (one row and several)") {
    Storage made(256,
                 32);  // code n in channel 0 of output n, zeros beside it; tiles of 32 outputs share a scale
    std::ranges::fill(made.codes, E4m3{0});
    for (size_t n = 0; n < 256; ++n) made.codes[n * 32] = E4m3{static_cast<uint8_t>(n)};
    for (const int64_t rows : {1, 3}) {
        std::vector<Bf16> o(static_cast<size_t>(rows * 32), Bf16{0}), u(static_cast<size_t>(rows * 256));
        for (size_t row = 0; row < static_cast<size_t>(rows); ++row) o[row * 32] = bf16_from_float(1);
        for (int scale = 0; scale < 255; ++scale) {  // 255, NaN, would reach every output
            std::ranges::fill(made.scales, E8m0{static_cast<uint8_t>(scale)});
            grouped_linear(Arithmetic::exact, o, rows, 1, made.weight, u);
            int differing = 0;
            for (size_t i = 0; i < u.size(); ++i) {
                const float code = to_float(E4m3{static_cast<uint8_t>(i % 256)});
                const Bf16 product =
                    bf16_from_float(with_canonical_nan(code * to_float(E8m0{static_cast<uint8_t>(scale)})));
                const bool both_zero = to_float(product) == 0 && to_float(u[i]) == 0;  // a sum with +0 is +0
                differing += !both_zero && product.bits != u[i].bits;
            }
            CAPTURE(rows);
            CAPTURE(scale);
            CHECK(differing == 0);
        }
    }
}

TEST_CASE("grouped linear: a group reads its own channels, a row itself alone") {
    const Shape shape{17, 4, 32, 128};
    const Storage storage(shape.outputs(), shape.inputs);
    const std::vector<Bf16> o = random_bf16(shape.rows * shape.groups * shape.inputs, 3);
    const int64_t width = shape.groups * shape.inputs, out = shape.outputs();
    for (const Arithmetic arithmetic : arithmetics) {
        const std::vector<Bf16> all = product(arithmetic, o, shape.rows, shape.groups, storage.weight);
        for (int64_t t : {0, 7, 16}) {
            const auto row = std::span(o).subspan(static_cast<size_t>(t * width), static_cast<size_t>(width));
            const std::vector<Bf16> alone = product(arithmetic, row, 1, shape.groups, storage.weight);
            CHECK(differing(alone, std::span(all).subspan(static_cast<size_t>(t * out))) == 0);

            std::vector<Bf16> changed(row.begin(), row.end());
            std::fill_n(changed.begin() + 2 * shape.inputs, shape.inputs, bf16_from_float(3));
            const std::vector<Bf16> other = product(arithmetic, changed, 1, shape.groups, storage.weight);
            for (int64_t g = 0; g < shape.groups; ++g) {
                const auto part = [&](const std::vector<Bf16>& u) {
                    return std::span(u).subspan(static_cast<size_t>(g * shape.group_outputs),
                                                static_cast<size_t>(shape.group_outputs));
                };
                CHECK((differing(part(alone), part(other)) != 0) == (g == 2));
            }
        }
        CHECK(product(arithmetic, {}, 0, shape.groups, storage.weight).empty());
    }
}

TEST_CASE("grouped linear: NaN is canonical and stays in its row and group; infinity times zero makes one") {
    const Storage storage(64, 64);
    std::vector<Bf16> o = random_bf16(2 * 2 * 64, 4);
    o[70] = Bf16{0xFFC1};  // row 0, group 1
    for (const Arithmetic arithmetic : arithmetics) {
        const std::vector<Bf16> u = product(arithmetic, o, 2, 2, storage.weight);
        for (size_t i = 0; i < u.size(); ++i) {
            if (i >= 32 && i < 64)
                CHECK(u[i].bits == bf16_from_float(float_from_bits(canonical_nan_bits)).bits);
            else
                CHECK_FALSE(std::isnan(to_float(u[i])));
        }
    }
}

TEST_CASE("grouped linear: sizes that do not match are refused, with nothing written") {
    const Storage storage(64, 64);
    const std::vector<Bf16> o = random_bf16(2 * 2 * 64, 6);
    std::vector<Bf16> u(128, Bf16{0x1234});
    const auto refused = [&](std::span<const Bf16> x, int64_t rows, int64_t groups, const Fp8Weight& weight,
                             std::span<Bf16> y) {
        CHECK_THROWS_AS(grouped_linear(Arithmetic::exact, x, rows, groups, weight, y), UserError);
        CHECK(std::ranges::all_of(u, [](Bf16 x_) { return x_.bits == 0x1234; }));
    };
    refused(o, 2, 0, storage.weight, u);
    refused(o, 2, 3, storage.weight, u);
    refused(o, -1, 2, storage.weight, u);
    refused(std::span(o).first(255), 2, 2, storage.weight, u);
    refused(o, 2, 2, storage.weight, std::span(u).first(127));
    Fp8Weight weight = storage.weight;
    weight.scales = weight.scales.first(3);
    refused(o, 2, 2, weight, u);
    weight = storage.weight;
    weight.codes = weight.codes.first(100);
    refused(o, 2, 2, weight, u);
    weight = storage.weight;
    weight.inputs = 48;
    refused(std::span(o).first(192), 2, 2, weight, u);
}
