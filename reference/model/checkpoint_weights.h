// The text model's weights out of a checkpoint (spec: text model, 21).
#pragma once

#include <vector>

#include "reference/model/layer_roles.h"
#include "reference/model/layer_weights.h"
#include "reference/model/tensor_source.h"

namespace touchstone {

/// Views into `source`, which has to outlive it. Tensors are looked up, checked and mapped when a layer is
/// asked for. Throws as TensorSource::values does.
class CheckpointWeights final : public TextWeights {
  public:
    explicit CheckpointWeights(const TensorSource& source);

    LayerWeights layer(int layer) const override;
    Bf16Weight embedding() const override;
    std::span<const Bf16> final_norm() const override;
    Bf16Weight head() const override;

  private:
    const TensorSource& source_;
    std::vector<LayerRole> roles_;
};

}  // namespace touchstone
