#include "reference/block.h"

#include <algorithm>

#include "reference/engram.h"
#include "reference/rms_norm.h"

namespace touchstone {

namespace {

template <class T>
std::vector<T> kept_rows(std::span<const T> x, std::span<const int64_t> rows, int64_t width) {
    std::vector<T> kept;
    kept.reserve(rows.size() * static_cast<size_t>(width));
    for (const int64_t row : rows) {
        const auto part = x.subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
        kept.insert(kept.end(), part.begin(), part.end());
    }
    return kept;
}

/// The experts to take for each row, -1 for rows that choose for themselves; nothing where all do.
std::vector<int32_t> forced_experts(const ForcedChoices* forced, int layer, int64_t k, const CallRows& rows) {
    std::vector<int32_t> experts;
    if (forced == nullptr || !forced->experts.contains(layer)) return experts;
    const auto& by_position = forced->experts.at(layer);
    for (const int64_t position : rows.positions()) {
        const auto found = by_position.find(position);
        if (found == by_position.end())
            experts.insert(experts.end(), static_cast<size_t>(k), -1);
        else
            experts.insert(experts.end(), found->second.begin(), found->second.end());
    }
    return experts;
}

void trace_mix(const Trace& trace, const MixCoefficients& mixed, int64_t rows, int64_t n) {
    trace("mixes", {rows, (2 + n) * n}, mixed.mixes);
    trace("pre", {rows, n}, mixed.pre);
    trace("post", {rows, n}, mixed.post);
    trace("comb", {rows, n, n}, mixed.comb);
}

/// Input of a sublayer: the streams collapsed with the mix handed over, normed.
std::vector<Bf16> sublayer_input(const ModelConfig& config, const ResidualStreams& streams, int64_t rows,
                                 std::span<const Bf16> norm, const Trace& trace) {
    const int64_t width = config.hidden_size;
    std::vector<Bf16> collapsed(static_cast<size_t>(rows * width)), x(collapsed.size());
    collapse(streams.h, rows, streams.pre, collapsed);
    rms_norm(collapsed, rows, norm, static_cast<float>(config.rms_norm_eps), x);
    trace("collapsed", {rows, width}, collapsed);
    trace("x", {rows, width}, x);
    return x;
}

void apply_engram(const AttentionContext& context, const EngramWeights& weights,
                  std::span<const int64_t> row_ids, int64_t rows, std::vector<Bf16>& h, const Trace& trace) {
    const EngramShape shape = engram_shape(context.config);
    const int64_t n = shape.streams, width = shape.hidden_size;
    trace("engram.x_in", {rows, n, width}, h);
    const EngramResult made =
        engram(context.arithmetic, row_ids, rows, weights, shape, {}, std::span<Bf16>(h));
    trace("engram.row_ids", {rows, shape.columns}, row_ids);
    trace("engram.rows", {rows, shape.columns, shape.head_dim}, made.rows);
    trace("engram.kv", {rows, (n + 1) * width}, made.kv);
    trace("engram.gate", {rows, n}, made.gate);
}

std::vector<Bf16> moe(const AttentionContext& context, const LayerRole& role, const LayerWeights& weights,
                      std::span<const Bf16> x, const CallRows& rows, const Trace& trace) {
    const ModelConfig& config = context.config;
    const GateSettings settings{config.num_experts_per_tok, static_cast<float>(config.routed_scaling_factor)};
    const Routing routing =
        moe_gate(context.arithmetic, x, rows.rows(), weights.gate, settings, {},
                 forced_experts(context.forced, role.layer, config.num_experts_per_tok, rows));
    ExpertsResult result = experts(context.arithmetic, x, routing, weights.expert, weights.shared,
                                   static_cast<float>(config.swiglu_limit));
    const int64_t count = routing.rows, k = config.num_experts_per_tok;
    trace("gate_scores", {count, config.n_routed_experts}, routing.scores);
    trace("experts", {count, k}, routing.experts);
    trace("expert_weights", {count, k}, routing.weights);
    trace("shared_out", {count, config.hidden_size}, result.shared);
    trace("out", {count, config.hidden_size}, result.out);
    return std::move(result.out);
}

}  // namespace

void ResidualStreams::keep(std::span<const int64_t> rows, int64_t streams, int64_t width) {
    h = kept_rows(std::span<const Bf16>(h), rows, streams * width);
    pre = kept_rows(std::span<const float>(pre), rows, streams);
}

HyperConnectionShape hyper_connection_shape(const ModelConfig& config) {
    return {config.hc_mult, config.hidden_size, static_cast<int>(config.hc_sinkhorn_iters),
            static_cast<float>(config.hc_eps), static_cast<float>(config.rms_norm_eps)};
}

void block(const AttentionContext& context, const LayerRole& role, const LayerWeights& weights,
           const LayerRange& range, std::span<const int64_t> engram_row_ids, CallRows& rows,
           ResidualStreams& streams, PublishedSelections& published, const Trace& trace) {
    const ModelConfig& config = context.config;
    const HyperConnectionShape shape = hyper_connection_shape(config);
    const int64_t n = shape.streams, width = shape.hidden_size;

    // 1. Engram changes the streams before they are mixed; the `pre` handed over was made before it.
    if (role.engram) apply_engram(context, *weights.engram, engram_row_ids, rows.rows(), streams.h, trace);
    trace("x_in", {rows.rows(), n, width}, streams.h);
    trace("pre_in", {rows.rows(), n}, streams.pre);

    // 2. What the layer caches, for all rows of the call; then only those that are computed here remain.
    std::vector<Bf16> x = sublayer_input(config, streams, rows.rows(), weights.attn_norm, trace.at("attn."));
    const std::vector<NewWindowRows> new_rows =
        attention_caches(context, role, weights.attention, x, rows, range.window_from, trace);
    const std::vector<int64_t> kept = rows.kept_from(range.query_from);
    if (std::ssize(kept) < rows.rows()) {
        x = kept_rows(std::span<const Bf16>(x), kept, width);
        streams.keep(kept, n, width);
        published.keep(kept);
        rows = rows.from(range.query_from);
    }
    const int64_t count = rows.rows();
    if (count == 0) return commit_window_rows(role.layer, rows, new_rows);

    // 3. Attention: its mix is made from the streams that it has not changed yet.
    const MixCoefficients attn = mix(streams.h, count, weights.hc_attn, shape);
    trace_mix(trace.at("hc_attn."), attn, count, n);
    std::vector<Bf16> y(x.size());
    attention_queries(context, role, weights.attention, x, rows, new_rows, published, y, trace);
    commit_window_rows(role.layer, rows, new_rows);
    expand(y, streams.h, count, attn.post, attn.comb, streams.h);
    trace("x_mid", {count, n, width}, streams.h);

    // 4. Experts, collapsed with the attention's pre; their own pre goes to the next layer.
    MixCoefficients ffn = mix(streams.h, count, weights.hc_ffn, shape);
    trace_mix(trace.at("hc_ffn."), ffn, count, n);
    streams.pre = attn.pre;
    x = sublayer_input(config, streams, count, weights.ffn_norm, trace.at("ffn."));
    y = moe(context, role, weights, x, rows, trace.at("ffn."));
    expand(y, streams.h, count, ffn.post, ffn.comb, streams.h);
    streams.pre = std::move(ffn.pre);
    trace("x_out", {count, n, width}, streams.h);
    trace("pre_out", {count, n}, streams.pre);
}

}  // namespace touchstone
