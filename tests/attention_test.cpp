#include "reference/attention.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

#include "reference/compressor.h"
#include "reference/grouped_linear.h"
#include "reference/layout/cache_layout.h"
#include "reference/model/model.h"
#include "reference/rms_norm.h"
#include "reference/sparse_attention.h"
#include "reference/text_model.h"
#include "reference/truth/rope.h"
#include "reference/truth/weights.h"
#include "tests/poison.h"
#include "tests/synthetic_weights.h"
#include "tests/tiny_model.h"
#include "tests/trace_map.h"
#include "tests/truth_twin.h"

using namespace touchstone;

namespace {

const ModelConfig& config() {
    return tiny::config();
}

const LayerRole& role_of(int layer) {
    static const std::vector<LayerRole> roles = layer_roles(config());
    return roles.at(static_cast<size_t>(layer));
}

const RopeTable& main_table() {
    static const RopeTable table = main_rope_table(config());
    return table;
}

const RopeTable& compress_table() {
    static const RopeTable table = compress_rope_table(config());
    return table;
}

/// The tiny model after `count` tokens, as a copy.
SequenceState filled(int64_t count) {
    static std::map<int64_t, SequenceState> states;
    if (const auto found = states.find(count); found != states.end()) return found->second;
    SequenceState state(config());
    const std::vector<int32_t> tokens = tiny::tokens(1, count);
    const Request request{&state, tokens};
    tiny::model(Arithmetic::exact).forward({&request, 1});
    states.emplace(count, state);
    return state;
}

std::vector<Bf16> random_rows(int64_t rows, uint64_t seed) {
    std::vector<Bf16> x(static_cast<size_t>(rows * config().hidden_size));
    for (size_t i = 0; i < x.size(); ++i) {
        float sum = 0;
        for (const uint32_t word : RandomStream{seed, 3}.block(i).words)
            sum += static_cast<float>(word >> 8) * 0x1p-23f - 1;
        x[i] = bf16_from_float(sum);
    }
    return x;
}

/// What attention of one layer gives and leaves.
struct Attended {
    std::vector<Bf16> y;
    PublishedSelections published;
    TraceMap made;
};

bool same_bits(std::span<const Bf16> a, std::span<const Bf16> b) {
    return std::ranges::equal(a, b, [](Bf16 x, Bf16 y) { return x.bits == y.bits; });
}

/// What a test may do between the layer's caches and its queries.
using Between = std::function<void(std::vector<NewWindowRows>&)>;

/// Attention of `layer` for rows `x` at position, position + 1, .. of a copy of `state`. Positions that the
/// state has already are run again: they write no compressed row.
Attended attend(int layer, SequenceState state, int64_t position, std::span<const Bf16> x,
                PublishedSelections published = {}, const Between& between = nullptr,
                const TextWeights& weights = tiny::weights(), Arithmetic arithmetic = Arithmetic::exact) {
    const AttentionContext context{config(), arithmetic, {}, nullptr, main_table(), compress_table()};
    const int64_t rows = std::ssize(x) / config().hidden_size;
    const CallRows call{{{&state, position, rows}}};
    const AttentionWeights of_layer = weights.layer(layer).attention;
    Attended result{std::vector<Bf16>(x.size()), std::move(published), {}};
    std::vector<NewWindowRows> window =
        attention_caches(context, role_of(layer), of_layer, x, call, 0, Trace(&result.made));
    if (between) between(window);
    attention_queries(context, role_of(layer), of_layer, x, call, window, result.published, result.y,
                      Trace(&result.made));
    return result;
}

/// The selections that `layer` would find published at these rows.
PublishedSelections published_for(int layer, const SequenceState& state, int64_t position,
                                  std::span<const Bf16> x) {
    PublishedSelections published;
    for (int source = 0; source < layer; ++source)
        if (role_of(source).top_k_source == source)
            published = attend(source, state, position, x, std::move(published)).published;
    return published;
}

void poison_keys(SequenceState& state, const std::function<bool(int64_t)>& which) {
    for (const auto& [layer, source] : state.sources()) poison(state.source(layer).keys, which);
}

void poison_rows(SequenceState& state, const std::function<bool(int64_t)>& which) {
    for (const auto& [layer, source] : state.sources()) poison(state.source(layer).main, which);
}

bool always(int64_t) {
    return true;
}

}  // namespace

