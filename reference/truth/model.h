// The whole text path in double (spec: text model, sections 10 and 15): prefill of any chunk at any position,
// decode, and the same under a replay plan. One sequence; a row's result does not depend on its neighbours.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "reference/model/config.h"
#include "reference/model/layer_roles.h"
#include "reference/truth/compressor.h"
#include "reference/truth/engram.h"
#include "reference/truth/indexer.h"
#include "reference/truth/ledger.h"
#include "reference/truth/rope.h"
#include "reference/truth/weights.h"

namespace touchstone::truth {

/// Which index keys a layer scores against (spec 6.5).
enum class IndexKeys : uint8_t {
    own,               ///< its source's, always
    released_pointer,  ///< those published last, by whichever source emitted a key last: the released code's
                       ///< decode steps at even positions score against another source's keys
};

struct ModelOptions {
    Ledger ledger = Ledger::released();
    IndexKeys index_keys = IndexKeys::own;
    MaskedPositions masked_positions = MaskedPositions::never_attended;
};

/// What the configuration does not hold. Unused without Engram.
struct EngramData {
    std::vector<int64_t> compressed_ids;  ///< of every token id
    std::vector<EngramHash> hashes;       ///< one per Engram layer, ascending
};

/// Consecutive rows of a layer's window KV, the newest at the bottom; at most W - 1 between calls.
struct Window {
    int64_t first_position = 0;
    Matrix rows;
};

/// The caches a KV source owns. Group j is row j.
struct SourceState {
    int64_t tokens = 0;  ///< that went into the compressor
    CompressorPending pending;
    Matrix main_rows, index_keys;
};

/// All that a sequence carries from call to call. A copy is a fork.
struct State {
    std::vector<int64_t> compressed_ids;  ///< Engram's history, by position
    std::vector<Window> windows;          ///< one per layer
    std::map<int, SourceState> sources;   ///< by layer
    int published_index_keys = -1;        ///< the source that emitted a key last
};

/// Rows of a stream: row i is position first_position + i. h is [T, n * D], pre [T, n].
struct Stream {
    int64_t first_position = 0;
    Matrix h, pre;
};

/// Discrete results given from outside, per layer and row of that layer; a layer that is not named makes its
/// own.
struct ForcedChoices {
    std::map<int, std::vector<std::vector<int64_t>>> experts;    ///< in the order of selection
    std::map<int, std::vector<std::vector<int64_t>>> positions;  ///< of index sources, ascending
    std::map<int, std::vector<std::vector<bool>>> pool;          ///< [row][position] of the candidate source
};

/// Which rows a layer computes (spec 7.3). Rows before first_row are dropped when the layer is reached, after
/// they went into its compressor and its window; queries see no window key before window_floor.
struct LayerRows {
    int64_t first_row = 0;
    int64_t window_floor = 0;
};

struct ForwardOptions {
    /// Gets every intermediate, under the names of the recordings of the released code, e.g.
    /// "L06.attn.index_scores".
    std::function<void(const std::string& name, const Matrix& value)> trace;
    /// May replace the stream that enters a layer, "L06.x_in", or Engram before it, "L01.engram.x_in".
    std::function<void(const std::string& name, Stream& stream)> stream_in;
    ForcedChoices forced;
    std::vector<LayerRows> replay;  ///< one per layer; empty: every row, no floor
};

class Model {
  public:
    Model(const ModelConfig& config, const WeightLoader& load, EngramData engram, ModelOptions options);
    /// Another arithmetic over the same weights.
    Model with(ModelOptions options) const;

    /// An empty sequence.
    State start() const;

    /// Runs tokens at positions first_position .. and returns the logits of the rows that reach the head,
    /// [rows, V]. Normally first_position is the number of tokens so far. A smaller one recomputes rows:
    /// windows are replaced from there on, compressed rows and index keys that exist are kept (spec 7.3,
    /// encoder replay).
    Matrix forward(State& state, const std::vector<int64_t>& tokens, int64_t first_position,
                   const ForwardOptions& options = {}) const;

  private:
    struct Call;
    void run_engram(const Call& call, int layer, Stream& stream) const;
    void run_layer(Call& call, int layer, Stream& stream) const;
    Matrix attention(Call& call, int layer, const Matrix& x, const Stream& stream) const;
    void compress(Call& call, int layer, const Matrix& x, int64_t first_position) const;
    void select(Call& call, int layer, const Matrix& x, const Matrix& qr, int64_t first_position) const;
    Matrix experts(const Call& call, int layer, const Matrix& x) const;

    ModelConfig config_;
    std::vector<LayerRole> roles_;
    std::shared_ptr<const ModelWeights> weights_;
    std::shared_ptr<const EngramData> engram_;
    std::vector<float> main_frequencies_, compress_frequencies_;
    ModelOptions options_;
};

}  // namespace touchstone::truth
