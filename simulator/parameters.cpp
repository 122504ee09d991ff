#include "simulator/parameters.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "reference/model/layer_roles.h"
#include "simulator/checked.h"

namespace touchstone {

namespace {

bool outside_backbone(WeightComponent component) {
    return component == WeightComponent::engram_tables || component == WeightComponent::engram_projections ||
           component == WeightComponent::dspark || component == WeightComponent::vision;
}

bool ends_with(const std::string& text, std::string_view end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

/// Compressor and indexer norms are not multiplied as matrices; the other norms are counted with their
/// blocks.
bool is_csa_matrix(const TensorSpec& tensor) {
    return (tensor.component == WeightComponent::compressor ||
            tensor.component == WeightComponent::indexer) &&
           tensor.shape.size() == 2;
}

/// Values of `tensor` that one token uses in its layer; 0 for tensors that are counted
/// elsewhere (routed experts, whose active share is taken of the layer's sum) or looked up.
int64_t active_in_layer(const TensorSpec& tensor) {
    switch (tensor.component) {
        case WeightComponent::gate: return tensor.shape.size() == 2 ? tensor.parameters() : 0;
        case WeightComponent::attention:
        case WeightComponent::shared_experts:
        case WeightComponent::hyper_connections:
        case WeightComponent::norms: return tensor.parameters();
        default: return 0;
    }
}

}  // namespace

const ComponentWeights& WeightTotals::of(WeightComponent component) const {
    for (const ComponentWeights& row : components)
        if (row.component == component) return row;
    fmt::print(stderr, "touchstone: internal error: no weights of component {}\n", name(component));
    std::abort();
}

WeightTotals weight_totals(const ModelConfig& config) {
    WeightTotals totals;
    for (int component = 0; component <= static_cast<int>(WeightComponent::vision); ++component)
        totals.components.push_back({static_cast<WeightComponent>(component), 0, 0, 0});
    for_each_tensor(config, [&](const TensorSpec& tensor) {
        ComponentWeights& row = totals.components[static_cast<size_t>(tensor.component)];
        row.tensors += 1;
        row.parameters = checked_add(row.parameters, tensor.parameters());
        row.stored_bytes = checked_add(row.stored_bytes, tensor.stored_bytes());
    });
    for (const ComponentWeights& row : totals.components) {
        totals.tensors += row.tensors;
        totals.parameters = checked_add(totals.parameters, row.parameters);
        totals.stored_bytes = checked_add(totals.stored_bytes, row.stored_bytes);
        if (!outside_backbone(row.component)) totals.backbone_parameters += row.parameters;
    }
    return totals;
}

ActiveParameters active_parameters(const ModelConfig& config) {
    ActiveParameters active;
    const int first_decoder = first_decoder_layer(config);
    std::vector<int64_t> routed(static_cast<size_t>(config.num_hidden_layers), 0);
    for_each_tensor(config, [&](const TensorSpec& tensor) {
        if (tensor.component == WeightComponent::head) active.head += tensor.parameters();
        if (tensor.layer < 0 || tensor.layer >= config.num_hidden_layers) return;
        const bool decoder = tensor.layer >= first_decoder;
        if (is_csa_matrix(tensor)) {
            (decoder ? active.decoder_csa : active.encoder_csa) += tensor.parameters();
            if (tensor.layer == first_decoder) {
                active.first_decoder_csa += tensor.parameters();
                if (ends_with(tensor.name, "compressor.wkv.weight") ||
                    ends_with(tensor.name, "indexer.wk.weight"))
                    active.decoder_kv_projection += tensor.parameters();
            }
        } else if (tensor.component == WeightComponent::routed_experts) {
            routed[static_cast<size_t>(tensor.layer)] += tensor.parameters();
        } else if (tensor.component == WeightComponent::engram_projections) {
            if (ends_with(tensor.name, "wkv.weight")) active.engram_projections += tensor.parameters();
        } else {
            const int64_t parameters = active_in_layer(tensor);
            (decoder ? active.decoder_layers : active.encoder_layers) += parameters;
            if (tensor.layer == 0) active.layer += parameters;
        }
    });
    for (size_t layer = 0; layer < routed.size(); ++layer) {
        const int64_t used = routed[layer] / config.n_routed_experts * config.num_experts_per_tok;
        (static_cast<int>(layer) >= first_decoder ? active.decoder_layers : active.encoder_layers) += used;
        if (layer == 0) active.layer += used;
    }
    return active;
}

int64_t ActiveParameters::prefill(bool with_engram) const {
    return encoder_layers + encoder_csa + decoder_kv_projection + (with_engram ? engram_projections : 0);
}

int64_t ActiveParameters::prefill_with_first_decoder_layer(bool with_engram) const {
    return encoder_layers + encoder_csa + layer + first_decoder_csa + (with_engram ? engram_projections : 0);
}

int64_t ActiveParameters::decode(bool with_head, bool with_engram) const {
    return encoder_layers + encoder_csa + decoder_layers + decoder_csa + (with_head ? head : 0) +
           (with_engram ? engram_projections : 0);
}

int64_t routed_expert_bytes(const ModelConfig& config, const WeightTotals& totals) {
    return totals.of(WeightComponent::routed_experts).stored_bytes /
           (config.num_hidden_layers * config.n_routed_experts);
}

}  // namespace touchstone
