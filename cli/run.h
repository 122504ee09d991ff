// touchstone run: what the command's two kinds of arithmetic have in common.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reference/attention.h"
#include "reference/model/tensor_source.h"
#include "reference/model/trace_file.h"
#include "reference/replay.h"

namespace touchstone::cli {

/// What stays the same over a run.
struct RunSettings {
    ReplayMode replay = ReplayMode::none;
    BoundaryReading reading = BoundaryReading::own_windows;
    int64_t chunk_tokens = 512;
    ReleasedBehaviour released;
    const ForcedChoices* forced = nullptr;
    TraceFile* trace = nullptr;
    std::function<void(int layer)> before_layer = nullptr;  ///< progress
};

/// One sequence under one arithmetic.
class Runner {
  public:
    virtual ~Runner() = default;
    /// Tokens so far.
    virtual int64_t tokens() const = 0;
    /// Runs `tokens` behind them; the logits of the last one.
    virtual std::vector<double> prefill(std::span<const int32_t> tokens, ReplayMode mode, bool traced) = 0;
    /// On an empty sequence: the first `hit` tokens come from a prefix cache, so they are run first and their
    /// windows dropped; then the prompt goes on with encoder replay of the last `replay_tokens` of them.
    virtual std::vector<double> prefill_after_hit(std::span<const int32_t> prompt, int64_t hit,
                                                  int64_t replay_tokens) = 0;
    /// An independent copy.
    virtual std::unique_ptr<Runner> fork() const = 0;
    /// Of the packed state, or nothing where the state is not packed.
    virtual std::optional<int64_t> state_bytes() const = 0;
    virtual void save(const std::string& path) const = 0;
};

/// exact, hopper or released_hopper; `state_path` empty: an empty sequence.
std::unique_ptr<Runner> bit_exact_runner(const TensorSource& source, Arithmetic arithmetic,
                                         const RunSettings& settings, const std::string& state_path);
/// truth (`rounds`) or ideal: in double.
std::unique_ptr<Runner> double_runner(const TensorSource& source, bool rounds, const RunSettings& settings);

}  // namespace touchstone::cli
