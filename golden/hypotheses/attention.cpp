// What kernels of sparse attention have got wrong.
#include <algorithm>
#include <cmath>
#include <limits>

#include "golden/hypotheses/component_words.h"
#include "reference/registry/entry.h"
#include "reference/sparse_attention.h"

namespace touchstone {

namespace {

constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

enum class Probabilities : uint8_t { rounded, unrounded, rounded_after_division };

/// Where a kernel differs from the reference; as it stands here, it does not.
struct AttentionRule {
    double scale = 1;                   ///< times head_dim^-1/2
    double sink_scale = 1;              ///< times the sink
    int64_t block = attention_block;    ///< entries that move the maximum together; 0: the whole list
    int64_t parts = 1;                  ///< of the list, each under its own maximum
    bool parts_averaged = false;        ///< each divided by its own sum, then the mean of them
    bool values_of_next_entry = false;  ///< the last entry has the first one's
    bool sink_in_maximum = false;
    Probabilities probabilities = Probabilities::rounded;
};

/// One part of the list under one head: what flash attention carries.
struct PartialSums {
    double maximum = -1e30, sum = 0;
    Eigen::RowVectorXd values;
};

/// Scores and rows of the entries that are there.
struct Entries {
    Eigen::RowVectorXd scores;
    truth::Matrix values;
};

/// Entries [first, last) under one running maximum, which starts at `partial`'s.
void walk(const Entries& entries, Eigen::Index first, Eigen::Index last, const AttentionRule& rule,
          PartialSums& partial) {
    const Eigen::Index block = rule.block > 0 ? rule.block : std::max<Eigen::Index>(last - first, 1);
    for (Eigen::Index at = first; at < last; at += block) {
        const Eigen::Index count = std::min(block, last - at);
        const Eigen::RowVectorXd scores = entries.scores.segment(at, count);
        if (scores.maxCoeff() == minus_infinity) continue;
        const double before = partial.maximum;
        partial.maximum = std::max(partial.maximum, scores.maxCoeff());
        const double change = std::exp(before - partial.maximum);
        partial.sum *= change;
        partial.values *= change;
        for (Eigen::Index j = 0; j < count; ++j) {
            const double p = std::exp(scores[j] - partial.maximum);
            partial.sum += p;
            if (p > 0)
                partial.values +=
                    (rule.probabilities == Probabilities::rounded ? truth::nearest_bf16(p) : p) *
                    entries.values.row(at + j);
        }
    }
}

/// With the whole list's sum known, p / sum is rounded in front of the rows.
Eigen::RowVectorXd divided_first(const Entries& entries, double maximum, double total) {
    Eigen::RowVectorXd o = Eigen::RowVectorXd::Zero(entries.values.cols());
    for (Eigen::Index j = 0; j < entries.scores.size(); ++j)
        if (const double p = std::exp(entries.scores[j] - maximum) / total; p > 0)
            o += truth::nearest_bf16(p) * entries.values.row(j);
    return o;
}

Eigen::RowVectorXd attended(const Entries& entries, double sink, const AttentionRule& rule) {
    const Eigen::Index count = entries.scores.size(), width = entries.values.cols();
    PartialSums whole{-1e30, 0, Eigen::RowVectorXd::Zero(width)};
    if (rule.sink_in_maximum) whole.maximum = sink;
    Eigen::RowVectorXd mean = Eigen::RowVectorXd::Zero(width);
    for (int64_t part = 0; part < rule.parts; ++part) {
        PartialSums one{whole.maximum, 0, Eigen::RowVectorXd::Zero(width)};
        if (part > 0 && !rule.sink_in_maximum) one.maximum = -1e30;
        walk(entries, count * part / rule.parts, count * (part + 1) / rule.parts, rule, one);
        mean += one.values / (one.sum + std::exp(sink - one.maximum)) / static_cast<double>(rule.parts);
        const double maximum = std::max(whole.maximum, one.maximum);
        const double kept = std::exp(whole.maximum - maximum), taken = std::exp(one.maximum - maximum);
        whole = {maximum, whole.sum * kept + one.sum * taken, whole.values * kept + one.values * taken};
    }
    const double total = whole.sum + std::exp(sink - whole.maximum);
    if (rule.parts_averaged) return mean;
    if (rule.probabilities == Probabilities::rounded_after_division)
        return divided_first(entries, whole.maximum, total);
    return whole.values / total;
}

/// In double. Slots that are not there have score -infinity and a row of zeros, so that blocks stay in place.
bool attend(const Call& call, const AttentionRule& rule) {
    const auto valid = call.in<uint8_t>("valid");
    if (std::ranges::all_of(valid, [](uint8_t flag) { return flag == 0; })) return false;
    const truth::Matrix q = matrix(call, "q", call["heads"]);
    truth::Matrix rows = matrix(call, "rows", call["entries"]);
    for (Eigen::Index j = 0; j < rows.rows(); ++j)
        if (valid[static_cast<size_t>(j)] == 0) rows.row(j).setZero();
    const truth::Vector sink = vector(call, "sink");
    const double scale = rule.scale / std::sqrt(static_cast<double>(call["head_dim"]));
    truth::Matrix o(q.rows(), q.cols());
    for (Eigen::Index head = 0; head < q.rows(); ++head) {
        Entries entries{scale * (q.row(head) * rows.transpose()), rows};
        for (Eigen::Index j = 0; j < rows.rows(); ++j)
            if (valid[static_cast<size_t>(j)] == 0) entries.scores[j] = minus_infinity;
        if (rule.values_of_next_entry)
            for (Eigen::Index j = 0; j < rows.rows(); ++j)
                entries.values.row(j) = rows.row((j + 1) % rows.rows());
        o.row(head) = attended(entries, rule.sink_scale * sink[head], rule);
    }
    store(call, "unrounded", o);
    store(call, "o", o);
    return true;
}

Outputs attention_with(const AttentionRule& rule) {
    return computed([rule](const Call& call) { return attend(call, rule); });
}

/// (0.1 ln 16 + 1)^2, what YaRN's attention factor would be.
double yarn_factor() {
    const double factor = 0.1 * std::log(released_config().rope_factor) + 1;
    return factor * factor;
}

/// The scale (head_dim + 64)^-1/2 instead of head_dim^-1/2.
bool attend_with_scale_of_latent_and_rope(const Call& call) {
    const auto width = static_cast<double>(call["head_dim"]);
    return attend(call, {.scale = std::sqrt(width / (width + 64))});
}

bool attend_without_scale(const Call& call) {
    return attend(call, {.scale = std::sqrt(static_cast<double>(call["head_dim"]))});
}

bool attend_scaled_twice(const Call& call) {
    return attend(call, {.scale = 1 / std::sqrt(static_cast<double>(call["head_dim"]))});
}

bool attend_with_scaled_sink(const Call& call) {
    return attend(call, {.sink_scale = 1 / std::sqrt(static_cast<double>(call["head_dim"]))});
}

// Changed inputs.

std::span<float> sink_of(TensorMap& inputs) {
    return inputs.find("sink")->second.view<float>();
}
std::span<uint8_t> valid_of(TensorMap& inputs) {
    return inputs.find("valid")->second.view<uint8_t>();
}
std::span<Bf16> row_of(TensorMap& inputs, const OperatorRun& run, size_t entry) {
    const auto width = static_cast<size_t>(run.parameters["head_dim"]);
    return inputs.find("rows")->second.view<Bf16>().subspan(entry * width, width);
}

bool no_sink(TensorMap& inputs, const OperatorRun&) {
    std::ranges::fill(sink_of(inputs), -std::numeric_limits<float>::infinity());
    return true;
}

bool sinks_rotated(TensorMap& inputs, const OperatorRun& run) {
    rotate_extent(sink_of(inputs), run.parameters["heads"], 1);
    return true;
}

bool first_sink_for_all(TensorMap& inputs, const OperatorRun& run) {
    if (run.parameters["heads"] < 2) return false;
    std::ranges::fill(sink_of(inputs), sink_of(inputs).front());
    return true;
}

bool sink_twice(TensorMap& inputs, const OperatorRun&) {
    for (float& sink : sink_of(inputs)) sink += std::log(2.0f);
    return true;
}

bool queries_rotated(TensorMap& inputs, const OperatorRun& run) {
    rotate_extent(inputs.find("q")->second.view<Bf16>(), run.parameters["heads"], run.parameters["head_dim"]);
    return true;
}

constexpr int64_t rope_channels = 64;

bool rope_not_scored(TensorMap& inputs, const OperatorRun& run) {
    const int64_t width = run.parameters["head_dim"];
    if (width <= rope_channels) return false;
    const std::span<Bf16> q = inputs.find("q")->second.view<Bf16>();
    for (size_t i = 0; i < q.size(); ++i)
        if (static_cast<int64_t>(i) % width >= width - rope_channels) q[i] = {0};
    return true;
}

bool rope_not_in_value(TensorMap& outputs, const OperatorRun& run) {
    const int64_t width = run.parameters["head_dim"];
    if (width <= rope_channels) return false;
    for (int64_t i = 0; i < width * run.parameters["heads"]; ++i) {
        if (i % width < width - rope_channels) continue;
        outputs.find("unrounded")->second.view<float>()[static_cast<size_t>(i)] = 0;
        outputs.find("o")->second.view<Bf16>()[static_cast<size_t>(i)] = {0};
    }
    return true;
}

/// Entries that are not there get a row and count as there.
bool fill_holes(TensorMap& inputs, const OperatorRun& run, const std::vector<Bf16>& row) {
    bool any = false;
    for (size_t j = 0; j < valid_of(inputs).size(); ++j) {
        if (valid_of(inputs)[j] != 0) continue;
        if (!row.empty()) std::ranges::copy(row, row_of(inputs, run, j).begin());
        valid_of(inputs)[j] = 1;
        any = true;
    }
    return any;
}

bool holes_attended(TensorMap& inputs, const OperatorRun& run) {
    return fill_holes(inputs, run, {});
}

bool holes_of_zeros(TensorMap& inputs, const OperatorRun& run) {
    return fill_holes(inputs, run, std::vector<Bf16>(static_cast<size_t>(run.parameters["head_dim"])));
}

bool holes_as_first_row(TensorMap& inputs, const OperatorRun& run) {
    const std::span<uint8_t> valid = valid_of(inputs);
    const auto first = std::ranges::find_if(valid, [](uint8_t flag) { return flag != 0; });
    if (first == valid.end()) return false;
    const std::span<Bf16> row = row_of(inputs, run, static_cast<size_t>(first - valid.begin()));
    return fill_holes(inputs, run, {row.begin(), row.end()});
}

/// Entries [first, last) do not exist; false where that would change nothing.
bool drop(TensorMap& inputs, int64_t first, int64_t last) {
    const std::span<uint8_t> valid = valid_of(inputs);
    const auto begin = valid.begin() + std::clamp<int64_t>(first, 0, std::ssize(valid));
    const auto end = valid.begin() + std::clamp<int64_t>(last, 0, std::ssize(valid));
    if (std::find_if(begin, std::max(begin, end), [](uint8_t flag) { return flag != 0; }) ==
        std::max(begin, end))
        return false;
    std::fill(begin, end, uint8_t{0});
    return true;
}

constexpr int64_t window_slots = 128;

bool last_entry_dropped(TensorMap& inputs, const OperatorRun& run) {
    int64_t last = run.parameters["entries"] - 1;
    while (last > 0 && valid_of(inputs)[static_cast<size_t>(last)] == 0) --last;
    return drop(inputs, last, last + 1);
}

bool first_entry_dropped(TensorMap& inputs, const OperatorRun&) {
    const std::span<uint8_t> valid = valid_of(inputs);
    const auto first = std::ranges::find_if(valid, [](uint8_t flag) { return flag != 0; }) - valid.begin();
    return drop(inputs, first, first + 1);
}

bool tail_dropped(TensorMap& inputs, const OperatorRun& run) {
    const int64_t entries = run.parameters["entries"];
    return drop(inputs, entries - entries % attention_block, entries);
}

bool first_block_dropped(TensorMap& inputs, const OperatorRun& run) {
    return run.parameters["entries"] > attention_block && drop(inputs, 0, attention_block);
}

bool selected_dropped(TensorMap& inputs, const OperatorRun& run) {
    return drop(inputs, window_slots, run.parameters["entries"]);
}

bool window_dropped(TensorMap& inputs, const OperatorRun& run) {
    return run.parameters["entries"] > window_slots && drop(inputs, 0, window_slots);
}

/// NaN everywhere where the first `count` entries are masked and others are not.
bool nan_behind_masked_front(TensorMap& outputs, const OperatorRun& run) {
    constexpr std::ptrdiff_t count = 16;
    const auto valid = run.inputs.find("valid")->second.view<uint8_t>();
    const auto first = std::ranges::find_if(valid, [](uint8_t flag) { return flag != 0; });
    if (first == valid.end() || first - valid.begin() < count) return false;
    fill_with_nan(outputs, {"unrounded", "o"});
    return true;
}

bool nan_where_all_is_masked(TensorMap& outputs, const OperatorRun& run) {
    const auto valid = run.inputs.find("valid")->second.view<uint8_t>();
    if (std::ranges::any_of(valid, [](uint8_t flag) { return flag != 0; })) return false;
    fill_with_nan(outputs, {"unrounded", "o"});
    return true;
}

const std::vector<std::string> here{"sparse_attention"};

std::vector<Hypothesis> order_rows() {
    const std::string kind = "order";
    return {
        {"p_unrounded", kind, "the probabilities stay fp32 in front of the values", Cause::order, here,
         attention_with({.probabilities = Probabilities::unrounded})},
        {"p_rounded_under_final_maximum", kind,
         "the probabilities are rounded to bf16 under the maximum of the whole list", Cause::order, here,
         attention_with({.block = 0})},
        {"p_rounded_after_division", kind,
         "the probabilities are divided by their sum before they are rounded to bf16", Cause::order, here,
         attention_with({.probabilities = Probabilities::rounded_after_division})},
        {"sink_in_maximum", kind, "the sink takes part in the maximum under which probabilities are rounded",
         Cause::order, here, attention_with({.block = 0, .sink_in_maximum = true})},
        {"blocks_of_128", kind, "the maximum moves once per 128 entries", Cause::order, here,
         attention_with({.block = 128})},
        {"blocks_of_32", kind, "the maximum moves once per 32 entries", Cause::order, here,
         attention_with({.block = 32})},
        {"two_parts_of_the_list", kind, "two halves of the list have their own maxima and are merged",
         Cause::order, here, attention_with({.parts = 2})},
    };
}

std::vector<Hypothesis> formula_rows() {
    const Cause fault = Cause::fault;
    return {
        {"sink_missing", "K11", "the sink is left out of the denominator", fault, here, with_inputs(no_sink)},
        {"sink_of_next_head", "K11", "each head has the next head's sink", fault, here,
         with_inputs(sinks_rotated)},
        {"sink_of_first_head", "K11", "every head has the first head's sink", fault, here,
         with_inputs(first_sink_for_all)},
        {"sink_scaled", "K11", "the sink is multiplied by the softmax scale, as if it were a product", fault,
         here, computed(attend_with_scaled_sink)},
        {"sink_in_every_part", "K11", "the sink counts once in each of two parts of the list", fault, here,
         with_inputs(sink_twice)},
        {"softmax_scale_missing", "K10", "scores are not multiplied by head_dim^-1/2", fault, here,
         computed(attend_without_scale)},
        {"softmax_scale_twice", "K10", "scores are multiplied by 1 / head_dim", fault, here,
         computed(attend_scaled_twice)},
        {"softmax_scale_with_yarn_factor", "K10", "YaRN's magnitude factor stands in the softmax scale",
         fault, here, attention_with({.scale = yarn_factor()})},
        {"softmax_scale_of_wider_head", "K10", "the softmax scale is (head_dim + 64)^-1/2", fault, here,
         computed(attend_with_scale_of_latent_and_rope)},
        {"exp2_of_scores", "K11", "2^x stands for e^x, without the factor log2(e)", fault, here,
         attention_with({.scale = std::log(2.0), .sink_scale = std::log(2.0)})},
        {"query_of_next_head", "K11", "each head's output is the next head's, under its own sink", fault,
         here, with_inputs(queries_rotated)},
        {"rope_channels_not_scored", "K10", "the rotated channels take no part in the scores", fault, here,
         with_inputs(rope_not_scored)},
        {"rope_channels_not_in_value", "K10", "the rotated channels of the value stay zero", fault, here,
         with_outputs(rope_not_in_value)},
        {"values_of_next_entry", "K11", "each entry's weight goes to the next entry's row", fault, here,
         attention_with({.values_of_next_entry = true})},
        {"parts_averaged", "K14", "two parts of the list are averaged, not merged by their sums", fault, here,
         attention_with({.parts = 2, .parts_averaged = true})},
    };
}

std::vector<Hypothesis> mask_rows() {
    const Cause fault = Cause::fault;
    return {
        {"holes_attended", "K14", "entries that are not there are attended as they lie in memory", fault,
         here, with_inputs(holes_attended)},
        {"holes_as_zero_rows", "K14", "entries that are not there are attended as rows of zeros", fault, here,
         with_inputs(holes_of_zeros)},
        {"holes_as_first_row", "K14", "entries that are not there (-1) are attended as the first row", fault,
         here, with_inputs(holes_as_first_row)},
        {"masked_front_gives_nan", "K14",
         "the maximum starts at -infinity: masked entries in front of the list give NaN", fault, here,
         with_outputs(nan_behind_masked_front)},
        {"masked_list_gives_nan", "K14", "a list without entries gives 0 / 0", fault, here,
         with_outputs(nan_where_all_is_masked)},
        {"last_entry_dropped", "K09", "the last entry of the list is masked", fault, here,
         with_inputs(last_entry_dropped)},
        {"first_entry_dropped", "K09", "the first entry of the list is masked", fault, here,
         with_inputs(first_entry_dropped)},
        {"last_partial_block_dropped", "K09", "entries beyond the last full block of 64 are left out", fault,
         here, with_inputs(tail_dropped)},
        {"first_block_dropped", "K09", "the first block of 64 entries is left out", fault, here,
         with_inputs(first_block_dropped)},
        {"selected_rows_dropped", "K09", "only the 128 window slots are attended", fault, here,
         with_inputs(selected_dropped)},
        {"window_dropped", "K09", "the 128 window slots are not attended", fault, here,
         with_inputs(window_dropped)},
    };
}

}  // namespace

std::vector<Hypothesis> attention_hypotheses() {
    std::vector<Hypothesis> all = order_rows();
    for (const auto& rows : {formula_rows(), mask_rows()}) all.insert(all.end(), rows.begin(), rows.end());
    return all;
}

}  // namespace touchstone