TEST_CASE("attention: Reuse layers read no index key (every key poisoned)") {
    const std::vector<Bf16> x = random_rows(3, 1);
    SequenceState clean = filled(100), poisoned = clean;
    poison_keys(poisoned, always);
    int reuse = 0, sources = 0;
    for (int layer = 0; layer < 10; ++layer) {
        const PublishedSelections published = published_for(layer, clean, 97, x);
        const bool same =
            same_bits(attend(layer, clean, 97, x, published).y, attend(layer, poisoned, 97, x, published).y);
        CAPTURE(layer);
        CHECK(same == (role_of(layer).top_k_source != layer));
        reuse += role_of(layer).mode == LayerMode::reuse;
        sources += role_of(layer).top_k_source == layer;
    }
    CHECK(reuse == 4);
    CHECK(sources == 4);
}

TEST_CASE("attention: only KV sources own rows and keys, one of each per closed group") {
    const AttentionContext context{config(), Arithmetic::exact, {}, nullptr, main_table(), compress_table()};
    const std::vector<Bf16> x = random_rows(3, 2);
    for (int layer = 0; layer < 10; ++layer) {
        CAPTURE(layer);
        SequenceState state = filled(100);
        const SequenceState before = state;
        const CallRows call{{{&state, 100, 3}}};
        const AttentionWeights weights = tiny::weights().layer(layer).attention;
        attention_caches(context, role_of(layer), weights, x, call, 0, {});
        for (const auto& [owner, source] : state.sources()) {
            const int64_t added = owner == layer ? 103 / source.ratio - 100 / source.ratio : 0;
            CHECK(source.main.rows() == before.source(owner).main.rows() + added);
            CHECK(source.keys.rows() == source.main.rows());
            CHECK((source == before.source(owner)) == (owner != layer));
        }
        if (role_of(layer).mode == LayerMode::reindex) CHECK(weights.indexer->wk.outputs == 0);
        if (role_of(layer).mode == LayerMode::reuse) CHECK_FALSE(weights.indexer.has_value());
    }
}

TEST_CASE("attention: a Reindex layer selects and attends inside the pool alone (the rest poisoned)") {
    const int64_t position = 99;
    const SequenceState clean = filled(100);
    int64_t outside_was_better = 0;
    for (uint64_t seed = 10; seed < 16; ++seed) {
        CAPTURE(seed);
        const std::vector<Bf16> x = random_rows(1, seed);
        const PublishedSelections published = published_for(8, clean, position, x);
        const std::vector<int32_t>& blocks = published.pool.front();
        REQUIRE(std::ssize(blocks) == config().candidate_topk_blocks);
        CHECK(blocks.back() == position / config().candidate_block_size);  // the newest, always
        const auto outside = [&](int64_t row) {
            return !std::ranges::binary_search(blocks,
                                               static_cast<int32_t>(row / config().candidate_block_size));
        };
        const Attended reindex = attend(8, clean, position, x, published);
        CHECK(std::ssize(reindex.published.selected.front()) == config().index_topk);
        for (const int32_t row : reindex.published.selected.front()) CHECK_FALSE(outside(row));

        SequenceState poisoned = clean;
        poison_keys(poisoned, outside);
        poison_rows(poisoned, outside);
        const Attended same = attend(8, poisoned, position, x, published);
        CHECK(same.published.selected == reindex.published.selected);
        CHECK(same_bits(same.y, reindex.y));
        CHECK(same_bits(attend(9, poisoned, position, x, same.published).y,
                        attend(9, clean, position, x, reindex.published).y));
        // The pool's builder is not bound by it: poisoned rows reach it.
        CHECK_FALSE(same_bits(attend(6, poisoned, position, x).y, attend(6, clean, position, x).y));

        // Without the pool this layer would have taken other rows.
        const std::vector<double>& scores = reindex.made.find("attn.indexer.scores")->numbers;
        double worst_taken = std::numeric_limits<double>::infinity();
        for (const int32_t row : reindex.published.selected.front())
            worst_taken = std::min(worst_taken, scores[static_cast<size_t>(row)]);
        for (int64_t row = 0; row <= position; ++row)
            outside_was_better += outside(row) && scores[static_cast<size_t>(row)] > worst_taken;
    }
    CHECK(outside_was_better > 0);
}

