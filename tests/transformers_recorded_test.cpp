// Both models against what transformers' deepseek_v41 computed on a synthetic checkpoint (golden/parity/
// transformers_tiny, made by tests/parity/parity.sh): `ideal` with quantisation off, end to end; `exact` with
// quantisation on, every layer of transformers started from our stream.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "reference/model/checkpoint_weights.h"
#include "reference/text_model.h"
#include "reference/truth/top_k.h"
#include "tests/trace_map.h"
#include "tests/transformers_tiny.h"
#include "tests/truth_twin.h"

using namespace touchstone;
using namespace touchstone::transformers_tiny;

namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

/// How a choice of theirs stands to our scores.
struct OtherChoice {
    bool possible = false;  ///< as many as we choose, all of which we might
    bool differs = false;
    double gap = 0;  ///< of our scores between what we took and what they took instead, in units of the rms
};

/// The best `most` of the scores above -infinity, against `theirs`.
OtherChoice judge(std::span<const double> scores, int64_t most, const std::set<int64_t>& theirs) {
    const auto score = [&](int64_t id) { return scores[static_cast<size_t>(id)]; };
    const int64_t visible = std::ranges::count_if(scores, [](double x) { return x > -infinity; });
    const int64_t count = std::min(most, visible);
    const bool possible = std::ssize(theirs) == count && std::ranges::all_of(theirs, [&](int64_t id) {
                              return id < std::ssize(scores) && score(id) > -infinity;
                          });
    if (!possible) return {};
    const auto best = truth::top_k(Eigen::Map<const truth::Vector>(scores.data(), std::ssize(scores)), count);
    const std::set<int64_t> ours(best.begin(), best.end());
    if (ours == theirs) return {.possible = true};
    double dropped = -infinity, taken = infinity, squares = 0;
    for (const int64_t id : ours)
        if (!theirs.contains(id)) dropped = std::max(dropped, score(id));
    for (const int64_t id : theirs)
        if (!ours.contains(id)) taken = std::min(taken, score(id));
    for (const double x : scores) squares += std::isfinite(x) ? x * x : 0;
    const double rms = std::sqrt(squares / static_cast<double>(visible));
    return {.possible = true, .differs = true, .gap = (dropped - taken) / rms};
}

/// What a comparison of choices found.
struct ChoicesFound {
    int64_t rows = 0, others = 0;
    double widest_gap = 0;
    std::vector<std::string> wrong;
    std::vector<std::pair<double, std::string>> by_gap;  ///< of the others
};

/// With the widest gaps in full.
std::string text_of(ChoicesFound found) {
    std::ranges::sort(found.by_gap, std::greater{});
    std::string text = fmt::format("{} choices, {} others at most {:.1e} apart, {} impossible", found.rows,
                                   found.others, found.widest_gap, found.wrong.size());
    for (size_t i = 0; i < std::min<size_t>(found.by_gap.size(), 12); ++i)
        text += fmt::format("; {}: {:.1e}", found.by_gap[i].second, found.by_gap[i].first);
    for (size_t i = 0; i < std::min<size_t>(found.wrong.size(), 12); ++i)
        text += fmt::format("; impossible: {}", found.wrong[i]);
    return text;
}

/// Our scores of a row, from which the layer chooses `tensor`; among the blocks that transformers kept where
/// the layer stands behind the candidate pool.
std::vector<double> scores_of(const RecordedCall& call, const NumbersByName& ours, int layer,
                              const std::string& tensor, int64_t row) {
    const bool blocks = tensor == "attn.candidate_pool.blocks";
    const auto scored =
        ours.at(at_layer(layer) + (blocks ? "attn.candidate_pool.block_scores" : "attn.indexer.scores"))
            .row(row);
    std::vector<double> scores(scored.begin(), scored.end());
    if (layer_roles(config())[static_cast<size_t>(layer)].pool != PoolRole::restricted) return scores;
    const auto& pool =
        call.choices.at(at_layer(config().candidate_source_layer_id) + "attn.candidate_pool.blocks");
    for (int64_t j = 0; j < std::ssize(scores); ++j)
        if (!pool[static_cast<size_t>(row)].contains(j / config().candidate_block_size))
            scores[static_cast<size_t>(j)] = -infinity;
    return scores;
}

/// Judges every choice of a call by our scores; experts have to be ours.
void judge_choices(const RecordedCall& call, const NumbersByName& ours, ChoicesFound& found) {
    for (const auto& [name, sets] : call.choices) {
        const auto [layer, tensor] = parts(name);
        for (int64_t row = 0; row < std::ssize(sets); ++row) {
            const std::set<int64_t>& theirs = sets[static_cast<size_t>(row)];
            OtherChoice other;
            if (tensor == "ffn.experts") {
                const auto chosen = ours.at(name).row(row);
                other.possible = std::set<int64_t>(chosen.begin(), chosen.end()) == theirs;
            } else {
                const bool blocks = tensor == "attn.candidate_pool.blocks";
                other = judge(scores_of(call, ours, layer, tensor, row),
                              blocks ? config().candidate_topk_blocks : config().index_topk, theirs);
            }
            ++found.rows;
            found.others += other.differs;
            found.widest_gap = std::max(found.widest_gap, other.gap);
            const std::string where = fmt::format("{} row {} of position {}", name, row, call.first_position);
            if (!other.possible) found.wrong.push_back(where);
            if (other.differs) found.by_gap.emplace_back(other.gap, where);
        }
    }
}

