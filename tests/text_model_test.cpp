// The whole text model: however tokens come (one call, chunks, one by one, alone or in company, on any number
// of threads), the same bits in every logit and every byte of state; what is refused. The contract's
// section 3. With TOUCHSTONE_LONG_SWEEP: more lengths and chunkings, also of the model that the released
// code was recorded with.
#include "reference/text_model.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/model/model.h"
#include "tests/small_model.h"
#include "tests/tiny_model.h"
#include "tests/trace_map.h"

using namespace touchstone;

namespace {

#ifdef TOUCHSTONE_LONG_SWEEP
constexpr bool long_sweep = true;
#else
constexpr bool long_sweep = false;
#endif

constexpr Arithmetic arithmetics[]{Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper};

using Logits = std::vector<float>;

bool same_bits(std::span<const float> a, std::span<const float> b) {
    return std::ranges::equal(std::as_bytes(a), std::as_bytes(b));
}

Logits run(const TextModel& model, SequenceState& state, std::span<const int32_t> tokens,
           const ForwardOptions& options = {}) {
    const Request request{&state, tokens};
    return model.forward({&request, 1}, options).front();
}

/// What a sequence gives token by token: the logits of every position and the state behind it.
struct Stepwise {
    std::vector<Logits> logits;
    std::vector<SequenceState> states;  ///< [i]: after i tokens
};

Stepwise decode(const TextModel& model, std::span<const int32_t> tokens) {
    Stepwise steps{{}, {SequenceState(model.config())}};
    for (const int32_t& token : tokens) {
        SequenceState state = steps.states.back();
        steps.logits.push_back(run(model, state, {&token, 1}));
        steps.states.push_back(std::move(state));
    }
    return steps;
}

/// Chunks that end at `ends`, each compared with the steps.
void require_chunks(const TextModel& model, std::span<const int32_t> tokens, const Stepwise& steps,
                    std::span<const int64_t> ends) {
    SequenceState state(model.config());
    for (const int64_t end : ends) {
        const int64_t first = state.tokens();
        CAPTURE(first);
        CAPTURE(end);
        const Logits logits =
            run(model, state, tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)));
        REQUIRE(same_bits(logits, steps.logits[static_cast<size_t>(end - 1)]));
        REQUIRE(state == steps.states[static_cast<size_t>(end)]);
    }
}

/// Ends of random chunks: of few tokens, of many, and of both.
std::vector<int64_t> random_ends(uint64_t seed, int64_t tokens) {
    std::vector<int64_t> ends;
    const int64_t most = seed % 3 == 0 ? 6 : tokens / 2;
    for (int64_t at = 0; at < tokens;) {
        const PhiloxBlock r = RandomStream{seed, 5}.block(static_cast<uint64_t>(at));
        const int64_t limit = seed % 3 == 2 && r.words[1] % 2 == 0 ? 3 : most;
        at = std::min<int64_t>(tokens, at + 1 + r.words[0] % limit);
        ends.push_back(at);
    }
    return ends;
}

/// One call for all logits, one call for each of `lengths`, and random chunks, against single steps.
void require_any_cutting(const TextModel& model, std::span<const int32_t> tokens,
                         std::span<const int64_t> lengths, uint64_t chunkings) {
    const int64_t count = std::ssize(tokens), vocabulary = model.config().vocab_size;
    const Stepwise steps = decode(model, tokens);
    SequenceState state(model.config());
    ForwardOptions options;
    options.all_logits = true;
    const Logits all = run(model, state, tokens, options);
    for (int64_t i = 0; i < count; ++i) {
        CAPTURE(i);
        REQUIRE(same_bits(
            std::span(all).subspan(static_cast<size_t>(i * vocabulary), static_cast<size_t>(vocabulary)),
            steps.logits[static_cast<size_t>(i)]));
    }
    REQUIRE(state == steps.states.back());
    for (const int64_t length : lengths) require_chunks(model, tokens, steps, std::vector{length});
    for (uint64_t seed = 0; seed < chunkings; ++seed) {
        CAPTURE(seed);
        require_chunks(model, tokens, steps, random_ends(seed, count));
    }
}

