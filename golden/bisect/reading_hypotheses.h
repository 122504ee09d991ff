// Faults of a whole pass that no operator alone can have: right arithmetic on the wrong weights, rows or
// choices.
#pragma once

#include "golden/bisect/trace_steps.h"
#include "golden/hypotheses/hypothesis.h"

namespace touchstone {

/// What such a pass reads.
struct ReadingHypothesis {
    Hypothesis hypothesis;  ///< name, kind and cause; it has no outputs of its own
    std::function<std::optional<OtherReading>(const StepPlace&)>
        reading;  ///< nothing where it is no other one
};

const std::vector<ReadingHypothesis>& reading_hypotheses();

}  // namespace touchstone
