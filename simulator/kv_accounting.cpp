#include "simulator/kv_accounting.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "reference/io/user_error.h"
#include "simulator/checked.h"

namespace touchstone {

namespace {

int64_t ring_bytes(const CacheGroup& group, int64_t slots) {
    return checked_multiply(checked_multiply(static_cast<int64_t>(group.layers.size()), slots),
                            group.record.record_bytes());
}

int64_t state_rows(const CompressorState& state, CompressorRows rows) {
    switch (rows) {
        case CompressorRows::minimal: return state.minimal_rows;
        case CompressorRows::group: return state.full_group_rows;
        case CompressorRows::ring: break;
    }
    return state.ring_rows;
}

std::vector<CompressorShare> compressor_shares(const CacheLayout& layout, CompressorRows rows) {
    std::vector<CompressorShare> shares;
    for (const CompressorState& state : layout.compressor_states) {
        CompressorShare share{state, state_rows(state, rows), 0, 0};
        share.row_bytes = state.floats_per_row * static_cast<int64_t>(sizeof(float));
        share.bytes = static_cast<int64_t>(state.layers.size()) * share.rows * share.row_bytes;
        shares.push_back(share);
    }
    return shares;
}

FixedBytes fixed_bytes(const CacheLayout& layout, const std::vector<CompressorShare>& compressors) {
    FixedBytes fixed;
    for (const CacheGroup& group : layout.groups) {
        if (group.kind == CacheKind::window) fixed.window += ring_bytes(group, group.window_tokens);
        if (group.kind == CacheKind::draft_window)
            fixed.draft_window += ring_bytes(group, group.window_tokens);
    }
    for (const CompressorShare& share : compressors) fixed.compressor_state += share.bytes;
    fixed.engram_history = layout.engram_history_tokens * static_cast<int64_t>(sizeof(int32_t));
    return fixed;
}

bool owns(const CacheGroup& group, int layer) {
    return std::find(group.layers.begin(), group.layers.end(), layer) != group.layers.end();
}

std::vector<ModeShare> shares_by_mode(const ModelConfig& config, const std::vector<CacheGroup>& groups) {
    std::vector<ModeShare> shares;
    for (const LayerRole& role : layer_roles(config)) {
        const std::string mode = role.half == LayerHalf::draft ? "draft" : std::string(name(role.mode));
        auto share =
            std::find_if(shares.begin(), shares.end(), [&](const ModeShare& s) { return s.mode == mode; });
        if (share == shares.end()) share = shares.insert(shares.end(), ModeShare{mode, 0, Rational(0), 0});
        share->layers += 1;
        for (const CacheGroup& group : groups) {
            if (!owns(group, role.layer)) continue;
            if (group.grows())
                share->bytes_per_token =
                    share->bytes_per_token + Rational(group.record.record_bytes(), group.compress_ratio);
            else
                share->window_bytes += group.window_tokens * group.record.record_bytes();
        }
    }
    return shares;
}

void check_tokens(int64_t tokens) {
    if (tokens < 0 || tokens > max_context_tokens)
        throw UserError({fmt::format("a context of {} tokens", tokens), "context", "0 to 2^40 tokens", ""});
}

}  // namespace

int64_t FixedBytes::total() const {
    return checked_add(checked_add(window, draft_window), checked_add(compressor_state, engram_history));
}

KvAccount::KvAccount(const Model& model, std::string_view format, CompressorRows rows, bool with_draft)
    : layout_(cache_layout(model, storage_format(model, format))), model_name_(model.name) {
    for (const CacheGroup& group : layout_.groups) {
        if (!group.grows()) continue;
        const int64_t row_bytes =
            checked_multiply(static_cast<int64_t>(group.layers.size()), group.record.record_bytes());
        modules_.push_back({group, Rational(row_bytes, group.compress_ratio)});
    }
    if (!with_draft)
        std::erase_if(layout_.groups,
                      [](const CacheGroup& group) { return group.kind == CacheKind::draft_window; });
    compressors_ = compressor_shares(layout_, rows);
    fixed_ = fixed_bytes(layout_, compressors_);
    if (const ModelConfig* config = model.config()) by_mode_ = shares_by_mode(*config, layout_.groups);
}

Rational KvAccount::bytes_per_token() const {
    Rational sum(0);
    for (const KvModule& module : modules_) sum = sum + module.bytes_per_token;
    return sum;
}

int64_t KvAccount::module_bytes(const KvModule& module, int64_t tokens) const {
    check_tokens(tokens);
    return ring_bytes(module.group, tokens / module.group.compress_ratio);
}

int64_t KvAccount::global_bytes(int64_t tokens) const {
    int64_t sum = 0;
    for (const KvModule& module : modules_) sum = checked_add(sum, module_bytes(module, tokens));
    return sum;
}

int64_t KvAccount::window_occupied_bytes(int64_t tokens) const {
    check_tokens(tokens);
    int64_t sum = 0;
    for (const CacheGroup& group : layout_.groups)
        if (!group.grows()) sum = checked_add(sum, ring_bytes(group, std::min(tokens, group.window_tokens)));
    return sum;
}

int64_t KvAccount::total_bytes(int64_t tokens) const {
    if (!layout_.not_counted.empty())
        throw UserError({fmt::format("the total of model {} cannot be computed", model_name_),
                         fmt::format("{}", fmt::join(layout_.not_counted, "; ")),
                         "a model whose fixed state has a published size",
                         "bytes per token and growing bytes are available without --requests and --budget"});
    return checked_add(global_bytes(tokens), fixed_.total());
}

int64_t KvAccount::resident_requests(int64_t budget_bytes, int64_t tokens) const {
    const int64_t request_bytes = total_bytes(tokens);
    if (request_bytes == 0)
        throw UserError({"a request of 0 bytes fits any number of times",
                         fmt::format("model {}, {} tokens", model_name_, tokens),
                         "a context of at least 1 token", ""});
    return budget_bytes / request_bytes;
}

PersistentTurn persistent_turn(const Model& model, const KvAccount& account, int64_t new_tokens) {
    PersistentTurn turn{account.bytes_per_token() * Rational(new_tokens), 0};
    const ModelConfig* config = model.config();
    if (config != nullptr && config->family == ModelFamily::deepseek_v4)
        turn.window_snapshot_bytes = checked_multiply(2, account.fixed().window);
    return turn;
}

Rational snapshot_half_tokens(const Model& model, const KvAccount& account) {
    return Rational(persistent_turn(model, account, 0).window_snapshot_bytes) / account.bytes_per_token();
}

std::vector<ChainStep> step_chain() {
    const Model v4 = find_model("deepseek-v4-flash");
    const Model v41 = find_model("deepseek-v4.1-flash");
    const KvAccount v4_account(v4, "");
    const KvAccount shared(v41, "v4-fp4index");  // V4.1's sharing and ratios, still V4's records
    const KvAccount fp4(v41, "fp4");
    const StorageFormat v4_format = v4_account.layout().format;
    const int64_t sources = static_cast<int64_t>(v41.config()->kv_source_layer_ids.size());
    const int64_t v4_ratio = v4_account.modules()[0].group.compress_ratio;  // CSA's, before it was relaxed
    const int64_t row = v4_format.main.record_bytes() + v4_format.index_key.record_bytes();
    return {
        {"V4-Flash: every compressed layer owns its cache",
         fmt::format(
             "{} main + {} index-key layers",
             v4_account.modules()[0].group.layers.size() + v4_account.modules()[1].group.layers.size(),
             v4_account.modules()[2].group.layers.size()),
         v4_account.bytes_per_token()},
        {"share across layers: a few KV sources, still ratio 4",
         fmt::format("{} x ({} + {}) / {}", sources, v4_format.main.record_bytes(),
                     v4_format.index_key.record_bytes(), v4_ratio),
         Rational(sources * row, v4_ratio)},
        {"relax compression to ratios 2, 2, 2, 1", "finer rows: this step makes it larger",
         shared.bytes_per_token()},
        {fmt::format("FP4 main KV: {} -> {} bytes a row", shared.layout().format.main.record_bytes(),
                     fp4.layout().format.main.record_bytes()),
         "all channels e2m1, RoPE included", fp4.bytes_per_token()},
    };
}

}  // namespace touchstone
