// Checks across the fields of a configuration.
#include "reference/model/config_check.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reference/io/user_error.h"
#include "reference/model/config_fields.h"

namespace touchstone {

using namespace config_fields;

namespace {

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

}  // namespace

void check_config(const ModelConfig& config, const std::string& file, bool inference) {
    const Checker check{config, file, inference};
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

}  // namespace touchstone