TEST_CASE("attention: the builder of the pool selects outside it, too") {
    const SequenceState state = filled(100);
    int64_t outside = 0;
    for (uint64_t seed = 10; seed < 16; ++seed) {
        const Attended made = attend(6, state, 99, random_rows(1, seed));
        // Its own best rows: all scores above the worst selected one are selected.
        const std::vector<double>& scores = made.made.find("attn.indexer.scores")->numbers;
        const std::vector<int32_t>& selected = made.published.selected.front();
        double worst = std::numeric_limits<double>::infinity();
        for (const int32_t row : selected) worst = std::min(worst, scores[static_cast<size_t>(row)]);
        for (int32_t row = 0; row < 100; ++row) {
            const bool taken = std::ranges::binary_search(selected, row);
            if (scores[static_cast<size_t>(row)] > worst) CHECK(taken);
            outside += taken &&
                       !std::ranges::binary_search(made.published.pool.front(),
                                                   static_cast<int32_t>(row / config().candidate_block_size));
        }
    }
    CHECK(outside > 0);
}

TEST_CASE("attention: pool and top-k leave nothing out below their limits, and do above") {
    const int64_t pool_rows = config().candidate_topk_blocks * config().candidate_block_size;
    CHECK(pool_rows == 48);
    CHECK(config().index_topk == 40);
    const ModelConfig released = *find_model("deepseek-v4.1-flash").config();
    CHECK(released.candidate_topk_blocks * released.candidate_block_size == 16'384);
    CHECK(released.index_topk == 512);

    const SequenceState state = filled(100);
    for (const int64_t position : {0, 1, 2, 3, 38, 39, 40, 47, 48, 49, 78, 79, 80, 81, 99}) {
        const std::vector<Bf16> x = random_rows(1, 20);
        PublishedSelections published;
        for (const int layer : config().index_source_layer_ids) {
            CAPTURE(position);
            CAPTURE(layer);
            published = attend(layer, state, position, x, std::move(published)).published;
            const int64_t visible = visible_groups(position, role_of(layer).compress_ratio);
            const std::vector<int32_t>& selected = published.selected.front();
            CHECK(std::ssize(selected) == std::min(visible, config().index_topk));
            if (!selected.empty()) CHECK(selected.back() < visible);
            CHECK(std::ranges::is_sorted(selected));
            if (layer < 6) continue;
            const int64_t blocks =
                (visible + config().candidate_block_size - 1) / config().candidate_block_size;
            CHECK(std::ssize(published.pool.front()) == std::min(blocks, config().candidate_topk_blocks));
            CHECK(published.pool.front().back() == blocks - 1);
        }
    }
}

TEST_CASE(
    "attention: rows that are not visible are not read (later rows and the rest of the pages poisoned)") {
    const SequenceState clean = filled(100);
    for (const int64_t position : {1, 2, 60, 61, 98}) {
        const std::vector<Bf16> x = random_rows(1, 30);
        SequenceState poisoned = clean;
        for (const auto& [layer, source] : clean.sources()) {
            const int64_t visible = visible_groups(position, source.ratio);
            const auto later = [&](int64_t row) { return row >= visible; };
            poison(poisoned.source(layer).keys, later);
            poison(poisoned.source(layer).main, later);
        }
        for (int layer = 2; layer < 10; ++layer) {
            CAPTURE(position);
            CAPTURE(layer);
            const Attended a = attend(layer, clean, position, x, published_for(layer, clean, position, x));
            const Attended b =
                attend(layer, poisoned, position, x, published_for(layer, poisoned, position, x));
            CHECK(a.published.selected == b.published.selected);
            CHECK(same_bits(a.y, b.y));
        }
        // The last visible row is read where it is selected: poison reaches the output.
        SequenceState last = clean;
        poison_rows(last, [&](int64_t row) { return row == position; });
        const PublishedSelections published = published_for(7, clean, position, x);
        if (std::ranges::binary_search(published.selected.front(), static_cast<int32_t>(position)))
            CHECK_FALSE(same_bits(attend(7, last, position, x, published).y,
                                  attend(7, clean, position, x, published).y));
    }
}

TEST_CASE("attention: a call's own new rows are visible to its queries, each up to its own position") {
    // Rows 100 .. 103 in one call, and each alone behind the others: the same lists and the same bits.
    const std::vector<Bf16> x = random_rows(4, 40);
    for (const int layer : {2, 4, 6}) {
        CAPTURE(layer);
        const Attended together = attend(layer, filled(100), 100, x);
        SequenceState state = filled(100);
        const AttentionContext context{config(), Arithmetic::exact, {},
                                       nullptr,  main_table(),      compress_table()};
        const AttentionWeights weights = tiny::weights().layer(layer).attention;
        for (int64_t row = 0; row < 4; ++row) {
            const auto part = std::span(x).subspan(static_cast<size_t>(row * config().hidden_size),
                                                   static_cast<size_t>(config().hidden_size));
            const CallRows call{{{&state, 100 + row, 1}}};
            state.begin_call();
            PublishedSelections published;
            std::vector<Bf16> y(part.size());
            const auto window = attention_caches(context, role_of(layer), weights, part, call, 0, {});
            attention_queries(context, role_of(layer), weights, part, call, window, published, y, {});
            commit_window_rows(layer, call, window);
            const std::vector<int32_t> id{0};
            state.advance(1, id);
            CHECK(published.selected.front() == together.published.selected[static_cast<size_t>(row)]);
            CHECK(same_bits(
                y,
                std::span(together.y).subspan(static_cast<size_t>(row * config().hidden_size), part.size())));
            CHECK(state.source(layer).main.rows() ==
                  visible_groups(100 + row, role_of(layer).compress_ratio));
        }
    }
}

TEST_CASE("attention: the window is W rows (a huge key at p - W does not matter, at p - W + 1 it does)") {
    const int64_t w = config().sliding_window, dim = config().head_dim;
    const auto huge = [&](NewWindowRows& rows, int64_t position) {
        const auto at = rows.rows.begin() + (position - rows.first_position) * dim;
        std::fill(at, at + dim, bf16_from_float(1e4f));
        rows.packed = KvCache(fp8_record(dim), Quantizer::q8);
        rows.packed.append(rows.rows);
    };
    const auto last_row = [](const Attended& made) {
        return std::vector<Bf16>(made.y.end() - config().hidden_size, made.y.end());
    };
    for (const int layer : {0, 3}) {
        CAPTURE(layer);
        // In the call itself: W + 1 rows, the last at position W.
        const std::vector<Bf16> x = random_rows(w + 1, 50);
        PublishedSelections none;
        none.selected.assign(static_cast<size_t>(w + 1), {});
        const auto plain = last_row(attend(layer, SequenceState(config()), 0, x, none));
        for (const int64_t position : {int64_t{0}, int64_t{1}}) {
            const auto changed = last_row(attend(layer, SequenceState(config()), 0, x, none,
                                                 [&](auto& rows) { huge(rows.front(), position); }));
            CHECK(same_bits(plain, changed) == (position == 0));
        }
        // From the ring, whose spare slots still hold the row at p - W.
        const std::vector<Bf16> one = random_rows(1, 51);
        const int64_t p = 100;
        const auto with_huge = [&](int64_t position) {
            SequenceState state = filled(p);
            std::vector<Bf16> rows;
            std::vector<float> row(static_cast<size_t>(dim));
            for (int64_t q = p - w; q < p; ++q) {
                state.window(layer).read(q, row);
                for (const float value : row) rows.push_back(bf16_from_float(q == position ? 1e4f : value));
            }
            state.window(layer).clear(p - w);
            state.window(layer).append(p - w, rows);
            PublishedSelections nothing;
            nothing.selected.assign(1, {});
            return attend(layer, state, p, one, nothing).y;
        };
        CHECK(same_bits(with_huge(-1), with_huge(p - w)));
        CHECK_FALSE(same_bits(with_huge(-1), with_huge(p - w + 1)));
        CHECK_FALSE(same_bits(with_huge(-1), with_huge(p - 1)));
    }
}

TEST_CASE(
    "attention: lists stand window first, then selected rows ascending (numerics contract, section 7)") {
    // Blocks of 64 entries round P to their running maximum: the order shows in low bits. The list is made
    // here from the caches.
    const SequenceState state = filled(100);
    const std::vector<Bf16> x = random_rows(1, 60);
    const int64_t p = 99, w = config().sliding_window, dim = config().head_dim,
                  heads = config().num_attention_heads;
    const int layer = 7;
    const PublishedSelections published = published_for(layer, state, p, x);
    std::vector<float> own(static_cast<size_t>(dim));
    const auto take_own = [&](auto& rows) {
        rows.front().packed.read(0, own);
        rows.front().rows.clear();
    };
    const Attended made = attend(layer, state, p, x, published, take_own);
    std::vector<float> rows(static_cast<size_t>(w * dim));
    std::vector<uint8_t> valid(static_cast<size_t>(w), 0);
    std::ranges::copy(own, rows.end() - dim);  // the ring ends behind p: rows run again stand alone
    valid.back() = 1;
    for (const int32_t selected : published.selected.front()) {
        std::vector<float> row(static_cast<size_t>(dim));
        state.source(6).main.read(selected, row);
        rows.insert(rows.end(), row.begin(), row.end());
        valid.push_back(1);
    }
    std::vector<Bf16> q, o(static_cast<size_t>(heads * dim));
    for (const double value : made.made.find("attn.q")->numbers)
        q.push_back(bf16_from_float(static_cast<float>(value)));
    const auto sink = tiny::weights().layer(layer).attention.sink;
    sparse_attention(Arithmetic::exact, q, heads, dim, rows, valid, sink,
                     1 / std::sqrt(static_cast<float>(dim)), std::span<Bf16>(o));
    int64_t wrong = 0;
    for (size_t i = 0; i < o.size(); ++i)
        wrong += static_cast<double>(to_float(o[i])) != made.made.find("attn.o")->numbers[i];
    CHECK(wrong == 0);
}

TEST_CASE("attention: every tensor of a layer turns by its own table (positions 1, 5, 200, 300)") {
    // Layer 0 has ratio 0 and the main table; 3 and 7 the compress table, window rows and queries included.
    const int64_t dim = config().head_dim, heads = config().num_attention_heads;
    const float eps = static_cast<float>(config().rms_norm_eps);
    for (const int layer : {0, 3, 7}) {
        const AttentionWeights weights = tiny::weights().layer(layer).attention;
        for (const int64_t position : {1, 5, 200, 300}) {
            CAPTURE(layer);
            CAPTURE(position);
            const std::vector<Bf16> x = random_rows(1, 70);
            PublishedSelections none;
            none.selected.assign(1, {});
            std::vector<double> window;
            const Attended made = attend(layer, SequenceState(config()), position, x, none, [&](auto& rows) {
                for (const Bf16 value : rows.front().rows)
                    window.push_back(static_cast<double>(to_float(value)));
            });
            // Unrotated, from the layers themselves.
            std::vector<Bf16> kv(static_cast<size_t>(dim)), latent(kv.size());
            linear_fp8(Arithmetic::exact, SumOperator::wkv, x, 1, weights.wkv, std::span<Bf16>(kv));
            rms_norm(kv, 1, weights.kv_norm, eps, std::span<Bf16>(latent));
            std::vector<Bf16> qr, q(static_cast<size_t>(heads * dim));
            for (const double value : made.made.find("attn.qr")->numbers)
                qr.push_back(bf16_from_float(static_cast<float>(value)));
            linear_fp8(Arithmetic::exact, SumOperator::wq_b, qr, 1, weights.wq_b, std::span<Bf16>(q));

            const auto turned = [&](const std::vector<Bf16>& from, truth::RopeTable table) {
                truth::Matrix matrix(1, std::ssize(from));
                for (size_t i = 0; i < from.size(); ++i)
                    matrix(0, static_cast<Eigen::Index>(i)) = static_cast<double>(to_float(from[i]));
                return truth::rope(matrix, dim, {position}, truth::rope_frequencies(config(), table));
            };
            const auto worst = [](const truth::Matrix& expected, const std::vector<double>& ours) {
                double result = 0;
                for (Eigen::Index i = 0; i < expected.size(); ++i)
                    result = std::max(result, std::abs(expected(0, i) - ours[static_cast<size_t>(i)]) /
                                                  std::max(std::abs(expected(0, i)), 0.125));
                return result;
            };
            const auto own = layer == 0 ? truth::RopeTable::main : truth::RopeTable::compress;
            const auto other = layer == 0 ? truth::RopeTable::compress : truth::RopeTable::main;
            CHECK(worst(turned(latent, own), window) <= 0x1p-7);
            CHECK(worst(turned(latent, other), window) > 0x1p-4);
            CHECK(worst(turned(q, own), made.made.find("attn.q")->numbers) <= 0x1p-7);
            CHECK(worst(turned(q, other), made.made.find("attn.q")->numbers) > 0x1p-4);
        }
    }
}

TEST_CASE("attention: compressed row j turns at position j r, its key is made before (truth)") {
    const SequenceState state = filled(100);
    const int64_t dim = config().head_dim;
    const AttentionContext context{config(), Arithmetic::exact, {}, nullptr, main_table(), compress_table()};
    for (const int layer : {2, 6}) {
        CAPTURE(layer);
        const int64_t ratio = role_of(layer).compress_ratio, count = 4 / ratio;
        SequenceState grown = state;
        TraceMap made;
        const std::vector<Bf16> x = random_rows(4, 80);
        attention_caches(context, role_of(layer), tiny::weights().layer(layer).attention, x,
                         {{{&grown, 100, 4}}}, 0, Trace(&made));
        const auto& latent = made.find("attn.compressor.latent")->numbers;
        truth::Matrix matrix(count, dim);
        std::copy(latent.begin(), latent.end(), matrix.data());
        std::vector<int64_t> positions;
        for (int64_t j = 0; j < count; ++j) positions.push_back((100 / ratio + j) * ratio);
        const truth::Matrix expected =
            truth::Ledger::released().q4m(truth::Ledger::released().bf16(truth::rope(
                matrix, dim, positions, truth::rope_frequencies(config(), truth::RopeTable::compress))));
        int64_t wrong = 0;
        for (Eigen::Index i = 0; i < expected.size(); ++i)
            wrong += expected.data()[i] != made.find("attn.compressed_kv")->numbers[static_cast<size_t>(i)];
        CHECK(wrong == 0);
        CHECK(grown.source(layer).main.rows() == 100 / ratio + count);
    }
}

TEST_CASE("attention: one visible key and no sink give the unrotated value (B76)") {
    const int64_t dim = config().head_dim, heads = config().num_attention_heads;
    const std::vector<float> sinks(static_cast<size_t>(heads), -std::numeric_limits<float>::infinity());
    const EditedWeights weights(tiny::weights(), [&](int, LayerWeights& of) { of.attention.sink = sinks; });
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper})
        for (const int layer : {0, 3}) {
            CAPTURE(layer);
            const int64_t position = 5;
            const std::vector<Bf16> x = random_rows(1, 90);
            PublishedSelections none;
            none.selected.assign(1, {});
            std::vector<float> key(static_cast<size_t>(dim));
            const Attended made = attend(
                layer, SequenceState(config()), position, x, none,
                [&](auto& rows) { rows.front().packed.read(0, key); }, weights, arithmetic);
            // Each head's output is the stored row.
            const auto& o = made.made.find("attn.o")->numbers;
            int64_t wrong = 0;
            for (size_t i = 0; i < o.size(); ++i)
                wrong += o[i] != static_cast<double>(key[i % static_cast<size_t>(dim)]);
            CHECK(wrong == 0);
            // Turned back it is the value before RoPE, but for Q8 (a step of 2^-3) and three bf16 roundings.
            const AttentionWeights of_layer = weights.layer(layer).attention;
            std::vector<Bf16> kv(static_cast<size_t>(dim)), latent(kv.size()), unrotated;
            linear_fp8(arithmetic, SumOperator::wkv, x, 1, of_layer.wkv, std::span<Bf16>(kv));
            rms_norm(kv, 1, of_layer.kv_norm, static_cast<float>(config().rms_norm_eps),
                     std::span<Bf16>(latent));
            for (int64_t head = 0; head < heads; ++head)
                unrotated.insert(unrotated.end(), latent.begin(), latent.end());
            std::vector<Bf16> u(static_cast<size_t>(config().o_groups * config().o_lora_rank));
            grouped_linear(arithmetic, unrotated, 1, config().o_groups, of_layer.wo_a, u);
            const auto& ours = made.made.find("attn.wo_a_out")->numbers;
            double error = 0, size = 0;
            for (size_t i = 0; i < u.size(); ++i) {
                error += std::pow(ours[i] - static_cast<double>(to_float(u[i])), 2);
                size += std::pow(static_cast<double>(to_float(u[i])), 2);
            }
            CHECK(std::sqrt(error / size) < 0.06);
        }
}

