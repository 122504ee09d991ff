// The weights of the text model, as the components take them. A view: whoever makes one keeps the storage.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

#include "reference/compressor.h"
#include "reference/engram.h"
#include "reference/experts.h"
#include "reference/hyper_connections.h"
#include "reference/indexer.h"
#include "reference/linear.h"
#include "reference/moe_gate.h"

namespace touchstone {

/// Of one layer's attention (spec: text model, 4.5, 5, 6.6).
struct AttentionWeights {
    Fp8Weight wq_a;                               ///< [q_lora_rank, D]
    Fp8Weight wq_b;                               ///< [H Dh, q_lora_rank]
    Fp8Weight wkv;                                ///< [Dh, D]
    Fp8Weight wo_a;                               ///< [groups o_lora_rank, H Dh / groups]: used in bf16
    Fp8Weight wo_b;                               ///< [D, groups o_lora_rank]
    std::span<const Bf16> q_norm;                 ///< [q_lora_rank]
    std::span<const Bf16> kv_norm;                ///< [Dh]
    std::span<const float> sink;                  ///< [H]
    std::optional<CompressorWeights> compressor;  ///< of KV sources
    std::optional<IndexerWeights> indexer;        ///< of index sources
};

/// Of one backbone layer.
struct LayerWeights {
    HyperConnectionWeights hc_attn, hc_ffn;
    std::span<const Bf16> attn_norm, ffn_norm;  ///< [D]
    AttentionWeights attention;
    GateWeights gate;
    std::function<RoutedExpertWeights(int32_t)> expert;
    SharedExpertWeights shared;
    std::optional<EngramWeights> engram;
};

/// All of them, asked for layer by layer, so that a checkpoint larger than the memory streams through it.
class TextWeights {
  public:
    virtual ~TextWeights() = default;
    virtual LayerWeights layer(int layer) const = 0;
    virtual Bf16Weight embedding() const = 0;              ///< [V, D]
    virtual std::span<const Bf16> final_norm() const = 0;  ///< [D]
    virtual Bf16Weight head() const = 0;                   ///< [V, D]
};

}  // namespace touchstone
