// Entries of rms_norm.h and rope.h.
#include <cmath>

#include "reference/numerics/sum_order.h"
#include "reference/registry/entry.h"
#include "reference/registry/families.h"
#include "reference/rms_norm.h"
#include "reference/rope.h"
#include "reference/truth/rms_norm.h"
#include "reference/truth/rope.h"

namespace touchstone {

namespace {

/// Ordinary rows, then one of zeros, one too small and one almost too large to be squared, one with a NaN.
void make_norm(const CaseInputs& in) {
    fill_normal<Bf16>(in, "x");
    fill_normal<Bf16>(in, "weight");
    if (!in.fill_is("limits")) return;
    const std::span<Bf16> x = in.at<Bf16>("x");
    const auto width = static_cast<size_t>(in["width"]);
    for (size_t i = 0; i < x.size(); ++i) switch (i / width) {
            case 0: x[i] = {static_cast<uint16_t>(i % 2 == 0 ? 0x0000 : 0x8000)}; break;
            case 1: x[i] = bf16_from_float(to_float(x[i]) * 0x1p-70f); break;
            case 2: x[i] = bf16_from_float(to_float(x[i]) * 0x1p50f); break;
            case 3: x[i] = i % width == width / 2 ? Bf16{0xFFC1} : x[i]; break;
            default: break;
        }
}

/// Relative to the result: half of what the sum of squares loses (the square root halves it), and the
/// operations after it. A sum of numbers of one sign loses at most u per addition on an element's way.
double norm_relative_bound(int64_t width) {
    const SumOrder order = sum_order(SumOperator::rms_norm, width, 1);
    const double lanes = order.lanes.count;
    const double depth = std::ceil(static_cast<double>(width) / lanes) + std::log2(lanes);
    return (0.5 * (depth + 2) + 4) * u;
}

OperatorInfo rms_norm_entry() {
    OperatorInfo info;
    info.name = "rms_norm";
    info.purpose = "root-mean-square norm of each row, with a gain per channel";
    info.equation = "y = weight * (x / sqrt(mean(x^2) + eps))";
    info.source = "text model 3.1";
    info.parameters = {integer("rows", "3", "0", "1048576", "rows"),
                       integer("width", "5120", "1", "1048576", "channels of a row"),
                       real("eps", "1e-20", "0", "1", "added to the mean square"),
                       fill_choice({"normal", "limits"})};
    info.inputs = {{"x", "BF16", "[rows, width]", "rows"}, {"weight", "BF16", "[width]", "gain"}};
    info.outputs = {bounded({"unrounded", "F32", "[rows, width]", "what y rounds"}),
                    bounded({"y", "BF16", "[rows, width]", "the result"})};
    info.roundings = {"the result to bf16, once"};
    info.sums = {SumOperator::rms_norm};
    info.profiles = one_order;
    info.cases = {{"rms_norm(rows=3,width=5120)", ""},
                  {"rms_norm(rows=5,width=512,fill=limits)",
                   "zeros, -0, mean square below eps, squares near 2^100, NaN"},
                  {"rms_norm(rows=2,width=4095)", "the last width with 256 lanes"},
                  {"rms_norm(rows=2,width=4096)", "the first width with 1024 lanes"},
                  {"rms_norm(rows=2,width=257)", "a lane with two elements"},
                  {"rms_norm(rows=2,width=1)", "one channel"}};
    info.make_inputs = make_norm;
    info.run = [](Arithmetic, const Call& call) {
        const auto x = call.in<Bf16>("x"), weight = call.in<Bf16>("weight");
        rms_norm(x, call["rows"], weight, call.real("eps"), call.out<float>("unrounded"));
        rms_norm(x, call["rows"], weight, call.real("eps"), call.out<Bf16>("y"));
    };
    info.judge = [](const truth::Ledger&, const Call& call) {
        const truth::Matrix y = truth::rms_norm(matrix(call, "x", call["rows"]), vector(call, "weight"),
                                                static_cast<double>(call.real("eps")));
        put(call, "unrounded", y);
        put(call, "y", y);
    };
    info.bound = [](Arithmetic, const Call& call, const TensorMap& truth) {
        const std::span<const double> y = truth.find("unrounded")->second.view<double>();
        const double relative = norm_relative_bound(call["width"]);
        for (size_t i = 0; i < y.size(); ++i) {
            const double error = relative * std::abs(y[i]) + least;
            call.out<double>("unrounded")[i] = error;
            call.out<double>("y")[i] = error + bf16_rounding(y[i], error);
        }
    };
    return info;
}

ModelConfig rope_config(const Call& call) {
    ModelConfig config = released_config();
    config.qk_rope_head_dim = call["rope_dim"];
    return config;
}

void make_rope(const CaseInputs& in) {
    constexpr int64_t positions[] = {0, 1, 127, 128, 65535, 65536, 999'999, 1'000'000, 1'048'575};
    const std::span<int64_t> at = in.at<int64_t>("positions");
    for (size_t i = 0; i < at.size(); ++i) at[i] = positions[i % std::size(positions)];
    fill_normal<Bf16>(in, "x");
    if (!in.fill_is("limits")) return;
    const std::span<Bf16> x = in.at<Bf16>("x");
    for (size_t i = 0; i < x.size(); ++i) {
        const uint32_t word = in.random("x").word(i);
        if (word % 4 == 0) x[i] = {static_cast<uint16_t>(word >> 16 & 0x8000)};
        if (word % 4 == 1) x[i] = {static_cast<uint16_t>(word >> 16 & 0x807F)};
    }
}

truth::Matrix judge_rope(const Call& call) {
    const auto positions = call.in<int64_t>("positions");
    const bool forward = call.parameters.choice("direction") == "forward";
    const bool main = call.parameters.choice("table") == "main";
    return truth::rope(matrix(call, "x", call["rows"]), call["head_dim"],
                       {positions.begin(), positions.end()},
                       truth::rope_frequencies(rope_config(call),
                                               main ? truth::RopeTable::main : truth::RopeTable::compress),
                       forward ? truth::RopeDirection::forward : truth::RopeDirection::inverse);
}

/// Both products and their sum, and cos and sin that may be the next fp32.
void bound_rope(const Call& call, const TensorMap& truth) {
    const auto x = call.in<Bf16>("x");
    const std::span<const double> y = truth.find("y")->second.view<double>();
    for (size_t i = 0; i < y.size(); ++i) {
        const bool rotated =
            static_cast<int64_t>(i) % call["head_dim"] >= call["head_dim"] - call["rope_dim"];
        const double pair =
            std::abs(static_cast<double>(to_float(x[i]))) + std::abs(static_cast<double>(to_float(x[i ^ 1])));
        const double error = 5 * u * pair + least;
        call.out<double>("y")[i] = rotated ? error + bf16_rounding(y[i], error) : least;
    }
}

OperatorInfo rope_entry() {
    OperatorInfo info;
    info.name = "rope";
    info.purpose = "rotary position embedding of the last channels, in adjacent pairs";
    info.equation =
        "(a, b) -> (a cos - b sin, a sin + b cos) of the angle fl32(fl32(position) * frequency); inverse: "
        "-sin";
    info.source = "text model 3.2, 3.3";
    info.parameters = {integer("rows", "9", "0", "1048576", "rows"),
                       integer("heads", "2", "1", "1024", "heads of a row; the model has 64"),
                       integer("head_dim", "512", "2", "65536", "channels of a head", 2),
                       integer("rope_dim", "64", "2", "head_dim", "the last channels, which are rotated", 2),
                       choice("table", {"compress", "main"},
                              "frequencies: of layers with compressed rows, or of the others"),
                       choice("direction", {"forward", "inverse"}, "inverse: of the attention's output"),
                       fill_choice({"normal", "limits"})};
    info.inputs = {{"x", "BF16", "[rows, heads, head_dim]", "rows"},
                   {"positions", "I64", "[rows]", "of each row", "1", "0", "1073741824"}};
    info.outputs = {bounded({"y", "BF16", "[rows, heads, head_dim]", "channels in front keep their bits"})};
    info.roundings = {"the angle to fp32, before cos and sin", "the rotated channels to bf16"};
    info.profiles = one_order;
    info.cases = {{"rope(rows=9)", "positions 0, 127, 128, 65,535 to 1,048,575: the angle's rounding shows"},
                  {"rope(rows=9,table=main)", ""},
                  {"rope(rows=9,heads=1,head_dim=128,direction=inverse,fill=limits)",
                   "zeros of both signs and subnormals"},
                  {"rope(rows=9,heads=3,head_dim=64,rope_dim=64)", "every channel rotated"}};
    info.make_inputs = make_rope;
    info.run = [](Arithmetic, const Call& call) {
        const auto x = call.in<Bf16>("x");
        const auto y = call.out<Bf16>("y");
        std::copy(x.begin(), x.end(), y.begin());
        const ModelConfig config = rope_config(call);
        const bool main = call.parameters.choice("table") == "main";
        const bool forward = call.parameters.choice("direction") == "forward";
        rope(main ? main_rope_table(config) : compress_rope_table(config),
             forward ? RopeDirection::forward : RopeDirection::inverse, call.in<int64_t>("positions"),
             call["heads"], call["head_dim"], y);
    };
    info.judge = [](const truth::Ledger&, const Call& call) { put(call, "y", judge_rope(call)); };
    info.bound = [](Arithmetic, const Call& call, const TensorMap& truth) { bound_rope(call, truth); };
    return info;
}

}  // namespace

std::vector<OperatorInfo> norm_and_rope_operators() {
    return {rms_norm_entry(), rope_entry()};
}

}  // namespace touchstone
