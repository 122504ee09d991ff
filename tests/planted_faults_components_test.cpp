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
void no_poison(TensorMap& inputs) {
    for (Bf16& x : at<Bf16>(inputs, "rows"))
        if (x == Bf16{0xFFFF}) x = bf16_from_float(1);
}

/// Mean squares of about 1e-6.
void small_streams(TensorMap& inputs) {
    for (Bf16& x : at<Bf16>(inputs, "h")) x = bf16_from_float(to_float(x) * 0x1p-10f);
}

void large_logits(TensorMap& inputs) {
    for (Bf16& x : at<Bf16>(inputs, "x")) x = bf16_from_float(to_float(x) * 128);
}

/// All of them about -200: e^x is 0 in fp32.
void logits_of_zero_scores(TensorMap& inputs) {
    std::ranges::fill(at<Bf16>(inputs, "x"), bf16_from_float(64));
    for (Bf16& x : at<Bf16>(inputs, "weight")) x.bits |= 0x8000;
}

/// All of them about -25.
void logits_far_below(TensorMap& inputs) {
    std::ranges::fill(at<Bf16>(inputs, "x"), bf16_from_float(8));
    for (Bf16& x : at<Bf16>(inputs, "weight")) x.bits |= 0x8000;
}

// Cases, each small and such that the mistakes planted in it show.
constexpr Case attention{"sparse_attention(entries=200,heads=3,head_dim=80)"};
constexpr Case holes{"sparse_attention(entries=150,heads=3,head_dim=80,fill=holes)"};
constexpr Case gap{"sparse_attention(entries=100,heads=2,head_dim=80,fill=leading_gap)", no_poison};
constexpr Case climbing{"sparse_attention(entries=300,heads=3,head_dim=80,fill=climbing)"};
constexpr Case masked{"sparse_attention(entries=70,heads=2,head_dim=80,fill=all_masked)", no_poison};
constexpr Case far_keys{
    "index_keys(groups=3,first_group=500000,ratio=2,channels=128,head_dim=64,rope_dim=32)"};
constexpr Case small_mix{"mix(rows=4,hidden=48,iterations=3,seed=9)", small_streams};
constexpr Case eps_mix{"mix(rows=4,hidden=48,iterations=3,hc_eps=0.01)"};
constexpr Case gate_below{"moe_gate(rows=6,experts=48,hidden=64,seed=9)", logits_far_below};
constexpr Case gate_large{"moe_gate(rows=6,experts=48,hidden=64,seed=10)", large_logits};
constexpr Case gate_of_zeros{"moe_gate(rows=3,experts=48,hidden=64)", logits_of_zero_scores};
constexpr Case many_scores{"index_scores(keys=200,heads=4,head_dim=32)"};
constexpr Case keys{"index_keys(groups=4,first_group=9,ratio=2,channels=128,head_dim=64,rope_dim=32)"};
constexpr Case queries{"index_queries(rows=3,heads=3,head_dim=64,rope_dim=32,q_rank=64,hidden=48)"};
constexpr Case scores{"index_scores(keys=41,visible=40,heads=6,head_dim=64)"};
constexpr Case compressor{"compressor(rows=7,first_position=6,ratio=4,hidden=96,channels=80)"};
constexpr Case mix{"mix(rows=4,hidden=48,iterations=3)"};
constexpr Case sinkhorn{"sinkhorn(rows=8,iterations=3)"};
constexpr Case collapse{"collapse(rows=5,hidden=64)"};
constexpr Case expand{"expand(rows=5,hidden=64,seed=8)"};
constexpr Case gate{"moe_gate(rows=6,experts=48,hidden=64,seed=8)"};
constexpr Case gate_ties{"moe_gate(rows=6,experts=48,hidden=64,fill=ties)"};
constexpr Case gate_images{"moe_gate(rows=6,experts=48,hidden=64,fill=images)"};
constexpr Case swiglu{"swiglu(rows=3,width=96)"};
constexpr Case swiglu_limits{"swiglu(rows=3,width=96,limit=3)"};
constexpr Case routed{"routed_expert(rows=3,hidden=64,width=64)"};
constexpr Case routed_limits{"routed_expert(rows=4,hidden=64,width=64,limit=0.03125,fill=limits)"};
constexpr Case shared_limits{"shared_expert(rows=3,hidden=64,width=64,limit=0.25)"};
constexpr Case experts{"experts(rows=4,experts=5,hidden=64,width=32)"};
constexpr Case experts_limits{"experts(rows=4,experts=5,hidden=64,width=32,limit=0.25)"};
constexpr Case row_ids{"engram_row_ids(tokens=9)"};
constexpr Case row_ids_dead{"engram_row_ids(tokens=16,history=2,fill=dead)"};
constexpr Case lookup{"engram_lookup(ids=12,table_rows=30,head_dim=64)"};
constexpr Case engram{"engram(tokens=3,hidden=48,columns=3,table_rows=30,head_dim=64)"};
constexpr Case engram_dead{"engram(tokens=4,hidden=48,columns=3,table_rows=30,head_dim=64,fill=dead)"};

