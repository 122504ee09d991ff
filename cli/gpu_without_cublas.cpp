// touchstone gpu cublas in a build whose toolkit has no cuBLAS: says so.
#include "cli/commands.h"
#include "cli/gpu.h"

namespace touchstone::cli {

int run_gpu_cublas(const GpuCublasOptions&) {
    return nothing_compared("built without cuBLAS, which CMake did not find in the CUDA toolkit",
                            "install it (libcublas-dev of the toolkit), then configure and build again");
}

}  // namespace touchstone::cli
