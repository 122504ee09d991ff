// The whole text path in double on a small random model: what must hold whatever the weights are.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/model/layer_roles.h"
#include "reference/model/model.h"
#include "reference/model/weights.h"
#include "reference/numerics/fill.h"
#include "reference/truth/hyper_connections.h"
#include "reference/truth/indexer.h"
#include "reference/truth/model.h"
#include "reference/truth/rms_norm.h"
#include "reference/truth/rope.h"

using namespace touchstone;
using truth::Ledger;
using truth::Matrix;

namespace {

/// The tiny preset with its layers, and everything else smaller still: window 8, top-k 6 of a pool of 3
/// blocks of 4.
ModelConfig small_config() {
    ModelConfig config = *find_model("tiny").config();
    config.vocab_size = 64;
    config.hidden_size = 64;
    config.num_attention_heads = 2;
    config.head_dim = 64;
    config.q_lora_rank = 64;
    config.o_lora_rank = 32;
    config.moe_intermediate_size = 32;
    config.n_routed_experts = 4;
    config.sliding_window = 8;
    config.index_n_heads = 2;
    config.index_head_dim = 32;
    config.index_topk = 6;
    config.candidate_topk_blocks = 3;
    config.engram->num_embeddings = {112, 112};
    config.engram->compressed_vocab_size = 40;
    config.dspark.reset();
    config.compress_ratios.resize(10);
    return config;
}

/// Random weights of the official shapes, already dequantised: N(0, 1 / inputs) for matrices, near 1 for
/// norms.
truth::WeightLoader random_weights(const ModelConfig& config) {
    std::map<std::string, TensorSpec> specs;
    for_each_tensor(config, [&](const TensorSpec& spec) { specs[spec.name] = spec; });
    return [specs](const std::string& name) {
        const TensorSpec& spec = specs.at(name);
        const int64_t inputs = spec.shape.back() * (spec.type == TensorType::i8_e2m1 ? 2 : 1);
        const int64_t outputs = spec.shape.size() == 1 ? 1 : spec.shape.front();
        const uint64_t stream = static_cast<uint64_t>(std::distance(specs.begin(), specs.find(name)));
        const bool table = name.find("embed") != std::string::npos;
        const double spread = spec.shape.size() == 1 ? 0.25 : table ? 1.0 : 1 / std::sqrt(double(inputs));
        const double center = name.find("norm") != std::string::npos || name.ends_with("_scale") ||
                                      name.ends_with("q_weight") || name.ends_with("k_weight")
                                  ? 1
                                  : 0;
        Matrix weight(outputs, inputs);
        for (Eigen::Index i = 0; i < weight.size(); ++i)
            weight.data()[i] = center + spread * static_cast<double>(filled<float>(
                                                     Filler::normal, {.seed = 5, .stream = stream},
                                                     static_cast<uint64_t>(i)));
        return weight;
    };
}

truth::EngramData engram_data() {
    truth::EngramData data;
    for (int64_t id = 0; id < 64; ++id) data.compressed_ids.push_back(id % 40);
    for (const int64_t first : {1, 2})
        data.hashes.push_back(
            {{3 + first, 50021, 700001, 9000011}, {11, 13, 17, 19, 23, 29}, {0, 11, 24, 41, 60, 83}});
    return data;
}

const truth::Model& small_model() {
    static const truth::Model model(small_config(), random_weights(small_config()), engram_data(),
                                    {.ledger = Ledger::none()});
    return model;
}

std::vector<int64_t> tokens(int64_t first, int64_t count) {
    std::vector<int64_t> result;
    for (int64_t p = first; p < first + count; ++p)
        result.push_back(RandomStream{.seed = 9}.word(static_cast<uint64_t>(p)) % 64);
    return result;
}

using Trace = std::map<std::string, Matrix>;

truth::ForwardOptions tracing(Trace& trace, truth::ForwardOptions options = {}) {
    options.trace = [&trace](const std::string& name, const Matrix& value) { trace[name] = value; };
    return options;
}

double largest_difference(const Matrix& a, const Matrix& b) {
    REQUIRE(a.rows() == b.rows());
    REQUIRE(a.cols() == b.cols());
    return a.size() == 0 ? 0 : (a - b).cwiseAbs().maxCoeff();
}

}  // namespace

