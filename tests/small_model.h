// A model smaller than tiny, with weights that are made in memory: ten layers of every mode, so narrow that
// whole sweeps of lengths and chunkings take seconds.
#pragma once

#include <vector>

#include "reference/model/checkpoint_weights.h"
#include "reference/model/synthetic_tensors.h"
#include "reference/numerics/random.h"
#include "reference/text_model.h"

namespace touchstone::small {

/// The layers of tiny (every mode, both ratios, three KV sources, Engram twice) at a quarter of its widths: a
/// window of 12, top-k of 10 rows, a pool of 3 blocks of 4.
inline ModelConfig config() {
    ModelConfig c;
    c.vocab_size = 96;
    c.hidden_size = 64;
    c.num_hidden_layers = 10;
    c.num_attention_heads = 4;
    c.head_dim = 32;
    c.qk_rope_head_dim = 16;
    c.q_lora_rank = 32;
    c.o_lora_rank = 32;
    c.o_groups = 2;
    c.rms_norm_eps = 1e-20;
    c.swiglu_limit = 10;
    c.max_position_embeddings = 512;
    c.rope_theta = 10000;
    c.compress_rope_theta = 160000;
    c.rope_factor = 16;
    c.beta_fast = 32;
    c.beta_slow = 1;
    c.original_max_position_embeddings = 65536;
    c.moe_intermediate_size = 32;
    c.n_routed_experts = 4;
    c.n_shared_experts = 1;
    c.num_experts_per_tok = 2;
    c.routed_scaling_factor = 1.5;
    c.sliding_window = 12;
    c.compress_ratios = {0, 0, 2, 2, 2, 2, 1, 1, 1, 1};
    c.kv_source_layer_ids = {2, 4, 6};
    c.index_source_layer_ids = {2, 4, 6, 8};
    c.index_n_heads = 2;
    c.index_head_dim = 32;
    c.index_topk = 10;
    c.candidate_source_layer_id = 6;
    c.candidate_topk_blocks = 3;
    c.candidate_block_size = 4;
    c.hc_mult = 4;
    c.hc_sinkhorn_iters = 20;
    c.hc_eps = 1e-6;
    c.weight_block_size = 32;
    c.engram = EngramConfig{.layer_ids = {1, 4},
                            .num_embeddings = {384, 552},
                            .max_ngram_size = 4,
                            .vocab_size = 50,
                            .n_heads = 2,
                            .head_dim = 32,
                            .pad_token_id = 2,
                            .compressed_vocab_size = 64};
    return c;
}

inline const TextWeights& weights() {
    static const SyntheticTensors made(config(), 1);
    static const CheckpointWeights views(made);
    return views;
}

inline TextModel model(Arithmetic arithmetic) {
    return TextModel(config(), weights(), arithmetic);
}

/// `count` tokens of the sequence that `seed` names; of one seed, shorter ones begin longer ones.
inline std::vector<int32_t> tokens(uint64_t seed, int64_t count) {
    std::vector<int32_t> result(static_cast<size_t>(count));
    for (size_t i = 0; i < result.size(); ++i)
        result[i] =
            static_cast<int32_t>(RandomStream{seed, 78}.word(i) % static_cast<uint32_t>(config().vocab_size));
    return result;
}

}  // namespace touchstone::small
