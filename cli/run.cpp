// touchstone run: the whole text model, turn after turn.
#include "cli/run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <numeric>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/model_source.h"
#include "cli/output.h"
#include "cli/table.h"
#include "reference/io/atomic_file.h"
#include "reference/io/user_error.h"
#include "reference/sampling.h"

namespace touchstone::cli {

namespace {

using nlohmann::json;

[[noreturn]] void refuse(std::string what, std::string where, std::string expected, std::string remedy = "") {
    throw UserError({std::move(what), std::move(where), std::move(expected), std::move(remedy)});
}

std::vector<int32_t> parse_token_ids(const RunOptions& options, const ModelConfig& config) {
    const int64_t vocabulary = config.vocab_size;
    std::vector<int32_t> tokens;
    if (!options.tokens.empty())
        for (const std::string& item : parse_list("--tokens", options.tokens))
            tokens.push_back(
                parse_number<int32_t>("--tokens", item, 0, static_cast<int32_t>(vocabulary - 1)));
    if (options.random_tokens.empty()) return tokens;
    if (!tokens.empty()) refuse("both --tokens and --random-tokens", "--random-tokens", "one of them");
    const int64_t count = parse_tokens("--random-tokens", options.random_tokens, 1);
    if (count > config.max_position_embeddings)
        refuse(fmt::format("{} random tokens", count), "--random-tokens",
               fmt::format("at most {} (max_position_embeddings)", config.max_position_embeddings));
    const RandomStream random{parse_number<uint64_t>("--seed", options.seed, 0, UINT64_MAX), 1};
    for (int64_t i = 0; i < count; ++i)
        tokens.push_back(
            static_cast<int32_t>(random.word(static_cast<uint64_t>(i)) % static_cast<uint32_t>(vocabulary)));
    return tokens;
}

/// The result of one step: which token stood at `position` and what follows it.
struct Step {
    std::string kind;
    int64_t position;
    int32_t token;
    std::vector<double> logits;
};

std::vector<int32_t> best_tokens(const std::vector<double>& logits, int64_t count) {
    std::vector<int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    const auto better = [&](int32_t a, int32_t b) {
        const double x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
        return x > y || (x == y && a < b);
    };
    count = std::min(count, std::ssize(order));
    std::partial_sort(order.begin(), order.begin() + count, order.end(), better);
    order.resize(static_cast<size_t>(count));
    return order;
}

/// How far the last row of a bounded prefill is from that of all layers on all rows.
struct Drift {
    double largest, rms;  ///< of the differences, relative to the rms of the logits
    bool same_best;
};

Drift drift_between(const std::vector<double>& bounded, const std::vector<double>& oracle) {
    double largest = 0, squares = 0, size = 0;
    for (size_t i = 0; i < oracle.size(); ++i) {
        const double difference = std::abs(bounded[i] - oracle[i]);
        largest = std::max(largest, difference);
        squares += difference * difference;
        size += oracle[i] * oracle[i];
    }
    const double rms = std::sqrt(size / static_cast<double>(oracle.size()));
    return {largest / rms, std::sqrt(squares / static_cast<double>(oracle.size())) / rms,
            best_tokens(bounded, 1) == best_tokens(oracle, 1)};
}

/// All that a run has to tell.
struct RunResult {
    std::vector<Step> steps;
    std::vector<int32_t> generated;
    std::optional<Drift> drift;
    int64_t first_token = 0, tokens = 0;
    std::optional<int64_t> state_bytes;
};

/// "prefill", "decode 3 of 8" on a terminal; elsewhere nothing.
void show_progress(const std::string& text) {
    if (::isatty(STDERR_FILENO) == 0) return;
    fmt::print(stderr, "\r{}\x1b[K", text);
    std::fflush(stderr);
}

int32_t next_token(const std::vector<double>& logits, float temperature, uint64_t seed, int64_t position) {
    const std::vector<float> narrow(logits.begin(), logits.end());
    // A stream per position: the same token whatever was generated in which call.
    return sample_token(narrow, temperature, RandomStream{seed, 2 + static_cast<uint64_t>(position)}, 0);
}

/// The prompt, part of which may be a prefix hit.
std::vector<double> prefill_prompt(Runner& runner, const RunOptions& options, const RunSettings& settings,
                                   int64_t window, const std::vector<int32_t>& tokens) {
    if (options.hit.empty()) {
        if (!options.replay_tokens.empty())
            refuse("--replay-tokens without --hit", "--replay-tokens", "a prefix hit to replay");
        return runner.prefill(tokens, settings.replay, true);
    }
    const int64_t hit = parse_tokens("--hit", options.hit, 1);
    const int64_t replayed =
        options.replay_tokens.empty() ? window : parse_tokens("--replay-tokens", options.replay_tokens, 1);
    if (runner.tokens() > 0) refuse("--hit behind a loaded state", "--hit", "a prompt from its beginning");
    if (hit >= std::ssize(tokens))
        refuse(fmt::format("a hit of {} tokens in a prompt of {}", hit, tokens.size()), "--hit",
               "at least one token behind it", "shorten the hit");
    if (replayed >= hit)
        refuse(fmt::format("replaying {} tokens of a hit of {}", replayed, hit), "--replay-tokens, --hit",
               "a hit longer than what is replayed: engines do not adopt a shorter one", "run without --hit");
    return runner.prefill_after_hit(tokens, hit, replayed);
}

/// What the run will come to is refused before its work is done.
int64_t decode_steps(const RunOptions& options, const ModelConfig& config, int64_t loaded, int64_t prompt) {
    const int64_t steps = options.decode.empty() ? 0 : parse_tokens("--decode", options.decode, 0);
    const int64_t context = loaded + prompt + steps;
    if (context > config.max_position_embeddings)
        refuse(fmt::format("a context of {} tokens: {} loaded, {} of the prompt, {} to generate", context,
                           loaded, prompt, steps),
               "--tokens, --decode",
               fmt::format("at most {} (max_position_embeddings)", config.max_position_embeddings));
    return steps;
}

RunResult run_turn(Runner& runner, const RunOptions& options, const RunSettings& settings,
                   const ModelConfig& config, const std::vector<int32_t>& tokens) {
    const int64_t steps = decode_steps(options, config, runner.tokens(), std::ssize(tokens));
    const float temperature = parse_number<float>("--temperature", options.temperature, 0.0f, 1e6f);
    const uint64_t seed = parse_number<uint64_t>("--seed", options.seed, 0, UINT64_MAX);
    RunResult result;
    result.first_token = runner.tokens();
    std::unique_ptr<Runner> oracle;
    if (!options.no_drift && (settings.replay == ReplayMode::bounded || !options.hit.empty()))
        oracle = runner.fork();

    show_progress(fmt::format("prefill of {} tokens", tokens.size()));
    std::vector<double> logits = prefill_prompt(runner, options, settings, config.sliding_window, tokens);
    if (oracle != nullptr)
        result.drift = drift_between(logits, oracle->prefill(tokens, ReplayMode::none, false));
    result.steps.push_back({"prefill", runner.tokens() - 1, tokens.back(), logits});
    for (int64_t i = 0; i < steps; ++i) {
        show_progress(fmt::format("decode {} of {}", i + 1, steps));
        const int32_t token = next_token(logits, temperature, seed, runner.tokens());
        result.generated.push_back(token);
        logits = runner.prefill({&token, 1}, ReplayMode::none, true);
        result.steps.push_back({"decode", runner.tokens() - 1, token, logits});
    }
    show_progress("");
    result.tokens = runner.tokens();
    result.state_bytes = runner.state_bytes();
    return result;
}

Table steps_table(const RunResult& result, int64_t top) {
    std::vector<std::string> headers{"step", "position", "token"};
    for (int64_t i = 1; i <= top; ++i)
        headers.insert(headers.end(), {fmt::format("token {}", i), fmt::format("logit {}", i)});
    Table table(headers);
    for (const Step& step : result.steps) {
        std::vector<Cell> cells{step.kind, step.position, int64_t{step.token}};
        for (const int32_t token : best_tokens(step.logits, top)) {
            cells.push_back(int64_t{token});
            cells.push_back(Decimal{step.logits[static_cast<size_t>(token)], 5});
        }
        table.add_row(std::move(cells));
    }
    return table;
}

std::string result_text(const RunOptions& options, const TensorSource& source, const RunResult& result,
                        int64_t top) {
    std::string text = fmt::format("{}, {} layers, arithmetic {}, {} tokens", options.config,
                                   source.config().num_hidden_layers, options.arithmetic, result.tokens);
    if (result.first_token > 0) text += fmt::format(", {} of them loaded", result.first_token);
    text += "\n\nWhat follows each token, likeliest first\n";
    text += steps_table(result, top).text();
    if (!result.generated.empty()) text += fmt::format("\nGenerated: {}\n", fmt::join(result.generated, ","));
    if (result.drift)
        text += fmt::format(
            "\nAgainst all layers on all rows without a replay: logits differ by {:.3g} of their rms at "
            "most, "
            "{:.3g} in the mean; the likeliest token is {}.\n",
            result.drift->largest, result.drift->rms, result.drift->same_best ? "the same" : "another");
    if (result.state_bytes)
        text += fmt::format("\nState: {} bytes of packed windows, rows and index keys\n",
                            grouped(*result.state_bytes));
    return text;
}

json result_json(const RunOptions& options, const TensorSource& source, const RunResult& result,
                 int64_t top) {
    json object = {{"schema", "touchstone.run/1"},
                   {"config", options.config},
                   {"arithmetic", options.arithmetic},
                   {"replay", options.replay},
                   {"reading", options.reading},
                   {"hit", options.hit},
                   {"replay_tokens", options.replay_tokens},
                   {"seed", options.seed},
                   {"temperature", options.temperature},
                   {"weights_seed", options.weights_seed},
                   {"released_stale_index_keys", options.stale_index_keys},
                   {"released_masked_rows", options.masked_rows_attended},
                   {"forced_choices", options.force_choices},
                   {"layers", source.config().num_hidden_layers},
                   {"tokens", result.tokens},
                   {"loaded_tokens", result.first_token},
                   {"generated", result.generated},
                   {"state_bytes", result.state_bytes ? json(*result.state_bytes) : json(nullptr)},
                   {"drift", nullptr},
                   {"steps", json::array()}};
    if (result.drift)
        object["drift"] = {{"largest_of_rms", result.drift->largest},
                           {"rms_of_rms", result.drift->rms},
                           {"same_likeliest_token", result.drift->same_best}};
    for (const Step& step : result.steps) {
        json best = json::array();
        for (const int32_t token : best_tokens(step.logits, top))
            best.push_back({{"token", token}, {"logit", step.logits[static_cast<size_t>(token)]}});
        object["steps"].push_back(
            {{"step", step.kind}, {"position", step.position}, {"token", step.token}, {"likeliest", best}});
    }
    return object;
}

std::unique_ptr<Runner> make_runner(const RunOptions& options, const TensorSource& source,
                                    const RunSettings& settings) {
    const bool rounds = options.arithmetic == "truth";
    if (rounds || options.arithmetic == "ideal") {
        if (!options.load.empty() || !options.save.empty())
            refuse(fmt::format("{} keeps its state in double", options.arithmetic), "--load, --save",
                   "exact, hopper or released_hopper: their state is packed");
        return double_runner(source, rounds, settings);
    }
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper})
        if (options.arithmetic == arithmetic_name(arithmetic))
            return bit_exact_runner(source, arithmetic, settings, options.load);
    refuse(fmt::format("arithmetic \"{}\"", options.arithmetic), "--arithmetic",
           "exact, hopper, released_hopper, truth or ideal");
}