TEST_CASE("model: prefill, any chunks and single steps give the same rows, and a copied state is a fork") {
    for (const Ledger& ledger : {Ledger::none(), Ledger::released()}) {
        const truth::Model model = small_model().with({.ledger = ledger});
        truth::State whole = model.start();
        const Matrix expected = model.forward(whole, tokens(0, 40), 0);
        CHECK(expected.cwiseAbs().maxCoeff() > 0.1);
        for (const std::vector<int64_t>& chunks :
             {std::vector<int64_t>{1, 1, 1, 7, 8, 9, 13}, {39, 1}, std::vector<int64_t>(40, 1), {23, 17}}) {
            truth::State state = model.start();
            int64_t first = 0;
            for (const int64_t count : chunks) {
                const Matrix logits = model.forward(state, tokens(first, count), first);
                INFO("ledger rounds: ", ledger.rounds(), ", chunk of ", count, " at ", first);
                CHECK(largest_difference(logits, expected.middleRows(first, count)) <= 1e-9);
                first += count;
            }
        }
        truth::State fork = whole;
        const Matrix next = model.forward(whole, tokens(40, 3), 40);
        model.forward(fork, {1, 2}, 40);
        CHECK(largest_difference(model.forward(whole, tokens(43, 1), 43), [&] {
                  truth::State again = model.start();
                  return Matrix(model.forward(again, tokens(0, 44), 0).bottomRows(1));
              }()) <= 1e-9);
        CHECK(next.rows() == 3);
    }
}

TEST_CASE("model: a query's window is its own and the W - 1 positions before") {
    const int64_t window = small_config().sliding_window;
    std::vector<int64_t> changed = tokens(0, 20);
    changed[0] = (changed[0] + 1) % 64;
    // Layer 0 has no other way to look back than its window.
    const auto layer_0 = [&](const std::vector<int64_t>& ids, int64_t prefill) {
        truth::State state = small_model().start();
        Trace trace;
        Matrix o(20, 2 * small_config().head_dim);
        for (int64_t first = 0; first < 20; first += first == 0 ? prefill : 1) {
            const int64_t count = first == 0 ? prefill : 1;
            small_model().forward(state, {ids.begin() + first, ids.begin() + first + count}, first,
                                  tracing(trace));
            o.middleRows(first, count) = trace.at("L00.attn.o_h01");
        }
        return o;
    };
    for (const int64_t prefill : {20, 1, 7, 8, 9}) {
        const Matrix difference = layer_0(tokens(0, 20), prefill) - layer_0(changed, prefill);
        for (int64_t p = 0; p < 20; ++p) {
            INFO("prefill of ", prefill, ", position ", p);
            CHECK((difference.row(p).cwiseAbs().maxCoeff() > 1e-6) == (p < window));
        }
    }
}

TEST_CASE("model: layers without compressed positions turn by the main table, all others by the other one") {
    const ModelConfig config = small_config();
    const truth::ModelWeights weights = truth::load_weights(config, random_weights(config));
    truth::State state = small_model().start();
    Trace trace;
    small_model().forward(state, tokens(0, 16), 0, tracing(trace));
    std::vector<int64_t> positions;
    for (int64_t p = 0; p < 16; ++p) positions.push_back(p);
    for (int layer = 0; layer < 10; ++layer) {
        const std::string prefix = fmt::format("L{:02}.attn.", layer);
        const Matrix q =
            trace.at(prefix + "qr") * weights.layers[static_cast<size_t>(layer)].wq_b.transpose();
        const auto turned = [&](truth::RopeTable table) {
            return truth::rope(q, config.head_dim, positions, truth::rope_frequencies(config, table));
        };
        const double main = largest_difference(turned(truth::RopeTable::main), trace.at(prefix + "q_h01")),
                     compress =
                         largest_difference(turned(truth::RopeTable::compress), trace.at(prefix + "q_h01"));
        INFO("layer ", layer);
        CHECK((layer < 2 ? main : compress) <= 1e-12);
        CHECK((layer < 2 ? compress : main) > 1e-3);
    }
}

