// Faults of RMS norms and of the rotary embedding.
#include <algorithm>
#include <cmath>

#include "golden/hypotheses/norm_rule.h"
#include "golden/hypotheses/rope_rule.h"

namespace touchstone {

namespace {

const std::vector<std::string> norm{"rms_norm"}, rope_alone{"rope"};

// Norms.

void rounded_before_gain(NormRule& rule) {
    rule.element = [](float x, float r, float w) { return w * to_float(bf16_from_float(x * r)); };
}
void root_rounded(NormRule& rule) {
    rule.root = [](float mean, float eps) { return to_float(bf16_from_float(1.0f / std::sqrt(mean + eps))); };
}
void gain_plus_one(NormRule& rule) {
    rule.element = [](float x, float r, float w) { return (1.0f + w) * (x * r); };
}
void gain_missing(NormRule& rule) {
    rule.element = [](float x, float r, float) { return x * r; };
}
void centred(NormRule& rule) {
    rule.centred = true;
}
void sum_for_mean(NormRule& rule) {
    rule.mean = [](float sum, float) { return sum; };
}
void mean_of_width_minus_1(NormRule& rule) {
    rule.mean = [](float sum, float width) { return sum / (width - 1.0f); };
}
void eps_outside(NormRule& rule) {
    rule.root = [](float mean, float eps) { return 1.0f / (std::sqrt(mean) + eps); };
}
void eps_as_floor(NormRule& rule) {
    rule.root = [](float mean, float eps) { return 1.0f / std::sqrt(mean < eps ? eps : mean); };
}
void root_missing(NormRule& rule) {
    rule.root = [](float mean, float eps) { return 1.0f / (mean + eps); };
}

/// Another epsilon than the run's.
Outputs eps(float value) {
    return with_norm([value](NormRule& rule) { rule.eps = value; });
}

/// The mean square of the first `of` of `in` parts of the row.
Outputs mean_of_part(int of, int in) {
    return with_norm([of, in](NormRule& rule) {
        rule.sum_of_squares = [of, in, all = rule.sum_of_squares](std::span<const float> x) {
            const size_t width = x.size() * static_cast<size_t>(of) / static_cast<size_t>(in);
            return width == 0 ? all(x)
                              : all(x.first(width)) * static_cast<float>(in) / static_cast<float>(of);
        };
    });
}

Outputs gain_of_the_next_channel() {
    return with_inputs([](TensorMap& inputs, const OperatorRun&) {
        const std::span<Bf16> weight = inputs.find("weight")->second.view<Bf16>();
        std::rotate(weight.begin(), weight.begin() + 1, weight.end());
        return true;
    });
}

// Rotations.

using ChangeRope = void (*)(RopeRule&);

Outputs turned(ChangeRope change) {
    return with_rope([change](RopeRule& rule, const OperatorRun&) {
        change(rule);
        return true;
    });
}

bool other_table(Parameters& parameters, const OperatorRun& run) {
    parameters.values["table"] = std::string(run.parameters.choice("table") == "main" ? "compress" : "main");
    return true;
}

bool without_yarn(RopeRule& rule, const OperatorRun& run) {
    if (run.parameters.choice("table") == "main") return false;
    const RopeTable table = released_rope_table(run.parameters["rope_dim"], false, false);
    rule.frequencies.assign(table.frequencies().begin(), table.frequencies().end());
    return true;
}

/// Every frequency by YaRN's factor.
bool all_interpolated(RopeRule& rule, const OperatorRun& run) {
    if (run.parameters.choice("table") == "main") return false;
    without_yarn(rule, run);
    for (float& frequency : rule.frequencies) frequency /= 16.0f;
    return true;
}

bool yarn_on_main(RopeRule& rule, const OperatorRun& run) {
    if (run.parameters.choice("table") != "main") return false;
    const RopeTable table(run.parameters["rope_dim"], 10000, YarnScaling{16, 32, 1, 65536});
    rule.frequencies.assign(table.frequencies().begin(), table.frequencies().end());
    return true;
}

RopePair of_double_angle(double angle) {
    return {static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))};
}

