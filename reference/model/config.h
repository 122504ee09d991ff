// Model configuration of the V4 family: one checked object, whatever file form it came from.
//
// Dimension letters, here and in every comment and equation of the project:
//   T tokens   D hidden_size   L num_hidden_layers   H num_attention_heads   Dh head_dim   W sliding_window
//   n hc_mult (residual streams)   E n_routed_experts   k num_experts_per_tok   V vocab_size   r compress
//   ratio
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace touchstone {

enum class ModelFamily : uint8_t { deepseek_v41, deepseek_v4 };

enum class WeightFormat : uint8_t { fp8, fp4, bf16 };

/// Vision tower (V4.1 only).
struct VisionConfig {
    int64_t num_hidden_layers = 0;
    int64_t hidden_size = 0;
    int64_t num_attention_heads = 0;
    int64_t intermediate_size = 0;
    int64_t patch_size = 0;
    int64_t downsample_ratio = 0;
    int64_t max_image_tokens = 0;
    int64_t min_pixels = 0;
    double rope_theta = 0;
    std::optional<double> max_wh_ratio;
    friend bool operator==(const VisionConfig&, const VisionConfig&) = default;
};

/// Engram tables (V4.1 only). num_embeddings[i] rows belong to layer layer_ids[i].
struct EngramConfig {
    std::vector<int> layer_ids;
    std::vector<int64_t> num_embeddings;
    int64_t max_ngram_size = 0;
    int64_t vocab_size = 0;  ///< rows a head aims at; the primes follow it
    int64_t n_heads = 0;
    int64_t head_dim = 0;
    int64_t pad_token_id = 0;
    int64_t compressed_vocab_size = 0;
    /// Hash columns per token: (max_ngram_size - 1) * n_heads.
    int64_t columns() const { return (max_ngram_size - 1) * n_heads; }
    friend bool operator==(const EngramConfig&, const EngramConfig&) = default;
};

/// DSpark drafter. `stages` blocks follow the backbone (layers num_hidden_layers ..).
struct DsparkConfig {
    int64_t stages = 0;
    int64_t block_size = 0;
    int64_t noise_token_id = 0;
    std::vector<int> target_layer_ids;
    int64_t markov_rank = 0;
    int64_t n_routed_experts = 0;
    int64_t num_experts_per_tok = 0;
    friend bool operator==(const DsparkConfig&, const DsparkConfig&) = default;
};

/// Field names are those of the Hugging Face form (spec/text_model 1.2). Counts are checked by `validate`.
struct ModelConfig {
    ModelFamily family = ModelFamily::deepseek_v41;

    int64_t vocab_size = 0;
    int64_t hidden_size = 0;          ///< D
    int64_t num_hidden_layers = 0;    ///< L
    int64_t num_attention_heads = 0;  ///< H
    int64_t head_dim = 0;             ///< Dh, RoPE channels included
    int64_t qk_rope_head_dim = 0;     ///< the last channels of a head
    int64_t q_lora_rank = 0;
    int64_t o_lora_rank = 0;
    int64_t o_groups = 0;
    double rms_norm_eps = 0;
    double swiglu_limit = 0;
    int64_t max_position_embeddings = 0;  ///< the YaRN factor is already in it

    double rope_theta = 0;
    double compress_rope_theta = 0;
    double rope_factor = 0;
    double beta_fast = 0;
    double beta_slow = 0;
    int64_t original_max_position_embeddings = 0;

    int64_t moe_intermediate_size = 0;
    int64_t n_routed_experts = 0;
    int64_t n_shared_experts = 0;
    int64_t num_experts_per_tok = 0;
    double routed_scaling_factor = 0;
    int64_t num_hash_layers = 0;  ///< V4 only

    int64_t sliding_window = 0;               ///< W
    std::vector<int> compress_ratios;         ///< backbone layers, then draft stages (all 0)
    std::vector<int> kv_source_layer_ids;     ///< V4.1; empty for V4, where every compressed layer owns its
                                              ///< cache
    std::vector<int> index_source_layer_ids;  ///< V4.1
    int64_t index_n_heads = 0;
    int64_t index_head_dim = 0;
    int64_t index_topk = 0;
    int64_t candidate_source_layer_id = -1;  ///< V4.1
    int64_t candidate_topk_blocks = 0;
    int64_t candidate_block_size = 0;

    int64_t hc_mult = 0;  ///< residual streams
    int64_t hc_sinkhorn_iters = 0;
    double hc_eps = 0;

    WeightFormat linear_format = WeightFormat::fp8;
    WeightFormat expert_format = WeightFormat::fp4;
    int64_t weight_block_size = 0;  ///< edge of the square scale tiles of fp8 weights

    std::optional<EngramConfig> engram;
    std::optional<DsparkConfig> dspark;
    std::optional<VisionConfig> vision;

    friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

/// Reads and checks a config.json: the Hugging Face form (nested or flat) or the inference form, V4.1 or V4;
/// the form is recognised from the keys, the family by the exact model_type. Throws UserError naming file,
/// key, what was expected and what to do.
ModelConfig load_config(const std::string& path);

/// The same for text already in memory; `name` stands for the file in messages.
ModelConfig parse_config(std::string_view text, const std::string& name);

/// Cross-field checks; load_config and the presets have passed them. `where` names the file in messages.
void validate(const ModelConfig& config, const std::string& where);

/// Canonical dump, Hugging Face key names, sorted: equal configurations give equal bytes whatever their
/// source form.
std::string dump_config(const ModelConfig& config);

/// First decoder layer of the causal encoder-decoder: the last KV source, because every layer before it must
/// run on every token for that source to have its input. 20 of 40 in the real model, 6 of 10 in tiny. V4.1
/// only.
int first_decoder_layer(const ModelConfig& config);

}  // namespace touchstone
