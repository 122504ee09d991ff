// A sequence's state on disk.
#pragma once

#include <filesystem>

#include "reference/model/config.h"
#include "reference/sequence_state.h"

namespace touchstone {

/// Writes `state` as a safetensors file, under its name only when complete. Tensors: `config` (the dump of
/// the configuration it belongs to), `tokens`, `engram_history`, per layer `window.L` (W records, planar,
/// position p in slot p mod W) and `window.L.positions` (first, end), per KV source `source.L.rows`
/// (their number), `source.L.main`, `source.L.keys` (planar pages), `source.L.open_kv` and
/// `source.L.open_score`. Throws UserError when it
/// cannot be written, for a state of another configuration, and for one that a failed call has left.
void save_state(const SequenceState& state, const ModelConfig& config, const std::filesystem::path& path);

/// What save_state wrote: the sequence continues with the same bits, windows that begin late (bounded
/// replay) included. Tokens from before the file cannot be taken back.
/// Throws UserError, naming tensor and file, for a state of another configuration, a tensor that is missing,
/// unknown, of the wrong size or at odds with the number of tokens, and what SafetensorsFile says of the
/// file.
SequenceState load_state(const ModelConfig& config, const std::filesystem::path& path,
                         int64_t rollback_tokens = 8);

}  // namespace touchstone
