#include "reference/truth/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "reference/io/user_error.h"
#include "reference/truth/candidate_pool.h"
#include "reference/truth/hyper_connections.h"
#include "reference/truth/moe.h"
#include "reference/truth/rms_norm.h"
#include "reference/truth/sparse_attention.h"

namespace touchstone::truth {

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// A choice per row, from position first_position on.
template <class Choice>
struct ChoicesByPosition {
    int64_t first_position = 0;
    std::vector<Choice> rows;

    const Choice& at(int64_t position) const {
        return rows.at(static_cast<size_t>(position - first_position));
    }
};

std::vector<int64_t> consecutive(int64_t first, int64_t count, int64_t step = 1) {
    std::vector<int64_t> result;
    for (int64_t i = 0; i < count; ++i) result.push_back((first + i) * step);
    return result;
}

void append(Matrix& matrix, const Matrix& rows) {
    Matrix result(matrix.rows() + rows.rows(), rows.cols());
    if (matrix.rows() > 0) result.topRows(matrix.rows()) = matrix;
    result.bottomRows(rows.rows()) = rows;
    matrix = std::move(result);
}

Matrix padded(const std::vector<std::vector<int64_t>>& rows, int64_t width, double filler) {
    Matrix result = Matrix::Constant(std::ssize(rows), width, filler);
    for (size_t t = 0; t < rows.size(); ++t)
        for (size_t i = 0; i < rows[t].size(); ++i)
            result(static_cast<Eigen::Index>(t), static_cast<Eigen::Index>(i)) =
                static_cast<double>(rows[t][i]);
    return result;
}

/// Replaces what the window holds from first_position on.
void write_window(Window& window, const Matrix& rows, int64_t first_position) {
    const int64_t kept = first_position - window.first_position;
    if (window.rows.rows() == 0 || kept < 0 || kept > window.rows.rows()) {
        window = {first_position, rows};  // nothing before it, or a gap
    } else {
        window.rows.conservativeResize(kept, Eigen::NoChange);
        append(window.rows, rows);
    }
}

void keep_newest(Window& window, int64_t count) {
    const int64_t dropped = std::max<int64_t>(window.rows.rows() - count, 0);
    window.rows = window.rows.bottomRows(window.rows.rows() - dropped).eval();
    window.first_position += dropped;
}

void drop_rows_before(Stream& stream, int64_t position) {
    const int64_t rows =
        std::clamp<int64_t>(stream.first_position + stream.h.rows() - position, 0, stream.h.rows());
    stream.first_position += stream.h.rows() - rows;
    stream.h = stream.h.bottomRows(rows).eval();
    stream.pre = stream.pre.bottomRows(rows).eval();
}

}  // namespace

/// What the layers of one call share.
struct Model::Call {
    State& state;
    int64_t end;  ///< position after the last token
    const ForwardOptions& options;
    std::map<int, ChoicesByPosition<std::vector<int64_t>>> positions;  ///< selected, by index source
    ChoicesByPosition<std::vector<bool>> pool;
    Matrix taps;  ///< what the drafter reads, tap after tap

    LayerRows rows(int layer) const {
        return options.replay.empty() ? LayerRows{} : options.replay.at(static_cast<size_t>(layer));
    }
    void trace(int layer, const char* name, const Matrix& value) const {
        if (options.trace) options.trace(fmt::format("L{:02}.{}", layer, name), value);
    }
    void enter(int layer, const char* name, Stream& stream) const {
        if (options.stream_in) options.stream_in(fmt::format("L{:02}.{}", layer, name), stream);
        trace(layer, name, stream.h);
    }
};

Model::Model(const ModelConfig& config, const WeightLoader& load, EngramData engram, ModelOptions options)
    : config_(config),
      roles_(layer_roles(config)),
      weights_(std::make_shared<const ModelWeights>(load_weights(config, load))),
      engram_(std::make_shared<const EngramData>(std::move(engram))),
      main_frequencies_(rope_frequencies(config, RopeTable::main)),
      compress_frequencies_(rope_frequencies(config, RopeTable::compress)),
      options_(options) {
    std::erase_if(roles_, [](const LayerRole& role) { return role.half == LayerHalf::draft; });
}

