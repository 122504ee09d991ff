#include "golden/hypothesis.h"

namespace touchstone {

std::vector<Hypothesis> norm_and_rope_hypotheses() {
    return {};
}

}  // namespace touchstone
