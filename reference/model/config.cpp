// Reading, checking and dumping configurations. The tables below name every field once, with its key in both
// file forms and its range; reading, range checks and the dump walk the same tables.
#include "reference/model/config.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "reference/io/config_json.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace {

using Json = nlohmann::json;

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
constexpr int64_t kMaxVocabulary = int64_t{1} << 31;
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxDimension = int64_t{1} << 20;
constexpr int64_t kMaxExperts = int64_t{1} << 16;
constexpr int64_t kMaxPositions = int64_t{1} << 40;
constexpr int64_t kMaxEngramRows = int64_t{1} << 40;
constexpr int64_t kMaxDraftStages = 64;
constexpr double kMinEpsilon = 1e-37;  // a normal fp32 number
constexpr double kMaxScalar = 1e9;

constexpr IntegerField<ModelConfig> kIntegers[] = {
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

constexpr NumberField<ModelConfig> kNumbers[] = {
    {{"rms_norm_eps", "norm_eps"}, &ModelConfig::rms_norm_eps, kMinEpsilon, 1},
    {{"swiglu_limit", "swiglu_limit"}, &ModelConfig::swiglu_limit, kMinEpsilon, kMaxScalar},
    {{"rope_theta", "rope_theta"}, &ModelConfig::rope_theta, 1, 1e15},
    {{"compress_rope_theta", "compress_rope_theta"}, &ModelConfig::compress_rope_theta, 1, 1e15},
    {{"routed_scaling_factor", "route_scale"}, &ModelConfig::routed_scaling_factor, kMinEpsilon, kMaxScalar},
    {{"hc_eps", "hc_eps"}, &ModelConfig::hc_eps, kMinEpsilon, 1},
};

/// Inside rope_scaling in the Hugging Face form.
constexpr NumberField<ModelConfig> kRopeNumbers[] = {
    {{"factor", "rope_factor"}, &ModelConfig::rope_factor, 1, double(kMaxDimension)},
    {{"beta_fast", "beta_fast"}, &ModelConfig::beta_fast, kMinEpsilon, kMaxScalar},
    {{"beta_slow", "beta_slow"}, &ModelConfig::beta_slow, kMinEpsilon, kMaxScalar},
};
constexpr IntegerField<ModelConfig> kRopeIntegers[] = {
    {{"original_max_position_embeddings", "original_seq_len"},
     &ModelConfig::original_max_position_embeddings,
     1,
     kMaxPositions},
};

// Keys that one form writes elsewhere or derives; validate() checks their ranges with the same table.
constexpr IntegerField<ModelConfig> kPositionLimit[] = {
    {{"max_position_embeddings", "max_seq_len"}, &ModelConfig::max_position_embeddings, 1, kMaxPositions},
};
constexpr IntegerField<ModelConfig> kHeadRope[] = {
    {{"qk_rope_head_dim", "rope_head_dim"}, &ModelConfig::qk_rope_head_dim, 2, kMaxDimension},
};
constexpr IntegerField<ModelConfig> kHashLayers[] = {
    {{"num_hash_layers", ""}, &ModelConfig::num_hash_layers, 0, kMaxLayers, v4},
};

constexpr LayerListField kRatioList = {
    {"compress_ratios", "compress_ratios"}, &ModelConfig::compress_ratios, both};
constexpr LayerListField kSourceLists[] = {
    {{"kv_source_layer_ids", "kv_source_layers"}, &ModelConfig::kv_source_layer_ids, v41},
    {{"index_source_layer_ids", "index_source_layers"}, &ModelConfig::index_source_layer_ids, v41},
};

constexpr IntegerField<EngramConfig> kEngramIntegers[] = {
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
constexpr Keys kEngramLayers = {"engram_layer_ids", "engram_layer_ids"};
constexpr Keys kEngramRows = {"engram_num_embeddings", "engram_num_embeddings"};

/// V4 has these three; V4.1 also has its own expert counts.
constexpr IntegerField<DsparkConfig> kDsparkIntegers[] = {
    {{"dspark_block_size", "dspark_block_size"}, &DsparkConfig::block_size, 1, 1024},
    {{"dspark_noise_token_id", "dspark_noise_token_id"},
     &DsparkConfig::noise_token_id,
     0,
     kMaxVocabulary - 1},
    {{"dspark_markov_rank", "dspark_markov_rank"}, &DsparkConfig::markov_rank, 1, kMaxDimension},
};
constexpr IntegerField<DsparkConfig> kDsparkExperts[] = {
    {{"dspark_n_routed_experts", "dspark_n_routed_experts"}, &DsparkConfig::n_routed_experts, 1, kMaxExperts},
    {{"dspark_num_experts_per_tok", "dspark_n_activated_experts"},
     &DsparkConfig::num_experts_per_tok,
     1,
     kMaxExperts},
};
constexpr Keys kDsparkTargets = {"dspark_target_layer_ids", "dspark_target_layer_ids"};
constexpr Keys kDraftStages = {"num_nextn_predict_layers", "n_mtp_layers"};
/// Draft stages in the checkpoints of V4 models with DSpark keys, whose num_nextn_predict_layers still
/// says 1.
constexpr int64_t kV4DsparkStages = 3;

/// Inside vision_config in the Hugging Face form.
constexpr IntegerField<VisionConfig> kVisionIntegers[] = {
    {{"num_hidden_layers", "vision_n_layers"}, &VisionConfig::num_hidden_layers, 1, kMaxLayers},
    {{"hidden_size", "vision_dim"}, &VisionConfig::hidden_size, 1, kMaxExperts},
    {{"num_attention_heads", "vision_n_heads"}, &VisionConfig::num_attention_heads, 1, kMaxExperts},
    {{"intermediate_size", "vision_inter_dim"}, &VisionConfig::intermediate_size, 1, kMaxDimension},
    {{"patch_size", "vision_patch_size"}, &VisionConfig::patch_size, 1, 1024},
    {{"downsample_ratio", "vision_downsample_ratio"}, &VisionConfig::downsample_ratio, 1, 64},
    {{"max_image_tokens", "vision_max_n_token"}, &VisionConfig::max_image_tokens, 1, kMaxDimension},
    {{"min_pixels", "vision_min_pixels"}, &VisionConfig::min_pixels, 1, kMaxPositions},
};
constexpr NumberField<VisionConfig> kVisionNumbers[] = {
    {{"rope_theta", "vision_rope_theta"}, &VisionConfig::rope_theta, 1, 1e15},
};
constexpr Keys kVisionRatio = {"max_wh_ratio", "vision_max_wh_ratio"};

constexpr Keys kLinearFormat = {"quant_method", "dtype"};
constexpr Keys kExpertFormat = {"expert_dtype", "expert_dtype"};

/// Choices that the tensor list and the arithmetic are written for: absent, or exactly this JSON value.
struct FixedChoice {
    Keys keys;
    std::string_view literal;
};
constexpr FixedChoice kFixedChoices[] = {
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
constexpr FixedChoice kFixedQuantization[] = {
    {{"quant_method", ""}, "\"fp8\""},
    {{"activation_scheme", ""}, "\"dynamic\""},
    {{"scale_fmt", ""}, "\"ue8m0\""},
    {{"fmt", ""}, "\"e4m3\""},
};

constexpr std::string_view kKnownModelTypes[] = {"deepseek_v41", "deepseek_v41_text", "deepseek_v4"};
constexpr std::string_view kWeightFormatNames[] = {"fp8", "fp4", "bf16"};  // order of WeightFormat

/// V4 layer types of the renamed form and the ratios they stand for.
struct LayerType {
    std::string_view name;
    int ratio;
};
constexpr LayerType kLayerTypes[] = {
    {"sliding_attention", 0}, {"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}};

/// An object to read from, and which of the two key names applies.
struct Source {
    JsonObject object;
    bool inference = false;

    std::string_view key(const Keys& keys) const { return inference ? keys.inference : keys.hugging_face; }
};

template <class Struct, size_t N>
void read_integers(const Source& source, const IntegerField<Struct> (&fields)[N], Families family,
                   Struct& values) {
    for (const IntegerField<Struct>& field : fields)
        if (field.families & family)
            values.*field.member = source.object.integer(source.key(field.keys), field.lowest, field.highest);
}

template <class Struct, size_t N>
void read_numbers(const Source& source, const NumberField<Struct> (&fields)[N], Struct& values) {
    for (const NumberField<Struct>& field : fields)
        values.*field.member = source.object.number(source.key(field.keys), field.lowest, field.highest);
}

std::vector<int> read_layers(const Source& source, const Keys& keys) {
    return source.object.integers(source.key(keys), 0, kMaxLayers - 1, kMaxLayers + kMaxDraftStages);
}

void require_choice(const JsonObject& object, std::string_view key, std::string_view literal) {
    if (key.empty() || !object.has(key) || object.literal(key) == literal) return;
    object.refuse(key, fmt::format("{}, the only choice that this program can account for", literal));
}

WeightFormat read_weight_format(const JsonObject& object, std::string_view key) {
    const std::string expected = fmt::format("one of {}", fmt::join(kWeightFormatNames, ", "));
    if (!object.has(key)) object.missing(key, expected);
    const std::string text = object.string(key);
    const auto found = std::find(std::begin(kWeightFormatNames), std::end(kWeightFormatNames), text);
    if (found == std::end(kWeightFormatNames)) object.refuse(key, expected);
    return static_cast<WeightFormat>(found - std::begin(kWeightFormatNames));
}

/// The Hugging Face quantization_config; expert_dtype stands there (V4.1) or beside it (V4).
void read_quantization(const JsonObject& root, const JsonObject& text, ModelConfig& config) {
    const JsonObject& holder = root.has("quantization_config") ? root : text;
    const JsonObject quantization = holder.object("quantization_config");
    config.linear_format = read_weight_format(quantization, kLinearFormat.hugging_face);
    for (const FixedChoice& choice : kFixedQuantization)
        require_choice(quantization, choice.keys.hugging_face, choice.literal);
    const std::vector<int> block = quantization.integers("weight_block_size", 1, 4096, 2);
    if (block.size() != 2 || block[0] != block[1])
        quantization.refuse("weight_block_size", "two equal integers, e.g. [32, 32]");
    config.weight_block_size = block[0];
    const bool inside = quantization.has("expert_dtype");
    if (!inside && text.has("expert_dtype"))
        config.expert_format = read_weight_format(text, "expert_dtype");
    else
        config.expert_format = read_weight_format(quantization, "expert_dtype");
    if (inside && text.has("expert_dtype"))
        require_choice(text, "expert_dtype", quantization.literal("expert_dtype"));
}

/// YaRN parameters of the compress table.
void read_rope_scaling(const JsonObject& scaling, ModelConfig& config) {
    if (!scaling.has("rope_type") && !scaling.has("type")) scaling.missing("rope_type", "\"yarn\"");
    for (const std::string_view key : {"rope_type", "type"}) require_choice(scaling, key, "\"yarn\"");
    if (scaling.has("attention_factor") && scaling.number("attention_factor", 0, kMaxScalar) != 1)
        scaling.refuse("attention_factor", "1: cos and sin are not scaled");
    const Source source{scaling};
    read_numbers(source, kRopeNumbers, config);
    read_integers(source, kRopeIntegers, both, config);
}

void read_engram(const Source& source, ModelConfig& config) {
    EngramConfig engram;
    engram.layer_ids = read_layers(source, kEngramLayers);
    if (engram.layer_ids.empty()) return;
    engram.num_embeddings =
        source.object.long_integers(source.key(kEngramRows), 1, kMaxEngramRows, kMaxLayers);
    read_integers(source, kEngramIntegers, v41, engram);
    config.engram = engram;
}

/// The drafter; `stages` was read from num_nextn_predict_layers (V4.1) or is what V4 checkpoints hold.
void read_dspark(const Source& source, Families family, int64_t stages, ModelConfig& config) {
    DsparkConfig dspark;
    dspark.stages = stages;
    dspark.target_layer_ids = read_layers(source, kDsparkTargets);
    read_integers(source, kDsparkIntegers, family, dspark);
    if (family == v41) {
        read_integers(source, kDsparkExperts, v41, dspark);
    } else {
        dspark.n_routed_experts = config.n_routed_experts;
        dspark.num_experts_per_tok = config.num_experts_per_tok;
    }
    config.dspark = dspark;
}

void read_vision(const Source& source, ModelConfig& config) {
    VisionConfig vision;
    read_integers(source, kVisionIntegers, v41, vision);
    read_numbers(source, kVisionNumbers, vision);
    const std::string_view ratio = source.key(kVisionRatio);
    if (source.object.has(ratio) && !source.object.is_null(ratio))
        vision.max_wh_ratio = source.object.number(ratio, 1, kMaxScalar);
    config.vision = vision;
}

/// Fields that both families and both forms hold in one flat object.
void read_common(const Source& source, Families family, ModelConfig& config) {
    read_integers(source, kIntegers, family, config);
    read_numbers(source, kNumbers, config);
    for (const FixedChoice& choice : kFixedChoices)
        require_choice(source.object, source.key(choice.keys), choice.literal);
}

/// Fields of V4.1 alone.
void read_v41_text(const Source& source, ModelConfig& config) {
    config.family = ModelFamily::deepseek_v41;
    read_common(source, v41, config);
    read_integers(source, kHeadRope, v41, config);
    config.compress_ratios =
        source.object.integers(source.key(kRatioList.keys), 0, 128, kMaxLayers + kMaxDraftStages);
    for (const LayerListField& field : kSourceLists) config.*field.member = read_layers(source, field.keys);
    require_choice(source.object, source.inference ? "n_hash_layers" : "num_hash_layers", "0");
    read_engram(source, config);
    const int64_t stages = source.object.integer(source.key(kDraftStages), 0, kMaxDraftStages);
    if (stages > 0) read_dspark(source, v41, stages, config);
}

/// A key of the root that contradicts the same key of text_config.
void refuse_contradictions(const JsonObject& root, const JsonObject& text) {
    static const std::set<std::string> may_differ = {"model_type", "architectures", "dtype", "torch_dtype",
                                                     "transformers_version"};
    for (const std::string& key : text.keys())
        if (root.has(key) && !may_differ.contains(key) && root.literal(key) != text.literal(key))
            root.refuse(key, fmt::format("the value that text_config has, {}", text.described(key)),
                        "keep the key in one place");
}

ModelConfig read_v41_hugging_face(const JsonObject& root, const std::string& model_type) {
    const bool flat =
        model_type == "deepseek_v41_text" || (!root.has("text_config") && root.has("hidden_size"));
    if (flat && root.has("text_config"))
        root.refuse("text_config", "no such key in a deepseek_v41_text file");
    const JsonObject text = flat ? root : root.object("text_config");
    if (!flat) {
        require_choice(text, "model_type", "\"deepseek_v41_text\"");
        require_choice(root, "tie_word_embeddings", "false");
        refuse_contradictions(root, text);
    }
    ModelConfig config;
    read_v41_text({text}, config);
    read_rope_scaling(text.object("rope_scaling"), config);
    read_integers({text}, kPositionLimit, v41, config);
    read_quantization(root, text, config);
    if (root.has("vision_config") && !root.is_null("vision_config"))
        read_vision({root.object("vision_config")}, config);
    return config;
}

/// The released runner's file. It sizes positions by max_seq_len, which the runner fills in when the file
/// does not.
ModelConfig read_inference(const JsonObject& root) {
    if (!root.has("kv_source_layers") && root.has("n_hash_layers"))
        throw UserError({.what = "this is a V4 configuration in the inference form",
                         .where = root.where("n_hash_layers"),
                         .expected = "the inference form of V4.1",
                         .remedy = "give the config.json at the root of the V4 checkpoint"});
    const Source source{root, true};
    ModelConfig config;
    read_v41_text(source, config);
    read_numbers(source, kRopeNumbers, config);
    read_integers(source, kRopeIntegers, v41, config);
    if (root.has("max_seq_len")) {
        read_integers(source, kPositionLimit, v41, config);
    } else {
        const double positions = config.rope_factor * double(config.original_max_position_embeddings);
        if (positions > double(kMaxPositions) || positions != std::floor(positions))
            root.refuse("rope_factor",
                        "a factor that makes original_seq_len * rope_factor an integer up to 2^40");
        config.max_position_embeddings = static_cast<int64_t>(positions);
    }
    config.linear_format = read_weight_format(root, kLinearFormat.inference);
    config.expert_format = read_weight_format(root, kExpertFormat.inference);
    config.weight_block_size = 32;
    if (root.integer("vision_n_layers", 0, kMaxLayers) > 0) read_vision(source, config);
    return config;
}

/// rope_scaling, or rope_parameters of the renamed form: {"main": ..., "compress": ...}, or the scaling
/// alone.
void read_v4_rope(const JsonObject& root, ModelConfig& config) {
    if (!root.has("rope_parameters")) return read_rope_scaling(root.object("rope_scaling"), config);
    const JsonObject parameters = root.object("rope_parameters");
    const bool nested = parameters.has("compress") || parameters.has("main");
    read_rope_scaling(nested ? parameters.object("compress") : parameters, config);
    if (nested) {
        const double main_theta = parameters.object("main").number("rope_theta", 1, 1e15);
        if (main_theta != config.rope_theta)
            root.refuse("rope_theta", fmt::format("rope_parameters.main.rope_theta, {}", main_theta));
        const double compress_theta = parameters.object("compress").number("rope_theta", 1, 1e15);
        if (compress_theta != config.compress_rope_theta)
            root.refuse("compress_rope_theta",
                        fmt::format("rope_parameters.compress.rope_theta, {}", compress_theta));
    }
    if (!root.has("rope_scaling")) return;
    ModelConfig old_form = config;
    read_rope_scaling(root.object("rope_scaling"), old_form);
    if (old_form != config)
        root.refuse("rope_scaling", "the values of rope_parameters", "keep one of the two");
}

/// Ratios of the backbone from layer_types and compress_rates.
std::vector<int> ratios_of_layer_types(const JsonObject& root) {
    const JsonObject rates = root.object("compress_rates");
    std::vector<int> ratios;
    for (const std::string& type_name : root.strings("layer_types", kMaxLayers)) {
        const auto type =
            std::find_if(std::begin(kLayerTypes), std::end(kLayerTypes),
                         [&](const LayerType& candidate) { return candidate.name == type_name; });
        if (type == std::end(kLayerTypes))
            throw UserError(
                {.what = fmt::format("layer_types[{}] is unknown: {}", ratios.size(), quoted(type_name)),
                 .where = root.where("layer_types"),
                 .expected = fmt::format("one of {}, {}, {}", kLayerTypes[0].name, kLayerTypes[1].name,
                                         kLayerTypes[2].name),
                 .remedy = ""});
        if (type->ratio > 0) rates.integer(type->name, type->ratio, type->ratio);
        ratios.push_back(type->ratio);
    }
    return ratios;
}

/// The ratios of the backbone; the old and the renamed key must agree where a file has both.
std::vector<int> read_v4_backbone_ratios(const JsonObject& root, int64_t layers, int64_t nextn,
                                         int64_t stages) {
    std::vector<int> from_types;
    if (root.has("layer_types")) {
        from_types = ratios_of_layer_types(root);
        if (int64_t(from_types.size()) != layers)
            root.refuse("layer_types", fmt::format("a list of {} values, one per layer", layers));
        if (!root.has("compress_ratios")) return from_types;
    }
    std::vector<int> ratios = root.integers("compress_ratios", 0, 128, kMaxLayers + kMaxDraftStages);
    const int64_t trailing = int64_t(ratios.size()) - layers;
    if (trailing != nextn && trailing != stages)
        root.refuse("compress_ratios",
                    nextn == stages ? fmt::format("{} values: {} layers and {} draft stages", layers + nextn,
                                                  layers, nextn)
                                    : fmt::format("{} or {} values: {} layers and {} or {} draft stages",
                                                  layers + nextn, layers + stages, layers, nextn, stages));
    if (std::any_of(ratios.begin() + layers, ratios.end(), [](int ratio) { return ratio != 0; }))
        root.refuse("compress_ratios", "ratio 0 for every draft stage, after the layers");
    ratios.resize(size_t(layers));
    if (!from_types.empty() && from_types != ratios)
        root.refuse("compress_ratios", "the ratios that layer_types stands for", "keep one of the two");
    return ratios;
}

/// num_hash_layers, or the leading "hash_moe" entries of mlp_layer_types.
int64_t read_v4_hash_layers(const JsonObject& root, int64_t layers) {
    const bool old_key = root.has("num_hash_layers") || !root.has("mlp_layer_types");
    const int64_t counted = old_key ? root.integer("num_hash_layers", 0, layers) : 0;
    if (!root.has("mlp_layer_types")) return counted;
    const std::vector<std::string> types = root.strings("mlp_layer_types", kMaxLayers);
    if (int64_t(types.size()) != layers)
        root.refuse("mlp_layer_types", fmt::format("a list of {} values, one per layer", layers));
    const auto first_other =
        std::find_if(types.begin(), types.end(), [](const auto& t) { return t != "hash_moe"; });
    if (std::any_of(first_other, types.end(), [](const auto& t) { return t != "moe"; }))
        root.refuse("mlp_layer_types", "leading \"hash_moe\" entries, then \"moe\" alone");
    const int64_t leading = first_other - types.begin();
    if (old_key && leading != counted)
        root.refuse("num_hash_layers", fmt::format("the {} hash_moe entries of mlp_layer_types", leading));
    return leading;
}

/// qk_rope_head_dim, or partial_rotary_factor * head_dim of the renamed form.
int64_t read_v4_rope_channels(const JsonObject& root, int64_t head_dim) {
    const bool old_key = root.has("qk_rope_head_dim") || !root.has("partial_rotary_factor");
    const int64_t named = old_key ? root.integer("qk_rope_head_dim", 2, kMaxDimension) : 0;
    if (!root.has("partial_rotary_factor")) return named;
    const double channels = root.number("partial_rotary_factor", kMinEpsilon, 1) * double(head_dim);
    if (channels != std::floor(channels) || (old_key && double(named) != channels))
        root.refuse("partial_rotary_factor", old_key ? "qk_rope_head_dim / head_dim"
                                                     : "a factor that makes factor * head_dim an integer");
    return static_cast<int64_t>(channels);
}

bool has_dspark_keys(const JsonObject& root) {
    const std::vector<std::string> keys = root.keys();
    return std::any_of(keys.begin(), keys.end(),
                       [](const std::string& key) { return key.starts_with("dspark_"); });
}

ModelConfig read_v4_hugging_face(const JsonObject& root) {
    for (const std::string_view key : {"text_config", "kv_source_layer_ids", "engram_layer_ids"})
        if (root.has(key)) root.refuse(key, "no such key in a V4 file", "is this a deepseek_v41 file?");
    ModelConfig config;
    config.family = ModelFamily::deepseek_v4;
    read_common({root}, v4, config);
    config.qk_rope_head_dim = read_v4_rope_channels(root, config.head_dim);
    read_v4_rope(root, config);
    read_integers({root}, kPositionLimit, v4, config);
    read_quantization(root, root, config);
    config.num_hash_layers = read_v4_hash_layers(root, config.num_hidden_layers);
    const bool dspark = has_dspark_keys(root);
    const int64_t nextn = root.integer(kDraftStages.hugging_face, 0, kMaxDraftStages);
    const int64_t stages = dspark ? kV4DsparkStages : nextn;
    config.compress_ratios = read_v4_backbone_ratios(root, config.num_hidden_layers, nextn, stages);
    config.compress_ratios.resize(size_t(config.num_hidden_layers + stages), 0);
    if (dspark) read_dspark({root}, v4, stages, config);
    return config;
}

/// Every key of the tables, in both forms.
std::vector<Keys> all_keys() {
    std::vector<Keys> all = {kRatioList.keys, kEngramLayers, kEngramRows,   kDsparkTargets,
                             kDraftStages,    kVisionRatio,  kLinearFormat, kExpertFormat};
    const auto add = [&all](const auto& fields) {
        for (const auto& field : fields) all.push_back(field.keys);
    };
    add(kIntegers);
    add(kNumbers);
    add(kRopeNumbers);
    add(kRopeIntegers);
    add(kPositionLimit);
    add(kHeadRope);
    add(kHashLayers);
    add(kSourceLists);
    add(kEngramIntegers);
    add(kDsparkIntegers);
    add(kDsparkExperts);
    add(kVisionIntegers);
    add(kVisionNumbers);
    add(kFixedChoices);
    add(kFixedQuantization);
    return all;
}

/// Keys that files hold on purpose, so that none of them is taken for a slip of another.
std::vector<std::string> known_keys() {
    std::vector<std::string> names = {"model_type",
                                      "text_config",
                                      "vision_config",
                                      "rope_scaling",
                                      "rope_parameters",
                                      "quantization_config",
                                      "layer_types",
                                      "compress_rates",
                                      "mlp_layer_types",
                                      "weight_block_size",
                                      "quant_method",
                                      "partial_rotary_factor",
                                      "expert_dtype",
                                      "dtype",
                                      "torch_dtype",
                                      "rope_type",
                                      "type",
                                      "image_token_id",
                                      "pad_token_id",
                                      "bos_token_id",
                                      "eos_token_id"};
    for (const Keys& keys : all_keys())
        for (const std::string_view key : {keys.hugging_face, keys.inference})
            if (!key.empty()) names.emplace_back(key);
    return names;
}

/// Recognises the form from the keys and the family from the exact model_type: a prefix test would take V4.1
/// for V4.
ModelConfig read_any_form(const JsonObject& root) {
    const std::string expected = fmt::format("one of {}, exactly", fmt::join(kKnownModelTypes, ", "));
    if (!root.has("model_type")) {
        if (root.has("dim") || root.has("n_layers")) return read_inference(root);
        root.missing("model_type", expected + "; or the keys dim and n_layers of the inference form");
    }
    const std::string model_type = root.string("model_type");
    if (model_type == "deepseek_v4") return read_v4_hugging_face(root);
    if (model_type == "deepseek_v41" || model_type == "deepseek_v41_text")
        return read_v41_hugging_face(root, model_type);
    root.refuse("model_type", expected, "other models are compared by preset name, not by their files");
}

/// Collects what validate() says: where the file is, which key, what it holds.
struct Checker {
    const ModelConfig& config;
    const std::string& file;
    bool inference = false;  ///< the file is in the inference form: name its keys

    std::string_view shown(std::string_view key) const {
        if (inference)
            for (const Keys& keys : all_keys())
                if (keys.hugging_face == key && !keys.inference.empty()) return keys.inference;
        return key;
    }

    void require(bool holds, std::string_view key, const std::string& what,
                 const std::string& expected) const {
        if (holds) return;
        throw UserError({.what = what,
                         .where = fmt::format("{}: {}", file, shown(key)),
                         .expected = expected,
                         .remedy = ""});
    }
    void require(bool holds, std::string_view key, int64_t value, const std::string& expected) const {
        if (!holds) require(false, key, fmt::format("{} is {}", shown(key), value), expected);
    }
    template <class Struct, size_t N>
    void ranges(const IntegerField<Struct> (&fields)[N], Families family, const Struct& values) const {
        for (const IntegerField<Struct>& field : fields) {
            if (!(field.families & family)) continue;
            const int64_t value = values.*field.member;
            require(field.lowest <= value && value <= field.highest, field.keys.hugging_face, value,
                    fmt::format("an integer from {} to {}", field.lowest, field.highest));
        }
    }
    template <class Struct, size_t N>
    void ranges(const NumberField<Struct> (&fields)[N], const Struct& values) const {
        for (const NumberField<Struct>& field : fields) {
            const double value = values.*field.member;
            require(field.lowest <= value && value <= field.highest, field.keys.hugging_face,
                    fmt::format("{} is {}", field.keys.hugging_face, value),
                    fmt::format("a number from {} to {}", field.lowest, field.highest));
        }
    }
    void divides(int64_t divisor, std::string_view key, int64_t value) const {
        require(value % divisor == 0, key, value, fmt::format("a multiple of {}", divisor));
    }
    /// Layer numbers of the backbone, strictly ascending.
    void layer_list(std::string_view key, const std::vector<int>& layers) const {
        const std::string expected =
            fmt::format("ascending layer numbers from 0 to {}", config.num_hidden_layers - 1);
        for (size_t i = 0; i < layers.size(); ++i) {
            const std::string what = fmt::format("{}[{}] is {}", key, i, layers[i]);
            require(0 <= layers[i] && layers[i] < config.num_hidden_layers, key, what, expected);
            require(i == 0 || layers[i - 1] < layers[i], key, what, expected);
        }
    }
};

bool contains(const std::vector<int>& layers, int64_t layer) {
    return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

void check_ranges(const Checker& check, Families family) {
    const ModelConfig& config = check.config;
    check.ranges(kIntegers, family, config);
    check.ranges(kNumbers, config);
    check.ranges(kRopeNumbers, config);
    check.ranges(kRopeIntegers, family, config);
    check.ranges(kPositionLimit, family, config);
    check.ranges(kHeadRope, family, config);
    check.ranges(kHashLayers, family, config);
    const double positions = config.rope_factor * double(config.original_max_position_embeddings);
    check.require(
        double(config.max_position_embeddings) <= positions, "max_position_embeddings",
        config.max_position_embeddings,
        fmt::format("at most rope factor * original positions = {}: the factor is already in it", positions));
}

/// Widths that scale blocks, records and heads cut into equal parts.
void check_widths(const Checker& check) {
    const ModelConfig& config = check.config;
    check.divides(32, "hidden_size", config.hidden_size);
    check.divides(32, "head_dim", config.head_dim);
    check.divides(32, "index_head_dim", config.index_head_dim);
    check.divides(32, "q_lora_rank", config.q_lora_rank);
    check.require(config.o_groups * config.o_lora_rank % 32 == 0, "o_lora_rank", config.o_lora_rank,
                  "a value that makes o_groups * o_lora_rank a multiple of 32");
    check.divides(32, "moe_intermediate_size", config.moe_intermediate_size);
    check.divides(2, "qk_rope_head_dim", config.qk_rope_head_dim);
    const int64_t narrowest = std::min(config.head_dim, config.index_head_dim);
    check.require(config.qk_rope_head_dim <= narrowest, "qk_rope_head_dim", config.qk_rope_head_dim,
                  fmt::format("at most head_dim and index_head_dim: {}", narrowest));
    check.require(config.num_attention_heads % config.o_groups == 0, "o_groups", config.o_groups,
                  fmt::format("a divisor of num_attention_heads, {}", config.num_attention_heads));
    check.require(config.num_experts_per_tok <= config.n_routed_experts, "num_experts_per_tok",
                  config.num_experts_per_tok,
                  fmt::format("at most n_routed_experts, {}", config.n_routed_experts));
    if (config.family == ModelFamily::deepseek_v4)
        check.require((config.head_dim - config.qk_rope_head_dim) % 64 == 0, "qk_rope_head_dim",
                      config.qk_rope_head_dim,
                      "a value that leaves head_dim - qk_rope_head_dim a multiple of 64");
}

void check_formats(const Checker& check) {
    const ModelConfig& config = check.config;
    const bool is_v41 = config.family == ModelFamily::deepseek_v41;
    const auto format_name = [](WeightFormat format) {
        return kWeightFormatNames[static_cast<size_t>(format)];
    };
    check.require(config.linear_format == WeightFormat::fp8, "quant_method",
                  fmt::format("linear weights are {}", format_name(config.linear_format)), "fp8");
    const bool experts_known =
        config.expert_format == WeightFormat::fp4 || (!is_v41 && config.expert_format == WeightFormat::fp8);
    check.require(experts_known, "expert_dtype",
                  fmt::format("expert weights are {}", format_name(config.expert_format)),
                  is_v41 ? "fp4" : "fp4 or fp8");
    const int64_t edge = is_v41 ? 32 : 128;
    check.require(config.weight_block_size == edge, "weight_block_size", config.weight_block_size,
                  fmt::format("[{0}, {0}], the scale tile of this model family", edge));
}

/// Number and values of the ratios: one per layer, then 0 for every draft stage.
void check_ratios(const Checker& check) {
    const ModelConfig& config = check.config;
    const bool is_v41 = config.family == ModelFamily::deepseek_v41;
    const int64_t layers = config.num_hidden_layers;
    const int64_t count = int64_t(config.compress_ratios.size());
    const int64_t stages =
        config.dspark ? config.dspark->stages : (is_v41 ? 0 : std::max<int64_t>(count - layers, 0));
    check.require(count == layers + stages && stages <= kMaxDraftStages, "compress_ratios",
                  fmt::format("compress_ratios has {} values", count),
                  fmt::format("{} values: one for each of {} layers and {} draft stages", layers + stages,
                              layers, stages));
    const std::vector<int> allowed = is_v41 ? std::vector<int>{0, 1, 2} : std::vector<int>{0, 4, 128};
    for (int64_t layer = 0; layer < count; ++layer) {
        const int ratio = config.compress_ratios[size_t(layer)];
        const std::string what = fmt::format("compress_ratios[{}] is {}", layer, ratio);
        check.require(contains(allowed, ratio), "compress_ratios", what,
                      fmt::format("one of {}", fmt::join(allowed, ", ")));
        check.require(layer < layers || ratio == 0, "compress_ratios", what,
                      "0: a draft stage keeps only its window");
    }
}

/// KV and index sources, and a source of the right ratio for every compressed layer. V4.1 only.
void check_sources(const Checker& check) {
    const ModelConfig& config = check.config;
    const auto ratio_of = [&](int layer) { return config.compress_ratios[size_t(layer)]; };
    check.layer_list("kv_source_layer_ids", config.kv_source_layer_ids);
    check.layer_list("index_source_layer_ids", config.index_source_layer_ids);
    for (const int layer : config.kv_source_layer_ids) {
        check.require(ratio_of(layer) > 0, "kv_source_layer_ids",
                      fmt::format("layer {} is a KV source with ratio 0", layer),
                      "a compress ratio above 0 there");
        check.require(contains(config.index_source_layer_ids, layer), "index_source_layer_ids",
                      fmt::format("layer {} is a KV source but not an index source", layer),
                      "every KV source among the index sources");
    }
    for (const int layer : config.index_source_layer_ids)
        check.require(ratio_of(layer) > 0, "index_source_layer_ids",
                      fmt::format("layer {} is an index source with ratio 0", layer),
                      "a compress ratio above 0 there");
    int source = -1;
    for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
        if (contains(config.kv_source_layer_ids, layer)) source = layer;
        if (ratio_of(layer) == 0) continue;
        check.require(source >= 0 && ratio_of(source) == ratio_of(layer), "compress_ratios",
                      source < 0
                          ? fmt::format("layer {} reads compressed rows but no KV source precedes it", layer)
                          : fmt::format("layer {} has ratio {} but its KV source {} has {}", layer,
                                        ratio_of(layer), source, ratio_of(source)),
                      "the ratio of the last KV source at or before the layer");
    }
    // A pool holds rows of one source; index sources after it must score the same rows.
    check.require(!config.kv_source_layer_ids.empty() &&
                      config.kv_source_layer_ids.back() == config.candidate_source_layer_id,
                  "candidate_source_layer_id", config.candidate_source_layer_id,
                  "the last of kv_source_layer_ids");
}

/// Fields that only the other family has.
void check_foreign_fields(const Checker& check) {
    const ModelConfig& config = check.config;
    if (config.family == ModelFamily::deepseek_v41)
        return check.require(config.num_hash_layers == 0, "num_hash_layers", config.num_hash_layers,
                             "0: V4.1 has none");
    check.require(config.kv_source_layer_ids.empty() && config.index_source_layer_ids.empty() &&
                      config.candidate_source_layer_id == -1 && config.candidate_topk_blocks == 0 &&
                      config.candidate_block_size == 0,
                  "kv_source_layer_ids", "sources are given for a V4 model",
                  "none: every V4 layer owns its cache");
    check.require(!config.engram && !config.vision, "engram_layer_ids",
                  "Engram or vision is given for a V4 model", "neither");
    check.require(config.num_hash_layers <= config.num_hidden_layers, "num_hash_layers",
                  config.num_hash_layers,
                  fmt::format("at most num_hidden_layers, {}", config.num_hidden_layers));
}

void check_engram(const Checker& check, const EngramConfig& engram) {
    check.ranges(kEngramIntegers, v41, engram);
    check.layer_list("engram_layer_ids", engram.layer_ids);
    check.require(engram.num_embeddings.size() == engram.layer_ids.size(), "engram_num_embeddings",
                  fmt::format("engram_num_embeddings has {} values", engram.num_embeddings.size()),
                  fmt::format("one for each of the {} engram_layer_ids", engram.layer_ids.size()));
    // Each column's table has a prime number of rows, the primes that follow engram_vocab_size.
    const double fewest_rows = double(engram.columns()) * double(engram.vocab_size);
    for (const int64_t rows : engram.num_embeddings)
        check.require(
            1 <= rows && rows <= kMaxEngramRows && double(rows) >= fewest_rows, "engram_num_embeddings", rows,
            fmt::format("from columns * engram_vocab_size = {} to {}", fewest_rows, kMaxEngramRows));
    check.divides(32, "engram_head_dim", engram.head_dim);
    check.require(engram.pad_token_id < check.config.vocab_size, "engram_pad_token_id", engram.pad_token_id,
                  fmt::format("a token below vocab_size, {}", check.config.vocab_size));
    check.require(engram.compressed_vocab_size <= check.config.vocab_size, "engram_compressed_vocab_size",
                  engram.compressed_vocab_size,
                  fmt::format("at most vocab_size, {}", check.config.vocab_size));
}

void check_dspark(const Checker& check, const DsparkConfig& dspark) {
    check.ranges(kDsparkIntegers, both, dspark);
    check.ranges(kDsparkExperts, both, dspark);
    check.require(1 <= dspark.stages && dspark.stages <= kMaxDraftStages, "num_nextn_predict_layers",
                  dspark.stages, fmt::format("an integer from 1 to {}", kMaxDraftStages));
    check.layer_list("dspark_target_layer_ids", dspark.target_layer_ids);
    check.require(!dspark.target_layer_ids.empty(), "dspark_target_layer_ids",
                  "dspark_target_layer_ids is empty", "at least one layer to read from");
    check.require(dspark.noise_token_id < check.config.vocab_size, "dspark_noise_token_id",
                  dspark.noise_token_id,
                  fmt::format("a token below vocab_size, {}", check.config.vocab_size));
    check.require(dspark.num_experts_per_tok <= dspark.n_routed_experts, "dspark_num_experts_per_tok",
                  dspark.num_experts_per_tok, fmt::format("at most {} experts", dspark.n_routed_experts));
}

void check_vision(const Checker& check, const VisionConfig& vision) {
    check.ranges(kVisionIntegers, v41, vision);
    check.ranges(kVisionNumbers, vision);
    check.require(vision.hidden_size % vision.num_attention_heads == 0, "vision_config.num_attention_heads",
                  vision.num_attention_heads,
                  fmt::format("a divisor of hidden_size, {}", vision.hidden_size));
    check.require(!vision.max_wh_ratio || (*vision.max_wh_ratio >= 1 && *vision.max_wh_ratio <= kMaxScalar),
                  "vision_config.max_wh_ratio", "max_wh_ratio is out of range", "null, or a number from 1");
}

/// An upper bound on the weights of one block without its experts, in double so that nothing wraps.
double block_parameters_at_most(const ModelConfig& config) {
    const double hidden = double(config.hidden_size);
    const double streams = double(config.hc_mult);
    const double head_dim = double(config.head_dim), index_head_dim = double(config.index_head_dim);
    const double heads = double(config.num_attention_heads) * head_dim;
    const double index_heads = double(config.index_n_heads) * index_head_dim;
    const double queries = double(config.q_lora_rank) * (hidden + heads + index_heads + 1);
    const double output = double(config.o_lora_rank) * (heads + double(config.o_groups) * hidden);
    const double keys =
        (hidden + 2) * (4 * head_dim + double(config.index_n_heads)) + (head_dim + 1) * index_head_dim;
    return queries + output + keys + 8 * hidden * streams * streams * streams;
}

/// An upper bound on the weights of the model without its vision tower, which the ranges alone keep below
/// 2^50.
double parameters_at_most(const ModelConfig& config) {
    const double hidden = double(config.hidden_size);
    const double expert = 3 * hidden * double(config.moe_intermediate_size) + hidden + 2;
    const double layers = double(config.num_hidden_layers);
    double parameters = double(config.compress_ratios.size()) * (block_parameters_at_most(config) + expert) +
                        layers * double(config.n_routed_experts) * expert +
                        2 * hidden * double(config.vocab_size);
    if (config.dspark) {
        const DsparkConfig& dspark = *config.dspark;
        parameters += double(dspark.stages) * double(dspark.n_routed_experts) * expert +
                      2 * (double(config.vocab_size) + hidden) * double(dspark.markov_rank) +
                      hidden * hidden * double(dspark.target_layer_ids.size());
    }
    if (!config.engram) return parameters;
    const EngramConfig& engram = *config.engram;
    const double looked_up = double(engram.columns()) * double(engram.head_dim);
    for (const int64_t rows : engram.num_embeddings)
        parameters +=
            double(rows) * double(engram.head_dim) + double(config.hc_mult + 1) * hidden * (looked_up + 2);
    return parameters;
}

/// Bounds the totals that accounting forms in int64: all weights, and one token's rows in every layer times
/// the longest context of 2^40 tokens.
void check_size(const Checker& check) {
    const ModelConfig& config = check.config;
    const double parameters = parameters_at_most(config);
    check.require(parameters < 0x1p59, "num_hidden_layers",
                  fmt::format("the model has {:.3g} parameters", parameters),
                  "fewer than 2^59, so that byte counts stay exact");
    const double row_bytes =
        double(config.compress_ratios.size()) * 4 * double(config.head_dim + config.index_head_dim);
    check.require(row_bytes < 0x1p22, "head_dim",
                  fmt::format("one token may take {:.3g} bytes of cache", row_bytes),
                  "less than 4 MiB, so that byte counts stay exact");
}

void check_all(const Checker& check) {
    const ModelConfig& config = check.config;
    const bool is_v41 = config.family == ModelFamily::deepseek_v41;
    check_ranges(check, is_v41 ? v41 : v4);
    check_widths(check);
    check_formats(check);
    if (config.dspark) check_dspark(check, *config.dspark);
    check_ratios(check);
    check_foreign_fields(check);
    if (is_v41) check_sources(check);
    if (config.engram) check_engram(check, *config.engram);
    if (config.vision) check_vision(check, *config.vision);
    check_size(check);
}

template <class Struct, size_t N>
void dump_integers(const IntegerField<Struct> (&fields)[N], Families family, const Struct& values,
                   Json& object) {
    for (const IntegerField<Struct>& field : fields)
        if (field.families & family) object[std::string(field.keys.hugging_face)] = values.*field.member;
}

template <class Struct, size_t N>
void dump_numbers(const NumberField<Struct> (&fields)[N], const Struct& values, Json& object) {
    for (const NumberField<Struct>& field : fields)
        object[std::string(field.keys.hugging_face)] = values.*field.member;
}

Json dump_text(const ModelConfig& config, Families family) {
    Json text;
    dump_integers(kIntegers, family, config, text);
    dump_numbers(kNumbers, config, text);
    dump_integers(kPositionLimit, family, config, text);
    dump_integers(kHeadRope, family, config, text);
    dump_integers(kHashLayers, family, config, text);
    Json& scaling = text["rope_scaling"];
    scaling["rope_type"] = "yarn";
    dump_numbers(kRopeNumbers, config, scaling);
    dump_integers(kRopeIntegers, family, config, scaling);
    text["compress_ratios"] = config.compress_ratios;
    text["num_nextn_predict_layers"] = int64_t(config.compress_ratios.size()) - config.num_hidden_layers;
    if (family == v41) {
        for (const LayerListField& field : kSourceLists)
            text[std::string(field.keys.hugging_face)] = config.*field.member;
        text["engram_layer_ids"] = config.engram ? config.engram->layer_ids : std::vector<int>{};
    }
    if (config.engram) {
        dump_integers(kEngramIntegers, family, *config.engram, text);
        text["engram_num_embeddings"] = config.engram->num_embeddings;
    }
    if (config.dspark) {
        dump_integers(kDsparkIntegers, family, *config.dspark, text);
        if (family == v41) dump_integers(kDsparkExperts, family, *config.dspark, text);
        text["dspark_target_layer_ids"] = config.dspark->target_layer_ids;
    }
    return text;
}

Json dump_quantization(const ModelConfig& config) {
    return {{"quant_method", kWeightFormatNames[static_cast<size_t>(config.linear_format)]},
            {"expert_dtype", kWeightFormatNames[static_cast<size_t>(config.expert_format)]},
            {"weight_block_size", {config.weight_block_size, config.weight_block_size}}};
}

}  // namespace

ModelConfig parse_config(std::string_view text, const std::string& name) {
    const JsonObject root = JsonObject::parse(text, name, known_keys());
    const ModelConfig config = read_any_form(root);
    check_all({config, name, /*inference=*/!root.has("model_type")});
    return config;
}

ModelConfig load_config(const std::string& path) {
    return parse_config(read_config_file(path), path);
}

void validate(const ModelConfig& config, const std::string& where) {
    check_all({config, where});
}

std::string dump_config(const ModelConfig& config) {
    Json root;
    if (config.family == ModelFamily::deepseek_v4) {
        root = dump_text(config, v4);
        root["model_type"] = "deepseek_v4";
    } else {
        root["model_type"] = "deepseek_v41";
        root["text_config"] = dump_text(config, v41);
    }
    root["quantization_config"] = dump_quantization(config);
    if (config.vision) {
        Json& vision = root["vision_config"];
        dump_integers(kVisionIntegers, v41, *config.vision, vision);
        dump_numbers(kVisionNumbers, *config.vision, vision);
        vision["max_wh_ratio"] =
            config.vision->max_wh_ratio ? Json(*config.vision->max_wh_ratio) : Json(nullptr);
    }
    return root.dump(2) + "\n";
}

}  // namespace touchstone