std::vector<int64_t> range(int64_t first, int64_t last) {
    std::vector<int64_t> values;
    for (int64_t i = first; i <= last; ++i) values.push_back(i);
    return values;
}

/// States and logits of a run of several sequences.
struct Batch {
    std::vector<SequenceState> states;
    std::vector<Logits> logits;
};

/// Two calls; sequence i of `tokens` gives its first cut[i] tokens in the first. Those in `order` take part.
Batch run_batch(const TextModel& model, const std::vector<std::vector<int32_t>>& tokens,
                const std::vector<int64_t>& cut, const std::vector<size_t>& order) {
    Batch batch{std::vector<SequenceState>(tokens.size(), SequenceState(model.config())),
                std::vector<Logits>(tokens.size())};
    for (const bool second : {false, true}) {
        std::vector<Request> requests;
        for (const size_t i : order) {
            const std::span<const int32_t> all(tokens[i]);
            const size_t at = static_cast<size_t>(cut[i]);
            requests.push_back({&batch.states[i], second ? all.subspan(at) : all.first(at)});
        }
        const std::vector<Logits> logits = model.forward(requests);
        for (size_t r = 0; r < order.size(); ++r)
            batch.logits[order[r]].insert(batch.logits[order[r]].end(), logits[r].begin(), logits[r].end());
    }
    return batch;
}

}  // namespace

TEST_CASE("text model: prefill, chunks and decode give the same bits (narrow model)") {
    // The window ends at 12, top-k at 10 rows (20 tokens at ratio 2), the pool at 12 rows, a page at 64 rows.
    const int64_t count = long_sweep ? 300 : 131;
    std::vector<int64_t> lengths = range(1, 14);
    for (const int64_t length : {19, 20, 21, 24, 25, 63, 64, 65, 127, 128}) lengths.push_back(length);
    if (long_sweep) {
        lengths = range(1, 140);
        for (int64_t length = 150; length <= count; length += 10) lengths.push_back(length);
    }
    for (const Arithmetic arithmetic : arithmetics) {
        INFO(arithmetic_name(arithmetic));
        require_any_cutting(small::model(arithmetic), small::tokens(1, count), lengths, long_sweep ? 30 : 6);
    }
}

TEST_CASE("text model: prefill, chunks and decode give the same bits (recorded model)") {
    // Edges of the window (48), of top-k at ratio 1 and 2 (40, 80), of the pool (48 rows), and of pages.
    constexpr int64_t edges[]{1,  2,  3,  39, 40, 41, 47, 48, 49,  50,  63,  64,  65,
                              79, 80, 81, 95, 96, 97, 98, 99, 127, 128, 129, 130, 131};
    if (!long_sweep) {
        const std::vector<int32_t> tokens = tiny::tokens(2, 131);
        for (const Arithmetic arithmetic : arithmetics) {
            INFO(arithmetic_name(arithmetic));
            const TextModel model = tiny::model(arithmetic);
            // All logits at once, against chunks that end at every edge.
            SequenceState whole(model.config()), cut(model.config());
            ForwardOptions options;
            options.all_logits = true;
            const Logits all = run(model, whole, tokens, options);
            for (const int64_t end : edges) {
                CAPTURE(end);
                const size_t first = static_cast<size_t>(cut.tokens()), last = static_cast<size_t>(end);
                const Logits logits = run(model, cut, std::span(tokens).subspan(first, last - first));
                REQUIRE(same_bits(logits, std::span(all).subspan((last - 1) * 512, 512)));
            }
            REQUIRE(cut == whole);
        }
        return;
    }
    for (const Arithmetic arithmetic : arithmetics) {
        INFO(arithmetic_name(arithmetic));
        const std::vector<int32_t> tokens = tiny::tokens(2, 300);
        require_any_cutting(tiny::model(arithmetic), tokens, edges, 6);
    }
}

