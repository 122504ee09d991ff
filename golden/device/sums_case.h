// Cases that sum rows on ordinary cores.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "golden/device/case_hashes.h"
#include "reference/numerics/sums.h"
#include "reference/registry/case_text.h"

namespace touchstone {

/// sums(what=,operands=,arrangement=,lanes=,rows=,k=,inputs=,seed=): reference/numerics/sums.h over `rows`
/// rows of k. what: sum, sum_of_squares, dot, largest. operands: f32, bf16, or bf16_f32 (dot alone, x bf16).
/// inputs: a filler, normal or trap.
struct SumsCase {
    std::string what, operands, arrangement;
    int lanes = 1;
    int64_t rows = 1, k = 1;
    std::string inputs;
    uint64_t seed = 0;
    friend bool operator==(const SumsCase&, const SumsCase&) = default;
};

/// Every kind of sum in every arrangement of the model's own sums, whole and ragged K.
std::vector<SumsCase> sums_cases();

SumsCase parse_sums_case(CaseText& text);
std::string to_text(const SumsCase& device_case);
CaseHashes hashes_on_cpu(const SumsCase& device_case);
int64_t cpu_cost(const SumsCase& device_case);

RowSum row_sum_of(const SumsCase& device_case);
Lanes lanes_of(const SumsCase& device_case);

/// Row-major [rows, k], each operand in its own type; the others are empty, and y is unless what is dot.
struct SumsInputs {
    std::vector<float> x_f32, y_f32;
    std::vector<Bf16> x_bf16, y_bf16;
};
SumsInputs inputs_of(const SumsCase& device_case);
uint64_t input_hash(const SumsInputs& inputs);
/// The bits of the rows' results.
std::vector<uint32_t> outputs_on_cpu(const SumsCase& device_case, const SumsInputs& inputs);

}  // namespace touchstone
