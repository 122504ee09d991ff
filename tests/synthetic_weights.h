// Models of any configuration with synthetic weights, and models with some weights changed.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <functional>
#include <string>
#include <utility>

#include "reference/model/checkpoint_weights.h"
#include "reference/model/synthetic_checkpoint.h"

namespace touchstone {

/// A synthetic checkpoint in a folder of its own, which goes with it.
class SyntheticModel {
  public:
    explicit SyntheticModel(const ModelConfig& config, uint64_t seed = 0)
        : folder_(written(config, seed)), checkpoint_(folder_.path), weights_(checkpoint_) {}

    const ModelConfig& config() const { return checkpoint_.config(); }
    const TextWeights& weights() const { return weights_; }
    std::filesystem::path file() const { return folder_.path / "model.safetensors"; }

  private:
    struct Folder {
        std::filesystem::path path;
        ~Folder() { std::filesystem::remove_all(path); }
    };

    static Folder written(const ModelConfig& config, uint64_t seed) {
        static int count = 0;
        const std::filesystem::path path =
            std::filesystem::temp_directory_path() /
            ("touchstone_synthetic_" + std::to_string(getpid()) + "_" + std::to_string(count++));
        write_synthetic_checkpoint(config, path, {.seed = seed});
        return Folder{path};
    }

    Folder folder_;
    Checkpoint checkpoint_;
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