TEST_CASE("model: a replay that keeps every row the last one depends on is exact, one row less is not") {
    const int64_t count = 40, window = small_config().sliding_window;
    truth::State state = small_model().start();
    const Matrix expected = small_model().forward(state, tokens(0, count), 0).bottomRows(1);

    // Decoder layers 6 .. 9: each needs W - 1 rows more than the one above (spec 7.7).
    truth::ForwardOptions halo;
    halo.replay.resize(10);
    for (int64_t layer = 6; layer < 10; ++layer)
        halo.replay[static_cast<size_t>(layer)].first_row = count - 1 - (9 - layer) * (window - 1);
    state = small_model().start();
    const Matrix exact = small_model().forward(state, tokens(0, count), 0, halo);
    CHECK(largest_difference(exact, expected) <= 1e-9);

    truth::ForwardOptions one_row_less = halo;
    for (int64_t layer = 6; layer < 9; ++layer) ++one_row_less.replay[static_cast<size_t>(layer)].first_row;
    state = small_model().start();
    CHECK_THROWS_AS(small_model().forward(state, tokens(0, count), 0, one_row_less), UserError);
    for (int64_t layer = 6; layer < 10; ++layer)
        one_row_less.replay[static_cast<size_t>(layer)].window_floor =
            one_row_less.replay[static_cast<size_t>(layer - (layer > 6))].first_row;
    state = small_model().start();
    const Matrix clipped = small_model().forward(state, tokens(0, count), 0, one_row_less);
    CHECK(largest_difference(clipped, expected) > 1e-6);

    // Bounded: the last W rows, their windows cut at the first of them.
    truth::ForwardOptions bounded;
    bounded.replay.resize(10);
    for (size_t layer = 6; layer < 10; ++layer) bounded.replay[layer] = {count - window, count - window};
    state = small_model().start();
    const Matrix last_rows = small_model().forward(state, tokens(0, count), 0, bounded);
    CHECK(last_rows.rows() == window);
    CHECK(largest_difference(last_rows.bottomRows(1), expected) > 1e-6);
    // The next token finds the windows it needs.
    CHECK(small_model().forward(state, tokens(count, 1), count).rows() == 1);
}

TEST_CASE("model: rows may not be dropped below a layer that owns compressed rows") {
    truth::ForwardOptions options;
    options.replay.resize(10);
    options.replay[3] = {10, 10};
    for (size_t layer = 4; layer < 10; ++layer) options.replay[layer] = {10, 10};
    truth::State state = small_model().start();
    CHECK_THROWS_AS(small_model().forward(state, tokens(0, 20), 0, options), UserError);
}

TEST_CASE("model: recomputed rows replace windows and leave compressed rows and index keys alone") {
    const int64_t window = small_config().sliding_window;
    truth::State state = small_model().start();
    small_model().forward(state, tokens(0, 21), 0);  // odd: a pair is open
    const truth::State before = state;
    truth::ForwardOptions replay;
    replay.replay.assign(10, {0, 21 - window});
    small_model().forward(state, tokens(21 - window, window), 21 - window, replay);
    for (const auto& [layer, source] : before.sources) {
        CHECK(source.tokens == state.sources.at(layer).tokens);
        CHECK(largest_difference(source.main_rows, state.sources.at(layer).main_rows) == 0);
        CHECK(largest_difference(source.index_keys, state.sources.at(layer).index_keys) == 0);
        CHECK(largest_difference(source.pending.kv, state.sources.at(layer).pending.kv) == 0);
    }
    CHECK(largest_difference(before.windows[0].rows, state.windows[0].rows) <= 1e-12);
    CHECK(largest_difference(before.windows[9].rows, state.windows[9].rows) > 1e-6);
    CHECK(before.compressed_ids == state.compressed_ids);
}

