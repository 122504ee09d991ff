#include "reference/numerics/tensor_core.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/random.h"
#include "reference/numerics/small_float.h"

using namespace touchstone;

namespace {

/// Operands of one step as values; the rest are +0.
struct Step {
    std::vector<double> a, b;
    uint32_t c = 0;
};

uint32_t encoded(OperandFormat format, double value) {
    const float x = static_cast<float>(value);
    switch (format) {
        case OperandFormat::bf16: return bf16_from_float(x).bits;
        case OperandFormat::tf32: return float_bits(x);
        case OperandFormat::e4m3: return e4m3_from_float_overflow_to_nan(x).bits;
        case OperandFormat::f16: {
            if (std::isnan(x)) return 0x7E00;
            // Every value used here is a short normal number, so a search by value is exact.
            for (uint32_t bits = 0; bits < 0x10000; ++bits)
                if (float_bits(float_from_fp16_bits(bits)) == float_bits(x)) return bits;
            FAIL("not an f16 value: ", value);
        }
    }
    return 0;
}

uint32_t result_bits(const TensorCoreInstruction& instruction, const Step& step) {
    std::vector<uint32_t> a(static_cast<size_t>(instruction.k())), b(a);
    for (size_t i = 0; i < step.a.size(); ++i) a.at(i) = encoded(instruction.format, step.a[i]);
    for (size_t i = 0; i < step.b.size(); ++i) b.at(i) = encoded(instruction.format, step.b[i]);
    return float_bits(tensor_core_step(instruction, a.data(), b.data(), float_from_bits(step.c)));
}

constexpr double inf = INFINITY;

/// Results that an H200 gave for these operands, the same for every instruction with 23 output bits.
struct DeviceResult {
    const char* what;
    Step step;
    uint32_t result;
};

const std::vector<DeviceResult>& device_results() {
    static const std::vector<DeviceResult> results{
        {"1 * 1", {{1}, {1}}, 0x3F800000},
        {"all terms -0", {{-0.0}, {1}, 0x80000000}, 0},
        {"C -0, all products +0", {{}, {}, 0x80000000}, 0},
        {"1 - 1", {{1, -1}, {1, 1}}, 0},
        {"C largest finite", {{}, {}, 0x7F7FFFFF}, 0x7F7FFFFF},
        {"C largest finite + 64", {{1}, {64}, 0x7F7FFFFF}, 0x7F7FFFFF},
        {"C -largest finite - 64", {{-1}, {64}, 0xFF7FFFFF}, 0xFF7FFFFF},
        {"C infinite", {{1}, {1}, 0x7F800000}, 0x7F800000},
        {"C -infinite", {{1}, {1}, 0xFF800000}, 0xFF800000},
        {"C NaN with payload", {{1}, {1}, 0x7F812345}, 0x7FFFFFFF},
        {"C -NaN", {{1}, {1}, 0xFFC00000}, 0x7FFFFFFF},
        {"C smallest subnormal", {{}, {}, 1}, 1},
        {"C largest subnormal", {{}, {}, 0x007FFFFF}, 0x007FFFFF},
        {"C below 2", {{}, {}, 0x3FFFFFFF}, 0x3FFFFFFF},
        {"C below 2, + 2^-14", {{1}, {0x1p-14}, 0x3FFFFFFF}, 0x400000FF},
        {"infinite * 1", {{inf}, {1}}, 0x7F800000},
        {"infinite * 0", {{inf}, {0}}, 0x7FFFFFFF},
        {"infinite - infinite", {{inf, -inf}, {1, 1}}, 0x7FFFFFFF},
        {"-infinite * 1", {{-inf}, {1}}, 0xFF800000},
        {"infinite * 1, C -infinite", {{inf}, {1}, 0xFF800000}, 0x7FFFFFFF},
    };
    return results;
}

/// The same for operands with the exponents of fp32.
const std::vector<DeviceResult>& wide_device_results() {
    static const std::vector<DeviceResult> results{
        {"2^127", {{0x1p64}, {0x1p63}}, 0x7F000000},
        {"2^128", {{0x1p64}, {0x1p64}}, 0x7F800000},
        {"2^127 + 2^127", {{0x1p64, 0x1p64}, {0x1p63, 0x1p63}}, 0x7F800000},
        {"2^127 + C below 2^127", {{0x1p64}, {0x1p63}, 0x7EFFFFFF}, 0x7F7FFFFF},
        {"2^254", {{0x1p127}, {0x1p127}}, 0x7F800000},
        {"2^254 - 2^254", {{0x1p127, -0x1p127}, {0x1p127, 0x1p127}}, 0},
        {"2^128 - 2^128 + 1", {{0x1p64, -0x1p64, 1}, {0x1p64, 0x1p64, 1}}, 0},
        {"2^128 - 2^127", {{0x1p64, -0x1p64}, {0x1p64, 0x1p63}}, 0x7F000000},
        {"-2^128", {{-0x1p64}, {0x1p64}}, 0xFF800000},
        {"2^128, C -largest finite", {{0x1p64}, {0x1p64}, 0xFF7FFFFF}, 0x73800000},
        {"2^128, C -2^127", {{0x1p64}, {0x1p64}, 0xFF000000}, 0x7F000000},
        {"2.25 * 2^127", {{0x1.8p64}, {0x1.8p63}}, 0x7F800000},
        {"2.25 * 2^127 - 2^127", {{0x1.8p64, -0x1p64}, {0x1.8p63, 0x1p63}}, 0x7F200000},
        {"2^128, C -infinite", {{0x1p64}, {0x1p64}, 0xFF800000}, 0xFF800000},
        {"2^-150", {{0x1p-75}, {0x1p-75}}, 0},
        {"2^-149", {{0x1p-75}, {0x1p-74}}, 1},
        {"1.5 * 2^-149", {{0x1p-75}, {0x1.8p-74}}, 1},
        {"-1.5 * 2^-149", {{-0x1p-75}, {0x1.8p-74}}, 0x80000001},
        {"-2^-150", {{-0x1p-75}, {0x1p-75}}, 0},
        {"a subnormal operand", {{0x1p-133}, {1}}, 0x00010000},
        {"a subnormal operand of two bits", {{0x1.8p-132}, {0x1p100}}, 0x2FC00000},
        // 2^-150 - 2^-158, 2^-150 and 2^-158: exactly 2^-149 as long as the unit is no larger than 2^-158.
        {"zero terms, unit 2^-158", {{0xFFp-83, 0x1p-75, 0x1p-75}, {0x1p-75, 0x1p-75, 0x1p-83}}, 1},
        // 2^-160 in place of 2^-158 is lost: a zero term keeps the unit at 2^(-133 - 25).
        {"zero terms, below the unit", {{0x1.Fp-76, 0x1p-75, 0x1p-75}, {0x1.08p-75, 0x1p-75, 0x1p-85}}, 0},
    };
    return results;
}

/// The value that C or a product may take in the fp8 accumulators of wgmma.
const std::vector<DeviceResult>& fp8_device_results() {
    static const std::vector<DeviceResult> results{
        {"C largest finite", {{}, {}, 0x7F7FFFFF}, 0x7F7FFC00},
        {"C -largest finite - 64", {{-1}, {64}, 0xFF7FFFFF}, 0xFF7FFC00},
        {"C smallest subnormal", {{}, {}, 1}, 0},
        {"C largest subnormal", {{}, {}, 0x007FFFFF}, 0x007FFC00},
        {"C subnormal 2^-139", {{}, {}, 0x00000400}, 0x00000400},
        {"C subnormal 2^-140", {{}, {}, 0x00000200}, 0},
        {"C -subnormal 2^-140", {{}, {}, 0x80000200}, 0},
        {"C above 2^-126", {{}, {}, 0x00800001}, 0x00800000},
        {"C below 2", {{}, {}, 0x3FFFFFFF}, 0x3FFFFC00},
        {"C below 2, + 2^-9", {{1}, {0x1p-9}, 0x3FFFFFFF}, 0x40001C00},
        {"1 + 2^-13, C 1", {{1}, {1}, 0x3F800000 | 1 << 9}, 0x40000000},
        {"C 1 + 2^-13", {{}, {}, 0x3F800000 | 1 << 10}, 0x3F800400},
        {"C 1 + 2^-14", {{}, {}, 0x3F800000 | 1 << 9}, 0x3F800000},
        {"NaN * 1", {{NAN}, {1}}, 0x7FFFFFFF},
        {"NaN * 0", {{NAN}, {0}}, 0x7FFFFFFF},
        {"NaN, C infinite", {{NAN}, {1}, 0x7F800000}, 0x7FFFFFFF},
        {"C infinite", {{1}, {1}, 0x7F800000}, 0x7F800000},
    };
    return results;
}

void check_results(std::string_view name, const std::vector<DeviceResult>& results) {
    const TensorCoreInstruction& instruction = tensor_core_instruction(name);
    for (const DeviceResult& expected : results) {
        const std::string shown = fmt::format("{}: {}: {:08x}, the device gave {:08x}", name, expected.what,
                                              result_bits(instruction, expected.step), expected.result);
        INFO(shown);
        CHECK(result_bits(instruction, expected.step) == expected.result);
    }
}

/// What operands and accumulators look like; exponents are drawn from [-spread, spread] around the middle.
struct Inputs {
    const char* name;
    int spread;
    int zero_percent, special_percent;
    int c_exponent;  ///< C near 2^c_exponent times a product; -1000: zero
};

constexpr std::array input_kinds{
    Inputs{"narrow, C zero", 1, 0, 0, -1000},
    Inputs{"narrow, C similar", 1, 0, 0, 3},
    Inputs{"wide, C low bits", 14, 10, 0, 0},
    Inputs{"C dominant", 3, 5, 0, 18},
    Inputs{"all exponents", 140, 5, 0, 0},
    Inputs{"all exponents, C huge", 140, 30, 0, 110},
    Inputs{"all exponents, C tiny", 140, 30, 0, -130},
    Inputs{"infinities and NaNs", 30, 20, 2, 0},
    Inputs{"mostly zero", 100, 90, 0, -1000},
};

uint32_t random_operand(OperandFormat format, const Inputs& inputs, const RandomStream& random, uint64_t i) {
    const PhiloxBlock block = random.block(i);
    if (block.words[0] % 100 < static_cast<uint32_t>(inputs.zero_percent)) return 0;
    if (block.words[1] % 100 < static_cast<uint32_t>(inputs.special_percent))
        return encoded(format, block.words[1] % 200 < 100 ? NAN : format == OperandFormat::e4m3 ? NAN : -inf);
    const uint32_t span = static_cast<uint32_t>(2 * inputs.spread + 1);
    const int exponent = static_cast<int>(block.words[2] % span) - inputs.spread;
    const float value = std::ldexp(1.0f + static_cast<float>(block.words[3] >> 9) * 0x1p-23f, exponent);
    const float signed_value = block.words[3] & 1 ? -value : value;
    switch (format) {
        case OperandFormat::bf16: return bf16_from_float(signed_value).bits;
        case OperandFormat::tf32: return float_bits(signed_value);
        case OperandFormat::e4m3: return e4m3_from_float_saturating(signed_value).bits;
        // Any finite f16 of the wanted exponent, subnormals at the low end.
        case OperandFormat::f16: {
            const uint32_t field = static_cast<uint32_t>(std::clamp(exponent + 15, 0, 30));
            return (block.words[3] & 1) << 15 | field << 10 | (block.words[3] >> 9 & 0x3FF);
        }
    }
    return 0;
}

std::vector<std::byte> random_operands(OperandFormat format, const Inputs& inputs, int64_t count,
                                       uint64_t stream) {
    const RandomStream random{20261129, stream};
    const int64_t size = operand_bytes(format);
    std::vector<std::byte> bytes(static_cast<size_t>(count * size));
    for (int64_t i = 0; i < count; ++i) {
        const uint32_t bits = random_operand(format, inputs, random, static_cast<uint64_t>(i));
        for (int64_t byte = 0; byte < size; ++byte)
            bytes[static_cast<size_t>(i * size + byte)] = static_cast<std::byte>(bits >> (8 * byte));
    }
    return bytes;
}

std::vector<float> random_accumulators(const Inputs& inputs, int64_t count) {
    const RandomStream random{20261129, 3};
    std::vector<float> c(static_cast<size_t>(count));
    if (inputs.c_exponent == -1000) return c;
    for (int64_t i = 0; i < count; ++i) {
        const PhiloxBlock block = random.block(static_cast<uint64_t>(i));
        const int exponent = inputs.c_exponent + static_cast<int>(block.words[0] % 9) - 4;
        const float value = std::ldexp(1.0f + static_cast<float>(block.words[1] >> 9) * 0x1p-23f, exponent);
        c[static_cast<size_t>(i)] = block.words[1] & 1 ? -value : value;
    }
    if (inputs.special_percent > 0) c[1] = float_from_bits(0x7F800000), c[2] = float_from_bits(0xFFC12345);
    return c;
}

struct Difference {
    int64_t count = 0;
    std::string first;
};

Difference differences(std::span<const float> left, std::span<const float> right) {
    Difference result;
    for (size_t i = 0; i < left.size(); ++i) {
        if (float_bits(left[i]) == float_bits(right[i])) continue;
        if (result.count++ == 0)
            result.first =
                fmt::format("output {}: {:08x} and {:08x}", i, float_bits(left[i]), float_bits(right[i]));
    }
    return result;
}

}  // namespace