TEST_CASE("attention: no norm of single query heads (one head of wq_b doubled doubles that head, B81)") {
    const int64_t dim = config().head_dim, heads = config().num_attention_heads, doubled = 3;
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper}) {
        std::vector<E8m0> scales;
        const EditedWeights weights(tiny::weights(), [&](int, LayerWeights& of) {
            Fp8Weight& wq_b = of.attention.wq_b;
            scales.assign(wq_b.scales.begin(), wq_b.scales.end());
            const int64_t per_row = wq_b.inputs / 32;
            for (int64_t tile = doubled * dim / 32; tile < (doubled + 1) * dim / 32; ++tile)
                for (int64_t k = 0; k < per_row; ++k) ++scales[static_cast<size_t>(tile * per_row + k)].bits;
            wq_b.scales = scales;
        });
        const std::vector<Bf16> x = random_rows(2, 91);
        const SequenceState state = filled(100);
        const auto plain = attend(0, state, 100, x, {}, nullptr, tiny::weights(), arithmetic);
        const auto changed = attend(0, state, 100, x, {}, nullptr, weights, arithmetic);
        const auto &a = plain.made.find("attn.q")->numbers, &b = changed.made.find("attn.q")->numbers;
        int64_t wrong = 0;
        for (size_t i = 0; i < a.size(); ++i) {
            const int64_t head = static_cast<int64_t>(i) / dim % heads;
            wrong += b[i] != (head == doubled ? 2 : 1) * a[i];
        }
        CHECK(wrong == 0);
        CHECK_FALSE(same_bits(plain.y, changed.y));
    }
}