/// What bisect wants to know of the pass.
std::map<std::string, std::string> trace_metadata(const RunOptions& options) {
    std::map<std::string, std::string> metadata{
        {"schema", "touchstone.trace/1"}, {"config", options.config}, {"arithmetic", options.arithmetic}};
    if (!options.weights_seed.empty()) metadata.emplace("weights_seed", options.weights_seed);
    return metadata;
}

}  // namespace

void run_run(const RunOptions& options) {
    std::vector<std::string> assumptions;
    const std::unique_ptr<TensorSource> source =
        open_source(options.config, options.weights_seed, assumptions);
    const std::vector<int32_t> tokens = parse_token_ids(options, source->config());
    if (tokens.empty())
        refuse("no tokens: nothing to prefill, and nothing that a decode step could follow", "--tokens",
               "token ids separated by commas, or --random-tokens N",
               options.load.empty() ? "" : "the loaded sequence goes on with the tokens given here");
    if (source->config().engram)
        assumptions.push_back(
            "token ids are compressed for Engram without a tokenizer: id modulo the compressed "
            "vocabulary");

    if (!options.load.empty())
        assumptions.push_back("the state was made with these weights and this arithmetic: it does not say");
    RunSettings settings{.replay = replay_mode(options.replay),
                         .reading = boundary_reading(options.reading),
                         .chunk_tokens = parse_tokens("--chunk", options.chunk, 1),
                         .released = {options.stale_index_keys, options.masked_rows_attended},
                         .forced = nullptr,
                         .trace = nullptr};
    ForcedChoices forced;
    if (!options.force_choices.empty()) {
        forced = read_choices(options.force_choices, source->config());
        settings.forced = &forced;
    }
    std::unique_ptr<TraceFile> trace;
    if (!options.trace.empty()) trace = std::make_unique<TraceFile>(options.trace);
    settings.trace = trace.get();
    settings.before_layer = [layers = source->config().num_hidden_layers](int layer) {
        show_progress(fmt::format("layer {} of {}", layer + 1, layers));
    };

    for (const std::string* path : {&options.save, &options.trace})
        if (!path->empty()) const AtomicFile refused_now_not_after_the_work(*path);
    const std::unique_ptr<Runner> runner = make_runner(options, *source, settings);
    const int64_t top =
        std::min(parse_number<int64_t>("--top", options.top, 1, 20), source->config().vocab_size);
    const RunResult result = run_turn(*runner, options, settings, source->config(), tokens);
    if (trace != nullptr) {
        trace->set_metadata(trace_metadata(options));
        trace->finish();
    }
    if (!options.save.empty()) runner->save(options.save);
    if (options.output.json) {
        json object = result_json(options, *source, result, top);
        object["assumptions"] = assumptions;
        return write_result(to_text(object));
    }
    if (options.output.csv) return write_result(steps_table(result, top).csv());
    write_result(result_text(options, *source, result, top) + assumptions_text(assumptions));
}

}  // namespace touchstone::cli