TEST_CASE("model: forced choices are followed; forcing a run's own changes nothing") {
    const truth::Model& model = small_model();
    truth::State state = model.start();
    Trace own;
    const Matrix expected = model.forward(state, tokens(0, 30), 0, tracing(own));

    truth::ForwardOptions same;
    for (int layer = 0; layer < 10; ++layer) {
        const Matrix& experts = own.at(fmt::format("L{:02}.ffn.experts", layer));
        for (Eigen::Index t = 0; t < 30; ++t)
            same.forced.experts[layer].push_back({int64_t(experts(t, 0)), int64_t(experts(t, 1))});
    }
    for (const int layer : {2, 4, 6, 8}) {
        const Matrix& selected = own.at(fmt::format("L{:02}.attn.index_selected", layer));
        for (Eigen::Index t = 0; t < 30; ++t) {
            std::vector<int64_t>& positions = same.forced.positions[layer].emplace_back();
            for (Eigen::Index i = 0; i < selected.cols(); ++i)
                if (selected(t, i) >= 0) positions.push_back(static_cast<int64_t>(selected(t, i)));
        }
    }
    const Matrix& pool = own.at("L06.attn.candidate_mask");
    for (Eigen::Index t = 0; t < 30; ++t) {
        std::vector<bool>& mask = same.forced.pool[6].emplace_back();
        for (Eigen::Index j = 0; j < 30; ++j) mask.push_back(pool(t, j) != 0);
    }
    state = model.start();
    CHECK(largest_difference(model.forward(state, tokens(0, 30), 0, same), expected) == 0);

    const auto differs = [&](const truth::ForwardOptions& options, const std::string& from,
                             const std::string& equal_until) {
        truth::State fresh = model.start();
        Trace trace;
        model.forward(fresh, tokens(0, 30), 0, tracing(trace, options));
        INFO(from);
        CHECK(largest_difference(trace.at(equal_until), own.at(equal_until)) == 0);
        CHECK(largest_difference(trace.at(from), own.at(from)) > 1e-6);
    };
    truth::ForwardOptions other = same;
    other.forced.experts[3].assign(30, {3, 0});
    differs(other, "L03.ffn.out", "L03.ffn.x");
    other = same;
    for (int64_t t = 3; t < 30; ++t) other.forced.positions[4][static_cast<size_t>(t)] = {0};
    differs(other, "L05.attn.o_h01", "L03.ffn.out");
    other = {};  // layer 8 chooses in the pool that is given
    for (std::vector<bool>& mask : same.forced.pool[6]) {
        mask.assign(30, false);
        mask[0] = true;
    }
    other.forced.pool = same.forced.pool;
    differs(other, "L08.attn.index_selected", "L07.ffn.out");
}

TEST_CASE("model: the released pointer scores even positions against the last source's keys") {
    const ModelConfig config = small_config();
    const truth::Model own = small_model(),
                       released = small_model().with(
                           {.ledger = Ledger::none(), .index_keys = truth::IndexKeys::released_pointer});
    truth::State state = own.start();
    own.forward(state, tokens(0, 30), 0);
    const double scale = truth::index_weight_scale(config.index_n_heads, config.index_head_dim);
    for (const int64_t p : {30, 31}) {
        truth::State own_state = state, released_state = state;
        Trace own_trace, trace;
        own.forward(own_state, tokens(p, 1), p, tracing(own_trace));
        released.forward(released_state, tokens(p, 1), p, tracing(trace));
        const auto scores = [&](int source) {
            return truth::index_scores(trace.at("L02.attn.index_query"),
                                       trace.at("L02.attn.index_weights") * scale,
                                       source == 6 ? state.sources.at(6).index_keys.topRows((p + 1) / 2)
                                                   : own_state.sources.at(source).index_keys,
                                       Ledger::none())
                .scores;
        };
        INFO("position ", p);
        CHECK(largest_difference(trace.at("L02.attn.index_scores"), scores(p % 2 == 0 ? 6 : 2)) <= 1e-12);
        CHECK(largest_difference(own_trace.at("L02.attn.index_scores"), scores(2)) <= 1e-12);
        CHECK(largest_difference(scores(6), scores(2)) > 1e-6);
        state = own_state;
    }
}