namespace {

/// A prefill of `prompt` tokens and `steps` decode steps with both models, truth following layer by layer.
struct Followed {
    TruthTwin twin;
    std::vector<float> logits;
    std::vector<std::vector<double>> selected;  ///< of the watched layer, call after call
};

Followed follow(const ModelConfig& config, const TextWeights& weights, const truth::WeightLoader& load,
                ReleasedBehaviour released, int64_t prompt, int64_t steps, const std::string& watched) {
    truth::ModelOptions options;
    if (released.stale_index_keys) options.index_keys = truth::IndexKeys::released_pointer;
    if (released.masked_rows_attended) options.masked_positions = truth::MaskedPositions::released_attended;
    const TextModel model(config, weights, Arithmetic::exact, released);
    Followed result{TruthTwin(config, truth::Model(config, load, truth_engram(config), options)), {}, {}};
    SequenceState state(config);
    const std::vector<int32_t> tokens = tiny::tokens(2, prompt + steps);
    for (int64_t first = 0; first < prompt + steps;) {
        const int64_t count = first == 0 ? prompt : 1;
        const auto part = std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
        TraceMap made;
        const Request request{&state, part};
        result.logits = model.forward({&request, 1}, {.trace = Trace(&made)}).front();
        result.twin.follow(made, part, first);
        result.selected.push_back(made.find(watched)->numbers);
        first += count;
    }
    return result;
}

std::string list_of(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += name + "; ";
    return text;
}

}  // namespace

