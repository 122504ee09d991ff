// Entries of engram.h.
#include "reference/engram.h"

#include <algorithm>
#include <cmath>

#include "reference/registry/entry.h"
#include "reference/registry/families.h"
#include "reference/truth/engram.h"

namespace touchstone {

namespace {

const EngramHash& released_hash() {
    static const EngramHash hash = engram_hash(released_config());
    return hash;
}

const truth::EngramHash& truth_hash(size_t layer_index) {
    static const std::vector<truth::EngramHash> hashes = [] {
        std::vector<truth::EngramHash> all;
        for (const EngramLayerHash& layer : released_hash().layers)
            all.push_back({layer.multipliers, layer.primes, layer.offsets});
        return all;
    }();
    return hashes.at(layer_index);
}

void make_ids(const CaseInputs& in) {
    constexpr int32_t published[] = {5, 17, 99, 1234, 99091};
    for (const char* slot : {"ids", "past"})
        for (size_t i = 0; i < in.at<int32_t>(slot).size(); ++i) {
            const uint32_t word = in.random(slot).word(i);
            int32_t id = static_cast<int32_t>(word % 99092);
            if (in.fill_is("published")) id = published[i % std::size(published)];
            if (in.fill_is("dead")) id = word % 4 == 0 ? engram_dead : 99091 - static_cast<int32_t>(word % 3);
            in.at<int32_t>(slot)[i] = id;
        }
}

void judge_ids(const truth::Ledger&, const Call& call) {
    const auto past = call.in<int32_t>("past"), ids = call.in<int32_t>("ids");
    std::vector<int64_t> history(past.begin(), past.end());
    history.insert(history.end(), ids.begin(), ids.end());
    const auto rows = truth::engram_row_ids(history, call["tokens"], released_hash().heads, call["pad"],
                                            truth_hash(static_cast<size_t>(call["layer_index"])));
    auto out = call.out<double>("row_ids").begin();
    for (const std::vector<int64_t>& row : rows)
        for (const int64_t id : row) *out++ = static_cast<double>(id);
}

OperatorInfo row_ids_entry() {
    OperatorInfo info;
    info.name = "engram_row_ids";
    info.purpose = "table rows of the n-grams that end at each token";
    info.equation = "row = (xor of id_i * multiplier_i, i < n) mod prime[column] + offset[column]";
    info.source = "text model 10.2; Engram A.3, A.5";
    info.parameters = {
        integer("tokens", "5", "0", "1048576", "tokens of the call"),
        integer("history", "3", "0", "1048576", "ids before them"),
        integer("layer_index", "0", "0", "1", "0: layer 1, 1: layer 14"),
        integer("pad", "2", "0", "99091", "compressed id before the sequence and behind an image"),
        fill_choice({"normal", "dead", "published"})};
    info.inputs = {
        {"ids", "I32", "[tokens]", "compressed ids; -1 inside an image", "1", "0 - 1", "99091"},
        {"past", "I32", "[history]", "of the positions before, oldest first", "1", "0 - 1", "99091"}};
    info.outputs = {equal({"row_ids", "I64", "[tokens, 24]", "column 8 (n - 2) + head, n = 2, 3, 4"})};
    info.profiles = one_order;
    info.cases = {{"engram_row_ids(tokens=9)", ""},
                  {"engram_row_ids(tokens=5,history=0,fill=published)",
                   "the beginning of a sequence: the published vector"},
                  {"engram_row_ids(tokens=5,history=0,layer_index=1,fill=published)", "layer 14"},
                  {"engram_row_ids(tokens=16,history=2,fill=dead)",
                   "image positions: nothing is looked at across them; the largest ids"},
                  {"engram_row_ids(tokens=1,history=7)", "decode: the last of a long history"}};
    info.make_inputs = make_ids;
    info.run = [](Arithmetic, const Call& call) {
        const std::vector<int64_t> rows = engram_row_ids(
            released_hash(), static_cast<size_t>(call["layer_index"]), static_cast<int32_t>(call["pad"]),
            call.in<int32_t>("past"), call.in<int32_t>("ids"));
        std::ranges::copy(rows, call.out<int64_t>("row_ids").begin());
    };
    info.judge = judge_ids;
    return info;
}

const Parameter table_rows = integer("table_rows", "1024", "1", "1073741824",
                                     "of the table; the model has 384,006,168 and 384,016,682");
const Parameter head_dim = integer("head_dim", "256", "32", "65536", "channels of a row", 32);

/// Row ids with the table's first and last row; rows that nobody asks for are poison.
void make_table(const CaseInputs& in, std::string_view ids_slot) {
    fill_with<E4m3>(in, "table", Filler::normal);
    fill_scales(in, "table_scales", 116);
    const std::span<int64_t> ids = in.at<int64_t>(ids_slot);
    for (size_t i = 0; i < ids.size(); ++i)
        ids[i] =
            i == 0 ? 0
            : i == 1
                ? in["table_rows"] - 1
                : static_cast<int64_t>(in.random(ids_slot).word(i) % static_cast<uint64_t>(in["table_rows"]));
    const int64_t width = in["head_dim"];
    for (int64_t row = 0; row < in["table_rows"]; ++row)
        if (std::ranges::find(ids, row) == ids.end())
            std::fill_n(in.at<E4m3>("table").begin() + row * width, width, E4m3{0x7F});
}

EngramWeights table_of(const Call& call) {
    EngramWeights weights{
        "engram", call["table_rows"], call.in<E4m3>("table"), call.in<E8m0>("table_scales"), {}, {}, {}};
    return weights;
}

/// Looked-up rows in double, rounded to bf16 where the ledger says.
truth::Matrix looked_up(const truth::Ledger& ledger, const Call& call, std::string_view ids_slot) {
    const auto ids = call.in<int64_t>(ids_slot);
    const int64_t width = call["head_dim"];
    truth::Matrix rows(std::ssize(ids), width);
    for (int64_t i = 0; i < rows.rows(); ++i)
        for (int64_t d = 0; d < width; ++d) {
            const int64_t at = ids[static_cast<size_t>(i)] * width + d;
            rows(i, d) =
                static_cast<double>(to_float(call.in<E4m3>("table")[static_cast<size_t>(at)])) *
                static_cast<double>(to_float(call.in<E8m0>("table_scales")[static_cast<size_t>(at / 32)]));
        }
    return ledger.bf16(rows);
}

void make_lookup(const CaseInputs& in) {
    make_table(in, "row_ids");
    if (!in.fill_is("scales")) return;
    for (size_t i = 0; i < in.at<E8m0>("table_scales").size(); ++i)
        in.at<E8m0>("table_scales")[i] = {static_cast<uint8_t>(i % 2 == 0 ? i / 2 % 12 : 255 - i / 2 % 12)};
}

OperatorInfo lookup_entry() {
    OperatorInfo info;
    info.name = "engram_lookup";
    info.purpose = "rows of the Engram table";
    info.equation = "row = code * scale";
    info.source = "text model 10.2";
    info.parameters = {integer("ids", "24", "0", "1048576", "rows that are asked for"), table_rows, head_dim,
                       fill_choice({"normal", "scales"})};
    info.inputs = {{"row_ids", "I64", "[ids]", "rows that are asked for", "1", "0", "table_rows - 1"},
                   {"table", "F8_E4M3", "[table_rows, head_dim]", "codes"},
                   {"table_scales", "F8_E8M0", "[table_rows, head_dim / 32]", "a scale per 32 channels"}};
    info.outputs = {equal({"rows", "BF16", "[ids, head_dim]", "exact for the scales of real tables"})};
    info.roundings = {"the product to bf16, exact but for extreme scales"};
    info.profiles = one_order;
    info.cases = {{"engram_lookup(ids=24,table_rows=100)",
                   "the first and the last row; poison in rows that nobody asks for"},
                  {"engram_lookup(ids=40,table_rows=37,head_dim=64,fill=scales)",
                   "scale bytes 0 to 255: subnormals, overflow, NaN"},
                  {"engram_lookup(ids=0,table_rows=1,head_dim=32)", "no rows"}};
    info.make_inputs = make_lookup;
    info.run = [](Arithmetic, const Call& call) {
        std::ranges::copy(engram_lookup(call.in<int64_t>("row_ids"), table_of(call), call["head_dim"]),
                          call.out<Bf16>("rows").begin());
    };
    info.judge = [](const truth::Ledger& ledger, const Call& call) {
        put(call, "rows", looked_up(ledger, call, "row_ids"));
    };
    return info;
}

EngramWeights weights_of(const Call& call) {
    EngramWeights weights = table_of(call);
    weights.wkv = fp8_weight(call, "wkv", "wkv_scale", (call["streams"] + 1) * call["hidden"],
                             call["columns"] * call["head_dim"]);
    weights.q_weight = call.in<Bf16>("q_weight");
    weights.k_weight = call.in<Bf16>("k_weight");
    return weights;
}

void run_engram(Arithmetic arithmetic, const Call& call) {
    const EngramShape shape{call["streams"], call["hidden"], call["columns"], call["head_dim"],
                            call.real("eps")};
    const std::span<Bf16> h = call.out<Bf16>("h_out");
    std::ranges::copy(call.in<Bf16>("h"), h.begin());
    const EngramResult result = engram(arithmetic, call.in<int64_t>("row_ids"), call["tokens"],
                                       weights_of(call), shape, call.in<uint8_t>("dead"), h);
    std::ranges::copy(result.kv, call.out<Bf16>("kv").begin());
    std::ranges::copy(result.gate, call.out<float>("gate").begin());
}

void judge_engram(const truth::Ledger& ledger, const Call& call) {
    const int64_t tokens = call["tokens"], n = call["streams"], hidden = call["hidden"];
    const truth::Matrix flat = looked_up(ledger, call, "row_ids");
    const truth::Matrix rows = flat.reshaped<Eigen::RowMajor>(tokens, call["columns"] * call["head_dim"]);
    const truth::Matrix wkv = truth::linear_operands({}, 0, weights_of(call).wkv).b;
    const truth::Matrix kv = truth::quantized_linear(rows, wkv, ledger);
    const truth::Matrix h = matrix(call, "h", tokens);
    truth::Matrix gate =
        truth::engram_gate(h, kv.leftCols(n * hidden), matrix(call, "q_weight", n),
                           matrix(call, "k_weight", n), static_cast<double>(call.real("eps")));
    for (int64_t t = 0; t < tokens; ++t)
        if (call.in<uint8_t>("dead")[static_cast<size_t>(t)] != 0) gate.row(t).setZero();
    put(call, "kv", kv);
    put(call, "gate", gate);
    put(call, "h_out", truth::engram_update(h, gate, kv.rightCols(hidden)));
}

void make_engram(const CaseInputs& in) {
    make_table(in, "row_ids");
    fill_fp8_weight(in, "wkv", "wkv_scale");
    fill_normal<Bf16>(in, "q_weight");
    fill_normal<Bf16>(in, "k_weight");
    fill_normal<Bf16>(in, "h");
    if (!in.fill_is("dead")) return;
    const int64_t row = in["streams"] * in["hidden"];
    for (int64_t t = 0; t < in["tokens"]; ++t) {
        in.at<uint8_t>("dead")[static_cast<size_t>(t)] = t % 2 == 1 ? 1 : 0;
        if (t < 2)
            std::fill_n(in.at<Bf16>("h").begin() + t * row, row,
                        Bf16{static_cast<uint16_t>(t == 0 ? 0x0000 : 0x8000)});
    }
}

OperatorInfo engram_entry() {
    OperatorInfo info;
    info.name = "engram";
    info.purpose = "rows of the table, projected and added behind a gate to every residual stream";
    info.equation =
        "kv = Q8(rows) . wkv^T; gate = sigmoid(copysign(sqrt(max(|d|, 1e-6)), d)), d = rms(h) q_weight . "
        "rms(key) k_weight * hidden^-1/2; "
        "h += gate * value";
    info.source = "text model 10.2; Engram A.7";
    info.parameters = {integer("tokens", "2", "0", "1048576", "rows"),
                       integer("streams", "4", "1", "16", "copies of the residual stream"),
                       integer("hidden", "128", "1", "65536", "channels of a copy; the model has 5,120"),
                       integer("columns", "24", "1", "1024", "table rows per token"),
                       table_rows,
                       head_dim,
                       real("eps", "1e-20", "0", "1", "of both norms"),
                       fill_choice({"normal", "dead"})};
    info.inputs = {{"row_ids", "I64", "[tokens, columns]", "engram_row_ids'", "1", "0", "table_rows - 1"},
                   {"table", "F8_E4M3", "[table_rows, head_dim]", "codes"},
                   {"table_scales", "F8_E8M0", "[table_rows, head_dim / 32]", "a scale per 32 channels"},
                   {"wkv", "F8_E4M3", "[(streams + 1) * hidden, columns * head_dim]",
                    "codes: a key per copy, then the value"},
                   {"wkv_scale", "F8_E8M0", "[((streams + 1) * hidden + 31) / 32, columns * head_dim / 32]",
                    "a scale per tile of 32 x 32"},
                   {"q_weight", "BF16", "[streams, hidden]", "gain on the stream's side"},
                   {"k_weight", "BF16", "[streams, hidden]", "gain on the key's side"},
                   {"dead", "U8", "[tokens]", "nonzero inside an image: h stays as it is"},
                   {"h", "BF16", "[tokens, streams, hidden]", "residual streams"}};
    info.outputs = {tolerated(0.01, {"kv", "BF16", "[tokens, (streams + 1) * hidden]", "keys and value"}),
                    tolerated(0.005, {"gate", "F32", "[tokens, streams]", "0 inside an image"}),
                    tolerated(0.01, {"h_out", "BF16", "[tokens, streams, hidden]", "residual streams"})};
    info.roundings = {"the rows to bf16, exact", "the rows by Q8", "kv to bf16", "h to bf16"};
    info.sums = {SumOperator::engram_wkv, SumOperator::engram_gate};
    info.profiles = three_orders;
    info.cases = {{"engram(tokens=64,hidden=256,columns=12,table_rows=500,head_dim=128)",
                   "poison in rows that nobody asks for"},
                  {"engram(tokens=4,hidden=33,columns=3,table_rows=20,head_dim=32,fill=dead)",
                   "image positions keep their bits, -0 too; streams of zeros: the gate at 0.5"}};
    info.make_inputs = make_engram;
    info.run = run_engram;
    info.judge = judge_engram;
    return info;
}

}  // namespace

std::vector<OperatorInfo> engram_operators() {
    return {row_ids_entry(), lookup_entry(), engram_entry()};
}

}  // namespace touchstone
