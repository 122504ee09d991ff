// touchstone gpu in a build without CUDA: says so. cli/gpu.cpp takes this file's place where nvcc was found.
#include <fmt/format.h>

#include "cli/commands.h"

namespace touchstone::cli {

namespace {

int say_so() {
    constexpr int nothing_compared = 3;
    fmt::print(stderr,
               "touchstone: nothing compared: built without CUDA ({})\n"
               "  remedy:   configure where nvcc 12 or later is found, then build again\n",
               TOUCHSTONE_CUDA_STATUS);
    return nothing_compared;
}

}  // namespace

int run_gpu_probe(const GpuProbeOptions&) {
    return say_so();
}
int run_gpu_check(const GpuCheckOptions&) {
    return say_so();
}
int run_gpu_cublas(const GpuCublasOptions&) {
    return say_so();
}

}  // namespace touchstone::cli
