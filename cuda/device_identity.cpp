#include <fmt/format.h>

#include <fstream>
#include <regex>

#include "cuda/device_buffer.h"

namespace touchstone::cuda {

namespace {

/// "580.82.07" from the kernel module's file; empty where that is not to be seen (containers).
std::string module_version() {
    std::ifstream file("/proc/driver/nvidia/version");
    std::string line;
    std::smatch match;
    if (!std::getline(file, line) || !std::regex_search(line, match, std::regex(R"(\s(\d+\.\d+(\.\d+)?)\s)")))
        return "";
    return match[1];
}

}  // namespace

std::string why_no_device() {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess)
        return fmt::format("{}, {}", cudaGetErrorName(error), cudaGetErrorString(error));
    return devices > 0 ? "" : "CUDA reports no device";
}

DeviceIdentity device_identity() {
    cudaDeviceProp properties{};
    check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
    int driver = 0;
    check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
    const std::string module = module_version();
    return {.device = fmt::format("{}, sm_{}{}", properties.name, properties.major, properties.minor),
            .driver = fmt::format("{}{}CUDA {}.{}", module, module.empty() ? "" : ", ", driver / 1000,
                                  driver % 1000 / 10),
            .toolkit = TOUCHSTONE_CUDA_TOOLKIT,
            .compute_capability = properties.major * 10 + properties.minor};
}

}  // namespace touchstone::cuda
