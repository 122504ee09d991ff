// Cases of the model's components, and the mistakes that foreign kernels (tests/foreign.h) make in them.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "golden/bisect/diagnosis.h"
#include "tests/foreign_attention.h"
#include "tests/foreign_experts.h"
#include "tests/foreign_streams.h"

namespace touchstone::planted_components {

using foreign::Fault;

inline const std::map<std::string_view, void (*)(const Call&, const Fault&)> kernels{
    {"sparse_attention", foreign::sparse_attention},
    {"index_keys", foreign::index_keys},
    {"index_queries", foreign::index_queries},
    {"index_scores", foreign::index_scores},
    {"compressor", foreign::compressor},
    {"mix", foreign::mix},
    {"sinkhorn", foreign::sinkhorn},
    {"collapse", foreign::collapse},
    {"expand", foreign::expand},
    {"moe_gate", foreign::moe_gate},
    {"swiglu", foreign::swiglu},
    {"routed_expert", foreign::routed_expert},
    {"shared_expert", foreign::shared_expert},
    {"experts", foreign::experts},
    {"engram_row_ids", foreign::engram_row_ids},
    {"engram_lookup", foreign::engram_lookup},
    {"engram", foreign::engram}};

template <class T>
std::span<T> at(TensorMap& tensors, std::string_view name) {
    return tensors.find(name)->second.view<T>();
}

/// A case of the registry, and what is done to its inputs.
struct Case {
    std::string_view text;
    void (*prepare)(TensorMap& inputs) = [](TensorMap&) {};
};

/// Poison would make NaN of attended holes, too.
inline void no_poison(TensorMap& inputs) {
    for (Bf16& x : at<Bf16>(inputs, "rows"))
        if (x == Bf16{0xFFFF}) x = bf16_from_float(1);
}

/// Mean squares of about 1e-6.
inline void small_streams(TensorMap& inputs) {
    for (Bf16& x : at<Bf16>(inputs, "h")) x = bf16_from_float(to_float(x) * 0x1p-10f);
}

inline void large_logits(TensorMap& inputs) {
    for (Bf16& x : at<Bf16>(inputs, "x")) x = bf16_from_float(to_float(x) * 128);
}

/// All of them about -200: e^x is 0 in fp32.
inline void logits_of_zero_scores(TensorMap& inputs) {
    std::ranges::fill(at<Bf16>(inputs, "x"), bf16_from_float(64));
    for (Bf16& x : at<Bf16>(inputs, "weight")) x.bits |= 0x8000;
}

/// All of them about -25.
inline void logits_far_below(TensorMap& inputs) {
    std::ranges::fill(at<Bf16>(inputs, "x"), bf16_from_float(8));
    for (Bf16& x : at<Bf16>(inputs, "weight")) x.bits |= 0x8000;
}

// Cases, each small and such that the mistakes planted in it show.
inline constexpr Case attention{"sparse_attention(entries=200,heads=3,head_dim=80)"};
inline constexpr Case holes{"sparse_attention(entries=150,heads=3,head_dim=80,fill=holes)"};
inline constexpr Case gap{"sparse_attention(entries=100,heads=2,head_dim=80,fill=leading_gap)", no_poison};
inline constexpr Case climbing{"sparse_attention(entries=300,heads=3,head_dim=80,fill=climbing)"};
inline constexpr Case masked{"sparse_attention(entries=70,heads=2,head_dim=80,fill=all_masked)", no_poison};
inline constexpr Case far_keys{
    "index_keys(groups=3,first_group=500000,ratio=2,channels=128,head_dim=64,rope_dim=32)"};
inline constexpr Case small_mix{"mix(rows=4,hidden=48,iterations=3,seed=9)", small_streams};
inline constexpr Case eps_mix{"mix(rows=4,hidden=48,iterations=3,hc_eps=0.01)"};
inline constexpr Case gate_below{"moe_gate(rows=6,experts=48,hidden=64,seed=9)", logits_far_below};
inline constexpr Case gate_large{"moe_gate(rows=6,experts=48,hidden=64,seed=10)", large_logits};
inline constexpr Case gate_of_zeros{"moe_gate(rows=3,experts=48,hidden=64)", logits_of_zero_scores};
inline constexpr Case many_scores{"index_scores(keys=200,heads=4,head_dim=32)"};
inline constexpr Case keys{"index_keys(groups=4,first_group=9,ratio=2,channels=128,head_dim=64,rope_dim=32)"};
inline constexpr Case queries{"index_queries(rows=3,heads=3,head_dim=64,rope_dim=32,q_rank=64,hidden=48)"};
inline constexpr Case scores{"index_scores(keys=41,visible=40,heads=6,head_dim=64)"};
inline constexpr Case compressor{"compressor(rows=7,first_position=6,ratio=4,hidden=96,channels=80)"};
inline constexpr Case mix{"mix(rows=4,hidden=48,iterations=3)"};
inline constexpr Case sinkhorn{"sinkhorn(rows=8,iterations=3)"};
inline constexpr Case collapse{"collapse(rows=5,hidden=64)"};
inline constexpr Case expand{"expand(rows=5,hidden=64)"};
inline constexpr Case gate{"moe_gate(rows=6,experts=48,hidden=64,seed=8)"};
inline constexpr Case gate_ties{"moe_gate(rows=6,experts=48,hidden=64,fill=ties)"};
inline constexpr Case gate_images{"moe_gate(rows=6,experts=48,hidden=64,fill=images)"};
inline constexpr Case swiglu{"swiglu(rows=3,width=96)"};
inline constexpr Case swiglu_limits{"swiglu(rows=3,width=96,limit=3)"};
inline constexpr Case routed{"routed_expert(rows=3,hidden=64,width=64)"};
inline constexpr Case routed_limits{"routed_expert(rows=4,hidden=64,width=64,limit=0.03125,fill=limits)"};
inline constexpr Case shared_limits{"shared_expert(rows=3,hidden=64,width=64,limit=0.25)"};
inline constexpr Case experts{"experts(rows=4,experts=5,hidden=64,width=32)"};
inline constexpr Case experts_limits{"experts(rows=4,experts=5,hidden=64,width=32,limit=0.25)"};
inline constexpr Case row_ids{"engram_row_ids(tokens=9)"};
inline constexpr Case row_ids_dead{"engram_row_ids(tokens=16,history=2,fill=dead)"};
inline constexpr Case lookup{"engram_lookup(ids=12,table_rows=30,head_dim=64)"};
inline constexpr Case engram{"engram(tokens=3,hidden=48,columns=3,table_rows=30,head_dim=64)"};
inline constexpr Case engram_dead{"engram(tokens=4,hidden=48,columns=3,table_rows=30,head_dim=64,fill=dead)"};

inline TensorMap prepared(TensorMap inputs, const Case& on) {
    on.prepare(inputs);
    return inputs;
}

/// A case, the reference on it, and what somebody's kernel gives.
struct Run {
    ParsedCase parsed;
    Arithmetic arithmetic;
    TensorMap inputs, expected, got;

