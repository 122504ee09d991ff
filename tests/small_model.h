// A model smaller than tiny, with weights that are made in memory: ten layers of every mode, so narrow that
// whole sweeps of lengths and chunkings take seconds.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "reference/model/synthetic_checkpoint.h"
#include "reference/numerics/random.h"
#include "reference/text_model.h"

namespace touchstone::small {

/// The layers of tiny (every mode, both ratios, three KV sources, Engram twice) at a quarter of its widths: a
/// window of 12, top-k of 10 rows, a pool of 3 blocks of 4.
inline ModelConfig config() {
    ModelConfig c;
    c.vocab_size = 96;
    c.hidden_size = 64;
    c.num_hidden_layers = 10;
    c.num_attention_heads = 4;
    c.head_dim = 32;
    c.qk_rope_head_dim = 16;
    c.q_lora_rank = 32;
    c.o_lora_rank = 32;
    c.o_groups = 2;
    c.rms_norm_eps = 1e-20;
    c.swiglu_limit = 10;
    c.max_position_embeddings = 512;
    c.rope_theta = 10000;
    c.compress_rope_theta = 160000;
    c.rope_factor = 16;
    c.beta_fast = 32;
    c.beta_slow = 1;
    c.original_max_position_embeddings = 65536;
    c.moe_intermediate_size = 32;
    c.n_routed_experts = 4;
    c.n_shared_experts = 1;
    c.num_experts_per_tok = 2;
    c.routed_scaling_factor = 1.5;
    c.sliding_window = 12;
    c.compress_ratios = {0, 0, 2, 2, 2, 2, 1, 1, 1, 1};
    c.kv_source_layer_ids = {2, 4, 6};
    c.index_source_layer_ids = {2, 4, 6, 8};
    c.index_n_heads = 2;
    c.index_head_dim = 32;
    c.index_topk = 10;
    c.candidate_source_layer_id = 6;
    c.candidate_topk_blocks = 3;
    c.candidate_block_size = 4;
    c.hc_mult = 4;
    c.hc_sinkhorn_iters = 20;
    c.hc_eps = 1e-6;
    c.weight_block_size = 32;
    c.engram = EngramConfig{.layer_ids = {1, 4},
                            .num_embeddings = {384, 552},
                            .max_ngram_size = 4,
                            .vocab_size = 50,
                            .n_heads = 2,
                            .head_dim = 32,
                            .pad_token_id = 2,
                            .compressed_vocab_size = 64};
    return c;
}

/// Every tensor of a configuration, filled by fill_synthetic_tensor.
class Weights final : public TextWeights {
  public:
    explicit Weights(const ModelConfig& config, uint64_t seed = 1) : roles_(layer_roles(config)) {
        for_each_tensor(config, [&](const TensorSpec& spec) {
            Tensor& tensor = tensors_[spec.name];
            tensor.shape = spec.shape;
            tensor.bytes.resize(static_cast<size_t>(spec.stored_bytes()));
            fill_synthetic_tensor(spec, seed, 0, tensor.bytes);
        });
    }

    Bf16Weight embedding() const override { return bf16("embed.weight"); }
    std::span<const Bf16> final_norm() const override { return values<Bf16>("norm.weight"); }
    Bf16Weight head() const override { return bf16("head.weight"); }

    LayerWeights layer(int layer) const override {
        const LayerRole& role = roles_.at(static_cast<size_t>(layer));
        const std::string prefix = "layers." + std::to_string(layer) + ".", ffn = prefix + "ffn.";
        LayerWeights weights{
            .hc_attn = mix(prefix + "hc_attn"),
            .hc_ffn = mix(prefix + "hc_ffn"),
            .attn_norm = values<Bf16>(prefix + "attn_norm.weight"),
            .ffn_norm = values<Bf16>(prefix + "ffn_norm.weight"),
            .attention = attention(prefix + "attn.", role),
            .gate = {bf16(ffn + "gate.weight"), values<float>(ffn + "gate.bias"),
                     values<float>(ffn + "gate.bias_vl")},
            .expert =
                [this, ffn](int32_t id) {
                    const std::string expert = ffn + "experts." + std::to_string(id) + ".";
                    return RoutedExpertWeights{fp4(expert + "w1"), fp4(expert + "w2"), fp4(expert + "w3")};
                },
            .shared = {fp8(ffn + "shared_experts.w1"), fp8(ffn + "shared_experts.w2"),
                       fp8(ffn + "shared_experts.w3")},
            .engram = std::nullopt,
        };
        if (role.engram) weights.engram = engram(prefix + "engram.");
        return weights;
    }

