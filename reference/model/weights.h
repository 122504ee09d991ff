// The official checkpoint of V4.1 as a table: every tensor with its name, storage type and shape.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "reference/model/config.h"

namespace touchstone {

/// Storage types of the released safetensors files. `i8_e2m1` is I8 holding two e2m1 values per byte.
enum class TensorType : uint8_t { f32, bf16, f8_e4m3, f8_e8m0, i8_e2m1 };

/// What a tensor belongs to (rows of spec/text_model 11).
enum class WeightComponent : uint8_t {
    embedding,
    head,
    norms,
    attention,
    compressor,
    indexer,
    gate,
    routed_experts,
    shared_experts,
    hyper_connections,
    engram_tables,
    engram_projections,
    dspark,
    vision,
};

struct TensorSpec {
    std::string name;  ///< released name, e.g. "layers.2.attn.wq_a.weight"
    TensorType type = TensorType::bf16;
    std::vector<int64_t> shape;  ///< as stored: an e2m1 row of K values has K/2
    WeightComponent component = WeightComponent::norms;
    int layer = -1;  ///< backbone layer, num_hidden_layers + m for draft stage m, -1 outside layers

    int64_t stored_bytes() const;
    /// Elements of the logical tensor: two per i8_e2m1 byte.
    int64_t elements() const;
    /// Parameters: elements of the logical matrix (two per i8_e2m1 byte); block scales are not parameters.
    int64_t parameters() const;
};

/// Calls `visit` for every tensor of the checkpoint in a fixed order (embedding, head, norm, layers
/// ascending, draft stages, vision). V4.1 only: throws UserError for other families, whose tensor list is not
/// published in full.
void for_each_tensor(const ModelConfig& config, const std::function<void(const TensorSpec&)>& visit);

std::string_view safetensors_name(TensorType type);  ///< "F32", "BF16", "F8_E4M3", "F8_E8M0", "I8"
std::string_view name(WeightComponent component);

}  // namespace touchstone
