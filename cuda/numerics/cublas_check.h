// Whole matrix products by cuBLAS, kernels that nobody here wrote, for comparison with the chain of
// reference/numerics/tensor_core.h. The library is opened at run time: it is large, slow to load, and nothing
// else needs it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace touchstone::cuda {

/// D [m, n] = X [m, k] W [n, k]^T: bf16 operands, fp32 sums and result, all row-major.
struct CublasShape {
    int64_t m, n, k;
};

/// What cuBLAS made of it.
struct CublasResult {
    std::vector<uint32_t> outputs;  ///< bits of D
    int algorithm = 0;              ///< CUBLASLT_ALGO_CONFIG_ID
    int split_k = 1;                ///< CUBLASLT_ALGO_CONFIG_SPLITK_NUM
    std::string reduction_scheme;   ///< "none", "in place", "compute type", "output type"
    std::string kernels;  ///< names of what was launched, in order; why not, where they cannot be had
};

/// An open cuBLASLt.
class CublasLt {
  public:
    /// Throws std::runtime_error, with the loader's words, when the library cannot be opened or started.
    CublasLt();
    ~CublasLt();
    CublasLt(const CublasLt&) = delete;
    CublasLt& operator=(const CublasLt&) = delete;

    std::string version() const;  ///< "13.1.0"

    /// The first choice of cublasLtMatmulAlgoGetHeuristic under 32 MiB of workspace; `split_k_allowed` false
    /// excludes every reduction scheme by preference. Throws std::runtime_error when cuBLAS or CUDA refuses.
    CublasResult matmul(CublasShape shape, std::span<const uint16_t> x, std::span<const uint16_t> w,
                        bool split_k_allowed) const;

  private:
    struct Library;
    std::unique_ptr<Library> library_;
};

}  // namespace touchstone::cuda
