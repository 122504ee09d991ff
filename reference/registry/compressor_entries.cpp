// Entry of compressor.h.
#include "reference/compressor.h"

#include <algorithm>

#include "reference/registry/entry.h"
#include "reference/registry/families.h"
#include "reference/truth/compressor.h"

namespace touchstone {

namespace {

constexpr const char* open_rows = "[first_position % ratio, channels]";
constexpr const char* still_open_rows = "[(first_position + rows) % ratio, channels]";
constexpr const char* group_rows = "[(first_position % ratio + rows) / ratio, channels]";

void make(const CaseInputs& in) {
    fill_normal<Bf16>(in, "x");
    fill_normal<Bf16>(in, "wkv", 0x1p-5f);
    fill_normal<Bf16>(in, "norm");
    const bool gated = in["ratio"] > 1;
    if (gated) {
        fill_normal<Bf16>(in, "wgate", in.fill_is("limits") ? 4.0f : 0x1p-5f);
        fill_normal<float>(in, "open_kv");
        fill_normal<float>(in, "open_score");
    }
    // Scores so far apart that one token of a group has all the weight, and groups whose rows are zeros.
    if (in.fill_is("limits"))
        put_limit_rows(in.at<Bf16>("x").first(in.at<Bf16>("x").size() * 3 / 4), in["hidden"]);
}

CompressorWeights weights_of(const Call& call) {
    const int64_t channels = call["channels"], hidden = call["hidden"];
    CompressorWeights weights{
        bf16_weight(call, "wkv", channels, hidden), {"wgate", 0, hidden, {}}, call.in<Bf16>("norm")};
    if (call["ratio"] > 1) weights.wgate = bf16_weight(call, "wgate", channels, hidden);
    return weights;
}

void run(Arithmetic arithmetic, const Call& call) {
    const bool gated = call["ratio"] > 1;
    OpenGroup open;
    if (gated) {
        const auto kv = call.in<float>("open_kv"), score = call.in<float>("open_score");
        open = {{kv.begin(), kv.end()}, {score.begin(), score.end()}};
    }
    const Latents latents = compress(arithmetic, call.in<Bf16>("x"), call["rows"], call["first_position"],
                                     call["ratio"], weights_of(call), call.real("eps"), open);
    std::ranges::copy(latents.pooled, call.out<Bf16>("pooled").begin());
    std::ranges::copy(latents.latents, call.out<Bf16>("latents").begin());
    if (!gated) return;
    std::ranges::copy(open.kv, call.out<float>("still_open_kv").begin());
    std::ranges::copy(open.score, call.out<float>("still_open_score").begin());
}

void judge(const truth::Ledger& ledger, const Call& call) {
    const int64_t channels = call["channels"], ratio = call["ratio"];
    const int64_t open = call["first_position"] % ratio;
    truth::CompressorWeights weights{matrix(call, "wkv", channels), {}, vector(call, "norm")};
    truth::CompressorPending pending;
    if (ratio > 1) {
        weights.gate = matrix(call, "wgate", channels);
        pending = {matrix(call, "open_kv", open), matrix(call, "open_score", open)};
    }
    const truth::CompressorOutput output =
        truth::compressor(matrix(call, "x", call["rows"]), weights, ratio,
                          static_cast<double>(call.real("eps")), pending, ledger);
    put(call, "pooled", output.pooled);
    put(call, "latents", output.latent);
    if (ratio == 1) return;
    put(call, "still_open_kv", pending.kv);
    put(call, "still_open_score", pending.score);
}

}  // namespace

std::vector<OperatorInfo> compressor_operators() {
    OperatorInfo info;
    info.name = "compressor";
    info.purpose =
        "rows of a KV source into latents: a gated mean of each group of `ratio` tokens, then a norm";
    info.equation =
        "kv = x . wkv^T, score = x . wgate^T; pooled = sum_i kv_i softmax_i(score); latent = "
        "rms_norm(pooled); ratio 1: "
        "pooled = x . wkv^T";
    info.source = "text model 5.1 to 5.3";
    info.parameters = {integer("rows", "5", "0", "1048576", "rows of consecutive positions"),
                       integer("first_position", "0", "0", "1048576", "of the first row"),
                       integer("ratio", "2", "1", "8", "tokens of a group"),
                       integer("hidden", "1280", "16", "65536", "inputs; the model has 5,120", 16),
                       integer("channels", "512", "1", "65536", "of a latent"),
                       real("eps", "1e-20", "0", "1", "of the norm"),
                       fill_choice({"normal", "limits"})};
    info.inputs = {{"x", "BF16", "[rows, hidden]", "normed rows that enter attention"},
                   {"wkv", "BF16", "[channels, hidden]", "weight"},
                   {"norm", "BF16", "[channels]", "gain"},
                   {"wgate", "BF16", "[channels, hidden]", "weight of the scores", "ratio - 1"},
                   {"open_kv", "F32", open_rows, "kv of the group that is open before the call", "ratio - 1"},
                   {"open_score", "F32", open_rows, "its scores", "ratio - 1"}};
    info.outputs = {tolerated(0.01, {"pooled", "BF16", group_rows, "of each group that the call closed"}),
                    tolerated(0.01, {"latents", "BF16", group_rows, "normed, unrotated, unquantised"}),
                    tolerated(2e-6, {"still_open_kv", "F32", still_open_rows,
                                     "kv of the group that stays open", "ratio - 1"}),
                    tolerated(2e-6, {"still_open_score", "F32", still_open_rows, "its scores", "ratio - 1"})};
    info.roundings = {"pooled to bf16, before the norm", "the latent to bf16"};
    info.sums = {SumOperator::compressor_wkv, SumOperator::compressor_wgate, SumOperator::compressor_pool,
                 SumOperator::rms_norm};
    info.profiles = two_orders;
    info.cases = {{"compressor(rows=7,hidden=512,channels=128)", "odd length: a group stays open"},
                  {"compressor(rows=4,first_position=129,hidden=512,channels=128)",
                   "a group open from the call before"},
                  {"compressor(rows=1,first_position=128,hidden=256,channels=64)", "no group closes"},
                  {"compressor(rows=8,hidden=512,channels=128,fill=limits)",
                   "zero rows, -0, NaN, scores that saturate the softmax"},
                  {"compressor(rows=5,ratio=1,first_position=127,hidden=512,channels=128)",
                   "ratio 1: no gate, nothing stays open"},
                  {"compressor(rows=200,hidden=512)", ""},
                  {"compressor(rows=7,first_position=6,ratio=4,hidden=256,channels=64)", ""}};
    info.make_inputs = make;
    info.run = run;
    info.judge = judge;
    return {info};
}

}  // namespace touchstone
