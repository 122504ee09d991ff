// Kernels that share no code with the reference, each with one known mistake: its name has to come out.
// Families: orders of summation, number formats, layouts, norms and rotations, selections, linear layers.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "golden/bisect/diagnosis.h"
#include "reference/registry/registry.h"
#include "tests/foreign_linear.h"
#include "tests/foreign_norm_rope.h"
#include "tests/foreign_quantize.h"
#include "tests/foreign_selection.h"

using namespace touchstone;

namespace {

using Prepare = void (*)(TensorMap& inputs);
using Kernel = TensorMap (*)(const ParsedCase&, const TensorMap&, const foreign::Fault&);

const std::map<std::string, Kernel> kernels{{"linear_fp8", foreign::linear},
                                            {"linear_fp4", foreign::linear},
                                            {"linear_bf16", foreign::linear},
                                            {"lm_head", foreign::linear},
                                            {"grouped_linear", foreign::linear},
                                            {"quantize_q8", foreign::quantize},
                                            {"quantize_q4i", foreign::quantize},
                                            {"quantize_q4m", foreign::quantize},
                                            {"dequantize_q8", foreign::dequantize},
                                            {"dequantize_q4i", foreign::dequantize},
                                            {"dequantize_q4m", foreign::dequantize},
                                            {"rms_norm", foreign::rms_norm},
                                            {"rope", foreign::rope},
                                            {"top_k", foreign::top_k},
                                            {"candidate_pool", foreign::candidate_pool},
                                            {"greedy_token", foreign::greedy},
                                            {"token_probabilities", foreign::probabilities}};

// Inputs that let a fault show.

void scale_x(TensorMap& inputs, float factor) {
    for (Bf16& x : inputs.find("x")->second.view<Bf16>()) x = bf16_from_float(to_float(x) * factor);
}
void tiny_x(TensorMap& inputs) {
    scale_x(inputs, 0x1p-24f);
}
void small_x(TensorMap& inputs) {
    scale_x(inputs, 0x1p-9f);
}
/// Near the largest fp32 square's square root and far below epsilon: 1e-11.
void x_of_1e_11(TensorMap& inputs) {
    scale_x(inputs, 1e-11f);
}
/// Small integers times 1/4: sums that end on ties of bf16.
void integers(TensorMap& inputs) {
    for (const char* name : {"x", "weight"}) {
        int i = 0;
        for (Bf16& x : inputs.find(name)->second.view<Bf16>())
            x = bf16_from_float(static_cast<float>((i++ * 7) % 15 - 5) / 4);
    }
}
void with_mean(TensorMap& inputs) {
    for (Bf16& x : inputs.find("x")->second.view<Bf16>()) x = bf16_from_float(to_float(x) + 0.5f);
}
/// A NaN code in the weight's first row.
void nan_code(TensorMap& inputs) {
    for (const char* name : {"weight", "records"})
        if (const auto found = inputs.find(name); found != inputs.end())
            found->second.bytes[5] = std::byte{0x7F};
}
/// Scores of which fp16 does not tell 4 neighbours apart, and bf16 not 32.
void near_ties(TensorMap& inputs) {
    int i = 0;
    for (float& x : inputs.find("scores")->second.view<float>()) x = 1 + static_cast<float>(i++) * 0x1p-12f;
}
void all_negative(TensorMap& inputs) {
    for (float& x : inputs.find("scores")->second.view<float>()) x = -1 - x * x;
}
/// Blocks of 32 of different magnitudes.
void varied_blocks(TensorMap& inputs) {
    int i = 0;
    for (Bf16& x : inputs.find("x")->second.view<Bf16>())
        x = bf16_from_float(std::ldexp(to_float(x), i++ / 32 * 5 % 7 * 3));
}
/// Neighbours of very different magnitudes.
void spread(TensorMap& inputs) {
    int i = 0;
    for (Bf16& x : inputs.find("x")->second.view<Bf16>())
        x = bf16_from_float(std::ldexp(to_float(x), -(i++ * 7 % 13)));
}
void one_nan(TensorMap& inputs) {
    inputs.find("x")->second.view<Bf16>()[70] = {0x7FC1};
}
/// Scale byte 0 under some block.
void scale_byte_0(TensorMap& inputs) {
    Tensor& records = inputs.find("records")->second;
    records.bytes[static_cast<size_t>(records.shape[1]) - 1] = std::byte{0};
}
/// Ties between fp4 and fp8 codes, and zeros of both signs.
void code_ties(TensorMap& inputs) {
    const float values[] = {0.25f, -0.75f, 1.25f, -1.75f, 2.5f, -3.5f, 5, -0.0f, 6, 17, -19, 0.3f};
    int i = 0;
    for (Bf16& x : inputs.find("x")->second.view<Bf16>()) x = bf16_from_float(values[i++ % 12]);
}

/// Before the fault: the operator on the case's inputs, and the reference's outputs.
struct Setting {
    ParsedCase parsed;
    TensorMap inputs, expected;
    Arithmetic arithmetic;

