// The split and lane table: in which order every sum of floats of the model is added (numerics contract,
// sections 3 and 4). A function of the operator and of its K and N alone, never of rows, batch, grid or CPU.
// Frozen: any change of a row or rule is a new sum_order_version and makes every golden and receipt void.
//
// Why these numbers, for 132 SMs and one token (at prefill anything fills the machine):
// - Lanes of linear layers in `exact`, L = 256 interleaved: a warp per output, a thread loading 16 bytes of
//   bf16 and owning 8 lanes.
// - Norms of less than 4096 channels, L = 256: a warp per row, no shared memory. From 4096 on, and the Engram
//   gate, L = 1024: four warps share the row, which in decode is one row on an otherwise idle GPU (5120
//   channels are 5 loads per thread instead of 20); one warp with 32 lanes per thread gives the same bits.
// - mHC mix, L = 256 chunked: a thread reads its 8 stream values once and multiplies them into 24 outputs; an
//   output in a block of its own reads 80 kB of `fn`, an estimated 1 us. The mean square rides along.
// - Softmax blocks and indexer heads, L = 8 interleaved: in an MMA's accumulator thread t of four holds the
//   columns 8j + 2t and 8j + 2t + 1, so a lane never leaves its thread; xor-shuffles 1 and 2 end the tree.
// - Attention scores in `exact`, L = 64: eight threads per score.
// - Tensor-core pieces (`hopper`): tiles of 64 outputs give N / 64 blocks. N <= 512 (8 blocks) is cut into 8
//   pieces, N <= 1280 (20 blocks) into 4; from 2304 on (36 blocks, six experts and two matrices at once) one
//   chain keeps up with HBM. A step is published at 33 cycles and a combination through shared memory costs
//   several, so no piece is shorter than 8 steps. Vision has at least 1,500 rows (min_pixels) and is never
//   cut.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "reference/numerics/lanes.h"

namespace touchstone {

inline constexpr int sum_order_version = 1;

/// Every operator of the model that sums floats. Maxima and integer sums need no order.
enum class SumOperator : uint8_t {
    // attention
    wq_a,
    wq_b,
    wkv,
    wo_a,
    wo_b,
    attention_scores,
    attention_softmax,
    attention_values,
    // compressor and indexer
    compressor_wkv,
    compressor_wgate,
    compressor_pool,
    index_wk,
    index_wq_b,
    index_weights_proj,
    index_dot,
    index_head_sum,
    // experts
    moe_gate,
    expert_weight_normalisation,
    expert_w1_w3,
    expert_w2,
    shared_w1_w3,
    shared_w2,
    expert_combine,
    // norms and residual streams
    rms_norm,
    mhc_mean_square,
    mhc_mix,
    sinkhorn,
    mhc_collapse,
    mhc_expand,
    // Engram, head, sampling, DSpark
    engram_wkv,
    engram_gate,
    lm_head,
    sampling_softmax,
    tap_mean,
    dspark_main_proj,
    dspark_markov_head,
    dspark_confidence,
    dspark_residual,
    // vision
    vision_patch_embed,
    vision_wqkv,
    vision_scores,
    vision_softmax,
    vision_values,
    vision_wo,
    vision_w1,
    vision_w2,
    aligner_w1,
    aligner_w2,
};

/// What the `hopper` profile does with an operator. none: ordinary cores in every profile. whole: one chain
/// over K. by_outputs: K is cut into pieces where N is small.
enum class TensorCoreChain : uint8_t { none, whole, by_outputs };

/// A row of the table. `terms`: what is summed, in which order. `k`, `n`: the released model's, for show; the
/// order itself is computed from those of the call.
struct SumOrderRow {
    SumOperator op;
    std::string_view name;
    std::string_view terms;
    int64_t k, n;
    LaneArrangement arrangement;  ///< of the sum on ordinary cores: of `exact`, or of every profile
    int lanes;                    ///< L where K is below wide_from
    int wide_lanes;               ///< L from there on
    TensorCoreChain chain;
};

/// How one sum is added.
struct SumOrder {
    Lanes lanes;     ///< on ordinary cores
    int pieces = 1;  ///< tensor-core chains over K, each from +0, added in fp32 ascending; 1 when never cut

