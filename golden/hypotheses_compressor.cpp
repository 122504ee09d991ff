#include "golden/hypothesis.h"

namespace touchstone {

std::vector<Hypothesis> compressor_hypotheses() {
    return {};
}

}  // namespace touchstone
