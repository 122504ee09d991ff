#include <array>
#include <string>
#include <utility>

#include "cuda/device_buffer.h"
#include "cuda/numerics/unary.h"
#include "reference/io/user_error.h"
#include "reference/numerics/conversions.h"
#include "reference/numerics/elementary_vector.h"
#include "reference/numerics/tensor_hash.h"

namespace touchstone::cuda {

namespace {

constexpr unsigned threads = 256;

/// An elementary function in the form of the conversions: the bits of its result.
template <ElementaryFunction function>
struct Elementary {
    TOUCHSTONE_HOST_DEVICE static uint32_t code(float x) { return float_bits(evaluate(function, x)); }
};

/// Block p hashes part p. `hashes` starts at 0; integer additions may come in any order.
template <class Function>
__global__ void hash_kernel(unsigned long long* hashes) {
    const auto first = static_cast<uint32_t>(blockIdx.x * part_inputs);
    uint64_t sum = 0;
    for (uint32_t i = threadIdx.x; i < part_inputs; i += blockDim.x)
        sum += element_hash(first + i, Function::code(float_from_bits(first + i)));
    atomicAdd(hashes + blockIdx.x, static_cast<unsigned long long>(sum));
}

template <class Function>
__global__ void output_kernel(uint32_t first, uint32_t* outputs) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    outputs[i] = Function::code(float_from_bits(first + i));
}

template <class Function>
void launch_hashes(uint64_t* hashes, cudaStream_t stream) {
    static_assert(sizeof(unsigned long long) == sizeof(uint64_t));
    hash_kernel<Function><<<input_parts, threads, 0, stream>>>(reinterpret_cast<unsigned long long*>(hashes));
}

template <class Function>
void launch_outputs(uint32_t first, uint32_t* outputs, cudaStream_t stream) {
    output_kernel<Function>
        <<<static_cast<unsigned>(part_inputs / threads), threads, 0, stream>>>(first, outputs);
}

struct Launches {
    std::string_view name;
    void (*hashes)(uint64_t*, cudaStream_t);
    void (*outputs)(uint32_t, uint32_t*, cudaStream_t);
};

template <class... Named>
constexpr auto launches_of(ConversionList<Named...>) {
    return std::array{Launches{Named::name, launch_hashes<Named>, launch_outputs<Named>}...};
}

template <int... i>
std::array<Launches, sizeof...(i)> elementary_launches(std::integer_sequence<int, i...>) {
    return {Launches{elementary_functions()[i].name,
                     launch_hashes<Elementary<static_cast<ElementaryFunction>(i)>>,
                     launch_outputs<Elementary<static_cast<ElementaryFunction>(i)>>}...};
}

Launches find(std::string_view kind, std::string_view name) {
    const auto conversions = launches_of(Conversions{});
    const auto functions = elementary_launches(std::make_integer_sequence<int, elementary_function_count>{});
    if (kind == "conversion")
        for (const Launches& launches : conversions)
            if (launches.name == name) return launches;
    if (kind == "elementary")
        for (const Launches& launches : functions)
            if (launches.name == name) return launches;
    throw UserError({"no kernel for " + std::string(kind) + " " + std::string(name), "cuda unary functions",
                     "a conversion or an elementary function", ""});
}

}  // namespace

void unary_part_hashes(std::string_view kind, std::string_view name, uint64_t* hashes, cudaStream_t stream) {
    const Launches launches = find(kind, name);
    check(cudaMemsetAsync(hashes, 0, input_parts * sizeof(uint64_t), stream), "cudaMemsetAsync");
    launches.hashes(hashes, stream);
    check(cudaGetLastError(), "unary_part_hashes: launch");
}

void unary_part_outputs(std::string_view kind, std::string_view name, int part, uint32_t* outputs,
                        cudaStream_t stream) {
    find(kind, name).outputs(static_cast<uint32_t>(part * part_inputs), outputs, stream);
    check(cudaGetLastError(), "unary_part_outputs: launch");
}

}  // namespace touchstone::cuda
