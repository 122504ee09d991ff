#include "golden/bisect/step_judge.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "golden/bisect/diagnosis.h"
#include "golden/bisect/step_origins.h"

namespace touchstone {

namespace {

/// What another order of summation may do beyond the farthest profile.
constexpr double noise_factor = 4;
/// Scores that differ by less than this share of them tie nearly: a step of bf16, or of fp32 sums.
constexpr double near_bf16 = 0x1p-7, near_fp32 = 1e-5;

/// No NaN or infinity where the other has none.
bool same_special_values(const Difference& d) {
    const auto same = [](const PlacesDifference& p) { return p.expected_only == 0 && p.got_only == 0; };
    return same(d.nan) && same(d.positive_infinity) && same(d.negative_infinity);
}

/// Whether theirs are about as far from the reference as other profiles are.
bool as_far_as_profiles(const Step& step, const StepPlace& place, Arithmetic arithmetic,
                        const Tensor& expected, const Difference& theirs) {
    if (!same_special_values(theirs)) return false;
    double square = 0, largest = 0;
    for (const Arithmetic other : {Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper}) {
        std::string why;
        if (other == arithmetic) continue;
        const std::optional<Tensor> made = run_step(step, place, other, why);
        if (!made) continue;
        const Difference noise = difference(view_of(expected), view_of(*made), {});
        square = std::max(square, noise.normalised_mean_square);
        largest = std::max(largest, noise.largest_of_rms);
    }
    return theirs.normalised_mean_square <= noise_factor * square &&
           theirs.largest_of_rms <= noise_factor * largest;
}

/// What a row chooses among.
struct Candidates {
    std::vector<double> scores;
    std::vector<bool> allowed;
    double near;     ///< share of a score
    bool ascending;  ///< order of the list; else the largest score first
};

bool in_order(std::span<const int32_t> list, const Candidates& from) {
    for (size_t i = 1; i < list.size(); ++i) {
        const double before = from.scores[static_cast<size_t>(list[i - 1])],
                     here = from.scores[static_cast<size_t>(list[i])];
        const bool right =
            from.ascending ? list[i - 1] < list[i] : before >= here - from.near * std::abs(here);
        if (!right) return false;
    }
    return true;
}

/// Whether `row`, filled up with -1, is a choice of the largest, up to near ties.
bool largest_up_to_ties(std::span<const int32_t> row, const Candidates& from) {
    const auto end = std::ranges::find(row, -1);
    const std::span<const int32_t> list(row.begin(), end);
    const auto candidates = std::ranges::count(from.allowed, true);
    if (std::ssize(list) != std::min(std::ssize(row), candidates)) return false;
    if (std::any_of(end, row.end(), [](int32_t id) { return id != -1; })) return false;
    std::vector<bool> left = from.allowed;
    double least = std::numeric_limits<double>::infinity(), most = -least;
    for (const int32_t id : list) {
        if (id < 0 || id >= std::ssize(left) || !left[static_cast<size_t>(id)]) return false;
        left[static_cast<size_t>(id)] = false;
        least = std::min(least, from.scores[static_cast<size_t>(id)]);
    }
    for (size_t i = 0; i < left.size(); ++i)
        if (left[i]) most = std::max(most, from.scores[i]);
    return in_order(list, from) && !(most - least > from.near * std::max(std::abs(most), std::abs(least)));
}

/// Of a top-k over theirs' scores.
Candidates row_candidates(const LinkRun& top_k, int64_t row) {
    const Tensor& scores = top_k.inputs.find("scores")->second;
    const int64_t columns = scores.shape[1];
    Candidates from{{}, {}, near_bf16, true};
    const int32_t visible = top_k.inputs.find("visible")->second.view<int32_t>()[static_cast<size_t>(row)];
    for (int64_t column = 0; column < columns; ++column) {
        const auto at = static_cast<size_t>(row * columns + column);
        from.scores.push_back(static_cast<double>(scores.view<float>()[at]));
        from.allowed.push_back(column < visible &&
                               top_k.inputs.find("mask")->second.view<uint8_t>()[at] != 0);
    }
    return from;
}

/// Of a gate: theirs' scores where they are traced, plus the bias.
Candidates expert_candidates(const LinkRun& gate, const Tensor* traced_scores, int64_t row) {
    const Tensor& scores = traced_scores != nullptr ? *traced_scores : gate.outputs.find("scores")->second;
    const auto bias = gate.inputs.find("bias")->second.view<float>();
    Candidates from{{}, std::vector<bool>(bias.size(), true), near_fp32, false};
    const auto own = scores.view<float>().subspan(static_cast<size_t>(row) * bias.size(), bias.size());
    for (size_t i = 0; i < bias.size(); ++i)
        from.scores.push_back(static_cast<double>(own[i]) + static_cast<double>(bias[i]));
    return from;
}

bool chosen_up_to_ties(const Step& step, const StepPlace& place, Arithmetic arithmetic, const Tensor& got) {
    std::string why;
    const std::optional<ChainRun> chain = run_chain(step, place, arithmetic, why);
    if (!chain) return false;
    const LinkRun& link = chain->links.back();
    const std::optional<Tensor> gate_scores = traced("ffn.gate_scores")(place);
    const auto width = static_cast<size_t>(got.shape[1]);
    for (int64_t row = 0; row < place.rows; ++row) {
        const Candidates from = link.info->name == "top_k"
                                    ? row_candidates(link, row)
                                    : expert_candidates(link, gate_scores ? &*gate_scores : nullptr, row);
        if (!largest_up_to_ties(got.view<int32_t>().subspan(static_cast<size_t>(row) * width, width), from))
            return false;
    }
    return true;
}

}  // namespace

const OutputSlot& step_output(const Step& step) {
    const Link& last = step.links.back();
    const OperatorInfo& info = find_operator(last.operator_name);
    return *std::ranges::find(info.outputs, last.output, &OutputSlot::name);
}

Tolerance step_tolerance(const Step& step) {
    if (step.links.empty() || step.judge == StepJudge::selection) return {};
    if (step.judge == StepJudge::quantised)
        // A code's step: at most an eighth of an e4m3, of an e2m1 half of it, or half a scale, which is no
        // more than the row's rms.
        return {.rms = 1, .relative = 0.5, .share = 0.01};
    return rounding_tolerance(step_output(step));
}

JudgedStep judge_step(const Step& step, const StepPlace& place, Arithmetic arithmetic) {
    JudgedStep judged;
    const std::optional<Tensor> expected = run_step(step, place, arithmetic, judged.why);
    if (!expected) return judged;
    const Tensor& got = *place.theirs.tensor(place.call, place.layer, step.tensor);
    const Tolerance tolerance = step_tolerance(step);
    judged.difference = difference(view_of(*expected), view_of(got), tolerance);
    judged.verdict = StepVerdict::made_here;
    if (judged.difference.equal())
        judged.verdict = StepVerdict::same_bits;
    else if (within(judged.difference, tolerance))
        judged.verdict = StepVerdict::rounding;
    else if (step.judge == StepJudge::selection && chosen_up_to_ties(step, place, arithmetic, got))
        judged.verdict = StepVerdict::ties;
    else if (step.judge != StepJudge::selection && !step.links.empty() &&
             as_far_as_profiles(step, place, arithmetic, *expected, judged.difference))
        judged.verdict = StepVerdict::rounding;
    return judged;
}

}  // namespace touchstone
