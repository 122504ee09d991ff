// Compiled once per instruction set (reference/CMakeLists.txt): loops over the functions of
// numerics/elementary.h.
#include "reference/numerics/elementary_vector.h"
#include "reference/numerics/isa_vector.h"

namespace touchstone::TOUCHSTONE_ISA_NAMESPACE {

namespace {

constexpr size_t block = 64;

TOUCHSTONE_HOST_DEVICE inline void evaluate_block(ElementaryFunction function, const float* x, float* y) {
    for (size_t i = 0; i < block; ++i) y[i] = evaluate(function, x[i]);
}

/// Results go through an array that the compiler knows apart from x, so the loops vectorise where y is x
/// too. At the end of the array a whole block is computed as well, over a padded copy.
template <ElementaryFunction function>
void apply(const float* x, float* y, size_t n) {
    float results[block];
    size_t done = 0;
    for (; n - done >= block; done += block) {
        evaluate_block(function, x + done, results);
        __builtin_memcpy(y + done, results, sizeof results);
    }
    if (done == n) return;
    float last[block] = {};
    __builtin_memcpy(last, x + done, (n - done) * sizeof(float));
    evaluate_block(function, last, results);
    __builtin_memcpy(y + done, results, (n - done) * sizeof(float));
}

}  // namespace

extern const ElementaryKernels elementary_kernels;
const ElementaryKernels elementary_kernels = {
    compiled_isa,
    {apply<ElementaryFunction::exp2>, apply<ElementaryFunction::exp>, apply<ElementaryFunction::log>,
     apply<ElementaryFunction::log1p>, apply<ElementaryFunction::erf>, apply<ElementaryFunction::sigmoid>,
     apply<ElementaryFunction::silu>, apply<ElementaryFunction::softplus>,
     apply<ElementaryFunction::sqrt_softplus>, apply<ElementaryFunction::gelu>,
     apply<ElementaryFunction::reciprocal_sqrt>}};

}  // namespace touchstone::TOUCHSTONE_ISA_NAMESPACE
