#include "reference/truth/weights.h"

#include <fmt/format.h>

#include <algorithm>

#include "reference/model/layer_roles.h"

namespace touchstone::truth {

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
