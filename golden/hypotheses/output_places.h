// Results that stand at another place of their tensor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "golden/hypotheses/hypothesis.h"

namespace touchstone {

inline size_t element_bytes(const Tensor& tensor) {
    return tensor.elements() == 0 ? 1 : tensor.bytes.size() / static_cast<size_t>(tensor.elements());
}

/// Element i becomes what element source(i) was; source(i) is an element of the tensor.
template <class Source>
void gather(Tensor& tensor, const Source& source) {
    const std::vector<std::byte> old = tensor.bytes;
    const auto bytes = static_cast<int64_t>(element_bytes(tensor));
    for (int64_t i = 0; i < tensor.elements(); ++i)
        std::copy_n(old.begin() + source(i) * bytes, bytes, tensor.bytes.begin() + i * bytes);
}

/// Rows, columns and channels that are moved: of every operator's outputs.
std::vector<Hypothesis> output_place_hypotheses();

}  // namespace touchstone
