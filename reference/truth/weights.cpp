#include "reference/truth/weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "reference/io/user_error.h"
#include "reference/model/layer_roles.h"
#include "reference/numerics/small_float.h"

namespace touchstone::truth {

namespace {

constexpr Eigen::Index scale_block = 32;

/// Multiplies [outputs, inputs] by its scales [ceil(outputs / outputs_per_scale), ceil(inputs / 32)].
void apply_scales(Matrix& weight, const SafetensorsFile& file, const std::string& scale_name) {
    const auto scales = file.values<E8m0>(scale_name, "F8_E8M0");
    const std::vector<int64_t>& shape = file.tensor(scale_name).shape;
    const Eigen::Index outputs_per_scale = shape[0] == weight.rows() ? 1 : scale_block;
    for (Eigen::Index n = 0; n < weight.rows(); ++n)
        for (Eigen::Index k = 0; k < weight.cols(); ++k) {
            const Eigen::Index index = n / outputs_per_scale * shape[1] + k / scale_block;
            weight(n, k) *= static_cast<double>(to_float(scales[static_cast<size_t>(index)]));
        }
}

template <class Value, class Widen>
void fill(Matrix& weight, const std::vector<Value>& values, const Widen& widen) {
    std::transform(values.begin(), values.end(), weight.data(),
                   [&](Value value) { return static_cast<double>(widen(value)); });
}

Matrix load_official(const SafetensorsFile& file, const std::string& name) {
    const SafetensorsTensor& tensor = file.tensor(name);
    const std::string& type = tensor.type;
    const int64_t columns = tensor.shape.back() * (type == "I8" ? 2 : 1);
    Matrix weight(tensor.elements() / tensor.shape.back(), columns);
    const std::string scale_name = name.substr(0, name.rfind('.')) + ".scale";
    if (type == "F32") {
        fill(weight, file.values<float>(name, type), [](float x) { return x; });
    } else if (type == "BF16") {
        fill(weight, file.values<Bf16>(name, type), [](Bf16 x) { return to_float(x); });
    } else if (type == "F8_E4M3") {
        fill(weight, file.values<E4m3>(name, type), [](E4m3 x) { return to_float(x); });
        apply_scales(weight, file, scale_name);
    } else if (type == "I8") {
        const auto pairs = file.values<uint8_t>(name, type);
        for (size_t i = 0; i < pairs.size(); ++i) {
            weight.data()[2 * i] = static_cast<double>(to_float(even_e2m1(pairs[i])));
            weight.data()[2 * i + 1] = static_cast<double>(to_float(odd_e2m1(pairs[i])));
        }
        apply_scales(weight, file, scale_name);
    } else {
        throw UserError({.what = fmt::format("the weight {} has the type {}", name, type),
                         .where = name,
                         .expected = "F32, BF16, F8_E4M3 or I8 (packed e2m1)",
                         .remedy = ""});
    }
    return weight;
}

}  // namespace

WeightLoader official_loader(const SafetensorsFile& file) {
    return [&file](const std::string& name) { return load_official(file, name); };
}

WeightLoader dequantising_loader(const TensorSource& source) {
    return [&source](const std::string& name) {
        const TensorSpec& spec = source.spec(name);
        const int64_t rows = spec.shape.size() == 2 ? spec.shape[0] : 1, count = spec.elements();
        const std::vector<float> values = source.dequantised(name, 0, count);
        Matrix matrix(rows, count / rows);
        std::copy(values.begin(), values.end(), matrix.data());
        return matrix;
    };
}

ModelWeights load_weights(const ModelConfig& config, const WeightLoader& load) {
    const auto vector = [&](const std::string& name) { return Vector(load(name).transpose()); };
    ModelWeights weights{load("embed.weight"), load("head.weight"), vector("norm.weight"), {}};
    for (const LayerRole& role : layer_roles(config)) {
        if (role.half == LayerHalf::draft) break;
        const std::string prefix = fmt::format("layers.{}.", role.layer);
        const auto hyper_connection = [&](const std::string& stem) {
            return HyperConnectionWeights{load(prefix + stem + "_fn"), vector(prefix + stem + "_base"),
                                          vector(prefix + stem + "_scale")};
        };
        const auto expert_weights = [&](const std::string& stem) {
            return ExpertWeights{load(prefix + stem + ".w1.weight"), load(prefix + stem + ".w2.weight"),
                                 load(prefix + stem + ".w3.weight")};
        };
        const auto attention = [&](const std::string& stem) { return load(prefix + "attn." + stem); };
        const auto attention_vector = [&](const std::string& stem) {
            return vector(prefix + "attn." + stem);
        };

        LayerWeights& layer = weights.layers.emplace_back();
        layer.hc_attn = hyper_connection("hc_attn");
        layer.hc_ffn = hyper_connection("hc_ffn");
        layer.attn_norm = vector(prefix + "attn_norm.weight");
        layer.ffn_norm = vector(prefix + "ffn_norm.weight");
        layer.wq_a = attention("wq_a.weight");
        layer.wq_b = attention("wq_b.weight");
        layer.wkv = attention("wkv.weight");
        layer.wo_a = attention("wo_a.weight");
        layer.wo_b = attention("wo_b.weight");
        layer.q_norm = attention_vector("q_norm.weight");
        layer.kv_norm = attention_vector("kv_norm.weight");
        layer.attn_sink = attention_vector("attn_sink");
        if (role.mode == LayerMode::full)
            layer.compressor =
                CompressorWeights{attention("compressor.wkv.weight"),
                                  role.compress_ratio > 1 ? attention("compressor.wgate.weight") : Matrix(),
                                  attention_vector("compressor.norm.weight")};
        if (role.mode == LayerMode::full || role.mode == LayerMode::reindex)
            layer.indexer = IndexerWeights{attention("indexer.wq_b.weight"),
                                           attention("indexer.weights_proj.weight"), Matrix(), Vector()};
        if (role.mode == LayerMode::full) {
            layer.indexer->wk = attention("indexer.wk.weight");
            layer.indexer->k_norm = attention_vector("indexer.k_norm.weight");
        }
        if (role.engram)
            layer.engram =
                EngramWeights{load(prefix + "engram.embed.weight"), load(prefix + "engram.wkv.weight"),
                              load(prefix + "engram.q_weight"), load(prefix + "engram.k_weight")};
        layer.gate = load(prefix + "ffn.gate.weight");
        layer.gate_bias = vector(prefix + "ffn.gate.bias");
        for (int64_t e = 0; e < config.n_routed_experts; ++e)
            layer.experts.push_back(expert_weights(fmt::format("ffn.experts.{}", e)));
        layer.shared_expert = expert_weights("ffn.shared_experts");
    }
    return weights;
}

}  // namespace touchstone::truth