    Setting(const std::string& text, Arithmetic profile, Prepare prepare)
        : parsed(parse_case(text, "planted fault")), arithmetic(profile) {
        inputs = make_inputs(*parsed.info, parsed.parameters);
        if (prepare != nullptr) prepare(inputs);
        expected = run_operator(*parsed.info, arithmetic, parsed.parameters, inputs);
    }
    OperatorRun run() const { return {*parsed.info, arithmetic, parsed.parameters, inputs, expected}; }
    TensorMap foreign_result(const std::string& fault) const {
        return kernels.at(parsed.info->name)(parsed, inputs, {fault});
    }
};

bool all_within_rounding(const Setting& setting, const TensorMap& got) {
    return std::ranges::all_of(setting.parsed.info->outputs, [&](const OutputSlot& slot) {
        const auto found = got.find(slot.name);
        if (found == got.end()) return true;
        const Tensor &a = setting.expected.find(slot.name)->second, &b = found->second;
        const Tolerance tolerance = rounding_tolerance(slot);
        return within(difference({a.type, a.shape, a.bytes}, {b.type, b.shape, b.bytes}, tolerance),
                      tolerance);
    });
}

std::string explained_by(const Diagnosis& diagnosis) {
    std::string text;
    for (const Explanation& one : diagnosis.explanations)
        text += fmt::format(" {}{}({:.2g})", one.hypothesis->name, one.exact ? "=" : "~", one.unexplained);
    return text;
}

constexpr std::string_view finding_name(Finding finding) {
    constexpr std::string_view names[] = {"equal", "order", "rounding", "named", "unknown"};
    return names[static_cast<size_t>(finding)];
}

struct Planted {
    std::string text, fault, kind, name;
    Prepare prepare = nullptr;
    Arithmetic arithmetic = Arithmetic::exact;
};

const std::string fp8 = "linear_fp8(rows=4,outputs=96,inputs=512)",
                  fp8_square = "linear_fp8(rows=3,outputs=256,inputs=256)",
                  fp4 = "linear_fp4(rows=4,outputs=96,inputs=512)",
                  bf16 = "linear_bf16(rows=4,outputs=96,inputs=512)",
                  grouped = "grouped_linear(rows=6,groups=4,inputs=256,outputs=128)",
                  q8 = "quantize_q8(rows=8,channels=512)", q4i = "quantize_q4i(rows=8)",
                  q4m = "quantize_q4m(rows=8,channels=512)", norm = "rms_norm(rows=6,width=512)",
                  turn = "rope(rows=9,heads=4,head_dim=128)", k = "top_k(rows=6,columns=300,k=32)",
                  pool = "candidate_pool(visible=397,topk_blocks=12)";

const std::vector<Planted> planted{
    // K10: rotations
    {turn, "other_table", "K10", "rope_of_the_other_table"},
    {turn, "without_yarn", "K10", "rope_without_yarn"},
    {turn, "half_split", "K10", "rope_half_split"},
    {turn, "other_direction", "K10", "rope_other_direction"},
    {"rope(rows=9,heads=4,head_dim=128,direction=inverse)", "other_direction", "K10", "rope_other_direction"},
    {turn, "leading_channels", "K10", "rope_leading_channels"},
    {turn, "position_plus_1", "K10", "rope_position_plus_1"},
    {turn, "position_halved", "K10", "rope_position_halved"},
    {turn, "position_always_0", "K10", "rope_missing"},
    {turn, "angle_in_double", "K10", "rope_angle_not_rounded"},
    {turn, "angle_in_bf16", "K10", "rope_angle_in_bf16"},
    {turn, "magnitude", "K10", "rope_yarn_magnitude"},
    // K12: selections
    {"top_k(rows=6,columns=300,k=32,fill=ties)", "higher_index_wins", "K12", "top_k_higher_index_wins"},
    {"top_k(rows=2,columns=300,k=30)", "scores_in_fp16", "K12", "top_k_scores_in_fp16", near_ties},
    {"top_k(rows=2,columns=300,k=30)", "scores_in_bf16", "K12", "top_k_scores_in_bf16", near_ties},
    {"top_k(rows=8,columns=129,k=48,fill=special)", "nan_largest", "K12", "top_k_nan_largest"},
    {k, "one_fewer", "K12", "top_k_one_fewer"},
    {"top_k(rows=8,columns=128,k=49,fill=masked)", "padding_0", "K12", "top_k_padding_0"},
    {"top_k(rows=8,columns=128,k=24,fill=masked)", "mask_ignored", "K12", "top_k_mask_ignored"},
    {"top_k(rows=8,columns=128,k=49,fill=masked)", "one_too_many_visible", "K12",
     "top_k_one_row_too_many_visible"},
    {k, "other_order", "K12", "top_k_sorted_by_value"},
    {"top_k(rows=6,columns=300,k=32,order=selection)", "other_order", "K12", "top_k_sorted_by_column"},
    {"greedy_token(vocabulary=4001,fill=ties)", "last_of_equal", "K12", "greedy_last_of_equal"},
    {"greedy_token(vocabulary=4001,fill=ties)", "nan_wins", "K12", "greedy_nan_largest"},
    {"token_probabilities(vocabulary=600,temperature=0.7)", "temperature_ignored", "K12",
     "temperature_ignored"},
    {"token_probabilities(vocabulary=600,temperature=0.7)", "temperature_multiplied", "K12",
     "temperature_multiplied"},
    // K13: the candidate pool
    {pool, "newest_not_forced", "K13", "pool_newest_not_forced"},
    {pool, "padding_zero", "K13", "pool_padding_zero", all_negative},
    {pool, "block_mean", "K13", "pool_block_mean"},
    {"candidate_pool(visible=397,topk_blocks=12,fill=ties)", "higher_block_wins", "K13",
     "pool_higher_block_wins"},
    {pool, "one_block_more", "K13", "pool_one_block_more"},
    {pool, "blocks_by_score", "K13", "pool_blocks_by_score"},
    // K14
    {"token_probabilities(vocabulary=600,temperature=0.1)", "maximum_kept", "K14", "softmax_without_maximum"},
    // K15: number formats
    {q4i, "ties_away", "K15", "codes_half_away", code_ties},
    {q8, "ties_away", "K15", "codes_half_away"},
    {q4i, "floor_1e_4", "K15", "amax_floor_1e_4", tiny_x},
    {q8, "floor_1e_12", "K15", "amax_floor_1e_12", tiny_x},
    {q8, "scale_floored", "K15", "scale_floored"},
    {q4i, "scale_nearest", "K15", "scale_nearest_power"},
    {q8, "range_240", "K15", "scale_range_240"},
    {q4m, "scale_power_of_two", "K15", "scale_power_of_two"},
    {"quantize_q4m(rows=64,channels=512,fill=trap)", "reciprocal", "K15", "codes_by_reciprocal"},
    {q4m, "block_doubled", "K15", "scale_block_32"},
    {q8, "block_128", "K15", "scale_block_128", varied_blocks},
    {q4i, "truncated", "K15", "codes_truncated"},
    {q8, "nan_dropped", "K15", "codes_nan_dropped", one_nan},
    {q4i, "negative_zero_lost", "K15", "codes_negative_zero_lost"},
    {q8, "subnormals_flushed", "K15", "codes_subnormals_flushed", spread},
    {q8, "signed_maximum", "K15", "maximum_of_signed_values"},
    {"dequantize_q8(rows=256,channels=64,fill=bytes)", "nan_code_is_480", "K15", "code_nan_is_480"},
    {"dequantize_q8(rows=64,channels=64,fill=bytes)", "fnuz", "K15", "code_e4m3fnuz"},
    {fp8, "activations_unquantised", "K15", "activations_not_quantised"},
    {fp4, "activations_unquantised", "K15", "activations_not_quantised"},
    {fp8, "activation_block_128", "K15", "scale_block_128", varied_blocks},
    {fp8, "activation_ties_away", "K15", "codes_half_away"},
    {fp8, "activation_scale_floored", "K15", "scale_floored"},
    {fp8, "activation_floor_1e_12", "K15", "amax_floor_1e_12", tiny_x},
    {fp8, "accumulator_bf16_per_block", "K15", "accumulator_in_bf16_per_block"},
    {fp8, "two_ranks_in_bf16", "K15", "partials_in_bf16_2"},
    {bf16, "two_ranks_in_bf16", "K15", "partials_in_bf16_2"},
    {bf16, "activations_in_fp8", "K15", "activations_quantised"},
    {grouped, "activations_in_fp8", "K15", "activations_quantised"},
    {fp8, "bf16_truncated", "K15", "bf16_truncated"},
    {norm, "rounded_before_gain", "K20", "rounded_before_gain"},
    {"linear_bf16(rows=6,outputs=96,inputs=64)", "bf16_half_away", "K15", "bf16_half_away", integers},
    {"lm_head(rows=2,outputs=96,inputs=512)", "fp32_in_bf16", "K15", "fp32_result_in_bf16"},
    {fp8, "nan_code_is_480", "K15", "code_nan_is_480", nan_code},
    // K16: scales, nibbles, layouts
    {fp8, "scale_as_number", "K16", "scale_byte_as_number"},
    {fp4, "scale_as_number", "K16", "scale_byte_as_number"},
    {"dequantize_q4i(rows=5)", "scale_as_number", "K16", "scale_byte_as_number"},
    {fp8, "scale_unused", "K16", "scale_ignored"},
    {"dequantize_q4m(rows=5)", "scale_unused", "K16", "scale_ignored"},
    {fp8, "scale_bias_126", "K16", "scale_bias_126"},
    {"dequantize_q8(rows=5)", "scale_bias_128", "K16", "scale_bias_128"},
    {"dequantize_q4m(rows=5)", "other_scale_type", "K16", "scale_e4m3_read_as_e8m0"},
    {"dequantize_q4i(rows=5)", "other_scale_type", "K16", "scale_e8m0_read_as_e4m3"},
    {"dequantize_q4i(rows=5)", "scale_byte_0_is_zero", "K16", "scale_byte_0_is_zero", scale_byte_0},
    {fp4, "nibbles_swapped", "K16", "nibbles_read_swapped"},
    {"dequantize_q4i(rows=5)", "nibbles_swapped", "K16", "nibbles_read_swapped"},
    {q4m, "nibbles_swapped", "K16", "nibbles_written_swapped"},
    {q4i, "planar", "K16", "records_written_planar"},
    {"dequantize_q4i(rows=5)", "planar", "K16", "records_read_planar"},
    {q4m, "scales_first", "K16", "records_written_scales_first"},
    {"dequantize_q8(rows=5)", "scale_of_128", "K16", "scale_of_four_blocks"},
    {"dequantize_q8(rows=5)", "scale_of_next_block", "K16", "scale_of_the_next_block"},
    {"linear_fp8(rows=2,outputs=256,inputs=512)", "tiles_of_128", "K16", "tiles_of_128"},
    {fp8_square, "scales_transposed", "K16", "scales_column_major"},
    {fp8, "scale_of_next_block", "K16", "scale_of_the_next_block"},
    {fp4, "fp4_scale_of_tile", "K16", "scale_of_32_outputs"},
    {fp8, "activation_scale_of_next_block", "K16", "activation_scales_of_the_next_block"},
    {fp8, "next_weight_row", "K16", "weights_of_the_next_output"},
    {fp8, "row_before", "K16", "output_of_the_row_before"},
    {"linear_bf16(rows=6,outputs=64,inputs=64)", "weight_transposed", "K16", "weight_column_major"},
    {bf16, "written_by_column", "K16", "output_column_major"},
    {bf16, "bytes_swapped", "K16", "output_bytes_swapped"},
    {bf16, "halves_swapped", "K16", "output_channel_halves_swapped"},
    {grouped, "first_group_weights", "K16", "weights_of_the_first_group"},
    {grouped, "group_major_activations", "K16", "activations_group_major"},
    // K17: parts of K and of the result
    {fp8, "last_block_missing", "K17", "k_last_32_missing"},
    {fp8, "first_block_twice", "K17", "k_first_32_twice"},
    {fp4, "first_64_missing", "K17", "k_first_64_missing"},
    {"linear_bf16(rows=4,outputs=96,inputs=480)", "tail_of_128_missing", "K17", "k_tail_of_128_missing"},
    {bf16, "columns_beyond_64_missing", "K17", "columns_beyond_tiles_of_64"},
    {"linear_bf16(rows=80,outputs=1000,inputs=32)", "offsets_of_16_bits", "K17", "offset_wraps_at_65536"},
    // Against the other profiles
    {fp8, "last_block_missing", "K17", "k_last_32_missing", nullptr, Arithmetic::hopper},
    {fp8, "scale_as_number", "K16", "scale_byte_as_number", nullptr, Arithmetic::released_hopper},
    {fp4, "nibbles_swapped", "K16", "nibbles_read_swapped", nullptr, Arithmetic::hopper},
    {bf16, "next_weight_row", "K16", "weights_of_the_next_output", nullptr, Arithmetic::hopper},
    {grouped, "first_group_weights", "K16", "weights_of_the_first_group", nullptr, Arithmetic::hopper},
    // K20: norms
    {norm, "eps_1e_6", "K20", "eps_1e_6", small_x},
    {norm, "eps_1e_6", "K20", "eps_1e_6", x_of_1e_11},
    {norm, "eps_1e_5", "K20", "eps_1e_5", small_x},
    {norm, "eps_missing", "K20", "eps_missing", x_of_1e_11},
    {"rms_norm(rows=6,width=512,eps=1e-6)", "eps_outside", "K20", "eps_outside_the_root", small_x},
    {norm, "gain_plus_one", "K20", "gain_plus_one"},
    {norm, "mean_subtracted", "K20", "mean_subtracted", with_mean},
    {norm, "sum_for_mean", "K20", "sum_for_mean"},
    {norm, "half_of_the_row", "K20", "mean_of_first_half"},
};

/// What no hypothesis says: the first output that differs and the element there; -1: the first at which the
/// two foreign results differ.
struct Unknown {
    std::string text, fault, output;
    int64_t element;
    int64_t k_block = -1;
    Prepare prepare = nullptr;
};

const std::vector<Unknown> unknown{
    {fp8, "first_64_missing_and_halves_swapped", "accumulator", 0},
    {bf16, "rows_1_and_3_swapped", "accumulator", 96},
    {fp8, "bit_flipped", "accumulator", 4 * 96 / 2 + 7},
    {fp8, "block_5_thrice", "accumulator", 0, 5},
    {fp4, "block_7_missing", "accumulator", 0, 7},
    {fp8, "block_3_of_other_activations", "accumulator", 0, 3},
    {grouped, "group_1_doubled", "y", 32},
    {norm, "eps_3e_7", "unrounded", 0, -1, small_x},
    {norm, "channel_100_of_row_1_stale", "unrounded", 612},
    {turn, "base_50000", "y", 4 * 128 + 66},  // position 1; the first pair turns once whatever the base
    {turn, "head_3_doubled", "y", 3 * 128},
    {q8, "range_400", "records", -1},
    {q4i, "byte_flipped", "records", 68 + 9},
    {q8, "rows_1_and_2_swapped", "records", 528},
    {k, "entry_5_of_row_1_wrong", "indices", 32 + 5},
    {pool, "mask_one_row_on", "mask", 0},
    {"token_probabilities(vocabulary=600)", "token_9_twice", "probabilities", 9},
};

}  // namespace

