// Entries of experts.h.
#include "reference/experts.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "reference/registry/entry.h"
#include "reference/registry/families.h"
#include "reference/truth/moe.h"

namespace touchstone {

OperatorInfo moe_gate_entry();

namespace {

const Parameter rows = integer("rows", "3", "0", "1048576", "rows");
const Parameter hidden =
    integer("hidden", "512", "32", "65536", "channels of a row; the model has 5,120", 32);
const Parameter width = integer("width", "256", "32", "65536", "inside the expert; the model has 2,304", 32);
const Parameter limit = real("limit", "10", "0", "1e30", "of the clamps");
const std::vector<std::string> expert_roundings{"x by Q8", "gate and up to bf16",
                                                "the activation, times its weight, to bf16",
                                                "the activation by Q8", "the result to bf16"};

double clamped(double x, double low, double high) {
    return std::isnan(x) ? x : std::clamp(x, low, high);
}

void run_swiglu(Arithmetic, const Call& call) {
    swiglu(call.in<Bf16>("gate"), call.in<Bf16>("up"), call["rows"], call.real("limit"),
           call["weighted"] != 0 ? call.in<float>("weights") : std::span<const float>(), call.out<Bf16>("y"));
}

void judge_swiglu(const truth::Ledger&, const Call& call) {
    const double most = static_cast<double>(call.real("limit"));
    const truth::Matrix gate = matrix(call, "gate", call["rows"]), up = matrix(call, "up", call["rows"]);
    const std::span<double> y = call.out<double>("y");
    for (size_t i = 0; i < y.size(); ++i) {
        const auto at = static_cast<int64_t>(i);
        const double g = clamped(gate.data()[at], -HUGE_VAL, most), v = clamped(up.data()[at], -most, most);
        y[i] = g / (1 + std::exp(-g)) * v;
        if (std::isinf(g)) y[i] = -0.0 * v;  // silu(-infinity)
        if (call["weighted"] != 0)
            y[i] *= static_cast<double>(call.in<float>("weights")[i / static_cast<size_t>(call["width"])]);
    }
}

/// exp, the additions and products of silu and the two products after it, 8 roundings, and the one to bf16.
void bound_swiglu(const Call& call, const TensorMap& truth) {
    const std::span<const double> y = truth.find("y")->second.view<double>();
    for (size_t i = 0; i < y.size(); ++i) {
        const double error = 8 * u * std::abs(y[i]) + least;
        call.out<double>("y")[i] = error + bf16_rounding(y[i], error);
    }
}

OperatorInfo swiglu_entry() {
    OperatorInfo info;
    info.name = "swiglu";
    info.purpose = "an expert's activation, both branches clamped";
    info.equation = "y = silu(min(gate, limit)) * clamp(up, -limit, limit) * weight";
    info.source = "text model 9.2";
    info.parameters = {rows, integer("width", "2304", "1", "1048576", "inside the expert"),
                       integer("weighted", "1", "0", "1", "0: the shared expert, no weights"), limit,
                       fill_choice({"normal", "limits"})};
    info.inputs = {{"gate", "BF16", "[rows, width]", "w1's branch, clamped above alone"},
                   {"up", "BF16", "[rows, width]", "w3's branch, clamped on both sides"},
                   {"weights", "F32", "[rows]", "of the expert for each row", "weighted"}};
    info.outputs = {bounded({"y", "BF16", "[rows, width]", "what goes into w2"})};
    info.roundings = {"y to bf16"};
    info.profiles = one_order;
    info.cases = {{"swiglu(rows=3,width=320)", ""},
                  {"swiglu(rows=3,width=320,fill=limits)",
                   "both clamps and what lies beside them, -0, NaN, gates far below 0"},
                  {"swiglu(rows=2,width=33,weighted=0)", "no weights"}};
    info.make_inputs = [](const CaseInputs& in) {
        fill_normal<Bf16>(in, "gate", in.fill_is("limits") ? 16 : 2);
        fill_normal<Bf16>(in, "up", in.fill_is("limits") ? 16 : 2);
        if (in["weighted"] != 0) fill_normal<float>(in, "weights");
        if (!in.fill_is("limits")) return;
        constexpr uint16_t hard[] = {0x0000, 0x8000, 0x411F, 0x4120, 0x4121, 0xC11F,
                                     0xC120, 0xC121, 0x7FC1, 0xC2D0, 0x7F7F};
        for (const char* slot : {"gate", "up"})
            for (size_t i = 0; i < in.at<Bf16>(slot).size(); ++i) {
                const uint32_t word = in.random(slot).word(i);
                if (word % 2 == 0) in.at<Bf16>(slot)[i] = {hard[word / 2 % std::size(hard)]};
            }
    };
    info.run = run_swiglu;
    info.judge = judge_swiglu;
    info.bound = [](Arithmetic, const Call& call, const TensorMap& truth) { bound_swiglu(call, truth); };
    return info;
}

/// x of rows that trip the clamps of w1 and w3 (limits), or ordinary.
void fill_rows(const CaseInputs& in) {
    fill_normal<Bf16>(in, "x", in.fill_is("limits") ? 128 : 1);
    if (in.fill_is("limits"))
        put_limit_rows(
            in.at<Bf16>("x").first(std::min(in.at<Bf16>("x").size(), static_cast<size_t>(2 * in["hidden"]))),
            in["hidden"]);
}

RoutedExpertWeights routed_weights(const Call& call) {
    const int64_t d = call["hidden"], i = call["width"];
    return {fp4_weight(call, "w1", "w1_scale", i, d), fp4_weight(call, "w2", "w2_scale", d, i),
            fp4_weight(call, "w3", "w3_scale", i, d)};
}

SharedExpertWeights shared_weights(const Call& call, const std::string& prefix) {
    const int64_t d = call["hidden"], i = call["width"];
    const auto weight = [&](const char* name, int64_t outputs, int64_t inputs) {
        return Fp8Weight{name, outputs, inputs, call.in<E4m3>(prefix + name),
                         call.in<E8m0>(prefix + name + "_scale")};
    };
    return {weight("w1", i, d), weight("w2", d, i), weight("w3", i, d)};
}

template <class Weights>
truth::ExpertWeights dequantised(const Weights& weights) {
    const auto values = [](const auto& weight) { return truth::linear_operands({}, 0, weight).b; };
    return {values(weights.w1), values(weights.w2), values(weights.w3)};
}

std::vector<Slot> shared_slots(const std::string& prefix) {
    std::vector<Slot> slots;
    for (const auto& [name, shape, tiles] :
         {std::array<const char*, 3>{"w1", "[width, hidden]", "[width / 32, hidden / 32]"},
          std::array<const char*, 3>{"w3", "[width, hidden]", "[width / 32, hidden / 32]"},
          std::array<const char*, 3>{"w2", "[hidden, width]", "[hidden / 32, width / 32]"}}) {
        slots.push_back({prefix + name, "F8_E4M3", shape, "codes"});
        slots.push_back({prefix + name + "_scale", "F8_E8M0", tiles, "a scale per tile of 32 x 32"});
    }
    return slots;
}

std::vector<Slot> routed_slots(const std::string& lead) {
    std::vector<Slot> slots;
    for (const auto& [name, shape, scales] :
         {std::array<const char*, 3>{"w1", "width, hidden / 2]", "width, hidden / 32]"},
          std::array<const char*, 3>{"w3", "width, hidden / 2]", "width, hidden / 32]"},
          std::array<const char*, 3>{"w2", "hidden, width / 2]", "hidden, width / 32]"}}) {
        slots.push_back({name, "I8", "[" + lead + shape, "packed e2m1"});
        slots.push_back(
            {std::string(name) + "_scale", "F8_E8M0", "[" + lead + scales, "a scale per row and 32 inputs"});
    }
    return slots;
}

OperatorInfo routed_entry() {
    OperatorInfo info;
    info.name = "routed_expert";
    info.purpose = "one routed expert, fp4, on the rows that chose it";
    info.equation = "y = w2 . swiglu(w1 . x, w3 . x, weight), every product an L4";
    info.source = "text model 9.2";
    info.parameters = {rows, hidden, width, limit, fill_choice({"normal", "limits"})};
    info.inputs = routed_slots("");
    info.inputs.insert(info.inputs.begin(), {{"x", "BF16", "[rows, hidden]", "rows"},
                                             {"weights", "F32", "[rows]", "of the expert for each row"}});
    info.outputs = {tolerated(0.03, {"y", "BF16", "[rows, hidden]", "the expert's part"})};
    info.roundings = expert_roundings;
    info.sums = {SumOperator::expert_w1_w3, SumOperator::expert_w2};
    info.profiles = three_orders;
    info.cases = {{"routed_expert(rows=32)", ""},
                  {"routed_expert(rows=4,hidden=256,width=96,fill=limits)",
                   "a row of zeros, one of -0, rows that reach both clamps"}};
    info.make_inputs = [](const CaseInputs& in) {
        fill_rows(in);
        fill_normal<float>(in, "weights");
        for (const std::string name : {"w1", "w3", "w2"}) fill_fp4_weight(in, name, name + "_scale");
    };
    info.run = [](Arithmetic arithmetic, const Call& call) {
        routed_expert(arithmetic, call.in<Bf16>("x"), call["rows"], routed_weights(call),
                      call.in<float>("weights"), call.real("limit"), call.out<Bf16>("y"));
    };
    info.judge = [](const truth::Ledger& ledger, const Call& call) {
        put(call, "y",
            truth::expert(matrix(call, "x", call["rows"]), dequantised(routed_weights(call)),
                          vector(call, "weights"), static_cast<double>(call.real("limit")), ledger));
    };
    return info;
}

truth::Matrix judged_shared(const truth::Ledger& ledger, const Call& call, const std::string& prefix) {
    return truth::expert(matrix(call, "x", call["rows"]), dequantised(shared_weights(call, prefix)),
                         truth::Vector::Ones(call["rows"]), static_cast<double>(call.real("limit")), ledger);
}

OperatorInfo shared_entry() {
    OperatorInfo info;
    info.name = "shared_expert";
    info.purpose = "the shared expert, fp8, on every row";
    info.equation = "y = w2 . swiglu(w1 . x, w3 . x), every product an L8";
    info.source = "text model 9.2";
    info.parameters = {rows, hidden, width, limit, fill_choice({"normal", "limits"})};
    info.inputs = shared_slots("");
    info.inputs.insert(info.inputs.begin(), {"x", "BF16", "[rows, hidden]", "rows"});
    info.outputs = {tolerated(0.03, {"y", "BF16", "[rows, hidden]", "the expert's part"})};
    info.roundings = expert_roundings;
    info.sums = {SumOperator::shared_w1_w3, SumOperator::shared_w2};
    info.profiles = three_orders;
    info.cases = {{"shared_expert(rows=32)", ""},
                  {"shared_expert(rows=4,hidden=256,width=96,fill=limits)",
                   "a row of zeros, one of -0, rows that reach both clamps"}};
    info.make_inputs = [](const CaseInputs& in) {
        fill_rows(in);
        for (const std::string name : {"w1", "w3", "w2"}) fill_fp8_weight(in, name, name + "_scale");
    };
    info.run = [](Arithmetic arithmetic, const Call& call) {
        shared_expert(arithmetic, call.in<Bf16>("x"), call["rows"], shared_weights(call, ""),
                      call.real("limit"), call.out<Bf16>("y"));
    };
    info.judge = [](const truth::Ledger& ledger, const Call& call) {
        put(call, "y", judged_shared(ledger, call, ""));
    };
    return info;
}

RoutedExpertWeights expert_of(const Call& call, int64_t id) {
    const int64_t d = call["hidden"], i = call["width"];
    const auto part = [id, &call](auto all) {
        const size_t size = all.size() / static_cast<size_t>(call["experts"]);
        return all.subspan(static_cast<size_t>(id) * size, size);
    };
    const auto weight = [&](const char* name, int64_t outputs, int64_t inputs) {
        return Fp4Weight{name, outputs, inputs, part(call.in<uint8_t>(name)),
                         part(call.in<E8m0>(std::string(name) + "_scale"))};
    };
    return {weight("w1", i, d), weight("w2", d, i), weight("w3", i, d)};
}

void run_experts(Arithmetic arithmetic, const Call& call) {
    const auto chosen = call.in<int32_t>("chosen");
    const auto weights = call.in<float>("weights");
    const Routing routing{call["rows"], {}, {chosen.begin(), chosen.end()}, {weights.begin(), weights.end()}};
    const ExpertsResult result = experts(
        arithmetic, call.in<Bf16>("x"), routing, [&](int32_t id) { return expert_of(call, id); },
        shared_weights(call, "shared_"), call.real("limit"));
    std::ranges::copy(result.shared, call.out<Bf16>("shared").begin());
    std::ranges::copy(result.out, call.out<Bf16>("out").begin());
}

void judge_experts(const truth::Ledger& ledger, const Call& call) {
    const int64_t k = call["experts_per_token"];
    const truth::Matrix x = matrix(call, "x", call["rows"]), weights = matrix(call, "weights", call["rows"]);
    const truth::Matrix shared = judged_shared(ledger, call, "shared_");
    truth::Matrix out = shared;
    for (int64_t id = 0; id < call["experts"]; ++id) {
        const truth::ExpertWeights expert = dequantised(expert_of(call, id));
        for (int64_t i = 0; i < call["rows"] * k; ++i)
            if (call.in<int32_t>("chosen")[static_cast<size_t>(i)] == id)
                out.row(i / k) +=
                    truth::expert(x.row(i / k), expert, truth::Vector::Constant(1, weights(i / k, i % k)),
                                  static_cast<double>(call.real("limit")), ledger);
    }
    put(call, "shared", shared);
    put(call, "out", out);
}

OperatorInfo experts_entry() {
    OperatorInfo info;
    info.name = "experts";
    info.purpose = "all experts of a layer on rows that are routed already";
    info.equation = "out = sum over chosen experts, ids ascending, of expert(x) + shared(x)";
    info.source = "text model 9.2, 9.3";
    info.parameters = {rows,
                       integer("experts", "8", "1", "65536", "routed experts; the model has 384"),
                       integer("experts_per_token", "3", "1", "experts", "that a row chose; the model has 6"),
                       hidden,
                       width,
                       limit,
                       fill_choice({"normal", "limits"})};
    info.inputs = routed_slots("experts, ");
    std::ranges::copy(shared_slots("shared_"), std::back_inserter(info.inputs));
    info.inputs.insert(info.inputs.begin(),
                       {{"x", "BF16", "[rows, hidden]", "rows"},
                        {"chosen", "I32", "[rows, experts_per_token]", "ids, no one twice in a row", "1", "0",
                         "experts - 1"},
                        {"weights", "F32", "[rows, experts_per_token]", "of the chosen"}});
    info.outputs = {tolerated(0.03, {"shared", "BF16", "[rows, hidden]", "the shared expert's part"}),
                    tolerated(0.03, {"out", "BF16", "[rows, hidden]", "the result"})};
    info.roundings = expert_roundings;
    info.roundings.push_back("the sum of all experts to bf16");
    info.sums = {SumOperator::expert_w1_w3, SumOperator::expert_w2, SumOperator::shared_w1_w3,
                 SumOperator::shared_w2, SumOperator::expert_combine};
    info.profiles = three_orders;
    info.cases = {{"experts(rows=32,hidden=256,width=64)", "ids in descending order: the sum ascends"},
                  {"experts(rows=3,experts=2,experts_per_token=2,hidden=64,width=32,fill=limits)",
                   "a row of zeros, one of -0, rows that reach both clamps"},
                  {"experts(rows=1,experts=1,experts_per_token=1,hidden=32,width=32)", "one expert"}};
    info.make_inputs = [](const CaseInputs& in) {
        fill_rows(in);
        fill_normal<float>(in, "weights");
        for (const std::string name : {"w1", "w3", "w2"}) {
            fill_fp4_weight(in, name, name + "_scale");
            fill_fp8_weight(in, "shared_" + name, "shared_" + name + "_scale");
        }
        const int64_t k = in["experts_per_token"];
        for (int64_t i = 0; i < in["rows"] * k; ++i)
            in.at<int32_t>("chosen")[static_cast<size_t>(i)] =
                static_cast<int32_t>((i / k + k - 1 - i % k) % in["experts"]);
    };
    info.run = run_experts;
    info.judge = judge_experts;
    return info;
}

}  // namespace

std::vector<OperatorInfo> expert_operators() {
    return {moe_gate_entry(), swiglu_entry(), routed_entry(), shared_entry(), experts_entry()};
}

}  // namespace touchstone
