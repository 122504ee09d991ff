#include "reference/model/checkpoint_weights.h"

#include <fmt/format.h>

#include "reference/model/layer_roles.h"

namespace touchstone {

namespace {

AttentionWeights attention_weights(const TensorSource& source, const std::string& attn,
                                   const LayerRole& role) {
    AttentionWeights weights{
        .wq_a = source.fp8_weight(attn + "wq_a"),
        .wq_b = source.fp8_weight(attn + "wq_b"),
        .wkv = source.fp8_weight(attn + "wkv"),
        .wo_a = source.fp8_weight(attn + "wo_a"),
        .wo_b = source.fp8_weight(attn + "wo_b"),
        .q_norm = source.values<Bf16>(attn + "q_norm.weight"),
        .kv_norm = source.values<Bf16>(attn + "kv_norm.weight"),
        .sink = source.values<float>(attn + "attn_sink"),
        .compressor = std::nullopt,
        .indexer = std::nullopt,
    };
    const bool owns_rows = role.kv_source == role.layer;
    if (owns_rows) {
        const std::string compressor = attn + "compressor.";
        weights.compressor = CompressorWeights{source.bf16_weight(compressor + "wkv.weight"),
                                               {},
                                               source.values<Bf16>(compressor + "norm.weight")};
        if (role.compress_ratio > 1)
            weights.compressor->wgate = source.bf16_weight(compressor + "wgate.weight");
    }
    if (role.top_k_source == role.layer) {
        const std::string indexer = attn + "indexer.";
        weights.indexer = IndexerWeights{
            source.fp8_weight(indexer + "wq_b"), source.bf16_weight(indexer + "weights_proj.weight"), {}, {}};
        if (owns_rows) {
            weights.indexer->wk = source.bf16_weight(indexer + "wk.weight");
            weights.indexer->k_norm = source.values<Bf16>(indexer + "k_norm.weight");
        }
    }
    return weights;
}

HyperConnectionWeights mix_weights(const TensorSource& source, const std::string& prefix) {
    return {source.values<float>(prefix + "_fn"), source.values<float>(prefix + "_base"),
            source.values<float>(prefix + "_scale")};
}

EngramWeights engram_weights(const TensorSource& source, const std::string& engram) {
    const TensorSpec& table = source.spec(engram + "embed.weight");
    return {.name = table.name,
            .table_rows = table.shape.front(),
            .table_codes = source.values<E4m3>(engram + "embed.weight"),
            .table_scales = source.values<E8m0>(engram + "embed.scale"),
            .wkv = source.fp8_weight(engram + "wkv"),
            .q_weight = source.values<Bf16>(engram + "q_weight"),
            .k_weight = source.values<Bf16>(engram + "k_weight")};
}

}  // namespace

CheckpointWeights::CheckpointWeights(const TensorSource& source)
    : source_(source), roles_(layer_roles(source.config())) {}

LayerWeights CheckpointWeights::layer(int layer) const {
    const LayerRole& role = roles_.at(static_cast<size_t>(layer));
    const std::string prefix = fmt::format("layers.{}.", layer), ffn = prefix + "ffn.";
    LayerWeights weights{
        .hc_attn = mix_weights(source_, prefix + "hc_attn"),
        .hc_ffn = mix_weights(source_, prefix + "hc_ffn"),
        .attn_norm = source_.values<Bf16>(prefix + "attn_norm.weight"),
        .ffn_norm = source_.values<Bf16>(prefix + "ffn_norm.weight"),
        .attention = attention_weights(source_, prefix + "attn.", role),
        .gate = {source_.bf16_weight(ffn + "gate.weight"), source_.values<float>(ffn + "gate.bias"),
                 source_.values<float>(ffn + "gate.bias_vl")},
        .expert = nullptr,
        .shared = {source_.fp8_weight(ffn + "shared_experts.w1"),
                   source_.fp8_weight(ffn + "shared_experts.w2"),
                   source_.fp8_weight(ffn + "shared_experts.w3")},
        .engram = std::nullopt,
    };
    weights.expert = [&source = source_, ffn](int32_t id) {
        const std::string expert = fmt::format("{}experts.{}.", ffn, id);
        return RoutedExpertWeights{source.fp4_weight(expert + "w1"), source.fp4_weight(expert + "w2"),
                                   source.fp4_weight(expert + "w3")};
    };
    if (role.engram) weights.engram = engram_weights(source_, prefix + "engram.");
    return weights;
}

Bf16Weight CheckpointWeights::embedding() const {
    return source_.bf16_weight("embed.weight");
}

std::span<const Bf16> CheckpointWeights::final_norm() const {
    return source_.values<Bf16>("norm.weight");
}

Bf16Weight CheckpointWeights::head() const {
    return source_.bf16_weight("head.weight");
}

}  // namespace touchstone