TEST_CASE(
    "attention: where the pool holds fewer rows than index_topk, masked rows are attended only on demand") {
    ModelConfig small = config();
    small.candidate_topk_blocks = 8;  // 32 rows, of which a list of 40 is to be filled
    const auto load = truth::dequantising_loader(tiny::checkpoint());
    const Followed by_default = follow(small, tiny::weights(), load, {}, 90, 3, "L08.attn.indexer.selected");
    const Followed released = follow(small, tiny::weights(), load, {.masked_rows_attended = true}, 90, 3,
                                     "L08.attn.indexer.selected");
    for (const Followed* run : {&by_default, &released}) {
        INFO(list_of(run->twin.choices_that_differ()));
        CHECK(run->twin.choices_that_differ().empty());
        CHECK(run->twin.choices_compared() > 1000);
    }
    // 32 rows of 90, then 40: the lower indices outside the pool fill the list.
    const auto taken = [](const std::vector<double>& row) {
        return std::ranges::count_if(row, [](double x) { return x >= 0; });
    };
    CHECK(taken(by_default.selected.back()) <= 32);
    CHECK(taken(released.selected.back()) == 40);
    for (const double row : by_default.selected.back())
        if (row >= 0) CHECK(std::ranges::count(released.selected.back(), row) == 1);
    CHECK(by_default.logits != released.logits);
}

TEST_CASE("attention: stale index keys follow the released pointer in every index source (truth)") {
    // A Reindex layer in the encoder: its source has ratio 2 and publishes no key at even positions.
    ModelConfig reindexed = config();
    reindexed.index_source_layer_ids = {2, 3, 4, 6, 8};
    const SyntheticModel model(reindexed, 3);
    const auto load = truth::dequantising_loader(model.tensors());
    const Followed own = follow(reindexed, model.weights(), load, {}, 97, 5, "L03.attn.indexer.selected");
    const Followed stale = follow(reindexed, model.weights(), load, {.stale_index_keys = true}, 97, 5,
                                  "L03.attn.indexer.selected");
    for (const Followed* run : {&own, &stale}) {
        INFO(list_of(run->twin.choices_that_differ()));
        CHECK(run->twin.choices_that_differ().empty());
    }
    CHECK(own.selected.front() == stale.selected.front());  // a prefill publishes every source's keys
    CHECK(own.selected[2] != stale.selected[2]);            // position 98
}
