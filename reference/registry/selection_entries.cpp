// Entries of candidate_pool.h and top_k.h.
#include <algorithm>
#include <array>
#include <limits>

#include "reference/candidate_pool.h"
#include "reference/registry/entry.h"
#include "reference/registry/families.h"
#include "reference/top_k.h"
#include "reference/truth/candidate_pool.h"
#include "reference/truth/top_k.h"

namespace touchstone {

namespace {

/// Few different values, or those that order badly: both zeros, infinities, NaN.
void put_hard_scores(const CaseInputs& in, std::string_view slot) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const std::array values{0.0f,     -0.0f, 1.0f, -1.0f, infinity, -infinity, float_from_bits(0x7FC00001),
                            0x1p-149f};
    const std::span<float> scores = in.at<float>(slot);
    for (size_t i = 0; i < scores.size(); ++i) {
        const uint32_t word = in.random(slot).word(i);
        if (in.fill_is("ties")) scores[i] = static_cast<float>(word % 3) - 1;
        if (in.fill_is("special")) scores[i] = values[word % values.size()];
    }
}

void run_pool(Arithmetic, const Call& call) {
    const CandidatePoolShape shape{call["block_size"], call["topk_blocks"]};
    const CandidatePool pool = candidate_pool(call.in<float>("scores"), shape);
    std::ranges::copy(pool.block_scores, call.out<float>("block_scores").begin());
    const std::span<int32_t> blocks = call.out<int32_t>("blocks");
    std::ranges::fill(blocks, -1);
    std::ranges::copy(pool.blocks, blocks.begin());
    pool_mask(pool.blocks, shape, call.out<uint8_t>("mask"));
}

void judge_pool(const truth::Ledger&, const Call& call) {
    const int64_t size = call["block_size"], visible = call["visible"];
    const truth::CandidatePool pool =
        truth::candidate_pool(vector(call, "scores"), visible, size, call["topk_blocks"]);
    put(call, "block_scores", pool.block_scores.transpose());
    const std::span<double> blocks = call.out<double>("blocks"), mask = call.out<double>("mask");
    std::ranges::fill(blocks, -1.0);
    size_t kept = 0;
    for (size_t i = 0; i < mask.size(); ++i) {
        mask[i] = pool.mask[i] ? 1 : 0;
        if (pool.mask[i] && i % static_cast<size_t>(size) == 0)
            blocks[kept++] = static_cast<double>(i / static_cast<size_t>(size));
    }
}

OperatorInfo pool_entry() {
    OperatorInfo info;
    info.name = "candidate_pool";
    info.purpose = "the blocks of compressed rows that later layers may select from";
    info.equation =
        "block score = largest score of its visible rows; the newest block always; the topk_blocks largest "
        "are kept";
    info.source = "text model 6.4";
    info.parameters = {integer("visible", "16500", "0", "1048576", "rows that the query may see"),
                       integer("block_size", "8", "1", "1024", "rows of a block"),
                       integer("topk_blocks", "2048", "1", "1048576", "blocks that are kept"),
                       fill_choice({"normal", "ties", "masked"})};
    info.inputs = {{"scores", "F32", "[visible]", "of the visible rows"}};
    info.outputs = {equal({"block_scores", "F32", "[(visible + block_size - 1) / block_size]",
                           "+infinity for the newest block"}),
                    equal({"blocks", "I32", "[topk_blocks]", "kept blocks, ascending, then -1"}),
                    equal({"mask", "U8", "[visible]", "1 inside a kept block"})};
    info.profiles = one_order;
    info.cases = {{"candidate_pool(visible=16385)", "one row more than the pool holds"},
                  {"candidate_pool(visible=47,topk_blocks=6)", "a newest block that is not full"},
                  {"candidate_pool(visible=48,topk_blocks=6)", "the pool just full"},
                  {"candidate_pool(visible=49,topk_blocks=6)", "the first block that is dropped"},
                  {"candidate_pool(visible=200,topk_blocks=6,fill=ties)",
                   "block scores that are equal: the lower block"},
                  {"candidate_pool(visible=100,topk_blocks=12,fill=masked)",
                   "blocks of -infinity alone are never kept; -0"},
                  {"candidate_pool(visible=0,topk_blocks=4)", "nothing visible"}};
    info.make_inputs = [](const CaseInputs& in) {
        fill_normal<float>(in, "scores");
        put_hard_scores(in, "scores");
        const std::span<float> scores = in.at<float>("scores");
        if (in.fill_is("masked"))
            for (size_t i = 0; i < scores.size(); ++i)
                scores[i] = i / 16 % 2 == 0 ? -std::numeric_limits<float>::infinity()
                            : i % 2 == 0    ? -0.0f
                                            : -1.0f;
    };
    info.run = run_pool;
    info.judge = judge_pool;
    return info;
}

void run_top_k(Arithmetic, const Call& call) {
    const bool ascending = call.parameters.choice("order") == "ascending";
    top_k(call.in<float>("scores"), call["rows"], call["columns"], call["k"],
          {call.in<int32_t>("visible"), call.in<uint8_t>("mask")},
          ascending ? TopKOutput::ascending : TopKOutput::selection, call.out<int32_t>("indices"));
}

void judge_top_k(const truth::Ledger&, const Call& call) {
    const int64_t columns = call["columns"], k = call["k"];
    const std::span<double> out = call.out<double>("indices");
    std::ranges::fill(out, -1.0);
    for (int64_t row = 0; row < call["rows"]; ++row) {
        std::vector<int64_t> candidates;
        std::vector<double> values;
        for (int64_t column = 0; column < call.in<int32_t>("visible")[static_cast<size_t>(row)]; ++column) {
            const auto at = static_cast<size_t>(row * columns + column);
            if (call.in<uint8_t>("mask")[at] == 0) continue;
            candidates.push_back(column);
            values.push_back(static_cast<double>(call.in<float>("scores")[at]));
        }
        std::vector<int64_t> best =
            truth::top_k(Eigen::Map<const truth::Vector>(values.data(), std::ssize(values)), k);
        for (int64_t& index : best) index = candidates[static_cast<size_t>(index)];
        if (call.parameters.choice("order") == "ascending") std::ranges::sort(best);
        std::ranges::copy(best, out.begin() + row * k);
    }
}

void make_top_k(const CaseInputs& in) {
    fill_normal<float>(in, "scores");
    put_hard_scores(in, "scores");
    const int64_t columns = in["columns"];
    std::ranges::fill(in.at<int32_t>("visible"), static_cast<int32_t>(columns));
    std::ranges::fill(in.at<uint8_t>("mask"), uint8_t{1});
    if (!in.fill_is("masked")) return;
    for (int64_t row = 0; row < in["rows"]; ++row) {
        const int64_t visible = columns * row / in["rows"];
        in.at<int32_t>("visible")[static_cast<size_t>(row)] = static_cast<int32_t>(visible);
        for (int64_t column = 0; column < columns; ++column) {
            const auto at = static_cast<size_t>(row * columns + column);
            // Any nonzero byte passes.
            in.at<uint8_t>("mask")[at] = column % 3 == 0 ? uint8_t{0} : static_cast<uint8_t>(1 << column % 8);
            if (column >= visible) in.at<float>("scores")[at] = float_from_bits(0xFFFFFFFF);
        }
    }
}

OperatorInfo top_k_entry() {
    OperatorInfo info;
    info.name = "top_k";
    info.purpose = "the k largest candidates of each row";
    info.equation = "larger first, ties to the lower column; -0 = +0; NaN below -infinity";
    info.source = "numerics contract 6; text model 6.4, 9.1";
    info.parameters = {
        integer("rows", "3", "0", "1048576", "rows"),
        integer("columns", "2048", "1", "1048576", "of the scores"),
        integer("k", "512", "1", "1048576", "that are selected"),
        choice("order", {"ascending", "selection"}, "of the output: by column, or the largest first"),
        fill_choice({"normal", "ties", "special", "masked"})};
    info.inputs = {
        {"scores", "F32", "[rows, columns]", "what is ordered"},
        {"visible", "I32", "[rows]", "columns 0 .. visible - 1 may be selected", "1", "0", "columns"},
        {"mask", "U8", "[rows, columns]", "and of these those that are not 0"}};
    info.outputs = {
        equal({"indices", "I32", "[rows, k]", "columns, then -1 where a row has fewer candidates"})};
    info.profiles = one_order;
    info.cases = {{"top_k(rows=3,columns=2048)", ""},
                  {"top_k(rows=2,columns=511)", "fewer columns than k"},
                  {"top_k(rows=2,columns=512)", "as many columns as k"},
                  {"top_k(rows=2,columns=513)", "one column too many"},
                  {"top_k(rows=4,columns=384,k=6,order=selection,fill=ties)",
                   "equal scores at the border: the lower column"},
                  {"top_k(rows=8,columns=129,k=48,fill=special)", "NaN, infinities, both zeros, subnormals"},
                  {"top_k(rows=8,columns=128,k=49,order=selection,fill=masked)",
                   "masked columns, rows without candidates, poison behind the visible ones"}};
    info.make_inputs = make_top_k;
    info.run = run_top_k;
    info.judge = judge_top_k;
    return info;
}

}  // namespace

std::vector<OperatorInfo> selection_operators() {
    return {pool_entry(), top_k_entry()};
}

}  // namespace touchstone
