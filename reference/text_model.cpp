#include "reference/text_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "reference/io/user_error.h"
#include "reference/rms_norm.h"

namespace touchstone {

namespace {

[[noreturn]] void refuse(std::string what, std::string expected, std::string remedy = "") {
    throw UserError({std::move(what), "TextModel::forward", std::move(expected), std::move(remedy)});
}

int64_t first_position(const Request& request) {
    return request.state->tokens() - request.replayed_tokens;
}

void check(const Request& request, const ModelConfig& config) {
    if (request.state == nullptr) refuse("a request without a state", "a state");
    if (request.state->config() != config)
        refuse("a request whose state is of another model", "a state of this model's configuration");
    request.state->require_usable();
    const int64_t count = std::ssize(request.tokens), replayed = request.replayed_tokens;
    if (count == 0) refuse("a request without tokens", "at least one token");
    if (replayed < 0 || replayed > count || replayed > request.state->tokens())
        refuse(fmt::format("{} replayed tokens of {}, in a sequence of {}", replayed, count,
                           request.state->tokens()),
               "no more than the sequence has");
    const int64_t context = first_position(request) + count;
    if (context > config.max_position_embeddings)
        refuse(fmt::format("a context of {} tokens", context),
               fmt::format("at most {} (max_position_embeddings)", config.max_position_embeddings),
               "shorten the prompt, or raise the limit in config.json");
    for (size_t i = 0; i < request.tokens.size(); ++i)
        if (request.tokens[i] < 0 || request.tokens[i] >= config.vocab_size)
            refuse(fmt::format("token id {} at position {}", request.tokens[i],
                               first_position(request) + static_cast<int64_t>(i)),
                   fmt::format("0 to {}", config.vocab_size - 1));
    if (replayed == 0) return;
    const int64_t first = first_position(request), before = std::ssize(request.before);
    const int64_t look_back = config.engram ? config.engram->max_ngram_size - 1 : 0;
    if (before < std::min(look_back, first) || before > first)
        refuse(fmt::format("{} tokens before replayed position {}", before, first),
               fmt::format("{} to {}", std::min(look_back, first), first));
    for (int layer = 0; layer < request.state->layers(); ++layer)
        if (request.state->window(layer).end() > first)
            refuse(fmt::format("a replay from position {}, which layer {}'s window has", first, layer),
                   "a state without windows there", "clear its windows at that position first");
}

/// Rows may be dropped only behind the layers that need them: new ones behind the last KV source, whose
/// compressed rows are counted by position, all of a call behind the last Engram layer.
void check_ranges(std::span<const LayerRange> ranges, const ModelConfig& config,
                  std::span<const Request> requests) {
    const int64_t last_source = first_decoder_layer(config);
    const int64_t last_engram = config.engram ? config.engram->layer_ids.back() : -1;
    for (int64_t layer = 0; layer < std::ssize(ranges); ++layer) {
        const LayerRange range = ranges[static_cast<size_t>(layer)];
        if (range.window_from > range.query_from)
            refuse(fmt::format("layer {}: window rows from {}, queries from {}", layer, range.window_from,
                               range.query_from),
                   "window rows of every query");
        for (const Request& request : requests)
            if ((layer < last_source && range.query_from > request.state->tokens()) ||
                (layer < last_engram && range.query_from > first_position(request)))
                refuse(fmt::format("layer {} drops rows before {}", layer, range.query_from),
                       fmt::format("all rows up to layer {}", std::max(last_source, last_engram)));
    }
}

/// A half-open range.
struct Span {
    int64_t first, last;
};

/// A layer's forced lists for positions first .. last - 1: from counts.first to counts.last different ids
/// below limit(position).
template <class Limit>
void check_forced(const std::map<int64_t, std::vector<int32_t>>& lists, const char* what, int layer,
                  Span positions, Span counts, const Limit& limit) {
    for (auto entry = lists.lower_bound(positions.first);
         entry != lists.end() && entry->first < positions.last; ++entry) {
        std::vector<int32_t> list = entry->second;
        std::ranges::sort(list);
        const int64_t ids = limit(entry->first), count = std::ssize(list);
        const bool twice = std::ranges::adjacent_find(list) != list.end();
        const bool outside = !list.empty() && (list.front() < 0 || list.back() >= ids);
        if (twice || outside || count < counts.first || count > counts.last)
            throw UserError({fmt::format("forced {} of layer {} at position {}: {} of them", what, layer,
                                         entry->first, count),
                             "forced choices (--force-choices)",
                             fmt::format("{} to {} different ones of the {} that there are", counts.first,
                                         counts.last, ids),
                             "take them from a trace of the same model and tokens"});
    }
}

/// Four (n) copies of the embedding; the first collapse takes the first copy alone.
ResidualStreams first_streams(const ModelConfig& config, std::span<const Request> requests,
                              const Bf16Weight& embedding) {
    const int64_t n = config.hc_mult, width = config.hidden_size;
    ResidualStreams streams;
    for (const Request& request : requests) {
        for (const int32_t token : request.tokens) {
            const auto row =
                embedding.values.subspan(static_cast<size_t>(token * width), static_cast<size_t>(width));
            for (int64_t copy = 0; copy < n; ++copy) {
                streams.h.insert(streams.h.end(), row.begin(), row.end());
                streams.pre.push_back(copy == 0 ? 1.0f : 0.0f);
            }
        }
    }
    return streams;
}

}  // namespace

void require_forced_choices(const ForcedChoices& forced, const ModelConfig& config, int64_t first_position,
                            int64_t rows) {
    const int64_t end = first_position + rows;
    for (const auto& entry : forced.experts)
        check_forced(entry.second, "experts", entry.first, {first_position, end},
                     {config.num_experts_per_tok, config.num_experts_per_tok},
                     [&](int64_t) { return config.n_routed_experts; });
    for (const LayerRole& role : layer_roles(config)) {
        if (role.top_k_source != role.layer || !forced.selected.contains(role.layer)) continue;
        check_forced(forced.selected.at(role.layer), "rows", role.layer, {first_position, end},
                     {0, config.index_topk},
                     [&](int64_t position) { return visible_groups(position, role.compress_ratio); });
    }
}

/// What a call carries from layer to layer.
struct TextModel::Call {
    CallRows rows;
    ResidualStreams streams;
    PublishedSelections published;
    std::vector<std::vector<int32_t>> compressed_ids;  ///< per request, of all its tokens
    std::vector<std::vector<int64_t>> engram_row_ids;  ///< per Engram layer, of all rows
};

TextModel::TextModel(ModelConfig config, const TextWeights& weights, Arithmetic arithmetic,
                     ReleasedBehaviour released)
    : config_(std::move(config)),
      weights_(weights),
      arithmetic_(arithmetic),
      released_(released),
      main_table_(main_rope_table(config_)),
      compress_table_(compress_rope_table(config_)) {
    if (config_.family != ModelFamily::deepseek_v41)
        throw UserError({"the model is not of the V4.1 family", "TextModel", "a V4.1 configuration", ""});
    for (const LayerRole& role : layer_roles(config_))
        if (role.half != LayerHalf::draft) roles_.push_back(role);
    if (!config_.engram) return;
    engram_hash_ = engram_hash(config_);
    token_map_ = TokenMap::without_tokenizer(config_);
}

TextModel::Call TextModel::begin(std::span<const Request> requests, const ForwardOptions& options) const {
    if (requests.size() > 1 && options.trace.active())
        refuse("a trace of several requests", "one request per traced call");
    if (!options.ranges.empty() && options.ranges.size() != roles_.size())
        refuse(fmt::format("ranges of {} layers", options.ranges.size()), fmt::format("{}", roles_.size()));
    std::set<const SequenceState*> states;
    for (const Request& request : requests) {
        check(request, config_);
        if (options.forced != nullptr)
            require_forced_choices(*options.forced, config_, first_position(request),
                                   std::ssize(request.tokens));
        if (!states.insert(request.state).second) refuse("one state in two requests", "a state per request");
    }
    check_ranges(options.ranges, config_, requests);

    Call call;
    call.streams = first_streams(config_, requests, weights_.embedding());
    for (const Request& request : requests)
        call.rows.runs.push_back({request.state, first_position(request), std::ssize(request.tokens)});
    if (!engram_hash_) return call;
    call.engram_row_ids.resize(engram_hash_->layers.size());
    for (const Request& request : requests) {
        const std::vector<int32_t> ids = token_map_->compress(request.tokens);
        const size_t look_back = static_cast<size_t>(engram_hash_->max_ngram_size - 1);
        const std::vector<int32_t> before =
            token_map_->compress(request.before.last(std::min(look_back, request.before.size())));
        const std::span<const int32_t> history =
            request.replayed_tokens == 0 ? request.state->engram_history() : std::span<const int32_t>(before);
        for (size_t e = 0; e < call.engram_row_ids.size(); ++e) {
            const std::vector<int64_t> rows =
                engram_row_ids(*engram_hash_, e, token_map_->pad(), history, ids);
            call.engram_row_ids[e].insert(call.engram_row_ids[e].end(), rows.begin(), rows.end());
        }
        call.compressed_ids.push_back(ids);
    }
    return call;
}

std::vector<std::vector<float>> TextModel::forward(std::span<const Request> requests,
                                                   const ForwardOptions& options) const {
    Call call = begin(requests, options);
    for (const Request& request : requests) request.state->begin_call();
    if (options.trace.active())
        options.trace("tokens", {std::ssize(requests.front().tokens)}, requests.front().tokens);
    const AttentionContext context{config_,        arithmetic_, released_,
                                   options.forced, main_table_, compress_table_};
    for (const LayerRole& role : roles_) {
        if (call.rows.rows() == 0) break;  // what follows works on none of these rows
        if (options.before_layer) options.before_layer(role.layer);
        const size_t layer = static_cast<size_t>(role.layer);
        const LayerRange range = options.ranges.empty() ? LayerRange{} : options.ranges[layer];
        std::span<const int64_t> row_ids;
        if (role.engram)
            row_ids = call.engram_row_ids[static_cast<size_t>(
                std::ranges::find(config_.engram->layer_ids, role.layer) -
                config_.engram->layer_ids.begin())];
        block(context, role, weights_.layer(role.layer), range, row_ids, call.rows, call.streams,
              call.published, options.trace.at(fmt::format("L{:02}.", role.layer)));
    }
    for (size_t i = 0; i < requests.size(); ++i) {
        const int64_t replayed = requests[i].replayed_tokens, count = std::ssize(requests[i].tokens);
        std::span<const int32_t> ids;
        if (!call.compressed_ids.empty())
            ids = std::span<const int32_t>(call.compressed_ids[i]).subspan(static_cast<size_t>(replayed));
        requests[i].state->advance(count - replayed, ids);
    }
    return logits(call, options);
}

std::vector<std::vector<float>> TextModel::logits(const Call& call, const ForwardOptions& options) const {
    // The rows whose logits are asked for, in order.
    std::vector<int64_t> chosen, rows_of_run;
    int64_t row = 0;
    for (const RowRun& run : call.rows.runs) {
        const int64_t wanted = options.all_logits ? run.rows : std::min<int64_t>(run.rows, 1);
        for (int64_t i = run.rows - wanted; i < run.rows; ++i) chosen.push_back(row + i);
        rows_of_run.push_back(wanted);
        row += run.rows;
    }
    ResidualStreams streams = call.streams;
    streams.keep(chosen, config_.hc_mult, config_.hidden_size);

    const int64_t count = std::ssize(chosen), width = config_.hidden_size, vocabulary = config_.vocab_size;
    std::vector<Bf16> collapsed(static_cast<size_t>(count * width)), hidden(collapsed.size());
    collapse(streams.h, count, streams.pre, collapsed);
    rms_norm(collapsed, count, weights_.final_norm(), static_cast<float>(config_.rms_norm_eps),
             std::span<Bf16>(hidden));
    std::vector<float> all(static_cast<size_t>(count * vocabulary));
    linear_bf16(arithmetic_, SumOperator::lm_head, hidden, count, weights_.head(), std::span<float>(all));
    options.trace("final.normed", {count, width}, hidden);
    options.trace("logits", {count, vocabulary}, all);

    std::vector<std::vector<float>> result;
    auto next = all.begin();
    for (const int64_t rows : rows_of_run) {
        result.emplace_back(next, next + rows * vocabulary);
        next += rows * vocabulary;
    }
    return result;
}

}  // namespace touchstone
