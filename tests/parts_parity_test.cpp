// Hyper-connections, norms, RoPE tables, gate, experts and head against the released inference code, stage by
// stage from its own recorded inputs (official_tiny). Nobody of this project wrote what made them.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "reference/experts.h"
#include "reference/hyper_connections.h"
#include "reference/moe_gate.h"
#include "reference/rms_norm.h"
#include "reference/rope.h"
#include "tests/bf16_units.h"
#include "tests/official_tiny.h"

using namespace touchstone;

namespace {

constexpr int layers = 10;
constexpr int64_t streams = 4, hidden_size = 256;
constexpr float norm_eps = 1e-20f, limit = 10;
constexpr HyperConnectionShape shape{streams, hidden_size, 20, 1e-6f, norm_eps};
constexpr Arithmetic arithmetics[]{Arithmetic::exact, Arithmetic::hopper};

/// One recorded episode.
struct Run {
    const char* stem;
    int64_t rows;

    const SafetensorsFile& file() const { return official_tiny::file(stem); }
    std::string name(int layer, const char* tensor) const {
        return official_tiny::layer_tensor(stem, layer, tensor);
    }
    bool has(int layer, const char* tensor) const { return official_tiny::has(file(), name(layer, tensor)); }
    std::vector<Bf16> bf16(int layer, const char* tensor) const {
        return file().values<Bf16>(name(layer, tensor), "BF16");
    }
    std::vector<float> fp32(int layer, const char* tensor) const {
        return file().values<float>(name(layer, tensor), "F32");
    }
};
constexpr Run runs[]{{"prefill100", 100}, {"decode100_own", 24}};

const SafetensorsFile& model() {
    return official_tiny::file("model");
}

template <class T>
std::vector<T> weight(const std::string& name, const char* type) {
    return model().values<T>(name, type);
}

/// Within 1e-5 of the row's root mean square.
void check_fp32(const std::vector<float>& ours, const std::vector<float>& theirs, int64_t rows,
                const std::string& name) {
    REQUIRE(ours.size() == theirs.size());
    const int64_t width = std::ssize(ours) / rows;
    double worst = 0;
    for (int64_t row = 0; row < rows; ++row) {
        double squares = 0, difference = 0;
        for (int64_t i = row * width; i < (row + 1) * width; ++i) {
            const auto expected = static_cast<double>(theirs[static_cast<size_t>(i)]);
            squares += expected * expected;
            difference =
                std::max(difference, std::abs(static_cast<double>(ours[static_cast<size_t>(i)]) - expected));
        }
        worst = std::max(worst, difference / std::sqrt(squares / static_cast<double>(width)));
    }
    const std::string shown = fmt::format("{}: {:.2e} of the row's rms", name, worst);
    INFO(shown);
    CHECK(worst <= 1e-5);
}

void check_mix(const Run& run, int layer, const char* stream, const std::string& sublayer) {
    const std::string prefix = fmt::format("layers.{}.{}_", layer, sublayer);
    const auto fn = weight<float>(prefix + "fn", "F32"), base = weight<float>(prefix + "base", "F32"),
               scale = weight<float>(prefix + "scale", "F32");
    const MixCoefficients ours = mix(run.bf16(layer, stream), run.rows, {fn, base, scale}, shape);
    const auto check = [&](const std::vector<float>& values, const char* tensor) {
        const std::string name = sublayer + "." + tensor;
        check_fp32(values, run.fp32(layer, name.c_str()), run.rows, run.name(layer, name.c_str()));
    };
    check(ours.mixes, "mixes");
    check(ours.pre, "pre");
    check(ours.post, "post");
    check(ours.comb, "comb");
}

std::vector<Bf16> collapsed(const std::vector<Bf16>& h, int64_t rows, const std::vector<float>& pre) {
    std::vector<Bf16> y(static_cast<size_t>(rows * hidden_size));
    collapse(h, rows, pre, y);
    return y;
}

std::vector<Bf16> normed(const std::vector<Bf16>& x, int64_t rows, const std::string& weight_name) {
    std::vector<Bf16> y(x.size());
    rms_norm(x, rows, weight<Bf16>(weight_name, "BF16"), norm_eps, std::span(y));
    return y;
}

/// What the layer's FFN leaves in the streams: the next layer's input, before Engram where it has one.
std::vector<Bf16> layer_output(const Run& run, int layer) {
    if (layer + 1 == layers) return run.bf16(layer, "x_out");
    return run.bf16(layer + 1, run.has(layer + 1, "engram.x_in") ? "engram.x_in" : "x_in");
}

struct StoredFp4 {
    std::vector<uint8_t> codes;
    std::vector<E8m0> scales;
    int64_t outputs, inputs;
    explicit StoredFp4(const std::string& name)
        : codes(weight<uint8_t>(name + ".weight", "I8")),
          scales(weight<E8m0>(name + ".scale", "F8_E8M0")),
          outputs(model().tensor(name + ".weight").shape[0]),
          inputs(2 * model().tensor(name + ".weight").shape[1]) {}
    Fp4Weight view() const { return {"an expert", outputs, inputs, codes, scales}; }
};

struct StoredFp8 {
    std::vector<E4m3> codes;
    std::vector<E8m0> scales;
    int64_t outputs, inputs;
    explicit StoredFp8(const std::string& name)
        : codes(weight<E4m3>(name + ".weight", "F8_E4M3")),
          scales(weight<E8m0>(name + ".scale", "F8_E8M0")),
          outputs(model().tensor(name + ".weight").shape[0]),
          inputs(model().tensor(name + ".weight").shape[1]) {}
    Fp8Weight view() const { return {"the shared expert", outputs, inputs, codes, scales}; }
};

Routing routed(Arithmetic arithmetic, const Run& run, int layer) {
    const std::string prefix = fmt::format("layers.{}.ffn.gate.", layer), name = prefix + "weight";
    const auto values = weight<Bf16>(name, "BF16");
    const auto bias = weight<float>(prefix + "bias", "F32"),
               bias_vl = weight<float>(prefix + "bias_vl", "F32");
    const GateWeights weights{{name, std::ssize(bias), hidden_size, values}, bias, bias_vl};
    return moe_gate(arithmetic, run.bf16(layer, "ffn.x"), run.rows, weights, {2, 1.5f});
}

}  // namespace

