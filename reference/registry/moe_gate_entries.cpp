// Entry of moe_gate.h.
#include "reference/moe_gate.h"

#include <algorithm>

#include "reference/registry/entry.h"
#include "reference/registry/families.h"
#include "reference/truth/moe.h"

namespace touchstone {

namespace {

void make(const CaseInputs& in) {
    fill_normal<Bf16>(in, "x");
    fill_normal<Bf16>(in, "weight", 0x1p-4f);
    fill_normal<float>(in, "bias", 0.25f);
    fill_normal<float>(in, "bias_vl", 0.25f);
    const auto images = in.at<uint8_t>("image_rows");
    for (size_t row = 0; row < images.size(); ++row)
        images[row] = in.fill_is("images") && row % 2 == 1 ? 2 : 0;
    if (in["forced"] != 0)
        for (size_t i = 0; i < in.at<int32_t>("forced_experts").size(); ++i)
            in.at<int32_t>("forced_experts")[i] =
                static_cast<int32_t>((static_cast<int64_t>(i) * 7 + 3) % in["experts"]);
    if (!in.fill_is("ties")) return;
    // Experts in pairs with the same weight and bias: equal scores, the lower id wins. A row of zeros ties
    // all.
    const std::span<Bf16> weight = in.at<Bf16>("weight");
    const int64_t hidden = in["hidden"];
    for (int64_t expert = 1; expert < in["experts"]; expert += 2) {
        std::copy_n(weight.begin() + (expert - 1) * hidden, hidden, weight.begin() + expert * hidden);
        in.at<float>("bias")[static_cast<size_t>(expert)] =
            in.at<float>("bias")[static_cast<size_t>(expert - 1)];
    }
    std::fill_n(in.at<Bf16>("x").begin(), std::min(hidden, std::ssize(in.at<Bf16>("x"))), Bf16{0});
    // Logits on both sides of 20, from where softplus is the identity.
    for (int64_t i = 0; i < hidden && in["rows"] > 1; ++i) {
        Bf16& x = in.at<Bf16>("x")[static_cast<size_t>(hidden + i)];
        x = bf16_from_float(to_float(x) * 16);
    }
}

void run(Arithmetic arithmetic, const Call& call) {
    const GateWeights weights{bf16_weight(call, "weight", call["experts"], call["hidden"]),
                              call.in<float>("bias"), call.in<float>("bias_vl")};
    const auto forced = call["forced"] != 0 ? call.in<int32_t>("forced_experts") : std::span<const int32_t>();
    const Routing routing = moe_gate(arithmetic, call.in<Bf16>("x"), call["rows"], weights,
                                     {call["experts_per_token"], call.real("scaling_factor")},
                                     call.in<uint8_t>("image_rows"), forced);
    std::ranges::copy(routing.scores, call.out<float>("scores").begin());
    std::ranges::copy(routing.experts, call.out<int32_t>("chosen").begin());
    std::ranges::copy(routing.weights, call.out<float>("weights").begin());
}

void judge(const truth::Ledger&, const Call& call) {
    const int64_t rows = call["rows"], k = call["experts_per_token"];
    const truth::Matrix scores =
        truth::gate_scores(matrix(call, "x", rows), matrix(call, "weight", call["experts"]));
    std::vector<std::vector<int64_t>> chosen;
    for (int64_t row = 0; row < rows; ++row) {
        const bool image = call.in<uint8_t>("image_rows")[static_cast<size_t>(row)] != 0;
        const truth::Vector bias = vector(call, image ? "bias_vl" : "bias");
        chosen.push_back(truth::select_experts(scores.row(row), bias, k).front());
        if (call["forced"] == 0) continue;
        const auto forced =
            call.in<int32_t>("forced_experts").subspan(static_cast<size_t>(row * k), static_cast<size_t>(k));
        chosen.back().assign(forced.begin(), forced.end());
    }
    const truth::Routing routing =
        truth::route(scores, std::move(chosen), static_cast<double>(call.real("scaling_factor")));
    put(call, "scores", scores);
    put(call, "weights", routing.weights);
    for (int64_t i = 0; i < rows * k; ++i)
        call.out<double>("chosen")[static_cast<size_t>(i)] =
            static_cast<double>(routing.experts[static_cast<size_t>(i / k)][static_cast<size_t>(i % k)]);
}

}  // namespace

OperatorInfo moe_gate_entry() {
    OperatorInfo info;
    info.name = "moe_gate";
    info.purpose = "which experts each row goes to, and with what weights";
    info.equation =
        "s = sqrt(softplus(x . weight^T)); chosen: the largest s + bias; weight = s / (sum of the chosen s + "
        "1e-20) * scaling_factor";
    info.source = "text model 9.1";
    info.parameters = {integer("rows", "4", "0", "1048576", "rows"),
                       integer("experts", "384", "1", "65536", "routed experts"),
                       integer("experts_per_token", "6", "1", "experts", "that a row chooses"),
                       integer("hidden", "5120", "16", "65536", "channels of a row", 16),
                       integer("forced", "0", "0", "1", "1: forced_experts are taken instead"),
                       real("scaling_factor", "1.5", "0", "1000", "of the weights"),
                       fill_choice({"normal", "ties", "images"})};
    info.inputs = {{"x", "BF16", "[rows, hidden]", "rows"},
                   {"weight", "BF16", "[experts, hidden]", "gate.weight"},
                   {"bias", "F32", "[experts]", "added for the selection alone"},
                   {"bias_vl", "F32", "[experts]", "in its place for rows inside an image"},
                   {"image_rows", "U8", "[rows]", "nonzero inside an image"},
                   {"forced_experts", "I32", "[rows, experts_per_token]", "in this order", "forced", "0",
                    "experts - 1"}};
    info.outputs = {tolerated(1e-6, {"scores", "F32", "[rows, experts]", "without bias"}),
                    equal({"chosen", "I32", "[rows, experts_per_token]", "largest biased score first"}),
                    tolerated(1e-6, {"weights", "F32", "[rows, experts_per_token]", "of the chosen"})};
    info.sums = {SumOperator::moe_gate, SumOperator::expert_weight_normalisation};
    info.profiles = two_orders;
    info.cases = {{"moe_gate(rows=4,experts=64,hidden=1280)", ""},
                  {"moe_gate(rows=3,experts=384,hidden=512,fill=ties)",
                   "pairs of equal experts, a row of zeros, logits around 20"},
                  {"moe_gate(rows=4,experts=48,hidden=256,fill=images)", "every other row inside an image"},
                  {"moe_gate(rows=4,experts=48,hidden=256,experts_per_token=1)",
                   "one expert: its weight is not divided"},
                  {"moe_gate(rows=2,experts=6,hidden=64)", "every expert is chosen"},
                  {"moe_gate(rows=2,experts=64,hidden=128,forced=1)", "experts from outside"}};
    info.make_inputs = make;
    info.run = run;
    info.judge = judge;
    return info;
}

}  // namespace touchstone