Model Model::with(ModelOptions options) const {
    Model other = *this;
    other.options_ = options;
    return other;
}

State Model::start() const {
    State state;
    state.windows.resize(roles_.size());
    for (const LayerRole& role : roles_)
        if (role.kv_source == role.layer)
            state.sources[role.layer] = {
                0, {}, Matrix(0, config_.head_dim), Matrix(0, config_.index_head_dim)};
    return state;
}

Matrix Model::forward(State& state, const std::vector<int64_t>& tokens, int64_t first_position,
                      const ForwardOptions& options) const {
    const int64_t count = std::ssize(tokens);
    Call call{state, first_position + count, options, {}, {}, Matrix(count, 0)};

    // 1. Copies of the embedding, of which the first collapse takes the first alone.
    Stream stream{first_position, Matrix(count, config_.hc_mult * config_.hidden_size),
                  Matrix::Zero(count, config_.hc_mult)};
    stream.pre.col(0).setOnes();
    state.compressed_ids.resize(static_cast<size_t>(first_position));
    for (int64_t t = 0; t < count; ++t) {
        const int64_t token = tokens[static_cast<size_t>(t)];
        stream.h.row(t) = weights_->embed.row(token).replicate(1, config_.hc_mult);
        if (config_.engram)
            state.compressed_ids.push_back(engram_->compressed_ids.at(static_cast<size_t>(token)));
    }
    // 2. The layers.
    for (const LayerRole& role : roles_) {
        if (role.engram) run_engram(call, role.layer, stream);
        run_layer(call, role.layer, stream);
    }
    if (options.trace) options.trace("main_hidden", call.taps);

    // 3. Head, collapsed by the last FFN's pre.
    const Ledger& ledger = options_.ledger;
    const Matrix normed = ledger.bf16(
        rms_norm(ledger.bf16(collapse(stream.h, stream.pre)), weights_->norm, config_.rms_norm_eps));
    const Matrix logits = normed * weights_->head.transpose();
    if (options.trace) {
        options.trace("final.normed", normed);
        options.trace("logits", logits);
    }
    return logits;
}

/// Spec 10.2: the stream before the layer.
void Model::run_engram(const Call& call, int layer, Stream& stream) const {
    const EngramWeights& weights = *weights_->layers[static_cast<size_t>(layer)].engram;
    const std::vector<int>& layers = config_.engram->layer_ids;
    const size_t index = static_cast<size_t>(std::find(layers.begin(), layers.end(), layer) - layers.begin());
    const int64_t pad = engram_->compressed_ids.at(static_cast<size_t>(config_.engram->pad_token_id));
    const Ledger& ledger = options_.ledger;

    call.enter(layer, "engram.x_in", stream);

    // 1. Rows of the table, concatenated.
    const auto ids = engram_row_ids(call.state.compressed_ids, stream.h.rows(), config_.engram->n_heads, pad,
                                    engram_->hashes.at(index));
    const int64_t width = config_.engram->head_dim, columns = config_.engram->columns();
    Matrix rows(stream.h.rows(), columns * width);
    for (Eigen::Index t = 0; t < rows.rows(); ++t)
        for (int64_t c = 0; c < columns; ++c)
            rows.row(t).segment(c * width, width) =
                weights.table.row(ids[static_cast<size_t>(t)][static_cast<size_t>(c)]);
    // 2. A key for every copy, one value for all.
    const Matrix kv = quantized_linear(rows, weights.wkv, ledger);
    const Matrix key = kv.leftCols(config_.hc_mult * config_.hidden_size);
    const Matrix value = kv.rightCols(config_.hidden_size);
    // 3. Gate and update.
    const Matrix gate = engram_gate(stream.h, key, weights.q_weight, weights.k_weight, config_.rms_norm_eps);
    call.trace(layer, "engram.row_ids", padded(ids, columns, 0));
    call.trace(layer, "engram.rows", rows);
    call.trace(layer, "engram.kv", kv);
    call.trace(layer, "engram.gate", gate);
    stream.h = ledger.bf16(engram_update(stream.h, gate, value));
}

