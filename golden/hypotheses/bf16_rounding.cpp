#include "golden/hypotheses/bf16_rounding.h"

#include <algorithm>
#include <cmath>

#include "golden/hypotheses/linear_operands.h"

namespace touchstone {

namespace {

/// x as a multiple of the last place of a type with that many fraction bits, rounded by `nearest`.
double on_grid(double x, int fraction_bits, int smallest_exponent, double (*nearest)(double)) {
    if (x == 0 || !std::isfinite(x)) return x;
    const int exponent = std::max(std::ilogb(x), smallest_exponent) - fraction_bits;
    return std::copysign(std::ldexp(nearest(std::ldexp(x, -exponent)), exponent), x);
}

double even(double x) {
    return std::nearbyint(x);
}
double away(double x) {
    return std::round(x);
}
double toward_zero(double x) {
    return std::trunc(x);
}

Bf16 bf16_of(double x) {
    return bf16_from_float(static_cast<float>(x));
}

bool is_rounded_fp32(const OutputSlot& slot) {
    return slot.type == "F32" && (slot.judged == Judged::bound || slot.judged == Judged::tolerance);
}

/// What the reference rounds to the bf16 output `name`; empty where nobody knows.
std::vector<double> before_rounding(const OperatorRun& run, const std::string& name, const TensorMap& truth) {
    for (const char* fp32 : {"accumulator", "unrounded"})
        if (const auto found = run.expected.find(fp32); found != run.expected.end())
            return numbers_of(found->second);
    if (run.info.name == "grouped_linear" && run.parameters["rows"] > 0) {
        const std::vector<float> sums =
            linear_sums(*linear_operands(run), profile_of(run.info, run.arithmetic));
        return {sums.begin(), sums.end()};
    }
    const auto found = truth.find(name);
    return found == truth.end() ? std::vector<double>() : numbers_of(found->second);
}

}  // namespace

double to_bf16(double x) {
    return on_grid(x, 7, -126, even);
}
double to_fp16(double x) {
    const double rounded = on_grid(x, 10, -14, even);
    return std::abs(rounded) > 65504 ? std::copysign(HUGE_VAL, x) : rounded;
}
double to_tf32(double x) {
    return on_grid(x, 10, -126, toward_zero);
}
double bf16_truncated(double x) {
    return on_grid(x, 7, -126, toward_zero);
}
double bf16_half_away(double x) {
    return on_grid(x, 7, -126, away);
}
double bf16_half_up(double x) {
    return on_grid(x, 7, -126, [](double steps) { return std::floor(steps + 0.5); });
}
double bf16_through_fp16(double x) {
    return to_bf16(to_fp16(x));
}
double subnormals_flushed(double x) {
    return std::abs(x) < 0x1p-126 ? std::copysign(0.0, x) : to_bf16(x);
}

Outputs with_bf16_outputs(double (*round)(double)) {
    return [round](const OperatorRun& run) -> std::optional<TensorMap> {
        const bool any = std::ranges::any_of(run.info.outputs, [&](const OutputSlot& slot) {
            return slot.type == "BF16" && run.expected.contains(slot.name);
        });
        if (!any) return std::nullopt;
        const bool has_fp32 = run.expected.contains("accumulator") || run.expected.contains("unrounded");
        const TensorMap truth =
            has_fp32 ? TensorMap()
                     : judge_operator(run.info, truth::Ledger::released(), run.parameters, run.inputs);
        TensorMap outputs = run.expected;
        for (auto& [name, tensor] : outputs) {
            if (tensor.type != "BF16") continue;
            const std::vector<double> values = before_rounding(run, name, truth);
            if (std::ssize(values) != tensor.elements()) return std::nullopt;
            for (size_t i = 0; i < values.size(); ++i) tensor.view<Bf16>()[i] = bf16_of(round(values[i]));
        }
        return outputs;
    };
}

Outputs with_fp32_outputs(double (*round)(double)) {
    return with_outputs([round](TensorMap& outputs, const OperatorRun& run) {
        bool any = false;
        for (const OutputSlot& slot : run.info.outputs) {
            const auto found = outputs.find(slot.name);
            if (found == outputs.end() || !is_rounded_fp32(slot)) continue;
            any = true;
            for (float& x : found->second.view<float>())
                x = with_canonical_nan(static_cast<float>(round(static_cast<double>(x))));
        }
        return any;
    });
}

}  // namespace touchstone
