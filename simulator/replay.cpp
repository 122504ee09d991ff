#include "simulator/replay.h"

#include <fmt/format.h>

#include <algorithm>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

double flops(int64_t parameters, int64_t tokens) {
    return 2.0 * static_cast<double>(parameters) * static_cast<double>(tokens);
}

void check_prompt(int64_t prompt_tokens) {
    if (prompt_tokens < 1 || prompt_tokens > max_context_tokens)
        throw UserError(
            {fmt::format("a prompt of {} tokens", prompt_tokens), "--context", "1 to 2^40 tokens", ""});
}

}  // namespace

Replay::Replay(const Model& model, const KvAccount& account) {
    const ModelConfig* config = model.config();
    if (config == nullptr || config->family != ModelFamily::deepseek_v41)
        throw UserError({fmt::format("model {} has no encoder and decoder halves to replay", model.name),
                         "--model", "a DeepSeek-V4.1 configuration",
                         "use deepseek-v4.1-flash, tiny or a V4.1 config.json"});
    const int64_t window = config->sliding_window;
    const int64_t layers = config->num_hidden_layers;
    window_tokens_ = window;
    first_decoder_layer_ = touchstone::first_decoder_layer(*config);
    decoder_layer_count_ = layers - first_decoder_layer_;
    const int64_t n = decoder_layer_count_;
    window_record_bytes_ = account.layout().format.window.record_bytes();
    lengths_.bounded_tokens = window;
    lengths_.exact_tokens = n * (window - 1) + 1;
    // Layer j of the n (from the last, j = 0) needs 1 + j (W - 1) positions.
    lengths_.exact_token_layers = n + (window - 1) * (n * (n - 1) / 2);
    lengths_.uncut_token_layers = n * lengths_.exact_tokens;
    lengths_.whole_windows_tokens = window * n;
    lengths_.whole_model_tokens = window * layers;
    lengths_.engine_halo_tokens = n < 2 ? 0 : window + (n - 2) * (window - 1);

    const ActiveParameters active = active_parameters(*config);
    encoder_ = active.encoder_layers + active.encoder_csa + active.engram_projections;
    decoder_ = active.decoder_layers + active.decoder_csa;
    kv_projection_ = active.decoder_kv_projection;
}

PrefillFlops Replay::prefill(int64_t prompt_tokens) const {
    check_prompt(prompt_tokens);
    const int64_t bounded = std::min(prompt_tokens, lengths_.bounded_tokens);
    const int64_t exact = std::min(prompt_tokens, lengths_.exact_tokens);
    const double decoder_per_layer =
        static_cast<double>(decoder_) / static_cast<double>(decoder_layer_count_);
    const double other_layers = decoder_per_layer * static_cast<double>(decoder_layer_count_ - 1);
    PrefillFlops work;
    work.full = flops(encoder_ + decoder_, prompt_tokens);
    work.bounded = flops(encoder_, prompt_tokens) + flops(decoder_, bounded);
    work.exact = flops(encoder_, prompt_tokens) + flops(decoder_, exact);
    work.engine = flops(encoder_, prompt_tokens) +
                  2 * decoder_per_layer * static_cast<double>(prompt_tokens) +
                  2 * other_layers * static_cast<double>(bounded);
    work.boundary_projection = flops(kv_projection_, prompt_tokens - bounded);
    return work;
}

TurnFlops Replay::turn(int64_t prompt_tokens, int64_t new_tokens) const {
    check_prompt(prompt_tokens);
    if (new_tokens < 1 || new_tokens > prompt_tokens)
        throw UserError({fmt::format("{} new tokens in a prompt of {}", new_tokens, prompt_tokens), "--new",
                         fmt::format("1 to {}", prompt_tokens), ""});
    const int64_t prefix = prompt_tokens - new_tokens;
    TurnFlops work;
    work.hit =
        flops(encoder_, new_tokens) + flops(decoder_, std::min(prompt_tokens, lengths_.bounded_tokens));
    work.miss_bounded = work.hit + flops(encoder_, std::min(prefix, lengths_.bounded_tokens));
    work.miss_exact = flops(encoder_, new_tokens + std::min(prefix, lengths_.exact_tokens)) +
                      flops(decoder_, std::min(prompt_tokens, lengths_.exact_tokens));
    return work;
}

int64_t Replay::encoder_window_bytes(int64_t tokens) const {
    return std::min(tokens, window_tokens_) * first_decoder_layer_ * window_record_bytes_;
}

}  // namespace touchstone