/// The sine's sign turned on the second of the pair alone: a mirror, no rotation.
RopePair mirrored(float a, float b, RopePair angle) {
    return {a * angle.cos + b * angle.sin, a * angle.sin + b * angle.cos};
}

RopePair fma_on_first(float a, float b, RopePair angle) {
    return {std::fma(a, angle.cos, -(b * angle.sin)), std::fma(a, angle.sin, b * angle.cos)};
}
RopePair fma_on_second(float a, float b, RopePair angle) {
    return {std::fma(-b, angle.sin, a * angle.cos), std::fma(b, angle.cos, a * angle.sin)};
}

std::vector<Hypothesis> norm_faults() {
    const Cause fault = Cause::fault;
    return {
        {"eps_1e_6", "K20", "the norm's epsilon is 1e-6", fault, norm, eps(1e-6f)},
        {"eps_1e_5", "K20", "the norm's epsilon is 1e-5", fault, norm, eps(1e-5f)},
        {"eps_1e_12", "K20", "the norm's epsilon is 1e-12", fault, norm, eps(1e-12f)},
        {"eps_missing", "K20", "the norm adds no epsilon", fault, norm, eps(0)},
        {"eps_outside_the_root", "K20", "epsilon is added to the root, not to the mean square", fault, norm,
         with_norm(eps_outside)},
        {"eps_as_floor", "K20", "epsilon is the least mean square, not added to it", fault, norm,
         with_norm(eps_as_floor)},
        {"rounded_before_gain", "K20", "the normalised row is rounded to bf16 before the gain", fault, norm,
         with_norm(rounded_before_gain)},
        {"norm_root_in_bf16", "K20", "the reciprocal root is rounded to bf16", fault, norm,
         with_norm(root_rounded)},
        {"gain_plus_one", "K20", "the gain is 1 + weight", fault, norm, with_norm(gain_plus_one)},
        {"gain_missing", "K20", "the gain is not applied", fault, norm, with_norm(gain_missing)},
        {"gain_of_the_next_channel", "K20", "the gain is one channel on", fault, norm,
         gain_of_the_next_channel()},
        {"mean_subtracted", "K20", "the row's mean is subtracted first, as a layer norm does", fault, norm,
         with_norm(centred)},
        {"sum_for_mean", "K20", "the squares are summed, not averaged", fault, norm, with_norm(sum_for_mean)},
        {"mean_of_width_minus_1", "K20", "the squares are divided by width - 1", fault, norm,
         with_norm(mean_of_width_minus_1)},
        {"mean_square_for_root", "K20", "the row is divided by the mean square, not by its root", fault, norm,
         with_norm(root_missing)},
        {"mean_of_first_half", "K20", "the mean square is that of the row's first half", fault, norm,
         mean_of_part(1, 2)},
        {"mean_of_first_quarter", "K20", "the mean square is that of the row's first quarter", fault, norm,
         mean_of_part(1, 4)},
    };
}

std::vector<Hypothesis> rope_orders() {
    const Cause order = Cause::order;
    return {
        {"rope_fma_on_the_first_product", "order", "the rotation fuses its first product with the sum", order,
         rope_alone, turned([](RopeRule& r) { r.product = fma_on_first; })},
        {"rope_fma_on_the_second_product", "order", "the rotation fuses its second product with the sum",
         order, rope_alone, turned([](RopeRule& r) { r.product = fma_on_second; })},
    };
}