TEST_CASE("planted faults: kernels without a fault are equal, differ by order or by rounding") {
    std::set<std::pair<std::string, Prepare>> done;
    for (const Planted& one : planted) {
        if (!done.insert({one.text, one.prepare}).second) continue;
        const Setting setting(one.text, one.arithmetic, one.prepare);
        const Diagnosis diagnosis = diagnose(setting.run(), setting.foreign_result(""));
        INFO(one.text, " ", one.fault, ": ", finding_name(diagnosis.finding), explained_by(diagnosis), " at ",
             diagnosis.first.output, " ", diagnosis.first.element.index);
        CHECK(diagnosis.finding != Finding::named);
        CHECK(diagnosis.finding != Finding::unknown);
    }
}

TEST_CASE("planted faults: each is outside rounding and has its name") {
    for (const Planted& one : planted) {
        const Setting setting(one.text, one.arithmetic, one.prepare);
        const TensorMap got = setting.foreign_result(one.fault);
        const Diagnosis diagnosis = diagnose(setting.run(), got);
        INFO(one.text, " ", one.fault, ", expected ", one.name, ": ", finding_name(diagnosis.finding),
             explained_by(diagnosis), " at ", diagnosis.first.output, " ", diagnosis.first.element.index,
             " of ", diagnosis.tried.size());
        CHECK_FALSE(all_within_rounding(setting, got));
        CHECK(diagnosis.finding == Finding::named);
        CHECK(!diagnosis.explanations.empty());
        if (diagnosis.explanations.empty()) continue;
        CHECK(diagnosis.explanations.front().hypothesis->name == one.name);
        CHECK(diagnosis.explanations.front().hypothesis->kind == one.kind);
    }
}

