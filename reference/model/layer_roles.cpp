#include "reference/model/layer_roles.h"

#include <algorithm>

#include <fmt/format.h>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

bool contains(const std::vector<int>& layers, int layer) {
    return std::find(layers.begin(), layers.end(), layer) != layers.end();
}

/// The last of `sources` (ascending) that is not after `layer`; -1 when there is none.
int source_at_or_before(const std::vector<int>& sources, int layer) {
    const auto after = std::upper_bound(sources.begin(), sources.end(), layer);
    return after == sources.begin() ? -1 : *(after - 1);
}

/// The pool acts on a layer only through a list that the layer scores itself. Its builder's own list is
/// unrestricted; reuse layers inherit the restriction with the list.
PoolRole pool_role(const ModelConfig& config, const LayerRole& role) {
    if (role.layer == config.candidate_source_layer_id) return PoolRole::builds;
    const bool scores = role.mode == LayerMode::full || role.mode == LayerMode::reindex;
    return scores && role.layer > config.candidate_source_layer_id ? PoolRole::restricted : PoolRole::none;
}

/// V4.1: a compressed layer reads the rows of the latest KV source and the list of the latest index source.
void assign_shared_sources(const ModelConfig& config, LayerRole& role) {
    role.half = role.layer < first_decoder_layer(config) ? LayerHalf::encoder : LayerHalf::decoder;
    if (role.compress_ratio == 0) return;
    role.kv_source = source_at_or_before(config.kv_source_layer_ids, role.layer);
    role.index_key_source = role.kv_source;
    role.top_k_source = source_at_or_before(config.index_source_layer_ids, role.layer);
    if (role.kv_source == role.layer)
        role.mode = LayerMode::full;
    else
        role.mode = role.top_k_source == role.layer ? LayerMode::reindex : LayerMode::reuse;
    role.pool = pool_role(config, role);
}

/// V4: every compressed layer owns its rows; only layers of ratio 4 select among them.
void assign_own_sources(LayerRole& role) {
    role.half = LayerHalf::backbone;
    if (role.compress_ratio == 0) return;
    role.kv_source = role.layer;
    role.mode = role.compress_ratio == 4 ? LayerMode::csa : LayerMode::hca;
    if (role.mode == LayerMode::csa) role.index_key_source = role.top_k_source = role.layer;
}

}  // namespace

std::vector<LayerRole> layer_roles(const ModelConfig& config) {
    std::vector<LayerRole> roles;
    for (size_t index = 0; index < config.compress_ratios.size(); ++index) {
        LayerRole role;
        role.layer = static_cast<int>(index);
        role.compress_ratio = config.compress_ratios[index];
        role.compress_rope = role.compress_ratio > 0;
        if (role.layer >= config.num_hidden_layers)
            role.half = LayerHalf::draft;
        else if (config.family == ModelFamily::deepseek_v41)
            assign_shared_sources(config, role);
        else
            assign_own_sources(role);
        role.engram = config.engram && contains(config.engram->layer_ids, role.layer);
        role.draft_tap = config.dspark && contains(config.dspark->target_layer_ids, role.layer);
        roles.push_back(role);
    }
    return roles;
}

int first_decoder_layer(const ModelConfig& config) {
    if (config.family != ModelFamily::deepseek_v41 || config.kv_source_layer_ids.empty())
        throw UserError({.what = "this model has no encoder and decoder halves",
                         .where = "",
                         .expected = "a V4.1 model, whose last KV source starts the decoder",
                         .remedy = ""});
    return config.kv_source_layer_ids.back();
}

std::string_view name(LayerHalf half) {
    static constexpr std::string_view names[] = {"encoder", "decoder", "draft", "backbone"};
    return names[static_cast<size_t>(half)];
}

std::string_view name(LayerMode mode) {
    static constexpr std::string_view names[] = {"swa-only", "full", "reindex", "reuse", "csa", "hca"};
    return names[static_cast<size_t>(mode)];
}

std::string_view name(PoolRole role) {
    static constexpr std::string_view names[] = {"none", "builds", "restricted"};
    return names[static_cast<size_t>(role)];
}

}  // namespace touchstone
