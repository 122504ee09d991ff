#include "golden/hypothesis.h"

namespace touchstone {

std::vector<Hypothesis> selection_hypotheses() {
    return {};
}

}  // namespace touchstone