TEST_CASE("hyper_connections: coefficients are the released code's (both sublayers of every layer)") {
    for (const Run& run : runs)
        for (int layer = 0; layer < layers; ++layer) {
            check_mix(run, layer, "x_in", "hc_attn");
            check_mix(run, layer, "x_mid", "hc_ffn");
            CHECK(run.fp32(layer, "hc_ffn.pre") == run.fp32(layer, "pre_out"));
        }
}

TEST_CASE("hyper_connections and rms_norm: what the sublayers read is the released code's (every layer)") {
    for (const Run& run : runs)
        for (int layer = 0; layer < layers; ++layer) {
            const auto of_attention = collapsed(run.bf16(layer, "x_in"), run.rows, run.fp32(layer, "pre_in")),
                       of_ffn = collapsed(run.bf16(layer, "x_mid"), run.rows, run.fp32(layer, "hc_attn.pre"));
            if (run.has(layer, "attn.collapsed")) {
                check_bf16(of_attention, run.bf16(layer, "attn.collapsed"),
                           run.name(layer, "attn.collapsed"));
                check_bf16(of_ffn, run.bf16(layer, "ffn.collapsed"), run.name(layer, "ffn.collapsed"));
            }
            check_bf16(normed(of_attention, run.rows, fmt::format("layers.{}.attn_norm.weight", layer)),
                       run.bf16(layer, "attn.x"), run.name(layer, "attn.x"));
            check_bf16(normed(of_ffn, run.rows, fmt::format("layers.{}.ffn_norm.weight", layer)),
                       run.bf16(layer, "ffn.x"), run.name(layer, "ffn.x"));
        }
}

TEST_CASE("hyper_connections: what the sublayers leave is the released code's (every layer)") {
    for (const Run& run : runs)
        for (int layer = 0; layer < layers; ++layer) {
            const std::vector<Bf16> x_in = run.bf16(layer, "x_in"), x_mid = run.bf16(layer, "x_mid");
            std::vector<Bf16> out(x_in.size());
            expand(run.bf16(layer, "attn.out"), x_in, run.rows, run.fp32(layer, "hc_attn.post"),
                   run.fp32(layer, "hc_attn.comb"), out);
            check_bf16(out, x_mid, run.name(layer, "x_mid"));
            expand(run.bf16(layer, "ffn.out"), x_mid, run.rows, run.fp32(layer, "hc_ffn.post"),
                   run.fp32(layer, "hc_ffn.comb"), out);
            check_bf16(out, layer_output(run, layer), run.name(layer, "output"));
        }
}

