// Where a forward pass leaves the reference, which step made the mistake, and why.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "golden/bisect/step_diagnosis.h"

namespace touchstone {

/// A tensor of the path in one call.
struct TensorReport {
    size_t call;
    int layer;  ///< -1 outside layers
    std::string name;
    bool traced = false;                ///< theirs have it
    std::optional<Difference> against;  ///< the reference's, where both have it in one shape
    bool beyond_rounding = false;       ///< `against` is more than rounding explains in one step
    JudgedStep step;                    ///< theirs, given theirs
};

struct BisectResult {
    std::vector<TensorReport> tensors;  ///< call by call, along the path
    /// Indices of `tensors`: the first that differs from the reference in a bit, and by more than rounding.
    std::optional<size_t> first_bit, first_beyond;
    std::vector<size_t> made_here;  ///< every step with a mistake of its own
    /// Where no step was seen to make one, but theirs leave the reference by more than noise grows to at a
    /// tensor whose step cannot be seen.
    std::optional<size_t> suspect;
    std::optional<StepDiagnosis> diagnosis;  ///< of the first of made_here

    int64_t compared() const;  ///< tensors that were held against something
    bool diverges() const { return !made_here.empty() || suspect.has_value(); }
};

struct BisectSettings {
    Arithmetic arithmetic = Arithmetic::exact;
    std::function<void(const TracedCall& call, int layer)> progress = nullptr;
};

/// `reference` is another trace of the same tokens, cut into the same calls, or null. Every step of every
/// call is fed with theirs' own tensors (swap test), so a pass that sums in another order, and by and by
/// chooses other experts, is still judged step by step.
BisectResult bisect(const TracedPass& theirs, const TracedPass* reference, const TensorSource& weights,
                    const BisectSettings& options);

/// Root of the normalised mean square of a report's difference from the reference; none where not compared.
std::optional<double> relative_error(const TensorReport& report);

}  // namespace touchstone