TEST_CASE("text model: a sequence in a batch is the sequence alone") {
    // Different lengths and positions; the third sequence: one token again and again; the last: the highest
    // id.
    std::vector<std::vector<int32_t>> tokens{small::tokens(3, 30), small::tokens(4, 1 + 13),
                                             std::vector<int32_t>(41, 0), small::tokens(5, 2),
                                             std::vector<int32_t>(25, 95)};
    const std::vector<int64_t> cut{17, 1, 40, 1, 12};
    for (const Arithmetic arithmetic : arithmetics) {
        INFO(arithmetic_name(arithmetic));
        const TextModel model = small::model(arithmetic);
        const Batch together = run_batch(model, tokens, cut, {0, 1, 2, 3, 4});
        const Batch turned = run_batch(model, tokens, cut, {4, 2, 0, 3, 1});
        for (size_t i = 0; i < tokens.size(); ++i) {
            CAPTURE(i);
            const Batch alone = run_batch(model, tokens, cut, {i});
            CHECK(same_bits(together.logits[i], alone.logits[i]));
            CHECK(together.states[i] == alone.states[i]);
            CHECK(same_bits(turned.logits[i], alone.logits[i]));
            CHECK(turned.states[i] == alone.states[i]);
        }
    }
}

TEST_CASE("text model: a sequence whose neighbours' weights overflow is the sequence alone") {
    // An embedding row of the largest finite numbers: its neighbours' bits stay what they are.
    class Extreme final : public TextWeights {
      public:
        Extreme()
            : embedding_(small::weights().embedding().values.begin(),
                         small::weights().embedding().values.end()) {
            for (size_t i = 0; i < 64; ++i) embedding_[94 * 64 + i].bits = i % 2 == 0 ? 0x7F7F : 0xFF7F;
            for (size_t i = 0; i < 64; ++i) embedding_[93 * 64 + i].bits = i % 2 == 0 ? 0x7F80 : 0x7FC0;
        }
        LayerWeights layer(int layer) const override { return small::weights().layer(layer); }
        Bf16Weight embedding() const override {
            Bf16Weight weight = small::weights().embedding();
            weight.values = embedding_;
            return weight;
        }
        std::span<const Bf16> final_norm() const override { return small::weights().final_norm(); }
        Bf16Weight head() const override { return small::weights().head(); }

      private:
        std::vector<Bf16> embedding_;
    };
    const Extreme weights;
    for (const Arithmetic arithmetic : arithmetics) {
        INFO(arithmetic_name(arithmetic));
        const TextModel model(small::config(), weights, arithmetic);
        std::vector<int32_t> plain = small::tokens(6, 20);
        for (int32_t& token : plain) token %= 93;
        const std::vector<std::vector<int32_t>> tokens{std::vector<int32_t>(9, 93), plain,
                                                       std::vector<int32_t>(14, 94)};
        const std::vector<int64_t> cut{4, 13, 5};
        const Batch alone = run_batch(model, tokens, cut, {1}),
                    together = run_batch(model, tokens, cut, {0, 1, 2});
        CHECK(same_bits(together.logits[1], alone.logits[1]));
        CHECK(together.states[1] == alone.states[1]);
    }
}

TEST_CASE("text model: any number of threads gives the same bits") {
    const int threads_before = omp_get_max_threads();
    const std::vector<int32_t> tokens = small::tokens(7, 40);
    for (const Arithmetic arithmetic : arithmetics) {
        INFO(arithmetic_name(arithmetic));
        const TextModel model = small::model(arithmetic);
        std::vector<SequenceState> states;
        std::vector<Logits> logits;
        for (const int threads : {1, 2, 7}) {
            omp_set_num_threads(threads);
            states.emplace_back(small::config());
            logits.push_back(run(model, states.back(), std::span(tokens).first(39)));
            const Logits last = run(model, states.back(), std::span(tokens).subspan(39));
            logits.back().insert(logits.back().end(), last.begin(), last.end());
        }
        omp_set_num_threads(threads_before);
        for (size_t i = 1; i < states.size(); ++i) {
            CHECK(states[i] == states[0]);
            CHECK(same_bits(logits[i], logits[0]));
        }
    }
}

