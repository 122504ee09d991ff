#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/model/model.h"
#include "reference/replay.h"
#include "reference/truth/model.h"
#include "reference/truth/weights.h"
#include "tests/poison.h"
#include "tests/synthetic_weights.h"
#include "tests/tiny_model.h"
#include "tests/trace_map.h"
#include "tests/truth_twin.h"

using namespace touchstone;

namespace {

constexpr std::array readings{BoundaryReading::truncated, BoundaryReading::own_windows,
                              BoundaryReading::whole};

const ModelConfig& config() {
    return tiny::config();
}
int64_t window() {
    return config().sliding_window;
}
/// Layer 6 of 10 in the tiny model, 20 of 40 in the real one.
int boundary() {
    return first_decoder_layer(config());
}

struct Prefilled {
    SequenceState state;
    std::vector<float> logits;
    TraceMap made;  ///< of the last call
};

Prefilled run(Arithmetic arithmetic, std::span<const int32_t> tokens, PrefillOptions options,
              bool traced = false) {
    Prefilled result{SequenceState(config()), {}, {}};
    if (traced) options.trace_of_call = [&](int64_t) { return Trace(&result.made); };
    result.logits = prefill(tiny::model(arithmetic), result.state, tokens, options);
    return result;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
    return std::ranges::equal(a, b, [](float x, float y) { return float_bits(x) == float_bits(y); });
}

double rms(std::span<const float> x) {
    double squares = 0;
    for (const float value : x) squares += static_cast<double>(value) * static_cast<double>(value);
    return std::sqrt(squares / static_cast<double>(x.size()));
}

/// Root mean square of a - b over that of b.
double drift(std::span<const float> a, std::span<const float> b) {
    std::vector<float> difference(a.size());
    std::ranges::transform(a, b, difference.begin(), [](float x, float y) { return x - y; });
    return rms(difference) / rms(b);
}

/// Compressed rows, keys and open groups of every source.
bool same_global_rows(const SequenceState& a, const SequenceState& b) {
    return a.sources() == b.sources();
}

/// Rows `position` and later of a trace of a call that began at `first`.
std::vector<double> rows_from(const TraceMap& made, const std::string& name, int64_t first,
                              int64_t position) {
    const TraceMap::Tensor* tensor = made.find(name);
    REQUIRE(tensor != nullptr);
    const int64_t width = std::ssize(tensor->numbers) / tensor->shape.front();
    return {tensor->numbers.begin() + (position - first) * width, tensor->numbers.end()};
}

/// truth's plan for the same ranges: window floors where windows are cut.
std::vector<truth::LayerRows> truth_plan(const std::vector<LayerRange>& ranges) {
    std::vector<truth::LayerRows> plan;
    for (const LayerRange& range : ranges) plan.push_back({range.query_from, range.window_from});
    return plan;
}

const truth::Model& truth_model() {
    static const truth::Model model(config(), truth::dequantising_loader(tiny::checkpoint()),
                                    truth_engram(config()), {});
    return model;
}

}  // namespace