    friend bool operator==(const SumOrder&, const SumOrder&) = default;
};

/// Elements [first, last) of K.
struct PieceRange {
    int64_t first, last;
};

namespace sum_order_detail {

inline constexpr int64_t wide_from = 4096;
inline constexpr int64_t step = 16;  ///< k of one bf16 instruction
inline constexpr int64_t least_steps_per_piece = 8;

constexpr SumOrderRow lanes_row(SumOperator op, std::string_view name, std::string_view terms, int64_t k,
                                LaneArrangement arrangement, int lanes, int wide_lanes) {
    return {op, name, terms, k, 1, arrangement, lanes, wide_lanes, TensorCoreChain::none};
}
constexpr SumOrderRow sequential_row(SumOperator op, std::string_view name, std::string_view terms,
                                     int64_t k) {
    return lanes_row(op, name, terms, k, LaneArrangement::sequential, 1, 1);
}
/// bf16 operands: lanes in `exact`, a chain in `hopper`.
constexpr SumOrderRow bf16_row(SumOperator op, std::string_view name, int64_t k, int64_t n,
                               TensorCoreChain chain) {
    return {op, name, "products", k, n, LaneArrangement::interleaved, 256, 256, chain};
}
/// fp8 or fp4 operands: scale blocks in order in `exact`, a chain of exactly dequantised products in
/// `hopper`.
constexpr SumOrderRow block_scaled_row(SumOperator op, std::string_view name, int64_t k, int64_t n) {
    return {op, name, "scale blocks of 32, ascending", k, n, LaneArrangement::sequential,
            1,  1,    TensorCoreChain::by_outputs};
}

}  // namespace sum_order_detail

/// The table, in the order of the enumeration.
inline constexpr auto sum_order_table = [] {
    using namespace sum_order_detail;
    using enum SumOperator;
    constexpr auto interleaved = LaneArrangement::interleaved, chunked = LaneArrangement::chunked;
    constexpr auto whole = TensorCoreChain::whole, by_outputs = TensorCoreChain::by_outputs;
    return std::array{
        block_scaled_row(wq_a, "wq_a", 5120, 1280),
        block_scaled_row(wq_b, "wq_b", 1280, 32768),
        block_scaled_row(wkv, "wkv", 5120, 512),
        bf16_row(wo_a, "wo_a", 4096, 8192, by_outputs),  // N: the outputs of all groups
        block_scaled_row(wo_b, "wo_b", 8192, 5120),
        SumOrderRow{attention_scores, "attention_scores", "products", 512, 1, interleaved, 64, 64, whole},
        lanes_row(attention_softmax, "attention_softmax", "a block's entries", 64, interleaved, 8, 8),
        SumOrderRow{attention_values, "attention_values", "entries, ascending, into O", 640, 512,
                    LaneArrangement::sequential, 1, 1, whole},
        bf16_row(compressor_wkv, "compressor_wkv", 5120, 512, by_outputs),
        bf16_row(compressor_wgate, "compressor_wgate", 5120, 512, by_outputs),
        sequential_row(compressor_pool, "compressor_pool", "tokens of a group, ascending", 2),
        bf16_row(index_wk, "index_wk", 512, 128, by_outputs),
        block_scaled_row(index_wq_b, "index_wq_b", 1280, 4096),
        bf16_row(index_weights_proj, "index_weights_proj", 5120, 32, by_outputs),
        sequential_row(index_dot, "index_dot", "exact sums of 32 products, ascending", 4),
        lanes_row(index_head_sum, "index_head_sum", "heads", 32, interleaved, 8, 8),
        bf16_row(moe_gate, "moe_gate", 5120, 384, by_outputs),
        sequential_row(expert_weight_normalisation, "expert_weight_normalisation",
                       "selected experts, in selection order", 6),
        block_scaled_row(expert_w1_w3, "expert_w1_w3", 5120, 2304),
        block_scaled_row(expert_w2, "expert_w2", 2304, 5120),
        block_scaled_row(shared_w1_w3, "shared_w1_w3", 5120, 2304),
        block_scaled_row(shared_w2, "shared_w2", 2304, 5120),
        sequential_row(expert_combine, "expert_combine", "expert ids ascending, the shared expert last", 7),
        lanes_row(rms_norm, "rms_norm", "squares", 5120, interleaved, 256, 1024),
        lanes_row(mhc_mean_square, "mhc_mean_square", "squares, copy after copy", 20480, chunked, 256, 256),
        SumOrderRow{mhc_mix, "mhc_mix", "products, copy after copy", 20480, 24, chunked, 256, 256,
                    TensorCoreChain::none},
        sequential_row(sinkhorn, "sinkhorn", "entries of a row or column, ascending", 4),
        sequential_row(mhc_collapse, "mhc_collapse", "copies, ascending", 4),
        sequential_row(mhc_expand, "mhc_expand", "source copies, ascending", 4),
        block_scaled_row(engram_wkv, "engram_wkv", 6144, 25600),
        lanes_row(engram_gate, "engram_gate", "squares and products of a copy", 5120, interleaved, 1024,
                  1024),
        bf16_row(lm_head, "lm_head", 5120, 129280, by_outputs),
        lanes_row(sampling_softmax, "sampling_softmax", "vocabulary", 129280, interleaved, 1024, 1024),
        sequential_row(tap_mean, "tap_mean", "copies, ascending", 4),
        block_scaled_row(dspark_main_proj, "dspark_main_proj", 15360, 5120),
        bf16_row(dspark_markov_head, "dspark_markov_head", 256, 129280, by_outputs),
        bf16_row(dspark_confidence, "dspark_confidence", 5376, 1, by_outputs),
        lanes_row(dspark_residual, "dspark_residual", "vocabulary", 129280, interleaved, 1024, 1024),
        bf16_row(vision_patch_embed, "vision_patch_embed", 588, 1024, whole),
        bf16_row(vision_wqkv, "vision_wqkv", 1024, 3072, whole),
        SumOrderRow{vision_scores, "vision_scores", "products", 64, 1, interleaved, 64, 64, whole},
        lanes_row(vision_softmax, "vision_softmax", "a block's entries", 64, interleaved, 8, 8),
        SumOrderRow{vision_values, "vision_values", "entries, ascending, into O", 9216, 64,
                    LaneArrangement::sequential, 1, 1, whole},
        bf16_row(vision_wo, "vision_wo", 1024, 1024, whole),
        bf16_row(vision_w1, "vision_w1", 1024, 5632, whole),
        bf16_row(vision_w2, "vision_w2", 2816, 1024, whole),
        bf16_row(aligner_w1, "aligner_w1", 9216, 5120, whole),
        bf16_row(aligner_w2, "aligner_w2", 5120, 5120, whole),
    };
}();

constexpr const SumOrderRow& sum_order_row(SumOperator op) {
    return sum_order_table[static_cast<size_t>(op)];
}

static_assert(
    [] {
        for (size_t i = 0; i < sum_order_table.size(); ++i)
            if (static_cast<size_t>(sum_order_table[i].op) != i) return false;
        return sum_order_table.back().op == SumOperator::aligner_w2;
    }(),
    "the table is indexed by the enumeration");

/// The order in which `op` with K = k terms and N = n outputs is summed. Lanes that no element would reach
/// are left out: they hold +0, and adding it would show in nothing but a sum of -0.
constexpr SumOrder sum_order(SumOperator op, int64_t k, int64_t n) {
    using namespace sum_order_detail;
    const SumOrderRow& row = sum_order_row(op);
    Lanes lanes{row.arrangement, k < wide_from ? row.lanes : row.wide_lanes};
    const int64_t runs = (k + lanes.run() - 1) / lanes.run();
    while (lanes.count > 1 && lanes.count / 2 >= runs) lanes.count /= 2;

    int pieces = 1;
    if (row.chain == TensorCoreChain::by_outputs) pieces = n <= 512 ? 8 : n <= 1280 ? 4 : 1;
    const int64_t steps = (k + step - 1) / step;
    while (pieces > 1 && steps < pieces * least_steps_per_piece) pieces /= 2;
    return {lanes, pieces};
}

/// Piece i of 0 .. order.pieces - 1. Every piece has the same whole number of 16-element steps, the least
/// that reaches K, until K runs out: the last is shorter, but never empty where the order comes from
/// sum_order.
TOUCHSTONE_HOST_DEVICE constexpr PieceRange piece(SumOrder order, int64_t k, int i) {
    const int64_t steps = (k + sum_order_detail::step - 1) / sum_order_detail::step;
    const int64_t length = (steps + order.pieces - 1) / order.pieces * sum_order_detail::step;
    const int64_t first = i * length, last = first + length;
    return {first < k ? first : k, last < k ? last : k};
}

/// "interleaved", "chunked", "sequential".
std::string_view lane_arrangement_name(LaneArrangement arrangement);

/// The whole table as text: a line per operator at the released shapes, then lines for the shapes around
/// which the rules change. golden/numerics/sum_order.txt holds it.
std::string sum_order_text();

}  // namespace touchstone