TEST_CASE("text model: a trace changes nothing, and has the logits") {
    const TextModel model = small::model(Arithmetic::exact);
    const std::vector<int32_t> tokens = small::tokens(8, 30);
    SequenceState state(model.config()), traced(model.config());
    TraceMap made;
    ForwardOptions options;
    options.trace = Trace(&made);
    const Logits logits = run(model, state, tokens);
    CHECK(same_bits(run(model, traced, tokens, options), logits));
    CHECK(traced == state);
    REQUIRE(made.find("logits") != nullptr);
    CHECK(std::ranges::equal(made.find("logits")->bytes, std::as_bytes(std::span(logits))));
    CHECK(made.find("L09.x_out") != nullptr);
}

TEST_CASE("text model: each sublayer is collapsed with the mix of the one before it, also across layers") {
    const TextModel model = small::model(Arithmetic::exact);
    const ModelConfig& config = model.config();
    const int64_t rows = 5, n = config.hc_mult, width = config.hidden_size;
    SequenceState state(config);
    TraceMap made;
    ForwardOptions options;
    options.trace = Trace(&made);
    options.all_logits = true;
    const std::vector<int32_t> tokens = small::tokens(13, rows);
    run(model, state, tokens, options);
    const auto numbers = [&](const std::string& name) {
        CAPTURE(name);
        const TraceMap::Tensor* const tensor = made.find(name);
        REQUIRE(tensor != nullptr);
        return tensor->numbers;
    };
    // The sum over streams in fp32, stream 0 first, rounded to bf16 at the end.
    const auto collapsed = [&](const std::string& streams, const std::vector<double>& pre) {
        const std::vector<double> h = numbers(streams);
        std::vector<double> y;
        for (int64_t row = 0; row < rows; ++row)
            for (int64_t d = 0; d < width; ++d) {
                float sum = 0;
                for (int64_t copy = 0; copy < n; ++copy)
                    sum += static_cast<float>(pre[static_cast<size_t>(row * n + copy)]) *
                           static_cast<float>(h[static_cast<size_t>((row * n + copy) * width + d)]);
                y.push_back(static_cast<double>(to_float(bf16_from_float(sum))));
            }
        return y;
    };
    std::vector<double> handed_over;
    for (int64_t row = 0; row < rows; ++row) handed_over.insert(handed_over.end(), {1, 0, 0, 0});
    for (int layer = 0; layer < config.num_hidden_layers; ++layer) {
        CAPTURE(layer);
        const std::string at = fmt::format("L{:02}.", layer);
        CHECK(numbers(at + "pre_in") == handed_over);
        CHECK(numbers(at + "attn.collapsed") == collapsed(at + "x_in", handed_over));
        CHECK(numbers(at + "ffn.collapsed") == collapsed(at + "x_mid", numbers(at + "hc_attn.pre")));
        handed_over = numbers(at + "hc_ffn.pre");
        CHECK(numbers(at + "pre_out") == handed_over);
    }
    // The head takes the last experts' mix: what it norms is that collapse over its root mean square.
    const std::vector<double> last = collapsed("L09.x_out", handed_over), normed = numbers("final.normed");
    for (int64_t row = 0; row < rows; ++row) {
        double squares = 0;
        for (int64_t d = 0; d < width; ++d)
            squares += last[size_t(row * width + d)] * last[size_t(row * width + d)];
        for (int64_t d = 0; d < width; ++d) {
            const double gain = static_cast<double>(to_float(small::weights().final_norm()[size_t(d)]));
            const double expected =
                last[size_t(row * width + d)] / std::sqrt(squares / static_cast<double>(width)) * gain;
            CHECK(std::abs(normed[size_t(row * width + d)] - expected) <= 0x1p-7 * std::abs(expected));
        }
    }
}

