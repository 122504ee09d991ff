// The indexer: which compressed rows a query attends (spec: text model, 6).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "reference/layout/kv_page.h"
#include "reference/linear.h"
#include "reference/rope.h"

namespace touchstone {

struct IndexerWeights {
    Fp8Weight wq_b;                ///< [Hi Di, q_lora_rank]
    Bf16Weight weights_proj;       ///< [Hi, D]
    Bf16Weight wk;                 ///< [Di, Dh]; no outputs in a Reindex layer, which has no keys of its own
    std::span<const Bf16> k_norm;  ///< [Di]; likewise
};

struct IndexerShape {
    int64_t heads;     ///< Hi
    int64_t head_dim;  ///< Di, a multiple of 32; the last rope_dim of the table are rotated
};

/// Keys of groups first_group, first_group + 1, ..: rope(rms_norm(LB(latent, wk), k_norm)) at first_group *
/// ratio, bf16 [groups, Di]; Q4i makes the stored rows of them. From the UNROTATED, unquantised latent.
std::vector<Bf16> index_keys(Arithmetic arithmetic, std::span<const Bf16> latents, int64_t groups,
                             int64_t first_group, int64_t ratio, const IndexerWeights& weights,
                             const IndexerShape& shape, const RopeTable& table, float norm_eps);

/// Queries of the rows of a call.
struct IndexQueries {
    std::vector<Bf16> queries;      ///< [rows, Hi, Di], rotated, before Q4i
    std::vector<uint8_t> codes;     ///< [rows, Hi, Di / 2]: Q4i's, the even channel in the low nibble
    std::vector<uint8_t> scales;    ///< [rows, Hi, Di / 32]: e8m0
    std::vector<Bf16> projections;  ///< [rows, Hi]: LB(x, weights_proj)
    std::vector<Bf16> weights;      ///< [rows, Hi]: projections * fl32((Di Hi)^-1/2), in bf16
};
IndexQueries index_queries(Arithmetic arithmetic, std::span<const Bf16> qr, std::span<const Bf16> x,
                           std::span<const int64_t> positions, const IndexerWeights& weights,
                           const IndexerShape& shape, const RopeTable& table);

/// One query's part of IndexQueries.
struct IndexQuery {
    std::span<const uint8_t> codes;   ///< [Hi, Di / 2]
    std::span<const uint8_t> scales;  ///< [Hi, Di / 32]
    std::span<const Bf16> weights;    ///< [Hi]
};

/// Scores of keys 0 .. visible - 1 (text model 6.3), the released chain of roundings: d = bf16(q . k), exact
/// per 32 channels and fp32 fma over the groups of 32 (contract, section 1); b = bf16(max(d, 0) * weight), a
/// NaN staying one; score = bf16(sum of b over heads, in the lanes of `index_head_sum`), widened. The same in
/// every profile. `page` is a page of index-key records, of either layout; `pages` is a whole number of them,
/// of which rows from `visible` on are not read. `scores` is [visible]; `dot`, empty or [Hi, visible], takes
/// d. Keys run in parallel. Throws UserError, with nothing written, when sizes do not match or the records
/// are not those of Q4i.
void index_scores(const IndexQuery& query, const IndexerShape& shape, const KvPage& page,
                  std::span<const std::byte> pages, int64_t visible, std::span<float> scores,
                  std::span<Bf16> dot = {});

}  // namespace touchstone
