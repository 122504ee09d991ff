// What kernels of Engram have got wrong: hash, lookup, gate.
#include "reference/engram.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "golden/hypotheses/component_words.h"
#include "reference/registry/entry.h"

namespace touchstone {

namespace {

const std::vector<std::string> on_ids{"engram_row_ids"}, on_table{"engram_lookup", "engram"},
    on_engram{"engram"};

// The hash.

/// Ids of the n-gram that ends at a token, newest first: [max_ngram_size], and how they are mixed.
struct HashRule {
    bool multipliers_reversed = false;
    bool oldest_first = false;  ///< the multipliers begin at an n-gram's oldest id
    bool added = false;         ///< products are added, not XORed
    bool in_32_bits = false;
    bool dead_not_sticky = false;
    bool multipliers_of_other_layer = false;
    bool offsets_missing = false;
    bool primes_of_next_column = false;
    bool orders_inner = false;  ///< column head * 3 + n - 2
    int64_t shorter = 0;        ///< by so many ids is an n-gram short
    enum Dead : uint8_t { pad, minus_one, last_id, skipped } dead = pad;
};

/// The ids that a token's n-grams look at, newest first.
std::vector<int64_t> look_back(const std::vector<int64_t>& sequence, size_t position, int64_t pad,
                               const HashRule& rule, size_t count) {
    constexpr int64_t compressed_ids = 99092;
    std::vector<int64_t> ids;
    bool blocked = false;
    for (size_t back = 0; ids.size() < count; ++back) {
        const bool before = back > position;
        const bool dead = !before && sequence[position - back] == engram_dead;
        if (dead && rule.dead == HashRule::skipped) continue;
        if (dead && rule.dead == HashRule::pad && !rule.dead_not_sticky) blocked = true;
        int64_t id = before || blocked || (dead && rule.dead == HashRule::pad) ? pad : 0;
        if (!before && !blocked && !(dead && rule.dead == HashRule::pad)) id = sequence[position - back];
        if (dead && rule.dead == HashRule::last_id) id = compressed_ids - 1;
        ids.push_back(id);
    }
    return ids;
}

int64_t mixed(const std::vector<int64_t>& ids, size_t count, const std::vector<int64_t>& multipliers,
              const HashRule& rule) {
    uint64_t rolling = 0;
    for (size_t i = 0; i < count; ++i) {
        const size_t at = rule.oldest_first ? count - 1 - i : i;
        const uint64_t term = static_cast<uint64_t>(ids[i]) * static_cast<uint64_t>(multipliers[at]);
        rolling = rule.added ? rolling + term : rolling ^ term;
    }
    return rule.in_32_bits ? static_cast<int64_t>(static_cast<uint32_t>(rolling))
                           : static_cast<int64_t>(rolling);
}

/// Of a prime, never negative.
int64_t remainder(int64_t value, int64_t prime) {
    return (value % prime + prime) % prime;
}

bool hash_ids(const HashRule& rule, const Call& call) {
    static const EngramHash hash = engram_hash(released_config());
    const auto layer_index = static_cast<size_t>(call["layer_index"]);
    const EngramLayerHash& layer = hash.layers.at(layer_index);
    std::vector<int64_t> multipliers =
        rule.multipliers_of_other_layer ? hash.layers.at(1 - layer_index).multipliers : layer.multipliers;
    if (rule.multipliers_reversed) std::ranges::reverse(multipliers);
    const auto past = call.in<int32_t>("past"), ids = call.in<int32_t>("ids");
    std::vector<int64_t> sequence(past.begin(), past.end());
    sequence.insert(sequence.end(), ids.begin(), ids.end());
    const auto heads = static_cast<size_t>(hash.heads), orders = multipliers.size() - 1;
    auto out = call.out<int64_t>("row_ids").begin();
    for (size_t token = 0; token < ids.size(); ++token, out += hash.columns()) {
        const auto back = look_back(sequence, past.size() + token, call["pad"], rule, multipliers.size());
        for (size_t column = 0; column < heads * orders; ++column) {
            const size_t order = column / heads, prime = (column + (rule.primes_of_next_column ? 1 : 0));
            const int64_t rolling =
                mixed(back, order + 2 - static_cast<size_t>(rule.shorter), multipliers, rule);
            const size_t place = rule.orders_inner ? column % heads * orders + order : column;
            out[static_cast<std::ptrdiff_t>(place)] =
                remainder(rolling, layer.primes[prime % layer.primes.size()]) +
                (rule.offsets_missing ? 0 : layer.offsets[column]);
        }
    }
    return true;
}

Outputs hashed_with(const HashRule& rule) {
    return computed([rule](const Call& call) { return hash_ids(rule, call); });
}

bool history_dropped(TensorMap& inputs, const OperatorRun& run) {
    std::ranges::fill(inputs.find("past")->second.view<int32_t>(), engram_dead);
    return run.parameters["history"] > 0;
}

/// The history lacks its newest id: each of its places holds the one before.
bool history_one_early(TensorMap& inputs, const OperatorRun& run) {
    const std::span<int32_t> past = inputs.find("past")->second.view<int32_t>();
    if (past.empty()) return false;
    std::rotate(past.begin(), past.end() - 1, past.end());
    past.front() = engram_dead;
    return run.parameters["history"] > 0;
}

// The table.

std::span<E8m0> table_scales(TensorMap& inputs) {
    return inputs.find("table_scales")->second.view<E8m0>();
}

bool scales_ignored(TensorMap& inputs, const OperatorRun&) {
    std::ranges::fill(table_scales(inputs), E8m0{127});
    return true;
}

bool scales_of_next_block(TensorMap& inputs, const OperatorRun& run) {
    const int64_t blocks = run.parameters["head_dim"] / 32;
    rotate_extent(table_scales(inputs), blocks, 1);
    return blocks > 1;
}

bool first_scale_of_row(TensorMap& inputs, const OperatorRun& run) {
    const auto blocks = static_cast<size_t>(run.parameters["head_dim"] / 32);
    const std::span<E8m0> scales = table_scales(inputs);
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = scales[i / blocks * blocks];
    return blocks > 1;
}

bool scales_of_next_row(TensorMap& inputs, const OperatorRun& run) {
    rotate_extent(table_scales(inputs), run.parameters["table_rows"], run.parameters["head_dim"] / 32);
    return run.parameters["table_rows"] > 1;
}

bool next_rows(TensorMap& inputs, const OperatorRun& run) {
    for (int64_t& id : inputs.find("row_ids")->second.view<int64_t>())
        id = (id + 1) % run.parameters["table_rows"];
    return run.parameters["table_rows"] > 1;
}

// The gate: from the reference's kv, which is the operator's first output.

/// As it stands here, the reference's.
struct EngramRule {
    bool signless = false, unfloored = false, without_root = false, without_width = false;
    bool h_norm = true, key_norm = true, norm_over_streams = false;
    bool q_gain = true, k_gain = true;
    bool keys_of_next_stream = false, value_first = false, gate_of_first_stream = false;
    bool ungated = false, without_sigmoid = false;
    double residual = 1;
};

double gate_of(double dot, const EngramRule& rule) {
    const double magnitude = rule.unfloored ? std::abs(dot) : std::max(std::abs(dot), 1e-6);
    double root = rule.without_root ? magnitude : std::sqrt(magnitude);
    if (!rule.signless) root = std::copysign(root, dot);
    if (rule.ungated) return 1;
    return rule.without_sigmoid ? root : 1 / (1 + std::exp(-root));
}

double reciprocal_rms(const Eigen::RowVectorXd& x, double eps) {
    return 1 / std::sqrt(x.squaredNorm() / static_cast<double>(x.size()) + eps);
}

/// Gate and new stream of one token: h [n, hidden], kv [n + 1, hidden].
bool gate_token(const Call& call, const EngramRule& rule, const truth::Matrix& kv, truth::Matrix& h,
                truth::Matrix& gate, Eigen::Index token) {
    const int64_t n = call["streams"], hidden = call["hidden"];
    const double eps = static_cast<double>(call.real("eps"));
    truth::Matrix q_gain = matrix(call, "q_weight", n), k_gain = matrix(call, "k_weight", n);
    if (!rule.q_gain) q_gain.setOnes();
    if (!rule.k_gain) k_gain.setOnes();
    const auto h_rows = h.middleRows(token * n, n);
    const auto kv_rows = kv.middleRows(token * (n + 1), n + 1);
    const Eigen::RowVectorXd whole = h_rows.reshaped<Eigen::RowMajor>().transpose();
    for (int64_t c = 0; c < n; ++c) {
        const int64_t key_at = rule.value_first ? c + 1 : rule.keys_of_next_stream ? (c + 1) % n : c;
        const Eigen::RowVectorXd copy = h_rows.row(c), key = kv_rows.row(key_at);
        double dot = copy.cwiseProduct(q_gain.row(c)).cwiseProduct(k_gain.row(c)).dot(key);
        if (rule.h_norm) dot *= reciprocal_rms(rule.norm_over_streams ? whole : copy, eps);
        if (rule.key_norm) dot *= reciprocal_rms(key, eps);
        if (!rule.without_width) dot /= std::sqrt(static_cast<double>(hidden));
        gate(token, c) = rule.gate_of_first_stream && c > 0 ? gate(token, 0) : gate_of(dot, rule);
    }
    for (int64_t c = 0; c < n; ++c)
        h.row(token * n + c) =
            rule.residual * h.row(token * n + c) + gate(token, c) * kv_rows.row(rule.value_first ? 0 : n);
    return true;
}

bool gate_all(const EngramRule& rule, const Call& call) {
    const int64_t tokens = call["tokens"], n = call["streams"];
    const truth::Matrix kv = matrix(call.outputs.find("kv")->second, tokens * (n + 1));
    truth::Matrix h = matrix(call, "h", tokens * n), gate = truth::Matrix::Zero(tokens, n);
    for (Eigen::Index token = 0; token < tokens; ++token)
        if (call.in<uint8_t>("dead")[static_cast<size_t>(token)] == 0)
            gate_token(call, rule, kv, h, gate, token);
    store(call, "gate", gate);
    store(call, "h_out", h);
    return true;
}

Outputs gated_with(const EngramRule& rule) {
    return computed([rule](const Call& call) { return gate_all(rule, call); });
}

bool nobody_dead(TensorMap& inputs, const OperatorRun&) {
    std::ranges::fill(inputs.find("dead")->second.view<uint8_t>(), uint8_t{0});
    return true;
}

std::vector<Hypothesis> hash_rows() {
    const Cause fault = Cause::fault;
    return {
        {"engram_multipliers_reversed", "K21", "the multipliers are taken in reverse", fault, on_ids,
         hashed_with({.multipliers_reversed = true})},
        {"engram_oldest_id_first", "K21", "the first multiplier goes to an n-gram's oldest id", fault, on_ids,
         hashed_with({.oldest_first = true})},
        {"engram_multipliers_of_other_layer", "K21", "the multipliers are the other layer's", fault, on_ids,
         hashed_with({.multipliers_of_other_layer = true})},
        {"engram_hash_of_other_layer", "K21", "the whole hash is the other layer's", fault, on_ids,
         with_parameters([](Parameters& parameters, const OperatorRun& run) {
             return set_integer(parameters, "layer_index", 1 - run.parameters["layer_index"]);
         })},
        {"engram_products_added", "K21", "products are added, not XORed", fault, on_ids,
         hashed_with({.added = true})},
        {"engram_hash_in_32_bits", "K17", "the mixed ids are cut to 32 bits", fault, on_ids,
         hashed_with({.in_32_bits = true})},
        {"engram_offsets_missing", "K21", "every column's part of the table begins at row 0", fault, on_ids,
         hashed_with({.offsets_missing = true})},
        {"engram_primes_of_next_column", "K21", "each column is taken modulo the next one's prime", fault,
         on_ids, hashed_with({.primes_of_next_column = true})},
        {"engram_ngrams_one_id_short", "K21", "n-grams have one id too few", fault, on_ids,
         hashed_with({.shorter = 1})},
        {"engram_columns_by_head", "K21", "columns stand by head, then by order", fault, on_ids,
         hashed_with({.orders_inner = true})},
        {"engram_history_dropped", "K21", "the history begins with the chunk", fault, on_ids,
         with_inputs(history_dropped)},
        {"engram_history_one_early", "K21", "the history lacks its newest id", fault, on_ids,
         with_inputs(history_one_early)},
        {"engram_looks_across_dead", "K21", "ids before a dead position are looked at", fault, on_ids,
         hashed_with({.dead_not_sticky = true})},
        {"engram_dead_skipped", "K21", "dead positions are left out of the n-grams", fault, on_ids,
         hashed_with({.dead = HashRule::skipped})},
        {"engram_dead_as_minus_one", "K21", "a dead position is hashed as the id -1", fault, on_ids,
         hashed_with({.dead = HashRule::minus_one})},
        {"engram_dead_as_last_id", "K21", "-1 counts from the end of the vocabulary", fault, on_ids,
         hashed_with({.dead = HashRule::last_id})},
        {"engram_pad_zero", "K21", "the pad is id 0", fault, on_ids,
         with_parameters(
             [](Parameters& parameters, const OperatorRun&) { return set_integer(parameters, "pad", 0); })},
    };
}

std::vector<Hypothesis> table_rows() {
    const Cause fault = Cause::fault;
    return {
        {"engram_scales_ignored", "K21", "the table's codes are read without their scales", fault, on_table,
         with_inputs(scales_ignored)},
        {"engram_scales_of_next_block", "K16", "blocks of 32 channels have the next block's scale", fault,
         on_table, with_inputs(scales_of_next_block)},
        {"engram_one_scale_per_row", "K16", "a row's first scale stands for all", fault, on_table,
         with_inputs(first_scale_of_row)},
        {"engram_scales_of_next_row", "K16", "rows have the next row's scales", fault, on_table,
         with_inputs(scales_of_next_row)},
        {"engram_next_rows", "K21", "the rows behind those that are asked for", fault, on_table,
         with_inputs(next_rows)},
    };
}

std::vector<Hypothesis> gate_rows() {
    const Cause fault = Cause::fault;
    return {
        {"engram_gate_without_sign", "K21", "the root does not get the dot product's sign", fault, on_engram,
         gated_with({.signless = true})},
        {"engram_gate_without_floor", "K21", "the magnitude is not held at 1e-6", fault, on_engram,
         gated_with({.unfloored = true})},
        {"engram_gate_without_root", "K21", "the square root is left out", fault, on_engram,
         gated_with({.without_root = true})},
        {"engram_gate_without_width", "K21", "the factor hidden^-1/2 is left out", fault, on_engram,
         gated_with({.without_width = true})},
        {"engram_gate_without_sigmoid", "K21", "the sigmoid is left out", fault, on_engram,
         gated_with({.without_sigmoid = true})},
        {"engram_stream_not_normed", "K21", "the stream is not normed", fault, on_engram,
         gated_with({.h_norm = false})},
        {"engram_key_not_normed", "K21", "the key is not normed", fault, on_engram,
         gated_with({.key_norm = false})},
        {"engram_norm_over_streams", "K21", "one rms over all streams", fault, on_engram,
         gated_with({.norm_over_streams = true})},
        {"engram_q_gain_missing", "K21", "the stream's gain is left out", fault, on_engram,
         gated_with({.q_gain = false})},
        {"engram_k_gain_missing", "K21", "the key's gain is left out", fault, on_engram,
         gated_with({.k_gain = false})},
        {"engram_keys_of_next_stream", "K21", "each stream has the next one's key", fault, on_engram,
         gated_with({.keys_of_next_stream = true})},
        {"engram_value_before_keys", "K21", "the value is taken from in front of the keys", fault, on_engram,
         gated_with({.value_first = true})},
        {"engram_gate_of_first_stream", "K21", "every stream has the first one's gate", fault, on_engram,
         gated_with({.gate_of_first_stream = true})},
        {"engram_ungated", "K21", "the value is added without its gate", fault, on_engram,
         gated_with({.ungated = true})},
        {"engram_residual_twice", "K21", "the stream itself is added twice", fault, on_engram,
         gated_with({.residual = 2})},
        {"engram_residual_missing", "K21", "the stream itself is left out", fault, on_engram,
         gated_with({.residual = 0})},
        {"engram_image_rows_changed", "K21", "positions inside an image get the value, too", fault, on_engram,
         with_inputs(nobody_dead)},
    };
}

}  // namespace

std::vector<Hypothesis> engram_hypotheses() {
    std::vector<Hypothesis> all = hash_rows();
    for (const auto& rows : {table_rows(), gate_rows()}) all.insert(all.end(), rows.begin(), rows.end());
    return all;
}

}  // namespace touchstone