TEST_CASE("text model: forced choices are taken, those that cannot be are refused with the state as it was") {
    const TextModel model = small::model(Arithmetic::exact);
    const std::vector<int32_t> tokens = small::tokens(21, 30);
    const auto last_logits = [&](const ForcedChoices* forced, TraceMap* trace) {
        SequenceState state(small::config());
        const Request request{&state, tokens};
        ForwardOptions options;
        options.forced = forced;
        options.trace = Trace(trace);
        std::vector<float> logits = model.forward({&request, 1}, options).front();
        return logits;
    };
    TraceMap own, made;
    const std::vector<float> unforced = last_logits(nullptr, &own);

    // The last position looks elsewhere: rows 0 and 3 alone in layer 6, other experts in layer 7.
    ForcedChoices forced;
    forced.selected[6][29] = {0, 3};
    const std::vector<double>& chosen = own.find("L07.ffn.experts")->numbers;
    std::vector<int32_t>& experts = forced.experts[7][29];
    for (int32_t id = 0; std::ssize(experts) < small::config().num_experts_per_tok; ++id)
        if (std::find(chosen.end() - small::config().num_experts_per_tok, chosen.end(), id) == chosen.end())
            experts.push_back(id);
    CHECK(last_logits(&forced, &made) != unforced);
    const std::vector<double>& taken = made.find("L07.ffn.experts")->numbers;
    CHECK(taken.back() == experts.back());
    CHECK(std::equal(chosen.begin(), chosen.end() - small::config().num_experts_per_tok, taken.begin()));
    CHECK(made.find("L06.attn.indexer.selected")->numbers[size_t(29 * small::config().index_topk + 1)] == 3);
    CHECK(made.find("L05.x_out")->bytes == own.find("L05.x_out")->bytes);
    CHECK(made.find("L06.x_out")->bytes != own.find("L06.x_out")->bytes);

    for (const std::vector<int32_t>& rows : {std::vector<int32_t>{30}, {-1, 2}, {5, 5}}) {
        CAPTURE(rows);
        ForcedChoices wrong;
        wrong.selected[6][29] = rows;
        CHECK_THROWS_AS(last_logits(&wrong, nullptr), UserError);
    }
    for (const std::vector<int32_t>& ids : {std::vector<int32_t>{0}, {0, 4}, {1, 1}}) {
        CAPTURE(ids);
        ForcedChoices wrong;
        wrong.experts[7][29] = ids;
        SequenceState state(small::config());
        const Request request{&state, tokens};
        ForwardOptions options;
        options.forced = &wrong;
        CHECK_THROWS_AS(model.forward({&request, 1}, options), UserError);
        CHECK(state == SequenceState(small::config()));
        CHECK_NOTHROW(model.forward({&request, 1}, {}));
    }
}

