// Where a model's tensors come from: a checkpoint on disk, or random numbers made when asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/linear.h"
#include "reference/model/config.h"
#include "reference/model/weights.h"

namespace touchstone {

/// Tensors by their released names, typed as the configuration says. Every const member may be called from
/// any thread.
class TensorSource {
  public:
    virtual ~TensorSource() = default;
    TensorSource(const TensorSource&) = delete;
    TensorSource& operator=(const TensorSource&) = delete;

    const ModelConfig& config() const { return config_; }
    /// What the configuration says of a tensor. Throws UserError, with the nearest name, for another name.
    const TensorSpec& spec(std::string_view name) const;

    /// The stored elements of a tensor by its full name: float of F32, Bf16, E4m3, E8m0, uint8_t of packed
    /// e2m1. Valid as long as the source. Throws UserError, naming the tensor, when it is of another type,
    /// and as stored_bytes does.
    template <class T>
    std::span<const T> values(std::string_view name) const;

    /// The weight of a linear layer, e.g. fp8_weight("layers.0.attn.wq_a"), with its scales; bf16 matrices by
    /// the full name, e.g. bf16_weight("head.weight"). Throw as `values` does.
    Fp8Weight fp8_weight(std::string_view name) const;
    Fp4Weight fp4_weight(std::string_view name) const;
    Bf16Weight bf16_weight(std::string_view name) const;

    /// Elements first .. first + count - 1 of the logical tensor as fp32, scales multiplied in (exact: they
    /// are powers of two, unless the product leaves fp32). Throws as `values` does, and for elements that the
    /// tensor does not have.
    std::vector<float> dequantised(std::string_view name, int64_t first, int64_t count) const;

    /// The pages of a layer's tensors may leave memory; views stay valid. `layer` as in TensorSpec.
    virtual void release_layer(int layer) const { static_cast<void>(layer); }

  protected:
    TensorSource() = default;
    /// To be called once, by the constructor. `where` names the configuration in messages.
    void set_config(ModelConfig config, std::string where);
    const std::vector<TensorSpec>& specs() const { return specs_; }
    /// nullptr for a name that the configuration does not have.
    const TensorSpec* find_spec(std::string_view name) const;

    /// The bytes of a tensor, aligned for elements of `alignment` bytes. Throws UserError when the source has
    /// not got it.
    virtual std::span<const std::byte> stored_bytes(const TensorSpec& spec, size_t alignment) const = 0;

  private:
    ModelConfig config_;
    std::string where_;
    std::vector<TensorSpec> specs_;  ///< in the order of for_each_tensor
    std::map<std::string_view, const TensorSpec*> spec_of_;
};

}  // namespace touchstone
