// Linear layers against the released inference code: recorded inputs and outputs of a tiny model
// (tests/official_tiny.h). Nobody of this project wrote what made them.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "reference/io/safetensors.h"
#include "reference/linear.h"
#include "reference/numerics/elementary.h"
#include "tests/bf16_units.h"
#include "tests/official_tiny.h"

using namespace touchstone;

namespace {

constexpr Arithmetic arithmetics[]{Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper};

std::string layer_tensor(int layer, const char* name) {
    return official_tiny::layer_tensor("prefill100", layer, name);
}

/// An L8 with a weight of the checkpoint.
std::vector<Bf16> run_fp8(Arithmetic arithmetic, SumOperator op, const std::vector<Bf16>& x, int64_t rows,
                          const std::string& name) {
    const SafetensorsFile& model = official_tiny::file("model");
    const std::vector<int64_t>& shape = model.tensor(name + ".weight").shape;
    const auto codes = model.values<E4m3>(name + ".weight", "F8_E4M3");
    const auto scales = model.values<E8m0>(name + ".scale", "F8_E8M0");
    std::vector<Bf16> y(static_cast<size_t>(rows * shape[0]));
    linear_fp8(arithmetic, op, x, rows, {name, shape[0], shape[1], codes, scales}, std::span<Bf16>(y));
    return y;
}

/// An L4 with a weight of the checkpoint.
std::vector<Bf16> run_fp4(Arithmetic arithmetic, SumOperator op, const std::vector<Bf16>& x, int64_t rows,
                          const std::string& name) {
    const SafetensorsFile& model = official_tiny::file("model");
    const std::vector<int64_t>& shape = model.tensor(name + ".weight").shape;
    const auto codes = model.values<uint8_t>(name + ".weight", "I8");
    const auto scales = model.values<E8m0>(name + ".scale", "F8_E8M0");
    std::vector<Bf16> y(static_cast<size_t>(rows * shape[0]));
    linear_fp4(arithmetic, op, x, rows, {name, shape[0], 2 * shape[1], codes, scales}, std::span<Bf16>(y));
    return y;
}

/// What goes into w2 of an expert: silu(min(g, 10)) * clamp(u, -10, 10) * weight of the row, rounded to bf16.
std::vector<Bf16> activations(const std::vector<Bf16>& gate, const std::vector<Bf16>& up,
                              const std::vector<float>& weights) {
    std::vector<Bf16> result(gate.size());
    const size_t width = gate.size() / weights.size();
    for (size_t i = 0; i < gate.size(); ++i) {
        const float g = std::min(to_float(gate[i]), 10.0f), u = std::clamp(to_float(up[i]), -10.0f, 10.0f);
        result[i] = bf16_from_float(elementary::silu(g) * u * weights[i / width]);
    }
    return result;
}

template <class Result>
std::vector<Result> run_bf16(Arithmetic arithmetic, SumOperator op, const std::vector<Bf16>& x, int64_t rows,
                             const std::string& name) {
    const SafetensorsFile& model = official_tiny::file("model");
    const std::vector<int64_t>& shape = model.tensor(name).shape;
    const auto values = model.values<Bf16>(name, "BF16");
    std::vector<Result> y(static_cast<size_t>(rows * shape[0]));
    linear_bf16(arithmetic, op, x, rows, {name, shape[0], shape[1], values}, std::span<Result>(y));
    return y;
}

void check_bf16(const std::vector<Bf16>& ours, const std::string& name, const char* arithmetic) {
    check_bf16(ours, official_tiny::file("prefill100").values<Bf16>(name, "BF16"),
               fmt::format("{}, {}", name, arithmetic));
}

/// Within 1e-5 of the row's root mean square.
void check_fp32(const std::vector<float>& ours, const std::string& name, const char* arithmetic) {
    const auto theirs = official_tiny::file("prefill100").values<float>(name, "F32");
    REQUIRE(ours.size() == theirs.size());
    const int64_t width = official_tiny::file("prefill100").tensor(name).shape.back();
    double worst = 0;
    for (int64_t row = 0; row < std::ssize(ours) / width; ++row) {
        double squares = 0, difference = 0;
        for (int64_t i = row * width; i < (row + 1) * width; ++i) {
            const double theirs_i = theirs[static_cast<size_t>(i)];
            squares += theirs_i * theirs_i;
            difference =
                std::max(difference, std::abs(static_cast<double>(ours[static_cast<size_t>(i)]) - theirs_i));
        }
        worst = std::max(worst, difference / std::sqrt(squares / static_cast<double>(width)));
    }
    const std::string shown = fmt::format("{}, {}: {:.2e} of the row's rms", name, arithmetic, worst);
    INFO(shown);
    CHECK(worst <= 1e-5);
}

}  // namespace

TEST_CASE("linear: L8 gives the released code's outputs (wo_b of every layer, the Engram projection)") {
    const SafetensorsFile& prefill = official_tiny::file("prefill100");
    for (Arithmetic arithmetic : arithmetics) {
        const char* name = arithmetic_name(arithmetic).data();
        // 13 bits of every block are another sum than the released fp32 one: that twin is for Hopper's own
        // results.
        if (arithmetic == Arithmetic::released_hopper) continue;
        for (int layer = 0; layer < 10; ++layer)
            check_bf16(run_fp8(arithmetic, SumOperator::wo_b,
                               prefill.values<Bf16>(layer_tensor(layer, "attn.wo_a_out"), "BF16"), 100,
                               fmt::format("layers.{}.attn.wo_b", layer)),
                       layer_tensor(layer, "attn.out"), name);
        for (int layer : {1, 4})
            check_bf16(run_fp8(arithmetic, SumOperator::engram_wkv,
                               prefill.values<Bf16>(layer_tensor(layer, "engram.rows"), "BF16"), 100,
                               fmt::format("layers.{}.engram.wkv", layer)),
                       layer_tensor(layer, "engram.kv"), name);
    }
}

