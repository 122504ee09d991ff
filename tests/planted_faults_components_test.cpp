// Kernels of the model's components with one mistake each: the diagnosis has to name it, and to name nothing
// where it cannot know.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>

#include "golden/diagnosis.h"
#include "tests/foreign_attention.h"
#include "tests/foreign_experts.h"
#include "tests/foreign_streams.h"

namespace touchstone {
namespace {

using foreign::Fault;

const std::map<std::string_view, void (*)(const Call&, const Fault&)> kernels{
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

// Cases, each small and such that the mistakes planted in it show.
constexpr const char* attention = "sparse_attention(entries=200,heads=3,head_dim=80)";
constexpr const char* holes = "sparse_attention(entries=150,heads=3,head_dim=80,fill=holes)";
constexpr const char* gap = "sparse_attention(entries=100,heads=2,head_dim=80,fill=leading_gap)";
constexpr const char* climbing = "sparse_attention(entries=300,heads=3,head_dim=80,fill=climbing)";
constexpr const char* keys =
    "index_keys(groups=4,first_group=9,ratio=2,channels=128,head_dim=64,rope_dim=32)";
constexpr const char* queries = "index_queries(rows=3,heads=3,head_dim=64,rope_dim=32,q_rank=64,hidden=48)";
constexpr const char* scores = "index_scores(keys=41,visible=40,heads=6,head_dim=64)";
constexpr const char* compressor = "compressor(rows=7,first_position=5,ratio=4,hidden=96,channels=80)";
constexpr const char* mix = "mix(rows=4,hidden=48,iterations=3)";
constexpr const char* sinkhorn = "sinkhorn(rows=8,iterations=3)";
constexpr const char* collapse = "collapse(rows=5,hidden=64)";
constexpr const char* expand = "expand(rows=5,hidden=64)";
constexpr const char* gate = "moe_gate(rows=6,experts=48,hidden=64)";
constexpr const char* gate_ties = "moe_gate(rows=6,experts=48,hidden=64,fill=ties)";
constexpr const char* gate_images = "moe_gate(rows=6,experts=48,hidden=64,fill=images)";
constexpr const char* swiglu = "swiglu(rows=3,width=96)";
constexpr const char* swiglu_limits = "swiglu(rows=3,width=96,limit=3)";
constexpr const char* routed = "routed_expert(rows=3,hidden=64,width=64)";
constexpr const char* routed_limits = "routed_expert(rows=3,hidden=64,width=64,limit=0.25)";
constexpr const char* shared_limits = "shared_expert(rows=3,hidden=64,width=64,limit=0.25)";
constexpr const char* experts = "experts(rows=4,experts=5,hidden=64,width=32)";
constexpr const char* experts_limits = "experts(rows=4,experts=5,hidden=64,width=32,limit=0.25)";
constexpr const char* row_ids = "engram_row_ids(tokens=9)";
constexpr const char* row_ids_dead = "engram_row_ids(tokens=16,history=2,fill=dead)";
constexpr const char* lookup = "engram_lookup(ids=12,table_rows=30,head_dim=64)";
constexpr const char* engram = "engram(tokens=3,hidden=48,columns=3,table_rows=30,head_dim=64)";
constexpr const char* engram_dead =
    "engram(tokens=4,hidden=48,columns=3,table_rows=30,head_dim=64,fill=dead)";

/// A case, the reference on it, and what somebody's kernel gives.
struct Run {
    ParsedCase parsed;
    TensorMap inputs, expected, got;

    explicit Run(const char* text)
        : parsed(parse_case(text, "a planted fault")),
          inputs(make_inputs(*parsed.info, parsed.parameters)),
          expected(run_operator(*parsed.info, Arithmetic::exact, parsed.parameters, inputs)) {}

    /// Outputs are bytes of 0xFF before.
    void run(std::string_view fault) {
        got = expected;
        for (auto& [name, tensor] : got) std::ranges::fill(tensor.bytes, std::byte{0xFF});
        kernels.at(parsed.info->name)({parsed.parameters, inputs, got}, Fault{fault});
    }

    Diagnosis diagnosis() const {
        return diagnose({*parsed.info, Arithmetic::exact, parsed.parameters, inputs, expected}, got);
    }

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

std::string text_of(const Diagnosis& diagnosis) {
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
    const char* case_text;
    std::string_view fault;
    std::string_view kind;
};

constexpr Planted planted[] = {
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
    {attention, "last_entry_dropped", "K09"},
    {attention, "last_partial_block_dropped", "K09"},

    {keys, "index_rope_main_table", "K10"},
    {keys, "index_rope_half_split", "K10"},
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
    {sinkhorn, "comb_transposed", "K20"},
    {sinkhorn, "comb_by_sigmoid", "K20"},
    {sinkhorn, "sinkhorn_columns_first", "K20"},
    {sinkhorn, "sinkhorn_one_iteration_less", "K20"},
    {sinkhorn, "sinkhorn_missing", "K20"},
    {collapse, "collapse_by_mean", "K20"},
    {collapse, "streams_reversed", "K20"},
    {collapse, "streams_interleaved", "K20"},
    {expand, "expand_comb_transposed", "K20"},
    {expand, "expand_without_residual", "K20"},
    {expand, "expand_with_half_post", "K20"},
    {expand, "expand_without_mixing", "K20"},

    {gate, "gate_sigmoid", "K18"},
    {gate, "gate_softplus", "K18"},
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
constexpr Planted orders[] = {
    {climbing, "p_unrounded", "order"},
    {scores, "scores_in_fp32", "order"},
    {gate, "gate_chosen_by_id", "order"},
    {experts, "experts_added_in_bf16", "order"},
};

TEST_CASE("diagnosis: a kernel without a mistake is not accused (components)") {
    std::vector<std::string> seen;
    for (const Planted& one : planted) {
        if (std::ranges::find(seen, one.case_text) != seen.end()) continue;
        seen.push_back(one.case_text);
        CAPTURE(one.case_text);
        Run run(one.case_text);
        run.run("");
        const Diagnosis diagnosis = run.diagnosis();
        INFO(text_of(diagnosis));
        CHECK(diagnosis.finding != Finding::named);
        CHECK(diagnosis.finding != Finding::unknown);
        CHECK(run.within_rounding());
    }
}

TEST_CASE("diagnosis: planted faults are named (components)") {
    for (const Planted& one : planted) {
        CAPTURE(one.case_text);
        CAPTURE(one.fault);
        Run run(one.case_text);
        run.run(one.fault);
        CHECK_FALSE(run.within_rounding());
        const Diagnosis diagnosis = run.diagnosis();
        INFO(text_of(diagnosis));
        CHECK(diagnosis.finding == Finding::named);
        REQUIRE_FALSE(diagnosis.explanations.empty());
        CHECK(diagnosis.explanations.front().hypothesis->name == one.fault);
        CHECK(diagnosis.explanations.front().hypothesis->kind == one.kind);
    }
}

TEST_CASE("diagnosis: other orders and roundings are named and are no faults (components)") {
    for (const Planted& one : orders) {
        CAPTURE(one.case_text);
        CAPTURE(one.fault);
        Run run(one.case_text);
        run.run(one.fault);
        const Diagnosis diagnosis = run.diagnosis();
        INFO(text_of(diagnosis));
        CHECK(diagnosis.finding == Finding::order);
        REQUIRE_FALSE(diagnosis.explanations.empty());
        CHECK(diagnosis.explanations.front().hypothesis->name == one.fault);
        CHECK(diagnosis.explanations.front().hypothesis->kind == one.kind);
    }
}

/// A mistake that nobody has a name for: faults of a kernel together, or its outputs changed afterwards.
struct Unnamed {
    const char* case_text;
    std::string_view faults;
    void (*change)(TensorMap& got);
    std::string_view output;
    std::vector<int64_t> index;
};

template <class T>
std::span<T> at(TensorMap& tensors, std::string_view name) {
    return tensors.find(name)->second.view<T>();
}

void untouched(TensorMap&) {}

/// Both outputs, as a kernel that doubles the head before rounding.
void second_head_doubled(TensorMap& got) {
    for (size_t i = 80; i < 160; ++i) {
        at<float>(got, "unrounded")[i] *= 2;
        at<Bf16>(got, "o")[i] = bf16_from_float(at<float>(got, "unrounded")[i]);
    }
}

void latent_rows_swapped(TensorMap& got) {
    const std::span<Bf16> latents = at<Bf16>(got, "latents");
    std::swap_ranges(latents.begin(), latents.begin() + 80, latents.begin() + 80);
}

void one_percent_more(TensorMap& got) {
    for (float& x : at<float>(got, "comb")) x *= 1.01f;
}

void bit_flipped(TensorMap& got) {
    at<Bf16>(got, "out")[static_cast<size_t>((1 * 4 + 2) * 64 + 17)].bits ^= 0x2000;
}

void weight_of_third_row_negated(TensorMap& got) {
    for (size_t i = 12; i < 18; ++i) at<float>(got, "weights")[i] *= -1;
}

void score_zeroed(TensorMap& got) {
    at<float>(got, "scores")[23] = 0;
}

void column_moved(TensorMap& got) {
    for (size_t i = 5; i < 9 * 24; i += 24) ++at<int64_t>(got, "row_ids")[i];
}

void gates_of_last_token_halved(TensorMap& got) {
    for (size_t i = 8; i < 12; ++i) at<float>(got, "gate")[i] /= 2;
}

void second_row_shifted(TensorMap& got) {
    const std::span<Bf16> rows = at<Bf16>(got, "rows").subspan(64, 64);
    std::rotate(rows.begin(), rows.begin() + 1, rows.end());
}

const Unnamed unnamed[] = {
    {attention, "", second_head_doubled, "unrounded", {1, 0}},
    {attention, "sink_missing+softmax_scale_missing", untouched, "unrounded", {0, 0}},
    {keys, "key_at_group_number+key_not_normed", untouched, "keys", {0, 0}},
    {compressor, "", latent_rows_swapped, "latents", {0, 0}},
    {mix, "", one_percent_more, "comb", {0, 0, 0}},
    {expand, "", bit_flipped, "out", {1, 2, 17}},
    {gate, "", weight_of_third_row_negated, "weights", {2, 0}},
    {gate, "gate_softplus+gate_bias_in_weights", untouched, "scores", {0, 0}},
    {scores, "", score_zeroed, "scores", {23}},
    {swiglu_limits, "up_clamped_above_alone+gate_clamped_on_both_sides", untouched, "y", {0, 0}},
    {experts, "shared_expert_twice+last_choice_dropped", untouched, "out", {0, 0}},
    {row_ids, "", column_moved, "row_ids", {0, 5}},
    {lookup, "", second_row_shifted, "rows", {1, 0}},
    {engram, "", gates_of_last_token_halved, "gate", {2, 0}},
    {engram, "engram_gate_without_sign+engram_residual_twice", untouched, "gate", {0, 0}},
};

TEST_CASE("diagnosis: what nobody has named stays unknown, with its place (components)") {
    for (const Unnamed& one : unnamed) {
        CAPTURE(one.case_text);
        CAPTURE(one.faults);
        CAPTURE(one.output);
        Run run(one.case_text);
        run.run(one.faults);
        one.change(run.got);
        const Diagnosis diagnosis = run.diagnosis();
        INFO(text_of(diagnosis));
        CHECK(diagnosis.finding == Finding::unknown);
        CHECK(diagnosis.explanations.empty());
        CHECK(diagnosis.first.output == one.output);
        CHECK(diagnosis.first.index == one.index);
        CHECK(diagnosis.first.element.index >= 0);
    }
}

TEST_CASE("hypotheses: names are unique, and causes are sentences (all families)") {
    std::vector<std::string_view> names;
    for (const Hypothesis& hypothesis : hypotheses()) {
        CAPTURE(hypothesis.name);
        CHECK(std::ranges::find(names, hypothesis.name) == names.end());
        names.push_back(hypothesis.name);
        CHECK(hypothesis.cause.size() > 10);
        CHECK((hypothesis.what == Cause::order) == (hypothesis.kind == "order"));
    }
}

}  // namespace
}  // namespace touchstone
