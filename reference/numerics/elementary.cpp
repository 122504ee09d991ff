#include <fmt/format.h>

#include <array>

#include "reference/io/user_error.h"
#include "reference/numerics/elementary_vector.h"

namespace touchstone {

namespace isa_scalar {
extern const ElementaryKernels elementary_kernels;
}
#ifdef __x86_64__
namespace isa_avx2 {
extern const ElementaryKernels elementary_kernels;
}
namespace isa_avx512 {
extern const ElementaryKernels elementary_kernels;
}
#endif

const ElementaryKernels& elementary_kernels(Isa isa) {
    switch (isa) {
#ifdef __x86_64__
        case Isa::avx2: return isa_avx2::elementary_kernels;
        case Isa::avx512: return isa_avx512::elementary_kernels;
#endif
        default: return isa_scalar::elementary_kernels;
    }
}

void evaluate(ElementaryFunction function, std::span<const float> x, std::span<float> y, Isa isa) {
    if (x.size() != y.size()) {
        const std::string name(elementary_functions()[size_t(function)].name);
        throw UserError({.what = fmt::format("{} inputs and room for {} results", x.size(), y.size()),
                         .where = fmt::format("elementary function {}", name),
                         .expected = "as many results as inputs",
                         .remedy = "give two spans of one length"});
    }
    elementary_kernels(isa).kernels[size_t(function)](x.data(), y.data(), x.size());
}

void evaluate(ElementaryFunction function, std::span<const float> x, std::span<float> y) {
    evaluate(function, x, y, active_isa());
}

namespace elementary {

void exp2(std::span<const float> x, std::span<float> y) {
    evaluate(ElementaryFunction::exp2, x, y);
}
void exp(std::span<const float> x, std::span<float> y) {
    evaluate(ElementaryFunction::exp, x, y);
}
void log(std::span<const float> x, std::span<float> y) {
    evaluate(ElementaryFunction::log, x, y);
}
void log1p(std::span<const float> x, std::span<float> y) {
    evaluate(ElementaryFunction::log1p, x, y);
}
void erf(std::span<const float> x, std::span<float> y) {
    evaluate(ElementaryFunction::erf, x, y);
}
void sigmoid(std::span<const float> x, std::span<float> y) {
    evaluate(ElementaryFunction::sigmoid, x, y);
}
void silu(std::span<const float> x, std::span<float> y) {
    evaluate(ElementaryFunction::silu, x, y);
}
void softplus(std::span<const float> x, std::span<float> y) {
    evaluate(ElementaryFunction::softplus, x, y);
}
void sqrt_softplus(std::span<const float> x, std::span<float> y) {
    evaluate(ElementaryFunction::sqrt_softplus, x, y);
}
void gelu(std::span<const float> x, std::span<float> y) {
    evaluate(ElementaryFunction::gelu, x, y);
}
void reciprocal_sqrt(std::span<const float> x, std::span<float> y) {
    evaluate(ElementaryFunction::reciprocal_sqrt, x, y);
}

}  // namespace elementary

namespace {

using Function = ElementaryFunction;
using Array = void (*)(std::span<const float>, std::span<float>);

constexpr int formula_stride = 17;  // coprime to 2^32: every exponent and mantissas all over

template <Function function>
float scalar(float x) {
    return evaluate(function, x);
}

constexpr std::array<ElementaryFunctionInfo, elementary_function_count> infos = {{
    {Function::exp2, "exp2", "2^x", scalar<Function::exp2>, Array{elementary::exp2}, 1, 1},
    {Function::exp, "exp", "e^x", scalar<Function::exp>, Array{elementary::exp}, 1, 1},
    {Function::log, "log", "ln(x)", scalar<Function::log>, Array{elementary::log}, 1, 1},
    {Function::log1p, "log1p", "ln(1 + x)", scalar<Function::log1p>, Array{elementary::log1p}, 1, 1},
    {Function::erf, "erf", "erf(x)", scalar<Function::erf>, Array{elementary::erf}, 1, 1},
    {Function::sigmoid, "sigmoid", "1 / (1 + exp(-x))", scalar<Function::sigmoid>, Array{elementary::sigmoid},
     0, formula_stride},
    {Function::silu, "silu", "x / (1 + exp(-x))", scalar<Function::silu>, Array{elementary::silu}, 0,
     formula_stride},
    {Function::softplus, "softplus", "x > 20 ? x : log1p(exp(x))", scalar<Function::softplus>,
     Array{elementary::softplus}, 0, formula_stride},
    {Function::sqrt_softplus, "sqrt_softplus", "sqrt(softplus(x))", scalar<Function::sqrt_softplus>,
     Array{elementary::sqrt_softplus}, 0, formula_stride},
    {Function::gelu, "gelu", "0.5 x (1 + erf(x / sqrt(2)))", scalar<Function::gelu>, Array{elementary::gelu},
     0, formula_stride},
    {Function::reciprocal_sqrt, "reciprocal_sqrt", "1 / sqrt(x)", scalar<Function::reciprocal_sqrt>,
     Array{elementary::reciprocal_sqrt}, 0, formula_stride},
}};

static_assert([] {
    for (size_t i = 0; i < infos.size(); ++i)
        if (infos[i].function != Function{static_cast<uint8_t>(i)}) return false;
    return true;
}());

}  // namespace

std::span<const ElementaryFunctionInfo> elementary_functions() {
    return infos;
}

}  // namespace touchstone
