#include "golden/device/tensor_core_alternatives.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "reference/numerics/small_float.h"

namespace touchstone {

namespace {

struct Format {
    int exponent_bits, mantissa_bits, ignored_low_bits;
    bool infinities;
};

constexpr Format formats[] = {{8, 7, 0, true}, {5, 10, 0, true}, {8, 10, 13, true}, {4, 3, 0, false}};
constexpr Format fp32{8, 23, 0, true};

enum class Class : uint8_t { finite, infinite, nan };

/// significand * 2^(exponent - fraction_bits); the exponent is the format's, also for subnormals.
struct Term {
    bool negative;
    Class kind;
    uint64_t significand;
    int exponent, fraction_bits;
};

Term decode(const Format& format, uint32_t bits) {
    bits >>= format.ignored_low_bits;
    const uint32_t mantissa_mask = (1u << format.mantissa_bits) - 1;
    const uint32_t exponent_mask = (1u << format.exponent_bits) - 1;
    const uint32_t mantissa = bits & mantissa_mask, field = bits >> format.mantissa_bits & exponent_mask;
    const bool top = field == exponent_mask;
    Term term{.negative = (bits >> (format.exponent_bits + format.mantissa_bits) & 1) != 0,
              .kind = Class::finite,
              .significand = mantissa | (field == 0 ? 0u : mantissa_mask + 1),
              .exponent = static_cast<int>(std::max(field, 1u)) - static_cast<int>(exponent_mask >> 1),
              .fraction_bits = format.mantissa_bits};
    if (format.infinities && top) term.kind = mantissa == 0 ? Class::infinite : Class::nan;
    if (!format.infinities && top && mantissa == mantissa_mask) term.kind = Class::nan;
    return term;
}

Term product(const Term& a, const Term& b, bool normalised) {
    Term term{.negative = a.negative != b.negative,
              .kind = std::max(a.kind, b.kind),
              .significand = a.significand * b.significand,
              .exponent = a.exponent + b.exponent,
              .fraction_bits = a.fraction_bits + b.fraction_bits};
    if (term.kind == Class::infinite && term.significand == 0) term.kind = Class::nan;  // inf * 0
    if (normalised && term.significand != 0) {
        const int leading = static_cast<int>(std::bit_width(term.significand)) - 1;
        term.exponent += leading - term.fraction_bits;
        term.fraction_bits = leading;
    }
    return term;
}

/// The term as a multiple of the grid 2^(largest - fraction_bits).
int64_t on_grid(const Term& term, int largest, int fraction_bits, TermCut cut) {
    const int shift = fraction_bits - term.fraction_bits + term.exponent - largest;
    const auto magnitude = static_cast<int64_t>(term.significand);
    if (shift >= 0) return term.negative ? -(magnitude << shift) : magnitude << shift;
    const int right = std::min(-shift, 62);
    int64_t kept = magnitude >> right;
    const int64_t lost = magnitude - (kept << right), half = int64_t{1} << (right - 1);
    if (cut == TermCut::floor && term.negative && lost != 0) ++kept;
    if (cut == TermCut::nearest_even && (lost > half || (lost == half && kept % 2 != 0))) ++kept;
    return term.negative ? -kept : kept;
}

/// sum * 2^exponent rounded to fp32 as the model says.
float to_output(const FusedSumModel& model, int64_t sum, int exponent) {
    const bool negative = sum < 0;
    const auto with_sign = [&](uint32_t bits) {
        return float_from_bits(negative ? bits | 0x80000000 : bits);
    };
    auto magnitude = static_cast<uint64_t>(negative ? -sum : sum);
    if (magnitude == 0) return 0;
    const int leading = static_cast<int>(std::bit_width(magnitude)) - 1 + exponent;
    const int unit = std::max(leading, -126) - model.output_fraction_bits;  // exponent of the last bit kept
    if (const int drop = unit - exponent; drop > 0) {
        const uint64_t lost = drop > 63 ? magnitude : magnitude & ((uint64_t{1} << drop) - 1);
        magnitude = drop > 63 ? 0 : magnitude >> drop;
        const uint64_t half = drop > 63 ? ~uint64_t{0} : uint64_t{1} << (drop - 1);
        if (model.output_nearest_even && (lost > half || (lost == half && magnitude % 2 != 0))) ++magnitude;
        exponent = unit;
    }
    if (magnitude == 0) return model.underflow_keeps_sign ? with_sign(0) : 0;
    // At most 25 bits are left, so that double and fp32 hold them exactly but for overflow.
    const double value = static_cast<double>(magnitude) *
                         double_from_bits(uint64_t(1023 + exponent / 2) << 52) *
                         double_from_bits(uint64_t(1023 + exponent - exponent / 2) << 52);
    if (value >= 0x1p128) return with_sign(model.overflow_saturates ? 0x7F7FFFFF : 0x7F800000);
    return with_sign(float_bits(static_cast<float>(value)));
}

/// The result when a term is not finite; terms that are do not matter.
float special_sum(const std::vector<Term>& terms) {
    bool positive = false, negative = false, nan = false;
    for (const Term& term : terms) {
        nan = nan || term.kind == Class::nan;
        if (term.kind == Class::infinite) (term.negative ? negative : positive) = true;
    }
    if (nan || (positive && negative)) return float_from_bits(canonical_nan_bits);
    return float_from_bits(negative ? 0xFF800000 : 0x7F800000);
}

float one_sum(const FusedSumModel& model, const std::vector<Term>& terms) {
    if (std::ranges::any_of(terms, [](const Term& term) { return term.kind != Class::finite; }))
        return special_sum(terms);
    int largest = model.zero_exponent;  // without a zero term C's, never below -126, is larger
    for (const Term& term : terms)
        if (term.significand != 0) largest = std::max(largest, term.exponent);
    int64_t sum = 0;
    for (const Term& term : terms)
        if (term.significand != 0) sum += on_grid(term, largest, model.fraction_bits, model.cut);
    return to_output(model, sum, largest - model.fraction_bits);
}

/// e4m3 to f16, exact; NaN to NaN.
uint32_t f16_from_e4m3(uint32_t code) {
    const uint32_t sign = (code & 0x80) << 8, magnitude = code & 0x7F;
    if (magnitude == 0x7F) return sign | 0x7FFF;
    if (magnitude >= 8) return sign | ((magnitude << 7) + (8u << 10));
    if (magnitude == 0) return sign;
    const auto leading = static_cast<uint32_t>(std::bit_width(magnitude) - 1);  // value: magnitude * 2^-9
    return sign | (leading + 15 - 9) << 10 | (magnitude << (10 - leading) & 0x3FF);
}

}  // namespace

FusedSumModel fused_sum_model(const TensorCoreInstruction& instruction) {
    return {.format = instruction.format,
            .products = instruction.products,
            .fraction_bits = instruction.fraction_bits,
            .output_fraction_bits = instruction.output_fraction_bits,
            .zero_exponent = instruction.zero_exponent};
}

float fused_sum(const FusedSumModel& model, const uint32_t* a, const uint32_t* b, int k, float c) {
    const Format& format = formats[static_cast<size_t>(model.format)];
    std::vector<Term> terms;
    for (int first = 0; first < k; first += model.products) {
        terms.clear();
        if (model.accumulator_in_sum) terms.push_back(decode(fp32, float_bits(c)));
        for (int i = first; i < first + model.products; ++i)
            terms.push_back(product(decode(format, a[i]), decode(format, b[i]), model.products_normalised));
        const float sum = one_sum(model, terms);
        c = model.accumulator_in_sum ? sum : with_canonical_nan(sum + c);
    }
    return c;
}

float emulated_e4m3_sum(const uint32_t* a, const uint32_t* b, float c) {
    constexpr FusedSumModel f16{.format = OperandFormat::f16};
    uint32_t halves_a[2][16], halves_b[2][16];
    for (int i = 0; i < 32; ++i) {
        halves_a[i / 2 % 2][i / 4 * 2 + i % 2] = f16_from_e4m3(a[i]);
        halves_b[i / 2 % 2][i / 4 * 2 + i % 2] = f16_from_e4m3(b[i]);
    }
    const float even = fused_sum(f16, halves_a[0], halves_b[0], 16, 0);
    return with_canonical_nan(fused_sum(f16, halves_a[1], halves_b[1], 16, even) + c);
}

std::vector<Alternative> refuted_alternatives(const TensorCoreInstruction& instruction) {
    const FusedSumModel right = fused_sum_model(instruction);
    std::vector<Alternative> alternatives;
    const auto add = [&](std::string name, std::vector<std::string> inputs, auto change) {
        alternatives.push_back({std::move(name), right, std::move(inputs)});
        change(alternatives.back().model);
    };
    const std::vector<std::string> random{"medium", "wide"}, tiny{"tiny_products"}, large{"overflow"};
    add(fmt::format("F={}", right.fraction_bits - 1), random, [](FusedSumModel& m) { --m.fraction_bits; });
    add(fmt::format("F={}", right.fraction_bits + 1), random, [](FusedSumModel& m) { ++m.fraction_bits; });
    add(fmt::format("chained sums of {}", right.products / 2), random,
        [](FusedSumModel& m) { m.products /= 2; });
    add("terms cut by floor", random, [](FusedSumModel& m) { m.cut = TermCut::floor; });
    add("terms cut to nearest", random, [](FusedSumModel& m) { m.cut = TermCut::nearest_even; });
    add("C after the sum", random, [](FusedSumModel& m) { m.accumulator_in_sum = false; });
    add("output to nearest", random, [](FusedSumModel& m) { m.output_nearest_even = true; });
    add("normalised products", random, [](FusedSumModel& m) { m.products_normalised = true; });
    if (formats[static_cast<size_t>(right.format)].exponent_bits < 8) return alternatives;
    for (const int exponent : {right.zero_exponent + 1, right.zero_exponent - 1, -200})
        add(fmt::format("zero terms at 2^{}", exponent), tiny,
            [&](FusedSumModel& m) { m.zero_exponent = exponent; });
    add("underflow keeps its sign", tiny, [](FusedSumModel& m) { m.underflow_keeps_sign = true; });
    add("overflow saturates", large, [](FusedSumModel& m) { m.overflow_saturates = true; });
    return alternatives;
}

}  // namespace touchstone
