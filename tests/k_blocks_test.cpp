#include "golden/hypotheses/k_blocks.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "reference/registry/registry.h"

using namespace touchstone;

namespace {

/// A case's operands, and those that some kernel took for them.
struct Layer {
    ParsedCase parsed;
    TensorMap inputs, expected;
    LinearOperands operands, changed;

    explicit Layer(const std::string& text) : parsed(parse_case(text, "k_blocks_test")) {
        inputs = make_inputs(*parsed.info, parsed.parameters);
        operands = changed =
            *linear_operands({*parsed.info, Arithmetic::exact, parsed.parameters, inputs, expected});
    }

    /// fp32 sums as a kernel with the changed operands gives them, minus the reference's; rounded to bf16
    /// where asked for.
    std::vector<double> residual(bool in_bf16 = false) const {
        const std::vector<float> right = linear_sums(operands, Arithmetic::exact),
                                 got = linear_sums(changed, Arithmetic::hopper);
        std::vector<double> result;
        for (size_t i = 0; i < right.size(); ++i) {
            const auto stored = [&](float x) {
                return static_cast<double>(in_bf16 ? to_float(bf16_from_float(x)) : x);
            };
            result.push_back(stored(got[i]) - stored(right[i]));
        }
        return result;
    }

    /// Elements of block `b` of every row of `values`.
    template <class Change>
    void change_block(std::vector<float>& values, int64_t b, const Change& change) const {
        const int64_t block = operands.block();
        for (size_t i = 0; i < values.size(); ++i)
            if (static_cast<int64_t>(i) % operands.inputs / block == b) values[i] = change(values[i]);
    }
};

const std::vector<std::string> layers{
    "linear_fp8(rows=5,outputs=40,inputs=512)", "linear_fp4(rows=2,outputs=100,inputs=320)",
    "linear_bf16(rows=3,outputs=64,inputs=256)", "lm_head(rows=1,outputs=200,inputs=160)",
    "grouped_linear(rows=4,groups=2,inputs=192,outputs=64)"};

}  // namespace

TEST_CASE("k_blocks: a block with another factor is found, whichever it is and in bf16 too") {
    for (const std::string& text : layers)
        for (const float factor : {0.0f, 2.0f, 0.5f})
            for (const bool in_bf16 : {false, true}) {
                if (in_bf16 && factor == 0.5f)
                    continue;  // a block of small scales is as small as the rounding
                const Layer whole(text);
                for (int64_t b = 0; b < whole.operands.inputs / whole.operands.block(); b += 3) {
                    Layer layer(text);
                    layer.change_block(layer.changed.a, b, [&](float x) { return factor * x; });
                    const auto found = first_k_block(layer.operands, layer.residual(in_bf16));
                    CAPTURE(text);
                    CAPTURE(factor);
                    CAPTURE(b);
                    CAPTURE(in_bf16);
                    REQUIRE(found);
                    CHECK(found->block == b);
                    CHECK(found->change == BlockChange::counted);
                    CHECK(found->factor == doctest::Approx(static_cast<double>(factor) - 1).epsilon(0.02));
                }
            }
}

TEST_CASE("k_blocks: of several changed blocks the first is named") {
    Layer layer("linear_fp8(rows=5,outputs=40,inputs=512)");
    for (const int64_t b : {4, 9, 15}) layer.change_block(layer.changed.a, b, [](float) { return 0.0f; });
    const auto found = first_k_block(layer.operands, layer.residual());
    REQUIRE(found);
    CHECK(found->block == 4);
    CHECK(found->change == BlockChange::counted);
}

TEST_CASE("k_blocks: a block of other activations, and one of other weights") {
    Layer activations("linear_fp8(rows=3,outputs=96,inputs=512)");
    for (size_t i = 0; i < activations.changed.a.size(); ++i)
        if (i % 512 / 32 == 6) activations.changed.a[i] = activations.operands.a[i ^ 1];
    const auto found = first_k_block(activations.operands, activations.residual());
    REQUIRE(found);
    CHECK(found->block == 6);
    CHECK(found->change == BlockChange::activations);

    Layer weights("linear_bf16(rows=48,outputs=8,inputs=256)");
    for (size_t i = 0; i < weights.changed.b.size(); ++i)
        if (i % 256 / 16 == 11) weights.changed.b[i] = weights.operands.b[i ^ 3];
    const auto other = first_k_block(weights.operands, weights.residual());
    REQUIRE(other);
    CHECK(other->block == 11);
    CHECK(other->change == BlockChange::weights);
}

TEST_CASE("k_blocks: a fault of one row, or of some outputs, is found among what is right") {
    Layer one_row("linear_fp8(rows=200,outputs=40,inputs=512)");
    for (size_t i = 0; i < 512; ++i)
        if (i / 32 == 10) one_row.changed.a[170 * 512 + i] = 0;
    const auto found = first_k_block(one_row.operands, one_row.residual());
    REQUIRE(found);
    CHECK(found->block == 10);

    Layer outputs("linear_bf16(rows=2,outputs=600,inputs=256)");
    for (size_t i = 0; i < outputs.changed.b.size(); ++i)
        if (i / 256 >= 560 && i % 256 / 16 >= 13) outputs.changed.b[i] = 0;
    const auto tail = first_k_block(outputs.operands, outputs.residual());
    REQUIRE(tail);
    CHECK(tail->block == 13);
}

TEST_CASE("k_blocks: outputs that are scaled as a whole blame no block") {
    const Layer layer("linear_fp8(rows=5,outputs=40,inputs=512)");
    std::vector<double> sums;
    for (const float x : linear_sums(layer.operands, Arithmetic::exact))
        sums.push_back(static_cast<double>(x));
    CHECK_FALSE(first_k_block(layer.operands, sums));
}

TEST_CASE("k_blocks: rows with a NaN are left aside") {
    Layer layer("linear_fp8(rows=5,outputs=40,inputs=512,fill=limits)");
    layer.change_block(layer.changed.a, 2, [](float) { return 0.0f; });
    std::vector<double> residual = layer.residual();
    residual[7] = std::numeric_limits<double>::quiet_NaN();
    const auto found = first_k_block(layer.operands, residual);
    REQUIRE(found);
    CHECK(found->block == 2);
}

TEST_CASE("k_blocks: nothing is claimed where no block explains, or outputs are too few") {
    Layer layer("linear_fp8(rows=5,outputs=40,inputs=512)");
    CHECK_FALSE(first_k_block(layer.operands, std::vector<double>(200)));
    std::vector<double> noise;
    for (int i = 0; i < 200; ++i) noise.push_back(std::sin(i * 12.9898) * 3);
    CHECK_FALSE(first_k_block(layer.operands, noise));
    std::vector<double> one(200);
    one[77] = 5;
    CHECK_FALSE(first_k_block(layer.operands, one));

    Layer few("linear_bf16(rows=1,outputs=4,inputs=64)");
    few.change_block(few.changed.a, 1, [](float) { return 0.0f; });
    CHECK_FALSE(first_k_block(few.operands, few.residual()));
}
