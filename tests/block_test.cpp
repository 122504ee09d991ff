#include "reference/block.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "reference/engram.h"
#include "reference/hyper_connections.h"
#include "reference/text_model.h"
#include "reference/truth/model.h"
#include "reference/truth/weights.h"
#include "tests/tiny_model.h"
#include "tests/trace_map.h"
#include "tests/truth_twin.h"

using namespace touchstone;

namespace {

const ModelConfig& config() {
    return tiny::config();
}

truth::Model truth_model() {
    static const truth::Model model(config(), truth::dequantising_loader(tiny::checkpoint()),
                                    truth_engram(config()), {});
    return model;
}

const std::vector<LayerRole>& roles() {
    static const std::vector<LayerRole> all = layer_roles(config());
    return all;
}

/// A block on rows of a fresh sequence, alone.
struct BlockRun {
    ResidualStreams streams;
    TraceMap made;
};

BlockRun run_block(LayerRole role, ResidualStreams streams, std::span<const int64_t> row_ids = {},
                   LayerRange range = {}) {
    static const RopeTable main = main_rope_table(config()), compress = compress_rope_table(config());
    const AttentionContext context{config(), Arithmetic::exact, {}, nullptr, main, compress};
    SequenceState state(config());
    CallRows rows{{{&state, 0, std::ssize(streams.pre) / config().hc_mult}}};
    PublishedSelections published;
    published.selected.assign(static_cast<size_t>(rows.rows()), {});
    published.pool = published.selected;
    BlockRun result{std::move(streams), {}};
    block(context, role, tiny::weights().layer(role.layer), range, row_ids, rows, result.streams, published,
          Trace(&result.made));
    return result;
}

ResidualStreams random_streams(int64_t rows, uint64_t seed) {
    ResidualStreams streams;
    for (uint64_t i = 0; i < static_cast<uint64_t>(rows * config().hc_mult * config().hidden_size); ++i) {
        float sum = 0;
        for (const uint32_t word : RandomStream{seed, 5}.block(i).words)
            sum += static_cast<float>(word >> 8) * 0x1p-23f - 1;
        streams.h.push_back(bf16_from_float(sum));
    }
    for (uint64_t i = 0; i < static_cast<uint64_t>(rows * config().hc_mult); ++i)
        streams.pre.push_back(static_cast<float>(RandomStream{seed, 6}.word(i) >> 8) * 0x1p-24f);
    return streams;
}

bool same_bits(const std::vector<Bf16>& a, const std::vector<Bf16>& b) {
    return std::ranges::equal(a, b, [](Bf16 x, Bf16 y) { return x.bits == y.bits; });
}

}  // namespace

TEST_CASE(
    "block: every stage of every layer agrees with truth (prefill of 70 tokens, a chunk of 3, 4 steps)") {
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper}) {
        const TextModel model = tiny::model(arithmetic);
        TruthTwin twin(config(), truth_model());
        SequenceState state(config());
        const std::vector<int32_t> tokens = tiny::tokens(4, 77);
        for (int64_t first = 0; first < 77;) {
            const int64_t count = first == 0 ? 70 : first == 70 ? 3 : 1;
            const auto part =
                std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
            TraceMap made;
            const Request request{&state, part};
            model.forward({&request, 1}, {.trace = Trace(&made)});
            twin.follow(made, part, first);
            first += count;
        }
        CAPTURE(arithmetic_name(arithmetic));
        const std::string first_choice =
            twin.choices_that_differ().empty() ? "none" : twin.choices_that_differ().front();
        CAPTURE(first_choice);
        CHECK(twin.choices_that_differ().empty());
        CHECK(twin.choices_compared() == 77 * (10 + 4 + 1));  // experts, selections, the pool
        // A sum in another order moves a bf16 over a rounding boundary now and then; behind fp8 activations
        // that is a code's step in all outputs of the row, and in a window row in the 48 queries that see it.
        // fp32 tensors differ everywhere, in their last bits but for that.
        for (const char* name : {"attn.x", "attn.qr", "attn.window_kv", "attn.compressed_kv", "attn.out",
                                 "attn.wo_a_out", "x_mid", "ffn.x", "ffn.out", "x_out", "engram.kv"}) {
            const TwinDifference d = twin.of(name);
            const std::string shown = fmt::format("{}: {} of {} differ, {:.1e} of the rms", name, d.differing,
                                                  d.elements, d.of_rms);
            INFO(shown);
            CHECK(d.elements > 0);
            CHECK(static_cast<double>(d.differing) <= 0.03 * static_cast<double>(d.elements));
            CHECK(d.of_rms <= 0.3);
        }
        for (const char* name : {"hc_attn.mixes", "hc_attn.comb", "hc_ffn.mixes", "hc_ffn.comb",
                                 "hc_attn.pre", "hc_ffn.pre", "pre_out", "ffn.gate_scores", "engram.gate"}) {
            const TwinDifference d = twin.of(name);
            const std::string shown = fmt::format("{}: {:.1e} of the rms", name, d.of_rms);
            INFO(shown);
            CHECK(d.elements > 0);
            CHECK(d.differing > 0);
            CHECK(d.of_rms <= 2e-2);
        }
    }
}

