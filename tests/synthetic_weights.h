// Models of any configuration with synthetic weights, and models with some weights changed.
#pragma once

#include <functional>
#include <utility>

#include "reference/model/checkpoint_weights.h"
#include "reference/model/synthetic_tensors.h"

namespace touchstone {

/// A model whose weights are made in memory.
class SyntheticModel {
  public:
    explicit SyntheticModel(const ModelConfig& config, uint64_t seed = 0)
        : tensors_(config, seed), weights_(tensors_) {}

    const ModelConfig& config() const { return tensors_.config(); }
    const TensorSource& tensors() const { return tensors_; }
    const TextWeights& weights() const { return weights_; }

  private:
    SyntheticTensors tensors_;
    CheckpointWeights weights_;
};

/// Another model's weights, changed layer by layer; what `edit` points them to has to outlive this.
class EditedWeights final : public TextWeights {
  public:
    EditedWeights(const TextWeights& base, std::function<void(int layer, LayerWeights&)> edit)
        : base_(base), edit_(std::move(edit)) {}

    LayerWeights layer(int layer) const override {
        LayerWeights weights = base_.layer(layer);
        edit_(layer, weights);
        return weights;
    }
    Bf16Weight embedding() const override { return base_.embedding(); }
    std::span<const Bf16> final_norm() const override { return base_.final_norm(); }
    Bf16Weight head() const override { return base_.head(); }

  private:
    const TextWeights& base_;
    std::function<void(int, LayerWeights&)> edit_;
};

}  // namespace touchstone
