// The reference run along somebody's trace: the same tokens, cut into the same calls.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "golden/bisect/traced_pass.h"
#include "reference/linear.h"
#include "reference/model/tensor_source.h"
#include "reference/model/trace.h"

namespace touchstone {

/// A trace in memory.
class TraceTensors final : public TraceSink {
  public:
    void add(const std::string& name, std::string_view type, const std::vector<int64_t>& shape,
             std::span<const std::byte> bytes) override {
        tensors.insert_or_assign(name, Tensor{std::string(type), shape, {bytes.begin(), bytes.end()}});
    }
    TensorMap tensors;
};

struct ReferencePassOptions {
    Arithmetic arithmetic = Arithmetic::exact;
    bool force_choices = false;  ///< take theirs' experts and selected rows
    std::function<void(size_t call, int layer)> progress = nullptr;
};

/// The tensors of a pass over the tokens of `theirs`. Layers run the rows that theirs have (replay). Nothing,
/// and `why` says why, where the trace has no tokens or does not begin at position 0. Throws UserError as
/// TextModel::forward does: tokens outside the vocabulary, choices that cannot be forced.
std::optional<TensorMap> reference_pass(const TracedPass& theirs, const TensorSource& weights,
                                        const ReferencePassOptions& options, std::string& why);

}  // namespace touchstone
