// Entries of hyper_connections.h.
#include "reference/hyper_connections.h"

#include <algorithm>
#include <cmath>

#include "reference/registry/entry.h"
#include "reference/registry/families.h"
#include "reference/truth/hyper_connections.h"

namespace touchstone {

namespace {

const Parameter rows = integer("rows", "3", "0", "1048576", "rows");
const Parameter streams = integer("streams", "4", "1", "16", "copies of the residual stream");
const Parameter hidden = integer("hidden", "5120", "1", "65536", "channels of a copy");
const Parameter hc_eps = real("hc_eps", "1e-06", "0", "1", "of pre and of the Sinkhorn steps");
const Parameter iterations = integer("iterations", "20", "1", "1000", "row and column steps");

void run_mix(Arithmetic, const Call& call) {
    const HyperConnectionShape shape{call["streams"], call["hidden"], static_cast<int>(call["iterations"]),
                                     call.real("hc_eps"), call.real("norm_eps")};
    const MixCoefficients result =
        mix(call.in<Bf16>("h"), call["rows"],
            {call.in<float>("fn"), call.in<float>("base"), call.in<float>("scale")}, shape);
    std::ranges::copy(result.mixes, call.out<float>("mixes").begin());
    std::ranges::copy(result.pre, call.out<float>("pre").begin());
    std::ranges::copy(result.post, call.out<float>("post").begin());
    std::ranges::copy(result.comb, call.out<float>("comb").begin());
}

void judge_mix(const truth::Ledger&, const Call& call) {
    const int64_t n = call["streams"];
    const truth::HyperConnectionMix result = truth::hyper_connection_mix(
        matrix(call, "h", call["rows"]),
        {matrix(call, "fn", (2 + n) * n), vector(call, "base"), vector(call, "scale")}, n, call["iterations"],
        static_cast<double>(call.real("norm_eps")), static_cast<double>(call.real("hc_eps")));
    put(call, "mixes", result.mixes);
    put(call, "pre", result.pre);
    put(call, "post", result.post);
    put(call, "comb", result.comb);
}

OperatorInfo mix_entry() {
    OperatorInfo info;
    info.name = "mix";
    info.purpose = "hyper-connection coefficients of a sublayer, from the residual streams";
    info.equation =
        "g = (fn . h) / sqrt(mean(h^2) + norm_eps); pre = sigmoid(g scale + base) + hc_eps; post = 2 "
        "sigmoid(g scale + base); "
        "comb = sinkhorn(g scale + base)";
    info.source = "text model 8.1";
    info.parameters = {rows,
                       streams,
                       hidden,
                       iterations,
                       hc_eps,
                       real("norm_eps", "1e-20", "0", "1", "of the mean square"),
                       fill_choice({"normal", "limits"})};
    info.inputs = {{"h", "BF16", "[rows, streams, hidden]", "residual streams"},
                   {"fn", "F32", "[(2 + streams) * streams, streams * hidden]",
                    "rows of pre, post, then comb row-major"},
                   {"base", "F32", "[(2 + streams) * streams]", "added"},
                   {"scale", "F32", "[3]", "of pre, post, comb"}};
    info.outputs = {
        tolerated(1e-6, {"mixes", "F32", "[rows, (2 + streams) * streams]", "g, before scale and base"}),
        tolerated(1e-6, {"pre", "F32", "[rows, streams]", "collapse of the NEXT sublayer"}),
        tolerated(1e-6, {"post", "F32", "[rows, streams]", "of the sublayer's output"}),
        tolerated(1e-6,
                  {"comb", "F32", "[rows, streams, streams]", "comb[j][k] carries stream j into stream k"})};
    info.sums = {SumOperator::mhc_mix, SumOperator::mhc_mean_square, SumOperator::sinkhorn};
    info.profiles = one_order;
    info.cases = {
        {"mix(rows=3,hidden=512)", ""},
        {"mix(rows=4,hidden=1280,fill=limits)",
         "a row of zeros, -0, widely spread values; sigmoids at both ends"},
        {"mix(rows=2,streams=2,hidden=33,iterations=1)", "a K that no lane count divides; one iteration"}};
    info.make_inputs = [](const CaseInputs& in) {
        fill_normal<Bf16>(in, "h");
        fill_normal<float>(in, "fn", 0x1p-6f);
        fill_normal<float>(in, "base", in.fill_is("limits") ? 16.0f : 1.0f);
        fill_normal<float>(in, "scale");
        if (in.fill_is("limits")) put_limit_rows(in.at<Bf16>("h"), in["streams"] * in["hidden"]);
    };
    info.run = run_mix;
    info.judge = judge_mix;
    return info;
}

void make_sinkhorn(const CaseInputs& in) {
    fill_normal<float>(in, "a", 2);
    if (!in.fill_is("limits")) return;
    const auto size = static_cast<size_t>(in["streams"] * in["streams"]);
    for (size_t i = 0; i < in.at<float>("a").size(); ++i)
        in.at<float>("a")[i] *= i / size % 2 == 0 ? 0.0f : 40.0f;
}

OperatorInfo sinkhorn_entry() {
    OperatorInfo info;
    info.name = "sinkhorn";
    info.purpose = "a matrix of logits made doubly stochastic";
    info.equation =
        "softmax of rows, plus eps; columns / (sum + eps); then rows and columns / (sum + eps), iterations - "
        "1 times";
    info.source = "text model 8.1, 18.2";
    info.parameters = {rows, streams, iterations, hc_eps, fill_choice({"normal", "limits"})};
    info.inputs = {{"a", "F32", "[rows, streams, streams]", "logits"}};
    info.outputs = {
        tolerated(1e-6, {"comb", "F32", "[rows, streams, streams]", "rows and columns sum to about 1"})};
    info.sums = {SumOperator::sinkhorn};
    info.profiles = one_order;
    info.cases = {{"sinkhorn(rows=16)", ""},
                  {"sinkhorn(rows=16,fill=limits)", "equal logits; logits so far apart that eps decides"},
                  {"sinkhorn(rows=4,streams=3,iterations=1)", "no step after the first columns"}};
    info.make_inputs = make_sinkhorn;
    info.run = [](Arithmetic, const Call& call) {
        std::ranges::copy(call.in<float>("a"), call.out<float>("comb").begin());
        const auto size = static_cast<size_t>(call["streams"] * call["streams"]);
        for (size_t row = 0; row < static_cast<size_t>(call["rows"]); ++row)
            sinkhorn(call.out<float>("comb").subspan(row * size, size), call["streams"],
                     static_cast<int>(call["iterations"]), call.real("hc_eps"));
    };
    info.judge = [](const truth::Ledger&, const Call& call) {
        const int64_t n = call["streams"];
        const truth::Matrix all = matrix(call, "a", call["rows"]);
        truth::Matrix result(all.rows(), all.cols());
        for (int64_t row = 0; row < all.rows(); ++row)
            result.row(row) = truth::sinkhorn(all.row(row).reshaped<Eigen::RowMajor>(n, n),
                                              call["iterations"], static_cast<double>(call.real("hc_eps")))
                                  .reshaped<Eigen::RowMajor>()
                                  .transpose();
        put(call, "comb", result);
    };
    return info;
}

truth::Matrix absolute(const Call& call, std::string_view name) {
    return matrix(call, name, call["rows"]).cwiseAbs();
}

/// `rounded_terms` roundings of what is added, at most the sum of magnitudes each, then the one to bf16.
void put_sum_bounds(const Call& call, std::string_view name, const TensorMap& truth,
                    const truth::Matrix& magnitudes, double rounded_terms) {
    const std::span<const double> y = truth.find(name)->second.view<double>();
    for (size_t i = 0; i < y.size(); ++i) {
        const double error = rounded_terms * u * magnitudes.data()[i] + least;
        call.out<double>(name)[i] = error + bf16_rounding(y[i], error);
    }
}

OperatorInfo collapse_entry() {
    OperatorInfo info;
    info.name = "collapse";
    info.purpose = "the residual streams into the one row that a sublayer reads";
    info.equation = "y = sum over c of pre[c] * h[c]";
    info.source = "text model 8.2";
    info.parameters = {rows, streams, hidden, fill_choice({"normal", "one_hot"})};
    info.inputs = {{"h", "BF16", "[rows, streams, hidden]", "residual streams"},
                   {"pre", "F32", "[rows, streams]", "made one sublayer earlier"}};
    info.outputs = {bounded({"y", "BF16", "[rows, hidden]", "the row"})};
    info.roundings = {"y to bf16"};
    info.sums = {SumOperator::mhc_collapse};
    info.profiles = one_order;
    info.cases = {{"collapse(rows=3,hidden=640)", ""},
                  {"collapse(rows=2,hidden=64,fill=one_hot)",
                   "the first layer's pre (1, 0, 0, 0): the first copy's bits but for -0"},
                  {"collapse(rows=5,streams=1,hidden=1)", "one copy of one channel"}};
    info.make_inputs = [](const CaseInputs& in) {
        fill_normal<Bf16>(in, "h");
        fill_normal<float>(in, "pre");
        if (!in.fill_is("one_hot")) return;
        for (size_t i = 0; i < in.at<float>("pre").size(); ++i)
            in.at<float>("pre")[i] = static_cast<int64_t>(i) % in["streams"] == 0 ? 1.0f : 0.0f;
    };
    info.run = [](Arithmetic, const Call& call) {
        collapse(call.in<Bf16>("h"), call["rows"], call.in<float>("pre"), call.out<Bf16>("y"));
    };
    info.judge = [](const truth::Ledger&, const Call& call) {
        put(call, "y", truth::collapse(matrix(call, "h", call["rows"]), matrix(call, "pre", call["rows"])));
    };
    info.bound = [](Arithmetic, const Call& call, const TensorMap& truth) {
        put_sum_bounds(call, "y", truth, truth::collapse(absolute(call, "h"), absolute(call, "pre")),
                       static_cast<double>(call["streams"]) + 1);
    };
    return info;
}

void make_expand(const CaseInputs& in) {
    fill_normal<Bf16>(in, "h");
    fill_normal<Bf16>(in, "y");
    fill_normal<float>(in, "post");
    fill_normal<float>(in, "comb");
    if (!in.fill_is("identity")) return;
    std::ranges::fill(in.at<float>("post"), 0.0f);
    const int64_t n = in["streams"];
    for (size_t i = 0; i < in.at<float>("comb").size(); ++i) {
        const int64_t at = static_cast<int64_t>(i) % (n * n);
        in.at<float>("comb")[i] = at / n == at % n ? 1.0f : 0.0f;
    }
}

OperatorInfo expand_entry() {
    OperatorInfo info;
    info.name = "expand";
    info.purpose = "a sublayer's output into the residual streams";
    info.equation = "out[k] = post[k] * y + sum over j of comb[j][k] * h[j]";
    info.source = "text model 8.2";
    info.parameters = {rows, streams, hidden, fill_choice({"normal", "identity"})};
    info.inputs = {{"h", "BF16", "[rows, streams, hidden]", "residual streams"},
                   {"y", "BF16", "[rows, hidden]", "the sublayer's output"},
                   {"post", "F32", "[rows, streams]", "of this sublayer's mix"},
                   {"comb", "F32", "[rows, streams, streams]", "likewise; summed over the FIRST index"}};
    info.outputs = {bounded({"out", "BF16", "[rows, streams, hidden]", "residual streams"})};
    info.roundings = {"out to bf16"};
    info.sums = {SumOperator::mhc_expand};
    info.profiles = one_order;
    info.cases = {
        {"expand(rows=3,hidden=640)", "an asymmetric comb: its transpose gives other values"},
        {"expand(rows=2,hidden=64,fill=identity)", "post 0 and comb the identity: h itself but for -0"},
        {"expand(rows=4,streams=1,hidden=1)", "one copy of one channel"}};
    info.make_inputs = make_expand;
    info.run = [](Arithmetic, const Call& call) {
        expand(call.in<Bf16>("y"), call.in<Bf16>("h"), call["rows"], call.in<float>("post"),
               call.in<float>("comb"), call.out<Bf16>("out"));
    };
    info.judge = [](const truth::Ledger&, const Call& call) {
        put(call, "out",
            truth::expand(matrix(call, "y", call["rows"]), matrix(call, "h", call["rows"]),
                          matrix(call, "post", call["rows"]), matrix(call, "comb", call["rows"])));
    };
    info.bound = [](Arithmetic, const Call& call, const TensorMap& truth) {
        put_sum_bounds(call, "out", truth,
                       truth::expand(absolute(call, "y"), absolute(call, "h"), absolute(call, "post"),
                                     absolute(call, "comb")),
                       static_cast<double>(call["streams"]) + 2);
    };
    return info;
}

}  // namespace

std::vector<OperatorInfo> hyper_connection_operators() {
    return {mix_entry(), sinkhorn_entry(), collapse_entry(), expand_entry()};
}

}  // namespace touchstone