TEST_CASE("tensor_core: special values are those of an H200 (fp32 accumulators)") {
    for (const char* name : {"hopper.mma.bf16", "hopper.wgmma.bf16", "hopper.mma.tf32"}) {
        check_results(name, device_results());
        check_results(name, wide_device_results());
    }
    check_results("hopper.mma.f16", device_results());
}

TEST_CASE("tensor_core: special values are those of an H200 (fp8 accumulators of wgmma)") {
    check_results("hopper.wgmma.e4m3", fp8_device_results());
}

TEST_CASE("tensor_core: emulated fp8 mma adds C by an ordinary addition (device results)") {
    check_results("hopper.mma.e4m3", {{"C below 2, + 2^-9", {{1}, {0x1p-9}, 0x3FFFFFFF}, 0x40002000},
                                      {"C smallest subnormal", {{}, {}, 1}, 1},
                                      {"C -0", {{}, {}, 0x80000000}, 0},
                                      {"C largest finite + 64", {{1}, {64}, 0x7F7FFFFF}, 0x7F7FFFFF},
                                      {"NaN * 0", {{NAN}, {0}}, 0x7FFFFFFF}});
}

TEST_CASE("tensor_core: the sum that tells architectures apart (2^23 - 2^23 - 0.5 - 0.25 - 0.125)") {
    // gpu_anchors 3b: 0 on Volta, -0.5 on Ampere, -0.75 on Hopper's f16 and bf16; fp8 sees nothing below
    // 2^10.
    const Step step{{0x1p12, -0x1p12, -1, -1, -1}, {0x1p11, 0x1p11, 0.5, 0.25, 0.125}};
    CHECK(result_bits(tensor_core_instruction("hopper.wgmma.bf16"), step) == float_bits(-0.75f));
    CHECK(result_bits(tensor_core_instruction("hopper.mma.f16"), step) == float_bits(-0.75f));
    CHECK(result_bits(tensor_core_instruction("ampere.mma.bf16"), step) == float_bits(-0.5f));
    const Step fp8{{448, -448, -1, -1}, {448, 448, 0.5, 4}};  // 448^2 = 3.06 * 2^16: the unit is 2^3
    CHECK(result_bits(tensor_core_instruction("hopper.wgmma.e4m3"), fp8) == 0);
    CHECK(result_bits(tensor_core_instruction("blackwell.tcgen05.e4m3"), fp8) == float_bits(-4.5f));
}