/// The choices of transformers that ours takes: lists and candidate blocks; experts it chooses itself.
truth::ForcedChoices forced_choices(const RecordedCall& call) {
    truth::ForcedChoices forced;
    const int64_t end = call.first_position + std::ssize(call.tokens);
    for (const auto& [name, sets] : call.choices) {
        const auto [layer, tensor] = parts(name);
        for (const std::set<int64_t>& ids : sets) {
            if (tensor == "attn.indexer.selected")
                forced.positions[layer].emplace_back(ids.begin(), ids.end());
            if (tensor != "attn.candidate_pool.blocks") continue;
            std::vector<bool> mask(static_cast<size_t>(end));
            for (int64_t j = 0; j < end; ++j)
                mask[static_cast<size_t>(j)] = ids.contains(j / config().candidate_block_size);
            forced.pool[layer].push_back(std::move(mask));
        }
    }
    return forced;
}

/// Our name of what the double model traces.
std::string traced_name(const std::string& name) {
    const auto [layer, tensor] = parts(name);
    if (tensor == "attn.index_scores") return at_layer(layer) + "attn.indexer.scores";
    if (tensor == "attn.candidate_block_scores") return at_layer(layer) + "attn.candidate_pool.block_scores";
    return name;
}

/// Of one kind of tensor.
struct NumbersFound {
    int64_t rows = 0, elements = 0, differing = 0;
    double of_rms = 0;  ///< the farthest element, in units of its row's rms
    std::string where;
};

void compare_row(std::span<const double> ours, std::span<const double> theirs, const std::string& where,
                 NumbersFound& found) {
    REQUIRE(ours.size() == theirs.size());
    double largest = 0, squares = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
        found.differing += !(ours[i] == theirs[i]);
        const double distance = std::abs(ours[i] - theirs[i]);
        if (!(distance <= largest)) largest = distance;
        squares += ours[i] * ours[i];
    }
    ++found.rows;
    found.elements += std::ssize(ours);
    const double of_rms = largest / std::sqrt(squares / static_cast<double>(ours.size()));
    if (largest > 0 && !(of_rms <= found.of_rms)) {
        found.of_rms = of_rms;
        found.where = where;
    }
}

/// Runs a call of the double model and compares what it traces.
void compare_ideal(const truth::Model& model, const RecordedCall& call, truth::State& state,
                   ChoicesFound& choices, std::map<std::string, NumbersFound>& found) {
    NumbersByName ours;
    truth::ForwardOptions options;
    options.forced = forced_choices(call);
    options.trace = [&](const std::string& name, const truth::Matrix& value) {
        ours[traced_name(name)] = {value.rows(), {value.data(), value.data() + value.size()}};
    };
    model.forward(state, {call.tokens.begin(), call.tokens.end()}, call.first_position, options);
    judge_choices(call, ours, choices);
    for (const auto& [name, theirs] : call.numbers) {
        REQUIRE(theirs.rows == std::ssize(call.rows));
        for (int64_t i = 0; i < theirs.rows; ++i) {
            const int64_t row = call.rows[static_cast<size_t>(i)];
            compare_row(ours.at(name).row(row), theirs.row(i),
                        fmt::format("{} row {} of position {}", name, row, call.first_position),
                        found[parts(name).second]);
        }
    }
}

/// Whether our list of a layer's row is theirs.
bool same_list(const RecordedCall& call, const NumbersByName& ours, int layer, int64_t row) {
    const int maker = layer < 0 ? -1 : layer_roles(config())[static_cast<size_t>(layer)].top_k_source;
    const auto theirs = call.choices.find(at_layer(maker) + "attn.indexer.selected");
    if (maker < 0 || theirs == call.choices.end()) return true;
    std::set<int64_t> list;
    for (const double id : ours.at(theirs->first).row(row))
        if (id >= 0) list.insert(static_cast<int64_t>(id));
    return list == theirs->second[static_cast<size_t>(row)];
}