TensorMap prepared(TensorMap inputs, const Case& on) {
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
    Case on;
    std::string_view fault;
    std::string_view kind;
};

/// Nothing is planted in these.
constexpr Case apart[] = {{"index_scores(keys=600,heads=4,head_dim=32)"},
                          {"swiglu(rows=3,width=320,fill=limits)"},
                          {"shared_expert(rows=3,hidden=64,width=64)"},
                          {"shared_expert(rows=4,hidden=64,width=64,fill=limits)"},
                          {"shared_expert(rows=4,hidden=64,width=64,limit=0.03125,fill=limits)"},
                          {"experts(rows=4,experts=5,hidden=64,width=64,fill=limits)"},
                          {"experts(rows=4,experts=5,hidden=64,width=64,limit=0.03125,fill=limits)"}};

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
constexpr Planted orders[] = {
    {climbing, "p_unrounded", "order"},          {climbing, "p_rounded_under_final_maximum", "order"},
    {scores, "scores_in_fp32", "order"},         {gate, "gate_chosen_by_id", "order"},
    {experts, "experts_added_in_bf16", "order"},
};

/// Every case once, and those that tell some hypotheses apart.
std::vector<Case> all_cases() {
    std::vector<Case> cases{std::begin(apart), std::end(apart)};
    for (const Planted& one : planted)
        if (std::ranges::find(cases, one.on.text, &Case::text) == cases.end()) cases.push_back(one.on);
    return cases;
}

void check_clean(const Case& on, Arithmetic arithmetic) {
    CAPTURE(on.text);
    CAPTURE(arithmetic_name(arithmetic));
    Run run(on, arithmetic);
    run.run("");
    const Diagnosis diagnosis = run.diagnosis();
    INFO(text_of(diagnosis));
    CHECK(diagnosis.finding != Finding::named);
    CHECK(diagnosis.finding != Finding::unknown);
    CHECK(run.within_rounding());
}

void check_named(const Planted& one, Arithmetic arithmetic) {
    CAPTURE(one.on.text);
    CAPTURE(one.fault);
    CAPTURE(arithmetic_name(arithmetic));
    Run run(one.on, arithmetic);
    run.run(one.fault);
    CHECK_FALSE(run.within_rounding());
    const Diagnosis diagnosis = run.diagnosis();
    INFO(text_of(diagnosis));
    CHECK(diagnosis.finding == Finding::named);
    if (diagnosis.explanations.empty()) return;
    CHECK(diagnosis.explanations.front().hypothesis->name == one.fault);
    CHECK(diagnosis.explanations.front().hypothesis->kind == one.kind);
}

TEST_CASE("diagnosis: a kernel without a mistake is not accused (components)") {
    for (const Case& on : all_cases())
        for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper})
            check_clean(on, arithmetic);
}

TEST_CASE("diagnosis: planted faults are named (components)") {
    for (const Planted& one : planted)
        for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper})
            check_named(one, arithmetic);
}

TEST_CASE("diagnosis: other orders and roundings are named and are no faults (components)") {
    for (const Planted& one : orders) {
        CAPTURE(one.on.text);
        CAPTURE(one.fault);
        Run run(one.on);
        run.run(one.fault);
        const Diagnosis diagnosis = run.diagnosis();
        INFO(text_of(diagnosis));
        CHECK(diagnosis.finding == Finding::order);
        if (diagnosis.explanations.empty()) continue;
        CHECK(diagnosis.explanations.front().hypothesis->name == one.fault);
        CHECK(diagnosis.explanations.front().hypothesis->kind == one.kind);
    }
}