TEST_CASE("text model: what it refuses leaves every state as it was") {
    const TextModel model = small::model(Arithmetic::exact);
    const std::vector<int32_t> tokens = small::tokens(9, 40), good = small::tokens(10, 3);
    SequenceState state(model.config()), other(model.config());
    run(model, state, tokens);
    run(model, other, good);
    const SequenceState before = state, other_before = other;
    const auto refused = [&](const Request& bad, const char* says, const ForwardOptions& options = {}) {
        INFO(says);
        CHECK_THROWS_WITH_AS(model.forward({&bad, 1}, options), doctest::Contains(says), UserError);
        // In company: neither it nor the sound request has run.
        const Request both[] = {{&other, good}, bad};
        CHECK_THROWS_AS(model.forward(both, options), UserError);
        CHECK(state == before);
        CHECK(other == other_before);
    };

    for (const int32_t token : {-1, 96, 1 << 30}) {
        const std::vector<int32_t> wrong{1, 2, token};
        refused({&state, wrong}, "token id");
    }
    const std::vector<int32_t> wrong{1, 96};
    CHECK_THROWS_WITH_AS(run(model, state, wrong), doctest::Contains("position 41"), UserError);
    refused({&state, {}}, "without tokens");
    refused({nullptr, good}, "without a state");
    const std::vector<int32_t> long_prompt = small::tokens(11, 473);
    refused({&state, long_prompt}, "a context of 513 tokens");
    const Request twice[] = {{&state, good}, {&state, good}};
    CHECK_THROWS_WITH_AS(model.forward(twice), doctest::Contains("one state in two"), UserError);

    // States of other models: of another number of layers, and of the same number with other widths.
    SequenceState tiny_state(tiny::config());
    refused({&tiny_state, good}, "of another model");
    ModelConfig shallow = small::config();
    shallow.num_hidden_layers = 7;
    shallow.compress_ratios.resize(7);
    shallow.index_source_layer_ids = {2, 4, 6};
    SequenceState shallow_state(shallow);
    refused({&shallow_state, good}, "of another model");

    // Replayed tokens: more than there are, windows still there, too little before them.
    refused({&state, good, 4}, "replayed tokens");
    refused({&state, good, -1}, "replayed tokens");
    refused({&state, good, 2, std::span(tokens).first(38)}, "window has");
    SequenceState dropped = state;
    dropped.drop_windows();
    for (int layer = 0; layer < 10; ++layer) dropped.window(layer).clear(38);
    refused({&dropped, good, 2, std::span(tokens).first(2)}, "before replayed position 38");
    refused({&dropped, good, 2, std::span(tokens).first(39)}, "before replayed position 38");
    const std::vector<int32_t> unknown{1, 2, 96};
    refused({&dropped, good, 2, unknown}, "token");

    // Ranges that keep new rows from a KV source, or any from an Engram layer.
    std::vector<LayerRange> ranges(10);
    ForwardOptions options;
    options.ranges = ranges;
    ranges[5] = {41, 41};
    refused({&state, good}, "layer 5 drops rows before 41", options);
    ranges[5] = {};
    ranges[7] = {50, 41};
    refused({&state, good}, "window rows from 50", options);
    ranges[7] = {};
    options.ranges = std::span(ranges).first(9);
    refused({&state, good}, "ranges of 9 layers", options);

    TraceMap made;
    ForwardOptions traced;
    traced.trace = Trace(&made);
    const Request both[] = {{&state, good}, {&other, good}};
    CHECK_THROWS_WITH_AS(model.forward(both, traced), doctest::Contains("trace of several"), UserError);
    CHECK(state == before);
    CHECK(other == other_before);
    CHECK(made.tensors().empty());

    // What was refused can go on, up to the last position that there is.
    run(model, state, std::span(long_prompt).first(472));
    CHECK(state.tokens() == 512);
    CHECK_THROWS_AS(run(model, state, good), UserError);
    CHECK(model.forward({}).empty());

    CHECK_THROWS_AS(TextModel(*find_model("deepseek-v4-flash").config(), small::weights(), Arithmetic::exact),
                    UserError);
}

TEST_CASE(
    "text model: replay rebuilds the windows that a prefix cache has dropped, Engram's history included") {
    // Replayed from the first token on, under empty windows: the same bits as ever.
    const TextModel model = small::model(Arithmetic::exact);
    const std::vector<int32_t> tokens = small::tokens(12, 30);
    SequenceState whole(model.config());
    run(model, whole, std::span(tokens).first(23));
    SequenceState replayed = whole;
    for (int layer = 0; layer < replayed.layers(); ++layer) replayed.window(layer).clear(0);
    const Logits logits = run(model, whole, std::span(tokens).subspan(23));
    const Request request{&replayed, tokens, 23, {}};
    CHECK(same_bits(model.forward({&request, 1}).front(), logits));
    CHECK(replayed == whole);
}
