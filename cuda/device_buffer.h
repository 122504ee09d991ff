// Device memory for tests and probes: poisoned before use, guarded on both sides, freed with the scope; and
// the check that every CUDA call passes through.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace touchstone::cuda {

/// Throws std::runtime_error with the call, where it stands and CUDA's words when `error` is one.
// The builtins under std::source_location, which clang 14 cannot read from libstdc++.
inline void check(cudaError_t error, const char* call, const char* file = __builtin_FILE(),
                  int line = __builtin_LINE()) {
    if (error == cudaSuccess) return;
    throw std::runtime_error(std::string(call) + " failed at " + file + ":" + std::to_string(line) + ": " +
                             cudaGetErrorName(error) + ", " + cudaGetErrorString(error));
}

/// What a launch left behind: its own error, then that of the kernel (waits for the device).
inline void check_kernel(const char* kernel, const char* file = __builtin_FILE(),
                         int line = __builtin_LINE()) {
    check(cudaGetLastError(), kernel, file, line);
    check(cudaDeviceSynchronize(), kernel, file, line);
}

/// `size` values of T in device memory, 256-byte aligned, between two canaries of 256 bytes. Contents and
/// canaries start as bytes 0xFF, NaN in every float format: what a kernel forgets to write stays NaN.
template <class T>
class DeviceBuffer {
    static_assert(std::is_trivially_copyable_v<T>);

  public:
    explicit DeviceBuffer(size_t size) : size_(size) {
        check(cudaMalloc(&memory_, bytes() + 2 * canary_bytes), "cudaMalloc");
        cudaError_t poisoned = cudaMemset(memory_, poison, bytes() + 2 * canary_bytes);
        // A memset runs on: a stream of its own could overtake it.
        if (poisoned == cudaSuccess) poisoned = cudaDeviceSynchronize();
        if (poisoned != cudaSuccess) cudaFree(memory_);
        check(poisoned, "cudaMemset");
    }
    /// A copy of host values.
    explicit DeviceBuffer(std::span<const T> host) : DeviceBuffer(host.size()) {
        check(cudaMemcpy(data(), host.data(), bytes(), cudaMemcpyHostToDevice), "cudaMemcpy to the device");
    }
    ~DeviceBuffer() { cudaFree(memory_); }
    DeviceBuffer(const DeviceBuffer&) = delete;
    DeviceBuffer& operator=(const DeviceBuffer&) = delete;

    T* data() const { return reinterpret_cast<T*>(static_cast<std::byte*>(memory_) + canary_bytes); }
    size_t size() const { return size_; }

    /// The contents; throws std::runtime_error when a kernel wrote outside of them.
    std::vector<T> to_host() const {
        std::vector<std::byte> all(bytes() + 2 * canary_bytes);
        check(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost), "cudaMemcpy to the host");
        for (size_t i = 0; i < canary_bytes; ++i) {
            require_canary(all[i], "before", canary_bytes - i);
            require_canary(all[canary_bytes + bytes() + i], "behind", i + 1);
        }
        std::vector<T> host(size_);
        const T* contents = reinterpret_cast<const T*>(all.data() + canary_bytes);
        for (size_t i = 0; i < size_; ++i) host[i] = contents[i];
        return host;
    }

  private:
    static constexpr int poison = 0xFF;
    static constexpr size_t canary_bytes = 256;

    size_t bytes() const { return size_ * sizeof(T); }
    void require_canary(std::byte value, const char* side, size_t distance) const {
        if (value == std::byte{poison}) return;
        throw std::runtime_error("a kernel wrote " + std::to_string(distance) + " bytes " + side +
                                 " a buffer of " + std::to_string(bytes()) + " bytes");
    }

    void* memory_ = nullptr;
    size_t size_;
};

/// The device, and the software that ran on it, as receipts name them.
struct DeviceIdentity {
    std::string device;   ///< "NVIDIA H200, sm_90"
    std::string driver;   ///< "580.82.07, CUDA 13.0"; without the first part where the system does not tell
    std::string toolkit;  ///< of the compiler of the kernels: "13.0.88"
    int compute_capability;  ///< 90 for sm_90
};

/// Why there is no usable device: CUDA's words. Empty when device 0 is there.
std::string why_no_device();

/// Of device 0. Throws std::runtime_error when there is none.
DeviceIdentity device_identity();

}  // namespace touchstone::cuda
