#include "reference/layout/cache_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "reference/io/user_error.h"
#include "reference/model/layer_roles.h"

namespace touchstone {

namespace {

using RecordOf = KvRecord (*)(const Model&);

/// Widths of a V4-family model, or of a baseline's latent.
struct Widths {
    int64_t head_dim;  ///< RoPE channels included
    int64_t rope_head_dim;
    int64_t index_head_dim;
};

Widths widths(const Model& model) {
    if (const ModelConfig* config = model.config())
        return {config->head_dim, config->qk_rope_head_dim, config->index_head_dim};
    const BaselineModel& baseline = *model.baseline();
    return {baseline.kv_lora_rank + baseline.rope_head_dim, baseline.rope_head_dim, baseline.index_head_dim};
}

KvRecord no_record(const Model&) {
    return {};
}
KvRecord fp8_row(const Model& model) {
    return fp8_record(widths(model).head_dim);
}
KvRecord fp4_row(const Model& model) {
    return fp4_main_record(widths(model).head_dim);
}
KvRecord v4_row(const Model& model) {
    return v4_record(widths(model).head_dim, widths(model).rope_head_dim);
}
KvRecord bf16_row(const Model& model) {
    return bf16_record(widths(model).head_dim);
}
KvRecord v32_row(const Model& model) {
    return v32_record(widths(model).head_dim - widths(model).rope_head_dim, widths(model).rope_head_dim);
}
KvRecord fp4_key(const Model& model) {
    return fp4_index_key_record(widths(model).index_head_dim);
}
KvRecord fp8_key(const Model& model) {
    return fp8_index_key_record(widths(model).index_head_dim);
}
KvRecord int8_key(const Model& model) {
    return int8_index_key_record(widths(model).index_head_dim);
}
KvRecord bf16_key(const Model& model) {
    return bf16_record(widths(model).index_head_dim);
}
/// Keys and values of all KV heads of one layer, one row.
int64_t gqa_channels(const Model& model) {
    return 2 * model.baseline()->kv_heads * model.baseline()->head_dim;
}
KvRecord gqa_bf16_row(const Model& model) {
    return bf16_record(gqa_channels(model));
}
KvRecord gqa_fp8_row(const Model& model) {
    return fp8_unscaled_record(gqa_channels(model));
}

struct FormatRow {
    const char* name;
    RecordOf main;
    RecordOf index_key;
    RecordOf window;
};

// Formats of each kind of model; the first is the default. V4.1: spec/memory 2.5; V4: 2.3; the others: 2.6.
const std::vector<FormatRow> v41_formats = {
    {"fp4", fp4_row, fp4_key, fp8_row},    {"fp8-fp4index", fp8_row, fp4_key, fp8_row},
    {"fp8", fp8_row, fp8_key, fp8_row},    {"v4-fp4index", v4_row, fp4_key, v4_row},
    {"v4", v4_row, fp8_key, v4_row},       {"bf16-int8index", bf16_row, int8_key, bf16_row},
    {"bf16", bf16_row, fp8_key, bf16_row}, {"bf16-bf16index", bf16_row, bf16_key, bf16_row},
};
const std::vector<FormatRow> v4_formats = {
    {"v4-fp4index", v4_row, fp4_key, v4_row},         {"v4", v4_row, fp8_key, v4_row},
    {"bf16-fp4index", bf16_row, fp4_key, bf16_row},   {"bf16", bf16_row, fp8_key, bf16_row},
    {"bf16-bf16index", bf16_row, bf16_key, bf16_row},
};
const std::vector<FormatRow> mla_formats = {
    {"bf16", bf16_row, no_record, no_record},
    {"fp8", v32_row, no_record, no_record},
};
const std::vector<FormatRow> mla_sparse_formats = {
    {"fp8", v32_row, fp8_key, no_record},
    {"bf16", bf16_row, fp8_key, no_record},
    {"bf16-noindex", bf16_row, no_record, no_record},
};
const std::vector<FormatRow> gqa_formats = {
    {"bf16", gqa_bf16_row, no_record, gqa_bf16_row},
    {"fp8", gqa_fp8_row, no_record, gqa_fp8_row},
};

const std::vector<FormatRow>& formats_of(const Model& model) {
    if (const ModelConfig* config = model.config())
        return config->family == ModelFamily::deepseek_v41 ? v41_formats : v4_formats;
    switch (model.baseline()->attention) {
        case BaselineAttention::gqa: return gqa_formats;
        case BaselineAttention::mla: return mla_formats;
        case BaselineAttention::mla_sparse: break;
    }
    return mla_sparse_formats;
}

/// Adds `layer` to the group of this kind and ratio, opening it at the first layer.
void add_layer(std::vector<CacheGroup>& groups, CacheKind kind, int layer, const KvRecord& record,
               int64_t ratio, int64_t window_tokens) {
    for (CacheGroup& group : groups)
        if (group.kind == kind && group.compress_ratio == ratio) return group.layers.push_back(layer);
    groups.push_back({kind, {layer}, record, ratio, window_tokens});
}

int64_t power_of_two_at_least(int64_t value) {
    int64_t power = 1;
    while (power < value) power *= 2;
    return power;
}

/// Rows that the compressor of a ratio-`ratio` layer keeps in fp32: per row a value and a score per channel,
/// twice that where groups overlap (V4's ratio 4), plus V4's separate index compressor
/// (spec/memory 3.1, 3.2).
CompressorState compressor_state(const ModelConfig& config, int ratio, bool overlap) {
    const int64_t group_span = overlap ? 2 : 1;
    CompressorState state;
    state.compress_ratio = ratio;
    state.floats_per_row = 2 * group_span * config.head_dim;
    if (overlap) state.floats_per_row += 2 * group_span * config.index_head_dim;
    state.minimal_rows = group_span * ratio - 1;
    state.full_group_rows = group_span * ratio;
    state.ring_rows = state.full_group_rows;
    if (config.family == ModelFamily::deepseek_v41) {
        const int64_t speculative_rows = config.dspark ? config.dspark->block_size : 0;
        state.ring_rows = std::max<int64_t>(8, power_of_two_at_least(speculative_rows + 2));
    }
    return state;
}

void add_compressor_layer(std::vector<CompressorState>& states, const ModelConfig& config,
                          const LayerRole& role) {
    if (role.compress_ratio < 2) return;  // ratio 1 closes a group with every token: no open rows
    for (CompressorState& state : states)
        if (state.compress_ratio == role.compress_ratio) return state.layers.push_back(role.layer);
    states.push_back(compressor_state(config, role.compress_ratio, role.mode == LayerMode::csa));
    states.back().layers.push_back(role.layer);
}

CacheLayout v4_family_layout(const ModelConfig& config, const StorageFormat& format) {
    CacheLayout layout;
    layout.format = format;
    std::vector<CacheGroup> main_kv, index_keys, windows;
    for (const LayerRole& role : layer_roles(config)) {
        const CacheKind window = role.half == LayerHalf::draft ? CacheKind::draft_window : CacheKind::window;
        add_layer(windows, window, role.layer, format.window, 1, config.sliding_window);
        if (role.kv_source != role.layer) continue;
        add_layer(main_kv, CacheKind::main_kv, role.layer, format.main, role.compress_ratio, 0);
        add_compressor_layer(layout.compressor_states, config, role);
        if (role.index_key_source == role.layer)
            add_layer(index_keys, CacheKind::index_key, role.layer, format.index_key, role.compress_ratio, 0);
    }
    for (const std::vector<CacheGroup>* part : {&main_kv, &index_keys, &windows})
        layout.groups.insert(layout.groups.end(), part->begin(), part->end());
    if (config.engram) layout.engram_history_tokens = config.engram->max_ngram_size - 1;
    return layout;
}

CacheLayout baseline_layout(const BaselineModel& baseline, const StorageFormat& format) {
    CacheLayout layout;
    layout.format = format;
    std::vector<int> growing, windowed;
    for (int layer = 0; layer < baseline.cached_layers; ++layer) growing.push_back(layer);
    for (int layer = 0; layer < baseline.windowed_layers; ++layer)
        windowed.push_back(static_cast<int>(baseline.cached_layers) + layer);
    layout.groups.push_back({CacheKind::main_kv, growing, format.main, 1, 0});
    if (format.index_key.record_bytes() > 0)
        layout.groups.push_back({CacheKind::index_key, growing, format.index_key, 1, 0});
    if (!windowed.empty())
        layout.groups.push_back({CacheKind::window, windowed, format.window, 1, baseline.window_tokens});
    layout.not_counted = baseline.not_counted;
    return layout;
}

}  // namespace

std::vector<std::string> storage_format_names(const Model& model) {
    std::vector<std::string> names;
    for (const FormatRow& row : formats_of(model)) names.push_back(row.name);
    return names;
}

StorageFormat storage_format(const Model& model, std::string_view name) {
    const std::vector<FormatRow>& rows = formats_of(model);
    const auto row =
        name.empty() ? rows.begin() : std::find_if(rows.begin(), rows.end(), [&](const FormatRow& candidate) {
            return name == candidate.name;
        });
    if (row == rows.end()) {
        const std::vector<std::string> names = storage_format_names(model);
        const std::string near = did_you_mean(name, names);
        throw UserError({fmt::format("unknown storage format \"{}\"", name),
                         fmt::format("--format, model {}", model.name),
                         fmt::format("{}", fmt::join(names, ", ")),
                         near.empty() ? "" : fmt::format("did you mean \"{}\"?", near)});
    }
    StorageFormat format{row->name, row->main(model), row->index_key(model), row->window(model)};
    const std::string where = fmt::format("format {} of model {}", row->name, model.name);
    for (const KvRecord* record : {&format.main, &format.index_key, &format.window}) record->validate(where);
    return format;
}

CacheLayout cache_layout(const Model& model, const StorageFormat& format) {
    if (const ModelConfig* config = model.config()) return v4_family_layout(*config, format);
    return baseline_layout(*model.baseline(), format);
}

}  // namespace touchstone