TEST_CASE("linear: LB gives the released code's outputs (index weights)") {
    for (Arithmetic arithmetic : arithmetics)
        for (int layer : {2, 4, 6, 8})
            check_bf16(
                run_bf16<Bf16>(
                    arithmetic, SumOperator::index_weights_proj,
                    official_tiny::file("prefill100").values<Bf16>(layer_tensor(layer, "attn.x"), "BF16"),
                    100, fmt::format("layers.{}.attn.indexer.weights_proj.weight", layer)),
                layer_tensor(layer, "attn.index_weights"), arithmetic_name(arithmetic).data());
}

TEST_CASE("linear: LF gives the released code's outputs (compressor, gate with its sqrt-softplus, head)") {
    const SafetensorsFile& prefill = official_tiny::file("prefill100");
    for (Arithmetic arithmetic : arithmetics) {
        const char* name = arithmetic_name(arithmetic).data();
        for (int layer : {2, 4}) {
            const auto x = prefill.values<Bf16>(layer_tensor(layer, "attn.x"), "BF16");
            const std::string compressor = fmt::format("layers.{}.attn.compressor.", layer);
            check_fp32(
                run_bf16<float>(arithmetic, SumOperator::compressor_wkv, x, 100, compressor + "wkv.weight"),
                layer_tensor(layer, "attn.compressor_kv"), name);
            check_fp32(run_bf16<float>(arithmetic, SumOperator::compressor_wgate, x, 100,
                                       compressor + "wgate.weight"),
                       layer_tensor(layer, "attn.compressor_score"), name);
        }
        for (int layer = 0; layer < 10; ++layer) {
            std::vector<float> scores = run_bf16<float>(
                arithmetic, SumOperator::moe_gate, prefill.values<Bf16>(layer_tensor(layer, "ffn.x"), "BF16"),
                100, fmt::format("layers.{}.ffn.gate.weight", layer));
            std::ranges::transform(scores, scores.begin(),
                                   [](float x) { return elementary::sqrt_softplus(x); });
            check_fp32(scores, layer_tensor(layer, "ffn.gate_scores"), name);
        }
        check_fp32(
            run_bf16<float>(arithmetic, SumOperator::lm_head,
                            prefill.values<Bf16>("prefill100/final.normed", "BF16"), 100, "head.weight"),
            "prefill100/logits_all", name);
    }
}

TEST_CASE("linear: L4 and L8 give the released code's experts (every layer, with its recorded routing)") {
    constexpr int64_t rows = 100, experts = 8, chosen = 2;
    const SafetensorsFile& prefill = official_tiny::file("prefill100");
    for (Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper}) {
        const char* name = arithmetic_name(arithmetic).data();
        for (int layer = 0; layer < 10; ++layer) {
            const auto x = prefill.values<Bf16>(layer_tensor(layer, "ffn.x"), "BF16");
            const auto ids = prefill.values<int32_t>(layer_tensor(layer, "ffn.experts"), "I32");
            const auto weights = prefill.values<float>(layer_tensor(layer, "ffn.expert_weights"), "F32");
            std::vector<float> sums(x.size(), 0.0f);
            for (int32_t expert = 0; expert < experts; ++expert) {
                std::vector<float> row_weights(rows, 0.0f);
                for (size_t i = 0; i < ids.size(); ++i)
                    if (ids[i] == expert) row_weights[i / chosen] = weights[i];
                const std::string prefix = fmt::format("layers.{}.ffn.experts.{}.", layer, expert);
                const auto out = run_fp4(
                    arithmetic, SumOperator::expert_w2,
                    activations(run_fp4(arithmetic, SumOperator::expert_w1_w3, x, rows, prefix + "w1"),
                                run_fp4(arithmetic, SumOperator::expert_w1_w3, x, rows, prefix + "w3"),
                                row_weights),
                    rows, prefix + "w2");
                // A row that did not choose the expert has weight 0 and adds zeros.
                for (size_t i = 0; i < sums.size(); ++i) sums[i] += to_float(out[i]);
            }
            const std::string prefix = fmt::format("layers.{}.ffn.shared_experts.", layer);
            const auto shared =
                run_fp8(arithmetic, SumOperator::shared_w2,
                        activations(run_fp8(arithmetic, SumOperator::shared_w1_w3, x, rows, prefix + "w1"),
                                    run_fp8(arithmetic, SumOperator::shared_w1_w3, x, rows, prefix + "w3"),
                                    std::vector<float>(rows, 1.0f)),
                        rows, prefix + "w2");
            check_bf16(shared, layer_tensor(layer, "ffn.shared_out"), name);
            std::vector<Bf16> y(x.size());
            for (size_t i = 0; i < y.size(); ++i) y[i] = bf16_from_float(sums[i] + to_float(shared[i]));
            check_bf16(y, layer_tensor(layer, "ffn.out"), name);
        }
    }
}