TEST_CASE("model: a pool smaller than top-k leaves slots empty, or filled as the released code does") {
    ModelConfig config = small_config();
    config.candidate_topk_blocks = 1;  // 4 positions at most, the newest block
    const truth::Model model(config, random_weights(config), engram_data(), {.ledger = Ledger::none()});
    for (const auto masked :
         {truth::MaskedPositions::never_attended, truth::MaskedPositions::released_attended}) {
        truth::State state = model.start();
        Trace trace;
        model.with({.ledger = Ledger::none(), .masked_positions = masked})
            .forward(state, tokens(0, 22), 0, tracing(trace));
        const Matrix& selected = trace.at("L08.attn.index_selected");
        const std::vector<double> last(selected.row(21).data(), selected.row(21).data() + 6);
        if (masked == truth::MaskedPositions::never_attended)
            CHECK(last == std::vector<double>{20, 21, -1, -1, -1, -1});
        else
            CHECK(last == std::vector<double>{0, 1, 2, 3, 20, 21});
    }
}

TEST_CASE("model: after Engram the last ids of earlier calls are in the rows of the next") {
    truth::State state = small_model().start();
    Trace whole, step;
    small_model().forward(state, tokens(0, 6), 0, tracing(whole));
    state = small_model().start();
    for (int64_t p = 0; p < 6; ++p) {
        small_model().forward(state, tokens(p, 1), p, tracing(step));
        for (const char* name : {"L01.engram.row_ids", "L04.engram.row_ids"})
            CHECK(largest_difference(step.at(name), whole.at(name).row(p)) == 0);
    }
}

TEST_CASE("model: pre collapses one sublayer late") {
    truth::State state = small_model().start();
    Trace trace;
    small_model().forward(state, tokens(0, 12), 0, tracing(trace));
    for (int layer = 0; layer < 10; ++layer) {
        const auto at = [&](int of_layer, const char* name) -> const Matrix& {
            return trace.at(fmt::format("L{:02}.{}", of_layer, name));
        };
        INFO("layer ", layer);
        CHECK(largest_difference(at(layer, "ffn.collapsed"),
                                 truth::collapse(at(layer, "x_mid"), at(layer, "hc_attn.pre"))) <= 1e-12);
        if (layer > 0)
            CHECK(largest_difference(at(layer, "attn.collapsed"),
                                     truth::collapse(at(layer, "x_in"), at(layer - 1, "hc_ffn.pre"))) <=
                  1e-12);
    }
    // The first takes the embedding as it is.
    CHECK(largest_difference(trace.at("L00.attn.collapsed"), trace.at("L00.x_in").leftCols(64)) == 0);
}

TEST_CASE("model: index keys are made of the latent that is not rotated, and stand at their first token") {
    const ModelConfig config = small_config();
    const truth::ModelWeights weights = truth::load_weights(config, random_weights(config));
    truth::State state = small_model().start();
    Trace trace;
    small_model().forward(state, tokens(0, 12), 0, tracing(trace));
    for (const int layer : {2, 4, 6}) {
        const int64_t ratio = layer == 6 ? 1 : 2;
        const std::string prefix = fmt::format("L{:02}.attn.", layer);
        const truth::IndexerWeights& indexer = *weights.layers[static_cast<size_t>(layer)].indexer;
        const Matrix& latent = trace.at(prefix + "compressor_latent");
        std::vector<int64_t> first_tokens;
        for (int64_t j = 0; j < 12 / ratio; ++j) first_tokens.push_back(j * ratio);
        const auto frequencies = truth::rope_frequencies(config, truth::RopeTable::compress);
        const Matrix key =
            truth::rms_norm(latent * indexer.wk.transpose(), indexer.k_norm, config.rms_norm_eps);
        INFO("layer ", layer);
        CHECK(largest_difference(trace.at(prefix + "index_key"),
                                 truth::rope(key, config.index_head_dim, first_tokens, frequencies)) <=
              1e-12);
        CHECK(largest_difference(trace.at(prefix + "compressed_kv"),
                                 truth::rope(latent, config.head_dim, first_tokens, frequencies)) <= 1e-12);
    }
}
