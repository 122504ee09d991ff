#include "reference/model/config.h"

#include <nlohmann/json.hpp>

#include "reference/io/config_json.h"
#include "reference/model/config_check.h"
#include "reference/model/config_fields.h"
#include "reference/model/config_read.h"

namespace touchstone {

using namespace config_fields;

namespace {

using Json = nlohmann::json;

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
    const JsonObject root = JsonObject::parse(text, name, known_config_keys());
    const ModelConfig config = read_any_form(root);
    check_config(config, name, /*inference=*/!root.has("model_type"));
    return config;
}

ModelConfig load_config(const std::string& path) {
    return parse_config(read_config_file(path), path);
}

void validate(const ModelConfig& config, const std::string& where) {
    check_config(config, where, /*inference=*/false);
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
