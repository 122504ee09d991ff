// What each layer does in the cache-sharing scheme: the table of spec/text_model 1.4, derived from a
// configuration.
#pragma once

#include <string_view>
#include <vector>

#include "reference/model/config.h"

namespace touchstone {

enum class LayerHalf : uint8_t { encoder, decoder, draft, backbone /* V4: no split */ };

enum class LayerMode : uint8_t {
    swa_only,  ///< no compressed positions
    full,      ///< owns compressor, index keys and selection
    reindex,   ///< own index queries and selection over a source's keys
    reuse,     ///< reads a source's rows through a published selection
    csa,       ///< V4: own compressor (overlapping groups), own indexer
    hca,       ///< V4: own compressor, every compressed row attended, no indexer
};

enum class PoolRole : uint8_t { none, builds, restricted };

/// -1 stands for "none" in every layer number.
struct LayerRole {
    int layer = 0;
    LayerHalf half = LayerHalf::backbone;
    int compress_ratio = 0;
    bool compress_rope = false;  ///< the compress RoPE table (theta 160000 with YaRN); otherwise the main one
    LayerMode mode = LayerMode::swa_only;
    int kv_source = -1;
    int index_key_source = -1;
    int top_k_source = -1;
    PoolRole pool = PoolRole::none;
    bool engram = false;
    bool draft_tap = false;

    friend bool operator==(const LayerRole&, const LayerRole&) = default;
};

/// One row per backbone layer, then one per draft stage.
std::vector<LayerRole> layer_roles(const ModelConfig& config);

std::string_view name(LayerHalf half);
std::string_view name(LayerMode mode);
std::string_view name(PoolRole role);

}  // namespace touchstone
