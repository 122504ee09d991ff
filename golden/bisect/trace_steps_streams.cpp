// Steps of the residual streams: what a layer takes over, hyper-connections, the head.
#include <fmt/format.h>

#include "golden/bisect/step_origins.h"

namespace touchstone {

namespace {

std::vector<int64_t> stream_widths(const ModelConfig& config) {
    return {config.hc_mult, config.hidden_size};
}

int layer_before(const StepPlace& place) {
    return place.layer - 1;
}

int last_layer(const StepPlace& place) {
    return static_cast<int>(std::ssize(place.roles)) - 1;
}

/// Copies of the tokens' embeddings: what the first layer takes.
std::optional<Tensor> embedded_tokens(const StepPlace& place) {
    const Tensor* tokens = place.theirs.tensor(place.call, -1, "tokens");
    if (tokens == nullptr || tokens->shape.front() < place.rows) return std::nullopt;
    const ModelConfig& config = place.config();
    const std::span<const Bf16> table = place.weights.values<Bf16>("embed.weight");
    const auto width = static_cast<size_t>(config.hidden_size);
    std::vector<Bf16> streams;
    const auto ids = tokens->view<int32_t>();
    for (const int32_t id : ids.subspan(ids.size() - static_cast<size_t>(place.rows))) {
        if (id < 0 || id >= config.vocab_size) return std::nullopt;
        const auto row = table.subspan(static_cast<size_t>(id) * width, width);
        for (int64_t copy = 0; copy < config.hc_mult; ++copy)
            streams.insert(streams.end(), row.begin(), row.end());
    }
    return tensor_of({place.rows, config.hc_mult, config.hidden_size}, streams);
}

std::optional<Tensor> entering_streams(const StepPlace& place) {
    return place.layer == 0 ? embedded_tokens(place) : traced_of("x_out", layer_before)(place);
}

/// The first collapse takes the first copy alone.
std::optional<Tensor> entering_pre(const StepPlace& place) {
    if (place.layer > 0) return traced_of("pre_out", layer_before)(place);
    std::vector<float> pre;
    for (int64_t i = 0; i < place.rows * place.config().hc_mult; ++i)
        pre.push_back(i % place.config().hc_mult == 0 ? 1.0f : 0.0f);
    return tensor_of({place.rows, place.config().hc_mult}, pre);
}

std::string mix_text(const StepPlace& place) {
    const ModelConfig& config = place.config();
    return fmt::format("iterations={},hc_eps={},norm_eps={}", config.hc_sinkhorn_iters, config.hc_eps,
                       config.rms_norm_eps);
}

Step mix_step(const std::string& sublayer, const char* streams, const char* output,
              std::vector<std::string> beside) {
    Step step{sublayer + "." + output,
              {{"mix",
                {{"h", traced(streams)},
                 {"fn", layer_weight(sublayer + "_fn")},
                 {"base", layer_weight(sublayer + "_base")},
                 {"scale", layer_weight(sublayer + "_scale")}},
                mix_text,
                output}}};
    for (const std::string& other : beside) step.beside.push_back(sublayer + "." + other);
    return step;
}

void add_mix_steps(std::vector<Step>& steps, const std::string& sublayer, const char* streams) {
    steps.push_back(mix_step(sublayer, streams, "mixes", {}));
    for (const char* output : {"pre", "post", "comb"})
        steps.push_back(mix_step(sublayer, streams, output, {"mixes"}));
}

Step collapse_step(std::string tensor, const char* streams, const char* pre) {
    return {std::move(tensor),
            {{"collapse", {{"h", traced(streams)}, {"pre", traced(pre)}}, fixed(""), "y"}}};
}

Step norm_step(const std::string& sublayer) {
    return {sublayer + ".x",
            {{"rms_norm",
              {{"x", traced(sublayer + ".collapsed")}, {"weight", layer_weight(sublayer + "_norm.weight")}},
              norm_eps_text,
              "y"}}};
}

Step expand_step(std::string tensor, const char* streams, const std::string& sublayer) {
    return {std::move(tensor),
            {{"expand",
              {{"h", traced(streams)},
               {"y", traced(sublayer + ".out")},
               {"post", traced("hc_" + sublayer + ".post")},
               {"comb", traced("hc_" + sublayer + ".comb")}},
              fixed(""),
              "out"}}};
}

bool without_engram(const ModelConfig& config, int layer) {
    return !layer_roles(config)[static_cast<size_t>(layer)].engram;
}

}  // namespace

std::vector<Step> stream_steps() {
    std::vector<Step> steps;
    steps.push_back({"engram.x_in", {}, false, entering_streams});
    steps.push_back({"x_in", {}, false, entering_streams});
    steps.back().where = without_engram;
    steps.push_back({"pre_in", {}, false, entering_pre});
    steps.push_back(collapse_step("attn.collapsed", "x_in", "pre_in"));
    steps.push_back(norm_step("attn"));
    add_mix_steps(steps, "hc_attn", "x_in");
    steps.push_back(expand_step("x_mid", "x_in", "attn"));
    add_mix_steps(steps, "hc_ffn", "x_mid");
    steps.push_back(collapse_step("ffn.collapsed", "x_mid", "hc_attn.pre"));
    steps.push_back(norm_step("ffn"));
    steps.push_back(expand_step("x_out", "x_mid", "ffn"));
    steps.push_back({"pre_out", {}, false, traced("hc_ffn.pre")});
    steps.push_back({"final.normed",
                     {{"collapse",
                       {{"h", shaped(traced_of("x_out", last_layer), stream_widths)},
                        {"pre", traced_of("pre_out", last_layer)}},
                       fixed(""),
                       "y"},
                      {"rms_norm",
                       {{"x", link_before()}, {"weight", model_weight("norm.weight")}},
                       norm_eps_text,
                       "y"}}});
    steps.push_back({"logits",
                     {{"lm_head",
                       {{"x", traced("final.normed")}, {"weight", model_weight("head.weight")}},
                       fixed(""),
                       "logits"}}});
    return steps;
}

}  // namespace touchstone