TEST_CASE("block: each sublayer is collapsed with the mix of the sublayer before") {
    const int64_t rows = 3, width = config().hidden_size;
    const HyperConnectionShape shape = hyper_connection_shape(config());
    for (const int layer : {0, 3, 7}) {
        CAPTURE(layer);
        const ResidualStreams streams = random_streams(rows, 10);
        const BlockRun run = run_block(roles()[static_cast<size_t>(layer)], streams);
        const LayerWeights weights = tiny::weights().layer(layer);
        const auto bf16_of = [&](const char* name) {
            std::vector<Bf16> values;
            for (const double x : run.made.find(name)->numbers)
                values.push_back(bf16_from_float(static_cast<float>(x)));
            return values;
        };
        const auto collapsed = [&](const std::vector<Bf16>& h, std::span<const float> pre) {
            std::vector<Bf16> y(static_cast<size_t>(rows * width));
            collapse(h, rows, pre, y);
            return y;
        };
        const MixCoefficients attn = mix(streams.h, rows, weights.hc_attn, shape);
        const std::vector<Bf16> mid = bf16_of("x_mid");
        const MixCoefficients ffn = mix(mid, rows, weights.hc_ffn, shape);
        // Attention takes what was handed over, experts take attention's, the next layer gets the experts'.
        CHECK(same_bits(bf16_of("attn.collapsed"), collapsed(streams.h, streams.pre)));
        CHECK(same_bits(bf16_of("ffn.collapsed"), collapsed(mid, attn.pre)));
        CHECK(run.streams.pre == ffn.pre);
        // A mix used where it was made would show.
        CHECK_FALSE(same_bits(bf16_of("attn.collapsed"), collapsed(streams.h, attn.pre)));
        CHECK_FALSE(same_bits(bf16_of("ffn.collapsed"), collapsed(mid, ffn.pre)));
        // post and comb are used at once, each on the streams that gave them.
        std::vector<Bf16> expanded(streams.h.size());
        expand(bf16_of("attn.out"), streams.h, rows, attn.post, attn.comb, expanded);
        CHECK(same_bits(mid, expanded));
        expand(bf16_of("ffn.out"), mid, rows, ffn.post, ffn.comb, expanded);
        CHECK(same_bits(run.streams.h, expanded));
    }
}

TEST_CASE("block: the mix handed over matters (one-hot instead of the carried one)") {
    ResidualStreams streams = random_streams(2, 11);
    const BlockRun carried = run_block(roles()[3], streams);
    for (size_t i = 0; i < streams.pre.size(); ++i) streams.pre[i] = i % 4 == 0 ? 1.0f : 0.0f;
    const BlockRun dropped = run_block(roles()[3], streams);
    CHECK_FALSE(same_bits(carried.streams.h, dropped.streams.h));
    // The mixes themselves come from the streams alone.
    CHECK(carried.made.find("hc_attn.mixes")->bytes == dropped.made.find("hc_attn.mixes")->bytes);
    CHECK(carried.made.find("ffn.x")->bytes != dropped.made.find("ffn.x")->bytes);
}