TEST_CASE("planted faults: what is in no table stays unknown, at its first element") {
    for (const Unknown& one : unknown) {
        const Setting setting(one.text, Arithmetic::exact, one.prepare);
        const TensorMap clean_result = setting.foreign_result(""), got = setting.foreign_result(one.fault);
        const Diagnosis diagnosis = diagnose(setting.run(), got);
        INFO(one.text, " ", one.fault, ": ", finding_name(diagnosis.finding), explained_by(diagnosis), " at ",
             diagnosis.first.output, " ", diagnosis.first.element.index, ", block ", diagnosis.first.k_block);
        CHECK(diagnosis.finding == Finding::unknown);
        CHECK(diagnosis.first.output == one.output);
        int64_t element = one.element;
        if (element < 0) {
            const Tensor &clean = clean_result.find(one.output)->second,
                         &faulty = got.find(one.output)->second;
            do ++element;
            while (element_as_double(clean, element) == element_as_double(faulty, element));
        }
        CHECK(diagnosis.first.element.index == element);
        CHECK(diagnosis.first.k_block == one.k_block);
    }
}

TEST_CASE("planted faults: orders of summation have names, and are no faults") {
    const struct {
        std::string text, order, name;
    } orders[] = {{bf16, "in_one_chain", "one_chain_fma"},  // products of bf16 are exact: as without fma
                  {bf16, "in_double", "accumulated_in_double"},
                  {bf16, "in_32_lanes", "lanes_32_halves"},
                  {"rms_norm(rows=6,width=512)", "", "one_chain_fma"}};
    for (const auto& one : orders) {
        const Setting setting(one.text, Arithmetic::exact, nullptr);
        const Diagnosis diagnosis = diagnose(setting.run(), setting.foreign_result(one.order));
        INFO(one.text, " ", one.order, ": ", finding_name(diagnosis.finding), explained_by(diagnosis));
        CHECK(diagnosis.finding == Finding::order);
        REQUIRE(!diagnosis.explanations.empty());
        CHECK(diagnosis.explanations.front().exact);
        CHECK(diagnosis.explanations.front().hypothesis->name == one.name);
    }
}

TEST_CASE("planted faults: a named fault of K has its block") {
    const struct {
        std::string text, fault;
        int64_t k_block;
    } faults[] = {
        {fp8, "last_block_missing", 15}, {fp8, "first_block_twice", 0}, {fp4, "first_64_missing", 0}};
    for (const auto& one : faults) {
        CAPTURE(one.fault);
        const Setting setting(one.text, Arithmetic::exact, nullptr);
        CHECK(diagnose(setting.run(), setting.foreign_result(one.fault)).first.k_block == one.k_block);
    }
}

TEST_CASE("planted faults: an fp8 accumulator that is never promoted is an order with a name") {
    const Setting setting(fp8, Arithmetic::exact, nullptr);
    const Diagnosis diagnosis = diagnose(setting.run(), setting.foreign_result("fp8_chain_never_promoted"));
    INFO(explained_by(diagnosis));
    CHECK(diagnosis.finding == Finding::order);
    REQUIRE(!diagnosis.explanations.empty());
    CHECK(diagnosis.explanations.front().hypothesis->name == "fp8_accumulator_never");
}
