#include "reference/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "reference/io/user_error.h"
#include "reference/numerics/elementary.h"

namespace touchstone {

namespace {

constexpr int64_t parallel_elements = 1 << 13;

[[noreturn]] void refuse(std::string what, std::string expected) {
    throw UserError(
        {std::move(what), "experts", std::move(expected), "pass tensors and a routing that agree"});
}

void require(std::string_view tensor, size_t size, int64_t rows, int64_t width) {
    if (rows >= 0 && static_cast<int64_t>(size) == rows * width) return;
    refuse(fmt::format("{} has {} elements", tensor, size), fmt::format("[{}, {}]", rows, width));
}

/// One expert: `linear` is L4 or L8, behind (operator, input, weight, output).
template <class Expert, class Linear>
void run_expert(int64_t rows, std::span<const Bf16> x, const Expert& expert, SumOperator w1_w3,
                SumOperator w2, std::span<const float> weights, float limit, std::span<Bf16> y,
                const Linear& linear) {
    const auto size = static_cast<size_t>(rows * expert.w1.outputs);
    std::vector<Bf16> gate(size), up(size), activation(size);
    linear(w1_w3, x, expert.w1, std::span(gate));
    linear(w1_w3, x, expert.w3, std::span(up));
    swiglu(gate, up, rows, limit, weights, activation);
    linear(w2, activation, expert.w2, y);
}

/// Of one expert: the rows that chose it, ascending, and the weights they gave it.
struct ExpertRows {
    std::vector<int64_t> rows;
    std::vector<float> weights;
};

/// By expert id, ascending.
std::map<int32_t, ExpertRows> rows_by_expert(const Routing& routing) {
    std::map<int32_t, ExpertRows> result;
    if (routing.rows == 0) return result;
    const int64_t k = std::ssize(routing.experts) / routing.rows;
    for (int64_t i = 0; i < std::ssize(routing.experts); ++i) {
        const int32_t id = routing.experts[static_cast<size_t>(i)];
        if (id < 0) refuse(fmt::format("row {} chose expert {}", i / k, id), "ids of at least 0");
        ExpertRows& chosen = result[id];
        if (!chosen.rows.empty() && chosen.rows.back() == i / k)
            refuse(fmt::format("row {} chose expert {} twice", i / k, id), "different experts");
        chosen.rows.push_back(i / k);
        chosen.weights.push_back(routing.weights[static_cast<size_t>(i)]);
    }
    return result;
}

}  // namespace

void swiglu(std::span<const Bf16> gate, std::span<const Bf16> up, int64_t rows, float limit,
            std::span<const float> weights, std::span<Bf16> y) {
    const int64_t width = rows > 0 ? std::ssize(y) / rows : 0;
    require("y", y.size(), rows, width);
    require("gate", gate.size(), rows, width);
    require("up", up.size(), rows, width);
    if (!weights.empty()) require("weights", weights.size(), rows, 1);
#pragma omp parallel for schedule(static) if (rows > 1 && rows * width >= parallel_elements)
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = row * width; i < (row + 1) * width; ++i) {
            const auto at = static_cast<size_t>(i);
            // The gate is clamped above alone. std::min and std::clamp return their first argument where it
            // is NaN, so a NaN stays one.
            const float g = std::min(to_float(gate[at]), limit);
            const float u = std::clamp(to_float(up[at]), -limit, limit);
            float a = elementary::silu(g) * u;
            if (!weights.empty()) a *= weights[static_cast<size_t>(row)];
            y[at] = bf16_from_float(a);
        }
}

void routed_expert(Arithmetic arithmetic, std::span<const Bf16> x, int64_t rows,
                   const RoutedExpertWeights& expert, std::span<const float> weights, float limit,
                   std::span<Bf16> y) {
    run_expert(rows, x, expert, SumOperator::expert_w1_w3, SumOperator::expert_w2, weights, limit, y,
               [&](SumOperator op, std::span<const Bf16> in, const Fp4Weight& weight, std::span<Bf16> out) {
                   linear_fp4(arithmetic, op, in, rows, weight, out);
               });
}

void shared_expert(Arithmetic arithmetic, std::span<const Bf16> x, int64_t rows,
                   const SharedExpertWeights& expert, float limit, std::span<Bf16> y) {
    run_expert(rows, x, expert, SumOperator::shared_w1_w3, SumOperator::shared_w2, {}, limit, y,
               [&](SumOperator op, std::span<const Bf16> in, const Fp8Weight& weight, std::span<Bf16> out) {
                   linear_fp8(arithmetic, op, in, rows, weight, out);
               });
}

ExpertsResult experts(Arithmetic arithmetic, std::span<const Bf16> x, const Routing& routing,
                      const std::function<RoutedExpertWeights(int32_t)>& expert,
                      const SharedExpertWeights& shared, float limit) {
    const int64_t rows = routing.rows, width = shared.w2.outputs;
    require("x", x.size(), rows, width);
    require("the routing's experts", routing.experts.size(), rows,
            rows > 0 ? std::ssize(routing.experts) / rows : 0);
    require("the routing's weights", routing.weights.size(), std::ssize(routing.experts), 1);
    const auto row_of = [width](auto&& tensor, int64_t row) { return tensor.begin() + row * width; };

    // 1. Routed experts, ascending: the order in which a row's outputs are added.
    std::vector<float> sums(x.size(), 0.0f);
    std::vector<Bf16> in, out;
    for (const auto& [id, chosen] : rows_by_expert(routing)) {
        const int64_t count = std::ssize(chosen.rows);
        in.resize(static_cast<size_t>(count * width));
        out.resize(in.size());
        for (int64_t i = 0; i < count; ++i)
            std::copy_n(row_of(x, chosen.rows[static_cast<size_t>(i)]), width, row_of(in, i));
        routed_expert(arithmetic, in, count, expert(id), chosen.weights, limit, out);
        for (int64_t i = 0; i < count; ++i) {
            const auto sum = row_of(sums, chosen.rows[static_cast<size_t>(i)]);
            std::transform(row_of(out, i), row_of(out, i + 1), sum, sum,
                           [](Bf16 value, float so_far) { return so_far + to_float(value); });
        }
    }

    // 2. The shared expert last.
    ExpertsResult result{std::vector<Bf16>(x.size()), std::vector<Bf16>(x.size())};
    shared_expert(arithmetic, x, rows, shared, limit, result.shared);
    std::transform(sums.begin(), sums.end(), result.shared.begin(), result.out.begin(),
                   [](float sum, Bf16 value) { return bf16_from_float(sum + to_float(value)); });
    return result;
}

}  // namespace touchstone
