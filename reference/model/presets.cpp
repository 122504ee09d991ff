// Models known by name: released configurations of the V4 family, the small test configuration, and the
// baselines of the memory tables.
#include <filesystem>
#include <numeric>
#include <system_error>

#include <fmt/format.h>

#include "reference/io/user_error.h"
#include "reference/model/model.h"

namespace touchstone {

namespace {

using Ratios = std::vector<int>;

Ratios concatenate(std::initializer_list<Ratios> parts) {
    Ratios all;
    for (const Ratios& part : parts)
        for (const int ratio : part) all.push_back(ratio);
    return all;
}

/// `pattern` repeated `times` times.
Ratios repeated(const Ratios& pattern, int times) {
    Ratios all;
    for (int i = 0; i < times; ++i)
        for (const int ratio : pattern) all.push_back(ratio);
    return all;
}

/// Values that every released model of the family has in common.
ModelConfig family_defaults() {
    ModelConfig config;
    config.vocab_size = 129280;
    config.num_attention_heads = 64;
    config.head_dim = 512;
    config.qk_rope_head_dim = 64;
    config.o_lora_rank = 1024;
    config.o_groups = 8;
    config.swiglu_limit = 10.0;
    config.max_position_embeddings = 1048576;
    config.rope_theta = 10000;
    config.compress_rope_theta = 160000;
    config.rope_factor = 16;
    config.beta_fast = 32;
    config.beta_slow = 1;
    config.original_max_position_embeddings = 65536;
    config.n_shared_experts = 1;
    config.num_experts_per_tok = 6;
    config.routed_scaling_factor = 1.5;
    config.sliding_window = 128;
    config.index_head_dim = 128;
    config.index_topk = 512;
    config.hc_mult = 4;
    config.hc_sinkhorn_iters = 20;
    config.hc_eps = 1e-6;
    config.linear_format = WeightFormat::fp8;
    config.expert_format = WeightFormat::fp4;
    return config;
}

ModelConfig deepseek_v41_flash() {
    ModelConfig config = family_defaults();
    config.family = ModelFamily::deepseek_v41;
    config.hidden_size = 5120;
    config.num_hidden_layers = 40;
    config.q_lora_rank = 1280;
    config.rms_norm_eps = 1e-20;
    config.moe_intermediate_size = 2304;
    config.n_routed_experts = 384;
    config.compress_ratios =
        concatenate({repeated({0}, 2), repeated({2}, 18), repeated({1}, 20), repeated({0}, 3)});
    config.kv_source_layer_ids = {2, 8, 14, 20};
    config.index_source_layer_ids = {2, 8, 14, 20, 24, 28, 32, 36};
    config.index_n_heads = 32;
    config.candidate_source_layer_id = 20;
    config.candidate_topk_blocks = 2048;
    config.candidate_block_size = 8;
    config.weight_block_size = 32;
    config.engram = EngramConfig{.layer_ids = {1, 14},
                                 .num_embeddings = {384006168, 384016682},
                                 .max_ngram_size = 4,
                                 .vocab_size = 16000000,
                                 .n_heads = 8,
                                 .head_dim = 256,
                                 .pad_token_id = 2,
                                 .compressed_vocab_size = 99092};
    config.dspark = DsparkConfig{.stages = 3,
                                 .block_size = 5,
                                 .noise_token_id = 128799,
                                 .target_layer_ids = {37, 38, 39},
                                 .markov_rank = 256,
                                 .n_routed_experts = 128,
                                 .num_experts_per_tok = 3};
    config.vision = VisionConfig{.num_hidden_layers = 32,
                                 .hidden_size = 1024,
                                 .num_attention_heads = 16,
                                 .intermediate_size = 2816,
                                 .patch_size = 14,
                                 .downsample_ratio = 3,
                                 .max_image_tokens = 1024,
                                 .min_pixels = 295936,
                                 .rope_theta = 10000,
                                 .max_wh_ratio = std::nullopt};
    return config;
}

ModelConfig deepseek_v4_flash() {
    ModelConfig config = family_defaults();
    config.family = ModelFamily::deepseek_v4;
    config.hidden_size = 4096;
    config.num_hidden_layers = 43;
    config.q_lora_rank = 1024;
    config.rms_norm_eps = 1e-6;
    config.moe_intermediate_size = 2048;
    config.n_routed_experts = 256;
    config.num_hash_layers = 3;
    config.compress_ratios = concatenate({{0, 0}, repeated({4, 128}, 20), {4}, {0, 0, 0}});
    config.index_n_heads = 64;
    config.weight_block_size = 128;
    // The draft stages have the backbone's expert counts: V4 has no dspark_n_routed_experts key.
    config.dspark = DsparkConfig{.stages = 3,
                                 .block_size = 5,
                                 .noise_token_id = 128799,
                                 .target_layer_ids = {40, 41, 42},
                                 .markov_rank = 256,
                                 .n_routed_experts = 256,
                                 .num_experts_per_tok = 6};
    return config;
}

ModelConfig deepseek_v4_pro() {
    ModelConfig config = deepseek_v4_flash();
    config.hidden_size = 7168;
    config.num_hidden_layers = 61;
    config.num_attention_heads = 128;
    config.q_lora_rank = 1536;
    config.o_groups = 16;
    config.moe_intermediate_size = 3072;
    config.n_routed_experts = 384;
    config.routed_scaling_factor = 2.5;
    config.compress_ratios = concatenate({{128, 128}, repeated({4, 128}, 29), {4}, {0, 0, 0}});
    config.index_topk = 1024;
    config.dspark->target_layer_ids = {58, 59, 60};
    config.dspark->markov_rank = 512;
    config.dspark->n_routed_experts = 384;
    return config;
}

/// V4.1 in small: every mode (SWA only, Full, Reuse, Reindex), both ratios, a candidate pool smaller than the
/// context, Engram and draft stages. No vision tower.
ModelConfig tiny() {
    ModelConfig config = deepseek_v41_flash();
    config.vocab_size = 512;
    config.hidden_size = 256;
    config.num_hidden_layers = 10;
    config.num_attention_heads = 8;
    config.head_dim = 128;
    config.qk_rope_head_dim = 32;
    config.q_lora_rank = 128;
    config.o_lora_rank = 64;
    config.o_groups = 2;
    config.max_position_embeddings = 512;
    config.moe_intermediate_size = 64;
    config.n_routed_experts = 8;
    config.num_experts_per_tok = 2;
    config.sliding_window = 48;
    config.compress_ratios = {0, 0, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0};
    config.kv_source_layer_ids = {2, 4, 6};
    config.index_source_layer_ids = {2, 4, 6, 8};
    config.index_n_heads = 4;
    config.index_head_dim = 64;
    config.index_topk = 40;
    config.candidate_source_layer_id = 6;
    config.candidate_topk_blocks = 12;
    config.candidate_block_size = 4;
    config.engram = EngramConfig{.layer_ids = {1, 4},
                                 .num_embeddings = {6126, 6332},
                                 .max_ngram_size = 4,
                                 .vocab_size = 1000,
                                 .n_heads = 2,
                                 .head_dim = 32,
                                 .pad_token_id = 2,
                                 .compressed_vocab_size = 400};
    config.dspark = DsparkConfig{.stages = 3,
                                 .block_size = 5,
                                 .noise_token_id = 7,
                                 .target_layer_ids = {7, 8, 9},
                                 .markov_rank = 32,
                                 .n_routed_experts = 4,
                                 .num_experts_per_tok = 2};
    config.vision.reset();
    return config;
}

BaselineModel gqa(int64_t layers, int64_t kv_heads, int64_t head_dim) {
    BaselineModel model;
    model.attention = BaselineAttention::gqa;
    model.cached_layers = layers;
    model.kv_heads = kv_heads;
    model.head_dim = head_dim;
    return model;
}

/// Every released MLA model of the table caches a latent of 512 channels and 64 rotary channels.
BaselineModel mla(int64_t layers) {
    BaselineModel model;
    model.attention = BaselineAttention::mla;
    model.cached_layers = layers;
    model.kv_lora_rank = 512;
    model.rope_head_dim = 64;
    return model;
}

BaselineModel mla_sparse(int64_t layers) {
    BaselineModel model = mla(layers);
    model.attention = BaselineAttention::mla_sparse;
    model.index_head_dim = 128;
    return model;
}

BaselineModel gpt_oss(int64_t full_layers, int64_t windowed_layers) {
    BaselineModel model = gqa(full_layers, 8, 64);
    model.windowed_layers = windowed_layers;
    model.window_tokens = 128;
    model.assumptions = {
        fmt::format("{} of {} layers keep only a window of 128 tokens, in the record of the full layers",
                    windowed_layers, full_layers + windowed_layers)};
    return model;
}

BaselineModel assuming(BaselineModel model, std::string assumption) {
    model.assumptions.push_back(std::move(assumption));
    return model;
}

BaselineModel not_counting(BaselineModel model, std::string state) {
    model.not_counted.push_back(std::move(state));
    return model;
}

std::vector<Model> make_presets() {
    const std::string glm_index =
        "sparse attention with an index key of 128 channels in every layer; published comparisons in bf16 "
        "count the "
        "576-channel latent alone";
    return {
        {"deepseek-v4.1-flash", "config.json and inference/config.json of DeepSeek-V4.1-Flash",
         deepseek_v41_flash()},
        {"deepseek-v4-flash", "config.json of DeepSeek-V4-Flash-0731", deepseek_v4_flash()},
        {"deepseek-v4-pro", "config.json of DeepSeek-V4-Pro-0813", deepseek_v4_pro()},
        {"deepseek-v3.2", "config.json of DeepSeek-V3.2", mla_sparse(61)},
        {"deepseek-v3", "config.json of DeepSeek-V3 and R1", mla(61)},
        {"deepseek-v2", "config.json of DeepSeek-V2", mla(60)},
        {"deepseek-v1-67b", "config.json of DeepSeek-LLM-67B", gqa(95, 8, 128)},
        {"llama-3.1-8b", "config.json of Llama-3.1-8B", gqa(32, 8, 128)},
        {"llama-3.1-70b", "config.json of Llama-3.1-70B", gqa(80, 8, 128)},
        {"llama-3.1-405b", "config.json of Llama-3.1-405B", gqa(126, 8, 128)},
        {"qwen3-32b", "config.json of Qwen3-32B", gqa(64, 8, 128)},
        {"qwen3-235b-a22b", "config.json of Qwen3-235B-A22B", gqa(94, 4, 128)},
        {"qwen3-coder-480b", "config.json of Qwen3-Coder-480B-A35B", gqa(62, 8, 128)},
        {"qwen3.5-397b", "config.json of Qwen3.5-397B-A17B",
         not_counting(gqa(15, 2, 256), "states of 45 linear-attention layers")},
        {"glm-5", "config.json of GLM-5", assuming(mla_sparse(78), glm_index)},
        {"kimi-k2", "config.json of Kimi-K2 and K2.5", mla(61)},
        {"kimi-k3", "config.json of Kimi-K3",
         not_counting(mla(24), "states of 69 KDA (linear-attention) layers")},
        {"minimax-m2.5", "config.json of MiniMax-M2.5", gqa(62, 8, 128)},
        {"minimax-m3", "config.json of MiniMax-M3",
         assuming(gqa(60, 4, 128), "sparse index (blocks of 128 tokens, first 3 layers dense) not counted")},
        {"gpt-oss-120b", "config.json of gpt-oss-120b", gpt_oss(18, 18)},
        {"gpt-oss-20b", "config.json of gpt-oss-20b", gpt_oss(12, 12)},
        {"tiny", "a small V4.1-shaped configuration for tests; not a released model", tiny()},
    };
}

const std::vector<Model>& presets() {
    static const std::vector<Model> table = make_presets();
    return table;
}

/// A word that cannot be meant as a path: no directory, no ".json", and no file of that name.
bool looks_like_a_preset(std::string_view word) {
    if (word.find('/') != std::string_view::npos || word.ends_with(".json")) return false;
    std::error_code ignored;
    return !std::filesystem::exists(std::filesystem::path(word), ignored);
}

}  // namespace

std::vector<std::string> preset_names() {
    std::vector<std::string> names;
    for (const Model& model : presets()) names.push_back(model.name);
    return names;
}

Model find_model(std::string_view name_or_path) {
    for (const Model& model : presets())
        if (model.name == name_or_path) return model;
    const std::string word(name_or_path);
    if (looks_like_a_preset(word)) {
        const std::vector<std::string> names = preset_names();
        const std::string near = did_you_mean(word, names);
        throw UserError(
            {.what = fmt::format("there is no model \"{}\"", word),
             .where = "",
             .expected = fmt::format("a path to a config.json, or one of {}", fmt::join(names, ", ")),
             .remedy = near.empty() ? "" : fmt::format("did you mean \"{}\"?", near)});
    }
    return {.name = word, .source = "read from " + word, .shape = load_config(word)};
}

}  // namespace touchstone
