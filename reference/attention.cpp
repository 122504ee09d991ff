#include "reference/attention.h"

#include <algorithm>
#include <limits>

#include "reference/candidate_pool.h"
#include "reference/grouped_linear.h"
#include "reference/layout/kv_record.h"
#include "reference/numerics/elementary.h"
#include "reference/rms_norm.h"
#include "reference/sparse_attention.h"
#include "reference/top_k.h"

namespace touchstone {

namespace {

/// Rows [first, first + n) of a [.., width] tensor.
template <class T>
std::span<T> row_span(std::span<T> x, int64_t first, int64_t n, int64_t width) {
    return x.subspan(static_cast<size_t>(first * width), static_cast<size_t>(n * width));
}

std::vector<Bf16> normed(std::span<const Bf16> x, int64_t rows, std::span<const Bf16> weight, float eps) {
    std::vector<Bf16> y(x.size());
    rms_norm(x, rows, weight, eps, y);
    return y;
}

std::vector<Bf16> fp8_product(const AttentionContext& context, SumOperator op, std::span<const Bf16> x,
                              int64_t rows, const Fp8Weight& weight) {
    std::vector<Bf16> y(static_cast<size_t>(rows * weight.outputs));
    linear_fp8(context.arithmetic, op, x, rows, weight, std::span<Bf16>(y));
    return y;
}

const RopeTable& table_of(const AttentionContext& context, const LayerRole& role) {
    return role.compress_rope ? context.compress_table : context.main_table;
}

float norm_eps(const AttentionContext& context) {
    return static_cast<float>(context.config.rms_norm_eps);
}

std::vector<int64_t> consecutive(int64_t first, int64_t n, int64_t step = 1) {
    std::vector<int64_t> positions(static_cast<size_t>(n));
    for (size_t i = 0; i < positions.size(); ++i) positions[i] = first + static_cast<int64_t>(i) * step;
    return positions;
}

/// All rows of a cache from `first` on, dequantised, for traces.
std::vector<float> stored_rows(const KvCache& cache, int64_t first) {
    const int64_t width = cache.page().record.channels;
    std::vector<float> rows(static_cast<size_t>((cache.rows() - first) * width));
    for (int64_t row = first; row < cache.rows(); ++row)
        cache.read(row, row_span(std::span(rows), row - first, 1, width));
    return rows;
}

/// What a source adds for one run: `x` holds its rows at first_position .., all of them new.
void append_compressed(const AttentionContext& context, const LayerRole& role,
                       const AttentionWeights& weights, std::span<const Bf16> x, int64_t first_position,
                       SequenceState& state, const Trace& trace) {
    const int64_t dim = context.config.head_dim, ratio = role.compress_ratio;
    const int64_t rows = std::ssize(x) / context.config.hidden_size;
    SourceState& source = state.source(role.layer);
    const Latents latents = compress(context.arithmetic, x, rows, first_position, ratio, *weights.compressor,
                                     norm_eps(context), source.open);
    if (ratio > 1) state.remember(role.layer, latents.kv, latents.score);
    const int64_t groups = std::ssize(latents.latents) / dim, stored = source.main.rows();

    // The key comes from the latent as it is here; rotating it first is the classic mistake.
    const IndexerShape shape{context.config.index_n_heads, context.config.index_head_dim};
    source.keys.append(index_keys(context.arithmetic, latents.latents, groups, latents.first_group, ratio,
                                  *weights.indexer, shape, context.compress_table, norm_eps(context)));
    std::vector<Bf16> rotated = latents.latents;
    rope(context.compress_table, RopeDirection::forward,
         consecutive(latents.first_group * ratio, groups, ratio), 1, dim, rotated);
    source.main.append(rotated);

    if (!trace.active()) return;
    if (ratio > 1) {
        trace("attn.compressor.kv", {rows, dim}, latents.kv);
        trace("attn.compressor.score", {rows, dim}, latents.score);
    }
    trace("attn.compressor.pooled", {groups, dim}, latents.pooled);
    trace("attn.compressor.latent", {groups, dim}, latents.latents);
    trace("attn.compressed_kv", {groups, dim}, stored_rows(source.main, stored));
    trace("attn.indexer.key", {groups, shape.head_dim}, stored_rows(source.keys, stored));
}

/// The compressed rows that the query at `position` attends, ascending; its scores go to `scores`.
std::vector<int32_t> select_rows(const AttentionContext& context, const LayerRole& role, const RowRun& run,
                                 int64_t position, const IndexQuery& query, std::vector<int32_t>& pool,
                                 std::vector<float>& scores, std::vector<float>& block_scores) {
    const ModelConfig& config = context.config;
    const int64_t visible = visible_groups(position, role.compress_ratio);
    const bool stale = context.released.stale_index_keys && run.rows == 1 && position > 0 &&
                       (position + 1) % role.compress_ratio != 0;
    const int key_source = stale ? config.kv_source_layer_ids.back() : role.index_key_source;
    const KvCache& keys = run.state->source(key_source).keys;
    scores.resize(static_cast<size_t>(visible));
    index_scores(query, {config.index_n_heads, config.index_head_dim}, keys.page(), keys.pages(), visible,
                 scores);

    const CandidatePoolShape shape{config.candidate_block_size, config.candidate_topk_blocks};
    if (role.pool == PoolRole::builds) {
        CandidatePool built = candidate_pool(scores, shape);
        pool = std::move(built.blocks);
        block_scores = std::move(built.block_scores);
    }
    std::vector<uint8_t> mask;
    if (role.pool == PoolRole::restricted) {
        mask.resize(static_cast<size_t>(visible));
        pool_mask(pool, shape, mask);
    }
    std::vector<float> masked;
    if (context.released.masked_rows_attended && !mask.empty()) {
        masked = scores;
        for (size_t i = 0; i < mask.size(); ++i)
            if (mask[i] == 0) masked[i] = -std::numeric_limits<float>::infinity();
        mask.clear();
    }
    std::vector<int32_t> selected(static_cast<size_t>(std::min(config.index_topk, visible)));
    top_k(masked.empty() ? scores : masked, 1, visible, std::ssize(selected), {{}, mask},
          TopKOutput::ascending, selected);
    std::erase(selected, -1);
    return selected;
}

/// Per-row results of an index source, for traces.
struct SelectionTrace {
    std::vector<std::vector<float>> scores, block_scores;
};

/// Rows of different widths as one tensor, short ones filled up.
template <class T>
std::vector<T> padded(const std::vector<std::vector<T>>& rows, size_t width, T filler) {
    std::vector<T> tensor(rows.size() * width, filler);
    for (size_t i = 0; i < rows.size(); ++i)
        std::ranges::copy(rows[i], tensor.begin() + static_cast<int64_t>(i * width));
    return tensor;
}

template <class T>
size_t widest(const std::vector<std::vector<T>>& rows) {
    size_t width = 0;
    for (const std::vector<T>& row : rows) width = std::max(width, row.size());
    return width;
}

void trace_selection(const Trace& trace, const AttentionContext& context, const LayerRole& role,
                     const IndexQueries& queries, const PublishedSelections& published,
                     const SelectionTrace& made) {
    const int64_t rows = std::ssize(published.selected);
    const int64_t heads = context.config.index_n_heads, dim = context.config.index_head_dim;
    const auto add = [&](const char* name, const auto& ragged, size_t width, auto filler) {
        const auto tensor = padded(ragged, width, filler);
        trace(name, {rows, static_cast<int64_t>(width)}, std::span(tensor));
    };
    trace("attn.indexer.query", {rows, heads, dim}, queries.queries);
    trace("attn.indexer.weights", {rows, heads}, queries.projections);
    add("attn.indexer.scores", made.scores, widest(made.scores), -std::numeric_limits<float>::infinity());
    add("attn.indexer.selected", published.selected, static_cast<size_t>(context.config.index_topk), -1);
    if (role.pool != PoolRole::builds) return;
    add("attn.candidate_pool.block_scores", made.block_scores, widest(made.block_scores),
        -std::numeric_limits<float>::infinity());
    add("attn.candidate_pool.blocks", published.pool,
        static_cast<size_t>(context.config.candidate_topk_blocks), -1);
}

/// Takes the selections of a layer from outside where there are any.
void force_selections(const ForcedChoices* forced, int layer, const std::vector<int64_t>& positions,
                      PublishedSelections& published) {
    if (forced == nullptr || !forced->selected.contains(layer)) return;
    const auto& by_position = forced->selected.at(layer);
    for (size_t row = 0; row < positions.size(); ++row) {
        const auto found = by_position.find(positions[row]);
        if (found != by_position.end()) published.selected[row] = found->second;
    }
}

/// Queries, scores and selections of an index source, for every row of the call.
void publish_selections(const AttentionContext& context, const LayerRole& role,
                        const AttentionWeights& weights, std::span<const Bf16> qr, std::span<const Bf16> x,
                        const CallRows& rows, const std::vector<int64_t>& positions,
                        PublishedSelections& published, const Trace& trace) {
    const ModelConfig& config = context.config;
    const IndexerShape shape{config.index_n_heads, config.index_head_dim};
    const IndexQueries queries =
        index_queries(context.arithmetic, qr, x, positions, *weights.indexer, shape, context.compress_table);
    const int64_t count = std::ssize(positions);
    published.selected.assign(static_cast<size_t>(count), {});
    published.pool.resize(static_cast<size_t>(count));
    SelectionTrace made;
    if (trace.active()) made = {std::vector<std::vector<float>>(static_cast<size_t>(count)), {}};
    made.block_scores.resize(made.scores.size());

    std::vector<const RowRun*> run_of;
    for (const RowRun& run : rows.runs) run_of.insert(run_of.end(), static_cast<size_t>(run.rows), &run);
#pragma omp parallel for schedule(dynamic) if (count > 1)
    for (int64_t i = 0; i < count; ++i) {
        const size_t row = static_cast<size_t>(i);
        const IndexQuery query{row_span(std::span(queries.codes), i, 1, shape.heads * shape.head_dim / 2),
                               row_span(std::span(queries.scales), i, 1, shape.heads * shape.head_dim / 32),
                               row_span(std::span(queries.weights), i, 1, shape.heads)};
        std::vector<float> scores, block_scores;
        published.selected[row] = select_rows(context, role, *run_of[row], positions[row], query,
                                              published.pool[row], scores, block_scores);
        if (!trace.active()) continue;
        made.scores[row] = std::move(scores);
        made.block_scores[row] = std::move(block_scores);
    }
    force_selections(context.forced, role.layer, positions, published);
    if (trace.active()) trace_selection(trace, context, role, queries, published, made);
}

/// The rows of a query's list: slot i < W is position p - W + 1 + i, then the selected rows.
struct AttentionList {
    std::vector<float> rows;
    std::vector<uint8_t> valid;
};

AttentionList attention_list(const WindowCache& window, const NewWindowRows& new_rows, int64_t position,
                             const KvCache* main, std::span<const int32_t> selected, int64_t dim) {
    const int64_t w = window.window_tokens(), slots = w + std::ssize(selected);
    AttentionList list{std::vector<float>(static_cast<size_t>(slots * dim)),
                       std::vector<uint8_t>(static_cast<size_t>(slots), 0)};
    // A gap between the ring and the call's rows means that the ring's are not neighbours of them.
    const int64_t held_from =
        window.end() == new_rows.first_position ? window.first() : new_rows.first_position;
    for (int64_t i = 0; i < w; ++i) {
        const int64_t key_position = position - w + 1 + i;
        if (key_position < held_from) continue;
        const std::span<float> out = row_span(std::span(list.rows), i, 1, dim);
        if (key_position < new_rows.first_position)
            window.read(key_position, out);
        else
            new_rows.packed.read(key_position - new_rows.first_position, out);
        list.valid[static_cast<size_t>(i)] = 1;
    }
    for (int64_t i = 0; i < std::ssize(selected); ++i) {
        main->read(selected[static_cast<size_t>(i)], row_span(std::span(list.rows), w + i, 1, dim));
        list.valid[static_cast<size_t>(w + i)] = 1;
    }
    return list;
}

/// o [rows, H, Dh] of every query, before the inverse rotation.
std::vector<Bf16> attend(const AttentionContext& context, const LayerRole& role, std::span<const float> sink,
                         std::span<const Bf16> q, const CallRows& rows,
                         std::span<const NewWindowRows> new_rows, const PublishedSelections& published) {
    const int64_t heads = context.config.num_attention_heads, dim = context.config.head_dim;
    const float scale = elementary::reciprocal_sqrt(static_cast<float>(dim));
    struct Query {
        size_t run;
        int64_t position;
    };
    std::vector<Query> queries;
    for (size_t run = 0; run < rows.runs.size(); ++run)
        for (int64_t i = 0; i < rows.runs[run].rows; ++i)
            queries.push_back({run, rows.runs[run].first_position + i});

    std::vector<Bf16> o(q.size());
    const int64_t count = std::ssize(queries);
#pragma omp parallel for schedule(dynamic) if (count > 1)
    for (int64_t i = 0; i < count; ++i) {
        const Query query = queries[static_cast<size_t>(i)];
        const SequenceState& state = *rows.runs[query.run].state;
        const bool compressed = role.compress_ratio > 0;
        const AttentionList list =
            attention_list(state.window(role.layer), new_rows[query.run], query.position,
                           compressed ? &state.source(role.kv_source).main : nullptr,
                           compressed ? std::span<const int32_t>(published.selected[static_cast<size_t>(i)])
                                      : std::span<const int32_t>(),
                           dim);
        sparse_attention(context.arithmetic, row_span(q, i, 1, heads * dim), heads, dim, list.rows,
                         list.valid, sink, scale, row_span(std::span(o), i, 1, heads * dim));
    }
    return o;
}

}  // namespace

int64_t CallRows::rows() const {
    int64_t count = 0;
    for (const RowRun& run : runs) count += run.rows;
    return count;
}

std::vector<int64_t> CallRows::positions() const {
    std::vector<int64_t> result;
    for (const RowRun& run : runs)
        for (int64_t i = 0; i < run.rows; ++i) result.push_back(run.first_position + i);
    return result;
}

CallRows CallRows::from(int64_t position) const {
    CallRows kept;
    for (const RowRun& run : runs) {
        const int64_t dropped = std::clamp<int64_t>(position - run.first_position, 0, run.rows);
        kept.runs.push_back({run.state, run.first_position + dropped, run.rows - dropped});
    }
    return kept;
}

std::vector<int64_t> CallRows::kept_from(int64_t position) const {
    std::vector<int64_t> kept;
    const std::vector<int64_t> all = positions();
    for (size_t row = 0; row < all.size(); ++row)
        if (all[row] >= position) kept.push_back(static_cast<int64_t>(row));
    return kept;
}

void PublishedSelections::keep(std::span<const int64_t> rows) {
    const auto narrow = [&](std::vector<std::vector<int32_t>>& lists) {
        std::vector<std::vector<int32_t>> kept;
        if (!lists.empty())
            for (const int64_t row : rows) kept.push_back(std::move(lists[static_cast<size_t>(row)]));
        lists = std::move(kept);
    };
    narrow(selected);
    narrow(pool);
}

std::vector<NewWindowRows> attention_caches(const AttentionContext& context, const LayerRole& role,
                                            const AttentionWeights& weights, std::span<const Bf16> x,
                                            const CallRows& rows, int64_t window_from, const Trace& trace) {
    const ModelConfig& config = context.config;
    const int64_t dim = config.head_dim, width = config.hidden_size;
    std::vector<NewWindowRows> result;
    int64_t row = 0;
    for (const RowRun& run : rows.runs) {
        const std::span<const Bf16> run_x = row_span(x, row, run.rows, width);
        row += run.rows;
        if (role.kv_source == role.layer) {
            const int64_t replayed =
                std::clamp<int64_t>(run.state->tokens() - run.first_position, 0, run.rows);
            if (replayed < run.rows)
                append_compressed(context, role, weights,
                                  run_x.subspan(static_cast<size_t>(replayed * width)),
                                  run.first_position + replayed, *run.state, trace);
        }
        const int64_t skipped = std::clamp<int64_t>(window_from - run.first_position, 0, run.rows);
        const int64_t n = run.rows - skipped, first = run.first_position + skipped;
        std::vector<Bf16> kv =
            normed(fp8_product(context, SumOperator::wkv, run_x.subspan(static_cast<size_t>(skipped * width)),
                               n, weights.wkv),
                   n, weights.kv_norm, norm_eps(context));
        rope(table_of(context, role), RopeDirection::forward, consecutive(first, n), 1, dim, kv);
        KvCache packed(fp8_record(dim), Quantizer::q8);
        packed.append(kv);
        if (trace.active()) trace("attn.window_kv", {n, dim}, stored_rows(packed, 0));
        result.push_back({first, std::move(kv), std::move(packed)});
    }
    return result;
}

void attention_queries(const AttentionContext& context, const LayerRole& role,
                       const AttentionWeights& weights, std::span<const Bf16> x, const CallRows& rows,
                       std::span<const NewWindowRows> new_rows, PublishedSelections& published,
                       std::span<Bf16> y, const Trace& trace) {
    const ModelConfig& config = context.config;
    const int64_t heads = config.num_attention_heads, dim = config.head_dim;
    const std::vector<int64_t> positions = rows.positions();
    const int64_t count = std::ssize(positions);

    // 1. Queries; qr feeds the indexer too.
    const std::vector<Bf16> qr = normed(fp8_product(context, SumOperator::wq_a, x, count, weights.wq_a),
                                        count, weights.q_norm, norm_eps(context));
    std::vector<Bf16> q = fp8_product(context, SumOperator::wq_b, qr, count, weights.wq_b);
    rope(table_of(context, role), RopeDirection::forward, positions, heads, dim, q);

    // 2. Which compressed rows: chosen here, or published by the layer's index source.
    if (role.top_k_source == role.layer)
        publish_selections(context, role, weights, qr, x, rows, positions, published, trace);

    // 3. Attention, turned back by each query's position: keys are values, and values were rotated.
    std::vector<Bf16> o = attend(context, role, weights.sink, q, rows, new_rows, published);
    trace("attn.qr", {count, config.q_lora_rank}, qr);
    trace("attn.q", {count, heads, dim}, q);
    trace("attn.o", {count, heads, dim}, o);
    rope(table_of(context, role), RopeDirection::inverse, positions, heads, dim, o);

    // 4. Output projections.
    std::vector<Bf16> u(static_cast<size_t>(count * weights.wo_a.outputs));
    grouped_linear(context.arithmetic, o, count, config.o_groups, weights.wo_a, u);
    linear_fp8(context.arithmetic, SumOperator::wo_b, u, count, weights.wo_b, y);
    trace("attn.wo_a_out", {count, config.o_groups, config.o_lora_rank}, u);
    trace("attn.out", {count, config.hidden_size}, std::span<const Bf16>(y));
}

void commit_window_rows(int layer, const CallRows& rows, std::span<const NewWindowRows> new_rows) {
    for (size_t run = 0; run < rows.runs.size(); ++run)
        if (!new_rows[run].rows.empty())
            rows.runs[run].state->window(layer).append(new_rows[run].first_position, new_rows[run].rows);
}

}  // namespace touchstone
