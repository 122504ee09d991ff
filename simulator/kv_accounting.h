// What a token, a context and a request cost in KV memory. Every byte count comes from reference/layout.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/layout/cache_layout.h"
#include "reference/model/layer_roles.h"
#include "reference/model/model.h"
#include "simulator/rational.h"

namespace touchstone {

/// Contexts up to this many tokens are accepted everywhere.
inline constexpr int64_t max_context_tokens = int64_t{1} << 40;

/// How many fp32 rows the open compressor groups are charged with (spec/memory 3.1):
/// minimal: rows that can be open at once; group: whole groups; ring: a serving engine's ring.
enum class CompressorRows : uint8_t { minimal, group, ring };

/// Bytes of one request that do not grow with its context.
struct FixedBytes {
    int64_t window = 0;  ///< sliding windows of the backbone, allocated from the first token
    int64_t draft_window = 0;
    int64_t compressor_state = 0;
    int64_t engram_history = 0;
    int64_t total() const;
};

/// One kind of cache at one compression ratio.
struct KvModule {
    CacheGroup group;
    Rational bytes_per_token;  ///< 0 for windows
};

/// The open rows of the compressors at one ratio, as they are charged.
struct CompressorShare {
    CompressorState state;
    int64_t rows = 0;
    int64_t row_bytes = 0;
    int64_t bytes = 0;  ///< all layers
};

/// What the layers of one mode (Full, Reindex, Reuse, ...) own.
struct ModeShare {
    std::string mode;
    int64_t layers = 0;
    Rational bytes_per_token;
    int64_t window_bytes = 0;
};

/// The memory of one model in one storage format: bytes(T) = alpha + growing bytes of T tokens.
class KvAccount {
  public:
    /// `with_draft` counts the drafter's windows. Throws UserError for a format that the model does not have.
    KvAccount(const Model& model, std::string_view format, CompressorRows rows = CompressorRows::ring,
              bool with_draft = true);

    const CacheLayout& layout() const { return layout_; }
    /// Modules that grow, in the order of the table: main KV by ratio, then index keys by ratio.
    const std::vector<KvModule>& modules() const { return modules_; }
    const FixedBytes& fixed() const { return fixed_; }
    const std::vector<CompressorShare>& compressors() const { return compressors_; }
    /// Average over a period of whole compression groups: the slope beta.
    Rational bytes_per_token() const;

    /// Bytes of the growing caches at exactly `tokens` tokens: sum of floor(tokens / ratio) records. 0 at 0.
    int64_t global_bytes(int64_t tokens) const;
    int64_t module_bytes(const KvModule& module, int64_t tokens) const;
    /// Window slots that hold a row at `tokens` tokens; fixed().window is what is allocated. Draft windows
    /// included.
    int64_t window_occupied_bytes(int64_t tokens) const;
    /// global_bytes + fixed().total(). Throws UserError where part of the fixed state has no published size.
    int64_t total_bytes(int64_t tokens) const;
    /// floor(budget / total_bytes(tokens)) requests (g29).
    int64_t resident_requests(int64_t budget_bytes, int64_t tokens) const;

    /// Shares by layer mode; empty for baselines.
    const std::vector<ModeShare>& by_mode() const { return by_mode_; }

  private:
    CacheLayout layout_;
    std::vector<KvModule> modules_;
    std::vector<CompressorShare> compressors_;
    FixedBytes fixed_;
    std::vector<ModeShare> by_mode_;
    std::string model_name_;
};

/// Bytes that a turn of `new_tokens` tokens adds to persistent storage (spec/memory 3.4). With bounded replay
/// (V4.1) only global rows persist; the V4 generation also leaves two window snapshots per turn, at the end
/// of the prompt and at the end of the output. Baselines persist what grows.
struct PersistentTurn {
    Rational global_bytes;
    int64_t window_snapshot_bytes = 0;
    Rational total() const { return global_bytes + Rational(window_snapshot_bytes); }
};
PersistentTurn persistent_turn(const Model& model, const KvAccount& account, int64_t new_tokens);

/// New tokens per turn at which snapshots take half of what persists; 0 where there are none. 1829.3 for
/// V4-Flash.
Rational snapshot_half_tokens(const Model& model, const KvAccount& account);

/// One step from V4-Flash's cache to V4.1-Flash's (spec/memory 2.4).
struct ChainStep {
    std::string change;
    std::string arithmetic;
    Rational bytes_per_token;
};
std::vector<ChainStep> step_chain();

}  // namespace touchstone
