// What a sequence keeps between calls: forks, rejected drafts, failed calls, equality.
#include "reference/sequence_state.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/model/model.h"
#include "tests/small_model.h"

using namespace touchstone;

namespace {

using Logits = std::vector<float>;

Logits run(const TextModel& model, SequenceState& state, std::span<const int32_t> tokens) {
    const Request request{&state, tokens};
    return model.forward({&request, 1}).front();
}

bool same_bits(const Logits& a, const Logits& b) {
    return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

SequenceState state_after(const TextModel& model, std::span<const int32_t> tokens, int64_t rollback = 8) {
    SequenceState state(small::config(), rollback);
    run(model, state, tokens);
    return state;
}

/// A state with one byte of a part changed is another.
template <class Change>
void require_seen(const SequenceState& state, size_t bytes, const Change& change) {
    REQUIRE(bytes > 0);
    for (size_t at = 0; at < bytes; ++at) {
        SequenceState changed = state;
        change(changed, at);
        REQUIRE_FALSE(changed == state);
    }
}

}  // namespace

TEST_CASE("sequence state: a fork shares nothing with its origin") {
    const TextModel model = small::model(Arithmetic::exact);
    const std::vector<int32_t> tokens = small::tokens(1, 40);
    SequenceState origin = state_after(model, std::span(tokens).first(25));
    const SequenceState before = origin;
    SequenceState fork = origin;
    CHECK(fork == origin);
    const Logits next = run(model, fork, std::span(tokens).subspan(25));
    CHECK_FALSE(fork == origin);
    CHECK(origin == before);
    CHECK(same_bits(run(model, origin, std::span(tokens).subspan(25)), next));
    CHECK(fork == origin);
    fork.truncate(39);
    CHECK(origin.tokens() == 40);
}

TEST_CASE("sequence state: rejected drafts leave no trace (both parities, around the window's edges)") {
    const TextModel model = small::model(Arithmetic::exact);
    constexpr int64_t rollback = 5;
    const std::vector<int32_t> tokens = small::tokens(2, 48), drafts = small::tokens(3, 48),
                               next = small::tokens(4, 3);
    SequenceState state(small::config(), rollback);
    for (int64_t at = 0; at < 41; ++at) {
        const bool edge = at < 5 || (at >= 10 && at < 20) || at >= 38;
        for (int64_t drafted = edge ? 0 : rollback + 1; drafted <= rollback; ++drafted) {
            CAPTURE(at);
            CAPTURE(drafted);
            SequenceState speculative = state, plain = state;
            if (drafted > 0) run(model, speculative, std::span(drafts).first(static_cast<size_t>(drafted)));
            speculative.truncate(at);
            REQUIRE(speculative == state);
            // The same logits, and the same states, also when drafts are taken back again.
            REQUIRE(same_bits(run(model, speculative, next), run(model, plain, next)));
            REQUIRE(speculative == plain);
            const int64_t kept = drafted % 3;
            speculative.truncate(at + kept);
            plain = state;
            if (kept > 0) run(model, plain, std::span(next).first(static_cast<size_t>(kept)));
            REQUIRE(speculative == plain);
        }
        run(model, state, {&tokens[static_cast<size_t>(at)], 1});
    }
}

TEST_CASE("sequence state: part of a draft is kept") {
    const TextModel model = small::model(Arithmetic::hopper);
    const std::vector<int32_t> tokens = small::tokens(5, 60);
    for (const int64_t at : {1, 12, 25})
        for (int64_t accepted = 0; accepted <= 8; ++accepted) {
            CAPTURE(at);
            CAPTURE(accepted);
            SequenceState state = state_after(model, std::span(tokens).first(static_cast<size_t>(at)));
            run(model, state, std::span(tokens).subspan(static_cast<size_t>(at), 8));
            state.truncate(at + accepted);
            SequenceState plain =
                state_after(model, std::span(tokens).first(static_cast<size_t>(at + accepted)));
            REQUIRE(state == plain);
            const std::span<const int32_t> rest = std::span(tokens).subspan(58);
            REQUIRE(same_bits(run(model, state, rest), run(model, plain, rest)));
            REQUIRE(state == plain);
        }
}

TEST_CASE("sequence state: what cannot be taken back is refused and changes nothing") {
    const TextModel model = small::model(Arithmetic::exact);
    const std::vector<int32_t> tokens = small::tokens(6, 40);
    for (const int64_t count : {0, 1, 7, 9, 11, 12, 13, 30, 31}) {
        CAPTURE(count);
        SequenceState state(small::config(), 8);
        if (count > 0) run(model, state, std::span(tokens).first(static_cast<size_t>(count)));
        const SequenceState before = state;
        for (const int64_t to : {count + 1, count - 9, int64_t{-1}, std::numeric_limits<int64_t>::min(),
                                 std::numeric_limits<int64_t>::max()}) {
            CAPTURE(to);
            CHECK_THROWS_AS(state.truncate(to), UserError);
        }
        CHECK(state == before);
        state.truncate(count);
        CHECK(state == before);
        state.truncate(std::max<int64_t>(count - 8, 0));
        if (count > 8)
            CHECK(state == state_after(model, std::span(tokens).first(static_cast<size_t>(count - 8))));
        else
            CHECK(state == SequenceState(small::config()));
    }
    SequenceState rigid = state_after(model, tokens, 0);
    CHECK_THROWS_AS(rigid.truncate(39), UserError);
    CHECK_THROWS_AS(SequenceState(small::config(), -1), UserError);
    CHECK_THROWS_AS(SequenceState(small::config(), 513), UserError);
    CHECK_THROWS_AS(SequenceState(*find_model("deepseek-v4-flash").config()), UserError);
}

TEST_CASE("sequence state: of a model without Engram and without pairs, drafts are taken back as well") {
    ModelConfig config = small::config();
    config.engram.reset();
    config.compress_ratios = {0, 0, 1, 1, 1, 1, 1, 1, 1, 1};
    const SyntheticTensors made(config, 1);
    const CheckpointWeights weights(made);
    const TextModel model(config, weights, Arithmetic::exact);
    const std::vector<int32_t> tokens = small::tokens(7, 40);
    for (const int64_t count : {5, 30}) {
        SequenceState state(config), plain(config);
        run(model, state, std::span(tokens).first(static_cast<size_t>(count)));
        run(model, plain, std::span(tokens).first(static_cast<size_t>(count - 4)));
        const SequenceState before = state;
        CHECK_THROWS_AS(state.truncate(count - 9), UserError);
        CHECK(state == before);
        state.truncate(count - 4);
        CHECK(state == plain);
    }
}

TEST_CASE("sequence state: no call takes a state that a failed call has left") {
    const TextModel model = small::model(Arithmetic::exact);
    const std::vector<int32_t> tokens = small::tokens(8, 20);
    SequenceState state = state_after(model, std::span(tokens).first(13)), other = state;
    const SequenceState copy = state, untouched = other;
    ForwardOptions options;
    options.before_layer = [](int layer) {
        if (layer == 5) throw std::runtime_error("interrupted");
    };
    const Request request{&state, std::span(tokens).subspan(13)};
    CHECK_THROWS_AS(model.forward({&request, 1}, options), std::runtime_error);
    CHECK_FALSE(state == copy);
    CHECK_THROWS_WITH_AS(model.forward({&request, 1}), doctest::Contains("failed half-way"), UserError);
    CHECK_THROWS_AS(state.truncate(10), UserError);
    CHECK_THROWS_AS(state.drop_windows(), UserError);
    CHECK_THROWS_AS(state.begin_call(), UserError);
    // In company, the others are as they were.
    const Request both[] = {{&other, tokens}, request};
    CHECK_THROWS_AS(model.forward(both), UserError);
    CHECK(other == untouched);
    run(model, other, tokens);
    // The copy goes on.
    state = copy;
    CHECK(same_bits(run(model, state, tokens), run(model, other = copy, tokens)));
}

TEST_CASE("sequence state: dropping windows keeps all but windows") {
    const TextModel model = small::model(Arithmetic::exact);
    const std::vector<int32_t> tokens = small::tokens(9, 40);
    const SequenceState whole = state_after(model, std::span(tokens).first(31));
    SequenceState dropped = whole;
    dropped.drop_windows();
    CHECK(dropped.tokens() == 31);
    CHECK(dropped.sources() == whole.sources());
    CHECK(std::ranges::equal(dropped.engram_history(), whole.engram_history()));
    for (int layer = 0; layer < dropped.layers(); ++layer) {
        CHECK(dropped.window(layer).first() == 31);
        CHECK(dropped.window(layer).end() == 31);
    }
    CHECK_FALSE(dropped == whole);
    SequenceState go_on = whole;
    const std::span<const int32_t> rest = std::span(tokens).subspan(31);
    CHECK_FALSE(same_bits(run(model, dropped, rest), run(model, go_on, rest)));
}

TEST_CASE("sequence state: what a sequence does not hold plays no part (poison of an earlier one, K06)") {
    const TextModel model = small::model(Arithmetic::exact);
    const std::vector<int32_t> tokens = small::tokens(14, 30);
    SequenceState clean(small::config()), poisoned(small::config());
    const std::vector<Bf16> nan(70 * 32, Bf16{0x7FC0});
    for (int layer = 0; layer < poisoned.layers(); ++layer) {
        poisoned.window(layer).append(0, nan);
        poisoned.window(layer).clear(0);
    }
    for (const auto& entry : poisoned.sources())
        for (KvCache SourceState::*cache : {&SourceState::main, &SourceState::keys}) {
            (poisoned.source(entry.first).*cache).append(nan);
            (poisoned.source(entry.first).*cache).truncate(0);
        }
    REQUIRE(poisoned == clean);
    for (const size_t chunk : {5, 1, 24}) {
        const std::span<const int32_t> next =
            std::span(tokens).subspan(static_cast<size_t>(clean.tokens()), chunk);
        REQUIRE(same_bits(run(model, poisoned, next), run(model, clean, next)));
        REQUIRE(poisoned == clean);
    }
}

TEST_CASE("sequence state: equality sees every byte") {
    const TextModel model = small::model(Arithmetic::exact);
    const SequenceState state = state_after(model, small::tokens(10, 31));
    for (int layer = 0; layer < state.layers(); ++layer) {
        const WindowCache& window = state.window(layer);
        require_seen(state, window.saved().size(), [&](SequenceState& changed, size_t at) {
            std::vector<std::byte> saved = window.saved();
            saved[at] ^= std::byte{1};
            changed.window(layer).restore(window.first(), window.end(), saved);
        });
    }
    for (const auto& entry : state.sources()) {
        const int layer = entry.first;
        for (KvCache SourceState::*cache : {&SourceState::main, &SourceState::keys}) {
            const KvCache& stored = state.source(layer).*cache;
            const size_t in_rows = static_cast<size_t>(stored.rows());
            const KvPageMap map = stored.page().addresses();
            require_seen(state, in_rows * static_cast<size_t>(map.values.size_bytes + map.scales.size_bytes),
                         [&](SequenceState& changed, size_t at) {
                             std::vector<std::byte> pages(stored.pages().begin(), stored.pages().end());
                             const int64_t row = static_cast<int64_t>(at % in_rows);
                             const int64_t byte = static_cast<int64_t>(at / in_rows);
                             const KvRowOffsets offsets = map.row(row);
                             const int64_t values = map.values.size_bytes;
                             pages[static_cast<size_t>(byte < values ? offsets.values + byte
                                                                     : offsets.scales + byte - values)] ^=
                                 std::byte{0x80};
                             (changed.source(layer).*cache).restore(stored.rows(), pages);
                         });
        }
        if (entry.second.ratio == 1) continue;
        for (std::vector<float> OpenGroup::*part : {&OpenGroup::kv, &OpenGroup::score})
            require_seen(state, 4 * (entry.second.open.*part).size(), [&](SequenceState& changed, size_t at) {
                float& value = (changed.source(layer).open.*part)[at / 4];
                value = float_from_bits(float_bits(value) ^ (uint32_t{1} << (8 * (at % 4))));
            });
    }
    // Zeros of another sign are other bits; a NaN equals itself.
    for (std::vector<float> OpenGroup::*part : {&OpenGroup::kv, &OpenGroup::score}) {
        SequenceState zero = state, negative = state, nan = state;
        (zero.source(2).open.*part)[0] = 0.0f;
        (negative.source(2).open.*part)[0] = -0.0f;
        (nan.source(2).open.*part)[0] = std::numeric_limits<float>::quiet_NaN();
        CHECK_FALSE(zero == negative);
        CHECK(nan == SequenceState(nan));
    }
    // Positions, history, configuration.
    SequenceState later = state;
    later.advance(1, {});
    CHECK_FALSE(later == state);
    for (const int32_t id : state.engram_history().last(3)) {
        SequenceState other = state;
        other.advance(0, std::vector<int32_t>{id});
        const bool all_equal =
            std::ranges::equal(other.engram_history().last(3), state.engram_history().last(3));
        CHECK((other == state) == all_equal);
    }
    ModelConfig config = small::config();
    config.rope_theta = 20000;
    CHECK_FALSE(SequenceState(config) == SequenceState(small::config()));
    // How many tokens can be taken back is no part of it.
    CHECK(SequenceState(small::config(), 3) == SequenceState(small::config(), 8));
}
