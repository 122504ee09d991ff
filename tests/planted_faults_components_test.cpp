// Kernels of the model's components with one mistake each: the diagnosis has to name it, and to name nothing
// where it cannot know.
#include <doctest/doctest.h>

#include <optional>

#include "tests/planted_components.h"

namespace touchstone::planted_components {
namespace {

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
}  // namespace touchstone::planted_components
