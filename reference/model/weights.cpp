// The tensor list of spec/text_model 21 and spec/engram_dspark_vision 0.2, written as the model is built.
#include "reference/model/weights.h"

#include <fmt/format.h>

#include "reference/io/user_error.h"
#include "reference/model/layer_roles.h"

namespace touchstone {

namespace {

/// Values per scale in row-scaled tensors (e2m1 experts, Engram rows), whatever the fp8 tile is.
constexpr int64_t kRowScaleValues = 32;

int64_t product(const std::vector<int64_t>& shape) {
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    return count;
}

int64_t bytes_per_element(TensorType type) {
    static constexpr int64_t bytes[] = {4, 2, 1, 1, 1};
    return bytes[static_cast<size_t>(type)];
}

int64_t ceil_divide(int64_t value, int64_t divisor) {
    return (value + divisor - 1) / divisor;
}

/// Hands tensors under one name prefix to the visitor. All matrices are [out, in].
class Section {
  public:
    Section(const ModelConfig& config, const std::function<void(const TensorSpec&)>& visit,
            std::string prefix, WeightComponent component, int layer)
        : config_(config), visit_(visit), prefix_(std::move(prefix)), component_(component), layer_(layer) {}

    /// A section under prefix + name. A draft stage's parts stay with the draft.
    Section part(std::string_view name, WeightComponent component) const {
        return {config_, visit_, prefix_ + std::string(name),
                component_ == WeightComponent::dspark ? component_ : component, layer_};
    }

    void bf16(std::string_view name, std::vector<int64_t> shape) const {
        emit(name, TensorType::bf16, std::move(shape));
    }
    void f32(std::string_view name, std::vector<int64_t> shape) const {
        emit(name, TensorType::f32, std::move(shape));
    }
    /// e4m3 weight with one e8m0 scale per square tile; tiles at the edges may be cut.
    void fp8(std::string_view name, int64_t out, int64_t in) const {
        const int64_t tile = config_.weight_block_size;
        emit(fmt::format("{}.weight", name), TensorType::f8_e4m3, {out, in});
        emit(fmt::format("{}.scale", name), TensorType::f8_e8m0,
             {ceil_divide(out, tile), ceil_divide(in, tile)});
    }
    /// e4m3 table with one e8m0 scale per 32 values of a row: rows are read one at a time.
    void fp8_rows(std::string_view name, int64_t rows, int64_t in) const {
        emit(fmt::format("{}.weight", name), TensorType::f8_e4m3, {rows, in});
        emit(fmt::format("{}.scale", name), TensorType::f8_e8m0, {rows, in / kRowScaleValues});
    }
    /// Packed e2m1 weight, two values per byte along `in`.
    void fp4(std::string_view name, int64_t out, int64_t in) const {
        emit(fmt::format("{}.weight", name), TensorType::i8_e2m1, {out, in / 2});
        emit(fmt::format("{}.scale", name), TensorType::f8_e8m0, {out, in / kRowScaleValues});
    }

    const ModelConfig& config() const { return config_; }

  private:
    void emit(std::string_view name, TensorType type, std::vector<int64_t> shape) const {
        visit_({prefix_ + std::string(name), type, std::move(shape), component_, layer_});
    }

