#include "reference/truth/ledger.h"

#include <array>
#include <cmath>
#include <cstddef>

#include "reference/quantize.h"

namespace touchstone::truth {

namespace {

Matrix quantized_and_back(const Matrix& x, Quantizer quantizer) {
    const BlockRule& rule = quantizer_info(quantizer).rule;
    std::array<Bf16, 32> block{};
    std::array<std::byte, 32> codes{};
    std::array<std::byte, 4> scale{};
    Matrix result(x.rows(), x.cols());
    for (Eigen::Index first = 0; first + rule.block <= x.size(); first += rule.block) {
        for (Eigen::Index i = 0; i < rule.block; ++i)
            block[static_cast<size_t>(i)] = bf16_from_float(static_cast<float>(x.data()[first + i]));
        quantize_block(rule, block.data(), codes.data(), scale.data());
        for (Eigen::Index i = 0; i < rule.block; ++i)
            result.data()[first + i] = static_cast<double>(dequantized(
                code_value(rule.element, codes.data(), i), stored_scale(rule.scale, scale.data())));
    }
    return result;
}

}  // namespace

double nearest_bf16(double x) {
    // To fp32 by truncation with the last bit set where anything was lost: the second rounding then sees that
    // no tie is one.
    float truncated = static_cast<float>(x);
    if (std::abs(static_cast<double>(truncated)) > std::abs(x)) truncated = std::nextafterf(truncated, 0.0f);
    const bool exact = static_cast<double>(truncated) == x || std::isnan(x);
    const float sticky = float_from_bits(float_bits(truncated) | (exact ? 0u : 1u));
    return static_cast<double>(to_float(bf16_from_float(sticky)));
}

Matrix Ledger::bf16(Matrix x) const {
    if (rounds_) x = x.unaryExpr([](double value) { return nearest_bf16(value); }).eval();
    return x;
}

Matrix Ledger::q8(const Matrix& x) const {
    return rounds_ ? quantized_and_back(x, Quantizer::q8) : x;
}

Matrix Ledger::q4i(const Matrix& x) const {
    return rounds_ ? quantized_and_back(x, Quantizer::q4i) : x;
}

Matrix Ledger::q4m(const Matrix& x) const {
    return rounds_ ? quantized_and_back(x, Quantizer::q4m) : x;
}

Matrix quantized_linear(const Matrix& x, const Matrix& weight, const Ledger& ledger) {
    return ledger.bf16(Matrix(ledger.q8(x) * weight.transpose()));
}

}  // namespace touchstone::truth
