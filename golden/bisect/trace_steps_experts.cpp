// Steps of the experts: routing, the shared expert, all of them.
#include <fmt/format.h>

#include <algorithm>

#include "golden/bisect/step_origins.h"

namespace touchstone {

namespace {

std::string gate_text(const StepPlace& place) {
    return fmt::format("experts_per_token={},scaling_factor={}", place.config().num_experts_per_tok,
                       place.config().routed_scaling_factor);
}

std::string forced_gate_text(const StepPlace& place) {
    return gate_text(place) + ",forced=1";
}

std::string limit_text(const StepPlace& place) {
    return fmt::format("limit={}", place.config().swiglu_limit);
}

Link gate_link(const char* output) {
    return {"moe_gate",
            {{"x", traced("ffn.x")},
             {"weight", layer_weight("ffn.gate.weight")},
             {"bias", layer_weight("ffn.gate.bias")},
             {"bias_vl", layer_weight("ffn.gate.bias_vl")},
             {"image_rows", no_images()}},
            gate_text,
            output};
}

Step weights_step() {
    Link link = gate_link("weights");
    link.inputs.emplace_back("forced_experts", traced("ffn.experts"));
    link.parameters = forced_gate_text;
    return {"ffn.expert_weights", {link}, false, nullptr, {"ffn.gate_scores"}};
}

/// Ids that some row chose, ascending; nothing for ids that there are not.
std::optional<std::vector<int32_t>> chosen_ids(const StepPlace& place) {
    const std::optional<Tensor> chosen = traced("ffn.experts")(place);
    if (!chosen) return std::nullopt;
    const auto values = std::as_const(*chosen).view<int32_t>();
    std::vector<int32_t> ids(values.begin(), values.end());
    std::ranges::sort(ids);
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    if (!ids.empty() && (ids.front() < 0 || ids.back() >= place.config().n_routed_experts))
        return std::nullopt;
    return ids;
}

/// The weights of those alone, one after another: their order is kept, so the order of the sum is.
Origin chosen_weights(const char* name) {
    return [name](const StepPlace& place) -> std::optional<Tensor> {
        const std::optional<std::vector<int32_t>> ids = chosen_ids(place);
        if (!ids || ids->empty()) return std::nullopt;
        std::optional<Tensor> all;
        for (const int32_t id : *ids) {
            Tensor one = weight_tensor(place.weights,
                                       layer_weight_name(place, fmt::format("ffn.experts.{}.{}", id, name)));
            one.shape.insert(one.shape.begin(), 1);
            if (all)
                append_rows(*all, one);
            else
                all = std::move(one);
        }
        return all;
    };
}

std::optional<Tensor> renumbered_choices(const StepPlace& place) {
    std::optional<Tensor> chosen = traced("ffn.experts")(place);
    const std::optional<std::vector<int32_t>> ids = chosen_ids(place);
    if (!chosen || !ids) return std::nullopt;
    for (int32_t& id : chosen->view<int32_t>())
        id = static_cast<int32_t>(std::ranges::lower_bound(*ids, id) - ids->begin());
    return chosen;
}

void add_shared_weights(Link& link, const std::string& slot_prefix) {
    for (const std::string name : {"w1", "w3", "w2"}) {
        link.inputs.emplace_back(slot_prefix + name, layer_weight("ffn.shared_experts." + name + ".weight"));
        link.inputs.emplace_back(slot_prefix + name + "_scale",
                                 layer_weight("ffn.shared_experts." + name + ".scale"));
    }
}

Step shared_step() {
    Link link{"shared_expert", {{"x", traced("ffn.x")}}, limit_text, "y"};
    add_shared_weights(link, "");
    return {"ffn.shared_out", {link}};
}

Step experts_step() {
    Link link{"experts",
              {{"x", traced("ffn.x")},
               {"chosen", renumbered_choices},
               {"weights", traced("ffn.expert_weights")},
               {"w1", chosen_weights("w1.weight")},
               {"w1_scale", chosen_weights("w1.scale")},
               {"w3", chosen_weights("w3.weight")},
               {"w3_scale", chosen_weights("w3.scale")},
               {"w2", chosen_weights("w2.weight")},
               {"w2_scale", chosen_weights("w2.scale")}},
              limit_text,
              "out"};
    add_shared_weights(link, "shared_");
    return {"ffn.out", {link}, false, nullptr, {"ffn.shared_out"}};
}

}  // namespace

std::vector<Step> expert_steps() {
    std::vector<Step> steps;
    steps.push_back({"ffn.gate_scores", {gate_link("scores")}});
    steps.push_back(
        {"ffn.experts", {gate_link("chosen")}, false, nullptr, {"ffn.gate_scores"}, StepJudge::selection});
    steps.push_back(weights_step());
    steps.push_back(shared_step());
    steps.push_back(experts_step());
    return steps;
}

}  // namespace touchstone
