#include "reference/numerics/tensor_core.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/gemm.h"
#include "reference/numerics/small_float.h"
#include "reference/numerics/tensor_core_operand.h"

namespace touchstone {

namespace {

constexpr std::string_view probed = "touchstone gpu probe; golden/device";
constexpr std::string_view mma_sim = "MMA-Sim, arXiv 2511.10909";
constexpr std::string_view blackwell_source = "MMA-Sim, arXiv 2511.10909; DeepGEMM issue 176";

// name, operands, products, F, output bits, e_zero, emulated, evidence, source
constexpr std::array instructions{
    TensorCoreInstruction{"hopper.wgmma.bf16", OperandFormat::bf16, 16, 25, 23, -133, false,
                          Evidence::measured, probed},
    TensorCoreInstruction{"hopper.wgmma.f16", OperandFormat::f16, 16, 25, 23, -133, false, Evidence::measured,
                          probed},
    TensorCoreInstruction{"hopper.wgmma.tf32", OperandFormat::tf32, 8, 25, 23, -133, false,
                          Evidence::measured, probed},
    TensorCoreInstruction{"hopper.wgmma.e4m3", OperandFormat::e4m3, 32, 13, 13, -133, false,
                          Evidence::measured, probed},
    TensorCoreInstruction{"hopper.mma.bf16", OperandFormat::bf16, 16, 25, 23, -133, false, Evidence::measured,
                          probed},
    TensorCoreInstruction{"hopper.mma.f16", OperandFormat::f16, 16, 25, 23, -133, false, Evidence::measured,
                          probed},
    TensorCoreInstruction{"hopper.mma.tf32", OperandFormat::tf32, 8, 25, 23, -133, false, Evidence::measured,
                          probed},
    TensorCoreInstruction{"hopper.mma.e4m3", OperandFormat::e4m3, 16, 25, 23, -133, true, Evidence::measured,
                          probed},
    TensorCoreInstruction{"ampere.mma.bf16", OperandFormat::bf16, 8, 24, 23, -132, false,
                          Evidence::literature, mma_sim},
    TensorCoreInstruction{"ampere.mma.f16", OperandFormat::f16, 8, 24, 23, -132, false, Evidence::literature,
                          mma_sim},
    TensorCoreInstruction{"ampere.mma.tf32", OperandFormat::tf32, 4, 24, 23, -132, false,
                          Evidence::literature, mma_sim},
    TensorCoreInstruction{"ada.mma.bf16", OperandFormat::bf16, 8, 24, 23, -132, false, Evidence::literature,
                          mma_sim},
    TensorCoreInstruction{"ada.mma.f16", OperandFormat::f16, 8, 24, 23, -132, false, Evidence::literature,
                          mma_sim},
    TensorCoreInstruction{"ada.mma.tf32", OperandFormat::tf32, 4, 24, 23, -132, false, Evidence::literature,
                          mma_sim},
    TensorCoreInstruction{"ada.mma.e4m3", OperandFormat::e4m3, 16, 13, 13, -132, false, Evidence::literature,
                          mma_sim},
    TensorCoreInstruction{"blackwell.tcgen05.e4m3", OperandFormat::e4m3, 32, 25, 23, -133, false,
                          Evidence::literature, blackwell_source},
};

/// A number as the adder sees it: value = significand * 2^(exponent - bits), not renormalised.
struct Term {
    int64_t significand;
    int exponent;
    int bits;  ///< fraction bits of the significand
};

Term product_term(TensorCoreOperand a, TensorCoreOperand b) {
    constexpr int bits = 2 * TensorCoreOperand::fraction_bits;
    return {int64_t{a.significand} * b.significand, a.exponent + b.exponent, bits};
}

Term accumulator_term(float c) {
    const uint32_t bits = float_bits(c);
    const int field = static_cast<int>(bits >> 23 & 0xFF);
    const int64_t mantissa = bits & 0x7FFFFF;
    const int64_t significand = field == 0 ? mantissa : mantissa | 0x800000;
    return {bits >> 31 ? -significand : significand, std::max(field, 1) - 127, 23};
}

/// The term as a multiple of 2^(largest - F), truncated toward zero.
int64_t aligned(Term term, int largest, int fraction_bits) {
    const int left = term.exponent - term.bits - (largest - fraction_bits);
    if (left >= 0) return term.significand * (int64_t{1} << left);
    const int64_t magnitude = left < -62 ? 0 : std::abs(term.significand) >> -left;
    return term.significand < 0 ? -magnitude : magnitude;
}

/// sum * 2^exponent as fp32 with `kept` fraction bits, truncated toward zero; infinity from 2^128 on, which
/// the hardware gives in spite of truncation. Below 2^-126 the same bits of the subnormal are cleared.
float truncated_float(int64_t sum, int exponent, int kept) {
    if (sum == 0) return 0.0f;
    const uint32_t sign = sum < 0 ? 0x80000000u : 0;
    uint64_t magnitude = static_cast<uint64_t>(std::abs(sum));
    const int leading = 63 - __builtin_clzll(magnitude) + exponent;  // of 2^leading
    if (leading > 127) return float_from_bits(sign | 0x7F800000);
    const int unit = std::max(leading, -126) - 23;  // the value of the result's last bit is 2^unit
    const int right = unit - exponent;
    if (right > 63) return 0.0f;
    magnitude = right >= 0 ? magnitude >> right : magnitude << -right;
    magnitude &= ~((uint64_t{1} << (23 - kept)) - 1);
    if (magnitude == 0) return 0.0f;
    const uint32_t field = magnitude >> 23 ? static_cast<uint32_t>(unit + 23 + 127) : 0;
    return float_from_bits(sign | field << 23 | (static_cast<uint32_t>(magnitude) & 0x7FFFFF));
}

/// What infinities and NaNs decide before any sum: the result, or no value.
struct SpecialSum {
    bool decided;
    float value;
};

SpecialSum special_sum(const TensorCoreOperand* a, const TensorCoreOperand* b, int count, float c) {
    bool nan = is_nan(c), positive = float_bits(c) == 0x7F800000, negative = float_bits(c) == 0xFF800000;
    for (int i = 0; i < count; ++i) {
        if (!a[i].is_special() && !b[i].is_special()) continue;
        // inf * 0 is a NaN like any other; both significands of infinities carry their sign.
        nan |= a[i].is_nan() || b[i].is_nan() || a[i].significand == 0 || b[i].significand == 0;
        const bool is_negative = (a[i].significand < 0) != (b[i].significand < 0);
        (is_negative ? negative : positive) = true;
    }
    if (nan || (positive && negative)) return {true, float_from_bits(canonical_nan_bits)};
    if (positive || negative) return {true, float_from_bits(positive ? 0x7F800000 : 0xFF800000)};
    return {false, 0.0f};
}

TensorCoreOperand decoded(OperandFormat format, uint32_t bits) {
    const float value = operand_value(format, bits);
    return operand_from_float(value, operand_exponent(value, smallest_exponent(format)));
}

TensorCoreOperand f16_operand(float value) {
    return operand_from_float(value, operand_exponent(value, smallest_exponent(OperandFormat::f16)));
}

/// fp8 mma.sync on sm_90a: elements become f16, whose exponents reach lower than e4m3's; (k / 2) even goes
/// first.
float emulated_fp8_step(const TensorCoreInstruction& instruction, const uint32_t* a, const uint32_t* b,
                        float c) {
    constexpr int half = 16;
    float sum = 0.0f;
    for (int parity = 0; parity < 2; ++parity) {
        TensorCoreOperand left[half], right[half];
        for (int i = 0; i < half; ++i) {
            const int k = 4 * (i / 2) + 2 * parity + i % 2;
            left[i] = f16_operand(to_float(E4m3{static_cast<uint8_t>(a[k])}));
            right[i] = f16_operand(to_float(E4m3{static_cast<uint8_t>(b[k])}));
        }
        sum = tensor_core_step(instruction, left, right, sum);
    }
    return with_canonical_nan(sum + c);
}

uint32_t element_bits(OperandFormat format, const std::byte* data, int64_t i) {
    switch (operand_bytes(format)) {
        case 1: return static_cast<uint32_t>(data[i]);
        case 2: return static_cast<uint32_t>(data[2 * i]) | static_cast<uint32_t>(data[2 * i + 1]) << 8;
        default: {
            uint32_t bits;
            std::memcpy(&bits, data + 4 * i, 4);
            return bits;
        }
    }
}

void check_gemm(const TensorCoreInstruction& instruction, OperandRows a, OperandRows b,
                std::span<const float> c, std::span<float> d) {
    const auto fail = [&](std::string what, std::string expected) {
        throw UserError({std::move(what), fmt::format("tensor_core_gemm, {}", instruction.name),
                         std::move(expected), "pass operands of matching shapes"});
    };
    if (a.rows < 0 || b.rows < 0 || a.k < 0 || a.k != b.k)
        fail(fmt::format("a is [{}, {}], b is [{}, {}]", a.rows, a.k, b.rows, b.k), "the same k in both");
    if (a.k % instruction.k() != 0)
        fail(fmt::format("k is {}", a.k), fmt::format("a multiple of {}", instruction.k()));
    const size_t outputs = static_cast<size_t>(a.rows) * static_cast<size_t>(b.rows);
    if (d.size() != outputs || (!c.empty() && c.size() != outputs))
        fail(fmt::format("c has {} and d has {} values", c.size(), d.size()),
             fmt::format("{} each, or none in c", outputs));
}

/// All elements as fp32 values, which every format fits.
std::vector<float> values_of(OperandFormat format, OperandRows rows) {
    const int64_t count = rows.rows * rows.k;
    std::vector<float> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
        values[static_cast<size_t>(i)] = operand_value(format, element_bits(format, rows.data, i));
    return values;
}

/// Rows of stored operands as a panel source.
class OperandPanels final : public PanelSource {
  public:
    OperandPanels(OperandFormat format, OperandRows rows) : format_(format), rows_(rows) {}
    void pack(int64_t first_row, int64_t columns, int64_t first_k, int64_t count,
              float* values) const override {
        for (int64_t column = 0; column < columns; ++column) {
            const int64_t start = (first_row + column) * rows_.k + first_k;
            for (int64_t k = 0; k < count; ++k)
                values[k * panel_columns + column] =
                    operand_value(format_, element_bits(format_, rows_.data, start + k));
        }
    }

