// Compiled once per instruction set: the roundings of index scores (indexer_vector.h).
#include "reference/indexer_vector.h"

#include "reference/numerics/isa_vector.h"
#include "reference/numerics/small_float.h"

namespace touchstone::TOUCHSTONE_ISA_NAMESPACE {

namespace {

constexpr int64_t keys_per_block = 64, most_lanes = 8;

[[gnu::always_inline]] inline float bf16_rounded(float x) {
    return to_float(bf16_from_float(x));
}

void head_sums(const float* products, int64_t heads, int64_t keys, const float* weights, int64_t lanes,
               float* scores) {
    for (int64_t first = 0; first < keys; first += keys_per_block) {
        const int64_t count = keys - first < keys_per_block ? keys - first : keys_per_block;
        alignas(64) float sums[most_lanes][keys_per_block] = {};
        for (int64_t head = 0; head < heads; ++head) {
            const float* product = products + head * keys + first;
            const float weight = weights[head];
            float* sum = sums[head % lanes];
            for (int64_t key = 0; key < count; ++key) {
                const float dot = bf16_rounded(product[key]);
                sum[key] += bf16_rounded((dot < 0 ? 0.0f : dot) * weight);  // NaN stays
            }
        }
        for (int64_t left = lanes / 2; left > 0; left /= 2)
            for (int64_t lane = 0; lane < left; ++lane)
                for (int64_t key = 0; key < count; ++key)
                    sums[lane][key] = sums[2 * lane][key] + sums[2 * lane + 1][key];
        for (int64_t key = 0; key < count; ++key) scores[first + key] = bf16_rounded(sums[0][key]);
    }
}

}  // namespace

extern const IndexerKernels indexer_kernels;
const IndexerKernels indexer_kernels{compiled_isa, head_sums};

}  // namespace touchstone::TOUCHSTONE_ISA_NAMESPACE
