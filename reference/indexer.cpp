#include "reference/indexer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "reference/indexer_vector.h"
#include "reference/io/user_error.h"
#include "reference/numerics/gemm.h"
#include "reference/quantize.h"
#include "reference/rms_norm.h"

namespace touchstone {

namespace isa_scalar {
extern const IndexerKernels indexer_kernels;
}
#ifdef __x86_64__
namespace isa_avx2 {
extern const IndexerKernels indexer_kernels;
}
namespace isa_avx512 {
extern const IndexerKernels indexer_kernels;
}
#endif

const IndexerKernels& indexer_kernels(Isa isa) {
#ifdef __x86_64__
    if (isa == Isa::avx512) return isa_avx512::indexer_kernels;
    if (isa == Isa::avx2) return isa_avx2::indexer_kernels;
#endif
    (void)isa;
    return isa_scalar::indexer_kernels;
}

namespace {

constexpr int64_t scale_block = 32;
constexpr int64_t keys_per_task = 512;

void require(int64_t got, int64_t expected, const char* where, const std::string& what) {
    if (got == expected) return;
    throw UserError({fmt::format("{} {}", got, what), where, fmt::format("{}", expected),
                     "pass tensors whose shapes agree"});
}

void require_shape(const IndexerShape& shape, const char* where) {
    if (shape.heads >= 1 && shape.head_dim >= 1 && shape.head_dim % scale_block == 0) return;
    throw UserError({fmt::format("{} heads of {} channels", shape.heads, shape.head_dim), where,
                     "at least one head, its channels a multiple of 32",
                     "see index_n_heads and index_head_dim"});
}

/// Stored rows first .. first + count - 1, gathered from the pages they lie in.
struct StoredKeys {
    std::vector<uint8_t> codes, scales;
};

StoredKeys gather(const KvPage& page, std::span<const std::byte> pages, int64_t first, int64_t count) {
    const KvPageMap map = page.addresses();
    const auto value_bytes = static_cast<size_t>(map.values.size_bytes),
               scale_bytes = static_cast<size_t>(map.scales.size_bytes);
    StoredKeys keys{std::vector<uint8_t>(static_cast<size_t>(count) * value_bytes),
                    std::vector<uint8_t>(static_cast<size_t>(count) * scale_bytes)};
    for (int64_t i = 0; i < count; ++i) {
        const KvRowOffsets row = map.row(first + i);
        std::memcpy(keys.codes.data() + static_cast<size_t>(i) * value_bytes, pages.data() + row.values,
                    value_bytes);
        std::memcpy(keys.scales.data() + static_cast<size_t>(i) * scale_bytes, pages.data() + row.scales,
                    scale_bytes);
    }
    return keys;
}

}  // namespace

std::vector<Bf16> index_keys(Arithmetic arithmetic, std::span<const Bf16> latents, int64_t groups,
                             int64_t first_group, int64_t ratio, const IndexerWeights& weights,
                             const IndexerShape& shape, const RopeTable& table, float norm_eps) {
    const char* where = "index_keys";
    require_shape(shape, where);
    require(weights.wk.outputs, shape.head_dim, where, "outputs of wk");
    std::vector<Bf16> projected(static_cast<size_t>(std::max<int64_t>(groups, 0) * shape.head_dim));
    linear_bf16(arithmetic, SumOperator::index_wk, latents, groups, weights.wk, std::span<Bf16>(projected));
    std::vector<Bf16> keys(projected.size());
    rms_norm(projected, groups, weights.k_norm, norm_eps, std::span<Bf16>(keys));
    std::vector<int64_t> positions;  // of each group's first token
    for (int64_t group = 0; group < groups; ++group) positions.push_back((first_group + group) * ratio);
    rope(table, RopeDirection::forward, positions, 1, shape.head_dim, keys);
    return keys;
}

IndexQueries index_queries(Arithmetic arithmetic, std::span<const Bf16> qr, std::span<const Bf16> x,
                           std::span<const int64_t> positions, const IndexerWeights& weights,
                           const IndexerShape& shape, const RopeTable& table) {
    const char* where = "index_queries";
    require_shape(shape, where);
    const int64_t rows = std::ssize(positions), channels = shape.heads * shape.head_dim;
    require(weights.wq_b.outputs, channels, where, "outputs of wq_b");
    require(weights.weights_proj.outputs, shape.heads, where, "outputs of weights_proj");
    IndexQueries result;
    // 1. Queries, rotated.
    result.queries.resize(static_cast<size_t>(rows * channels));
    linear_fp8(arithmetic, SumOperator::index_wq_b, qr, rows, weights.wq_b, std::span<Bf16>(result.queries));
    rope(table, RopeDirection::forward, positions, shape.heads, shape.head_dim, result.queries);
    // 2. Q4i, all channels.
    const int64_t blocks = rows * channels / scale_block;
    result.codes.resize(result.queries.size() / 2);
    result.scales.resize(static_cast<size_t>(blocks));
    const BlockRule& rule = quantizer_info(Quantizer::q4i).rule;
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < blocks; ++block)
        quantize_block(rule, result.queries.data() + block * scale_block,
                       reinterpret_cast<std::byte*>(result.codes.data() + block * scale_block / 2),
                       reinterpret_cast<std::byte*>(result.scales.data() + block));
    // 3. Weights of the heads. The factor is a power of two in the released shape, 128 channels of 32 heads.
    result.projections.resize(static_cast<size_t>(rows * shape.heads));
    linear_bf16(arithmetic, SumOperator::index_weights_proj, x, rows, weights.weights_proj,
                std::span<Bf16>(result.projections));
    const auto factor = static_cast<float>(1.0 / std::sqrt(static_cast<double>(channels)));
    for (const Bf16 projection : result.projections)
        result.weights.push_back(bf16_from_float(to_float(projection) * factor));
    return result;
}