    const ModelConfig& config_;
    const std::function<void(const TensorSpec&)>& visit_;
    std::string prefix_;
    WeightComponent component_;
    int layer_;
};

void visit_attention(const Section& attention) {
    const ModelConfig& c = attention.config();
    const int64_t head_channels = c.num_attention_heads * c.head_dim;
    attention.fp8("wq_a", c.q_lora_rank, c.hidden_size);
    attention.bf16("q_norm.weight", {c.q_lora_rank});
    attention.fp8("wq_b", head_channels, c.q_lora_rank);
    attention.fp8("wkv", c.head_dim, c.hidden_size);
    attention.bf16("kv_norm.weight", {c.head_dim});
    attention.f32("attn_sink", {c.num_attention_heads});
    // Each group of heads has its own [o_lora_rank, head_channels / o_groups] matrix; they are stacked.
    attention.fp8("wo_a", c.o_groups * c.o_lora_rank, head_channels / c.o_groups);
    attention.fp8("wo_b", c.hidden_size, c.o_groups * c.o_lora_rank);
}

/// A ratio-1 group holds one token, so there is nothing to weigh and no wgate.
void visit_compressor(const Section& compressor, int compress_ratio) {
    const ModelConfig& c = compressor.config();
    compressor.bf16("wkv.weight", {c.head_dim, c.hidden_size});
    if (compress_ratio > 1) compressor.bf16("wgate.weight", {c.head_dim, c.hidden_size});
    compressor.bf16("norm.weight", {c.head_dim});
}

/// Reindex layers have queries only; the keys belong to the layer that owns the rows.
void visit_indexer(const Section& indexer, bool owns_keys) {
    const ModelConfig& c = indexer.config();
    indexer.fp8("wq_b", c.index_n_heads * c.index_head_dim, c.q_lora_rank);
    indexer.bf16("weights_proj.weight", {c.index_n_heads, c.hidden_size});
    if (!owns_keys) return;
    indexer.bf16("wk.weight", {c.index_head_dim, c.head_dim});
    indexer.bf16("k_norm.weight", {c.index_head_dim});
}

void visit_experts(const Section& ffn, int64_t expert_count) {
    const ModelConfig& c = ffn.config();
    const Section gate = ffn.part("gate.", WeightComponent::gate);
    gate.bf16("weight", {expert_count, c.hidden_size});
    gate.f32("bias", {expert_count});
    gate.f32("bias_vl", {expert_count});
    for (int64_t expert = 0; expert < expert_count; ++expert) {
        const Section routed = ffn.part(fmt::format("experts.{}.", expert), WeightComponent::routed_experts);
        routed.fp4("w1", c.moe_intermediate_size, c.hidden_size);
        routed.fp4("w2", c.hidden_size, c.moe_intermediate_size);
        routed.fp4("w3", c.moe_intermediate_size, c.hidden_size);
    }
    const Section shared = ffn.part("shared_experts.", WeightComponent::shared_experts);
    shared.fp8("w1", c.moe_intermediate_size, c.hidden_size);
    shared.fp8("w2", c.hidden_size, c.moe_intermediate_size);
    shared.fp8("w3", c.moe_intermediate_size, c.hidden_size);
}

/// hc_mult pre weights, hc_mult post weights and an hc_mult x hc_mult mix, from all streams at once.
void visit_hyper_connections(const Section& block) {
    const ModelConfig& c = block.config();
    const int64_t coefficients = c.hc_mult * (2 + c.hc_mult);
    const Section mixing = block.part("", WeightComponent::hyper_connections);
    for (const std::string_view sublayer : {"attn", "ffn"}) {
        mixing.f32(fmt::format("hc_{}_fn", sublayer), {coefficients, c.hc_mult * c.hidden_size});
        mixing.f32(fmt::format("hc_{}_base", sublayer), {coefficients});
        mixing.f32(fmt::format("hc_{}_scale", sublayer), {3});
    }
}

/// wkv makes one value and a key per stream from the looked-up columns.
void visit_engram(const Section& block, int layer) {
    const ModelConfig& c = block.config();
    const EngramConfig& engram = *c.engram;
    size_t table = 0;
    while (engram.layer_ids[table] != layer) ++table;
    block.part("engram.", WeightComponent::engram_tables)
        .fp8_rows("embed", engram.num_embeddings[table], engram.head_dim);
    const Section projections = block.part("engram.", WeightComponent::engram_projections);
    projections.fp8("wkv", (1 + c.hc_mult) * c.hidden_size, engram.columns() * engram.head_dim);
    projections.bf16("q_weight", {c.hc_mult, c.hidden_size});
    projections.bf16("k_weight", {c.hc_mult, c.hidden_size});
}

/// A backbone layer, or a draft stage, which has the same parts with its own number of experts.
void visit_block(const Section& block, const LayerRole& role, int64_t expert_count) {
    const ModelConfig& c = block.config();
    block.bf16("attn_norm.weight", {c.hidden_size});
    block.bf16("ffn_norm.weight", {c.hidden_size});
    visit_hyper_connections(block);
    visit_attention(block.part("attn.", WeightComponent::attention));
    if (role.mode == LayerMode::full)
        visit_compressor(block.part("attn.compressor.", WeightComponent::compressor), role.compress_ratio);
    if (role.mode == LayerMode::full || role.mode == LayerMode::reindex)
        visit_indexer(block.part("attn.indexer.", WeightComponent::indexer), role.mode == LayerMode::full);
    if (role.engram) visit_engram(block, role.layer);
    visit_experts(block.part("ffn.", WeightComponent::norms), expert_count);
}

/// What draft stages have beyond a block: the first joins the tapped layers, the last makes the draft tokens.
void visit_draft_ends(const Section& stage, int64_t index) {
    const ModelConfig& c = stage.config();
    const DsparkConfig& dspark = *c.dspark;
    if (index == 0) {
        stage.fp8("main_proj", c.hidden_size,
                  static_cast<int64_t>(dspark.target_layer_ids.size()) * c.hidden_size);
        stage.bf16("main_norm.weight", {c.hidden_size});
    }
    if (index + 1 == dspark.stages) {
        stage.bf16("norm.weight", {c.hidden_size});
        stage.bf16("markov_head.embed.weight", {c.vocab_size, dspark.markov_rank});
        stage.bf16("markov_head.head.weight", {c.vocab_size, dspark.markov_rank});
        stage.bf16("confidence_head.proj.weight", {1, c.hidden_size + dspark.markov_rank});
    }
}

void visit_vision_block(const Section& block, const VisionConfig& vision) {
    const int64_t width = vision.hidden_size;
    block.bf16("attn.wqkv.weight", {3 * width, width});
    block.bf16("attn.wqkv.bias", {3 * width});
    block.bf16("attn.wo.weight", {width, width});
    block.bf16("attn.wo.bias", {width});
    block.bf16("mlp.w1.weight", {2 * vision.intermediate_size, width});  // gate rows, then up rows
    block.bf16("mlp.w2.weight", {width, vision.intermediate_size});
    block.bf16("norm1.weight", {width});
    block.bf16("norm2.weight", {width});
}

void visit_vision(const Section& root, const VisionConfig& vision) {
    const int64_t hidden = root.config().hidden_size;
    const int64_t patch_values = 3 * vision.patch_size * vision.patch_size;
    root.bf16("vision.patch_embed.proj.weight", {vision.hidden_size, patch_values});
    root.bf16("vision.patch_embed.proj.bias", {vision.hidden_size});
    for (int64_t index = 0; index < vision.num_hidden_layers; ++index)
        visit_vision_block(root.part(fmt::format("vision.blocks.{}.", index), WeightComponent::vision),
                           vision);
    root.bf16("vision.norm.weight", {vision.hidden_size});
    const int64_t unshuffled = vision.hidden_size * vision.downsample_ratio * vision.downsample_ratio;
    root.bf16("aligner.w1.weight", {hidden, unshuffled});
    root.bf16("aligner.w1.bias", {hidden});
    root.bf16("aligner.w2.weight", {hidden, hidden});
    root.bf16("aligner.w2.bias", {hidden});
    for (const std::string_view delimiter : {"image_start", "image_end", "image_newline"})
        root.bf16(delimiter, {hidden});
}

}  // namespace

int64_t TensorSpec::stored_bytes() const {
    return product(shape) * bytes_per_element(type);
}

int64_t TensorSpec::elements() const {
    return product(shape) * (type == TensorType::i8_e2m1 ? 2 : 1);
}

int64_t TensorSpec::parameters() const {
    if (type == TensorType::f8_e8m0) return 0;
    return elements();
}

void for_each_tensor(const ModelConfig& config, const std::function<void(const TensorSpec&)>& visit) {
    if (config.family != ModelFamily::deepseek_v41)
        throw UserError(
            {.what = "the tensor list of deepseek_v4 models is not published in full, so weights cannot be "
                     "counted",
             .where = "weights",
             .expected = "a DeepSeek-V4.1 configuration",
             .remedy = "touchstone kv and touchstone layers without --weights answer for V4 models"});
    const auto root = [&](WeightComponent component) { return Section(config, visit, "", component, -1); };
    root(WeightComponent::embedding).bf16("embed.weight", {config.vocab_size, config.hidden_size});
    root(WeightComponent::head).bf16("head.weight", {config.vocab_size, config.hidden_size});
    root(WeightComponent::norms).bf16("norm.weight", {config.hidden_size});
    for (const LayerRole& role : layer_roles(config)) {
        const int64_t stage = role.layer - config.num_hidden_layers;
        if (stage < 0) {
            const Section block(config, visit, fmt::format("layers.{}.", role.layer), WeightComponent::norms,
                                role.layer);
            visit_block(block, role, config.n_routed_experts);
        } else {
            const Section block(config, visit, fmt::format("mtp.{}.", stage), WeightComponent::dspark,
                                role.layer);
            visit_block(block, role, config.dspark->n_routed_experts);
            visit_draft_ends(block, stage);
        }
    }
    if (config.vision) visit_vision(root(WeightComponent::vision), *config.vision);
}

std::string_view safetensors_name(TensorType type) {
    static constexpr std::string_view names[] = {"F32", "BF16", "F8_E4M3", "F8_E8M0", "I8"};
    return names[static_cast<size_t>(type)];
}

std::string_view name(WeightComponent component) {
    static constexpr std::string_view names[] = {"embedding",      "head",
                                                 "norms",          "attention",
                                                 "compressor",     "indexer",
                                                 "gate",           "routed experts",
                                                 "shared experts", "hyper-connections",
                                                 "engram tables",  "engram projections",
                                                 "dspark",         "vision"};
    return names[static_cast<size_t>(component)];
}

}  // namespace touchstone