  private:
    OperandFormat format_;
    OperandRows rows_;
};

}  // namespace

int64_t operand_bytes(OperandFormat format) {
    constexpr std::array<int64_t, 4> bytes{2, 2, 4, 1};
    return bytes.at(static_cast<size_t>(format));
}

int smallest_exponent(OperandFormat format) {
    constexpr std::array exponents{-126, -14, -126, -6};
    return exponents.at(static_cast<size_t>(format));
}

float operand_value(OperandFormat format, uint32_t bits) {
    switch (format) {
        case OperandFormat::bf16: return to_float(Bf16{static_cast<uint16_t>(bits)});
        case OperandFormat::f16: return float_from_fp16_bits(bits);
        case OperandFormat::tf32: return float_from_bits(bits & ~0x1FFFu);
        case OperandFormat::e4m3: return to_float(E4m3{static_cast<uint8_t>(bits)});
    }
    return 0;
}

std::span<const TensorCoreInstruction> tensor_core_instructions() {
    return instructions;
}

const TensorCoreInstruction& tensor_core_instruction(std::string_view name) {
    std::vector<std::string> names;
    for (const TensorCoreInstruction& instruction : instructions) {
        if (instruction.name == name) return instruction;
        names.emplace_back(instruction.name);
    }
    const std::string near = did_you_mean(std::string(name), names);
    throw UserError({fmt::format("unknown tensor-core instruction \"{}\"", name), "",
                     fmt::format("{}", fmt::join(names, ", ")),
                     near.empty() ? "choose one of these" : fmt::format("did you mean \"{}\"?", near)});
}

// Steps 1 to 4 of the numerics contract, section 5.
float tensor_core_step(const TensorCoreInstruction& instruction, const TensorCoreOperand* a,
                       const TensorCoreOperand* b, float c) {
    const int count = instruction.products;
    const SpecialSum special = special_sum(a, b, count, c);
    if (special.decided) return special.value;

    // 1, 2: exact products that are not renormalised, and the accumulator as one more term.
    constexpr int most_products = 32;
    Term terms[most_products + 1];
    for (int i = 0; i < count; ++i) terms[i] = product_term(a[i], b[i]);
    terms[count] = accumulator_term(c);

    // 3: everything becomes a multiple of one unit, truncated toward zero.
    // A zero term stands for its small exponent; without one the accumulator's, never below -126, is larger
    // anyway.
    int largest = instruction.zero_exponent;
    for (int i = 0; i <= count; ++i)
        if (terms[i].significand != 0) largest = std::max(largest, terms[i].exponent);
    int64_t sum = 0;
    for (int i = 0; i <= count; ++i) sum += aligned(terms[i], largest, instruction.fraction_bits);

    // 4: the exact sum, truncated to the output.
    return truncated_float(sum, largest - instruction.fraction_bits, instruction.output_fraction_bits);
}

float tensor_core_step(const TensorCoreInstruction& instruction, const uint32_t* a, const uint32_t* b,
                       float c) {
    if (instruction.emulated_fp8) return emulated_fp8_step(instruction, a, b, c);
    TensorCoreOperand left[32], right[32];
    for (int i = 0; i < instruction.products; ++i) {
        left[i] = decoded(instruction.format, a[i]);
        right[i] = decoded(instruction.format, b[i]);
    }
    return tensor_core_step(instruction, left, right, c);
}

void tensor_core_gemm(const TensorCoreInstruction& instruction, OperandRows a, OperandRows b,
                      std::span<const float> c, std::span<float> d, Isa isa) {
    check_gemm(instruction, a, b, c, d);
    const KPiece whole{0, a.k};
    chain_gemm(instruction, values_of(instruction.format, a), a.rows, OperandPanels(instruction.format, b),
               b.rows, a.k, {&whole, 1}, c, d, isa);
}

void tensor_core_gemm_by_definition(const TensorCoreInstruction& instruction, OperandRows a, OperandRows b,
                                    std::span<const float> c, std::span<float> d) {
    check_gemm(instruction, a, b, c, d);
    const int step = instruction.k();
    uint32_t left[32], right[32];
    for (int64_t m = 0; m < a.rows; ++m) {
        for (int64_t n = 0; n < b.rows; ++n) {
            const size_t at = static_cast<size_t>(m * b.rows + n);
            float accumulator = c.empty() ? 0.0f : c[at];
            for (int64_t k = 0; k < a.k; k += step) {
                for (int i = 0; i < step; ++i) {
                    left[i] = element_bits(instruction.format, a.data, m * a.k + k + i);
                    right[i] = element_bits(instruction.format, b.data, n * b.k + k + i);
                }
                accumulator = tensor_core_step(instruction, left, right, accumulator);
            }
            d[at] = accumulator;
        }
    }
}

}  // namespace touchstone
