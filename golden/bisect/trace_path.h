// The tensors of a forward pass by name, in the order in which they are made: what bisect walks along.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reference/model/config.h"

namespace touchstone {

/// Which rows of a call a traced tensor has. All end with the call's last row.
enum class TracedRows : uint8_t {
    tokens,   ///< every row that enters the layer, or new ones alone, or those that make window rows
    queries,  ///< the rows that the layer computes
    groups,   ///< a row per group of tokens that the call closes
    last,     ///< the last row of the call, or more
};

/// A width that grows with the context: the most compressed rows, or blocks of them, that a row sees.
inline constexpr int64_t visible_width = -1;

struct TracedTensor {
    int layer;         ///< -1 outside layers
    std::string name;  ///< without the layer: "attn.qr"
    std::string type;  ///< as run --trace writes it
    TracedRows rows;
    std::vector<int64_t> row_shape;  ///< extents after the first
};

/// "L06.attn.qr"; the name alone outside layers.
std::string traced_name(int layer, std::string_view name);

/// The tensors of one call that a trace of this configuration has: "tokens", then layer by layer, then the
/// logits. V4.1 alone.
std::vector<TracedTensor> trace_path(const ModelConfig& config);

}  // namespace touchstone