/// Spec 8.3.
void Model::run_layer(Call& call, int layer, Stream& stream) const {
    const LayerWeights& weights = weights_->layers[static_cast<size_t>(layer)];
    const LayerRole& role = roles_[static_cast<size_t>(layer)];
    const Ledger& ledger = options_.ledger;
    const auto mix = [&](const HyperConnectionWeights& of, const char* name) {
        HyperConnectionMix result = hyper_connection_mix(
            stream.h, of, config_.hc_mult, config_.hc_sinkhorn_iters, config_.rms_norm_eps, config_.hc_eps);
        call.trace(layer, fmt::format("{}.mixes", name).c_str(), result.mixes);
        call.trace(layer, fmt::format("{}.pre", name).c_str(), result.pre);
        call.trace(layer, fmt::format("{}.post", name).c_str(), result.post);
        call.trace(layer, fmt::format("{}.comb", name).c_str(), result.comb);
        return result;
    };
    call.enter(layer, "x_in", stream);
    call.trace(layer, "pre_in", stream.pre);
    if (role.draft_tap) {
        const Matrix tap = ledger.bf16(mean_of_copies(stream.h, config_.hc_mult));
        Matrix taps(tap.rows(), call.taps.cols() + tap.cols());
        taps.leftCols(call.taps.cols()) = call.taps.bottomRows(tap.rows());
        taps.rightCols(tap.cols()) = tap;
        call.taps = std::move(taps);
    }

    // 1. The input of attention, collapsed by the previous layer's pre; every incoming row leaves its window
    //    row and goes into the compressor.
    const Matrix collapsed = ledger.bf16(collapse(stream.h, stream.pre));
    Matrix x = ledger.bf16(rms_norm(collapsed, weights.attn_norm, config_.rms_norm_eps));
    call.trace(layer, "attn.collapsed", collapsed);
    call.trace(layer, "attn.x", x);
    const std::vector<float>& frequencies = role.compress_rope ? compress_frequencies_ : main_frequencies_;
    const Matrix kv = ledger.bf16(
        rms_norm(quantized_linear(x, weights.wkv, ledger), weights.kv_norm, config_.rms_norm_eps));
    const Matrix window_rows = ledger.q8(
        ledger.bf16(rope(kv, config_.head_dim, consecutive(stream.first_position, kv.rows()), frequencies)));
    call.trace(layer, "attn.window_kv", window_rows);
    Window& window = call.state.windows[static_cast<size_t>(layer)];
    write_window(window, window_rows, stream.first_position);
    if (role.kv_source == layer) compress(call, layer, x, stream.first_position);

    // 2. The rows that go on.
    drop_rows_before(stream, call.rows(layer).first_row);
    x = x.bottomRows(stream.h.rows()).eval();

    // 3. Attention.
    const HyperConnectionMix attn_mix = mix(weights.hc_attn, "hc_attn");
    const Matrix attention_out = attention(call, layer, x, stream);
    keep_newest(window, config_.sliding_window - 1);
    stream.h = ledger.bf16(expand(attention_out, stream.h, attn_mix.post, attn_mix.comb));
    call.trace(layer, "x_mid", stream.h);

    // 4. FFN, whose input attn_mix.pre collapses: computed before attention changed the stream.
    const HyperConnectionMix ffn_mix = mix(weights.hc_ffn, "hc_ffn");
    const Matrix ffn_collapsed = ledger.bf16(collapse(stream.h, attn_mix.pre));
    const Matrix ffn_x = ledger.bf16(rms_norm(ffn_collapsed, weights.ffn_norm, config_.rms_norm_eps));
    call.trace(layer, "ffn.collapsed", ffn_collapsed);
    call.trace(layer, "ffn.x", ffn_x);
    const Matrix ffn_out = experts(call, layer, ffn_x);
    stream.h = ledger.bf16(expand(ffn_out, stream.h, ffn_mix.post, ffn_mix.comb));
    stream.pre = ffn_mix.pre;
    call.trace(layer, "x_out", stream.h);
    call.trace(layer, "pre_out", stream.pre);
}

