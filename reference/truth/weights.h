// The weights of the text path in double, dequantised, by their released names (spec: text model, section
// 21).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/model/config.h"
#include "reference/model/tensor_source.h"
#include "reference/truth/compressor.h"
#include "reference/truth/hyper_connections.h"
#include "reference/truth/ledger.h"
#include "reference/truth/moe.h"

namespace touchstone::truth {

/// Gives a tensor by its released name, e.g. "layers.2.attn.wq_a.weight", dequantised exactly: a matrix
/// [outputs, inputs], or [1, n] for a vector.
using WeightLoader = std::function<Matrix(const std::string& name)>;

/// From any source of the model's tensors (spec 2.4), which must outlive the loader.
WeightLoader dequantising_loader(const TensorSource& source);

struct IndexerWeights {
    Matrix wq_b;          ///< [heads * Di, q_lora_rank]
    Matrix weights_proj;  ///< [heads, D]
    Matrix wk;            ///< [Di, Dh]; empty in Reindex layers
    Vector k_norm;        ///< [Di]; empty in Reindex layers
};

struct EngramWeights {
    Matrix table;               ///< [rows, engram head_dim]
    Matrix wkv;                 ///< [(n + 1) * D, columns * engram head_dim]
    Matrix q_weight, k_weight;  ///< [n, D]
};

struct LayerWeights {
    HyperConnectionWeights hc_attn, hc_ffn;
    Vector attn_norm, ffn_norm;
    Matrix wq_a, wq_b, wkv, wo_a, wo_b;
    Vector q_norm, kv_norm, attn_sink;
    std::optional<CompressorWeights> compressor;
    std::optional<IndexerWeights> indexer;
    std::optional<EngramWeights> engram;
    Matrix gate;
    Vector gate_bias;
    std::vector<ExpertWeights> experts;
    ExpertWeights shared_expert;
};

struct ModelWeights {
    Matrix embed, head;  ///< [V, D]
    Vector norm;
    std::vector<LayerWeights> layers;  ///< of the backbone
};

/// Loads what layer_roles(config) says the backbone has.
ModelWeights load_weights(const ModelConfig& config, const WeightLoader& load);

}  // namespace touchstone::truth
