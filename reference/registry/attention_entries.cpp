// Entry of sparse_attention.h.
#include "reference/sparse_attention.h"

#include <algorithm>
#include <vector>

#include "reference/numerics/elementary.h"
#include "reference/registry/entry.h"
#include "reference/registry/families.h"
#include "reference/truth/sparse_attention.h"

namespace touchstone {

namespace {

/// Entries that are not there hold NaN.
void make(const CaseInputs& in) {
    fill_normal<Bf16>(in, "q");
    fill_normal<Bf16>(in, "rows");
    fill_normal<float>(in, "sink");
    const std::span<uint8_t> valid = in.at<uint8_t>("valid");
    const auto there = [&](size_t i) {
        if (in.fill_is("leading_gap")) return i >= 65;  // the window of an early decode step
        if (in.fill_is("holes")) return in.random("valid").word(i) % 3 != 0 && i / 64 != 1;
        return !in.fill_is("all_masked");
    };
    for (size_t i = 0; i < valid.size(); ++i) {
        valid[i] = there(i) ? 1 : 0;
        if (valid[i] == 0)
            std::fill_n(in.at<Bf16>("rows").begin() + static_cast<int64_t>(i) * in["head_dim"],
                        in["head_dim"], Bf16{0xFFFF});
    }
    // Sinks below, near and above every score; the last makes exp(sink - m) infinite and the output 0.
    if (in.fill_is("holes"))
        for (size_t i = 0; i < in.at<float>("sink").size(); ++i)
            in.at<float>("sink")[i] = static_cast<float>(i % 4) * 50 - 50;
    // Scores that climb from block to block: the maximum moves.
    if (in.fill_is("climbing"))
        for (size_t i = 0; i < in.at<Bf16>("rows").size(); ++i) {
            Bf16& x = in.at<Bf16>("rows")[i];
            const auto entry = static_cast<int64_t>(i) / in["head_dim"];
            x = bf16_from_float(to_float(x) * (0.25f + static_cast<float>(entry / 32)));
        }
}

void run(Arithmetic arithmetic, const Call& call) {
    const auto rows = call.in<Bf16>("rows");
    std::vector<float> wide(rows.size());
    std::ranges::transform(rows, wide.begin(), [](Bf16 x) { return to_float(x); });
    const float scale = elementary::reciprocal_sqrt(static_cast<float>(call["head_dim"]));
    sparse_attention(arithmetic, call.in<Bf16>("q"), call["heads"], call["head_dim"], wide,
                     call.in<uint8_t>("valid"), call.in<float>("sink"), scale, call.out<float>("unrounded"));
    sparse_attention(arithmetic, call.in<Bf16>("q"), call["heads"], call["head_dim"], wide,
                     call.in<uint8_t>("valid"), call.in<float>("sink"), scale, call.out<Bf16>("o"));
}

void judge(const truth::Ledger& ledger, const Call& call) {
    const auto valid = call.in<uint8_t>("valid");
    truth::AttentionList list{matrix(call, "rows", call["entries"]), {}};
    for (const uint8_t flag : valid) list.taken.push_back(flag != 0);
    const truth::Matrix o =
        truth::sparse_attention(matrix(call, "q", call["heads"]), list, vector(call, "sink"), ledger);
    put(call, "unrounded", o);
    put(call, "o", o);
}

}  // namespace

std::vector<OperatorInfo> attention_operators() {
    OperatorInfo info;
    info.name = "sparse_attention";
    info.purpose = "attention of one query over its list: window entries, then selected compressed rows";
    info.equation =
        "o[h] = sum_j p_j row_j / (sum_j p_j + exp(sink[h] - m)), p_j = exp(q[h] . row_j * head_dim^-1/2 - "
        "m), in blocks of 64";
    info.source = "text model 4.3; numerics contract 7";
    info.parameters = {
        integer("entries", "640", "0", "1048576", "of the list: 128 window slots and 512 selected rows"),
        integer("heads", "64", "1", "1024", "query heads"),
        integer("head_dim", "512", "16", "65536", "channels of a head", 16),
        fill_choice({"normal", "holes", "leading_gap", "climbing", "all_masked"})};
    info.inputs = {{"q", "BF16", "[heads, head_dim]", "the query"},
                   {"rows", "BF16", "[entries, head_dim]", "key and value at once"},
                   {"valid", "U8", "[entries]", "0: the entry is not there, its row may hold anything"},
                   {"sink", "F32", "[heads]", "in the denominator alone"}};
    info.outputs = {tolerated(2e-3, {"unrounded", "F32", "[heads, head_dim]", "what o rounds"}),
                    tolerated(6e-3, {"o", "BF16", "[heads, head_dim]", "before the inverse rotation"})};
    info.roundings = {"p to bf16, relative to the running maximum and for the sum over rows alone",
                      "o to bf16"};
    info.sums = {SumOperator::attention_scores, SumOperator::attention_softmax,
                 SumOperator::attention_values};
    info.profiles = two_orders;
    info.cases = {
        {"sparse_attention(entries=192,heads=4,head_dim=128)", ""},
        {"sparse_attention(entries=640,heads=2)", "the released list"},
        {"sparse_attention(entries=640,head_dim=64)", ""},
        {"sparse_attention(entries=1,heads=2,head_dim=64)", "one entry"},
        {"sparse_attention(entries=127,heads=2,head_dim=64,fill=climbing)",
         "a last block that is not full; the maximum moves in every block"},
        {"sparse_attention(entries=129,heads=3,head_dim=64,fill=leading_gap)",
         "a first block without entries; poison in the gap"},
        {"sparse_attention(entries=257,heads=8,head_dim=64,fill=holes)",
         "poison in holes, an empty block inside, sinks below and above all scores"},
        {"sparse_attention(entries=128,heads=2,head_dim=64,fill=all_masked)", "no entry at all: exactly 0"},
        {"sparse_attention(entries=0,heads=2,head_dim=64)", "an empty list"}};
    info.make_inputs = make;
    info.run = run;
    info.judge = judge;
    return {info};
}

}  // namespace touchstone
