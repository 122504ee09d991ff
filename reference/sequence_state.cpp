#include "reference/sequence_state.h"

#include <fmt/format.h>

#include <algorithm>

#include "reference/io/user_error.h"
#include "reference/layout/cache_layout.h"
#include "reference/model/layer_roles.h"

namespace touchstone {

namespace {

/// The last `count` elements, or all.
template <class T>
std::span<const T> last(const std::vector<T>& values, int64_t count) {
    return std::span<const T>(values).last(static_cast<size_t>(std::min(count, std::ssize(values))));
}

template <class T>
void keep_last(std::vector<T>& values, int64_t count) {
    values.erase(values.begin(), values.end() - std::min(count, std::ssize(values)));
}

/// -0 is not +0, and a NaN is itself.
bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return std::ranges::equal(std::as_bytes(std::span(a)), std::as_bytes(std::span(b)));
}

}  // namespace

SequenceState::SequenceState(const ModelConfig& config, int64_t rollback_tokens)
    : config_(config),
      rollback_tokens_(rollback_tokens),
      engram_look_back_(config.engram ? config.engram->max_ngram_size - 1 : 0) {
    if (config.family != ModelFamily::deepseek_v41)
        throw UserError({"the model is not of the V4.1 family", "SequenceState", "a V4.1 configuration",
                         "V4's caches are in `touchstone kv` only"});
    if (rollback_tokens < 0 || rollback_tokens > config.max_position_embeddings)
        throw UserError({fmt::format("{} rollback tokens", rollback_tokens), "SequenceState",
                         fmt::format("0 to {}", config.max_position_embeddings), ""});
    const StorageFormat format = storage_format({"", "", config}, "fp4");
    for (const LayerRole& role : layer_roles(config)) {
        if (role.half == LayerHalf::draft) continue;
        windows_.emplace_back(format.window, Quantizer::q8, config.sliding_window, rollback_tokens);
        if (role.kv_source != role.layer) continue;
        sources_.emplace(role.layer, SourceState{role.compress_ratio,
                                                 KvCache(format.main, Quantizer::q4m),
                                                 KvCache(format.index_key, Quantizer::q4i),
                                                 {},
                                                 {}});
    }
}

void SequenceState::require_usable() const {
    if (in_call_)
        throw UserError({"the state is that of a call that failed half-way", "SequenceState",
                         "a state between calls", "go on from a copy made before that call"});
}

void SequenceState::begin_call() {
    require_usable();
    in_call_ = true;
}

void SequenceState::advance(int64_t tokens, std::span<const int32_t> compressed_ids) {
    in_call_ = false;
    tokens_ += tokens;
    engram_history_.insert(engram_history_.end(), compressed_ids.begin(), compressed_ids.end());
    keep_last(engram_history_, engram_look_back_ + rollback_tokens_);
}

void SequenceState::remember(int layer, std::span<const float> kv, std::span<const float> score) {
    SourceState& source = sources_.at(layer);
    const int64_t floats = (rollback_tokens_ + source.ratio - 1) * config_.head_dim;
    source.recent.kv.insert(source.recent.kv.end(), kv.begin(), kv.end());
    source.recent.score.insert(source.recent.score.end(), score.begin(), score.end());
    keep_last(source.recent.kv, floats);
    keep_last(source.recent.score, floats);
}

void SequenceState::truncate(int64_t tokens) {
    require_usable();
    bool possible = tokens >= 0 && tokens <= tokens_ && tokens_ - tokens <= rollback_tokens_;
    const int64_t taken_back = possible ? tokens_ - tokens : 0;
    if (possible && taken_back == 0) return;
    if (engram_look_back_ > 0)
        possible =
            possible && std::ssize(engram_history_) - taken_back >= std::min(engram_look_back_, tokens);
    for (const WindowCache& window : windows_) possible = possible && window.can_truncate(tokens);
    for (const auto& [layer, source] : sources_)
        possible = possible &&
                   (source.ratio == 1 ||
                    (taken_back + tokens % source.ratio) * config_.head_dim <= std::ssize(source.recent.kv));
    if (!possible)
        throw UserError({fmt::format("truncating a sequence of {} tokens to {}", tokens_, tokens),
                         "SequenceState::truncate",
                         fmt::format("at most {} tokens taken back, and none from before a state was loaded",
                                     rollback_tokens_),
                         "fork the state before drafting further"});
    for (WindowCache& window : windows_) window.truncate(tokens);
    for (auto& entry : sources_) {
        SourceState& source = entry.second;
        source.main.truncate(tokens / source.ratio);
        source.keys.truncate(tokens / source.ratio);
        if (source.ratio == 1) continue;
        OpenGroup& recent = source.recent;
        for (std::vector<float>* rows : {&recent.kv, &recent.score})
            rows->resize(rows->size() - static_cast<size_t>(taken_back * config_.head_dim));
        const auto still_open = [&](const std::vector<float>& rows) {
            const std::span<const float> part = last(rows, tokens % source.ratio * config_.head_dim);
            return std::vector<float>(part.begin(), part.end());
        };
        source.open = {still_open(recent.kv), still_open(recent.score)};
    }
    if (engram_look_back_ > 0)
        engram_history_.resize(engram_history_.size() - static_cast<size_t>(taken_back));
    tokens_ = tokens;
}

void SequenceState::drop_windows() {
    require_usable();
    for (WindowCache& window : windows_) window.clear(tokens_);
}

bool operator==(const SourceState& a, const SourceState& b) {
    return a.ratio == b.ratio && a.main == b.main && a.keys == b.keys && same_bits(a.open.kv, b.open.kv) &&
           same_bits(a.open.score, b.open.score);
}

bool operator==(const SequenceState& a, const SequenceState& b) {
    return a.config_ == b.config_ && a.in_call_ == b.in_call_ && a.tokens_ == b.tokens_ &&
           a.windows_ == b.windows_ && a.sources_ == b.sources_ &&
           std::ranges::equal(last(a.engram_history_, a.engram_look_back_),
                              last(b.engram_history_, b.engram_look_back_));
}

}  // namespace touchstone