TEST_CASE(
    "tensor_core: the fast form equals the definition (every instruction, input kind and instruction set)") {
    constexpr int64_t rows = 67, columns = 37;  // more than a tile of rows, a panel that is not full
    for (const TensorCoreInstruction& instruction : tensor_core_instructions()) {
        const int64_t k = 3 * instruction.k();
        for (const Inputs& inputs : input_kinds) {
            const auto a = random_operands(instruction.format, inputs, rows * k, 1);
            const auto b = random_operands(instruction.format, inputs, columns * k, 2);
            const OperandRows a_rows{a.data(), rows, k}, b_rows{b.data(), columns, k};
            const std::vector<float> c = random_accumulators(inputs, rows * columns);
            std::vector<float> expected(c.size()), fast(c.size());
            tensor_core_gemm_by_definition(instruction, a_rows, b_rows, c, expected);
            for (Isa isa : compiled_isas()) {
                if (!isa_supported(isa)) continue;
                tensor_core_gemm(instruction, a_rows, b_rows, c, fast, isa);
                const Difference difference = differences(expected, fast);
                const std::string shown = fmt::format("{}, {}, {}: {}", instruction.name, inputs.name,
                                                      isa_name(isa), difference.first);
                INFO(shown);
                CHECK(difference.count == 0);
            }
        }
    }
}

