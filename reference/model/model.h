// A model as the accounting sees it: a configuration of the V4 family, or a baseline it is compared with.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "reference/model/config.h"

namespace touchstone {

/// How a baseline stores its keys and values.
enum class BaselineAttention : uint8_t {
    gqa,         ///< keys and values per KV head
    mla,         ///< one shared latent per token: kv_lora_rank + rope channels
    mla_sparse,  ///< the same with an index key per token (V3.2)
};

/// A model that is only compared with: just what its caches need (spec/memory 2.6).
struct BaselineModel {
    BaselineAttention attention = BaselineAttention::gqa;
    int64_t cached_layers = 0;    ///< layers whose cache grows with the context
    int64_t kv_heads = 0;         ///< gqa
    int64_t head_dim = 0;         ///< gqa
    int64_t kv_lora_rank = 0;     ///< mla
    int64_t rope_head_dim = 0;    ///< mla
    int64_t index_head_dim = 0;   ///< mla_sparse, 0 otherwise
    int64_t windowed_layers = 0;  ///< layers that keep only a sliding window
    int64_t window_tokens = 0;
    std::vector<std::string> assumptions;  ///< printed with every number, e.g. "sparse index not counted"
    std::vector<std::string> not_counted;  ///< fixed state of unknown size: totals are refused
};

struct Model {
    std::string name;    ///< preset name, or the path it was read from
    std::string source;  ///< where the numbers come from
    std::variant<ModelConfig, BaselineModel> shape;

    const ModelConfig* config() const { return std::get_if<ModelConfig>(&shape); }
    const BaselineModel* baseline() const { return std::get_if<BaselineModel>(&shape); }
};

/// Names of the presets inside the binary, in the order of the tables.
std::vector<std::string> preset_names();

/// A preset by exact name, or else a path to a config.json. Throws UserError: unknown preset (did-you-mean),
/// or what load_config says of the file.
Model find_model(std::string_view name_or_path);

}  // namespace touchstone
