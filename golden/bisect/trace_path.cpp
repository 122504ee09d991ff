#include "golden/bisect/trace_path.h"

#include <fmt/format.h>

#include <utility>

#include "reference/model/layer_roles.h"

namespace touchstone {

namespace {

/// The tensors of one layer, added in order.
struct LayerPath {
    const ModelConfig& config;
    const LayerRole& role;
    std::vector<TracedTensor>& path;

    void add(std::string name, std::string type, TracedRows rows, std::vector<int64_t> row_shape) const {
        path.push_back({role.layer, std::move(name), std::move(type), rows, std::move(row_shape)});
    }
};

void add_engram(const LayerPath& at) {
    const int64_t n = at.config.hc_mult, width = at.config.hidden_size;
    const EngramConfig& engram = *at.config.engram;
    at.add("engram.x_in", "BF16", TracedRows::tokens, {n, width});
    at.add("engram.row_ids", "I64", TracedRows::tokens, {engram.columns()});
    at.add("engram.rows", "BF16", TracedRows::tokens, {engram.columns(), engram.head_dim});
    at.add("engram.kv", "BF16", TracedRows::tokens, {(n + 1) * width});
    at.add("engram.gate", "F32", TracedRows::tokens, {n});
}

void add_caches(const LayerPath& at) {
    const int64_t dim = at.config.head_dim;
    if (at.role.kv_source == at.role.layer) {
        if (at.role.compress_ratio > 1) {
            at.add("attn.compressor.kv", "F32", TracedRows::tokens, {dim});
            at.add("attn.compressor.score", "F32", TracedRows::tokens, {dim});
        }
        at.add("attn.compressor.pooled", "BF16", TracedRows::groups, {dim});
        at.add("attn.compressor.latent", "BF16", TracedRows::groups, {dim});
        at.add("attn.compressed_kv", "F32", TracedRows::groups, {dim});
        at.add("attn.indexer.key", "F32", TracedRows::groups, {at.config.index_head_dim});
    }
    at.add("attn.window_kv", "F32", TracedRows::tokens, {dim});
}

void add_mix(const LayerPath& at, const std::string& prefix) {
    const int64_t n = at.config.hc_mult;
    at.add(prefix + "mixes", "F32", TracedRows::queries, {(2 + n) * n});
    at.add(prefix + "pre", "F32", TracedRows::queries, {n});
    at.add(prefix + "post", "F32", TracedRows::queries, {n});
    at.add(prefix + "comb", "F32", TracedRows::queries, {n, n});
}

void add_selection(const LayerPath& at) {
    const ModelConfig& config = at.config;
    if (at.role.top_k_source != at.role.layer) return;
    at.add("attn.indexer.query", "BF16", TracedRows::queries, {config.index_n_heads, config.index_head_dim});
    at.add("attn.indexer.weights", "BF16", TracedRows::queries, {config.index_n_heads});
    at.add("attn.indexer.scores", "F32", TracedRows::queries, {visible_width});
    if (at.role.pool == PoolRole::builds) {
        at.add("attn.candidate_pool.block_scores", "F32", TracedRows::queries, {visible_width});
        at.add("attn.candidate_pool.blocks", "I32", TracedRows::queries, {config.candidate_topk_blocks});
    }
    at.add("attn.indexer.selected", "I32", TracedRows::queries, {config.index_topk});
}

void add_attention(const LayerPath& at) {
    const ModelConfig& config = at.config;
    const int64_t heads = config.num_attention_heads, dim = config.head_dim;
    at.add("attn.qr", "BF16", TracedRows::queries, {config.q_lora_rank});
    at.add("attn.q", "BF16", TracedRows::queries, {heads, dim});
    add_selection(at);
    at.add("attn.o", "BF16", TracedRows::queries, {heads, dim});
    at.add("attn.wo_a_out", "BF16", TracedRows::queries, {config.o_groups, config.o_lora_rank});
    at.add("attn.out", "BF16", TracedRows::queries, {config.hidden_size});
}

void add_experts(const LayerPath& at) {
    const ModelConfig& config = at.config;
    at.add("ffn.collapsed", "BF16", TracedRows::queries, {config.hidden_size});
    at.add("ffn.x", "BF16", TracedRows::queries, {config.hidden_size});
    at.add("ffn.gate_scores", "F32", TracedRows::queries, {config.n_routed_experts});
    at.add("ffn.experts", "I32", TracedRows::queries, {config.num_experts_per_tok});
    at.add("ffn.expert_weights", "F32", TracedRows::queries, {config.num_experts_per_tok});
    at.add("ffn.shared_out", "BF16", TracedRows::queries, {config.hidden_size});
    at.add("ffn.out", "BF16", TracedRows::queries, {config.hidden_size});
}

void add_layer(const LayerPath& at) {
    const int64_t n = at.config.hc_mult, width = at.config.hidden_size;
    if (at.role.engram) add_engram(at);
    at.add("x_in", "BF16", TracedRows::tokens, {n, width});
    at.add("pre_in", "F32", TracedRows::tokens, {n});
    at.add("attn.collapsed", "BF16", TracedRows::tokens, {width});
    at.add("attn.x", "BF16", TracedRows::tokens, {width});
    add_caches(at);
    add_mix(at, "hc_attn.");
    add_attention(at);
    at.add("x_mid", "BF16", TracedRows::queries, {n, width});
    add_mix(at, "hc_ffn.");
    add_experts(at);
    at.add("x_out", "BF16", TracedRows::queries, {n, width});
    at.add("pre_out", "F32", TracedRows::queries, {n});
}

}  // namespace

std::string traced_name(int layer, std::string_view name) {
    return layer < 0 ? std::string(name) : fmt::format("L{:02}.{}", layer, name);
}

std::vector<TracedTensor> trace_path(const ModelConfig& config) {
    std::vector<TracedTensor> path{{-1, "tokens", "I32", TracedRows::tokens, {}}};
    for (const LayerRole& role : layer_roles(config))
        if (role.half != LayerHalf::draft) add_layer({config, role, path});
    path.push_back({-1, "final.normed", "BF16", TracedRows::last, {config.hidden_size}});
    path.push_back({-1, "logits", "F32", TracedRows::last, {config.vocab_size}});
    return path;
}

}  // namespace touchstone