  private:
    struct Tensor {
        std::vector<int64_t> shape;
        std::vector<std::byte> bytes;
    };

    template <class T>
    std::span<const T> values(const std::string& name) const {
        const std::vector<std::byte>& bytes = tensors_.at(name).bytes;
        return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
    }
    const std::string& name_of(const std::string& name) const { return tensors_.find(name)->first; }
    const std::vector<int64_t>& shape(const std::string& name) const { return tensors_.at(name).shape; }

    Bf16Weight bf16(const std::string& name) const {
        return {name_of(name), shape(name)[0], shape(name)[1], values<Bf16>(name)};
    }
    Fp8Weight fp8(const std::string& layer) const {
        const std::string name = layer + ".weight";
        return {name_of(name), shape(name)[0], shape(name)[1], values<E4m3>(name),
                values<E8m0>(layer + ".scale")};
    }
    Fp4Weight fp4(const std::string& layer) const {
        const std::string name = layer + ".weight";
        return {name_of(name), shape(name)[0], 2 * shape(name)[1], values<uint8_t>(name),
                values<E8m0>(layer + ".scale")};
    }
    HyperConnectionWeights mix(const std::string& prefix) const {
        return {values<float>(prefix + "_fn"), values<float>(prefix + "_base"),
                values<float>(prefix + "_scale")};
    }
    AttentionWeights attention(const std::string& attn, const LayerRole& role) const {
        AttentionWeights weights{.wq_a = fp8(attn + "wq_a"),
                                 .wq_b = fp8(attn + "wq_b"),
                                 .wkv = fp8(attn + "wkv"),
                                 .wo_a = fp8(attn + "wo_a"),
                                 .wo_b = fp8(attn + "wo_b"),
                                 .q_norm = values<Bf16>(attn + "q_norm.weight"),
                                 .kv_norm = values<Bf16>(attn + "kv_norm.weight"),
                                 .sink = values<float>(attn + "attn_sink"),
                                 .compressor = std::nullopt,
                                 .indexer = std::nullopt};
        const std::string compressor = attn + "compressor.", indexer = attn + "indexer.";
        const bool owns_rows = role.kv_source == role.layer;
        if (owns_rows) {
            weights.compressor = CompressorWeights{
                bf16(compressor + "wkv.weight"), {}, values<Bf16>(compressor + "norm.weight")};
            if (role.compress_ratio > 1) weights.compressor->wgate = bf16(compressor + "wgate.weight");
        }
        if (role.top_k_source == role.layer) {
            weights.indexer =
                IndexerWeights{fp8(indexer + "wq_b"), bf16(indexer + "weights_proj.weight"), {}, {}};
            if (owns_rows) {
                weights.indexer->wk = bf16(indexer + "wk.weight");
                weights.indexer->k_norm = values<Bf16>(indexer + "k_norm.weight");
            }
        }
        return weights;
    }
    EngramWeights engram(const std::string& prefix) const {
        const std::string table = prefix + "embed.weight";
        return {.name = name_of(table),
                .table_rows = shape(table)[0],
                .table_codes = values<E4m3>(table),
                .table_scales = values<E8m0>(prefix + "embed.scale"),
                .wkv = fp8(prefix + "wkv"),
                .q_weight = values<Bf16>(prefix + "q_weight"),
                .k_weight = values<Bf16>(prefix + "k_weight")};
    }

    std::vector<LayerRole> roles_;
    std::map<std::string, Tensor> tensors_;
};

inline const Weights& weights() {
    static const Weights made(config());
    return made;
}

inline TextModel model(Arithmetic arithmetic) {
    return TextModel(config(), weights(), arithmetic);
}

/// `count` tokens of the sequence that `seed` names; of one seed, shorter ones begin longer ones.
inline std::vector<int32_t> tokens(uint64_t seed, int64_t count) {
    std::vector<int32_t> result(static_cast<size_t>(count));
    for (size_t i = 0; i < result.size(); ++i)
        result[i] =
            static_cast<int32_t>(RandomStream{seed, 78}.word(i) % static_cast<uint32_t>(config().vocab_size));
    return result;
}

}  // namespace touchstone::small
