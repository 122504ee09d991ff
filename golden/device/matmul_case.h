// Cases that run a whole matrix product of somebody else's library, and the splits of K that explain it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "golden/device/case_hashes.h"
#include "reference/registry/case_text.h"

namespace touchstone {

/// matmul(m=,n=,k=,piece_k=,seed=): D [m, n] = X [m, k] W [n, k]^T of bf16, fp32 out, K ascending in steps of
/// hopper.wgmma.bf16. Where piece_k < k, each piece of piece_k elements is a chain from +0 and the results of
/// the pieces are added in fp32, ascending: what a split-K kernel does.
struct MatmulCase {
    int64_t m = 1, n = 1, k = 16, piece_k = 16;
    uint64_t seed = 0;

    int64_t pieces() const { return (k + piece_k - 1) / piece_k; }
    friend bool operator==(const MatmulCase&, const MatmulCase&) = default;
};

MatmulCase parse_matmul_case(CaseText& text);
std::string to_text(const MatmulCase& device_case);
CaseHashes hashes_on_cpu(const MatmulCase& device_case);
int64_t cpu_cost(const MatmulCase& device_case);

/// Row-major X [m, k] and W [n, k], random bf16 of 8 binades around 1.
struct MatmulInputs {
    std::vector<uint16_t> x, w;
};
MatmulInputs inputs_of(const MatmulCase& device_case);
uint64_t input_hash(const MatmulInputs& inputs);

/// The bits of D [m, n].
std::vector<uint32_t> outputs_on_cpu(const MatmulCase& device_case, const MatmulInputs& inputs);

/// The case with the piece_k under which the CPU gives all of `outputs`, tried in this order: one chain, then
/// 2 to 16 pieces of equally many units of 16, 32, 64 and 128 elements (the last piece may be shorter).
/// Nothing when none does.
std::optional<MatmulCase> explain_by_split(const MatmulCase& device_case, const MatmulInputs& inputs,
                                           const std::vector<uint32_t>& outputs);

}  // namespace touchstone
