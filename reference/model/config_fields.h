// The fields of a configuration: each once, with its key in both file forms and its range. Reading, range
// checks and the dump walk these tables. Internal to reference/model.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "reference/model/config.h"

namespace touchstone::config_fields {

enum Families : uint8_t { v41 = 1, v4 = 2, both = 3 };

/// Key names: Hugging Face form and inference form ("" where that form has no such key).
struct Keys {
    std::string_view hugging_face;
    std::string_view inference;
};

template <class Struct>
struct IntegerField {
    Keys keys;
    int64_t Struct::*member;
    int64_t lowest, highest;
    Families families = both;
};

template <class Struct>
struct NumberField {
    Keys keys;
    double Struct::*member;
    double lowest, highest;
};

struct LayerListField {
    Keys keys;
    std::vector<int> ModelConfig::*member;
    Families families;
};

// Ranges are generous. The product of the extents of any tensor fits int64; check_size() bounds the totals.
inline constexpr int64_t kMaxVocabulary = int64_t{1} << 31;
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxDimension = int64_t{1} << 20;
inline constexpr int64_t kMaxExperts = int64_t{1} << 16;
inline constexpr int64_t kMaxPositions = int64_t{1} << 40;
inline constexpr int64_t kMaxEngramRows = int64_t{1} << 40;
inline constexpr int64_t kMaxDraftStages = 64;
inline constexpr double kMinEpsilon = 1e-37;  // a normal fp32 number
inline constexpr double kMaxScalar = 1e9;

inline constexpr IntegerField<ModelConfig> kIntegers[] = {
    {{"vocab_size", "vocab_size"}, &ModelConfig::vocab_size, 1, kMaxVocabulary},
    {{"hidden_size", "dim"}, &ModelConfig::hidden_size, 1, kMaxDimension},
    {{"num_hidden_layers", "n_layers"}, &ModelConfig::num_hidden_layers, 1, kMaxLayers},
    {{"num_attention_heads", "n_heads"}, &ModelConfig::num_attention_heads, 1, kMaxExperts},
    {{"head_dim", "head_dim"}, &ModelConfig::head_dim, 1, kMaxDimension},
    {{"q_lora_rank", "q_lora_rank"}, &ModelConfig::q_lora_rank, 1, kMaxDimension},
    {{"o_lora_rank", "o_lora_rank"}, &ModelConfig::o_lora_rank, 1, kMaxDimension},
    {{"o_groups", "o_groups"}, &ModelConfig::o_groups, 1, kMaxExperts},
    {{"moe_intermediate_size", "moe_inter_dim"}, &ModelConfig::moe_intermediate_size, 1, kMaxDimension},
    {{"n_routed_experts", "n_routed_experts"}, &ModelConfig::n_routed_experts, 1, kMaxExperts},
    // The released tensor names hold one shared expert of the routed width.
    {{"n_shared_experts", "n_shared_experts"}, &ModelConfig::n_shared_experts, 1, 1},
    {{"num_experts_per_tok", "n_activated_experts"}, &ModelConfig::num_experts_per_tok, 1, kMaxExperts},
    {{"sliding_window", "window_size"}, &ModelConfig::sliding_window, 1, kMaxDimension},
    {{"index_n_heads", "index_n_heads"}, &ModelConfig::index_n_heads, 1, kMaxExperts},
    {{"index_head_dim", "index_head_dim"}, &ModelConfig::index_head_dim, 1, kMaxDimension},
    {{"index_topk", "index_topk"}, &ModelConfig::index_topk, 1, kMaxDimension},
    {{"candidate_source_layer_id", "candidate_source_layer"},
     &ModelConfig::candidate_source_layer_id,
     0,
     kMaxLayers - 1,
     v41},
    {{"candidate_topk_blocks", "candidate_topk_blocks"},
     &ModelConfig::candidate_topk_blocks,
     1,
     kMaxDimension,
     v41},
    {{"candidate_block_size", "candidate_block_size"},
     &ModelConfig::candidate_block_size,
     1,
     kMaxDimension,
     v41},
    {{"hc_mult", "hc_mult"}, &ModelConfig::hc_mult, 1, 64},
    {{"hc_sinkhorn_iters", "hc_sinkhorn_iters"}, &ModelConfig::hc_sinkhorn_iters, 1, 1000},
};

inline constexpr NumberField<ModelConfig> kNumbers[] = {
    {{"rms_norm_eps", "norm_eps"}, &ModelConfig::rms_norm_eps, kMinEpsilon, 1},
    {{"swiglu_limit", "swiglu_limit"}, &ModelConfig::swiglu_limit, kMinEpsilon, kMaxScalar},
    {{"rope_theta", "rope_theta"}, &ModelConfig::rope_theta, 1, 1e15},
    {{"compress_rope_theta", "compress_rope_theta"}, &ModelConfig::compress_rope_theta, 1, 1e15},
    {{"routed_scaling_factor", "route_scale"}, &ModelConfig::routed_scaling_factor, kMinEpsilon, kMaxScalar},
    {{"hc_eps", "hc_eps"}, &ModelConfig::hc_eps, kMinEpsilon, 1},
};

/// Inside rope_scaling in the Hugging Face form.
inline constexpr NumberField<ModelConfig> kRopeNumbers[] = {
    {{"factor", "rope_factor"}, &ModelConfig::rope_factor, 1, double(kMaxDimension)},
    {{"beta_fast", "beta_fast"}, &ModelConfig::beta_fast, kMinEpsilon, kMaxScalar},
    {{"beta_slow", "beta_slow"}, &ModelConfig::beta_slow, kMinEpsilon, kMaxScalar},
};
inline constexpr IntegerField<ModelConfig> kRopeIntegers[] = {
    {{"original_max_position_embeddings", "original_seq_len"},
     &ModelConfig::original_max_position_embeddings,
     1,
     kMaxPositions},
};

// Keys that one form writes elsewhere or derives; validate() checks their ranges with the same table.
inline constexpr IntegerField<ModelConfig> kPositionLimit[] = {
    {{"max_position_embeddings", "max_seq_len"}, &ModelConfig::max_position_embeddings, 1, kMaxPositions},
};
inline constexpr IntegerField<ModelConfig> kHeadRope[] = {
    {{"qk_rope_head_dim", "rope_head_dim"}, &ModelConfig::qk_rope_head_dim, 2, kMaxDimension},
};
inline constexpr IntegerField<ModelConfig> kHashLayers[] = {
    {{"num_hash_layers", ""}, &ModelConfig::num_hash_layers, 0, kMaxLayers, v4},
};

inline constexpr LayerListField kRatioList = {
    {"compress_ratios", "compress_ratios"}, &ModelConfig::compress_ratios, both};
inline constexpr LayerListField kSourceLists[] = {
    {{"kv_source_layer_ids", "kv_source_layers"}, &ModelConfig::kv_source_layer_ids, v41},
    {{"index_source_layer_ids", "index_source_layers"}, &ModelConfig::index_source_layer_ids, v41},
};

inline constexpr IntegerField<EngramConfig> kEngramIntegers[] = {
    {{"engram_max_ngram_size", "engram_max_ngram_size"}, &EngramConfig::max_ngram_size, 2, 64},
    {{"engram_vocab_size", "engram_vocab_size"}, &EngramConfig::vocab_size, 1, kMaxEngramRows},
    {{"engram_n_heads", "engram_n_heads"}, &EngramConfig::n_heads, 1, 1024},
    {{"engram_head_dim", "engram_head_dim"}, &EngramConfig::head_dim, 1, kMaxExperts},
    {{"engram_pad_token_id", "engram_pad_id"}, &EngramConfig::pad_token_id, 0, kMaxVocabulary - 1},
    {{"engram_compressed_vocab_size", "engram_compressed_vocab_size"},
     &EngramConfig::compressed_vocab_size,
     1,
     kMaxVocabulary},
};
inline constexpr Keys kEngramLayers = {"engram_layer_ids", "engram_layer_ids"};
inline constexpr Keys kEngramRows = {"engram_num_embeddings", "engram_num_embeddings"};

/// V4 has these three; V4.1 also has its own expert counts.
inline constexpr IntegerField<DsparkConfig> kDsparkIntegers[] = {
    {{"dspark_block_size", "dspark_block_size"}, &DsparkConfig::block_size, 1, 1024},
    {{"dspark_noise_token_id", "dspark_noise_token_id"},
     &DsparkConfig::noise_token_id,
     0,
     kMaxVocabulary - 1},
    {{"dspark_markov_rank", "dspark_markov_rank"}, &DsparkConfig::markov_rank, 1, kMaxDimension},
};
inline constexpr IntegerField<DsparkConfig> kDsparkExperts[] = {
    {{"dspark_n_routed_experts", "dspark_n_routed_experts"}, &DsparkConfig::n_routed_experts, 1, kMaxExperts},
    {{"dspark_num_experts_per_tok", "dspark_n_activated_experts"},
     &DsparkConfig::num_experts_per_tok,
     1,
     kMaxExperts},
};
inline constexpr Keys kDsparkTargets = {"dspark_target_layer_ids", "dspark_target_layer_ids"};
inline constexpr Keys kDraftStages = {"num_nextn_predict_layers", "n_mtp_layers"};
/// Draft stages in the checkpoints of V4 models with DSpark keys, whose num_nextn_predict_layers still
/// says 1.
inline constexpr int64_t kV4DsparkStages = 3;

/// Inside vision_config in the Hugging Face form.
inline constexpr IntegerField<VisionConfig> kVisionIntegers[] = {
    {{"num_hidden_layers", "vision_n_layers"}, &VisionConfig::num_hidden_layers, 1, kMaxLayers},
    {{"hidden_size", "vision_dim"}, &VisionConfig::hidden_size, 1, kMaxExperts},
    {{"num_attention_heads", "vision_n_heads"}, &VisionConfig::num_attention_heads, 1, kMaxExperts},
    {{"intermediate_size", "vision_inter_dim"}, &VisionConfig::intermediate_size, 1, kMaxDimension},
    {{"patch_size", "vision_patch_size"}, &VisionConfig::patch_size, 1, 1024},
    {{"downsample_ratio", "vision_downsample_ratio"}, &VisionConfig::downsample_ratio, 1, 64},
    {{"max_image_tokens", "vision_max_n_token"}, &VisionConfig::max_image_tokens, 1, kMaxDimension},
    {{"min_pixels", "vision_min_pixels"}, &VisionConfig::min_pixels, 1, kMaxPositions},
};
inline constexpr NumberField<VisionConfig> kVisionNumbers[] = {
    {{"rope_theta", "vision_rope_theta"}, &VisionConfig::rope_theta, 1, 1e15},
};
inline constexpr Keys kVisionRatio = {"max_wh_ratio", "vision_max_wh_ratio"};

inline constexpr Keys kLinearFormat = {"quant_method", "dtype"};
inline constexpr Keys kExpertFormat = {"expert_dtype", "expert_dtype"};

/// Choices that the tensor list and the arithmetic are written for: absent, or exactly this JSON value.
struct FixedChoice {
    Keys keys;
    std::string_view literal;
};
inline constexpr FixedChoice kFixedChoices[] = {
    {{"num_key_value_heads", ""}, "1"},
    {{"hidden_act", ""}, "\"silu\""},
    {{"scoring_func", "score_func"}, "\"sqrtsoftplus\""},
    {{"topk_method", ""}, "\"noaux_tc\""},
    {{"norm_topk_prob", "norm_topk_prob"}, "true"},
    {{"attention_bias", ""}, "false"},
    {{"mlp_bias", ""}, "false"},
    {{"tie_word_embeddings", ""}, "false"},
    {{"compress_rate_csa", ""}, "4"},
    {{"compress_rate_hca", ""}, "128"},
};
inline constexpr FixedChoice kFixedQuantization[] = {
    {{"quant_method", ""}, "\"fp8\""},
    {{"activation_scheme", ""}, "\"dynamic\""},
    {{"scale_fmt", ""}, "\"ue8m0\""},
    {{"fmt", ""}, "\"e4m3\""},
};

inline constexpr std::string_view kKnownModelTypes[] = {"deepseek_v41", "deepseek_v41_text", "deepseek_v4"};
inline constexpr std::string_view kWeightFormatNames[] = {"fp8", "fp4", "bf16"};  // order of WeightFormat

/// V4 layer types of the renamed form and the ratios they stand for.
struct LayerType {
    std::string_view name;
    int ratio;
};
inline constexpr LayerType kLayerTypes[] = {
    {"sliding_attention", 0}, {"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}};

/// Every key of the tables, in both forms.
std::vector<Keys> all_keys();

}  // namespace touchstone::config_fields
