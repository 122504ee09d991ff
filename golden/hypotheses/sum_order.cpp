// Orders of summation: the same values added or rounded otherwise. No fault, except to who wants equal bits.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "golden/hypotheses/hypothesis.h"
#include "golden/hypotheses/linear_operands.h"
#include "golden/hypotheses/norm_rule.h"
#include "reference/numerics/tensor_core.h"

namespace touchstone {

namespace {

using Dot = std::function<float(const DotOperands&)>;

/// An order in which one output's products are added.
struct DotOrder {
    std::string name, cause;
    Dot dot;
    const std::vector<std::string>& operators;
};

const std::vector<std::string> products_and_squares{"linear_fp8", "linear_fp4",     "linear_bf16",
                                                    "lm_head",    "grouped_linear", "rms_norm"};
const std::vector<std::string> block_scaled{"linear_fp8", "linear_fp4"};

float chain_by_fma(const DotOperands& p, size_t first, size_t last) {
    float sum = 0;
    for (size_t i = first; i < last; ++i) sum = std::fma(p.a[i], p.b[i], sum);
    return sum;
}

float chain_by_products(const DotOperands& p) {
    float sum = 0;
    for (size_t i = 0; i < p.size(); ++i) sum += p.a[i] * p.b[i];
    return sum;
}

float reversed_chain(const DotOperands& p) {
    float sum = 0;
    for (size_t i = p.size(); i-- > 0;) sum = std::fma(p.a[i], p.b[i], sum);
    return sum;
}

float pairwise(const DotOperands& p, size_t first, size_t last) {
    if (last - first == 1) return p.a[first] * p.b[first];
    const size_t middle = first + (last - first + 1) / 2;
    return pairwise(p, first, middle) + pairwise(p, middle, last);
}

float in_double(const DotOperands& p) {
    double sum = 0;
    for (size_t i = 0; i < p.size(); ++i) sum += static_cast<double>(p.a[i]) * static_cast<double>(p.b[i]);
    return static_cast<float>(sum);
}

/// `piece(first, last)` of each of `count` equal pieces, in multiples of 16, added ascending.
Dot split(size_t count, float (*piece)(const DotOperands&, size_t, size_t)) {
    return [count, piece](const DotOperands& p) {
        const size_t steps = (p.size() + 15) / 16, length = (steps + count - 1) / count * 16;
        float sum = 0;
        for (size_t first = 0; first < p.size(); first += length)
            sum += piece(p, first, std::min(p.size(), first + length));
        return sum;
    };
}

/// Interleaved lanes by FMA, combined by halves (i, i + L / 2) or by neighbours.
Dot lanes(size_t count, bool neighbours) {
    return [count, neighbours](const DotOperands& p) {
        std::vector<float> sums(count);
        for (size_t i = 0; i < p.size(); ++i) sums[i % count] = std::fma(p.a[i], p.b[i], sums[i % count]);
        for (size_t left = count / 2; left > 0; left /= 2)
            for (size_t i = 0; i < left; ++i)
                sums[i] = neighbours ? sums[2 * i] + sums[2 * i + 1] : sums[i] + sums[i + left];
        return sums[0];
    };
}

// Tensor cores.

/// The chain of `instruction` on bf16 operands over [first, last) from `c`; absent elements are zeros.
float chain(const TensorCoreInstruction& instruction, const DotOperands& p, size_t first, size_t last,
            float c) {
    const auto step = static_cast<size_t>(instruction.products);
    std::vector<uint32_t> a(step), b(step);
    const int shift = instruction.format == OperandFormat::bf16 ? 16 : 0;
    for (size_t from = first; from < last; from += step) {
        for (size_t i = 0; i < step; ++i) {
            const bool there = from + i < last;
            a[i] = there ? float_bits(p.a[from + i]) >> shift : 0;
            b[i] = there ? float_bits(p.b[from + i]) >> shift : 0;
        }
        c = tensor_core_step(instruction, a.data(), b.data(), c);
    }
    return c;
}

float hopper_chain(const DotOperands& p, size_t first, size_t last) {
    return chain(tensor_core_instruction("hopper.wgmma.bf16"), p, first, last, 0);
}

Dot whole_chain(std::string_view instruction) {
    return [instruction](const DotOperands& p) {
        return chain(tensor_core_instruction(instruction), p, 0, p.size(), 0);
    };
}

/// Hopper's fp8 accumulator, which keeps 13 bits, on operands with their scales in them: promoted to fp32
/// every `blocks` blocks of 32, never where that is 0.
Dot short_accumulator(size_t blocks) {
    return [blocks](const DotOperands& p) {
        TensorCoreInstruction instruction = tensor_core_instruction("hopper.wgmma.e4m3");
        instruction.format = OperandFormat::bf16;
        const size_t length = blocks == 0 ? p.size() : 32 * blocks;
        float sum = 0;
        for (size_t first = 0; first < p.size(); first += length)
            sum += chain(instruction, p, first, std::min(p.size(), first + length), 0);
        return sum;
    };
}

/// A block of codes by one step of an fp8 instruction from +0, then its scales.
Dot fp8_blocks(std::string_view name) {
    return [name](const DotOperands& p) {
        const TensorCoreInstruction& instruction = tensor_core_instruction(name);
        const auto step = static_cast<size_t>(instruction.k());
        std::vector<uint32_t> a(step), b(step);
        float sum = 0;
        for (size_t block = 0; block < p.a_scales.size(); ++block) {
            float products = 0;
            for (size_t from = 32 * block; from < 32 * (block + 1); from += step) {
                for (size_t i = 0; i < step; ++i) {
                    a[i] = e4m3_from_float_saturating(p.a_codes[from + i]).bits;
                    b[i] = e4m3_from_float_saturating(p.b_codes[from + i]).bits;
                }
                products = tensor_core_step(instruction, a.data(), b.data(), products);
            }
            sum = std::fma(products, p.a_scales[block] * p.b_scales[block], sum);
        }
        return sum;
    };
}

/// A block of codes in order, then its scales.
float blocks_in_order(const DotOperands& p) {
    float sum = 0;
    for (size_t block = 0; block < p.a_scales.size(); ++block) {
        float products = 0;
        for (size_t i = 32 * block; i < 32 * (block + 1); ++i)
            products = std::fma(p.a_codes[i], p.b_codes[i], products);
        sum += products * p.a_scales[block] * p.b_scales[block];
    }
    return sum;
}

std::vector<DotOrder> dot_orders() {
    const std::string fp8 = ", a loss of precision that belongs to Hopper's fp8 instructions";
    std::vector<DotOrder> orders = {
        {"one_chain_fma", "each dot product is one fp32 chain over ascending K, by fused multiply-add",
         [](const DotOperands& p) { return chain_by_fma(p, 0, p.size()); }, products_and_squares},
        {"one_chain_mul_add", "each dot product is one fp32 chain over ascending K, product and sum rounded",
         chain_by_products, products_and_squares},
        {"one_chain_reversed", "each dot product is one fp32 chain over descending K", reversed_chain,
         products_and_squares},
        {"pairwise", "products are added in fp32 by halves of K",
         [](const DotOperands& p) { return pairwise(p, 0, p.size()); }, products_and_squares},
        {"accumulated_in_double", "products are added in double and rounded to fp32 once", in_double,
         products_and_squares},
        {"tensor_core_whole_k", "one chain of Hopper's bf16 tensor core over all of K, not cut into pieces",
         whole_chain("hopper.wgmma.bf16"), linear_layers},
        {"tensor_core_tf32", "one chain of Hopper's tf32 tensor core, 8 products a step",
         whole_chain("hopper.wgmma.tf32"), linear_layers},
        {"tensor_core_ampere", "one chain of Ampere's or Ada's bf16 tensor core, 8 products a step",
         whole_chain("ampere.mma.bf16"), linear_layers},
        {"fp8_accumulator_every_32",
         "fp8 accumulators of 13 fraction bits, promoted to fp32 every 32 of K" + fp8, short_accumulator(1),
         block_scaled},
        {"fp8_accumulator_every_128",
         "fp8 accumulators of 13 fraction bits, promoted to fp32 every 128 of K" + fp8, short_accumulator(4),
         block_scaled},
        {"fp8_accumulator_never",
         "fp8 accumulators of 13 fraction bits over all of K, never promoted to fp32" + fp8,
         short_accumulator(0), block_scaled},
        {"fp8_mma_emulated",
         "fp8 mma.sync as the assembler emulates it on Hopper, scale block by scale block",
         fp8_blocks("hopper.mma.e4m3"), block_scaled},
        {"fp8_blackwell", "fp8 steps of Blackwell's tensor core, scale block by scale block",
         fp8_blocks("blackwell.tcgen05.e4m3"), block_scaled},
        {"fp8_ada", "fp8 steps of Ada's tensor core, scale block by scale block", fp8_blocks("ada.mma.e4m3"),
         block_scaled},
        {"blocks_in_order", "products of a scale block are added in order in fp32, then scaled",
         blocks_in_order, block_scaled},
    };
    for (const size_t count : {2, 4, 8, 16}) {
        orders.push_back({fmt::format("split_k_{}", count),
                          fmt::format("K is cut into {} pieces, each an fp32 chain, added ascending", count),
                          split(count, chain_by_fma), products_and_squares});
        orders.push_back(
            {fmt::format("tensor_core_split_k_{}", count),
             fmt::format("K is cut into {} chains of Hopper's bf16 tensor core, added ascending", count),
             split(count, hopper_chain), linear_layers});
    }
    for (const size_t count : {4, 8, 16, 32, 64, 128, 256, 512, 1024})
        for (const bool neighbours : {true, false})
            orders.push_back(
                {fmt::format("lanes_{}_{}", count, neighbours ? "neighbours" : "halves"),
                 fmt::format("{} interleaved lanes by fused multiply-add, combined by {}", count,
                             neighbours ? "neighbours" : "halves, as xor-shuffles from the widest down do"),
                 lanes(count, neighbours), products_and_squares});
    return orders;
}

/// The linear layers and the norm, whose squares are products too.
Outputs by_dot(const Dot& dot) {
    return [dot](const OperatorRun& run) -> std::optional<TensorMap> {
        if (run.info.name == "rms_norm")
            return norm_by_rule(run, [&](NormRule& rule) {
                rule.sum_of_squares = [&](std::span<const float> x) { return dot({x, x, {}, {}, {}, {}}); };
            });
        const std::optional<LinearOperands> operands = linear_operands(run);
        if (!operands) return std::nullopt;
        TensorMap outputs = run.expected;
        put_linear_sums(linear_sums(*operands, dot), outputs);
        return outputs;
    };
}

Hypothesis order(std::string name, std::string cause, std::vector<std::string> operators, Outputs outputs) {
    return {std::move(name),      "order",           std::move(cause), Cause::order,
            std::move(operators), std::move(outputs)};
}

bool softmax_in_double(const Call& call) {
    const auto logits = call.in<float>("logits");
    const auto p = call.out<float>("probabilities");
    const double t = std::max(static_cast<double>(call.real("temperature")), 1e-5);
    const double largest = static_cast<double>(*std::ranges::max_element(logits));
    double sum = 0;
    for (const float x : logits) sum += std::exp((static_cast<double>(x) - largest) / t);
    for (size_t i = 0; i < p.size(); ++i)
        p[i] = static_cast<float>(std::exp((static_cast<double>(logits[i]) - largest) / t) / sum);
    return true;
}

}  // namespace

std::vector<Hypothesis> sum_order_hypotheses() {
    std::vector<Hypothesis> all = {
        order("profile_exact", "summed as the profile exact does", {}, with_arithmetic(Arithmetic::exact)),
        order("profile_hopper", "summed as the profile hopper does, by bf16 tensor cores", {},
              with_arithmetic(Arithmetic::hopper)),
        order("profile_released_hopper",
              "summed as the profile released_hopper does, by fp8 tensor cores of 13 fraction bits", {},
              with_arithmetic(Arithmetic::released_hopper)),
        order("norm_gain_first", "the norm multiplies x by gain * reciprocal root, one product made first",
              {"rms_norm"}, with_norm([](NormRule& rule) {
                  rule.element = [](float x, float r, float w) { return x * (w * r); };
              })),
        order("norm_gain_times_x_first", "the norm multiplies gain * x by the reciprocal root", {"rms_norm"},
              with_norm([](NormRule& rule) {
                  rule.element = [](float x, float r, float w) { return (w * x) * r; };
              })),
        order("norm_divides", "the norm divides x by the root", {"rms_norm"}, with_norm([](NormRule& rule) {
                  rule.root = [](float mean, float eps) { return std::sqrt(mean + eps); };
                  rule.element = [](float x, float root, float w) { return w * (x / root); };
              })),
        order("norm_mean_by_reciprocal", "the norm multiplies the sum of squares by 1 / width", {"rms_norm"},
              with_norm([](NormRule& rule) {
                  rule.mean = [](float sum, float width) { return sum * (1.0f / width); };
              })),
        order("softmax_in_double", "the softmax is made in double and rounded once", {"token_probabilities"},
              computed(softmax_in_double)),
    };
    for (const DotOrder& one : dot_orders())
        all.push_back(order(one.name, one.cause, one.operators, by_dot(one.dot)));
    return all;
}

}  // namespace touchstone