TEST_CASE("moe_gate: scores, experts and weights are the released code's (every layer)") {
    for (const Run& run : runs)
        for (Arithmetic arithmetic : arithmetics)
            for (int layer = 0; layer < layers; ++layer) {
                const Routing ours = routed(arithmetic, run, layer);
                check_fp32(ours.scores, run.fp32(layer, "ffn.gate_scores"), run.rows,
                           run.name(layer, "ffn.gate_scores"));
                CHECK(ours.experts == run.file().values<int32_t>(run.name(layer, "ffn.experts"), "I32"));
                check_fp32(ours.weights, run.fp32(layer, "ffn.expert_weights"), run.rows,
                           run.name(layer, "ffn.expert_weights"));
            }
}

TEST_CASE("experts: outputs are the released code's, with our own routing (every layer)") {
    for (const Run& run : runs)
        for (Arithmetic arithmetic : arithmetics)
            for (int layer = 0; layer < layers; ++layer) {
                const std::string prefix = fmt::format("layers.{}.ffn.", layer);
                std::vector<std::vector<StoredFp4>> stored;
                for (int id = 0; id < 8; ++id) {
                    const std::string expert = fmt::format("{}experts.{}.", prefix, id);
                    stored.push_back(
                        {StoredFp4(expert + "w1"), StoredFp4(expert + "w2"), StoredFp4(expert + "w3")});
                }
                const StoredFp8 w1(prefix + "shared_experts.w1"), w2(prefix + "shared_experts.w2"),
                    w3(prefix + "shared_experts.w3");
                const ExpertsResult ours = experts(
                    arithmetic, run.bf16(layer, "ffn.x"), routed(arithmetic, run, layer),
                    [&](int32_t id) {
                        const std::vector<StoredFp4>& expert = stored.at(static_cast<size_t>(id));
                        return RoutedExpertWeights{expert[0].view(), expert[1].view(), expert[2].view()};
                    },
                    {w1.view(), w2.view(), w3.view()}, limit);
                check_bf16(ours.out, run.bf16(layer, "ffn.out"), run.name(layer, "ffn.out"));
                if (run.has(layer, "ffn.shared_out"))
                    check_bf16(ours.shared, run.bf16(layer, "ffn.shared_out"),
                               run.name(layer, "ffn.shared_out"));
            }
}

TEST_CASE("rope: both tables are the released code's but for the last bit of torch's functions") {
    const ModelConfig config = load_config((official_tiny::folder() / "config.json").string());
    for (bool compress : {false, true}) {
        const RopeTable table = compress ? compress_rope_table(config) : main_rope_table(config);
        const auto theirs = official_tiny::file("alternatives")
                                .values<float>(compress ? "tables/rope.compress" : "tables/rope.main", "F32");
        const size_t pairs = table.frequencies().size(), positions = theirs.size() / (2 * pairs);
        REQUIRE(positions == 512);
        std::vector<RopePair> row(pairs);
        int64_t differing = 0, worst = 0;
        for (size_t p = 0; p < positions; ++p) {
            table.row(static_cast<int64_t>(p), row);
            for (size_t i = 0; i < pairs; ++i)
                for (bool sine : {false, true}) {
                    const auto ours = static_cast<int64_t>(float_bits(sine ? row[i].sin : row[i].cos)),
                               expected =
                                   static_cast<int64_t>(float_bits(theirs[2 * (p * pairs + i) + sine]));
                    differing += ours != expected;
                    worst = std::max(worst, std::abs(ours - expected));
                }
        }
        const std::string shown =
            fmt::format("{}: {} of {} differ, by at most {} units", compress ? "compress" : "main", differing,
                        theirs.size(), worst);
        INFO(shown);
        CHECK(worst <= 1);
        CHECK(differing * 100 <= 2 * std::ssize(theirs));
    }
}

TEST_CASE("hyper_connections, rms_norm and LF: final.normed and logits are the released code's") {
    const auto head = weight<Bf16>("head.weight", "BF16");
    for (const Run& run : runs) {
        const std::string stem = run.stem;
        const auto z =
            normed(collapsed(run.bf16(layers - 1, "x_out"), run.rows, run.fp32(layers - 1, "pre_out")),
                   run.rows, "norm.weight");
        check_bf16(z, run.file().values<Bf16>(stem + "/final.normed", "BF16"), stem + "/final.normed");
        const std::string all = stem + "/logits_all",
                          name = official_tiny::has(run.file(), all) ? all : stem + "/logits";
        for (Arithmetic arithmetic : arithmetics) {
            std::vector<float> logits(static_cast<size_t>(run.rows * 512));
            linear_bf16(arithmetic, SumOperator::lm_head, z, run.rows,
                        {"head.weight", 512, hidden_size, head}, std::span(logits));
            check_fp32(logits, run.file().values<float>(name, "F32"), run.rows, name);
        }
    }
}
