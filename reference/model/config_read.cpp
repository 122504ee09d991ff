// From a file's keys to a ModelConfig: the two forms of V4.1 and the two of V4.
#include "reference/model/config_read.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reference/io/user_error.h"
#include "reference/model/config_fields.h"

namespace touchstone {

using namespace config_fields;

namespace {

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

}  // namespace

std::vector<Keys> config_fields::all_keys() {
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

std::vector<std::string> known_config_keys() {
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

}  // namespace touchstone
