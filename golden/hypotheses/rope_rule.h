// rope with its choices as data: hypotheses change one of them.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "golden/hypotheses/hypothesis.h"
#include "reference/rope.h"

namespace touchstone {

/// The defaults are the reference's.
struct RopeRule {
    std::vector<float> frequencies;          ///< of the run's table
    bool forward = true;                     ///< as the run says
    bool half_split = false;                 ///< pairs (i, i + rope_dim / 2), else (2 i, 2 i + 1)
    bool leading = false;                    ///< the first channels are rotated, else the last
    float factor = 1;                        ///< of cos and sin
    int64_t (*position)(int64_t) = nullptr;  ///< what stands for the row's position, where it is given
    RopePair (*turn)(int64_t position, float frequency) = nullptr;  ///< cos and sin, where it is given
    /// The pair (a, b) turned, where it is given.
    RopePair (*product)(float a, float b, RopePair angle) = nullptr;
};

/// The outputs of a run of rope by a changed rule; `change` returns false where it makes no sense.
Outputs with_rope(std::function<bool(RopeRule& rule, const OperatorRun& run)> change);

/// The released model's table of `rope_dim` channels; without YaRN where `yarn` is false.
RopeTable released_rope_table(int64_t rope_dim, bool main, bool yarn = true);

}  // namespace touchstone
