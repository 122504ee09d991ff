// Entries of linear.h and grouped_linear.h.
#include "reference/linear.h"

#include <algorithm>
#include <cmath>

#include "reference/grouped_linear.h"
#include "reference/io/user_error.h"
#include "reference/registry/entry.h"
#include "reference/registry/families.h"
#include "reference/truth/linear.h"

namespace touchstone {

namespace {

SumOperator named_sum(const Call& call) {
    const std::string& name = call.parameters.choice("sum");
    return std::ranges::find(sum_order_table, name, &SumOrderRow::name)->op;
}

/// The bound of an accumulator: truth/linear.h derives it.
truth::Matrix accumulator_bound(Arithmetic arithmetic, SumOperator op, bool block_scaled,
                                const truth::LinearOperands& operands, int64_t outputs) {
    const SumOrder order = sum_order(op, operands.a.cols(), outputs);
    const auto plus_least = [](truth::Matrix bound) { return truth::Matrix(bound.array() + least); };
    if (arithmetic == Arithmetic::exact)
        return plus_least(block_scaled ? truth::exact_blocks_bound(operands)
                                       : truth::exact_lanes_bound(operands, order.lanes));
    if (arithmetic == Arithmetic::released_hopper) return plus_least(truth::released_hopper_bound(operands));
    return plus_least(truth::hopper_bound(operands, order));
}

void put_bounds(const Call& call, const truth::Matrix& bound, const TensorMap& truth,
                std::string_view accumulator, std::string_view rounded) {
    const std::span<const double> y = truth.begin()->second.view<double>();
    for (int64_t i = 0; i < bound.size(); ++i) {
        const auto at = static_cast<size_t>(i);
        if (!accumulator.empty()) call.out<double>(accumulator)[at] = bound.data()[i];
        if (!rounded.empty())
            call.out<double>(rounded)[at] = bound.data()[i] + bf16_rounding(y[at], bound.data()[i]);
    }
}

/// Without the ledger activations are not quantised.
truth::LinearOperands with_ledger(const truth::Ledger& ledger, const Call& call,
                                  truth::LinearOperands operands) {
    if (!ledger.rounds()) operands.a = matrix(call, "x", call["rows"]);
    return operands;
}

/// What the three kinds of weight share; `operands` are truth's.
OperatorInfo linear_entry(std::string name, std::vector<std::string> sums, bool block_scaled,
                          std::function<truth::LinearOperands(const Call&)> operands) {
    OperatorInfo info;
    info.name = std::move(name);
    info.equation = block_scaled ? "y = Q8(x) . weight^T" : "y = x . weight^T";
    info.parameters = {integer("rows", "2", "0", "1048576", "rows"),
                       integer("outputs", "1280", "1", "1048576", "N: outputs"),
                       integer("inputs", block_scaled ? "2304" : "5120", "16", "1048576", "K: inputs",
                               block_scaled ? 32 : 16),
                       choice("sum", std::move(sums), "row of the split and lane table"),
                       fill_choice({"normal", "limits"})};
    info.inputs = {{"x", "BF16", "[rows, inputs]", "activations"}};
    info.outputs = {bounded({"accumulator", "F32", "[rows, outputs]", "what y rounds"}),
                    bounded({"y", "BF16", "[rows, outputs]", "the result"})};
    if (block_scaled) info.roundings = {"x by Q8, in blocks of 32"};
    info.roundings.push_back("the accumulator to bf16");
    info.profiles = block_scaled ? three_orders : two_orders;
    info.judge = [operands](const truth::Ledger& ledger, const Call& call) {
        const truth::Matrix y = truth::linear(with_ledger(ledger, call, operands(call)));
        put(call, "accumulator", y);
        put(call, "y", y);
    };
    info.bound = [operands, block_scaled](Arithmetic arithmetic, const Call& call, const TensorMap& truth) {
        put_bounds(
            call,
            accumulator_bound(arithmetic, named_sum(call), block_scaled, operands(call), call["outputs"]),
            truth, "accumulator", "y");
    };
    return info;
}

std::vector<OperatorCase> linear_cases(const std::string& name, const std::vector<std::string>& sums,
                                       int64_t multiple) {
    const auto text = [&](const char* shape, const std::string& rest) {
        return name + "(" + shape + rest + ")";
    };
    const std::string k = std::to_string(multiple);
    std::vector<OperatorCase> cases = {
        {text("rows=5,outputs=40,inputs=512", ",fill=limits"),
         "zero rows, -0, 448 * 2^k, widely spread values, NaN; zero blocks under extreme scales"},
        {text("rows=3,outputs=33,inputs=", k), "the least K; outputs that end inside a tile"},
        {text("rows=2,outputs=512,inputs=2048", ""), "the last N in 8 pieces"},
        {text("rows=1,outputs=513,inputs=1024", ""), "the first N in 4 pieces"},
        {text("rows=1,outputs=1281,inputs=256", ""), "the first N that is not cut"},
        {text("rows=0,outputs=32,inputs=64", ""), "no rows"}};
    for (const std::string& sum : sums)
        cases.push_back({text("rows=2,outputs=48,inputs=1280,sum=", sum), ""});
    return cases;
}

/// Blocks of zeros under the least scale and the largest that no activation scale brings to infinity (there 0
/// times infinity is NaN in `exact`, as in the released formula): they change nothing in any profile.
template <class Code>
void put_zero_blocks(std::span<Code> codes, std::span<E8m0> scales, int64_t codes_per_scale) {
    for (size_t i = 0; i < scales.size(); i += 3) {
        scales[i] = {static_cast<uint8_t>(i % 2 == 0 ? 0 : 246)};
        std::fill_n(codes.begin() + static_cast<int64_t>(i) * codes_per_scale, codes_per_scale, Code{});
    }
}

void make_fp8(const CaseInputs& in) {
    fill_normal<Bf16>(in, "x", in.fill_is("extreme_scales") ? 0x1p-14f : 1.0f);
    fill_fp8_weight(in, "weight", "scale");
    const auto codes = in.at<E4m3>("weight");
    const auto scales = in.at<E8m0>("scale");
    if (in.fill_is("extreme_scales"))
        for (size_t i = 0; i < scales.size(); ++i)
            scales[i] = {static_cast<uint8_t>(i % 2 == 0 ? i % 3 : 247 + i % 3)};
    if (!in.fill_is("limits")) return;
    put_limit_rows(in.at<Bf16>("x"), in["inputs"]);
    // The first tile of each row of tiles: codes +-0 under extreme scales.
    for (int64_t n = 0; n < in["outputs"]; ++n) {
        scales[static_cast<size_t>(n / 32 * (in["inputs"] / 32))] = {
            static_cast<uint8_t>(n / 32 % 2 == 0 ? 0 : 246)};
        for (int64_t k = 0; k < 32; ++k)
            codes[static_cast<size_t>(n * in["inputs"] + k)] = {
                static_cast<uint8_t>(k % 2 == 0 ? 0x00 : 0x80)};
    }
}

OperatorInfo linear_fp8_entry() {
    const std::vector<std::string> sums{"wq_a",       "wq_b",         "wkv",       "wo_b",
                                        "index_wq_b", "shared_w1_w3", "shared_w2", "engram_wkv"};
    OperatorInfo info = linear_entry("linear_fp8", sums, true, [](const Call& call) {
        return truth::linear_operands(call.in<Bf16>("x"), call["rows"],
                                      fp8_weight(call, "weight", "scale", call["outputs"], call["inputs"]));
    });
    info.purpose = "L8: linear layer with fp8 weights in tiles of 32 x 32, activations quantised to fp8";
    info.source = "text model 2.4, 2.5; numerics contract 1";
    info.inputs.push_back({"weight", "F8_E4M3", "[outputs, inputs]", "codes, as the checkpoint has them"});
    info.inputs.push_back({"scale", "F8_E8M0", "[(outputs + 31) / 32, inputs / 32]", "a scale per tile"});
    info.cases = linear_cases("linear_fp8", sums, 32);
    info.parameters.back().choices.push_back("extreme_scales");
    info.cases.push_back(
        {"linear_fp8(rows=2,outputs=40,inputs=128,fill=extreme_scales)",
         "scale bytes 0 to 2 and 247 to 249 under codes that are not zero: no exact bf16, hopper refuses",
         {Arithmetic::exact, Arithmetic::released_hopper}});
    info.make_inputs = make_fp8;
    info.run = [](Arithmetic arithmetic, const Call& call) {
        const Fp8Weight weight = fp8_weight(call, "weight", "scale", call["outputs"], call["inputs"]);
        linear_fp8(arithmetic, named_sum(call), call.in<Bf16>("x"), call["rows"], weight,
                   call.out<float>("accumulator"));
        linear_fp8(arithmetic, named_sum(call), call.in<Bf16>("x"), call["rows"], weight,
                   call.out<Bf16>("y"));
    };
    return info;
}

OperatorInfo linear_fp4_entry() {
    const std::vector<std::string> sums{"expert_w1_w3", "expert_w2"};
    OperatorInfo info = linear_entry("linear_fp4", sums, true, [](const Call& call) {
        return truth::linear_operands(call.in<Bf16>("x"), call["rows"],
                                      fp4_weight(call, "weight", "scale", call["outputs"], call["inputs"]));
    });
    info.purpose = "L4: linear layer of a routed expert, fp4 weights, activations quantised to fp8";
    info.source = "text model 2.4, 2.6; numerics contract 1";
    info.inputs.push_back(
        {"weight", "I8", "[outputs, inputs / 2]", "packed e2m1, the even input in the low nibble"});
    info.inputs.push_back({"scale", "F8_E8M0", "[outputs, inputs / 32]", "a scale per row and 32 inputs"});
    info.cases = linear_cases("linear_fp4", sums, 32);
    info.make_inputs = [](const CaseInputs& in) {
        fill_normal<Bf16>(in, "x");
        fill_fp4_weight(in, "weight", "scale");
        if (!in.fill_is("limits")) return;
        put_limit_rows(in.at<Bf16>("x"), in["inputs"]);
        put_zero_blocks(in.at<uint8_t>("weight"), in.at<E8m0>("scale"), 16);
    };
    info.run = [](Arithmetic arithmetic, const Call& call) {
        const Fp4Weight weight = fp4_weight(call, "weight", "scale", call["outputs"], call["inputs"]);
        linear_fp4(arithmetic, named_sum(call), call.in<Bf16>("x"), call["rows"], weight,
                   call.out<float>("accumulator"));
        linear_fp4(arithmetic, named_sum(call), call.in<Bf16>("x"), call["rows"], weight,
                   call.out<Bf16>("y"));
    };
    return info;
}

void make_bf16(const CaseInputs& in) {
    fill_normal<Bf16>(in, "x");
    fill_normal<Bf16>(in, "weight", 0x1p-5f);
    if (in.fill_is("limits")) put_limit_rows(in.at<Bf16>("x"), in["inputs"]);
}

truth::LinearOperands bf16_operands(const Call& call) {
    return truth::linear_operands(call.in<Bf16>("x"), call["rows"],
                                  bf16_weight(call, "weight", call["outputs"], call["inputs"]));
}

OperatorInfo linear_bf16_entry() {
    const std::vector<std::string> sums{"index_weights_proj", "index_wk", "compressor_wkv",
                                        "compressor_wgate",   "moe_gate", "lm_head"};
    OperatorInfo info = linear_entry("linear_bf16", sums, false, bf16_operands);
    info.purpose = "LF (accumulator) and LB (y): linear layer of bf16 operands";
    info.source = "text model 2.7; numerics contract 1";
    info.inputs.push_back({"weight", "BF16", "[outputs, inputs]", "as the checkpoint has it"});
    info.cases = linear_cases("linear_bf16", sums, 16);
    info.make_inputs = make_bf16;
    info.run = [](Arithmetic arithmetic, const Call& call) {
        const Bf16Weight weight = bf16_weight(call, "weight", call["outputs"], call["inputs"]);
        linear_bf16(arithmetic, named_sum(call), call.in<Bf16>("x"), call["rows"], weight,
                    call.out<float>("accumulator"));
        linear_bf16(arithmetic, named_sum(call), call.in<Bf16>("x"), call["rows"], weight,
                    call.out<Bf16>("y"));
    };
    return info;
}

OperatorInfo lm_head_entry() {
    OperatorInfo info = linear_entry("lm_head", {"lm_head"}, false, bf16_operands);
    info.purpose = "logits of the normalised last row: LF, fp32 kept";
    info.equation = "logits = x . weight^T";
    info.source = "text model 10.1";
    info.parameters[1].initial = "4096";
    info.parameters[1].meaning = "N: tokens of the vocabulary; the model has 129,280";
    info.inputs.push_back({"weight", "BF16", "[outputs, inputs]", "head.weight"});
    info.outputs = {bounded({"logits", "F32", "[rows, outputs]", "of each token of the vocabulary"})};
    info.roundings = {};
    info.cases = {
        {"lm_head(rows=1,outputs=1536,inputs=1280)", ""},
        {"lm_head(rows=5,outputs=100,inputs=512,fill=limits)", "zero rows, -0, widely spread values, NaN"}};
    info.make_inputs = make_bf16;
    info.run = [](Arithmetic arithmetic, const Call& call) {
        linear_bf16(arithmetic, SumOperator::lm_head, call.in<Bf16>("x"), call["rows"],
                    bf16_weight(call, "weight", call["outputs"], call["inputs"]), call.out<float>("logits"));
    };
    info.judge = [](const truth::Ledger&, const Call& call) {
        put(call, "logits", truth::linear(bf16_operands(call)));
    };
    info.bound = [](Arithmetic arithmetic, const Call& call, const TensorMap& truth) {
        put_bounds(
            call,
            accumulator_bound(arithmetic, SumOperator::lm_head, false, bf16_operands(call), call["outputs"]),
            truth, "logits", "");
    };
    return info;
}

/// Group g's inputs and its rows of the weight, in double.
truth::LinearOperands group_operands(const Call& call, int64_t group) {
    const int64_t groups = call["groups"], k = call["inputs"], outputs = call["outputs"],
                  each = outputs / groups;
    const Fp8Weight weight = fp8_weight(call, "weight", "scale", outputs, k);
    const truth::Matrix x = matrix(call, "x", call["rows"] * groups);
    truth::LinearOperands operands{truth::Matrix(call["rows"], k), truth::Matrix(each, k)};
    for (int64_t row = 0; row < call["rows"]; ++row) operands.a.row(row) = x.row(row * groups + group);
    for (int64_t n = 0; n < each; ++n)
        for (int64_t i = 0; i < k; ++i) {
            const int64_t output = group * each + n;
            const float code = to_float(weight.codes[static_cast<size_t>(output * k + i)]);
            const float scale = to_float(weight.scales[static_cast<size_t>(output / 32 * (k / 32) + i / 32)]);
            operands.b(n, i) = static_cast<double>(to_float(bf16_from_float(code * scale)));
        }
    return operands;
}

/// part(group) for every group, side by side: [rows, groups * outputs per group].
truth::Matrix side_by_side(const Call& call, const std::function<truth::Matrix(int64_t)>& part) {
    const int64_t each = call["outputs"] / call["groups"];
    truth::Matrix result(call["rows"], call["outputs"]);
    for (int64_t group = 0; group < call["groups"]; ++group)
        result.middleCols(group * each, each) = part(group);
    return result;
}

OperatorInfo grouped_linear_entry() {
    OperatorInfo info;
    info.name = "grouped_linear";
    info.purpose =
        "first output projection of attention: each group of heads meets its own rows of the weight";
    info.equation = "y[t, g, r] = sum over d of x[t, g, d] * weight[g R + r, d]; x is not quantised";
    info.source = "text model 4.4";
    info.parameters = {integer("rows", "2", "0", "1048576", "rows"),
                       integer("groups", "8", "1", "1024", "groups of heads"),
                       integer("inputs", "4096", "32", "1048576", "K: channels of a group", 32),
                       integer("outputs", "1024", "groups", "1048576",
                               "N: of all groups, a multiple of them; the model has 8,192"),
                       fill_choice({"normal", "limits"})};
    info.inputs = {{"x", "BF16", "[rows, groups, inputs]", "attention's output, rotated back"},
                   {"weight", "F8_E4M3", "[outputs, inputs]", "wo_a, made bf16 for use"},
                   {"scale", "F8_E8M0", "[(outputs + 31) / 32, inputs / 32]", "a scale per tile of 32 x 32"}};
    info.outputs = {bounded({"y", "BF16", "[rows, groups, outputs / groups]", "the result"})};
    info.roundings = {"the weight to bf16, exact for scale bytes 3 to 246", "the accumulator to bf16"};
    info.sums = {SumOperator::wo_a};
    info.profiles = two_orders;
    info.cases = {
        {"grouped_linear(rows=24,groups=2,inputs=512,outputs=1024)", ""},
        {"grouped_linear(rows=3,groups=4,inputs=1024,outputs=512)", "N of all groups decides the pieces: 8"},
        {"grouped_linear(rows=5,groups=1,inputs=256,outputs=33,fill=limits)",
         "zero rows, -0, widely spread values, NaN; outputs inside a tile"}};
    info.make_inputs = [](const CaseInputs& in) {
        fill_normal<Bf16>(in, "x");
        fill_fp8_weight(in, "weight", "scale");
        if (in.fill_is("limits")) put_limit_rows(in.at<Bf16>("x"), in["inputs"]);
    };
    info.run = [](Arithmetic arithmetic, const Call& call) {
        grouped_linear(arithmetic, call.in<Bf16>("x"), call["rows"], call["groups"],
                       fp8_weight(call, "weight", "scale", call["outputs"], call["inputs"]),
                       call.out<Bf16>("y"));
    };
    info.judge = [](const truth::Ledger&, const Call& call) {
        put(call, "y",
            side_by_side(call, [&](int64_t group) { return truth::linear(group_operands(call, group)); }));
    };
    info.bound = [](Arithmetic arithmetic, const Call& call, const TensorMap& truth) {
        const auto part = [&](int64_t group) {
            return accumulator_bound(arithmetic, SumOperator::wo_a, false, group_operands(call, group),
                                     call["outputs"]);
        };
        put_bounds(call, side_by_side(call, part), truth, "", "y");
    };
    return info;
}

}  // namespace

std::vector<OperatorInfo> linear_operators() {
    return {linear_fp8_entry(), linear_fp4_entry(), linear_bf16_entry(), lm_head_entry(),
            grouped_linear_entry()};
}

}  // namespace touchstone
