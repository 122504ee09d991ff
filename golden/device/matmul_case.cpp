#include "golden/device/matmul_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "reference/numerics/gemm.h"
#include "reference/numerics/random.h"
#include "reference/numerics/small_float.h"

namespace touchstone {

namespace {

constexpr int64_t most_rows = 1 << 20;
constexpr int64_t instruction_k = 16;

class Bf16Panels final : public PanelSource {
  public:
    Bf16Panels(const uint16_t* rows, int64_t k) : rows_(rows), k_(k) {}
    void pack(int64_t first_row, int64_t columns, int64_t first_k, int64_t count,
              float* values) const override {
        for (int64_t column = 0; column < columns; ++column)
            for (int64_t i = 0; i < count; ++i)
                values[i * panel_columns + column] =
                    to_float(Bf16{rows_[(first_row + column) * k_ + first_k + i]});
    }

  private:
    const uint16_t* rows_;
    int64_t k_;
};

std::vector<uint16_t> random_bf16(int64_t count, uint64_t seed, uint64_t stream) {
    std::vector<uint16_t> values(static_cast<size_t>(count));
    const RandomStream words{seed, stream};
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < count; first += 4) {
        const PhiloxBlock block = words.block(static_cast<uint64_t>(first / 4));
        for (int64_t i = first; i < std::min(first + 4, count); ++i) {
            const uint32_t word = block.words[i - first];  // sign, exponent in [-4, 3], mantissa
            values[static_cast<size_t>(i)] =
                static_cast<uint16_t>((word >> 31) << 15 | (123 + (word >> 8 & 7)) << 7 | (word & 0x7F));
        }
    }
    return values;
}

/// Rows [0, m) of X against rows [0, n) of W.
std::vector<uint32_t> product(const MatmulCase& c, const MatmulInputs& inputs, int64_t m, int64_t n) {
    std::vector<float> x(static_cast<size_t>(m * c.k)), d(static_cast<size_t>(m * n));
    for (size_t i = 0; i < x.size(); ++i) x[i] = to_float(Bf16{inputs.x[i]});
    std::vector<KPiece> pieces;
    for (int64_t first = 0; first < c.k; first += c.piece_k)
        pieces.push_back({first, std::min(c.piece_k, c.k - first)});
    chain_gemm(tensor_core_instruction("hopper.wgmma.bf16"), x, m, Bf16Panels(inputs.w.data(), c.k), n, c.k,
               pieces, {}, d);
    std::vector<uint32_t> bits(d.size());
    std::memcpy(bits.data(), d.data(), d.size() * sizeof(float));
    return bits;
}

/// Whether the case gives the outputs of rows [0, m) and columns [0, n).
bool explains(const MatmulCase& c, const MatmulInputs& inputs, const std::vector<uint32_t>& outputs,
              int64_t m, int64_t n) {
    const std::vector<uint32_t> bits = product(c, inputs, m, n);
    for (int64_t i = 0; i < m; ++i)
        if (!std::equal(bits.begin() + i * n, bits.begin() + (i + 1) * n, outputs.begin() + i * c.n))
            return false;
    return true;
}

std::vector<int64_t> piece_candidates(int64_t k) {
    std::vector<int64_t> candidates{k};
    for (int64_t pieces = 2; pieces <= 16; ++pieces)
        for (const int64_t unit : {16, 32, 64, 128}) {
            const int64_t units = (k + unit - 1) / unit, piece_k = (units + pieces - 1) / pieces * unit;
            if (std::ranges::find(candidates, piece_k) == candidates.end()) candidates.push_back(piece_k);
        }
    std::erase_if(candidates, [&](int64_t piece_k) { return piece_k > k; });
    return candidates;
}

}  // namespace

MatmulCase parse_matmul_case(CaseText& text) {
    MatmulCase result;
    result.m = text.take_integer("m", 1, most_rows);
    result.n = text.take_integer("n", 1, most_rows);
    result.k = text.take_integer("k", instruction_k, most_rows);
    result.piece_k = text.take_integer("piece_k", instruction_k, result.k);
    result.seed = static_cast<uint64_t>(text.take_integer("seed", 0, std::numeric_limits<int64_t>::max()));
    if (result.k % instruction_k != 0 || result.piece_k % instruction_k != 0)
        text.refuse(fmt::format("k={}, piece_k={}", result.k, result.piece_k),
                    fmt::format("multiples of {}", instruction_k));
    return result;
}

std::string to_text(const MatmulCase& c) {
    return fmt::format("matmul(m={},n={},k={},piece_k={},seed={})", c.m, c.n, c.k, c.piece_k, c.seed);
}

CaseHashes hashes_on_cpu(const MatmulCase& c) {
    const MatmulInputs inputs = inputs_of(c);
    const std::vector<uint32_t> outputs = outputs_on_cpu(c, inputs);
    return {input_hash(inputs), hash_of(std::span<const uint32_t>(outputs)), std::ssize(outputs)};
}

int64_t cpu_cost(const MatmulCase& c) {
    return c.m * c.n * c.k;
}

MatmulInputs inputs_of(const MatmulCase& c) {
    return {random_bf16(c.m * c.k, c.seed, 0), random_bf16(c.n * c.k, c.seed, 1)};
}

uint64_t input_hash(const MatmulInputs& inputs) {
    return hash_of(std::span<const uint16_t>(inputs.x)) +
           hash_of(std::span<const uint16_t>(inputs.w), inputs.x.size());
}

std::vector<uint32_t> outputs_on_cpu(const MatmulCase& c, const MatmulInputs& inputs) {
    return product(c, inputs, c.m, c.n);
}

std::optional<MatmulCase> explain_by_split(const MatmulCase& device_case, const MatmulInputs& inputs,
                                           const std::vector<uint32_t>& outputs) {
    MatmulCase c = device_case;
    const int64_t sample_m = std::min<int64_t>(c.m, 4), sample_n = std::min<int64_t>(c.n, 256);
    for (const int64_t piece_k : piece_candidates(c.k)) {
        c.piece_k = piece_k;
        if (explains(c, inputs, outputs, sample_m, sample_n) && explains(c, inputs, outputs, c.m, c.n))
            return c;
    }
    return std::nullopt;
}

}  // namespace touchstone
