// numerics/elementary.h over arrays, for every instruction set, and the list of the functions. Same bits as
// the scalar functions, whatever the set, the length and the position in the array.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "reference/numerics/elementary.h"
#include "reference/numerics/isa.h"

namespace touchstone {

/// y[i] = function(x[i]) with active_isa(). y may be x; ranges that overlap otherwise are not allowed. Throws
/// UserError when the lengths differ; y is untouched then.
void evaluate(ElementaryFunction function, std::span<const float> x, std::span<float> y);

/// The same with the given instruction set, which must be supported (isa_supported).
void evaluate(ElementaryFunction function, std::span<const float> x, std::span<float> y, Isa isa);

namespace elementary {

/// evaluate of the function of that name.
void exp2(std::span<const float> x, std::span<float> y);
void exp(std::span<const float> x, std::span<float> y);
void log(std::span<const float> x, std::span<float> y);
void log1p(std::span<const float> x, std::span<float> y);
void erf(std::span<const float> x, std::span<float> y);
void sigmoid(std::span<const float> x, std::span<float> y);
void silu(std::span<const float> x, std::span<float> y);
void softplus(std::span<const float> x, std::span<float> y);
void sqrt_softplus(std::span<const float> x, std::span<float> y);
void gelu(std::span<const float> x, std::span<float> y);
void reciprocal_sqrt(std::span<const float> x, std::span<float> y);

}  // namespace elementary

/// What is known of one function.
struct ElementaryFunctionInfo {
    ElementaryFunction function;
    std::string_view name;        ///< that of the enumerator: the key in tables and device receipts
    std::string_view definition;  ///< of the value that errors are measured against
    float (*scalar)(float);
    void (*vector)(std::span<const float>, std::span<float>);
    /// At most this error in ulp over all inputs, and increasing; 0 for a written formula, whose error is
    /// only tabulated.
    double promised_ulp;
    /// The exhaustive test measures the error of every n-th fp32 bit pattern; results are hashed at all 2^32.
    int error_stride;
};

/// All functions, indexed by ElementaryFunction.
std::span<const ElementaryFunctionInfo> elementary_functions();

/// One instruction set's loops, made from elementary_vector.cpp.
struct ElementaryKernels {
    Isa isa;  ///< that of the compiler's flags
    void (*kernels[elementary_function_count])(const float* x, float* y, size_t n);
};

/// The loops of `isa`, which must be compiled in.
const ElementaryKernels& elementary_kernels(Isa isa);

}  // namespace touchstone