/// A mistake that nobody has a name for: faults of a kernel together, or its outputs changed afterwards.
struct Unnamed {
    Case on;
    std::string_view faults;
    void (*change)(TensorMap& got);
    std::string_view output;
    std::vector<int64_t> index;
};

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
    {attention, "values_of_next_entry+query_of_next_head", untouched, "unrounded", {0, 0}},
    {keys, "key_at_group_number+key_not_normed", untouched, "keys", {0, 0}},
    {compressor, "", latent_rows_swapped, "latents", {0, 0}},
    {mix, "", one_percent_more, "comb", {0, 0, 0}},
    {expand, "", bit_flipped, "out", {1, 2, 17}},
    {gate, "", weight_of_third_row_negated, "weights", {2, 0}},
    {gate, "gate_softplus+gate_bias_in_weights", untouched, "scores", {0, 0}},
    {scores, "", score_zeroed, "scores", {23}},
    {swiglu_limits, "up_clamped_above_alone+gate_clamped_on_both_sides", untouched, "y", {0, 5}},
    {experts, "shared_expert_twice+last_choice_dropped", untouched, "out", {0, 0}},
    {row_ids, "", column_moved, "row_ids", {0, 5}},
    {lookup, "", second_row_shifted, "rows", {1, 0}},
    {engram, "", gates_of_last_token_halved, "gate", {2, 0}},
    {engram, "engram_gate_without_sign+engram_residual_twice", untouched, "gate", {0, 0}},
};

TEST_CASE("diagnosis: what nobody has named stays unknown, with its place (components)") {
    for (const Unnamed& one : unnamed) {
        CAPTURE(one.on.text);
        CAPTURE(one.faults);
        CAPTURE(one.output);
        Run run(one.on);
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

/// The row in the middle of an output, a quarter larger; or its first integer, one more.
void change_middle_row(Tensor& tensor) {
    const int64_t width = tensor.shape.back(), rows = tensor.elements() / width;
    for (int64_t i = rows / 2 * width; i < (rows / 2 + 1) * width; ++i) {
        const auto at_i = static_cast<size_t>(i);
        if (tensor.type == "F32") tensor.view<float>()[at_i] *= 1.25f;
        if (tensor.type == "BF16")
            tensor.view<Bf16>()[at_i] = bf16_from_float(1.25f * to_float(tensor.view<Bf16>()[at_i]));
    }
    if (tensor.type == "I32") ++tensor.view<int32_t>()[static_cast<size_t>(rows / 2 * width)];
    if (tensor.type == "I64") ++tensor.view<int64_t>()[static_cast<size_t>(rows / 2 * width)];
}

TEST_CASE("diagnosis: one wrong row is no known fault (components)") {
    for (const Case& on : all_cases()) {
        Run run(on);
        for (const OutputSlot& slot : run.parsed.info->outputs) {
            CAPTURE(on.text);
            CAPTURE(slot.name);
            run.got = run.expected;
            Tensor& tensor = run.got.find(slot.name)->second;
            if (tensor.elements() <= tensor.shape.back()) continue;  // one row is all there is
            change_middle_row(tensor);
            if (run.within_rounding()) continue;  // a row of zeros
            const Diagnosis diagnosis = run.diagnosis();
            INFO(text_of(diagnosis));
            CHECK(diagnosis.finding == Finding::unknown);
            CHECK(diagnosis.first.output == slot.name);
            CHECK(diagnosis.first.index.front() == tensor.shape.front() / 2);
        }
    }
}

/// Swapping channels of the keys in pairs gives the dot products of a query with its channels swapped.
constexpr std::string_view has_a_twin = "nibbles_of_the_keys_swapped";

bool is_about(const Hypothesis& hypothesis, std::string_view name) {
    return std::ranges::find(hypothesis.operators, name) != hypothesis.operators.end();
}

/// Whether what the hypothesis predicts for this run, given as a result, leads back to it and to nothing
/// before it.
bool leads_back(const Hypothesis& hypothesis, std::string_view case_text, Run& run) {
    const std::optional<TensorMap> predicted = predict(hypothesis, run.operator_run());
    if (!predicted) return false;
    run.got = *predicted;
    if (hypothesis.what == Cause::fault && run.within_rounding()) return false;
    if (run.got == run.expected) return false;
    const Diagnosis diagnosis = run.diagnosis();
    CAPTURE(case_text);
    INFO(text_of(diagnosis));
    const bool found = std::ranges::any_of(
        diagnosis.explanations, [&](const Explanation& one) { return one.hypothesis == &hypothesis; });
    CHECK(found);
    return found && diagnosis.explanations.front().hypothesis == &hypothesis;
}

TEST_CASE("hypotheses: each can be told apart from all others (components)") {
    for (const auto& kernel : kernels) {
        std::vector<std::pair<std::string_view, Run>> runs;
        for (const Case& on : all_cases())
            if (on.text.starts_with(fmt::format("{}(", kernel.first))) runs.emplace_back(on.text, Run(on));
        for (const Hypothesis& hypothesis : hypotheses()) {
            if (!is_about(hypothesis, kernel.first)) continue;
            CAPTURE(kernel.first);
            CAPTURE(hypothesis.name);
            if (hypothesis.name == has_a_twin) continue;
            CHECK(std::ranges::any_of(
                runs, [&](auto& run) { return leads_back(hypothesis, run.first, run.second); }));
        }
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
