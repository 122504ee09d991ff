// touchstone replay: what rebuilding sliding windows costs with bounded, exact and no replay.
#include <fmt/format.h>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/table.h"
#include "reference/io/user_error.h"
#include "simulator/replay.h"

namespace touchstone::cli {

namespace {

using nlohmann::json;

/// One way to run the prompt's decoder half.
struct PrefillRow {
    const char* key;
    const char* what;
    int64_t decoder_tokens;
    double flops;
};

std::vector<PrefillRow> prefill_rows(const Replay& replay, int64_t prompt_tokens) {
    const PrefillFlops work = replay.prefill(prompt_tokens);
    const ReplayLengths& lengths = replay.lengths();
    const int64_t bounded = std::min(prompt_tokens, lengths.bounded_tokens);
    return {
        {"full", "no replay: every layer on every token", prompt_tokens, work.full},
        {"bounded", "bounded replay", bounded, work.bounded},
        {"exact", "exact halo", std::min(prompt_tokens, lengths.exact_tokens), work.exact},
        {"engine", "first decoder layer whole, the rest bounded", bounded, work.engine},
    };
}

Table prefill_table(const Replay& replay, int64_t prompt_tokens) {
    Table table({"prefill", "decoder tokens", "linear TFLOP", "of full"});
    const std::vector<PrefillRow> rows = prefill_rows(replay, prompt_tokens);
    for (const PrefillRow& row : rows)
        table.add_row({std::string(row.what), row.decoder_tokens, Decimal{row.flops / 1e12, 3},
                       Decimal{row.flops / rows[0].flops, 3}});
    return table;
}

json lengths_json(const ReplayLengths& lengths) {
    return {{"bounded_tokens", lengths.bounded_tokens},
            {"exact_tokens", lengths.exact_tokens},
            {"exact_token_layers", lengths.exact_token_layers},
            {"uncut_token_layers", lengths.uncut_token_layers},
            {"whole_windows_tokens", lengths.whole_windows_tokens},
            {"whole_model_tokens", lengths.whole_model_tokens},
            {"engine_halo_tokens", lengths.engine_halo_tokens}};
}

Table lengths_table(const ReplayLengths& lengths) {
    Table table({"to rebuild the decoder's windows", "positions"});
    table.add_row({std::string("bounded: the window W"), lengths.bounded_tokens});
    table.add_row({std::string("exact: layers x (W - 1) + 1"), lengths.exact_tokens});
    table.add_row({std::string("exact after the first decoder layer (engines)"), lengths.engine_halo_tokens});
    table.add_row({std::string("whole windows, decoder: W x layers (report)"), lengths.whole_windows_tokens});
    table.add_row({std::string("whole windows, all layers (report)"), lengths.whole_model_tokens});
    table.add_row(
        {std::string("token-layers, exact, each layer only what it needs"), lengths.exact_token_layers});
    table.add_row(
        {std::string("token-layers, exact, every layer all positions"), lengths.uncut_token_layers});
    return table;
}

struct TurnRow {
    const char* key;
    const char* what;
    int64_t encoder_replay_tokens;
    double flops;
};

std::vector<TurnRow> turn_rows(const Replay& replay, int64_t prompt_tokens, int64_t new_tokens) {
    const TurnFlops work = replay.turn(prompt_tokens, new_tokens);
    const int64_t prefix = prompt_tokens - new_tokens;
    return {
        {"hit", "windows of the prefix still there", 0, work.hit},
        {"miss_bounded", "windows lost, bounded encoder replay",
         std::min(prefix, replay.lengths().bounded_tokens), work.miss_bounded},
        {"miss_exact", "windows lost, exact replay of both halves",
         std::min(prefix, replay.lengths().exact_tokens), work.miss_exact},
    };
}

Table turn_table(const Replay& replay, int64_t prompt_tokens, int64_t new_tokens) {
    Table table({"turn", "encoder replay tokens", "window bytes rebuilt", "linear TFLOP", "of hit"});
    const std::vector<TurnRow> rows = turn_rows(replay, prompt_tokens, new_tokens);
    for (const TurnRow& row : rows)
        table.add_row({std::string(row.what), row.encoder_replay_tokens,
                       replay.encoder_window_bytes(row.encoder_replay_tokens), Decimal{row.flops / 1e12, 3},
                       Decimal{row.flops / rows[0].flops, 3}});
    return table;
}

const std::vector<std::string>& replay_assumptions() {
    static const std::vector<std::string> notes{
        "FLOPs are the linear part: 2 per active parameter and token; attention and index scores are not in "
        "it",
        "bounded leaves out the first decoder layer's KV projection of skipped tokens "
        "(boundary_projection_flops in JSON)"};
    return notes;
}

std::string replay_json(const Model& model, const Replay& replay, const KvAccount& account,
                        int64_t prompt_tokens, int64_t new_tokens) {
    const double full = replay.prefill(prompt_tokens).full;
    json object = {{"schema", "touchstone.replay/1"},
                   {"model", model.name},
                   {"context_tokens", prompt_tokens},
                   {"bounded_tokens", replay.lengths().bounded_tokens},
                   {"exact_halo_tokens", replay.lengths().exact_tokens},
                   {"first_decoder_layer", replay.first_decoder_layer()},
                   {"encoder_parameters", replay.encoder_parameters()},
                   {"decoder_parameters", replay.decoder_parameters()},
                   {"lengths", lengths_json(replay.lengths())},
                   {"boundary_projection_flops", replay.prefill(prompt_tokens).boundary_projection},
                   {"assumptions", replay_assumptions()}};
    for (const PrefillRow& row : prefill_rows(replay, prompt_tokens))
        object["prefill"][row.key] = {{"decoder_tokens", row.decoder_tokens},
                                      {"flops", row.flops},
                                      {"ratio_to_full", row.flops / full}};
    if (new_tokens == 0) return to_text(object);
    const double hit = replay.turn(prompt_tokens, new_tokens).hit;
    object["new_tokens"] = new_tokens;
    object["prefix_global_bytes"] = account.global_bytes(prompt_tokens - new_tokens);
    for (const TurnRow& row : turn_rows(replay, prompt_tokens, new_tokens))
        object["turn"][row.key] = {
            {"encoder_replay_tokens", row.encoder_replay_tokens},
            {"window_bytes_rebuilt", replay.encoder_window_bytes(row.encoder_replay_tokens)},
            {"flops", row.flops},
            {"ratio_to_hit", row.flops / hit}};
    return to_text(object);
}

std::string replay_text(const Model& model, const Replay& replay, const KvAccount& account,
                        int64_t prompt_tokens, int64_t new_tokens) {
    std::string text = fmt::format("{}: replay for a prompt of {} tokens (decoder: layers from {})\n\n",
                                   model.name, grouped(prompt_tokens), replay.first_decoder_layer());
    text += lengths_table(replay.lengths()).text() + "\n" + prefill_table(replay, prompt_tokens).text();
    if (new_tokens > 0)
        text +=
            fmt::format(
                "\nA turn of {} new tokens after a prefix of {} ({} B of global KV read, none recomputed)\n",
                grouped(new_tokens), grouped(prompt_tokens - new_tokens),
                grouped(account.global_bytes(prompt_tokens - new_tokens))) +
            turn_table(replay, prompt_tokens, new_tokens).text();
    return text + assumptions_text(replay_assumptions());
}

}  // namespace

void run_replay(const ReplayOptions& options) {
    const int64_t prompt_tokens = parse_tokens("--context", options.context, 1);
    const Model model = find_model(options.model);
    const KvAccount account(model, options.format);
    const Replay replay(model, account);
    int64_t new_tokens = 0;
    if (!options.new_tokens.empty()) {
        new_tokens = parse_tokens("--new", options.new_tokens, 1);
        replay.turn(prompt_tokens,
                    new_tokens);  // refuses more new tokens than the prompt has before anything is written
    }
    if (options.output.json)
        write_result(replay_json(model, replay, account, prompt_tokens, new_tokens));
    else if (options.output.csv)
        write_result((new_tokens > 0 ? turn_table(replay, prompt_tokens, new_tokens)
                                     : prefill_table(replay, prompt_tokens))
                         .csv());
    else
        write_result(replay_text(model, replay, account, prompt_tokens, new_tokens));
}

}  // namespace touchstone::cli