/// Spec 5 and 6.1: rows and keys of the groups that these tokens close.
void Model::compress(Call& call, int layer, const Matrix& x, int64_t first_position) const {
    const LayerWeights& weights = weights_->layers[static_cast<size_t>(layer)];
    const int64_t ratio = roles_[static_cast<size_t>(layer)].compress_ratio;
    const Ledger& ledger = options_.ledger;
    SourceState& source = call.state.sources.at(layer);
    const int64_t known = std::clamp<int64_t>(source.tokens - first_position, 0, x.rows());
    if (first_position + known != source.tokens)
        throw UserError({.what = fmt::format("the compressor of layer {} has seen {} tokens and the next row "
                                             "is position {}",
                                             layer, source.tokens, first_position + known),
                         .where = "the replay plan",
                         .expected = "every token's row at a layer that owns compressed rows",
                         .remedy = "drop rows at the last such layer or later"});
    const CompressorOutput output = compressor(x.bottomRows(x.rows() - known), *weights.compressor, ratio,
                                               config_.rms_norm_eps, source.pending, ledger);
    source.tokens = std::max(source.tokens, first_position + x.rows());
    call.trace(layer, "attn.compressor_kv", output.kv);
    if (ratio > 1) call.trace(layer, "attn.compressor_score", output.score);
    if (output.latent.rows() == 0) return;

    // A group stands at its first token. The key is made of the latent before it is rotated.
    const std::vector<int64_t> positions = consecutive(source.main_rows.rows(), output.latent.rows(), ratio);
    const Matrix key = ledger.bf16(rms_norm(ledger.bf16(output.latent * weights.indexer->wk.transpose()),
                                            weights.indexer->k_norm, config_.rms_norm_eps));
    const Matrix index_keys =
        ledger.q4i(ledger.bf16(rope(key, config_.index_head_dim, positions, compress_frequencies_)));
    const Matrix main_rows =
        ledger.q4m(ledger.bf16(rope(output.latent, config_.head_dim, positions, compress_frequencies_)));
    append(source.index_keys, index_keys);
    append(source.main_rows, main_rows);
    call.state.published_index_keys = layer;
    call.trace(layer, "attn.compressor_pooled", output.pooled);
    call.trace(layer, "attn.compressor_latent", output.latent);
    call.trace(layer, "attn.index_key", index_keys);
    call.trace(layer, "attn.compressed_kv", main_rows);
}

