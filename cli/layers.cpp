// touchstone layers: what each layer does, and what the weights count.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/output.h"
#include "cli/table.h"
#include "reference/io/user_error.h"
#include "reference/model/layer_roles.h"
#include "reference/model/model.h"
#include "simulator/parameters.h"
#include "simulator/step_traffic.h"

namespace touchstone::cli {

namespace {

using nlohmann::json;

const ModelConfig& config_of(const Model& model) {
    if (const ModelConfig* config = model.config()) return *config;
    throw UserError({fmt::format("model {} is a baseline: only its caches are described", model.name),
                     "--model", "a DeepSeek-V4 or V4.1 configuration",
                     "touchstone kv accounts for baselines"});
}

std::string layer_or_dash(int layer) {
    return layer < 0 ? "-" : std::to_string(layer);
}

Table roles_table(const ModelConfig& config) {
    Table table({"layer", "half", "mode", "ratio", "RoPE", "KV of", "index keys of", "top-k of", "pool",
                 "Engram", "draft tap"});
    for (const LayerRole& role : layer_roles(config))
        table.add_row({int64_t{role.layer}, std::string(name(role.half)), std::string(name(role.mode)),
                       int64_t{role.compress_ratio}, std::string(role.compress_rope ? "compress" : "main"),
                       layer_or_dash(role.kv_source), layer_or_dash(role.index_key_source),
                       layer_or_dash(role.top_k_source),
                       std::string(role.pool == PoolRole::none ? "-" : name(role.pool)),
                       std::string(role.engram ? "yes" : "-"), std::string(role.draft_tap ? "yes" : "-")});
    return table;
}

json optional_layer(int layer) {
    return layer < 0 ? json(nullptr) : json(layer);
}

json roles_json(const ModelConfig& config) {
    json list = json::array();
    for (const LayerRole& role : layer_roles(config))
        list.push_back({{"layer", role.layer},
                        {"half", name(role.half)},
                        {"mode", name(role.mode)},
                        {"compress_ratio", role.compress_ratio},
                        {"rope", role.compress_rope ? "compress" : "main"},
                        {"kv_source", optional_layer(role.kv_source)},
                        {"index_key_source", optional_layer(role.index_key_source)},
                        {"top_k_source", optional_layer(role.top_k_source)},
                        {"pool", name(role.pool)},
                        {"engram", role.engram},
                        {"draft_tap", role.draft_tap}});
    return list;
}

Table components_table(const WeightTotals& totals) {
    Table table({"component", "tensors", "parameters", "stored bytes"});
    for (const ComponentWeights& row : totals.components)
        table.add_row({std::string(name(row.component)), row.tensors, row.parameters, row.stored_bytes});
    table.add_row({std::string("total"), totals.tensors, totals.parameters, totals.stored_bytes});
    return table;
}

struct ActiveRow {
    const char* key;
    const char* what;
    int64_t parameters;
};

std::vector<ActiveRow> active_rows(const ActiveParameters& active) {
    return {
        {"decode_layers", "decode: all layers with their compressors and indexers",
         active.decode(false, false)},
        {"decode_with_head", "decode: and the head", active.decode(true, false)},
        {"decode_with_head_and_engram", "decode: and the Engram projections", active.decode(true, true)},
        {"prefill", "prefill: encoder, and the decoder's KV projection", active.prefill(false)},
        {"prefill_with_engram", "prefill: and the Engram projections", active.prefill(true)},
        {"prefill_first_decoder_layer", "prefill that runs the first decoder layer whole",
         active.prefill_with_first_decoder_layer(false)},
        {"prefill_first_decoder_layer_with_engram", "prefill that runs it whole: and the Engram projections",
         active.prefill_with_first_decoder_layer(true)},
    };
}

Table active_table(const ActiveParameters& active) {
    Table table({"active per token", "parameters"});
    for (const ActiveRow& row : active_rows(active)) table.add_row({std::string(row.what), row.parameters});
    return table;
}

struct StreamRow {
    const char* key;
    StreamForm form;
};
constexpr StreamRow stream_rows[] = {{"single_pass", StreamForm::single_pass},
                                     {"two_pass", StreamForm::two_pass},
                                     {"original", StreamForm::original}};
constexpr int64_t step_tokens[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};

Table step_table(const ModelConfig& config, const WeightTotals& totals) {
    Table table({"tokens in a step", "distinct experts per layer", "routed GB", "with everything else GB"});
    for (const int64_t tokens : step_tokens) {
        const StepWeightBytes bytes = step_weight_bytes(config, totals, tokens);
        table.add_row({tokens, Decimal{expected_distinct_experts(config, tokens), 1},
                       Decimal{bytes.routed / 1e9, 1},
                       Decimal{(bytes.routed + static_cast<double>(bytes.others)) / 1e9, 1}});
    }
    return table;
}

std::string traffic_text(const ModelConfig& config, const WeightTotals& totals) {
    std::string text = "\nBytes per token that follow from the configuration\n";
    Table table({"what", "bytes"});
    for (const StreamRow& row : stream_rows)
        table.add_row(
            {fmt::format("residual streams, {}", row.key), stream_bytes_per_token(config, row.form)});
    table.add_row({std::string("Engram rows read"), engram_read_bytes_per_token(config)});
    text += table.text();
    text += "\nWeights read by one decode step (experts chosen independently)\n" +
            step_table(config, totals).text();
    return text;
}

json weights_json(const ModelConfig& config) {
    const WeightTotals totals = weight_totals(config);
    const ActiveParameters active = active_parameters(config);
    json object = {{"tensors", totals.tensors},
                   {"parameters", totals.parameters},
                   {"backbone_parameters", totals.backbone_parameters},
                   {"stored_bytes", totals.stored_bytes},
                   {"components", json::array()},
                   {"active_parameters", json::array()}};
    for (const ComponentWeights& row : totals.components)
        object["components"].push_back({{"component", name(row.component)},
                                        {"tensors", row.tensors},
                                        {"parameters", row.parameters},
                                        {"stored_bytes", row.stored_bytes}});
    for (const ActiveRow& row : active_rows(active))
        object["active_parameters"].push_back(
            {{"name", row.key}, {"includes", row.what}, {"parameters", row.parameters}});
    json streams;
    for (const StreamRow& row : stream_rows) streams[row.key] = stream_bytes_per_token(config, row.form);
    object["bytes_per_token"] = {{"residual_streams", streams},
                                 {"engram_rows", engram_read_bytes_per_token(config)}};
    object["step_weight_bytes"] = json::array();
    for (const int64_t tokens : step_tokens) {
        const StepWeightBytes bytes = step_weight_bytes(config, totals, tokens);
        object["step_weight_bytes"].push_back(
            {{"tokens", tokens},
             {"distinct_experts", expected_distinct_experts(config, tokens)},
             {"routed", bytes.routed},
             {"others", bytes.others}});
    }
    return object;
}

std::string weights_text(const ModelConfig& config) {
    const WeightTotals totals = weight_totals(config);
    return "\nWeights of the checkpoint\n" + components_table(totals).text() +
           fmt::format("  backbone (without engram, dspark, vision): {} parameters\n",
                       grouped(totals.backbone_parameters)) +
           "\n" + active_table(active_parameters(config)).text() + traffic_text(config, totals);
}

}  // namespace

void run_layers(const LayersOptions& options) {
    const Model model = find_model(options.model);
    const ModelConfig& config = config_of(model);
    if (options.output.json) {
        json object = {{"schema", "touchstone.layers/1"}, {"model", model.name}, {"source", model.source}};
        object["layers"] = roles_json(config);
        object["assumptions"] = json::array();
        if (options.weights) object["weights"] = weights_json(config);
        return write_result(to_text(object));
    }
    if (options.output.csv)
        return write_result(options.weights ? components_table(weight_totals(config)).csv()
                                            : roles_table(config).csv());
    std::string text =
        fmt::format("{}: layer roles\nSource: {}\n\n", model.name, model.source) + roles_table(config).text();
    if (options.weights) text += weights_text(config);
    write_result(text);
}

}  // namespace touchstone::cli
