// What kernels of experts have got wrong: the activation, one expert, and the sum of all.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "golden/hypotheses/component_words.h"
#include "reference/experts.h"
#include "reference/numerics/elementary.h"
#include "reference/quantize.h"
#include "reference/registry/entry.h"

namespace touchstone {

namespace {

const std::vector<std::string> on_activation{"swiglu", "routed_expert", "shared_expert", "experts"},
    on_expert{"routed_expert", "shared_expert", "experts"}, on_weighted{"swiglu", "routed_expert", "experts"},
    on_routed{"routed_expert", "experts"}, on_experts{"experts"};

using Activate = float (*)(float gate, float up, float limit);

float swiglu_of(float gate, float up, float limit) {
    return elementary::silu(std::min(gate, limit)) * std::clamp(up, -limit, limit);
}

float itself(float weight) {
    return weight;
}

/// What an expert does; as it stands here, the reference's.
struct ExpertRule {
    Activate activate = swiglu_of;
    float (*weigh)(float) = itself;  ///< the routed weight in front of w2
    bool weight_after_w2 = false;
    bool scale_before_clamp = false;      ///< Q8's scale is that of activations without clamps
    bool activation_unquantised = false;  ///< w2 takes bf16
};

/// [rows, width]: what goes into w2.
std::vector<Bf16> activations(std::span<const Bf16> gate, std::span<const Bf16> up, int64_t rows, float limit,
                              std::span<const float> weights, const ExpertRule& rule) {
    std::vector<Bf16> y;
    const size_t width = rows > 0 ? gate.size() / static_cast<size_t>(rows) : 1;
    for (size_t i = 0; i < gate.size(); ++i) {
        float a = rule.activate(to_float(gate[i]), to_float(up[i]), limit);
        if (!weights.empty() && !rule.weight_after_w2) a *= rule.weigh(weights[i / width]);
        y.push_back(bf16_from_float(a));
    }
    return y;
}

/// `clamped` as its codes say under the scales of `unclamped`; Q8 gives such values back unchanged.
std::vector<Bf16> quantised_under(const std::vector<Bf16>& unclamped, const std::vector<Bf16>& clamped) {
    constexpr size_t block = 32;
    const BlockRule& rule = quantizer_info(Quantizer::q8).rule;
    std::vector<Bf16> values;
    for (size_t i = 0; i < clamped.size(); ++i) {
        const float scale = block_scale(rule, block_maximum(&unclamped[i / block * block], block)).value;
        values.push_back(
            bf16_from_float(to_float(e4m3_from_float_saturating(to_float(clamped[i]) / scale)) * scale));
    }
    return values;
}

void linear(Arithmetic arithmetic, SumOperator op, std::span<const Bf16> x, int64_t rows,
            const Fp4Weight& weight, std::span<Bf16> y) {
    linear_fp4(arithmetic, op, x, rows, weight, y);
}

void linear(Arithmetic arithmetic, SumOperator op, std::span<const Bf16> x, int64_t rows,
            const Fp8Weight& weight, std::span<Bf16> y) {
    linear_fp8(arithmetic, op, x, rows, weight, y);
}

template <class Weight>
std::vector<Bf16> product(Arithmetic arithmetic, SumOperator op, std::span<const Bf16> x, int64_t rows,
                          const Weight& weight, bool unquantised = false) {
    std::vector<Bf16> y(static_cast<size_t>(rows * weight.outputs));
    if (!unquantised) {
        linear(arithmetic, op, x, rows, weight, std::span(y));
        return y;
    }
    truth::Matrix a(rows, weight.inputs);
    std::ranges::transform(x, a.data(), [](Bf16 v) { return static_cast<double>(to_float(v)); });
    const truth::Matrix sums = a * truth::linear_operands({}, 0, weight).b.transpose();
    std::transform(sums.data(), sums.data() + sums.size(), y.begin(),
                   [](double v) { return bf16_from_float(static_cast<float>(v)); });
    return y;
}

float without_clamps(float gate, float up, float) {
    return elementary::silu(gate) * up;
}

/// One expert on its rows.
template <class Weights>
std::vector<Bf16> expert(Arithmetic arithmetic, std::span<const Bf16> x, int64_t rows, const Weights& expert,
                         SumOperator w1_w3, SumOperator w2, float limit, std::span<const float> weights,
                         const ExpertRule& rule) {
    const std::vector<Bf16> gate = product(arithmetic, w1_w3, x, rows, expert.w1),
                            up = product(arithmetic, w1_w3, x, rows, expert.w3);
    std::vector<Bf16> a = activations(gate, up, rows, limit, weights, rule);
    if (rule.scale_before_clamp)
        a = quantised_under(activations(gate, up, rows, limit, weights, {.activate = without_clamps}), a);
    std::vector<Bf16> y = product(arithmetic, w2, a, rows, expert.w2, rule.activation_unquantised);
    for (size_t i = 0; i < y.size() && rule.weight_after_w2 && !weights.empty(); ++i)
        y[i] = bf16_from_float(to_float(y[i]) * weights[i / static_cast<size_t>(expert.w2.outputs)]);
    return y;
}

// The operators' tensors.

/// Expert `id` of `experts`.
RoutedExpertWeights routed_weights(const Call& call, int64_t id, int64_t experts) {
    const auto weight = [&](const std::string& name, int64_t outputs, int64_t inputs) {
        const auto part = [&](auto all) {
            const size_t size = all.size() / static_cast<size_t>(experts);
            return all.subspan(static_cast<size_t>(id) * size, size);
        };
        return Fp4Weight{"", outputs, inputs, part(call.in<uint8_t>(name)),
                         part(call.in<E8m0>(name + "_scale"))};
    };
    const int64_t hidden = call["hidden"], width = call["width"];
    return {weight("w1", width, hidden), weight("w2", hidden, width), weight("w3", width, hidden)};
}

SharedExpertWeights shared_weights(const Call& call, const std::string& prefix) {
    const auto weight = [&](const std::string& name, int64_t outputs, int64_t inputs) {
        return Fp8Weight{"", outputs, inputs, call.in<E4m3>(prefix + name),
                         call.in<E8m0>(prefix + name + "_scale")};
    };
    const int64_t hidden = call["hidden"], width = call["width"];
    return {weight("w1", width, hidden), weight("w2", hidden, width), weight("w3", width, hidden)};
}

std::vector<Bf16> routed(Arithmetic arithmetic, const Call& call, std::span<const Bf16> x, int64_t rows,
                         int64_t id, int64_t experts, std::span<const float> weights,
                         const ExpertRule& rule) {
    return expert(arithmetic, x, rows, routed_weights(call, id, experts), SumOperator::expert_w1_w3,
                  SumOperator::expert_w2, call.real("limit"), weights, rule);
}

std::vector<Bf16> shared(Arithmetic arithmetic, const Call& call, const std::string& prefix,
                         const ExpertRule& rule) {
    return expert(arithmetic, call.in<Bf16>("x"), call["rows"], shared_weights(call, prefix),
                  SumOperator::shared_w1_w3, SumOperator::shared_w2, call.real("limit"), {}, rule);
}

/// How the experts of a row are added.
struct SumRule {
    float shared_factor = 1;
    bool in_bf16 = false;  ///< every partial sum
};

bool all_experts(Arithmetic arithmetic, const Call& call, const ExpertRule& of_routed,
                 const ExpertRule& of_shared, const SumRule& sum) {
    const auto k = static_cast<size_t>(call["experts_per_token"]),
               hidden = static_cast<size_t>(call["hidden"]);
    const std::vector<Bf16> last = shared(arithmetic, call, "shared_", of_shared);
    std::ranges::copy(last, call.out<Bf16>("shared").begin());
    for (size_t row = 0; row < static_cast<size_t>(call["rows"]); ++row) {
        std::map<int32_t, std::vector<Bf16>> parts;
        for (size_t i = row * k; i < (row + 1) * k; ++i) {
            const int32_t id = call.in<int32_t>("chosen")[i];
            parts[id] = routed(arithmetic, call, call.in<Bf16>("x").subspan(row * hidden, hidden), 1, id,
                               call["experts"], call.in<float>("weights").subspan(i, 1), of_routed);
        }
        for (size_t d = row * hidden; d < (row + 1) * hidden; ++d) {
            float total = 0;
            for (const auto& part : parts) {
                total += to_float(part.second[d % hidden]);
                if (sum.in_bf16) total = rounded_to_bf16(total);
            }
            call.out<Bf16>("out")[d] = bf16_from_float(total + sum.shared_factor * to_float(last[d]));
        }
    }
    return true;
}

/// Whichever operator it is, all its experts by this rule.
bool run_expert(const ExpertRule& rule, Arithmetic arithmetic, const Call& call) {
    if (call.has_output("out")) return all_experts(arithmetic, call, rule, rule, {});
    std::vector<Bf16> y;
    if (call.has_input("gate")) {
        const auto weights = call["weighted"] != 0 ? call.in<float>("weights") : std::span<const float>();
        y = activations(call.in<Bf16>("gate"), call.in<Bf16>("up"), call["rows"], call.real("limit"), weights,
                        rule);
    } else if (call.has_input("weights")) {
        y = routed(arithmetic, call, call.in<Bf16>("x"), call["rows"], 0, 1, call.in<float>("weights"), rule);
    } else {
        y = shared(arithmetic, call, "", rule);
    }
    std::ranges::copy(y, call.out<Bf16>("y").begin());
    return true;
}

Outputs expert_with(const ExpertRule& rule) {
    return recomputed(
        [rule](Arithmetic arithmetic, const Call& call) { return run_expert(rule, arithmetic, call); });
}

Outputs activated_by(Activate activate) {
    return expert_with({.activate = activate});
}

Outputs experts_with(const ExpertRule& of_routed, const ExpertRule& of_shared, const SumRule& sum) {
    return recomputed([=](Arithmetic arithmetic, const Call& call) {
        return all_experts(arithmetic, call, of_routed, of_shared, sum);
    });
}

// Activations.

float gate_clamped_below(float gate, float up, float limit) {
    return swiglu_of(std::clamp(gate, -limit, limit), up, limit);
}
float up_clamped_above_alone(float gate, float up, float limit) {
    return elementary::silu(std::min(gate, limit)) * std::min(up, limit);
}
float gate_not_clamped(float gate, float up, float limit) {
    return elementary::silu(gate) * std::clamp(up, -limit, limit);
}
float up_not_clamped(float gate, float up, float limit) {
    return elementary::silu(std::min(gate, limit)) * up;
}
float product_clamped(float gate, float up, float limit) {
    return std::clamp(elementary::silu(gate) * up, -limit, limit);
}
float silu_clamped(float gate, float up, float limit) {
    return std::min(elementary::silu(gate), limit) * std::clamp(up, -limit, limit);
}
float swapped(float gate, float up, float limit) {
    return swiglu_of(up, gate, limit);
}
float by_gelu(float gate, float up, float limit) {
    return elementary::gelu(std::min(gate, limit)) * std::clamp(up, -limit, limit);
}
float by_tanh_gelu(float gate, float up, float limit) {
    const double g = static_cast<double>(std::min(gate, limit));
    const double y = 0.5 * g * (1 + std::tanh(0.7978845608028654 * (g + 0.044715 * g * g * g)));
    return static_cast<float>(y) * std::clamp(up, -limit, limit);
}
float by_sigmoid(float gate, float up, float limit) {
    return elementary::sigmoid(std::min(gate, limit)) * std::clamp(up, -limit, limit);
}
float by_relu(float gate, float up, float limit) {
    return std::max(std::min(gate, limit), 0.0f) * std::clamp(up, -limit, limit);
}
float of_gpt_oss(float gate, float up, float limit) {
    const float g = std::min(gate, limit);
    return g * elementary::sigmoid(1.702f * g) * (std::clamp(up, -limit, limit) + 1);
}
float rounded_in_between(float gate, float up, float limit) {
    return rounded_to_bf16(elementary::silu(std::min(gate, limit))) * std::clamp(up, -limit, limit);
}
float squared(float weight) {
    return weight * weight;
}

Outputs limit_of(double limit) {
    return with_parameters(
        [limit](Parameters& parameters, const OperatorRun&) { return set_real(parameters, "limit", limit); });
}

// Changed inputs of `experts`.

Outputs ids_moved(int32_t by) {
    return with_inputs([by](TensorMap& inputs, const OperatorRun& run) {
        const auto experts = static_cast<int32_t>(run.parameters["experts"]);
        for (int32_t& id : inputs.find("chosen")->second.view<int32_t>()) id = (id + by + experts) % experts;
        return experts > 1;
    });
}

/// The ids of each row ascending, the weights where they were.
bool ids_sorted_alone(TensorMap& inputs, const OperatorRun& run) {
    const int64_t k = run.parameters["experts_per_token"];
    const std::span<int32_t> chosen = inputs.find("chosen")->second.view<int32_t>();
    for (auto first = chosen.begin(); first != chosen.end(); first += k) std::sort(first, first + k);
    return k > 1;
}

/// The weight of one place among the chosen is 0.
Outputs choice_dropped(bool last) {
    return with_inputs([last](TensorMap& inputs, const OperatorRun& run) {
        const auto k = static_cast<size_t>(run.parameters["experts_per_token"]);
        const std::span<float> weights = inputs.find("weights")->second.view<float>();
        for (size_t i = 0; i < weights.size(); ++i)
            if (i % k == (last ? k - 1 : 0)) weights[i] = 0;
        return true;
    });
}

std::vector<Hypothesis> activation_rows() {
    const Cause fault = Cause::fault;
    return {
        {"silu_in_bf16", "order", "silu is rounded to bf16 in front of the product", Cause::order,
         on_activation, activated_by(rounded_in_between)},
        {"clamps_missing", "K19", "gate and up are not clamped", fault, on_activation, limit_of(1e30)},
        {"gate_clamp_missing", "K19", "gate is not clamped", fault, on_activation,
         activated_by(gate_not_clamped)},
        {"up_clamp_missing", "K19", "up is not clamped", fault, on_activation, activated_by(up_not_clamped)},
        {"gate_clamped_on_both_sides", "K19", "gate is clamped below, too", fault, on_activation,
         activated_by(gate_clamped_below)},
        {"up_clamped_above_alone", "K19", "up is clamped above alone", fault, on_activation,
         activated_by(up_clamped_above_alone)},
        {"clamp_after_product", "K19", "silu(gate) * up is clamped, not gate and up", fault, on_activation,
         activated_by(product_clamped)},
        {"clamp_after_silu", "K19", "silu(gate) is clamped, not gate", fault, on_activation,
         activated_by(silu_clamped)},
        {"clamp_at_7", "K19", "the limit is 7", fault, on_activation, limit_of(7)},
        {"gate_and_up_swapped", "K19", "w1 and w3, gate and up, are swapped", fault, on_activation,
         activated_by(swapped)},
        {"gelu_for_silu", "K19", "GELU stands for silu", fault, on_activation, activated_by(by_gelu)},
        {"tanh_gelu_for_silu", "K19", "the tanh form of GELU stands for silu", fault, on_activation,
         activated_by(by_tanh_gelu)},
        {"sigmoid_for_silu", "K19", "sigmoid stands for silu", fault, on_activation,
         activated_by(by_sigmoid)},
        {"relu_for_silu", "K19", "ReLU stands for silu", fault, on_activation, activated_by(by_relu)},
        {"swiglu_of_gpt_oss", "K19", "gate * sigmoid(1.702 gate) * (up + 1), as gpt-oss has it", fault,
         on_activation, activated_by(of_gpt_oss)},
        {"expert_weight_missing", "K18", "the routed weight is left out", fault, on_weighted,
         with_each({"weights"}, to_one)},
        {"expert_weight_twice", "K18", "the routed weight is applied twice", fault, on_weighted,
         expert_with({.weigh = squared})},
        {"expert_weight_after_w2", "K18", "the routed weight is applied behind w2, outside its quantisation",
         fault, on_routed, expert_with({.weight_after_w2 = true})},
        {"clamp_after_quantisation", "K19", "w2's input is quantised under scales from before the clamps",
         fault, on_expert, expert_with({.scale_before_clamp = true})},
        {"activation_unquantised", "K19", "w2's input is not quantised", fault, on_expert,
         expert_with({.activation_unquantised = true})},
    };
}

std::vector<Hypothesis> sum_rows() {
    const Cause fault = Cause::fault;
    const ExpertRule same;
    return {
        {"experts_added_in_bf16", "order", "the sum over experts is rounded to bf16 each time", Cause::order,
         on_experts, experts_with(same, same, {.in_bf16 = true})},
        {"shared_expert_not_clamped", "K19", "the shared expert lacks the clamps", fault, on_experts,
         experts_with(same, {.activate = without_clamps}, {})},
        {"routed_experts_not_clamped", "K19", "the routed experts lack the clamps", fault, on_experts,
         experts_with({.activate = without_clamps}, same, {})},
        {"shared_expert_missing", "K19", "the shared expert is not added", fault, on_experts,
         experts_with(same, same, {.shared_factor = 0})},
        {"shared_expert_twice", "K19", "the shared expert is added twice", fault, on_experts,
         experts_with(same, same, {.shared_factor = 2})},
        {"shared_expert_scaled", "K19", "the shared expert has the routed scaling factor 1.5", fault,
         on_experts, experts_with(same, same, {.shared_factor = 1.5f})},
        {"expert_ids_one_up", "K18", "each row goes to the expert behind the chosen one", fault, on_experts,
         ids_moved(1)},
        {"expert_ids_one_down", "K18", "each row goes to the expert before the chosen one", fault, on_experts,
         ids_moved(-1)},
        {"expert_weights_not_sorted_with_ids", "K18", "ids are sorted, their weights are not", fault,
         on_experts, with_inputs(ids_sorted_alone)},
        {"last_choice_dropped", "K18", "the last of a row's experts is left out", fault, on_experts,
         choice_dropped(true)},
        {"first_choice_dropped", "K18", "the first of a row's experts is left out", fault, on_experts,
         choice_dropped(false)},
    };
}

}  // namespace

std::vector<Hypothesis> expert_hypotheses() {
    std::vector<Hypothesis> rows = activation_rows();
    for (Hypothesis& row : sum_rows()) rows.push_back(std::move(row));
    return rows;
}

}  // namespace touchstone