/// Spec 6.2 to 6.5: the positions that this layer selects, and the pool where it builds one.
void Model::select(Call& call, int layer, const Matrix& x, const Matrix& qr, int64_t first_position) const {
    const LayerRole& role = roles_[static_cast<size_t>(layer)];
    const IndexerWeights& weights = *weights_->layers[static_cast<size_t>(layer)].indexer;
    const Ledger& ledger = options_.ledger;
    const int64_t count = call.end / role.compress_ratio;
    auto& selected = call.positions[layer];
    selected = {first_position, std::vector<std::vector<int64_t>>(static_cast<size_t>(x.rows()))};
    if (count == 0) return;

    // 1. Scores of every position of the call.
    const Matrix query =
        ledger.q4i(ledger.bf16(rope(quantized_linear(qr, weights.wq_b, ledger), config_.index_head_dim,
                                    consecutive(first_position, x.rows()), compress_frequencies_)));
    const Matrix projected = ledger.bf16(Matrix(x * weights.weights_proj.transpose()));
    const int key_source =
        options_.index_keys == IndexKeys::own ? role.index_key_source : call.state.published_index_keys;
    IndexScores result =
        index_scores(query, projected * index_weight_scale(config_.index_n_heads, config_.index_head_dim),
                     call.state.sources.at(key_source).index_keys.topRows(count), ledger);
    call.trace(layer, "attn.index_query", query);
    call.trace(layer, "attn.index_weights", projected);
    call.trace(layer, "attn.index_dot", result.dot);

    // 2. Per query: what it may see, pool, selection.
    Matrix scores = result.scores, pool_mask(x.rows(), count);
    Matrix block_scores(x.rows(), (count + config_.candidate_block_size - 1) /
                                      std::max<int64_t>(config_.candidate_block_size, 1));
    if (role.pool == PoolRole::builds) call.pool = {first_position, {}};
    for (Eigen::Index t = 0; t < x.rows(); ++t) {
        const int64_t position = first_position + t, visible = (position + 1) / role.compress_ratio;
        scores.row(t).tail(count - visible).setConstant(-infinity);
        result.scores.row(t) = scores.row(t);
        std::vector<bool> mask;
        if (role.pool == PoolRole::builds) {
            const CandidatePool pool =
                candidate_pool(scores.row(t).transpose(), visible, config_.candidate_block_size,
                               config_.candidate_topk_blocks);
            const auto forced = call.options.forced.pool.find(layer);
            call.pool.rows.push_back(forced == call.options.forced.pool.end()
                                         ? pool.mask
                                         : forced->second.at(static_cast<size_t>(t)));
            block_scores.row(t) = pool.block_scores.transpose();
            for (int64_t j = 0; j < count; ++j) pool_mask(t, j) = pool.mask[static_cast<size_t>(j)] ? 1 : 0;
        }
        if (role.pool == PoolRole::restricted) {
            mask = call.pool.at(position);
            for (int64_t j = 0; j < count; ++j)
                if (!mask[static_cast<size_t>(j)]) scores(t, j) = -infinity;
        }
        selected.rows[static_cast<size_t>(t)] = select_positions(
            scores.row(t).transpose(), visible, config_.index_topk, mask, options_.masked_positions);
    }
    const int64_t width = std::min(config_.index_topk, count);
    call.trace(layer, "attn.index_scores", scores);
    call.trace(layer, "attn.index_selected", padded(selected.rows, width, -1));
    if (role.pool == PoolRole::restricted) call.trace(layer, "attn.index_scores_all", result.scores);
    if (role.pool == PoolRole::builds) {
        call.trace(layer, "attn.candidate_block_scores", block_scores);
        call.trace(layer, "attn.candidate_mask", pool_mask);
    }
    const auto forced = call.options.forced.positions.find(layer);
    if (forced != call.options.forced.positions.end()) selected.rows = forced->second;
}

/// Spec 4: x is bf16 [T, D], the rows of `stream`.
Matrix Model::attention(Call& call, int layer, const Matrix& x, const Stream& stream) const {
    const LayerWeights& weights = weights_->layers[static_cast<size_t>(layer)];
    const LayerRole& role = roles_[static_cast<size_t>(layer)];
    const Ledger& ledger = options_.ledger;
    const std::vector<float>& frequencies = role.compress_rope ? compress_frequencies_ : main_frequencies_;
    const std::vector<int64_t> positions = consecutive(stream.first_position, x.rows());
    const int64_t heads = config_.num_attention_heads, head_dim = config_.head_dim;

    // 1. Queries.
    const Matrix qr = ledger.bf16(
        rms_norm(quantized_linear(x, weights.wq_a, ledger), weights.q_norm, config_.rms_norm_eps));
    const Matrix q =
        ledger.bf16(rope(quantized_linear(qr, weights.wq_b, ledger), head_dim, positions, frequencies));
    call.trace(layer, "attn.qr", qr);
    call.trace(layer, "attn.q", q);
    call.trace(layer, "attn.q_h01", q.leftCols(2 * head_dim));
    if (role.top_k_source == layer) select(call, layer, x, qr, stream.first_position);

    // 2. Each over its list.
    const Window& window = call.state.windows[static_cast<size_t>(layer)];
    const int64_t window_slots = config_.sliding_window;
    const int64_t slots = window_slots + (role.top_k_source >= 0 ? config_.index_topk : 0);
    Matrix o(x.rows(), heads * head_dim);
    for (Eigen::Index t = 0; t < x.rows(); ++t) {
        const int64_t position = positions[static_cast<size_t>(t)];
        AttentionList list{Matrix::Zero(slots, head_dim),
                           std::vector<bool>(static_cast<size_t>(slots), false)};
        const auto take = [&list](int64_t slot, const auto& row) {
            list.rows.row(slot) = row;
            list.taken[static_cast<size_t>(slot)] = true;
        };
        const int64_t oldest =
            std::max({int64_t{0}, position - window_slots + 1, call.rows(layer).window_floor});
        if (oldest < window.first_position)
            throw UserError({.what = fmt::format("layer {} holds window rows from position {} on, and the "
                                                 "query at {} sees {}",
                                                 layer, window.first_position, position, oldest),
                             .where = "the replay plan",
                             .expected = "a window floor at or above the first row that was computed",
                             .remedy = ""});
        for (int64_t key = oldest; key <= position; ++key)
            take(key - position + window_slots - 1, window.rows.row(key - window.first_position));
        if (role.top_k_source >= 0) {
            int64_t slot = window_slots;
            for (const int64_t group : call.positions.at(role.top_k_source).at(position))
                take(slot++, call.state.sources.at(role.kv_source).main_rows.row(group));
        }
        const Matrix query = q.row(t).reshaped<Eigen::RowMajor>(heads, head_dim);
        o.row(t) =
            sparse_attention(query, list, weights.attn_sink, ledger).reshaped<Eigen::RowMajor>().transpose();
    }
    o = ledger.bf16(std::move(o));
    call.trace(layer, "attn.o", o);
    call.trace(layer, "attn.o_h01", o.leftCols(2 * head_dim));

    // 3. Output, group by group of heads.
    o = ledger.bf16(rope(std::move(o), head_dim, positions, frequencies, RopeDirection::inverse));
    const int64_t group_width = heads * head_dim / config_.o_groups, rank = config_.o_lora_rank;
    Matrix u(x.rows(), config_.o_groups * rank);
    for (int64_t g = 0; g < config_.o_groups; ++g)
        u.middleCols(g * rank, rank) =
            o.middleCols(g * group_width, group_width) * weights.wo_a.middleRows(g * rank, rank).transpose();
    u = ledger.bf16(std::move(u));
    const Matrix out = quantized_linear(u, weights.wo_b, ledger);
    call.trace(layer, "attn.wo_a_out", u);
    call.trace(layer, "attn.out", out);
    return out;
}