TEST_CASE("tensor_core: sums that leave int32 (sixteen largest products and C)") {
    const TensorCoreInstruction& instruction = tensor_core_instruction("hopper.wgmma.bf16");
    const std::vector<uint16_t> a(16, 0x3FFF);  // 1.992: products just under 4, with exponent 0 as C has
    std::vector<uint16_t> b(16 * 4, 0x3FFF);
    std::fill(b.begin() + 32, b.end(), uint16_t{0xBFFF});
    const std::vector<float> c{1.99f, -1.99f, 1.99f, -1.99f};
    std::vector<float> expected(4), fast(4);
    const OperandRows a_rows = OperandRows::of(std::span(a), 1, 16),
                      b_rows = OperandRows::of(std::span<const uint16_t>(b), 4, 16);
    tensor_core_gemm_by_definition(instruction, a_rows, b_rows, c, expected);
    for (Isa isa : compiled_isas()) {
        if (!isa_supported(isa)) continue;
        tensor_core_gemm(instruction, a_rows, b_rows, c, fast, isa);
        CHECK(differences(expected, fast).count == 0);
    }
    CHECK(expected[0] == doctest::Approx(16 * 1.9921875 * 1.9921875 + 1.99));
    CHECK(expected[3] == -expected[0]);
}

TEST_CASE("tensor_core: a row's bits do not depend on the other rows or columns") {
    const TensorCoreInstruction& instruction = tensor_core_instruction("hopper.wgmma.bf16");
    constexpr int64_t rows = 130, columns = 50, k = 320;
    const Inputs inputs = input_kinds[2];
    const auto a = random_operands(instruction.format, inputs, rows * k, 5);
    const auto b = random_operands(instruction.format, inputs, columns * k, 6);
    std::vector<float> whole(rows * columns);
    tensor_core_gemm(instruction, {a.data(), rows, k}, {b.data(), columns, k}, {}, whole);
    for (int64_t row : {0, 1, 63, 64, 129}) {
        for (int64_t column : {0, 15, 16, 49}) {
            float alone = 0;
            tensor_core_gemm(instruction, {a.data() + row * k * 2, 1, k}, {b.data() + column * k * 2, 1, k},
                             {}, {&alone, 1});
            CAPTURE(row);
            CAPTURE(column);
            CHECK(float_bits(alone) == float_bits(whole[static_cast<size_t>(row * columns + column)]));
        }
    }
}

TEST_CASE("tensor_core: bad use is refused with the shapes named") {
    const TensorCoreInstruction& instruction = tensor_core_instruction("hopper.wgmma.bf16");
    const std::vector<uint16_t> operands(48);
    std::vector<float> d(1);
    const auto rows = [&](int64_t k) { return OperandRows::of(std::span(operands), 1, k); };
    CHECK_THROWS_AS(tensor_core_gemm(instruction, rows(24), rows(24), {}, d), UserError);
    CHECK_THROWS_AS(tensor_core_gemm(instruction, rows(16), rows(32), {}, d), UserError);
    CHECK_THROWS_AS(tensor_core_gemm(instruction, rows(16), rows(16), {}, {}), UserError);
    CHECK_THROWS_WITH_AS(tensor_core_instruction("hopper.wgmma.bf61"), doctest::Contains("hopper.wgmma.bf16"),
                         UserError);
}
