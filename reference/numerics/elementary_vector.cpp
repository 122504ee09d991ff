// Compiled once per instruction set (reference/CMakeLists.txt): loops over the functions of
// numerics/elementary.h.
#include "reference/numerics/elementary_vector.h"
#include "reference/numerics/isa_compiled.h"

namespace touchstone::TOUCHSTONE_ISA_NAMESPACE {

namespace {

constexpr size_t block = 64;

/// Copies in and out: arrays that the compiler knows apart, of a length that it knows, also where y is x,
/// and at the end of an array too, where the unused rest of a block is computed and thrown away.
template <ElementaryFunction function>
void apply(const float* x, float* y, size_t n) {
    float in[block] = {}, out[block];
    const auto evaluate_block = [&]() __attribute__((always_inline)) {
        for (size_t i = 0; i < block; ++i) out[i] = evaluate(function, in[i]);
    };
    size_t done = 0;
    for (; n - done >= block; done += block) {
        __builtin_memcpy(in, x + done, sizeof in);
        evaluate_block();
        __builtin_memcpy(y + done, out, sizeof out);
    }
    __builtin_memcpy(in, x + done, (n - done) * sizeof(float));
    evaluate_block();
    __builtin_memcpy(y + done, out, (n - done) * sizeof(float));
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