/// Runs a call of the bit-exact model and compares what it traces, without rows that attended other rows.
void compare_exact(const TextModel& model, const RecordedCall& call, SequenceState& state,
                   ChoicesFound& choices, std::map<std::string, NumbersFound>& found) {
    TraceMap trace;
    model.forward(std::vector<Request>{{&state, call.tokens}}, {.trace = Trace(&trace)});
    const NumbersByName ours = numbers_of(trace);
    judge_choices(call, ours, choices);
    for (const auto& [name, theirs] : call.numbers) {
        const auto [layer, tensor] = parts(name);
        const Numbers& mine = ours.at(name);
        const bool cache = tensor == "attn.compressed_kv" || tensor == "attn.indexer.key";
        const bool whole = mine.rows == theirs.rows;  // caches, and logits, of the last row alone
        for (int64_t i = 0; i < theirs.rows; ++i) {
            const int64_t row = whole ? i : call.rows[static_cast<size_t>(i)];
            if (!cache && !same_list(call, ours, layer, row)) continue;
            compare_row(mine.row(row), theirs.row(i),
                        fmt::format("{} row {} of position {}", name, row, call.first_position),
                        found[tensor]);
        }
    }
}

/// How far a kind of tensor may be from ours, started from our streams.
struct Limit {
    double share;  ///< of elements that may differ
    double of_rms;
};

/// bf16 values move by a step where another order of sums crosses a rounding boundary, 2^-7 of an element of
/// up to four times the rms; behind fp8 activations one of them may move a code, 2^-3 of an element, and that
/// spreads over its row. Coefficients and logits are fp32.
const std::map<std::string, Limit> limits{
    {"attn.collapsed", {0, 0}},
    {"attn.compressed_kv", {0, 0}},
    {"attn.indexer.key", {0, 0}},
    {"attn.x", {0.001, 0x1p-5}},
    {"attn.out", {0.05, 0.25}},
    {"ffn.out", {0.05, 0.25}},
    {"attn.window_kv", {0.002, 0x1p-2}},
    {"x_out", {0.02, 0x1p-4}},
    {"pre_out", {1, 5e-3}},
    {"logits", {1, 1e-5}},
};

void check_limits(const std::map<std::string, NumbersFound>& found) {
    REQUIRE(found.size() == limits.size());
    for (const auto& [tensor, numbers] : found) {
        const std::string shown =
            fmt::format("{}: {} rows, {} of {} elements differ, worst {:.1e} of the rms, {}", tensor,
                        numbers.rows, numbers.differing, numbers.elements, numbers.of_rms, numbers.where);
        INFO(shown);
        const Limit& limit = limits.at(tensor);
        CHECK(static_cast<double>(numbers.differing) <= limit.share * static_cast<double>(numbers.elements));
        CHECK(numbers.of_rms <= limit.of_rms);
        CHECK(numbers.rows > 4);
    }
}

}  // namespace

TEST_CASE("transformers: ideal gives every stream and logit of its float32 run (lengths, chunks, decode)") {
    const truth::Model model(config(), truth::dequantising_loader(tensors()), truth_engram(config()),
                             {.ledger = truth::Ledger::none()});
    const auto episodes = read_episodes("ideal");
    REQUIRE(episodes.size() == 7);
    ChoicesFound choices;
    for (const auto& [episode, calls] : episodes) {
        truth::State state = model.start();
        std::map<std::string, NumbersFound> found;
        for (const RecordedCall& call : calls) compare_ideal(model, call, state, choices, found);
        REQUIRE(found.size() == 3);  // x_out, pre_out, logits
        for (const auto& [tensor, numbers] : found) {
            const std::string shown = fmt::format("{}: {} of {} rows, worst {:.1e} of the rms, {}", episode,
                                                  tensor, numbers.rows, numbers.of_rms, numbers.where);
            INFO(shown);
            CHECK(numbers.of_rms <= 1e-5);
            CHECK(numbers.of_rms > 0);  // float32 is not double
        }
    }
    const std::string shown = text_of(choices);
    INFO(shown);
    CHECK(choices.wrong.empty());
    CHECK(choices.widest_gap <= 1e-6);
    CHECK(choices.rows > 5000);
}

TEST_CASE("transformers: exact gives its quantised layers from the same streams, choices but for ties") {
    const CheckpointWeights weights(tensors());
    const TextModel model(config(), weights, Arithmetic::exact);
    const auto episodes = read_episodes("quantised");
    REQUIRE(episodes.size() == 1);
    SequenceState state(config());
    ChoicesFound choices;
    std::map<std::string, NumbersFound> found;
    for (const RecordedCall& call : episodes.begin()->second)
        compare_exact(model, call, state, choices, found);
    // No arithmetic of transformers but one sum lies before it.
    REQUIRE_MESSAGE(
        found.at("attn.collapsed").differing == 0,
        "our exact streams are no longer those that were recorded: tests/parity/parity.sh --record");
    check_limits(found);
    const std::string shown = text_of(choices);
    INFO(shown);
    CHECK(choices.wrong.empty());
    CHECK(choices.widest_gap <= 0x1p-6);  // two bf16 steps of a score
    CHECK(choices.others * 50 <= choices.rows);
    CHECK(choices.rows > 1000);
}