std::vector<Hypothesis> rope_faults() {
    const Cause fault = Cause::fault;
    return {
        {"rope_of_the_other_table", "K10",
         "rotated by the frequencies of the other class of layers: one base for all", fault, rope_alone,
         with_parameters(other_table)},
        {"rope_without_yarn", "K10", "the frequencies are not stretched by YaRN", fault, rope_alone,
         with_rope(without_yarn)},
        {"rope_all_frequencies_interpolated", "K10",
         "all frequencies are divided by YaRN's factor, without its ramp", fault, rope_alone,
         with_rope(all_interpolated)},
        {"rope_yarn_on_main_table", "K10", "YaRN stretches the table of layers without compressed rows",
         fault, rope_alone, with_rope(yarn_on_main)},
        {"rope_half_split", "K10", "channels i and i + half are a pair, not neighbours", fault, rope_alone,
         turned([](RopeRule& r) { r.half_split = true; })},
        {"rope_other_direction", "K10",
         "rotated the other way: the inverse is forward or the forward inverse", fault, rope_alone,
         turned([](RopeRule& r) { r.forward = !r.forward; })},
        {"rope_missing", "K10", "not rotated at all", fault, rope_alone, turned([](RopeRule& r) {
             r.turn = [](int64_t, float) { return RopePair{1, 0}; };
         })},
        {"rope_mirrored", "K10", "the sine has one sign in both halves of the pair", fault, rope_alone,
         turned([](RopeRule& r) { r.product = mirrored; })},
        {"rope_leading_channels", "K10", "the first channels are rotated, not the last", fault, rope_alone,
         with_rope([](RopeRule& rule, const OperatorRun& run) {
             rule.leading = true;
             return run.parameters["rope_dim"] < run.parameters["head_dim"];
         })},
        {"rope_position_plus_1", "K10", "every row is rotated as the next position", fault, rope_alone,
         turned([](RopeRule& r) { r.position = [](int64_t p) { return p + 1; }; })},
        {"rope_position_minus_1", "K10", "every row is rotated as the position before", fault, rope_alone,
         turned([](RopeRule& r) { r.position = [](int64_t p) { return p - 1; }; })},
        {"rope_position_doubled", "K10", "positions are multiplied by a compression ratio of 2", fault,
         rope_alone, turned([](RopeRule& r) { r.position = [](int64_t p) { return 2 * p; }; })},
        {"rope_position_halved", "K10", "a group's number stands for its first token's position", fault,
         rope_alone, turned([](RopeRule& r) { r.position = [](int64_t p) { return p / 2; }; })},
        {"rope_position_modulo_65536", "K10", "positions wrap at 65,536", fault, rope_alone,
         turned([](RopeRule& r) { r.position = [](int64_t p) { return p & 0xFFFF; }; })},
        {"rope_angle_not_rounded", "K10", "cos and sin are of the exact angle, not of the fp32 one", fault,
         rope_alone, turned([](RopeRule& r) {
             r.turn = [](int64_t p, float f) {
                 return of_double_angle(static_cast<double>(p) * static_cast<double>(f));
             };
         })},
        {"rope_angle_in_bf16", "K10", "the angle is rounded to bf16", fault, rope_alone,
         turned([](RopeRule& r) {
             r.turn = [](int64_t p, float f) {
                 const Bf16 angle = bf16_from_float(static_cast<float>(p) * f);
                 return of_double_angle(static_cast<double>(to_float(angle)));
             };
         })},
        {"rope_position_in_bf16", "K10", "the position is rounded to bf16 before the angle", fault,
         rope_alone, turned([](RopeRule& r) {
             r.position = [](int64_t p) {
                 return static_cast<int64_t>(to_float(bf16_from_float(static_cast<float>(p))));
             };
         })},
        {"rope_table_in_bf16", "K10", "cos and sin are rounded to bf16", fault, rope_alone,
         turned([](RopeRule& r) {
             r.turn = [](int64_t p, float f) {
                 const RopePair exact = of_double_angle(static_cast<double>(static_cast<float>(p) * f));
                 return RopePair{to_float(bf16_from_float(exact.cos)), to_float(bf16_from_float(exact.sin))};
             };
         })},
        {"rope_yarn_magnitude", "K10", "cos and sin have YaRN's magnitude factor, 0.1 ln 16 + 1", fault,
         rope_alone, turned([](RopeRule& r) { r.factor = 1.2772589f; })},
    };
}

}  // namespace

std::vector<Hypothesis> norm_and_rope_hypotheses() {
    std::vector<Hypothesis> all = norm_faults();
    for (const auto part : {rope_orders, rope_faults}) {
        const std::vector<Hypothesis> rows = part();
        all.insert(all.end(), rows.begin(), rows.end());
    }
    return all;
}

}  // namespace touchstone
