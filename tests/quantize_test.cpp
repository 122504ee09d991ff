#include "reference/quantize.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "reference/io/user_error.h"
#include "tests/quantize_cases.h"

using namespace touchstone;

namespace {

// ---- A slow oracle in double, which shares nothing with the code under test: values from the formats'
// definitions,
// ---- rounding by search among them, scales by log2 and ceil.

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

double bf16_value(uint16_t bits) {
    const double sign = bits >> 15 ? -1 : 1;
    const int exponent = (bits >> 7) & 0xFF, mantissa = bits & 0x7F;
    if (exponent == 255) return mantissa ? nan_value : sign * infinity;
    return sign * (exponent == 0 ? std::ldexp(mantissa, -133) : std::ldexp(128 + mantissa, exponent - 134));
}

double e4m3_value(int code) {
    const double sign = code & 0x80 ? -1 : 1;
    const int exponent = (code >> 3) & 15, mantissa = code & 7;
    if (exponent == 15 && mantissa == 7) return nan_value;
    return sign * (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
}

double e2m1_value(int code) {
    constexpr std::array<double, 8> magnitudes{0, 0.5, 1, 1.5, 2, 3, 4, 6};
    return (code & 8 ? -1 : 1) * magnitudes[size_t(code & 7)];
}

double e8m0_value(int byte) {
    return byte == 255 ? nan_value : std::ldexp(1, byte - 127);
}

/// Nearest of the ascending magnitudes whose code is their index, ties to the even code, saturating.
int nearest_code(double magnitude, const std::vector<double>& magnitudes) {
    const auto above = std::upper_bound(magnitudes.begin(), magnitudes.end(), magnitude);
    if (above == magnitudes.end()) return int(magnitudes.size()) - 1;
    const int high = int(above - magnitudes.begin()), low = high - 1;
    const double down = magnitude - magnitudes[size_t(low)], up = magnitudes[size_t(high)] - magnitude;
    if (down == up) return low % 2 == 0 ? low : high;
    return down < up ? low : high;
}

int oracle_code(KvElement element, double x) {
    static const auto magnitudes = [](int count, double (*value)(int)) {
        std::vector<double> result;
        for (int code = 0; code < count; ++code) result.push_back(value(code));
        return result;
    };
    static const std::vector<double> e4m3 = magnitudes(127, e4m3_value), e2m1 = magnitudes(8, e2m1_value);
    if (std::isnan(x)) return 0x7F;  // only e4m3 gets here
    const int sign = std::signbit(x) ? (element == KvElement::fp4_e2m1 ? 8 : 0x80) : 0;
    return sign | nearest_code(std::fabs(x), element == KvElement::fp4_e2m1 ? e2m1 : e4m3);
}

/// One fp32 rounding of an exact or correctly rounded double result; infinities stay.
double fl32(double x) {
    return double(float(x));
}

struct OracleBlock {
    double scale;
    uint32_t scale_bits;
    std::vector<int> codes;
};

/// The written rule of a quantiser on one block, policy for special values included.
OracleBlock oracle_block(Quantizer quantizer, const std::vector<double>& x) {
    double amax = 0;
    bool has_nan = false;
    for (const double v : x) {
        has_nan |= std::isnan(v);
        if (!std::isnan(v)) amax = std::max(amax, std::fabs(v));
    }
    const double floor_1e4 = fl32(1e-4), c8 = fl32(1.0 / 448), c4 = fl32(1.0 / 6);
    double q = 0;
    bool power_of_two = true, by_reciprocal = false;
    KvElement element = KvElement::fp8_e4m3;
    KvScale scale = KvScale::e8m0;
    switch (quantizer) {
        case Quantizer::q8: q = fl32(std::max(amax, floor_1e4) * c8); break;
        case Quantizer::q4i:
            element = KvElement::fp4_e2m1;
            q = fl32(std::max(amax, 6 * std::ldexp(1, -126)) * c4);
            break;
        case Quantizer::q4m:
            element = KvElement::fp4_e2m1;
            scale = KvScale::e4m3;
            q = fl32(std::max(amax, 6 * std::ldexp(1, -9)) / 6);
            break;
        case Quantizer::flashmla_v41:
        case Quantizer::flashmla_v4: q = std::max(fl32(amax / 448), floor_1e4); break;
        case Quantizer::vllm_v4: q = fl32(std::max(amax, floor_1e4) / 448); break;
        case Quantizer::flashmla_v32:
            scale = KvScale::fp32;
            q = std::max(fl32(amax / 448), floor_1e4);
            break;
        case Quantizer::vllm_v32:
            scale = KvScale::fp32;
            power_of_two = false;
            q = std::max(fl32(amax / 448), double(std::numeric_limits<float>::min()));
            break;
        case Quantizer::deepgemm_index_key: by_reciprocal = true; [[fallthrough]];
        case Quantizer::vllm_index_key: power_of_two = false; [[fallthrough]];
        case Quantizer::vllm_index_key_power_of_two:
            scale = KvScale::fp32;
            q = fl32(std::max(amax, floor_1e4) / 448);
            break;
        case Quantizer::copy: REQUIRE(false); break;
    }

    OracleBlock block{};
    const bool fp4 = element == KvElement::fp4_e2m1;
    if (scale == KvScale::e4m3) {
        block.scale_bits = fp4 && has_nan ? 0x7F : uint32_t(oracle_code(KvElement::fp8_e4m3, q));
        block.scale = e4m3_value(int(block.scale_bits));
    } else {
        if (power_of_two && std::isfinite(q)) q = std::exp2(std::ceil(std::log2(q)));
        const bool no_scale = scale == KvScale::e8m0 && (std::isinf(q) || (fp4 && has_nan));
        block.scale = no_scale ? nan_value : q;
        block.scale_bits = no_scale                 ? 255
                           : scale == KvScale::e8m0 ? uint32_t(std::lround(std::log2(q))) + 127
                                                    : float_bits(float(q));
    }
    for (const double v : x) {
        const double scaled = by_reciprocal ? fl32(v * fl32(1 / block.scale)) : fl32(v / block.scale);
        block.codes.push_back(fp4 && std::isnan(block.scale) ? 0 : oracle_code(element, scaled));
    }
    return block;
}

// ---- Small records of one block each, so that a page is a list of blocks.

KvRecord block_record(Quantizer quantizer) {
    const QuantizerInfo& info = quantizer_info(quantizer);
    const int64_t block = info.rule.block == 0 ? 16 : info.rule.block;
    return {.channels = block,
            .element = info.rule.element,
            .scale_block = block,
            .scale = info.rule.scale,
            .scales_before_tail = info.scales_before_tail};
}

struct Quantized {
    std::vector<uint8_t> codes;
    std::vector<uint32_t> scale_bits;
    std::vector<float> values;
};

/// Quantises rows of one block each (bf16 bits; missing channels are +0) and unpacks what was stored.
Quantized quantize_blocks(Quantizer quantizer, const std::vector<std::vector<uint16_t>>& blocks) {
    const KvRecord record = block_record(quantizer);
    const KvPage page{record, KvPageLayout::planar, std::ssize(blocks), 1};
    const int64_t n = std::ssize(blocks);
    std::vector<Bf16> rows(size_t(n * record.channels), Bf16{0});
    for (int64_t r = 0; r < n; ++r)
        for (size_t i = 0; i < blocks[size_t(r)].size(); ++i)
            rows[size_t(r * record.channels) + i].bits = blocks[size_t(r)][i];
    std::vector<std::byte> bytes(size_t(page.page_bytes())), scales(size_t(n * record.scale_bytes()));
    Quantized result{std::vector<uint8_t>(rows.size()), {}, std::vector<float>(rows.size())};
    quantize_rows(page, quantizer, rows, bytes, 0);
    unpack_codes(page, bytes, 0, n, result.codes, scales, {});
    dequantize_rows(page, bytes, 0, n, result.values);
    for (int64_t r = 0; r < n; ++r) {
        uint32_t bits = 0;
        for (int64_t i = record.scale_bytes() - 1; i >= 0; --i)
            bits = bits << 8 | uint32_t(scales[size_t(r * record.scale_bytes() + i)]);
        result.scale_bits.push_back(bits);
    }
    return result;
}

Quantized quantize_one(Quantizer quantizer, const std::vector<uint16_t>& block) {
    return quantize_blocks(quantizer, {block});
}

uint16_t bf16_bits(double x) {
    return bf16_from_float(float(x)).bits;
}

std::vector<Quantizer> block_quantizers() {
    std::vector<Quantizer> result;
    for (const QuantizerInfo& info : quantizers())
        if (info.quantizer != Quantizer::copy) result.push_back(info.quantizer);
    return result;
}

const std::vector<uint16_t> golden_input{0x3de1, 0xbf05, 0x3fa6, 0x0000, 0xc02d, 0x3cfe, 0x3f40, 0xbf80,
                                         0x4049, 0xbbe5, 0x3e80, 0x3ff3, 0xbea9, 0x3f1a, 0xc07a, 0x400d};

std::vector<uint8_t> first16(const std::vector<uint8_t>& codes) {
    return {codes.begin(), codes.begin() + 16};
}

}  // namespace

TEST_CASE("quantize: sixteen known inputs, bit for bit (q4m)") {
    const Quantized q = quantize_one(Quantizer::q4m, golden_input);
    CHECK(q.scale_bits[0] == 0x32);
    CHECK(q.codes == std::vector<uint8_t>{0, 0xa, 4, 0, 0xe, 0, 2, 0xb, 7, 8, 1, 5, 9, 2, 0xf, 6});
    const std::vector<float> values{0,     -0.625f, 1.25f,   0,      -2.5f,    0,      0.625f, -0.9375f,
                                    3.75f, -0.0f,   0.3125f, 1.875f, -0.3125f, 0.625f, -3.75f, 2.5f};
    for (size_t i = 0; i < 16; ++i) CHECK(float_bits(q.values[i]) == float_bits(values[i]));
}

TEST_CASE("quantize: sixteen known inputs, bit for bit (q4i)") {
    const Quantized q = quantize_one(Quantizer::q4i, golden_input);
    CHECK(q.scale_bits[0] == 127);
    CHECK(first16(q.codes) == std::vector<uint8_t>{0, 9, 3, 0, 0xd, 0, 2, 0xa, 5, 8, 0, 4, 9, 1, 0xe, 4});
}

TEST_CASE("quantize: sixteen known inputs, bit for bit (q8)") {
    const Quantized q = quantize_one(Quantizer::q8, golden_input);
    CHECK(q.scale_bits[0] == 121);
    CHECK(first16(q.codes) == std::vector<uint8_t>{0x4e, 0xe0, 0x6a, 0x00, 0xf3, 0x40, 0x64, 0xe8, 0x75, 0xae,
                                                   0x58, 0x6f, 0xdb, 0x62, 0xf8, 0x71});
}

TEST_CASE("quantize: worked values with amax 1") {
    const uint16_t one = bf16_bits(1), third = bf16_bits(0.30078125);
    const Quantized q8 = quantize_one(Quantizer::q8, {one, third});
    CHECK(q8.scale_bits[0] == 119);
    CHECK(q8.values[1] == 0.3125f);
    const Quantized q4i = quantize_one(Quantizer::q4i, {one});
    CHECK(q4i.scale_bits[0] == 125);
    CHECK(q4i.codes[0] == 6);
    CHECK(q4i.values[0] == 1.0f);
    const Quantized q4m = quantize_one(Quantizer::q4m, {one});
    CHECK(q4m.scale_bits[0] == 0x23);
    CHECK(q4m.codes[0] == 7);
    CHECK(q4m.values[0] == 1.03125f);
}

TEST_CASE("quantize: scale of a block of zeros is the floor's, codes and their sign stay") {
    const auto scale_of_zeros = [](Quantizer quantizer) {
        const Quantized q = quantize_one(quantizer, {0x0000, 0x8000});
        CHECK(q.codes[0] == 0);
        CHECK(q.codes[1] == (quantizer_info(quantizer).rule.element == KvElement::fp4_e2m1 ? 8 : 0x80));
        CHECK(float_bits(q.values[0]) == 0);
        CHECK(float_bits(q.values[1]) == 0x80000000);
        return q.scale_bits[0];
    };
    CHECK(scale_of_zeros(Quantizer::q8) == 105);
    CHECK(scale_of_zeros(Quantizer::q4i) == 1);
    CHECK(scale_of_zeros(Quantizer::q4m) == 0x01);
    CHECK(scale_of_zeros(Quantizer::flashmla_v41) == 114);  // 2^ceil(log2 1e-4) = 2^-13
    CHECK(scale_of_zeros(Quantizer::flashmla_v4) == 114);
    CHECK(scale_of_zeros(Quantizer::vllm_v4) == 105);
    CHECK(scale_of_zeros(Quantizer::flashmla_v32) == float_bits(0x1p-13f));
    CHECK(scale_of_zeros(Quantizer::vllm_v32) == float_bits(0x1p-126f));
    CHECK(scale_of_zeros(Quantizer::vllm_index_key) == float_bits(1e-4f / 448));
    CHECK(scale_of_zeros(Quantizer::vllm_index_key_power_of_two) == float_bits(0x1p-22f));
    CHECK(scale_of_zeros(Quantizer::deepgemm_index_key) == float_bits(1e-4f / 448));
}

TEST_CASE("quantize: a tiny block is not flushed by a floor that is not its own (q4i at 5e-5)") {
    const Quantized q = quantize_one(Quantizer::q4i, {bf16_bits(5e-5), bf16_bits(1e-30)});
    CHECK(q.codes[0] != 0);
    CHECK(std::fabs(double(q.values[0]) - 5e-5) < 5e-6);
    CHECK(quantize_one(Quantizer::q4i, {bf16_bits(1e-30)}).codes[0] != 0);
}

TEST_CASE("quantize: FlashMLA floors the quotient, vLLM the maximum: scales differ up to amax 448 * 2^-14") {
    const uint16_t edge = bf16_bits(std::ldexp(448, -14));
    REQUIRE(bf16_value(edge) == std::ldexp(448, -14));
    for (int step = -200; step <= 200; ++step) {
        const uint16_t amax = uint16_t(edge + step);
        CAPTURE(amax);
        const uint32_t flashmla = quantize_one(Quantizer::flashmla_v4, {amax}).scale_bits[0];
        const uint32_t vllm = quantize_one(Quantizer::vllm_v4, {amax}).scale_bits[0];
        CHECK((flashmla != vllm) == (step <= 0));
    }
}

TEST_CASE("quantize: a maximum of exactly 448 * 2^k or 6 * 2^k has the scale 2^k, the next bf16 2^(k+1)") {
    for (int k = -21; k <= 119; ++k) {
        CAPTURE(k);
        const uint16_t amax = bf16_bits(std::ldexp(448, k));
        for (const Quantizer quantizer : {Quantizer::q8, Quantizer::vllm_v4}) {
            CHECK(quantize_one(quantizer, {amax}).scale_bits[0] == uint32_t(k + 127));
            CHECK(quantize_one(quantizer, {uint16_t(amax + 1)}).scale_bits[0] == uint32_t(k + 128));
        }
        const Quantized q = quantize_one(Quantizer::q8, {amax, uint16_t(amax | 0x8000)});
        CHECK(q.codes[0] == 0x7E);
        CHECK(q.codes[1] == 0xFE);
    }
    for (int k = -126; k <= 125; ++k) {
        CAPTURE(k);
        const uint16_t amax = bf16_bits(std::ldexp(6, k));
        const Quantized q = quantize_one(Quantizer::q4i, {amax});
        CHECK(q.scale_bits[0] == uint32_t(k + 127));
        CHECK(q.codes[0] == 7);
        CHECK(quantize_one(Quantizer::q4i, {uint16_t(amax + 1)}).scale_bits[0] == uint32_t(k + 128));
    }
}

TEST_CASE("quantize: q4m's scale saturates at 448 above amax 2688 and codes clamp at 6") {
    for (const double amax : {2688.0, 2704.0, 3000.0, 1e10, 3e38}) {
        CAPTURE(amax);
        const Quantized q = quantize_one(Quantizer::q4m, {bf16_bits(amax), bf16_bits(-amax), bf16_bits(672)});
        CHECK(q.scale_bits[0] == 0x7E);
        CHECK(q.codes[0] == 7);
        CHECK(q.codes[1] == 15);
        CHECK(q.values[0] == 2688.0f);
        CHECK(q.values[2] == 672.0f);
    }
}

TEST_CASE("quantize: a NaN is never dropped (fp8: its own code; fp4: the block's scale)") {
    for (const uint16_t nan : std::vector<uint16_t>{0x7FFF, 0xFFC0, 0x7F81, 0xFFFF}) {
        CAPTURE(nan);
        for (const Quantizer quantizer : block_quantizers()) {
            CAPTURE(quantizer_info(quantizer).name);
            const KvScale scale = quantizer_info(quantizer).rule.scale;
            const bool fp4 = quantizer_info(quantizer).rule.element == KvElement::fp4_e2m1;
            const Quantized q = quantize_one(quantizer, {bf16_bits(1), nan, bf16_bits(-3)});
            const Quantized clean = quantize_one(quantizer, {bf16_bits(1), 0, bf16_bits(-3)});
            if (fp4) {
                CHECK(q.scale_bits[0] == (scale == KvScale::e4m3 ? 0x7F : 255));
                CHECK(std::ranges::count(q.codes, 0) == std::ssize(q.codes));
                for (const float value : q.values) CHECK(float_bits(value) == canonical_nan_bits);
            } else {
                CHECK(q.scale_bits == clean.scale_bits);
                CHECK(q.codes[1] == 0x7F);
                CHECK(float_bits(q.values[1]) == canonical_nan_bits);
                CHECK(q.codes[0] == clean.codes[0]);
                CHECK(q.codes[2] == clean.codes[2]);
            }
        }
    }
}

TEST_CASE("quantize: infinities saturate under an e4m3 scale and make any other block's values NaN") {
    const uint16_t plus = 0x7F80, minus = 0xFF80;
    const Quantized q4m = quantize_one(Quantizer::q4m, {plus, minus, bf16_bits(448), 0x8000});
    CHECK(q4m.scale_bits[0] == 0x7E);
    CHECK(q4m.codes[0] == 7);
    CHECK(q4m.codes[1] == 15);
    CHECK(q4m.codes[2] == 2);
    CHECK(q4m.codes[3] == 8);
    for (const Quantizer quantizer : block_quantizers()) {
        if (quantizer == Quantizer::q4m) continue;
        CAPTURE(quantizer_info(quantizer).name);
        const bool fp32 = quantizer_info(quantizer).rule.scale == KvScale::fp32;
        const bool fp4 = quantizer_info(quantizer).rule.element == KvElement::fp4_e2m1;
        const Quantized q = quantize_one(quantizer, {minus, bf16_bits(1), plus});
        CHECK(q.scale_bits[0] == (fp32 ? 0x7F800000 : 255));
        CHECK(q.codes[0] == (fp4 ? 0 : 0x7F));
        CHECK(q.codes[1] == (fp4 || fp32 ? 0 : 0x7F));
        CHECK(q.codes[2] == (fp4 ? 0 : 0x7F));
        for (const float value : q.values) CHECK(float_bits(value) == canonical_nan_bits);
    }
}

TEST_CASE("quantize: subnormal inputs are ordinary numbers (q4i keeps them, q8 rounds them to signed zero)") {
    const Quantized q = quantize_one(Quantizer::q4i, {0x0040, 0x8060, 0x0020, 0x0001});  // units of 2^-133
    CHECK(q.scale_bits[0] == 1);
    CHECK(q.codes[0] == 1);   // 2^-127 / 2^-126 = 0.5
    CHECK(q.codes[1] == 10);  // -0.75, a tie that goes to the even code of -1
    CHECK(q.codes[2] == 0);   // 0.25, a tie that goes down
    CHECK(q.codes[3] == 0);
    CHECK(float_bits(q.values[0]) == 0x00400000);
    const Quantized q8 = quantize_one(Quantizer::q8, {0x0040, 0x8060});
    CHECK(q8.codes[0] == 0);
    CHECK(q8.codes[1] == 0x80);
}

TEST_CASE("quantize: every bf16 pattern as block maximum equals the oracle in double") {
    constexpr size_t tested = 8;  // channels that are not +0: the maximum and its companions
    for (const Quantizer quantizer : block_quantizers()) {
        CAPTURE(quantizer_info(quantizer).name);
        std::vector<std::vector<uint16_t>> blocks(65536);
        for (size_t pattern = 0; pattern < blocks.size(); ++pattern) {
            // Companions of at most the same magnitude: dense below it, with few significant bits, or
            // tiny.
            const int magnitude = int(pattern & 0x7FFF);
            blocks[pattern].push_back(uint16_t(pattern));
            for (uint64_t i = 1; i < tested; ++i) {
                const uint64_t r = random_bits(uint64_t(quantizer), pattern * tested + i);
                int companion = std::max(0, magnitude - int(r % 0x600));
                if (i % 3 == 1) companion &= ~0xF;
                if (i % 5 == 0) companion = int(r % uint64_t(magnitude + 1));
                blocks[pattern].push_back(uint16_t(companion | int((r >> 40) & 1) << 15));
            }
        }
        const Quantized q = quantize_blocks(quantizer, blocks);
        const size_t width = size_t(block_record(quantizer).channels);
        int64_t wrong = 0;
        for (size_t pattern = 0; pattern < blocks.size(); ++pattern) {
            std::vector<double> x;
            for (const uint16_t bits : blocks[pattern]) x.push_back(bf16_value(bits));
            const OracleBlock expected = oracle_block(quantizer, x);
            bool same = q.scale_bits[pattern] == expected.scale_bits;
            for (size_t i = 0; i < tested; ++i)
                same &= int(q.codes[pattern * width + i]) == expected.codes[i];
            if (!same && wrong++ == 0) {
                CAPTURE(pattern);
                CHECK(q.scale_bits[pattern] == expected.scale_bits);
                for (size_t i = 0; i < tested; ++i) {
                    CAPTURE(i);
                    CAPTURE(x[i]);
                    CHECK(int(q.codes[pattern * width + i]) == expected.codes[i]);
                }
            }
        }
        CHECK(wrong == 0);
    }
}

TEST_CASE("quantize: what q8, q4i and q4m store dequantises exactly, in bf16 as well") {
    for (const Quantizer quantizer : {Quantizer::q8, Quantizer::q4i, Quantizer::q4m}) {
        CAPTURE(quantizer_info(quantizer).name);
        const bool fp4 = quantizer != Quantizer::q8;
        std::vector<std::vector<uint16_t>> blocks;
        for (uint32_t magnitude = 0; magnitude < 0x7F80; ++magnitude)
            blocks.push_back(
                {uint16_t(magnitude), uint16_t(0x8000 | magnitude / 2), uint16_t(magnitude * 3 / 4)});
        const Quantized q = quantize_blocks(quantizer, blocks);
        const size_t width = size_t(block_record(quantizer).channels);
        int64_t beyond_bf16 = 0;
        for (size_t i = 0; i < q.codes.size(); ++i) {
            const int scale = int(q.scale_bits[i / width]);
            const double exact = (fp4 ? e2m1_value(q.codes[i]) : e4m3_value(q.codes[i])) *
                                 (quantizer == Quantizer::q4m ? e4m3_value(scale) : e8m0_value(scale));
            if (std::fabs(exact) >= std::ldexp(1, 128)) {  // the largest maxima round up out of fp32's range
                ++beyond_bf16;
                REQUIRE(std::isinf(q.values[i]));
                continue;
            }
            if (double(q.values[i]) != exact || (float_bits(q.values[i]) & 0xFFFF) != 0) {
                CAPTURE(i);
                CHECK(double(q.values[i]) == exact);
                REQUIRE((float_bits(q.values[i]) & 0xFFFF) == 0);
            }
        }
        // bf16 248 to 255 times 2^120 go to 256 * 2^120 (q8); from 5/6 of the last binade on to 4 * 2^126
        // (q4i).
        CHECK(beyond_bf16 == (quantizer == Quantizer::q8 ? 8 : quantizer == Quantizer::q4i ? 32 : 0));
    }
}

TEST_CASE(
    "quantize: for bf16 maxima it is not observable whether amax is divided or multiplied by the "
    "reciprocal") {
    // The rules differ (q8 and q4i multiply, q4m divides); quotients of 8-bit maxima are powers of two and
    // e4m3 ties exactly or by far, so that a port that mixes them up still writes the same scales.
    for (const Quantizer quantizer : {Quantizer::q8, Quantizer::q4i, Quantizer::q4m}) {
        const BlockRule written = quantizer_info(quantizer).rule;
        BlockRule other = written;
        other.range_reciprocal = written.range_reciprocal != 0 ? 0 : 1 / written.range;
        for (uint32_t magnitude = 0; magnitude <= 0x7F80; ++magnitude) {
            const BlockMaximum maximum{to_float(Bf16{uint16_t(magnitude)}), false};
            CAPTURE(magnitude);
            REQUIRE(block_scale(written, maximum).bits == block_scale(other, maximum).bits);
        }
    }
}

TEST_CASE("quantize: e2m1 ties go to even (fourteen signed midpoints)") {
    const std::vector<double> midpoints{0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0};
    const std::vector<uint8_t> codes{0, 2, 2, 4, 4, 6, 6};
    for (const Quantizer quantizer : {Quantizer::q4i, Quantizer::q4m})
        for (size_t i = 0; i < midpoints.size(); ++i) {
            CAPTURE(midpoints[i]);
            const Quantized q =
                quantize_one(quantizer, {bf16_bits(6), bf16_bits(midpoints[i]), bf16_bits(-midpoints[i])});
            CHECK(q.codes[1] == codes[i]);
            CHECK(q.codes[2] == (8 | codes[i]));
        }
}

TEST_CASE("quantize: rows equal their blocks, for every record, layout and quantiser") {
    for (const QuantizeCase& c : quantize_cases()) {
        if (c.quantizer == nullptr) continue;
        CAPTURE(c.name);
        const KvRecord& record = c.page.record;
        const int64_t width = record.channels + record.tail_channels, n = 2 * c.page.records + 3;
        const std::vector<Bf16> rows = trap_rows(5, n, width);
        std::vector<std::byte> pages(size_t((n / c.page.records + 2) * c.page.page_bytes()));
        quantize_rows(c.page, c.quantizer->quantizer, rows, pages, 1);

        const BlockRule rule = rule_for(c.quantizer->quantizer, record, "test");
        const KvPageMap map = c.page.addresses();
        std::vector<std::byte> expected(pages.size());
        for (int64_t i = 0; i < n; ++i) {
            const KvRowOffsets at = map.row(1 + i);
            const Bf16* x = rows.data() + i * width;
            for (int64_t b = 0; b < record.scale_count(); ++b)
                quantize_block(rule, x + b * rule.block,
                               expected.data() + at.values + b * rule.block * element_bits(rule.element) / 8,
                               expected.data() + at.scales + b * scale_bytes(rule.scale));
            for (int64_t t = 0; t < record.tail_channels; ++t) {
                const uint16_t bits = x[record.channels + t].bits;
                expected[size_t(at.tail + 2 * t)] = std::byte(bits & 0xFF);
                expected[size_t(at.tail + 2 * t + 1)] = std::byte(bits >> 8);
            }
        }
        CHECK(pages == expected);
    }
}

TEST_CASE("quantize: nibbles and scales lie where a reader of the format looks (planar fp4 main)") {
    const KvPage page{fp4_main_record(32), KvPageLayout::planar, 2, 1};
    std::vector<Bf16> rows(64, Bf16{0});
    rows[32] = {bf16_bits(3)};       // row 1, channel 0: scale 0.5, code 7
    rows[33] = {bf16_bits(-0.5)};    // channel 1: -1, code 10
    rows[32 + 18] = {bf16_bits(6)};  // row 1, block 1, channel 18: scale 1, code 7
    std::vector<std::byte> bytes(size_t(page.page_bytes()));
    quantize_rows(page, Quantizer::q4m, rows, bytes, 0);
    CHECK(bytes[16] == std::byte{0xA7});
    CHECK(bytes[16 + 9] == std::byte{0x07});
    CHECK(bytes[32 + 2] == std::byte{0x30});
    CHECK(bytes[32 + 3] == std::byte{0x38});
    CHECK(bytes[32] == std::byte{0x01});
}

TEST_CASE("quantize: bytes to codes and back are the same bytes but for padding, every record and layout") {
    for (const QuantizeCase& c : quantize_cases()) {
        CAPTURE(c.name);
        const KvRecord& record = c.page.record;
        const int64_t n = c.page.records;
        std::vector<std::byte> original(size_t(c.page.page_bytes()));
        for (size_t i = 0; i < original.size(); ++i) original[i] = std::byte(random_bits(21, i) & 0xFF);
        std::vector<uint8_t> codes(size_t(n * record.channels));
        std::vector<std::byte> scales(size_t(n * record.scale_bytes())),
            packed(original.size(), std::byte{0xA5});
        std::vector<Bf16> tail(size_t(n * record.tail_channels));
        unpack_codes(c.page, original, 0, n, codes, scales, tail);
        pack_codes(c.page, n, codes, scales, tail, packed, 0);
        for (const KvSpan& span : page_map(c.page))
            if (span.section == KvSection::record_padding || span.section == KvSection::page_padding)
                std::fill_n(original.begin() + span.offset_bytes, span.size_bytes, std::byte{0});
        CHECK(packed == original);

        std::vector<uint8_t> codes_again(codes.size());
        std::vector<std::byte> scales_again(scales.size());
        std::vector<Bf16> tail_again(tail.size());
        unpack_codes(c.page, packed, 0, n, codes_again, scales_again, tail_again);
        CHECK(codes_again == codes);
        CHECK(scales_again == scales);
        CHECK(tail_again == tail);
    }
}

TEST_CASE("quantize: random codes survive pack and unpack in both layouts") {
    for (const QuantizeCase& c : quantize_cases()) {
        CAPTURE(c.name);
        const KvRecord& record = c.page.record;
        const int64_t n = c.page.records;
        const int mask = record.element == KvElement::fp4_e2m1 ? 15 : 255;
        std::vector<uint8_t> codes(size_t(n * record.channels)), codes_again(codes.size());
        for (size_t i = 0; i < codes.size(); ++i) codes[i] = uint8_t(random_bits(31, i) & uint64_t(mask));
        const std::vector<std::byte> scales(size_t(n * record.scale_bytes()), std::byte{0x5C});
        const std::vector<Bf16> tail(size_t(n * record.tail_channels), Bf16{0x7F81});
        std::vector<std::byte> bytes(size_t(c.page.page_bytes())), scales_again(scales.size());
        std::vector<Bf16> tail_again(tail.size());
        pack_codes(c.page, n, codes, scales, tail, bytes, 0);
        unpack_codes(c.page, bytes, 0, n, codes_again, scales_again, tail_again);
        CHECK(codes_again == codes);
        CHECK(scales_again == scales);
        CHECK(tail_again == tail);
    }
}

TEST_CASE("quantize: every code under every one-byte scale dequantises to the product, NaN canonical") {
    for (const auto& [element, scale] :
         {std::pair{KvElement::fp8_e4m3, KvScale::e8m0}, std::pair{KvElement::fp4_e2m1, KvScale::e8m0},
          std::pair{KvElement::fp4_e2m1, KvScale::e4m3}, std::pair{KvElement::int8, KvScale::e8m0}}) {
        const bool fp4 = element == KvElement::fp4_e2m1;
        const KvRecord record{.channels = 256, .element = element, .scale_block = 256, .scale = scale};
        const KvPage page{record, KvPageLayout::planar, 256, 1};
        std::vector<uint8_t> codes(65536);
        std::vector<std::byte> scales(256), bytes(size_t(page.page_bytes()));
        for (size_t i = 0; i < codes.size(); ++i) codes[i] = uint8_t(i & (fp4 ? 15 : 255));
        for (size_t i = 0; i < scales.size(); ++i) scales[i] = std::byte(i);
        std::vector<float> values(codes.size());
        pack_codes(page, 256, codes, scales, {}, bytes, 0);
        dequantize_rows(page, bytes, 0, 256, values);
        for (size_t i = 0; i < codes.size(); ++i) {
            const double code = fp4                          ? e2m1_value(codes[i])
                                : element == KvElement::int8 ? double(int8_t(codes[i]))
                                                             : e4m3_value(codes[i]);
            const double exact =
                code * (scale == KvScale::e4m3 ? e4m3_value(int(i / 256)) : e8m0_value(int(i / 256)));
            const uint32_t expected = std::isnan(exact) ? canonical_nan_bits : float_bits(float(exact));
            if (float_bits(values[i]) != expected) {
                CAPTURE(i);
                CAPTURE(exact);
                REQUIRE(float_bits(values[i]) == expected);
            }
        }
    }
}

TEST_CASE("quantize: every fp16 scale and fp32 scales of every kind dequantise to the product") {
    const KvRecord half{.channels = 1, .element = KvElement::int8, .scale_block = 1, .scale = KvScale::fp16};
    const KvRecord full{
        .channels = 1, .element = KvElement::fp8_e4m3, .scale_block = 1, .scale = KvScale::fp32};
    const KvPage half_page{half, KvPageLayout::per_token, 65536, 1},
        full_page{full, KvPageLayout::per_token, 65536, 1};
    std::vector<std::byte> bytes(size_t(half_page.page_bytes()));
    std::vector<float> values(65536);
    for (size_t i = 0; i < 65536; ++i) {
        bytes[3 * i] = std::byte{0xFD};  // int8 -3
        bytes[3 * i + 1] = std::byte(i & 0xFF);
        bytes[3 * i + 2] = std::byte(i >> 8);
    }
    dequantize_rows(half_page, bytes, 0, 65536, values);
    for (size_t i = 0; i < 65536; ++i) {
        const int exponent = int(i >> 10) & 31, mantissa = int(i & 0x3FF);
        const double magnitude = exponent == 31  ? (mantissa ? nan_value : infinity)
                                 : exponent == 0 ? std::ldexp(mantissa, -24)
                                                 : std::ldexp(1024 + mantissa, exponent - 25);
        const double exact = -3 * (i >> 15 ? -magnitude : magnitude);
        CAPTURE(i);
        REQUIRE(float_bits(values[i]) == (std::isnan(exact) ? canonical_nan_bits : float_bits(float(exact))));
    }

    bytes.assign(size_t(full_page.page_bytes()), std::byte{0});
    for (size_t i = 0; i < 65536; ++i) {
        const uint32_t scale = uint32_t(i << 16) | uint32_t(random_bits(41, i) & 0xFFFF);
        bytes[5 * i] = std::byte(random_bits(42, i) & 0xFF);
        for (size_t b = 0; b < 4; ++b) bytes[5 * i + 1 + b] = std::byte(scale >> (8 * b) & 0xFF);
    }
    dequantize_rows(full_page, bytes, 0, 65536, values);
    for (size_t i = 0; i < 65536; ++i) {
        const uint32_t scale = uint32_t(i << 16) | uint32_t(random_bits(41, i) & 0xFFFF);
        const double exact = e4m3_value(int(random_bits(42, i) & 0xFF)) * double(float_from_bits(scale));
        CAPTURE(i);
        REQUIRE(float_bits(values[i]) == (std::isnan(exact) ? canonical_nan_bits : float_bits(float(exact))));
    }
}

TEST_CASE("quantize: tail channels are copied bit for bit, NaN payloads and -0 included") {
    for (const KvRecord& record : {v4_record(512, 64), v32_record(512, 64), bf16_record(96)}) {
        CAPTURE(record.describe());
        const KvPage page{record, KvPageLayout::per_token, 3, 1};
        const int64_t width = record.channels + record.tail_channels;
        const std::vector<Bf16> rows = trap_rows(51, 3, width);
        const Quantizer quantizer = fits(Quantizer::copy, record)      ? Quantizer::copy
                                    : fits(Quantizer::vllm_v4, record) ? Quantizer::vllm_v4
                                                                       : Quantizer::vllm_v32;
        std::vector<std::byte> bytes(size_t(page.page_bytes()));
        quantize_rows(page, quantizer, rows, bytes, 0);
        std::vector<float> values(rows.size());
        dequantize_rows(page, bytes, 0, 3, values);
        for (int64_t i = 0; i < std::ssize(rows); ++i)
            if (i % width >= record.channels)
                REQUIRE(float_bits(values[size_t(i)]) == uint32_t(rows[size_t(i)].bits) << 16);
    }
}

TEST_CASE("quantize: one thread and two write the same bytes, and rows do not depend on their neighbours") {
    for (const QuantizeCase& c : quantize_cases()) {
        if (c.quantizer == nullptr) continue;
        CAPTURE(c.name);
        const int64_t width = c.page.record.channels + c.page.record.tail_channels, n = 300;
        const std::vector<Bf16> rows = trap_rows(61, n, width);
        const int64_t page_count = n / c.page.records + 1;
        std::vector<std::byte> one(size_t(page_count * c.page.page_bytes())), two = one, alone = one;
        std::vector<float> values_one(rows.size()), values_two(rows.size());
        const int threads = omp_get_max_threads();
        omp_set_num_threads(1);
        quantize_rows(c.page, c.quantizer->quantizer, rows, one, 0);
        dequantize_rows(c.page, one, 0, n, values_one);
        omp_set_num_threads(2);
        quantize_rows(c.page, c.quantizer->quantizer, rows, two, 0);
        dequantize_rows(c.page, one, 0, n, values_two);
        omp_set_num_threads(threads);
        for (int64_t i = n - 1; i >= 0; --i)
            quantize_rows(c.page, c.quantizer->quantizer,
                          std::span(rows).subspan(size_t(i * width), size_t(width)), alone, i);
        CHECK(one == two);
        CHECK(one == alone);
        CHECK(std::equal(values_one.begin(), values_one.end(), values_two.begin(),
                         [](float a, float b) { return float_bits(a) == float_bits(b); }));
    }
}

TEST_CASE("quantize: nothing but the rows, their padding and their pages' padding is written") {
    for (const QuantizeCase& c : quantize_cases()) {
        if (c.quantizer == nullptr) continue;
        CAPTURE(c.name);
        constexpr size_t guard = 61;  // odd, so that pages are not aligned
        const int64_t width = c.page.record.channels + c.page.record.tail_channels;
        const size_t pages_bytes = size_t(3 * c.page.page_bytes());
        std::vector<std::byte> buffer(pages_bytes + 2 * guard, std::byte{0xA5});
        const std::span<std::byte> pages = std::span(buffer).subspan(guard, pages_bytes);
        const int64_t first = c.page.records / 2, n = c.page.records;  // ends inside the second page
        quantize_rows(c.page, c.quantizer->quantizer, trap_rows(71, n, width), pages, first);

        std::vector<std::byte> expected(buffer.size(), std::byte{0xA5});
        const KvPageMap map = c.page.addresses();
        for (int64_t page = 0; page * c.page.records < first + n; ++page)
            for (const KvSpan& span : page_map(c.page)) {
                const int64_t slot = page * c.page.records + span.slot;
                const bool padding = span.section == KvSection::page_padding;
                if (!padding && (slot < first || slot >= first + n)) continue;
                const size_t at = guard + size_t(page * map.page_bytes + span.offset_bytes);
                const bool zero = padding || span.section == KvSection::record_padding;
                for (size_t i = at; i < at + size_t(span.size_bytes); ++i)
                    expected[i] = zero ? std::byte{0} : buffer[i];
            }
        CHECK(buffer == expected);

        std::vector<float> out(size_t(n * width) + 2, -7.0f);
        dequantize_rows(c.page, pages, first, n, std::span(out).subspan(1, size_t(n * width)));
        CHECK(out.front() == -7.0f);
        CHECK(out.back() == -7.0f);
    }
}

TEST_CASE("quantize: a quantiser is refused for a record of the same width and another geometry") {
    CHECK(fits(Quantizer::q8, fp8_record(128)));
    CHECK_FALSE(fits(Quantizer::q8, fp8_index_key_record(128)));
    CHECK_FALSE(fits(Quantizer::vllm_index_key, fp8_record(128)));
    CHECK(fits(Quantizer::vllm_index_key, fp8_index_key_record(128)));
    CHECK_FALSE(fits(Quantizer::vllm_v32, fp8_index_key_record(128)));
    CHECK_FALSE(fits(Quantizer::vllm_index_key, v32_record(128, 0)));
    CHECK(fits(Quantizer::flashmla_v32, v32_record(512, 0)));
    CHECK_FALSE(fits(Quantizer::q8, v32_record(512, 0)));
    CHECK_FALSE(
        fits(Quantizer::q4m, fp4_index_key_record(128)));  // block 16 with a power-of-two scale: no such rule

    const KvPage page{fp8_index_key_record(128), KvPageLayout::planar, 4, 1};
    const std::vector<Bf16> rows(128, Bf16{0x3F80});
    std::vector<std::byte> bytes(size_t(page.page_bytes()), std::byte{0xA5});
    const std::vector<std::byte> before = bytes;
    try {
        quantize_rows(page, Quantizer::q8, rows, bytes, 0);
        FAIL("not refused");
    } catch (const UserError& error) {
        CHECK(error.parts().expected.find("vllm-index-key") != std::string::npos);
    }
    const KvPage no_quantiser{int8_index_key_record(128), KvPageLayout::planar, 4, 1};
    CHECK_THROWS_AS(quantize_rows(no_quantiser, Quantizer::q8, rows, bytes, 0), UserError);
    CHECK(bytes == before);
}

TEST_CASE("quantize: sizes and slots that do not match are refused and nothing is written") {
    const KvPage page{fp8_record(64), KvPageLayout::planar, 4, 100};
    const size_t size = size_t(page.page_bytes());
    std::vector<std::byte> bytes(2 * size, std::byte{0xA5});
    const std::vector<std::byte> before = bytes;
    const std::vector<Bf16> rows(3 * 64, Bf16{0x3F80});
    const auto quantize = [&](std::span<const Bf16> x, std::span<std::byte> y, int64_t slot) {
        quantize_rows(page, Quantizer::q8, x, y, slot);
    };
    CHECK_THROWS_AS(quantize(std::span(rows).first(100), bytes, 0), UserError);
    CHECK_THROWS_AS(quantize(rows, std::span(bytes).first(size - 1), 0), UserError);
    CHECK_THROWS_AS(quantize(rows, bytes, 6), UserError);
    CHECK_THROWS_AS(quantize(rows, bytes, -1), UserError);
    CHECK_THROWS_AS(quantize(rows, bytes, std::numeric_limits<int64_t>::max()), UserError);
    CHECK_THROWS_AS(quantize(rows, std::span(bytes).first(0), 0), UserError);
    std::vector<float> out(64);
    CHECK_THROWS_AS(dequantize_rows(page, bytes, 0, 2, out), UserError);
    CHECK_THROWS_AS(dequantize_rows(page, bytes, 8, 1, out), UserError);
    CHECK_THROWS_AS(dequantize_rows(page, bytes, 0, -1, out), UserError);

    const KvPage fp4{fp4_main_record(16), KvPageLayout::planar, 1, 1};
    std::vector<std::byte> fp4_bytes(size_t(fp4.page_bytes()), std::byte{0xA5});
    std::vector<uint8_t> codes(16, 15);
    const std::vector<std::byte> scale(1);
    CHECK_THROWS_AS(pack_codes(fp4, 1, codes, {}, {}, fp4_bytes, 0), UserError);
    CHECK_THROWS_AS(pack_codes(fp4, 1, std::span(codes).first(15), scale, {}, fp4_bytes, 0), UserError);
    codes[7] = 16;
    CHECK_THROWS_AS(pack_codes(fp4, 1, codes, scale, {}, fp4_bytes, 0), UserError);
    CHECK(std::ranges::count(fp4_bytes, std::byte{0xA5}) == std::ssize(fp4_bytes));
    CHECK(bytes == before);

    CHECK_NOTHROW(quantize({}, bytes, 8));  // no rows behind the last slot
    CHECK_NOTHROW(quantize({}, {}, 0));
    CHECK(bytes == before);
}

TEST_CASE("quantize: the table names every quantiser once, with its rule and source") {
    for (const QuantizerInfo& info : quantizers()) {
        CHECK(&quantizer_info(info.quantizer) == &info);
        CHECK_FALSE(info.name.empty());
        CHECK_FALSE(info.formula.empty());
        CHECK_FALSE(info.source.empty());
        CHECK(std::ranges::count(quantizers(), info.name, &QuantizerInfo::name) == 1);
    }
}
