// touchstone kv: bytes per token, per context and per request, module by module, beside other models.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/table.h"
#include "reference/io/user_error.h"
#include "simulator/kv_accounting.h"

namespace touchstone::cli {

namespace {

using nlohmann::json;

struct RowsName {
    const char* name;
    CompressorRows rows;
};
constexpr RowsName rows_names[] = {
    {"minimal", CompressorRows::minimal}, {"group", CompressorRows::group}, {"ring", CompressorRows::ring}};

CompressorRows rows_of(const std::string& text) {
    for (const RowsName& row : rows_names)
        if (text == row.name) return row.rows;
    throw UserError(
        {fmt::format("unknown choice \"{}\"", text), "--compressor-rows", "minimal, group or ring", ""});
}

bool draft_of(const std::string& text) {
    if (text == "on" || text == "off") return text == "on";
    throw UserError({fmt::format("unknown choice \"{}\"", text), "--draft", "on or off", ""});
}

/// A model with its account, and the notes that belong to its numbers.
struct Entry {
    Model model;
    KvAccount account;

    bool has_total() const { return account.layout().not_counted.empty(); }
};

Entry open_entry(const std::string& name, const std::string& format, const KvOptions& options) {
    Model model = find_model(name);
    KvAccount account(model, format, rows_of(options.compressor_rows), draft_of(options.draft));
    return {std::move(model), std::move(account)};
}

std::vector<Entry> open_entries(const KvOptions& options) {
    std::vector<Entry> entries{open_entry(options.model, options.format, options)};
    if (options.compare.empty()) return entries;
    std::vector<std::string> seen{options.model};
    for (const std::string& name : parse_list("--compare", options.compare)) {
        if (std::find(seen.begin(), seen.end(), name) != seen.end())
            throw UserError({fmt::format("model \"{}\" is named twice", name), "--compare",
                             "each model once, --model included", "remove the repetition"});
        seen.push_back(name);
        entries.push_back(open_entry(name, "", options));
    }
    return entries;
}

const char* kind_name(CacheKind kind) {
    switch (kind) {
        case CacheKind::main_kv: return "main_kv";
        case CacheKind::index_key: return "index_key";
        case CacheKind::window: return "window";
        case CacheKind::draft_window: break;
    }
    return "draft_window";
}

std::vector<std::string> assumptions_of(const std::vector<Entry>& entries, const KvOptions& options,
                                        std::optional<int64_t> context) {
    std::vector<std::string> notes;
    const Entry& first = entries.front();
    if (options.format.empty())
        notes.push_back(fmt::format("storage format {}: the default of {}",
                                    first.account.layout().format.name, first.model.name));
    if (options.compressor_rows == "ring" && first.account.fixed().compressor_state > 0)
        notes.push_back(
            "compressor state is charged as a serving engine's ring of fp32 rows; --compressor-rows minimal "
            "charges open rows only");
    if (options.draft == "on" && first.account.fixed().draft_window > 0)
        notes.push_back("the drafter's windows are counted; --draft off leaves them out");
    for (const Entry& entry : entries) {
        const BaselineModel* baseline = entry.model.baseline();
        if (baseline != nullptr)
            for (const std::string& note : baseline->assumptions)
                notes.push_back(entry.model.name + ": " + note);
        const ModelConfig* config = entry.model.config();
        if (config != nullptr && context && *context > config->max_position_embeddings)
            notes.push_back(fmt::format("{}: {} tokens is beyond the {} positions of the configuration",
                                        entry.model.name, grouped(*context),
                                        grouped(config->max_position_embeddings)));
    }
    return notes;
}

json modules_json(const Entry& entry, std::optional<int64_t> context) {
    json list = json::array();
    for (const KvModule& module : entry.account.modules()) {
        json row = {{"name", kind_name(module.group.kind)},
                    {"layers", module.group.layers},
                    {"compress_ratio", module.group.compress_ratio},
                    {"record", module.group.record.describe()},
                    {"record_bytes", module.group.record.record_bytes()},
                    {"bytes_per_token", to_json(module.bytes_per_token)},
                    {"bytes_per_token_exact", module.bytes_per_token.fraction()}};
        if (context) row["bytes"] = entry.account.module_bytes(module, *context);
        list.push_back(row);
    }
    return list;
}

json fixed_json(const FixedBytes& fixed) {
    return {{"window", fixed.window},
            {"draft_window", fixed.draft_window},
            {"compressor_state", fixed.compressor_state},
            {"engram_history", fixed.engram_history}};
}

/// Fields of one model; the first model's stand at the top of the object, the others' under "compare".
json entry_json(const Entry& entry, const KvOptions& options, std::optional<int64_t> context) {
    const KvAccount& account = entry.account;
    json object = {{"model", entry.model.name},
                   {"source", entry.model.source},
                   {"format", account.layout().format.name},
                   {"bytes_per_token", to_json(account.bytes_per_token())},
                   {"bytes_per_token_exact", account.bytes_per_token().fraction()},
                   {"modules", modules_json(entry, context)},
                   {"fixed_bytes_per_request", fixed_json(account.fixed())},
                   {"fixed_bytes_total", entry.has_total() ? json(account.fixed().total()) : json(nullptr)},
                   {"not_counted", account.layout().not_counted}};
    object["by_mode"] = json::array();
    for (const ModeShare& share : account.by_mode())
        object["by_mode"].push_back({{"mode", share.mode},
                                     {"layers", share.layers},
                                     {"bytes_per_token", to_json(share.bytes_per_token)},
                                     {"window_bytes", share.window_bytes}});
    if (!context) return object;
    object["context_tokens"] = *context;
    object["global_bytes"] = account.global_bytes(*context);
    object["window_occupied_bytes"] = account.window_occupied_bytes(*context);
    object["total_bytes"] = entry.has_total() ? json(account.total_bytes(*context)) : json(nullptr);
    if (!options.budget.empty())
        object["resident_requests"] =
            account.resident_requests(parse_bytes("--budget", options.budget), *context);
    return object;
}

std::string modules_text(const Entry& entry) {
    Table table({"module", "layers", "ratio", "record", "B/row", "B/token"});
    for (const KvModule& module : entry.account.modules())
        table.add_row({std::string(module.group.kind == CacheKind::main_kv ? "main KV" : "index keys"),
                       layer_list(module.group.layers), module.group.compress_ratio,
                       module.group.record.describe(), module.group.record.record_bytes(),
                       module.bytes_per_token});
    return "\nGrows with the context\n" + table.text() +
           fmt::format("  total: {} B/token\n", grouped(entry.account.bytes_per_token()));
}

Table modules_table(const Entry& entry) {
    Table table({"module", "layers", "compress_ratio", "record", "record_bytes", "bytes_per_token"});
    for (const KvModule& module : entry.account.modules())
        table.add_row({std::string(kind_name(module.group.kind)), layer_list(module.group.layers),
                       module.group.compress_ratio, module.group.record.describe(),
                       module.group.record.record_bytes(), module.bytes_per_token});
    return table;
}

std::string fixed_text(const Entry& entry) {
    const FixedBytes& fixed = entry.account.fixed();
    std::string text = "\nFixed per request\n";
    Table table({"part", "how", "bytes"});
    for (const CacheGroup& group : entry.account.layout().groups)
        if (!group.grows())
            table.add_row({std::string(group.kind == CacheKind::window ? "window" : "draft window"),
                           fmt::format("{} layers x {} slots x {} B", group.layers.size(),
                                       group.window_tokens, group.record.record_bytes()),
                           group.kind == CacheKind::window ? fixed.window : fixed.draft_window});
    for (const CompressorShare& share : entry.account.compressors())
        table.add_row({std::string("compressor state"),
                       fmt::format("ratio {}: {} layers x {} rows x {} B", share.state.compress_ratio,
                                   share.state.layers.size(), share.rows, share.row_bytes),
                       share.bytes});
    if (fixed.engram_history > 0)
        table.add_row({std::string("Engram history"),
                       fmt::format("{} token ids x 4 B", entry.account.layout().engram_history_tokens),
                       fixed.engram_history});
    for (const std::string& missing : entry.account.layout().not_counted)
        table.add_row({std::string("not counted"), missing, std::string("unknown")});
    table.add_row({std::string("total"), std::string(""),
                   entry.has_total() ? Cell(fixed.total()) : Cell(std::string("unknown"))});
    return text + table.text();
}

std::string modes_text(const Entry& entry) {
    if (entry.account.by_mode().empty()) return "";
    Table table({"mode", "layers", "B/token", "window B"});
    for (const ModeShare& share : entry.account.by_mode())
        table.add_row({share.mode, share.layers, share.bytes_per_token, share.window_bytes});
    return "\nBy layer mode\n" + table.text();
}

double gibibytes(int64_t bytes) {
    return static_cast<double>(bytes) / static_cast<double>(int64_t{1} << 30);
}

std::string contexts_text(const Entry& entry, const std::vector<int64_t>& contexts) {
    Table table({"context", "growing B", "window slots in use B", "request total B", "GiB"});
    for (const int64_t tokens : contexts) {
        const bool known = entry.has_total();
        const int64_t total = known ? entry.account.total_bytes(tokens) : 0;
        table.add_row({tokens, entry.account.global_bytes(tokens),
                       entry.account.window_occupied_bytes(tokens),
                       known ? Cell(total) : Cell(std::string("unknown")),
                       known ? Cell(Decimal{gibibytes(total), 3}) : Cell(std::string("unknown"))});
    }
    return "\nOne request at a context\n" + table.text();
}

std::string requests_text(const Entry& entry, const KvOptions& options, int64_t context) {
    std::string text;
    const int64_t total = entry.account.total_bytes(context);
    if (!options.requests.empty()) {
        const int64_t requests = parse_tokens("--requests", options.requests, 1);
        text += fmt::format("\n{} requests of {} tokens: {} B\n", grouped(requests), grouped(context),
                            grouped(Rational(requests) * Rational(total)));
    }
    if (!options.budget.empty())
        text += fmt::format(
            "\n{} holds {} requests of {} tokens: floor(budget / ({} fixed + {} growing))\n", options.budget,
            grouped(entry.account.resident_requests(parse_bytes("--budget", options.budget), context)),
            grouped(context), grouped(entry.account.fixed().total()),
            grouped(entry.account.global_bytes(context)));
    return text;
}

Table compare_table(const std::vector<Entry>& entries, const std::vector<int64_t>& contexts) {
    std::vector<std::string> headers{"model", "format", "B/token", "times the first", "fixed B/request"};
    for (const int64_t tokens : contexts) headers.push_back(fmt::format("GiB at {}", grouped(tokens)));
    Table table(headers);
    for (const Entry& entry : entries) {
        std::vector<Cell> row{
            entry.model.name, entry.account.layout().format.name, entry.account.bytes_per_token(),
            Decimal{(entry.account.bytes_per_token() / entries[0].account.bytes_per_token()).value(), 3},
            entry.has_total() ? Cell(entry.account.fixed().total()) : Cell(std::string("unknown"))};
        for (const int64_t tokens : contexts)
            row.push_back(entry.has_total() ? Cell(Decimal{gibibytes(entry.account.total_bytes(tokens)), 3})
                                            : Cell(std::string("unknown")));
        table.add_row(row);
    }
    return table;
}

json compare_json(const std::vector<Entry>& entries, const KvOptions& options,
                  std::optional<int64_t> context) {
    json list = json::array();
    for (size_t i = 1; i < entries.size(); ++i) {
        json object = entry_json(entries[i], options, context);
        const Rational ratio = entries[i].account.bytes_per_token() / entries[0].account.bytes_per_token();
        object["ratio"] = to_json(ratio);
        object["ratio_exact"] = ratio.fraction();
        list.push_back(object);
    }
    return list;
}

std::vector<int64_t> turn_tokens(const KvOptions& options) {
    std::vector<int64_t> list;
    for (const std::string& item : parse_list("--new-tokens", options.new_tokens))
        list.push_back(parse_tokens("--new-tokens", item, 1));
    return list;
}

Table turns_table(const std::vector<Entry>& entries, const KvOptions& options) {
    std::vector<std::string> headers{"new tokens"};
    for (const Entry& entry : entries) {
        headers.push_back(entry.model.name + " B");
        headers.push_back("snapshot share %");
        if (&entry != &entries.front()) headers.push_back("times the first");
    }
    Table table(headers);
    for (const int64_t tokens : turn_tokens(options)) {
        std::vector<Cell> row{tokens};
        const Rational first = persistent_turn(entries[0].model, entries[0].account, tokens).total();
        for (const Entry& entry : entries) {
            const PersistentTurn turn = persistent_turn(entry.model, entry.account, tokens);
            row.push_back(turn.total());
            row.push_back(
                Decimal{100 * static_cast<double>(turn.window_snapshot_bytes) / turn.total().value(), 1});
            if (&entry != &entries.front()) row.push_back(Decimal{(turn.total() / first).value(), 3});
        }
        table.add_row(row);
    }
    return table;
}

json turns_json(const std::vector<Entry>& entries, const KvOptions& options) {
    json list = json::array();
    for (const int64_t tokens : turn_tokens(options))
        for (const Entry& entry : entries) {
            const PersistentTurn turn = persistent_turn(entry.model, entry.account, tokens);
            list.push_back({{"new_tokens", tokens},
                            {"model", entry.model.name},
                            {"global_bytes", to_json(turn.global_bytes)},
                            {"window_snapshot_bytes", turn.window_snapshot_bytes},
                            {"total_bytes", to_json(turn.total())}});
        }
    return list;
}

Table chain_table() {
    Table table({"step", "how", "B/token", "factor"});
    std::optional<Rational> before;
    for (const ChainStep& step : step_chain()) {
        table.add_row(
            {step.change, step.arithmetic, step.bytes_per_token,
             before ? Cell(Decimal{(step.bytes_per_token / *before).value(), 3}) : Cell(std::string(""))});
        before = step.bytes_per_token;
    }
    return table;
}

json chain_json() {
    json list = json::array();
    for (const ChainStep& step : step_chain())
        list.push_back({{"step", step.change},
                        {"how", step.arithmetic},
                        {"bytes_per_token", to_json(step.bytes_per_token)},
                        {"bytes_per_token_exact", step.bytes_per_token.fraction()}});
    return list;
}

std::string kv_json(const std::vector<Entry>& entries, const KvOptions& options,
                    std::optional<int64_t> context) {
    json object = entry_json(entries[0], options, context);
    object["schema"] = "touchstone.kv/1";
    object["assumptions"] = assumptions_of(entries, options, context);
    if (!options.compare.empty()) object["compare"] = compare_json(entries, options, context);
    if (!options.new_tokens.empty()) object["persistent_per_turn"] = turns_json(entries, options);
    if (options.chain) object["chain"] = chain_json();
    if (context && !options.requests.empty()) {
        const int64_t requests = parse_tokens("--requests", options.requests, 1);
        const Rational bytes = Rational(requests) * Rational(entries[0].account.total_bytes(*context));
        object["requests"] = requests;
        object["requests_total_bytes"] = to_json(bytes);
    }
    return to_text(object);
}

std::string kv_csv(const std::vector<Entry>& entries, const KvOptions& options,
                   const std::vector<int64_t>& contexts) {
    if (options.chain) return chain_table().csv();
    if (!options.new_tokens.empty()) return turns_table(entries, options).csv();
    if (!options.compare.empty()) return compare_table(entries, contexts).csv();
    return modules_table(entries[0]).csv();
}

std::string kv_text(const std::vector<Entry>& entries, const KvOptions& options,
                    std::optional<int64_t> context, const std::vector<int64_t>& contexts) {
    const Entry& first = entries.front();
    const StorageFormat& format = first.account.layout().format;
    std::string text =
        fmt::format("{}: KV memory, format {}\nSource: {}\n\nA token costs {} B", first.model.name,
                    format.name, first.model.source, grouped(first.account.bytes_per_token()));
    text += first.has_total() ? fmt::format("; a request {} B before its first token.\n",
                                            grouped(first.account.fixed().total()))
                              : std::string("; what a request costs beside its tokens is not published.\n");
    text += modules_text(first) + fixed_text(first) + modes_text(first) + contexts_text(first, contexts);
    if (context) text += requests_text(first, options, *context);
    if (!options.compare.empty()) text += "\nBeside other models\n" + compare_table(entries, contexts).text();
    if (!options.new_tokens.empty())
        text += "\nPersistent bytes of one turn\n" + turns_table(entries, options).text();
    if (options.chain) text += "\nFrom V4-Flash to V4.1-Flash\n" + chain_table().text();
    return text + assumptions_text(assumptions_of(entries, options, context));
}

}  // namespace

void run_kv(const KvOptions& options) {
    std::optional<int64_t> context;
    if (!options.context.empty()) context = parse_tokens("--context", options.context, 0);
    if (!context && !(options.requests.empty() && options.budget.empty()))
        throw UserError({"--requests and --budget need a context", "kv", "--context N",
                         "add --context, e.g. --context 128K"});
    const std::vector<Entry> entries = open_entries(options);
    std::vector<int64_t> contexts{4096, 32768, 131072, 1048576};
    if (context) contexts = {*context};
    if (options.output.json)
        write_result(kv_json(entries, options, context));
    else if (options.output.csv)
        write_result(kv_csv(entries, options, contexts));
    else
        write_result(kv_text(entries, options, context, contexts));
}

}  // namespace touchstone::cli
