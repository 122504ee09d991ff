#include "reference/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

[[noreturn]] void refuse(std::string what, std::string expected, std::string remedy = "") {
    throw UserError({std::move(what), "replay", std::move(expected), std::move(remedy)});
}

template <class Enum, size_t n>
Enum named(std::string_view name, const std::array<std::string_view, n>& names) {
    const auto found = std::ranges::find(names, name);
    if (found == names.end())
        refuse(fmt::format("\"{}\"", name), fmt::format("{}, {} or {}", names[0], names[1], names[2]));
    return static_cast<Enum>(found - names.begin());
}

void require_skippable_decoder(const ModelConfig& config) {
    const int first = first_decoder_layer(config);
    if (first == config.num_hidden_layers - 1)
        refuse("no layer follows the last KV source", "a decoder that can skip rows", "use --replay none");
    if (config.engram && config.engram->layer_ids.back() >= first)
        refuse(fmt::format("an Engram in decoder layer {}", config.engram->layer_ids.back()),
               "Engram in the encoder alone: its rows would be skipped", "use --replay none");
}

}  // namespace

ReplayMode replay_mode(std::string_view name) {
    return named<ReplayMode>(name, std::array<std::string_view, 3>{"none", "bounded", "exact"});
}

BoundaryReading boundary_reading(std::string_view letter) {
    return named<BoundaryReading>(letter, std::array<std::string_view, 3>{"A", "B", "C"});
}

std::vector<LayerRange> replay_ranges(const ModelConfig& config, ReplayMode mode, BoundaryReading reading,
                                      int64_t prompt_tokens) {
    std::vector<LayerRange> ranges(static_cast<size_t>(config.num_hidden_layers));
    if (mode == ReplayMode::none) return ranges;
    require_skippable_decoder(config);
    const int64_t window = config.sliding_window;
    const int64_t layers = config.num_hidden_layers, first = first_decoder_layer(config);
    for (int64_t layer = first; layer < layers; ++layer) {
        // Exact: a row of the last layer needs W rows of its input, each of which needs W - 1 more a layer
        // below.
        const int64_t above = layers - 1 - layer;
        const int64_t rows = mode == ReplayMode::exact ? window + above * (window - 1) : window;
        const int64_t from = std::max<int64_t>(prompt_tokens - rows, 0);
        ranges[static_cast<size_t>(layer)] = {from, from};
    }
    LayerRange& boundary = ranges[static_cast<size_t>(first)];
    if (mode == ReplayMode::bounded && reading == BoundaryReading::own_windows) boundary.window_from = 0;
    if (mode == ReplayMode::bounded && reading == BoundaryReading::whole) boundary = {0, 0};
    return ranges;
}

std::vector<float> prefill(const TextModel& model, SequenceState& state, std::span<const int32_t> tokens,
                           const PrefillOptions& options) {
    if (options.chunk_tokens < 1) refuse("chunks without tokens", "at least 1 token");
    const std::vector<LayerRange> ranges =
        replay_ranges(model.config(), options.mode, options.reading, state.tokens() + std::ssize(tokens));
    ForwardOptions forward = options.forward;
    forward.ranges = ranges;
    std::vector<float> logits;
    for (size_t first = 0; first < tokens.size() || first == 0;) {
        const size_t count = std::min(static_cast<size_t>(options.chunk_tokens), tokens.size() - first);
        if (options.trace_of_call) forward.trace = options.trace_of_call(state.tokens());
        const Request request{&state, tokens.subspan(first, count)};
        logits = std::move(model.forward({&request, 1}, forward).front());
        first += count;
    }
    return logits;
}

std::vector<float> prefill_after_hit(const TextModel& model, SequenceState& state,
                                     std::span<const int32_t> prompt, int64_t replay_tokens,
                                     const PrefillOptions& options) {
    if (options.chunk_tokens < 1) refuse("chunks without tokens", "at least 1 token");
    const int64_t prefix = state.tokens();
    if (std::ssize(prompt) <= prefix)
        refuse(fmt::format("a prompt of {} tokens and a cached prefix of {}", prompt.size(), prefix),
               "at least one token behind the prefix", "shorten the hit by a token");
    if (replay_tokens < 1 || replay_tokens >= prefix)
        refuse(fmt::format("replaying {} tokens of a prefix of {}", replay_tokens, prefix),
               fmt::format("1 to {}", prefix - 1), "run the prompt without the hit");
    const int64_t start = prefix - replay_tokens;

    // The replayed tokens and the first chunk behind them go in one call: the decoder may need rows of both.
    const int64_t count = replay_tokens + std::min(options.chunk_tokens, std::ssize(prompt) - prefix);
    ForwardOptions forward = options.forward;
    const std::vector<LayerRange> ranges =
        replay_ranges(model.config(), options.mode, options.reading, std::ssize(prompt));
    forward.ranges = ranges;
    if (options.trace_of_call) forward.trace = options.trace_of_call(start);
    SequenceState replayed = state;
    for (int layer = 0; layer < replayed.layers(); ++layer) replayed.window(layer).clear(start);
    const Request request{&replayed, prompt.subspan(static_cast<size_t>(start), static_cast<size_t>(count)),
                          replay_tokens, prompt.first(static_cast<size_t>(start))};
    std::vector<float> logits = std::move(model.forward({&request, 1}, forward).front());
    state = std::move(replayed);
    if (start + count == std::ssize(prompt)) return logits;
    return prefill(model, state, prompt.subspan(static_cast<size_t>(start + count)), options);
}

}  // namespace touchstone