    explicit Run(const Case& on, Arithmetic of_reference = Arithmetic::exact)
        : parsed(parse_case(on.text, "a planted fault")),
          arithmetic(of_reference),
          inputs(prepared(make_inputs(*parsed.info, parsed.parameters), on)),
          expected(run_operator(*parsed.info, arithmetic, parsed.parameters, inputs)) {}

    /// Outputs are bytes of 0xFF before.
    void run(std::string_view fault) {
        got = expected;
        for (auto& [name, tensor] : got) std::ranges::fill(tensor.bytes, std::byte{0xFF});
        kernels.at(parsed.info->name)({parsed.parameters, inputs, got}, Fault{fault});
    }

    OperatorRun operator_run() const {
        return {*parsed.info, arithmetic, parsed.parameters, inputs, expected};
    }
    Diagnosis diagnosis() const { return diagnose(operator_run(), got); }

    bool within_rounding() const {
        return std::ranges::all_of(parsed.info->outputs, [&](const OutputSlot& slot) {
            const auto a = expected.find(slot.name), b = got.find(slot.name);
            if (a == expected.end()) return true;
            const Tolerance tolerance = rounding_tolerance(slot);
            return within(difference({a->second.type, a->second.shape, a->second.bytes},
                                     {b->second.type, b->second.shape, b->second.bytes}, tolerance),
                          tolerance);
        });
    }
};

inline std::string text_of(const Diagnosis& diagnosis) {
    constexpr const char* findings[] = {"equal", "order", "rounding", "named", "unknown"};
    std::string text = fmt::format("{}, first in {} at {}", findings[static_cast<size_t>(diagnosis.finding)],
                                   diagnosis.first.output, fmt::join(diagnosis.first.index, ", "));
    for (const Explanation& one : diagnosis.explanations)
        text += fmt::format("; {} ({}, {:.2g} unexplained)", one.hypothesis->name,
                            one.exact ? "exact" : "close", one.unexplained);
    return text;
}

/// A planted mistake, which the diagnosis has to call by the same name.
struct Planted {
    Case on;
    std::string_view fault;
    std::string_view kind;
};

/// Nothing is planted in these.
inline constexpr Case apart[] = {{"index_scores(keys=600,heads=4,head_dim=32)"},
                                 {"swiglu(rows=3,width=320,fill=limits)"},
                                 {"shared_expert(rows=3,hidden=64,width=64)"},
                                 {"shared_expert(rows=4,hidden=64,width=64,fill=limits)"},
                                 {"shared_expert(rows=4,hidden=64,width=64,limit=0.03125,fill=limits)"},
                                 {"experts(rows=4,experts=5,hidden=64,width=64,fill=limits)"},
                                 {"experts(rows=4,experts=5,hidden=64,width=64,limit=0.03125,fill=limits)"}};

inline constexpr Planted planted[] = {
    {attention, "sink_missing", "K11"},
    {attention, "sink_of_next_head", "K11"},
    {attention, "sink_in_every_part", "K11"},
    {attention, "softmax_scale_missing", "K10"},
    {attention, "softmax_scale_with_yarn_factor", "K10"},
    {attention, "exp2_of_scores", "K11"},
    {attention, "query_of_next_head", "K11"},
    {attention, "rope_channels_not_in_value", "K10"},
    {attention, "values_of_next_entry", "K11"},
    {attention, "parts_averaged", "K14"},
    {holes, "holes_as_zero_rows", "K14"},
    {gap, "masked_front_gives_nan", "K14"},
    {gap, "holes_as_zero_rows", "K14"},
    {attention, "last_entry_dropped", "K09"},
    {attention, "last_partial_block_dropped", "K09"},
    {masked, "masked_list_gives_nan", "K14"},

    {keys, "index_rope_main_table", "K10"},
    {keys, "index_rope_half_split", "K10"},
    {far_keys, "index_rope_angle_unrounded", "K10"},
    {keys, "key_from_rotated_latent", "K11"},
    {keys, "key_not_normed", "K11"},
    {keys, "key_at_group_number", "K10"},
    {keys, "key_positions_of_the_chunk", "K08"},
    {keys, "hadamard_on_one_side", "K11"},
    {queries, "index_rope_half_split", "K10"},
    {queries, "index_query_normed_per_head", "K11"},
    {queries, "query_position_one_late", "K10"},
    {queries, "query_scales_of_next_block", "K16"},
    {queries, "head_weights_unscaled", "K11"},
    {queries, "head_weights_scaled_by_heads", "K11"},
    {scores, "relu_missing", "K11"},
    {scores, "relu_after_head_sum", "K11"},
    {scores, "relu_after_head_weight", "K11"},
    {scores, "head_weights_missing", "K11"},
    {scores, "score_scaled_again", "K11"},
    {scores, "last_visible_key_masked", "K07"},
    {many_scores, "keys_behind_128_masked", "K08"},
    {scores, "keys_one_row_on", "K07"},
    {scores, "key_scales_of_next_block", "K16"},

    {compressor, "pooling_by_mean", "K07"},
    {compressor, "pooling_by_sigmoid", "K07"},
    {compressor, "pooling_softmax_over_channels", "K07"},
    {compressor, "pooling_weights_reversed", "K07"},
    {compressor, "groups_one_token_late", "K07"},
    {compressor, "groups_begin_with_the_chunk", "K08"},
    {compressor, "open_group_dropped", "K07"},
    {compressor, "projections_in_bf16", "K07"},
    {compressor, "latent_norm_missing", "K20"},
    {compressor, "latent_norm_before_pooling", "K20"},
    {compressor, "latents_rotated", "K10"},

    {mix, "post_without_factor_two", "K20"},
    {mix, "base_before_scale", "K20"},
    {mix, "scale_of_next_part", "K20"},
    {mix, "mix_norm_missing", "K20"},
    {mix, "mix_norm_per_stream", "K20"},
    {mix, "projection_in_tf32", "K20"},
    {mix, "comb_transposed", "K20"},
    {small_mix, "mix_norm_eps_1e_6", "K20"},
    {eps_mix, "pre_without_eps", "K20"},
    {sinkhorn, "comb_transposed", "K20"},
    {sinkhorn, "comb_by_sigmoid", "K20"},
    {sinkhorn, "sinkhorn_columns_first", "K20"},
    {sinkhorn, "sinkhorn_one_iteration_less", "K20"},
    {sinkhorn, "sinkhorn_missing", "K20"},
    {collapse, "collapse_by_mean", "K20"},
    {collapse, "coefficients_in_bf16", "K20"},
    {collapse, "streams_reversed", "K20"},
    {collapse, "streams_interleaved", "K20"},
    {expand, "expand_comb_transposed", "K20"},
    {expand, "expand_without_residual", "K20"},
    {expand, "expand_with_half_post", "K20"},
    {expand, "expand_without_mixing", "K20"},

    {gate, "gate_sigmoid", "K18"},
    {gate, "gate_softplus", "K18"},
    {gate_below, "gate_softplus_vanishes", "K18"},
    {gate_large, "gate_softplus_overflows", "K18"},
    {gate_of_zeros, "gate_sum_not_floored", "K18"},
    {gate, "gate_logits_in_bf16", "K18"},
    {gate, "gate_bias_in_weights", "K18"},
    {gate, "gate_bias_missing", "K18"},
    {gate_images, "gate_image_bias_ignored", "K18"},
    {gate, "gate_weights_not_normalised", "K18"},
    {gate, "gate_scale_missing", "K18"},
    {gate_ties, "gate_ties_to_higher_id", "K12"},
    {gate, "gate_ids_from_one", "K18"},
    {swiglu_limits, "clamps_missing", "K19"},
    {swiglu_limits, "gate_clamped_on_both_sides", "K19"},
    {swiglu_limits, "up_clamped_above_alone", "K19"},
    {swiglu_limits, "clamp_after_product", "K19"},
    {swiglu, "gate_and_up_swapped", "K19"},
    {swiglu, "tanh_gelu_for_silu", "K19"},
    {swiglu, "swiglu_of_gpt_oss", "K19"},
    {swiglu, "expert_weight_missing", "K18"},
    {routed, "expert_weight_after_w2", "K18"},
    {routed, "gate_and_up_swapped", "K19"},
    {routed_limits, "clamp_after_quantisation", "K19"},
    {shared_limits, "clamps_missing", "K19"},
    {experts_limits, "shared_expert_not_clamped", "K19"},
    {experts, "shared_expert_missing", "K19"},
    {experts, "shared_expert_twice", "K19"},
    {experts, "expert_ids_one_up", "K18"},
    {experts, "expert_weights_not_sorted_with_ids", "K18"},
    {experts, "last_choice_dropped", "K18"},

    {row_ids, "engram_multipliers_reversed", "K21"},
    {row_ids, "engram_hash_of_other_layer", "K21"},
    {row_ids, "engram_products_added", "K21"},
    {row_ids, "engram_offsets_missing", "K21"},
    {row_ids, "engram_ngrams_one_id_short", "K21"},
    {row_ids, "engram_history_dropped", "K21"},
    {row_ids, "engram_history_one_early", "K21"},
    {row_ids_dead, "engram_looks_across_dead", "K21"},
    {row_ids_dead, "engram_dead_as_last_id", "K21"},
    {lookup, "engram_scales_ignored", "K21"},
    {lookup, "engram_scales_of_next_block", "K16"},
    {engram, "engram_scales_ignored", "K21"},
    {engram, "engram_gate_without_sign", "K21"},
    {engram_dead, "engram_gate_without_floor", "K21"},
    {engram, "engram_gate_without_root", "K21"},
    {engram, "engram_gate_without_width", "K21"},
    {engram, "engram_stream_not_normed", "K21"},
    {engram, "engram_key_not_normed", "K21"},
    {engram, "engram_ungated", "K21"},
    {engram, "engram_residual_twice", "K21"},
    {engram, "engram_residual_missing", "K21"},
    {engram_dead, "engram_image_rows_changed", "K21"},
};

/// What is no fault, by name.
inline constexpr Planted orders[] = {
    {climbing, "p_unrounded", "order"},          {climbing, "p_rounded_under_final_maximum", "order"},
    {scores, "scores_in_fp32", "order"},         {gate, "gate_chosen_by_id", "order"},
    {experts, "experts_added_in_bf16", "order"},
};

/// Every case once, and those that tell some hypotheses apart.
inline std::vector<Case> all_cases() {
    std::vector<Case> cases{std::begin(apart), std::end(apart)};
    for (const Planted& one : planted)
        if (std::ranges::find(cases, one.on.text, &Case::text) == cases.end()) cases.push_back(one.on);
    return cases;
}

}  // namespace touchstone::planted_components
