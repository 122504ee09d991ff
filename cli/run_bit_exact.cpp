// touchstone run in exact, hopper and released_hopper: the text model on packed state.
#include "cli/run.h"
#include "reference/model/checkpoint_weights.h"
#include "reference/sequence_state_file.h"

namespace touchstone::cli {

namespace {

class BitExactRunner final : public Runner {
  public:
    BitExactRunner(std::shared_ptr<const TextModel> model, const RunSettings& settings, SequenceState state)
        : model_(std::move(model)), settings_(settings), state_(std::move(state)) {}

    int64_t tokens() const override { return state_.tokens(); }

    std::vector<double> prefill(std::span<const int32_t> tokens, ReplayMode mode, bool traced) override {
        return widened(touchstone::prefill(*model_, state_, tokens, options(mode, traced)));
    }

    std::vector<double> prefill_after_hit(std::span<const int32_t> prompt, int64_t hit,
                                          int64_t replay_tokens) override {
        touchstone::prefill(*model_, state_, prompt.first(static_cast<size_t>(hit)),
                            options(ReplayMode::none, false));
        state_.drop_windows();
        return widened(touchstone::prefill_after_hit(*model_, state_, prompt, replay_tokens,
                                                     options(settings_.replay, true)));
    }

    std::unique_ptr<Runner> fork() const override {
        return std::make_unique<BitExactRunner>(model_, settings_, state_);
    }

    std::optional<int64_t> state_bytes() const override {
        int64_t bytes = 0;
        for (int layer = 0; layer < state_.layers(); ++layer)
            bytes += std::ssize(state_.window(layer).saved());
        for (const auto& [layer, source] : state_.sources())
            bytes += std::ssize(source.main.pages()) + std::ssize(source.keys.pages());
        return bytes;
    }

    void save(const std::string& path) const override { save_state(state_, model_->config(), path); }

  private:
    static std::vector<double> widened(const std::vector<float>& logits) {
        return {logits.begin(), logits.end()};
    }

    PrefillOptions options(ReplayMode mode, bool traced) const {
        PrefillOptions options{mode, settings_.reading, settings_.chunk_tokens, {}, nullptr};
        options.forward.forced = settings_.forced;
        options.forward.before_layer = settings_.before_layer;
        if (traced && settings_.trace != nullptr)
            options.trace_of_call = [trace = settings_.trace](int64_t first) {
                return Trace(trace, call_prefix(first));
            };
        return options;
    }

    std::shared_ptr<const TextModel> model_;
    RunSettings settings_;
    SequenceState state_;
};

/// A model that owns the views of its weights.
struct OwningModel {
    CheckpointWeights weights;
    TextModel model;
    OwningModel(const TensorSource& source, Arithmetic arithmetic, ReleasedBehaviour released)
        : weights(source), model(source.config(), weights, arithmetic, released) {}
};

}  // namespace

std::unique_ptr<Runner> bit_exact_runner(const TensorSource& source, Arithmetic arithmetic,
                                         const RunSettings& settings, const std::string& state_path) {
    const auto owner = std::make_shared<const OwningModel>(source, arithmetic, settings.released);
    SequenceState state =
        state_path.empty() ? SequenceState(source.config()) : load_state(source.config(), state_path);
    return std::make_unique<BitExactRunner>(std::shared_ptr<const TextModel>(owner, &owner->model), settings,
                                            std::move(state));
}

}  // namespace touchstone::cli