void index_scores(const IndexQuery& query, const IndexerShape& shape, const KvPage& page,
                  std::span<const std::byte> pages, int64_t visible, std::span<float> scores,
                  std::span<Bf16> dot) {
    const char* where = "index_scores";
    require_shape(shape, where);
    require(std::ssize(query.codes), shape.heads * shape.head_dim / 2, where, "bytes of query codes");
    require(std::ssize(query.scales), shape.heads * shape.head_dim / scale_block, where, "query scales");
    require(std::ssize(query.weights), shape.heads, where, "head weights");
    if (page.record != fp4_index_key_record(shape.head_dim))
        throw UserError({fmt::format("pages of {}", page.record.describe()), where,
                         fp4_index_key_record(shape.head_dim).describe(), "store index keys by Q4i"});
    require_slots(page, std::ssize(pages), 0, visible, where);
    require(std::ssize(scores), visible, where, "scores");
    if (!dot.empty()) require(std::ssize(dot), shape.heads * visible, where, "elements of dot");

    std::vector<float> weights;
    for (const Bf16 weight : query.weights) weights.push_back(to_float(weight));
    const int64_t lanes = sum_order(SumOperator::index_head_sum, shape.heads, 1).lanes.count;
    const IndexerKernels& kernels = indexer_kernels(active_isa());
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < visible; first += keys_per_task) {
        const int64_t count = std::min(keys_per_task, visible - first);
        const StoredKeys keys = gather(page, pages, first, count);
        std::vector<float> products(static_cast<size_t>(shape.heads * count));
        fp4_gemm(query.codes, query.scales, shape.heads, keys.codes, keys.scales, count, shape.head_dim,
                 products);
        kernels.head_sums(products.data(), shape.heads, count, weights.data(), lanes, scores.data() + first);
        if (dot.empty()) continue;
        for (int64_t head = 0; head < shape.heads; ++head)
            std::transform(products.data() + head * count, products.data() + (head + 1) * count,
                           dot.data() + head * visible + first, bf16_from_float);
    }
}

}  // namespace touchstone
