// The elementary functions under the flag that the project forbids: compiled with -ffp-contract=fast, where
// every product that meets an addition may become an fma. elementary_test shows that no bit hangs on it.
#include <cstddef>

#include "reference/numerics/elementary.h"

namespace touchstone::contracted {

void evaluate(ElementaryFunction function, const float* x, float* y, size_t n) {
    for (size_t i = 0; i < n; ++i) y[i] = touchstone::evaluate(function, x[i]);
}

/// Shows that this file is contracted.
float product_plus(float a, float b, float c) {
    return a * b + c;
}

}  // namespace touchstone::contracted
