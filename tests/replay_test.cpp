// Bounded replay: positions, work and bytes of spec/memory 5.5, 6 and g19, g24.
#include "simulator/replay.h"

#include <doctest/doctest.h>

#include <cmath>
#include <vector>

#include "reference/io/user_error.h"

using namespace touchstone;

namespace {

Replay replay_of(const char* name, const char* format = "") {
    const Model model = find_model(name);
    return Replay(model, KvAccount(model, format));
}

}  // namespace

TEST_CASE("replay: lengths (g24, table 6.1)") {
    const ReplayLengths lengths = replay_of("deepseek-v4.1-flash").lengths();
    CHECK(lengths.bounded_tokens == 128);
    CHECK(lengths.exact_tokens == 2541);
    CHECK(lengths.exact_token_layers == 24150);
    CHECK(lengths.uncut_token_layers == 50820);
    CHECK(lengths.whole_windows_tokens == 2560);
    CHECK(lengths.whole_model_tokens == 5120);
    CHECK(lengths.engine_halo_tokens == 2414);
}

TEST_CASE("replay: the dependency of the last row, counted layer by layer (real model and tiny)") {
    for (const char* name : {"deepseek-v4.1-flash", "tiny"}) {
        CAPTURE(name);
        const ModelConfig config = *find_model(name).config();
        const ReplayLengths lengths = replay_of(name).lengths();
        // Walk down from the last layer's one row: each layer needs the rows that the layer above reads.
        int64_t rows = 1, token_layers = 0;
        for (int64_t layer = config.num_hidden_layers; layer-- > first_decoder_layer(config);) {
            token_layers += rows;
            rows += config.sliding_window - 1;
        }
        CHECK(lengths.exact_tokens == rows);
        CHECK(lengths.exact_token_layers == token_layers);
    }
}

TEST_CASE("replay: prefill ratios (g19, table 5.5)") {
    struct Row {
        int64_t tokens;
        double bounded, exact, full_tflop;
    };
    const std::vector<Row> table{{128, 1.000, 1.000, 3.96},   {256, 0.755, 1.000, 7.92},
                                 {512, 0.633, 1.000, 15.8},   {1024, 0.571, 1.000, 31.7},
                                 {2048, 0.541, 1.000, 63.4},  {4096, 0.526, 0.814, 126.7},
                                 {8192, 0.518, 0.662, 253.4}, {16384, 0.514, 0.586, 506.9},
                                 {65536, 0.511, 0.529, 2027}, {1048576, 0.510, 0.511, 32439}};
    const Replay replay = replay_of("deepseek-v4.1-flash");
    for (const Row& row : table) {
        CAPTURE(row.tokens);
        const PrefillFlops work = replay.prefill(row.tokens);
        CHECK(std::abs(work.bounded / work.full - row.bounded) < 5.01e-4);
        CHECK(std::abs(work.exact / work.full - row.exact) < 5.01e-4);
        CHECK(work.full / 1e12 == doctest::Approx(row.full_tflop).epsilon(3e-3));
        CHECK(work.boundary_projection < 4e-4 * work.bounded);
    }
    const PrefillFlops far = replay.prefill(max_context_tokens);
    CHECK(std::abs(far.engine / far.full - 0.5347) < 5e-5);
}

TEST_CASE("replay: nothing is saved up to the window (N <= 128)") {
    const Replay replay = replay_of("deepseek-v4.1-flash");
    for (int64_t tokens = 1; tokens <= 128; ++tokens) {
        CAPTURE(tokens);
        const PrefillFlops work = replay.prefill(tokens);
        CHECK(work.bounded == work.full);
        CHECK(work.exact == work.full);
        CHECK(work.boundary_projection == 0);
    }
    CHECK(replay.prefill(129).bounded < replay.prefill(129).full);
}

TEST_CASE("replay: work of rebuilding the windows (g24, 6.2)") {
    const Replay replay = replay_of("deepseek-v4.1-flash");
    CHECK(2 * static_cast<double>(replay.encoder_parameters()) * 128 / 1e12 ==
          doctest::Approx(2.02).epsilon(2e-3));
    CHECK(2 * static_cast<double>(replay.decoder_parameters()) * 128 / 1e12 ==
          doctest::Approx(1.94).epsilon(2e-3));
    CHECK(2 * static_cast<double>(replay.encoder_parameters()) * 2541 / 1e12 ==
          doctest::Approx(40.1).epsilon(2e-3));
    CHECK(2 * static_cast<double>(replay.decoder_parameters()) * 2541 / 1e12 ==
          doctest::Approx(38.5).epsilon(2e-3));
    const TurnFlops turn = replay.turn(65536, 512);
    CHECK((turn.miss_bounded - turn.hit) / 1e12 == doctest::Approx(2.02).epsilon(2e-3));
    CHECK(replay.encoder_window_bytes(128) == 1351680);
    CHECK(replay.encoder_window_bytes(2541) == 1351680);
    CHECK(replay.encoder_window_bytes(1) == 20 * 528);
}

TEST_CASE("replay: a miss at 128 new tokens costs 1.5 times the hit, 20 times when exact (6.3)") {
    const TurnFlops turn = replay_of("deepseek-v4.1-flash").turn(65536, 128);
    CHECK(turn.miss_bounded / turn.hit == doctest::Approx(1.5).epsilon(2e-2));
    CHECK(turn.miss_exact / turn.hit == doctest::Approx(20).epsilon(4e-2));
    // The replay adds under a tenth of the work from about 1,160 new tokens on.
    const auto added = [](int64_t tokens) {
        const TurnFlops work = replay_of("deepseek-v4.1-flash").turn(65536, tokens);
        return work.miss_bounded / work.hit - 1;
    };
    CHECK(added(1150) > 0.1);
    CHECK(added(1165) < 0.1);
}

TEST_CASE("replay: no prefix, no encoder replay") {
    const TurnFlops turn = replay_of("deepseek-v4.1-flash").turn(4096, 4096);
    CHECK(turn.miss_bounded == turn.hit);
}

TEST_CASE("replay: tiny splits at its last KV source") {
    const Replay replay = replay_of("tiny");
    CHECK(replay.first_decoder_layer() == 6);
    CHECK(replay.lengths().exact_tokens == 4 * 47 + 1);
    CHECK(replay.encoder_window_bytes(48) == 6 * 48 * 132);
}

TEST_CASE("replay: models and prompts that cannot be replayed are refused") {
    CHECK_THROWS_AS(replay_of("deepseek-v4-flash"), UserError);
    CHECK_THROWS_AS(replay_of("llama-3.1-8b"), UserError);
    const Replay replay = replay_of("deepseek-v4.1-flash");
    CHECK_THROWS_AS(replay.prefill(0), UserError);
    CHECK_THROWS_AS(replay.turn(100, 0), UserError);
    CHECK_THROWS_AS(replay.turn(100, 101), UserError);
}