/// Spec 9: experts ascending by id, the shared one last.
Matrix Model::experts(const Call& call, int layer, const Matrix& x) const {
    const LayerWeights& weights = weights_->layers[static_cast<size_t>(layer)];
    const Ledger& ledger = options_.ledger;
    const Matrix scores = gate_scores(x, weights.gate);
    const auto forced = call.options.forced.experts.find(layer);
    const Routing routing = route(scores,
                                  forced == call.options.forced.experts.end()
                                      ? select_experts(scores, weights.gate_bias, config_.num_experts_per_tok)
                                      : forced->second,
                                  config_.routed_scaling_factor);

    Matrix sum = Matrix::Zero(x.rows(), x.cols());
    for (int64_t id = 0; id < config_.n_routed_experts; ++id) {
        std::vector<Eigen::Index> rows;
        std::vector<double> row_weights;
        for (Eigen::Index t = 0; t < x.rows(); ++t) {
            const std::vector<int64_t>& chosen = routing.experts.at(static_cast<size_t>(t));
            const auto found = std::find(chosen.begin(), chosen.end(), id);
            if (found == chosen.end()) continue;
            rows.push_back(t);
            row_weights.push_back(routing.weights(t, found - chosen.begin()));
        }
        if (rows.empty()) continue;
        const Vector weight = Eigen::Map<const Vector>(row_weights.data(), std::ssize(row_weights));
        sum(rows, Eigen::all) += expert(x(rows, Eigen::all), weights.experts[static_cast<size_t>(id)], weight,
                                        config_.swiglu_limit, ledger);
    }
    const Matrix shared =
        expert(x, weights.shared_expert, Vector::Ones(x.rows()), config_.swiglu_limit, ledger);
    const Matrix out = ledger.bf16(Matrix(sum + shared));
    call.trace(layer, "ffn.gate_scores", scores);
    call.trace(layer, "ffn.experts", padded(routing.experts, config_.num_experts_per_tok, -1));
    call.trace(layer, "ffn.expert_weights", routing.weights);
    call.trace(layer, "ffn.shared_out", shared);
    call.trace(layer, "ffn.out", out);
    return out;
}

}  // namespace touchstone::truth