TEST_CASE("replay: ranges (bounded and exact, all readings, the real model's 128 and 2,541 rows)") {
    const ModelConfig real = *find_model("deepseek-v4.1-flash").config();
    const auto rows = [](const LayerRange& range, int64_t n) { return n - range.query_from; };
    for (const BoundaryReading reading : readings) {
        const auto bounded = replay_ranges(real, ReplayMode::bounded, reading, 10'000);
        for (int layer = 0; layer < 40; ++layer) {
            const LayerRange& range = bounded[static_cast<size_t>(layer)];
            CAPTURE(layer);
            const bool whole = layer < 20 || (layer == 20 && reading == BoundaryReading::whole);
            CHECK(rows(range, 10'000) == (whole ? 10'000 : 128));
            const bool windows = whole || (layer == 20 && reading == BoundaryReading::own_windows);
            CHECK(range.window_from == (windows ? 0 : 10'000 - 128));
        }
        const auto exact = replay_ranges(real, ReplayMode::exact, reading, 10'000);
        CHECK(rows(exact[19], 10'000) == 10'000);
        CHECK(rows(exact[20], 10'000) == 2541);
        CHECK(rows(exact[21], 10'000) == 2414);
        CHECK(rows(exact[39], 10'000) == 128);
        for (int layer = 20; layer < 40; ++layer)
            CHECK(exact[static_cast<size_t>(layer)].window_from ==
                  exact[static_cast<size_t>(layer)].query_from);
        for (const LayerRange& range : replay_ranges(real, ReplayMode::bounded, reading, 100))
            CHECK(range.query_from + range.window_from == 0);
    }
    for (const LayerRange& range : replay_ranges(real, ReplayMode::none, readings[0], 10'000))
        CHECK(range.query_from + range.window_from == 0);
}

TEST_CASE("replay: no prompt longer than the window: bounded is the oracle, bit for bit (every reading)") {
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper})
        for (const int64_t n : {int64_t{1}, int64_t{2}, int64_t{17}, window() - 1, window()}) {
            const std::vector<int32_t> tokens = tiny::tokens(1, n);
            const Prefilled oracle = run(arithmetic, tokens, {});
            for (const BoundaryReading reading : readings) {
                CAPTURE(n);
                const Prefilled bounded =
                    run(arithmetic, tokens, {.mode = ReplayMode::bounded, .reading = reading});
                CHECK(same_bits(bounded.logits, oracle.logits));
                CHECK(bounded.state == oracle.state);
            }
        }
}

TEST_CASE("replay: bounded differs from the oracle beyond the window, in windows and logits alone") {
    for (const int64_t n : {window() + 1, int64_t{100}, int64_t{131}}) {
        const std::vector<int32_t> tokens = tiny::tokens(1, n);
        const Prefilled oracle = run(Arithmetic::exact, tokens, {}, true);
        for (const BoundaryReading reading : readings) {
            const Prefilled bounded =
                run(Arithmetic::exact, tokens, {.mode = ReplayMode::bounded, .reading = reading}, true);
            const double drifted = drift(bounded.logits, oracle.logits);
            const std::string shown =
                fmt::format("{} tokens, reading {}: logits drift by {:.3f} of their rms", n,
                            "ABC"[static_cast<int>(reading)], drifted);
            MESSAGE(shown);
            CHECK(std::isfinite(drifted));
            CHECK(drifted > 0);
            CHECK(drifted < 1.5);
            CHECK(same_global_rows(bounded.state, oracle.state));
            for (int layer = 0; layer < config().num_hidden_layers; ++layer) {
                CAPTURE(layer);
                const WindowCache& ours = bounded.state.window(layer);
                CHECK(ours.end() == n);
                CHECK(ours.first() == n - window());
                // Window rows of the boundary layer come from the encoder, which is whole.
                if (layer <= boundary()) CHECK(ours == oracle.state.window(layer));
            }
            CHECK_FALSE(bounded.state.window(9) == oracle.state.window(9));
        }
    }
}

TEST_CASE("replay: readings B and C agree at the boundary layer; A differs there until the last row") {
    const int64_t n = 131, s = n - window();
    const std::vector<int32_t> tokens = tiny::tokens(2, n);
    const std::string layer = fmt::format("L{:02}.", boundary());
    std::map<BoundaryReading, Prefilled> made;
    for (const BoundaryReading reading : readings)
        made.emplace(reading,
                     run(Arithmetic::exact, tokens, {.mode = ReplayMode::bounded, .reading = reading}, true));
    const Prefilled &a = made.at(readings[0]), &b = made.at(readings[1]), &c = made.at(readings[2]);
    for (const char* name : {"attn.out", "x_out", "pre_out"})
        CHECK(rows_from(b.made, layer + name, s, s) == rows_from(c.made, layer + name, 0, s));
    CHECK(same_bits(b.logits, c.logits));
    CHECK(b.state == c.state);

    // A row before s + W - 1 misses the keys before s; the last one misses none.
    const std::vector<double> cut = rows_from(a.made, layer + "attn.o", s, s),
                              whole = rows_from(b.made, layer + "attn.o", s, s);
    const size_t width = cut.size() / static_cast<size_t>(window());
    for (size_t row = 0; row < static_cast<size_t>(window()); ++row) {
        CAPTURE(row);
        const bool same = std::equal(cut.begin() + static_cast<int64_t>(row * width),
                                     cut.begin() + static_cast<int64_t>((row + 1) * width),
                                     whole.begin() + static_cast<int64_t>(row * width));
        CHECK(same == (row + 1 == static_cast<size_t>(window())));
    }
    const auto last_row = [&](const Prefilled& of, const char* name) {
        return rows_from(of.made, layer + name, s, n - 1);
    };
    CHECK(last_row(a, "x_out") == last_row(b, "x_out"));
    CHECK_FALSE(same_bits(a.logits, b.logits));
    CHECK(same_global_rows(a.state, b.state));
}

TEST_CASE("replay: the dependency halo keeps the last row and the whole state, bit for bit") {
    // Rows of layers 6 .. 9: 189, 142, 95, 48.
    const auto ranges = replay_ranges(config(), ReplayMode::exact, readings[0], 230);
    CHECK(ranges[6].query_from == 230 - 189);
    CHECK(ranges[7].query_from == 230 - 142);
    CHECK(ranges[9].query_from == 230 - 48);
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper})
        for (const int64_t n : {230, 191}) {
            if (arithmetic == Arithmetic::hopper && n > 191) continue;
            const std::vector<int32_t> tokens = tiny::tokens(3, n);
            const Prefilled oracle = run(arithmetic, tokens, {});
            const Prefilled halo = run(arithmetic, tokens, {.mode = ReplayMode::exact});
            CHECK(same_bits(halo.logits, oracle.logits));
            CHECK(halo.state == oracle.state);
            // One row fewer anywhere is not enough.
            if (arithmetic == Arithmetic::hopper || n > 191) continue;
            for (int layer = boundary(); layer < config().num_hidden_layers; ++layer) {
                CAPTURE(layer);
                auto short_of_one = replay_ranges(config(), ReplayMode::exact, readings[0], n);
                LayerRange& range = short_of_one[static_cast<size_t>(layer)];
                range = {range.window_from + 1, range.query_from + 1};
                SequenceState state(config());
                const Request request{&state, tokens};
                tiny::model(arithmetic).forward({&request, 1}, {.ranges = short_of_one});
                CHECK_FALSE(state == oracle.state);
            }
        }
}

TEST_CASE("replay: any chunks give the same bits in every mode") {
    const std::vector<int32_t> tokens = tiny::tokens(4, 120);
    struct Mode {
        ReplayMode mode;
        BoundaryReading reading;
    };
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper})
        for (const Mode mode :
             {Mode{ReplayMode::none, readings[0]}, Mode{ReplayMode::bounded, readings[0]},
              Mode{ReplayMode::bounded, readings[1]}, Mode{ReplayMode::bounded, readings[2]},
              Mode{ReplayMode::exact, readings[0]}}) {
            const Prefilled whole = run(arithmetic, tokens, {mode.mode, mode.reading, 120});
            for (const int64_t chunk : {1, 17, 48, 71}) {
                const bool few = arithmetic == Arithmetic::hopper || mode.reading == BoundaryReading::whole;
                if (few ? chunk != 48 : chunk == 1 && mode.reading != BoundaryReading::own_windows) continue;
                CAPTURE(static_cast<int>(mode.mode));
                CAPTURE(static_cast<int>(mode.reading));
                CAPTURE(chunk);
                const Prefilled cut = run(arithmetic, tokens, {mode.mode, mode.reading, chunk});
                CHECK(same_bits(cut.logits, whole.logits));
                CHECK(cut.state == whole.state);
            }
        }
}

TEST_CASE("replay: a second prompt on a state with live decoder windows") {
    const TextModel model = tiny::model(Arithmetic::exact);
    const std::vector<int32_t> tokens = tiny::tokens(5, 300);
    const auto part = [&](int64_t first, int64_t count) {
        return std::span(tokens).subspan(static_cast<size_t>(first), static_cast<size_t>(count));
    };
    for (const BoundaryReading reading : readings)
        for (const int64_t second : {int64_t{3}, window(), window() + 1, int64_t{110}}) {
            CAPTURE(static_cast<int>(reading));
            CAPTURE(second);
            PrefillOptions options{ReplayMode::bounded, reading, 512};
            SequenceState state(config());
            prefill(model, state, part(0, 60), options);
            prefill(model, state, part(60, 1), {});
            const SequenceState first_turn = state;
            const std::vector<float> logits = prefill(model, state, part(61, second), options);
            // Up to W tokens nothing is skipped, so nothing is cut: as in oracle mode from this state.
            SequenceState oracle = first_turn;
            const std::vector<float> all_rows = prefill(model, oracle, part(61, second), {});
            CHECK(same_bits(logits, all_rows) == (second <= window()));
            CHECK((state == oracle) == (second <= window()));
            CHECK(same_global_rows(state, oracle));
            // In chunks, too.
            for (const int64_t chunk : {1, 25}) {
                if (chunk == 1 && second > 3) continue;
                CAPTURE(chunk);
                SequenceState chunked = first_turn;
                options.chunk_tokens = chunk;
                CHECK(same_bits(prefill(model, chunked, part(61, second), options), logits));
                CHECK(chunked == state);
            }
            if (second <= window() + 1) continue;
            // Where rows were skipped, what the first turn left in the decoder's windows is not seen (reading
            // A: at no layer).
            if (reading != BoundaryReading::truncated) continue;
            SequenceState emptied = first_turn;
            for (int layer = boundary(); layer < emptied.layers(); ++layer) emptied.window(layer).clear(61);
            options.chunk_tokens = 512;
            CHECK(same_bits(prefill(model, emptied, part(61, second), options), logits));
            CHECK(emptied == state);
        }
}

TEST_CASE("replay: after a prefix hit global rows are those of the cold run, windows begin at the replay") {
    const TextModel model = tiny::model(Arithmetic::exact);
    const int64_t w = window();
    for (const int64_t prefix : {w + 1, w + 2, int64_t{97}})
        for (const int64_t suffix : {int64_t{1}, int64_t{2}, w + 10}) {
            CAPTURE(prefix);
            CAPTURE(suffix);
            const std::vector<int32_t> tokens = tiny::tokens(6, prefix + suffix);
            const std::span<const int32_t> prompt(tokens);
            SequenceState cached(config());
            prefill(model, cached, prompt.first(static_cast<size_t>(prefix)), {});
            cached.drop_windows();
            SequenceState cold(config());
            prefill(model, cold, prompt, {});

            SequenceState hit = cached;
            const std::vector<float> logits = prefill_after_hit(model, hit, prompt, w, {});
            CHECK(hit.tokens() == prefix + suffix);
            CHECK(std::ranges::none_of(logits, [](float x) { return std::isnan(x); }));
            for (const auto& [layer, source] : hit.sources()) {
                CHECK(source.main.rows() == (prefix + suffix) / source.ratio);
                CHECK(source.keys.rows() == source.main.rows());
                // Prefix rows byte for byte; what the suffix adds may differ, as its windows were cut.
                KvCache main = source.main, keys = source.keys;
                main.truncate(prefix / source.ratio);
                keys.truncate(prefix / source.ratio);
                CHECK(main == cached.source(layer).main);
                CHECK(keys == cached.source(layer).keys);
            }
            // The first source behind two layers of window attention sees the cut unless its own rows are
            // far.
            for (int layer = 0; layer < hit.layers(); ++layer) {
                CHECK(hit.window(layer).end() == prefix + suffix);
                CHECK(hit.window(layer).first() == std::max(prefix - w, prefix + suffix - w));
            }
            CHECK(hit.window(0) == cold.window(0));  // of embeddings alone

            for (const int64_t chunk : {1, 13}) {
                if (chunk == 1 && suffix > 2) continue;
                CAPTURE(chunk);
                SequenceState chunked = cached;
                CHECK(same_bits(
                    prefill_after_hit(model, chunked, prompt, w, {ReplayMode::none, readings[0], chunk}),
                    logits));
                CHECK(chunked == hit);
            }
        }
}

TEST_CASE("replay: after a hit, decoder replay in every mode gives the same bits for every chunking") {
    const TextModel model = tiny::model(Arithmetic::exact);
    const std::vector<int32_t> tokens = tiny::tokens(7, 160);
    SequenceState cached(config());
    prefill(model, cached, std::span(tokens).first(75), {});
    cached.drop_windows();
    for (const ReplayMode mode : {ReplayMode::none, ReplayMode::bounded, ReplayMode::exact})
        for (const BoundaryReading reading : readings) {
            if (mode != ReplayMode::bounded && reading != readings[0]) continue;
            SequenceState whole = cached;
            const std::vector<float> logits =
                prefill_after_hit(model, whole, tokens, window(), {mode, reading, 512});
            for (const int64_t chunk : {9, 37}) {
                CAPTURE(static_cast<int>(mode));
                CAPTURE(static_cast<int>(reading));
                CAPTURE(chunk);
                SequenceState cut = cached;
                CHECK(same_bits(prefill_after_hit(model, cut, tokens, window(), {mode, reading, chunk}),
                                logits));
                CHECK(cut == whole);
            }
        }
}

TEST_CASE("replay: a hit reads no window from before it, and no slot that nobody owns (poison)") {
    const TextModel model = tiny::model(Arithmetic::exact);
    const std::vector<int32_t> tokens = tiny::tokens(8, 120);
    SequenceState cached(config());
    prefill(model, cached, std::span(tokens).first(99), {});
    SequenceState stale = cached;  // windows of another request left where they were: all NaN
    cached.drop_windows();
    const std::vector<Bf16> nan(static_cast<size_t>(window() * config().head_dim), Bf16{0x7FFF});
    for (int layer = 0; layer < stale.layers(); ++layer) {
        stale.window(layer).clear(99 - window());
        stale.window(layer).append(99 - window(), nan);
    }
    for (const auto& [layer, source] : cached.sources()) {
        const int64_t rows = source.main.rows();
        const auto unowned = [&](int64_t row) { return row >= rows; };
        poison(stale.source(layer).main, unowned);
        poison(stale.source(layer).keys, unowned);
    }
    for (const ReplayMode mode : {ReplayMode::none, ReplayMode::bounded}) {
        SequenceState a = cached, b = stale;
        const PrefillOptions options{mode, readings[1], 16};
        const std::vector<float> clean = prefill_after_hit(model, a, tokens, window(), options),
                                 poisoned = prefill_after_hit(model, b, tokens, window(), options);
        CHECK(same_bits(clean, poisoned));
        for (int layer = 0; layer < a.layers(); ++layer) CHECK(a.window(layer) == b.window(layer));
        // And decoding goes on without meeting it.
        const std::vector<int32_t> next{5};
        CHECK(same_bits(prefill(model, a, next, {}), prefill(model, b, next, {})));
    }
}

TEST_CASE("replay: a pair of tokens that straddles the replay's start keeps its row (ratio 2)") {
    // A prefix of 99: its open token waits; the replay starts at 51, inside the pair of 50 and 51.
    const TextModel model = tiny::model(Arithmetic::exact);
    for (const int64_t prefix : {98, 99}) {
        CAPTURE(prefix);
        const std::vector<int32_t> tokens = tiny::tokens(9, prefix + 3);
        SequenceState cached(config());
        prefill(model, cached, std::span(tokens).first(static_cast<size_t>(prefix)), {});
        cached.drop_windows();
        SequenceState hit = cached;
        prefill_after_hit(model, hit, tokens, window(), {});
        const SourceState& source = hit.source(2);
        CHECK(source.main.rows() == (prefix + 3) / 2);
        CHECK(std::ssize(source.open.kv) == (prefix + 3) % 2 * config().head_dim);
        for (int64_t row = 0; row < cached.source(2).main.rows(); ++row) {
            std::vector<float> a(static_cast<size_t>(config().head_dim)), b(a.size());
            cached.source(2).main.read(row, a);
            source.main.read(row, b);
            CHECK(same_bits(a, b));
        }
        // The open token of the prefix is in the group that the suffix closes: with another one it is
        // another.
        if (prefix % 2 == 0) continue;
        SequenceState other = cached;
        for (float& x : other.source(2).open.kv) x = -x;
        prefill_after_hit(model, other, tokens, window(), {});
        std::vector<float> a(static_cast<size_t>(config().head_dim)), b(a.size());
        source.main.read(prefix / 2, a);
        other.source(2).main.read(prefix / 2, b);
        CHECK_FALSE(same_bits(a, b));
    }
}

TEST_CASE("replay: what cannot be done is refused, with the state as it was") {
    const TextModel model = tiny::model(Arithmetic::exact);
    const std::vector<int32_t> tokens = tiny::tokens(10, 60);
    const auto refused = [&](int64_t prefix, int64_t prompt, int64_t replayed) {
        CAPTURE(prefix);
        CAPTURE(prompt);
        CAPTURE(replayed);
        SequenceState state(config());
        prefill(model, state, std::span(tokens).first(static_cast<size_t>(prefix)), {});
        state.drop_windows();
        const SequenceState before = state;
        CHECK_THROWS_AS(prefill_after_hit(model, state, std::span(tokens).first(static_cast<size_t>(prompt)),
                                          replayed, {}),
                        UserError);
        CHECK(state == before);
    };
    refused(50, 50, window());  // nothing left to run
    refused(50, 49, window());  // less than the prefix
    refused(48, 60, window());  // no longer than the window
    refused(47, 60, window());
    refused(50, 60, 0);
    SequenceState state(config());
    CHECK_THROWS_AS(prefill(model, state, {}, {}), UserError);
    PrefillOptions no_chunks;
    no_chunks.chunk_tokens = 0;
    CHECK_THROWS_AS(prefill(model, state, tokens, no_chunks), UserError);
    CHECK_THROWS_AS(replay_mode("partial"), UserError);
    CHECK_THROWS_AS(boundary_reading("D"), UserError);
    CHECK(replay_mode("bounded") == ReplayMode::bounded);
    CHECK(boundary_reading("C") == BoundaryReading::whole);

    // Decoders that cannot skip rows: public tests refuse engram layers [1, 30] and sources [2, 39].
    const ModelConfig real = *find_model("deepseek-v4.1-flash").config();
    ModelConfig engram = real;
    engram.engram->layer_ids = {1, 30};
    ModelConfig last = real;
    last.kv_source_layer_ids = {2, 39};
    ModelConfig at_boundary = real;
    at_boundary.engram->layer_ids = {1, 20};
    for (const ModelConfig* bad : {&engram, &last, &at_boundary})
        for (const ReplayMode mode : {ReplayMode::bounded, ReplayMode::exact}) {
            CHECK_THROWS_AS(replay_ranges(*bad, mode, readings[1], 1000), UserError);
            CHECK_NOTHROW(replay_ranges(*bad, ReplayMode::none, readings[1], 1000));
        }
}

TEST_CASE("replay: under every plan each layer does what truth does under the same plan") {
    const int64_t n = 110;
    const std::vector<int32_t> tokens = tiny::tokens(11, n);
    for (const BoundaryReading reading : readings) {
        CAPTURE(static_cast<int>(reading));
        const Prefilled made = run(Arithmetic::exact, tokens, {ReplayMode::bounded, reading, 512}, true);
        TruthTwin twin(config(), truth_model());
        twin.follow(made.made, tokens, 0,
                    truth_plan(replay_ranges(config(), ReplayMode::bounded, reading, n)));
        const std::string first_choice =
            twin.choices_that_differ().empty() ? "none" : twin.choices_that_differ().front();
        CAPTURE(first_choice);
        CHECK(std::ssize(twin.choices_that_differ()) <= 2);  // scores are bf16: of two neighbours, either
        CHECK(twin.choices_compared() > 1000);
        for (const char* name :
             {"attn.x", "attn.window_kv", "attn.compressed_kv", "attn.out", "x_mid", "x_out"}) {
            const TwinDifference d = twin.of(name);
            const std::string shown = fmt::format("{}: {} of {} differ, {:.1e} of the rms", name, d.differing,
                                                  d.elements, d.of_rms);
            INFO(shown);
            CHECK(static_cast<double>(d.differing) <= 0.03 * static_cast<double>(d.elements));
            CHECK(d.of_rms <= 0.3);
        }
        // Under another plan truth does something else.
        TruthTwin other(config(), truth_model());
        auto floors = truth_plan(replay_ranges(config(), ReplayMode::bounded, reading, n));
        floors[6].window_floor = reading == BoundaryReading::truncated ? 0 : n - window();
        other.follow(made.made, tokens, 0, floors);
        CHECK(static_cast<double>(other.of("attn.out").differing) >
              0.05 * static_cast<double>(other.of("attn.out").elements));
    }
}

TEST_CASE("replay: in ideal arithmetic the same structure (halo exact, bounded drifts, readings B and C)") {
    const truth::Model ideal = truth_model().with({.ledger = truth::Ledger::none()});
    const int64_t n = 192;
    const std::vector<int32_t> tokens = tiny::tokens(12, n);
    struct Run {
        truth::Matrix logits;
        truth::State state;
    };
    const auto run_ideal = [&](ReplayMode mode, BoundaryReading reading) {
        Run made{{}, ideal.start()};
        truth::ForwardOptions options;
        options.replay = truth_plan(replay_ranges(config(), mode, reading, n));
        made.logits =
            ideal.forward(made.state, {tokens.begin(), tokens.end()}, 0, options).bottomRows(1).eval();
        return made;
    };
    const Run whole = run_ideal(ReplayMode::none, readings[0]),
              halo = run_ideal(ReplayMode::exact, readings[0]),
              cut = run_ideal(ReplayMode::bounded, readings[1]);
    const truth::Matrix &oracle = whole.logits, &b = cut.logits;
    const truth::Matrix a = run_ideal(ReplayMode::bounded, readings[0]).logits,
                        c = run_ideal(ReplayMode::bounded, readings[2]).logits;
    const auto relative = [](const truth::Matrix& x, const truth::Matrix& y) {
        return (x - y).norm() / y.norm();
    };
    // Not to the last bit: Eigen's sums depend on the number of rows.
    CHECK(relative(halo.logits, oracle) < 1e-12);
    for (size_t layer = 0; layer < whole.state.windows.size(); ++layer) {
        CAPTURE(layer);
        CHECK(halo.state.windows[layer].first_position == whole.state.windows[layer].first_position);
        CHECK(relative(halo.state.windows[layer].rows, whole.state.windows[layer].rows) < 1e-12);
        // Reading B: the layer behind the boundary still gets whole rows, its own queries are the first cut.
        const bool decoder = static_cast<int>(layer) > boundary() + 1;
        CHECK((relative(cut.state.windows[layer].rows, whole.state.windows[layer].rows) > 1e-6) == decoder);
    }
    for (const int layer : config().kv_source_layer_ids) {
        CAPTURE(layer);
        for (const Run* made : {&halo, &cut}) {
            const truth::SourceState &x = made->state.sources.at(layer), &y = whole.state.sources.at(layer);
            CHECK(relative(x.main_rows, y.main_rows) < 1e-12);
            CHECK(relative(x.index_keys, y.index_keys) < 1e-12);
        }
    }
    CHECK(relative(c, b) < 1e-12);
    CHECK(relative(a, b) > 1e-4);
    const std::string shown = fmt::format("ideal, {} tokens: bounded drifts by {:.3f} (A), {:.3f} (B)", n,
                                          relative(a, oracle), relative(b, oracle));
    MESSAGE(shown);
    CHECK(relative(b, oracle) > 1e-3);
    CHECK(relative(b, oracle) < 1);
    CHECK(relative(a, oracle) < 1);
}
