#include "reference/truth/linear.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace touchstone::truth {

namespace {

constexpr Eigen::Index block = 32, step = 16;
constexpr double u = 0x1p-24, slack = 1 + 0x1p-10;

/// Q8's codes times their scales.
Matrix dequantized_input(std::span<const Bf16> x, int64_t rows, int64_t inputs) {
    const QuantizedRows quantized = quantize_linear_input(x, rows, inputs);
    Matrix result(rows, inputs);
    for (Eigen::Index i = 0; i < result.size(); ++i)
        result.data()[i] = static_cast<double>(quantized.values[static_cast<size_t>(i)]) *
                           static_cast<double>(quantized.scales[static_cast<size_t>(i / block)]);
    return result;
}

/// bound(products over K) of every output, enlarged by the slack.
template <class Bound>
Matrix for_each_output(const LinearOperands& operands, const Bound& bound) {
    Matrix result(operands.a.rows(), operands.b.rows());
    for (Eigen::Index m = 0; m < result.rows(); ++m)
        for (Eigen::Index n = 0; n < result.cols(); ++n)
            result(m, n) = slack * bound(operands.a.row(m).array() * operands.b.row(n).array());
    return result;
}

using Products = Eigen::Array<double, 1, Eigen::Dynamic>;

/// What adding blocks in order loses, given what each block's own sum may be off by.
template <class BlockLoss>
double accumulation_loss(const Products& products, const BlockLoss& block_loss) {
    double sum = 0, loss = 0;
    for (Eigen::Index k = 0; k < products.size(); k += block) {
        const double block_sum = products.segment(k, block).sum();
        sum += block_sum;
        loss += block_loss(products.segment(k, block), block_sum) + u * std::abs(sum);
    }
    return loss;
}

/// The unit of a step, at most: 2^(e - fraction_bits), e the largest exponent of products and accumulator. A
/// product is below 4 * 2^e, so e is taken from the product itself, which is never too small.
template <class Terms>
double unit(const Terms& products, double accumulator, int fraction_bits) {
    const double largest = std::max(products.abs().maxCoeff(), std::abs(accumulator) * slack);
    if (largest == 0 || !std::isfinite(largest)) return largest;
    return std::ldexp(1.0, std::ilogb(largest) - fraction_bits);
}

}  // namespace

LinearOperands linear_operands(std::span<const Bf16> x, int64_t rows, const Fp8Weight& weight) {
    LinearOperands result{dequantized_input(x, rows, weight.inputs), Matrix(weight.outputs, weight.inputs)};
    for (Eigen::Index n = 0; n < weight.outputs; ++n)
        for (Eigen::Index k = 0; k < weight.inputs; ++k) {
            const E4m3 code = weight.codes[static_cast<size_t>(n * weight.inputs + k)];
            const E8m0 scale =
                weight.scales[static_cast<size_t>(n / block * (weight.inputs / block) + k / block)];
            result.b(n, k) = static_cast<double>(to_float(code)) * static_cast<double>(to_float(scale));
        }
    return result;
}

LinearOperands linear_operands(std::span<const Bf16> x, int64_t rows, const Fp4Weight& weight) {
    LinearOperands result{dequantized_input(x, rows, weight.inputs), Matrix(weight.outputs, weight.inputs)};
    for (Eigen::Index n = 0; n < weight.outputs; ++n)
        for (Eigen::Index k = 0; k < weight.inputs; ++k) {
            const uint8_t pair = weight.codes[static_cast<size_t>((n * weight.inputs + k) / 2)];
            const E2m1 code = k % 2 == 0 ? even_e2m1(pair) : odd_e2m1(pair);
            const E8m0 scale = weight.scales[static_cast<size_t>(n * (weight.inputs / block) + k / block)];
            result.b(n, k) = static_cast<double>(to_float(code)) * static_cast<double>(to_float(scale));
        }
    return result;
}

LinearOperands linear_operands(std::span<const Bf16> x, int64_t rows, const Bf16Weight& weight) {
    LinearOperands result{Matrix(rows, weight.inputs), Matrix(weight.outputs, weight.inputs)};
    const auto widen = [](Bf16 value) { return static_cast<double>(to_float(value)); };
    std::transform(x.begin(), x.end(), result.a.data(), widen);
    std::transform(weight.values.begin(), weight.values.end(), result.b.data(), widen);
    return result;
}

Matrix linear(const LinearOperands& operands) {
    return operands.a * operands.b.transpose();
}

Matrix exact_blocks_bound(const LinearOperands& operands) {
    return for_each_output(operands, [](const Products& products) {
        return accumulation_loss(products,
                                 [](const auto&, double block_sum) { return u * std::abs(block_sum); });
    });
}

Matrix exact_lanes_bound(const LinearOperands& operands, const Lanes& lanes) {
    return for_each_output(operands, [&](const Products& products) {
        double loss = 0;
        std::vector<double> sums(static_cast<size_t>(lanes.count), 0.0);
        for (Eigen::Index k = 0; k < products.size(); ++k) {
            double& lane = sums[static_cast<size_t>(lanes.lane_of(k))];
            lane += products[k];
            loss += u * std::abs(lane);
        }
        for (; sums.size() > 1; sums.resize(sums.size() / 2))
            for (size_t i = 0; i < sums.size() / 2; ++i) {
                sums[i] = sums[2 * i] + sums[2 * i + 1];
                loss += u * std::abs(sums[i]);
            }
        return loss;
    });
}

Matrix hopper_bound(const LinearOperands& operands, const SumOrder& order) {
    return for_each_output(operands, [&](const Products& products) {
        double total = 0, loss = 0;
        for (int i = 0; i < order.pieces; ++i) {
            const PieceRange range = piece(order, products.size(), i);
            double chain = 0;
            for (Eigen::Index k = range.first; k < range.last; k += step) {
                loss += (step + 1) * unit(products.segment(k, step), chain, 25);
                chain += products.segment(k, step).sum();
                loss += 2 * u * std::abs(chain);
            }
            total += chain;
            loss += i > 0 ? u * std::abs(total) : 0;
        }
        return loss;
    });
}

Matrix released_hopper_bound(const LinearOperands& operands) {
    return for_each_output(operands, [](const Products& products) {
        return accumulation_loss(products, [](const auto& terms, double block_sum) {
            return block * unit(terms, 0, 13) + 0x1p-13 * std::abs(block_sum);
        });
    });
}

}  // namespace touchstone::truth