TEST_CASE("block: Engram changes the streams before they are mixed, and leaves the mix handed over") {
    const EngramHash hash = engram_hash(config());
    const TokenMap map = TokenMap::without_tokenizer(config());
    for (size_t e = 0; e < hash.layers.size(); ++e) {
        const int layer = hash.layers[e].layer;
        CAPTURE(layer);
        const std::vector<int32_t> ids = map.compress(tiny::tokens(5, 3));
        const std::vector<int64_t> row_ids = engram_row_ids(hash, e, map.pad(), {}, ids);
        const ResidualStreams streams = random_streams(3, 12);
        const BlockRun whole = run_block(roles()[static_cast<size_t>(layer)], streams, row_ids);

        LayerRole without = roles()[static_cast<size_t>(layer)];
        without.engram = false;
        ResidualStreams changed = streams;
        engram(Arithmetic::exact, row_ids, 3, *tiny::weights().layer(layer).engram, engram_shape(config()),
               {}, std::span<Bf16>(changed.h));
        CHECK_FALSE(same_bits(changed.h, streams.h));
        const BlockRun after = run_block(without, changed);
        CHECK(same_bits(whole.streams.h, after.streams.h));
        CHECK(whole.streams.pre == after.streams.pre);
        for (const char* name : {"hc_attn.mixes", "attn.x", "attn.window_kv", "x_mid", "ffn.x"})
            CHECK(whole.made.find(name)->bytes == after.made.find(name)->bytes);
        CHECK_FALSE(same_bits(whole.streams.h, run_block(without, streams).streams.h));
    }
}

TEST_CASE("block: rows below query_from leave window rows and nothing else; later rows keep their bits") {
    const int64_t rows = 6, n = config().hc_mult, width = config().hidden_size;
    static const RopeTable main = main_rope_table(config()), compress = compress_rope_table(config());
    const AttentionContext context{config(), Arithmetic::exact, {}, nullptr, main, compress};
    const ResidualStreams streams = random_streams(rows, 13);
    struct Left {
        ResidualStreams streams;
        std::vector<RowRun> runs;
        SequenceState state;
    };
    const auto run = [&](int layer, LayerRange range) {
        Left left{streams, {}, SequenceState(config())};
        CallRows call{{{&left.state, 0, rows}}};
        PublishedSelections published;
        published.selected.assign(static_cast<size_t>(rows), {});
        published.pool = published.selected;
        block(context, roles()[static_cast<size_t>(layer)], tiny::weights().layer(layer), range, {}, call,
              left.streams, published, {});
        left.runs = call.runs;
        return left;
    };
    for (const int layer : {0, 6, 7}) {
        CAPTURE(layer);
        const Left all = run(layer, {});
        const Left last_two = run(layer, {0, 4});
        CHECK(last_two.runs.front().first_position == 4);
        CHECK(last_two.runs.front().rows == 2);
        CHECK(std::ranges::equal(last_two.streams.h,
                                 std::span(all.streams.h).last(static_cast<size_t>(2 * n * width)),
                                 [](Bf16 a, Bf16 b) { return a.bits == b.bits; }));
        CHECK(std::ranges::equal(last_two.streams.pre,
                                 std::span(all.streams.pre).last(static_cast<size_t>(2 * n))));
        CHECK(last_two.state.window(layer) == all.state.window(layer));
        CHECK(last_two.state.sources() == all.state.sources());

        const Left cut = run(layer, {4, 4});
        CHECK(cut.state.window(layer).first() == 4);
        CHECK(cut.state.window(layer).end() == 6);
        CHECK(cut.state.sources() == all.state.sources());  // compressed rows of every row, whatever the plan
        CHECK_FALSE(same_bits(cut.streams.h, last_two.streams.h));

        const Left nothing = run(layer, {6, 6});
        CHECK(nothing.runs.front().rows == 0);
        CHECK(nothing.streams.h.empty());
        CHECK(nothing.state.window(layer).first() == nothing.state.window(layer).end());
        CHECK(nothing.state.sources() == all.state.sources());
    }
}
