#include "golden/hypotheses/selection_rule.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

namespace touchstone {

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

struct Candidate {
    float score;
    int32_t index;
};

/// Whether a is selected before b.
bool before(const TopKRule& rule, Candidate a, Candidate b) {
    const auto rank = [&](float x) {
        if (std::isnan(x)) return rule.nan_largest ? 2 : 0;
        return 1;
    };
    if (rank(a.score) != rank(b.score)) return rank(a.score) > rank(b.score);
    if (rank(a.score) == 1 && a.score != b.score)
        return rule.smallest ? a.score < b.score : a.score > b.score;
    if (rule.negative_zero_below && a.score == 0 && std::signbit(a.score) != std::signbit(b.score))
        return std::signbit(b.score);
    return rule.higher_index_wins ? a.index > b.index : a.index < b.index;
}

void order_output(const TopKRule& rule, bool ascending, std::vector<Candidate>& chosen) {
    const auto by_index = [](Candidate a, Candidate b) { return a.index < b.index; };
    const auto by_index_down = [](Candidate a, Candidate b) { return a.index > b.index; };
    if (rule.output == SelectionOutput::as_the_run_says ? ascending
                                                        : rule.output == SelectionOutput::ascending)
        std::ranges::sort(chosen, by_index);
    if (rule.output == SelectionOutput::descending_index) std::ranges::sort(chosen, by_index_down);
}

std::vector<Candidate> candidates_of(const TopKRule& rule, const Call& call, int64_t row) {
    const int64_t columns = call["columns"];
    const int64_t seen = call.in<int32_t>("visible")[static_cast<size_t>(row)] + rule.more_visible;
    const int64_t visible = rule.visible_ignored ? columns : std::clamp<int64_t>(seen, 0, columns);
    std::vector<Candidate> all;
    for (int64_t column = 0; column < visible; ++column) {
        const auto at = static_cast<size_t>(row * columns + column);
        if (!rule.mask_ignored && call.in<uint8_t>("mask")[at] == 0) continue;
        const float score = call.in<float>("scores")[at];
        all.push_back({rule.score == nullptr ? score : rule.score(score), static_cast<int32_t>(column)});
    }
    return all;
}

float block_score(const PoolRule& rule, std::span<const float> rows, int64_t size) {
    float largest = -infinity, smallest = infinity, sum = 0;
    for (const float x : rows) {
        sum += x;
        if (x > largest) largest = x;
        if (x < smallest) smallest = x;
    }
    const bool padded = rule.zeros_behind_the_last && std::ssize(rows) < size;
    switch (rule.score) {
        case BlockScore::largest: return padded ? std::max(largest, 0.0f) : largest;
        case BlockScore::mean: return sum / static_cast<float>(rows.size());
        case BlockScore::sum: return sum;
        case BlockScore::first: return rows.front();
        case BlockScore::last: return rows.back();
        case BlockScore::smallest: return smallest;
    }
    return largest;
}

std::vector<float> block_scores(const PoolRule& rule, const Call& call) {
    const auto scores = call.in<float>("scores");
    const auto size = static_cast<size_t>(call["block_size"]);
    std::vector<float> blocks;
    for (size_t first = 0; first < scores.size(); first += size)
        blocks.push_back(block_score(rule, scores.subspan(first, std::min(size, scores.size() - first)),
                                     call["block_size"]));
    const size_t newest = rule.newest_is_visible_by_size ? scores.size() / size : blocks.size() - 1;
    if (rule.newest_forced && newest < blocks.size()) blocks[newest] = infinity;
    if (rule.first_forced) blocks.front() = infinity;
    return blocks;
}

void put_pool(const PoolRule& rule, const Call& call) {
    const std::vector<float> scores = block_scores(rule, call);
    std::vector<Candidate> kept;
    for (size_t b = 0; b < scores.size(); ++b)
        if (rule.masked_blocks_kept || scores[b] > -infinity)
            kept.push_back({scores[b], static_cast<int32_t>(b)});
    const TopKRule order{.higher_index_wins = rule.higher_block_wins};
    std::ranges::sort(kept, [&](Candidate a, Candidate b) { return before(order, a, b); });
    const int64_t count = std::min<int64_t>(std::ssize(kept), call["topk_blocks"] + rule.more_blocks);
    kept.resize(static_cast<size_t>(std::max<int64_t>(count, 0)));
    order_output({}, !rule.blocks_by_score, kept);

    std::ranges::copy(scores, call.out<float>("block_scores").begin());
    const auto blocks = call.out<int32_t>("blocks");
    const auto mask = call.out<uint8_t>("mask");
    std::ranges::fill(blocks, rule.padding);
    std::ranges::fill(mask, uint8_t{0});
    const auto size = static_cast<size_t>(call["block_size"]);
    for (size_t i = 0; i < kept.size(); ++i) {
        const auto first = static_cast<size_t>(kept[i].index) * size;
        if (i < blocks.size()) blocks[i] = kept[i].index;
        for (size_t row = first; row < std::min(first + size, mask.size()); ++row) mask[row] = 1;
    }
}

}  // namespace

Outputs with_top_k(std::function<void(TopKRule&)> change) {
    return computed([change = std::move(change)](const Call& call) {
        TopKRule rule;
        change(rule);
        const bool ascending = call.parameters.choice("order") == "ascending";
        const auto indices = call.out<int32_t>("indices");
        std::ranges::fill(indices, rule.padding);
        for (int64_t row = 0; row < call["rows"]; ++row) {
            std::vector<Candidate> all = candidates_of(rule, call, row);
            std::ranges::sort(all, [&](Candidate a, Candidate b) { return before(rule, a, b); });
            all.resize(std::min(all.size(), static_cast<size_t>(call["k"] + rule.more)));
            order_output(rule, ascending, all);
            for (size_t i = 0; i < all.size() && static_cast<int64_t>(i) < call["k"]; ++i)
                indices[static_cast<size_t>(row * call["k"]) + i] = all[i].index;
        }
        return true;
    });
}

Outputs with_pool(std::function<void(PoolRule&)> change) {
    return computed([change = std::move(change)](const Call& call) {
        if (call["visible"] == 0) return false;
        PoolRule rule;
        change(rule);
        put_pool(rule, call);
        return true;
    });
}

}  // namespace touchstone
