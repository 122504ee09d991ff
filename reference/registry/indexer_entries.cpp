// Entries of indexer.h.
#include "reference/indexer.h"

#include <algorithm>

#include "reference/quantize.h"
#include "reference/registry/entry.h"
#include "reference/registry/families.h"
#include "reference/truth/indexer.h"
#include "reference/truth/rms_norm.h"
#include "reference/truth/rope.h"

namespace touchstone {

namespace {

RopeTable table_of(const Call& call) {
    ModelConfig config = released_config();
    config.qk_rope_head_dim = call["rope_dim"];
    return compress_rope_table(config);
}

std::vector<float> frequencies_of(const Call& call) {
    ModelConfig config = released_config();
    config.qk_rope_head_dim = call["rope_dim"];
    return truth::rope_frequencies(config, truth::RopeTable::compress);
}

const Parameter rope_dim =
    integer("rope_dim", "64", "2", "head_dim", "the last channels, which are rotated", 2);
const Parameter head_dim = integer("head_dim", "128", "32", "65536", "channels of a key", 32);

void run_keys(Arithmetic arithmetic, const Call& call) {
    const IndexerWeights weights{
        {}, {}, bf16_weight(call, "wk", call["head_dim"], call["channels"]), call.in<Bf16>("k_norm")};
    std::ranges::copy(
        index_keys(arithmetic, call.in<Bf16>("latents"), call["groups"], call["first_group"], call["ratio"],
                   weights, {1, call["head_dim"]}, table_of(call), call.real("eps")),
        call.out<Bf16>("keys").begin());
}

void judge_keys(const truth::Ledger& ledger, const Call& call) {
    std::vector<int64_t> positions;
    for (int64_t group = 0; group < call["groups"]; ++group)
        positions.push_back((call["first_group"] + group) * call["ratio"]);
    const truth::Matrix projected = ledger.bf16(truth::Matrix(
        matrix(call, "latents", call["groups"]) * matrix(call, "wk", call["head_dim"]).transpose()));
    const truth::Matrix normed = ledger.bf16(
        truth::rms_norm(projected, vector(call, "k_norm"), static_cast<double>(call.real("eps"))));
    put(call, "keys", truth::rope(normed, call["head_dim"], positions, frequencies_of(call)));
}

OperatorInfo keys_entry() {
    OperatorInfo info;
    info.name = "index_keys";
    info.purpose = "index keys of compressed groups, from the unrotated latents";
    info.equation = "keys = rope(rms_norm(latents . wk^T, k_norm), group * ratio)";
    info.source = "text model 6.1";
    info.parameters = {integer("groups", "5", "0", "1048576", "groups"),
                       integer("first_group", "0", "0", "1048576", "the first one's number"),
                       integer("ratio", "2", "1", "8", "tokens of a group"),
                       integer("channels", "512", "16", "65536", "of a latent", 16),
                       head_dim,
                       rope_dim,
                       real("eps", "1e-20", "0", "1", "of the norm"),
                       fill_choice({"normal", "limits"})};
    info.inputs = {{"latents", "BF16", "[groups, channels]", "compressor's"},
                   {"wk", "BF16", "[head_dim, channels]", "weight"},
                   {"k_norm", "BF16", "[head_dim]", "gain"}};
    info.outputs = {tolerated(
        0.02, {"keys", "BF16", "[groups, head_dim]", "rotated; Q4i makes the stored rows of them"})};
    info.roundings = {"the projection to bf16", "the normed key to bf16", "the rotated channels to bf16"};
    info.sums = {SumOperator::index_wk, SumOperator::rms_norm};
    info.profiles = two_orders;
    info.cases = {{"index_keys(groups=300)", ""},
                  {"index_keys(groups=3,first_group=524000,ratio=2)",
                   "group j stands at j * ratio, near 2^20: the angle's rounding shows"},
                  {"index_keys(groups=6,channels=64,head_dim=32,rope_dim=16,ratio=1,fill=limits)",
                   "zero rows, -0, NaN"}};
    info.make_inputs = [](const CaseInputs& in) {
        fill_normal<Bf16>(in, "latents");
        fill_normal<Bf16>(in, "wk", 0x1p-4f);
        fill_normal<Bf16>(in, "k_norm");
        if (in.fill_is("limits")) put_limit_rows(in.at<Bf16>("latents"), in["channels"]);
    };
    info.run = run_keys;
    info.judge = judge_keys;
    return info;
}

IndexerWeights query_weights(const Call& call) {
    return {fp8_weight(call, "wq_b", "wq_b_scale", call["heads"] * call["head_dim"], call["q_rank"]),
            bf16_weight(call, "weights_proj", call["heads"], call["hidden"]),
            {},
            {}};
}

void run_queries(Arithmetic arithmetic, const Call& call) {
    const IndexQueries result =
        index_queries(arithmetic, call.in<Bf16>("qr"), call.in<Bf16>("x"), call.in<int64_t>("positions"),
                      query_weights(call), {call["heads"], call["head_dim"]}, table_of(call));
    std::ranges::copy(result.queries, call.out<Bf16>("queries").begin());
    std::ranges::copy(result.codes, call.out<uint8_t>("codes").begin());
    std::ranges::transform(result.scales, call.out<E8m0>("scales").begin(),
                           [](uint8_t bits) { return E8m0{bits}; });
    std::ranges::copy(result.projections, call.out<Bf16>("projections").begin());
    std::ranges::copy(result.weights, call.out<Bf16>("weights").begin());
}

void judge_queries(const truth::Ledger& ledger, const Call& call) {
    const int64_t rows = call["rows"];
    const truth::Matrix qr = matrix(call, "qr", rows);
    const truth::LinearOperands operands =
        truth::linear_operands(call.in<Bf16>("qr"), rows, query_weights(call).wq_b);
    const truth::Matrix queries = truth::quantized_linear(qr, operands.b, ledger);
    const auto positions = call.in<int64_t>("positions");
    put(call, "queries",
        truth::rope(queries, call["head_dim"], {positions.begin(), positions.end()}, frequencies_of(call)));
    const truth::Matrix projections =
        matrix(call, "x", rows) * matrix(call, "weights_proj", call["heads"]).transpose();
    put(call, "projections", projections);
    put(call, "weights",
        ledger.bf16(projections) * truth::index_weight_scale(call["heads"], call["head_dim"]));
}

void make_queries(const CaseInputs& in) {
    fill_normal<Bf16>(in, "qr");
    fill_normal<Bf16>(in, "x");
    fill_fp8_weight(in, "wq_b", "wq_b_scale");
    fill_normal<Bf16>(in, "weights_proj", 0x1p-5f);
    for (size_t i = 0; i < in.at<int64_t>("positions").size(); ++i)
        in.at<int64_t>("positions")[i] =
            i % 2 == 0 ? static_cast<int64_t>(i) * 127 : 1'048'575 - static_cast<int64_t>(i);
    if (!in.fill_is("limits")) return;
    put_limit_rows(in.at<Bf16>("qr"), in["q_rank"]);
    put_limit_rows(in.at<Bf16>("x"), in["hidden"]);
}

OperatorInfo queries_entry() {
    OperatorInfo info;
    info.name = "index_queries";
    info.purpose = "index queries and the weights of their heads";
    info.equation =
        "queries = Q4i(rope(Q8(qr) . wq_b^T)); weights = (x . weights_proj^T) * fl32((head_dim heads)^-1/2)";
    info.source = "text model 6.2";
    info.parameters = {integer("rows", "3", "0", "1048576", "rows"),
                       integer("heads", "32", "1", "1024", "index heads"),
                       head_dim,
                       rope_dim,
                       integer("q_rank", "1280", "32", "65536", "of the low-rank query", 32),
                       integer("hidden", "5120", "16", "65536", "of a row", 16),
                       fill_choice({"normal", "limits"})};
    info.inputs = {{"qr", "BF16", "[rows, q_rank]", "normed low-rank query"},
                   {"x", "BF16", "[rows, hidden]", "normed row that enters attention"},
                   {"positions", "I64", "[rows]", "of each row", "1", "0", "1073741824"},
                   {"wq_b", "F8_E4M3", "[heads * head_dim, q_rank]", "codes"},
                   {"wq_b_scale", "F8_E8M0", "[(heads * head_dim + 31) / 32, q_rank / 32]",
                    "a scale per tile of 32 x 32"},
                   {"weights_proj", "BF16", "[heads, hidden]", "weight"}};
    info.outputs = {tolerated(0.02, {"queries", "BF16", "[rows, heads, head_dim]", "rotated, before Q4i"}),
                    not_judged({"codes", "U8", "[rows, heads, head_dim / 2]", "packed e2m1 of the queries"}),
                    not_judged({"scales", "F8_E8M0", "[rows, heads, head_dim / 32]", "their scales"}),
                    tolerated(0.01, {"projections", "BF16", "[rows, heads]", "before the factor"}),
                    tolerated(0.01, {"weights", "BF16", "[rows, heads]", "of the heads"})};
    info.roundings = {
        "qr by Q8",       "the query to bf16",      "the rotated channels to bf16",
        "queries by Q4i", "the projection to bf16", "the weight to bf16, exact at the released sizes"};
    info.sums = {SumOperator::index_wq_b, SumOperator::index_weights_proj};
    info.profiles = three_orders;
    info.cases = {{"index_queries(rows=64,heads=8,q_rank=1280,hidden=64)", ""},
                  {"index_queries(rows=2,heads=3,head_dim=32,rope_dim=16,q_rank=64,hidden=64)",
                   "a factor that is no power of two"},
                  {"index_queries(rows=6,heads=2,head_dim=64,rope_dim=64,q_rank=128,hidden=128,fill=limits)",
                   "zero rows, -0, NaN"}};
    info.make_inputs = make_queries;
    info.run = run_queries;
    info.judge = judge_queries;
    return info;
}

/// All codes, then all scales: one planar page of `keys` records.
std::vector<std::byte> key_page(const Call& call) {
    const auto codes = std::as_bytes(call.in<uint8_t>("key_codes")),
               scales = std::as_bytes(call.in<E8m0>("key_scales"));
    std::vector<std::byte> page(codes.begin(), codes.end());
    page.insert(page.end(), scales.begin(), scales.end());
    return page;
}

void run_scores(Arithmetic, const Call& call) {
    const auto scale_bytes = call.in<E8m0>("scales");
    std::vector<uint8_t> scales(scale_bytes.size());
    std::ranges::transform(scale_bytes, scales.begin(), &E8m0::bits);
    const KvPage page{fp4_index_key_record(call["head_dim"]), KvPageLayout::planar, call["keys"], 1};
    index_scores({call.in<uint8_t>("codes"), scales, call.in<Bf16>("weights")},
                 {call["heads"], call["head_dim"]}, page, key_page(call), call["visible"],
                 call.out<float>("scores"), call.out<Bf16>("dot"));
}

/// Packed e2m1 of `count` rows with their scales.
truth::Matrix unpacked(std::span<const uint8_t> codes, std::span<const E8m0> scales, int64_t count,
                       int64_t width) {
    truth::Matrix result(count, width);
    for (int64_t i = 0; i < count * width; ++i) {
        const uint8_t pair = codes[static_cast<size_t>(i / 2)];
        const float code = to_float(i % 2 == 0 ? even_e2m1(pair) : odd_e2m1(pair));
        result.data()[i] =
            static_cast<double>(code) * static_cast<double>(to_float(scales[static_cast<size_t>(i / 32)]));
    }
    return result;
}

void judge_scores(const truth::Ledger& ledger, const Call& call) {
    const int64_t heads = call["heads"], width = call["head_dim"], visible = call["visible"];
    const truth::Matrix query = unpacked(call.in<uint8_t>("codes"), call.in<E8m0>("scales"), heads, width);
    const truth::Matrix keys =
        unpacked(call.in<uint8_t>("key_codes"), call.in<E8m0>("key_scales"), visible, width);
    const truth::Matrix q = query.reshaped<Eigen::RowMajor>(1, heads * width),
                        weights = matrix(call, "weights", 1);
    put(call, "dot", truth::index_scores(q, weights, keys, truth::Ledger::none()).dot);
    // As truth::index_scores, but for the last rounding.
    const truth::Matrix dot = truth::index_scores(q, weights, keys, ledger).dot;
    truth::Matrix scores = truth::Matrix::Zero(1, visible);
    for (int64_t head = 0; head < heads; ++head)
        scores += ledger.bf16(
            truth::Matrix(dot.middleCols(head * visible, visible).cwiseMax(0.0) * weights(0, head)));
    put(call, "scores", scores);
}

void make_scores(const CaseInputs& in) {
    for (const char* codes : {"codes", "key_codes"}) fill_bytes(in, codes);
    for (const char* scales : {"scales", "key_scales"}) fill_scales(in, scales, 124);
    fill_normal<Bf16>(in, "weights", 0x1p-6f);
    const auto codes = in.at<uint8_t>("key_codes");
    const auto scales = in.at<E8m0>("key_scales");
    const size_t row = static_cast<size_t>(in["head_dim"] / 2), blocks = row / 16;
    if (in.fill_is("ties"))
        for (size_t i = 0; i < codes.size(); ++i)
            codes[i] = i / row % 3 == 0 ? uint8_t{0x80} : codes[i % row];
    for (size_t key = static_cast<size_t>(in["visible"]); key < static_cast<size_t>(in["keys"]); ++key)
        std::fill_n(scales.begin() + static_cast<int64_t>(key * blocks), blocks, E8m0{255});
}

OperatorInfo scores_entry() {
    OperatorInfo info;
    info.name = "index_scores";
    info.purpose = "scores of one query's visible index keys, in the released chain of roundings";
    info.equation = "d = bf16(q . k); score = bf16(sum over heads of bf16(max(d, 0) * weight))";
    info.source = "text model 6.3; numerics contract 1";
    info.parameters = {
        integer("keys", "512", "1", "1048576", "stored keys"),
        integer("visible", "keys", "0", "keys", "keys that the query may see; the others may hold anything"),
        integer("heads", "32", "1", "1024", "index heads"), head_dim, fill_choice({"normal", "ties"})};
    info.inputs = {{"codes", "U8", "[heads, head_dim / 2]", "packed e2m1 of the query"},
                   {"scales", "F8_E8M0", "[heads, head_dim / 32]", "their scales"},
                   {"weights", "BF16", "[heads]", "of the heads"},
                   {"key_codes", "U8", "[keys, head_dim / 2]", "packed e2m1 of the keys"},
                   {"key_scales", "F8_E8M0", "[keys, head_dim / 32]", "their scales"}};
    info.outputs = {tolerated(0.01, {"scores", "F32", "[visible]", "bf16 values"}),
                    tolerated(0.01, {"dot", "BF16", "[heads, visible]", "q . k"})};
    info.roundings = {"q . k to bf16", "the weighted dot to bf16", "the sum over heads to bf16"};
    info.sums = {SumOperator::index_dot, SumOperator::index_head_sum};
    info.profiles = one_order;
    info.cases = {
        {"index_scores(keys=200,heads=8)", ""},
        {"index_scores(keys=129,visible=127,heads=4)", "two keys of poison behind the visible ones"},
        {"index_scores(keys=513,visible=512,heads=32,head_dim=32)", "a key beyond a task of 512"},
        {"index_scores(keys=520,visible=513,heads=3,head_dim=64)",
         "one key in the second task; heads that are no power of two"},
        {"index_scores(keys=48,visible=47,heads=32,fill=ties)",
         "scores of exact zeros from ReLU, negative weights, equal keys"},
        {"index_scores(keys=1,visible=0,heads=1,head_dim=32)", "nothing visible"}};
    info.make_inputs = make_scores;
    info.run = run_scores;
    info.judge = judge_scores;
    return info;
}

}  // namespace

std::vector<OperatorInfo> indexer_operators() {
    return {keys_entry(), queries_entry(), scores_entry()};
}

}  // namespace touchstone
