#include "golden/hypothesis.h"

namespace touchstone {

std::vector<Hypothesis> hyper_connection_hypotheses() {
    return {};
}

}  // namespace touchstone
