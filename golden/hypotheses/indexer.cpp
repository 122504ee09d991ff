// What kernels of index keys and index queries have got wrong.
#include <algorithm>
#include <cmath>

#include "golden/hypotheses/component_words.h"
#include "reference/indexer.h"
#include "reference/numerics/trigonometry.h"
#include "reference/quantize.h"
#include "reference/registry/entry.h"
#include "reference/rms_norm.h"
#include "reference/rope.h"

namespace touchstone {

namespace {

const std::vector<std::string> on_keys{"index_keys"}, on_queries{"index_queries"},
    on_both{"index_keys", "index_queries"};

// Keys and queries: what stands in front of the rotation, then another rotation.

/// Where a rotation differs from the reference's.
struct Turn {
    RopeTable (*table)(const ModelConfig&) = compress_rope_table;
    bool half_split = false;  ///< channel i with channel i + rope_dim / 2, not adjacent ones
    bool leading = false;     ///< the first channels of a head, not the last
    bool inverse = false;
    bool unrounded_angle = false;  ///< position * frequency in double
    bool none = false;
};

RopeTable table_without_yarn(const ModelConfig& config) {
    return {config.qk_rope_head_dim, config.compress_rope_theta, std::nullopt};
}

RopePair pair_at(const RopeTable& table, int64_t position, size_t i, const Turn& turn) {
    std::vector<RopePair> pairs(table.frequencies().size());
    table.row(position, pairs);
    if (!turn.unrounded_angle) return pairs[i];
    const double angle = static_cast<double>(position) * static_cast<double>(table.frequencies()[i]);
    return {static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))};
}

/// x [rows, heads, head_dim] in place.
void rotate(std::span<Bf16> x, const std::vector<int64_t>& positions, int64_t head_dim, int64_t rope_dim,
            const Turn& turn) {
    if (turn.none || positions.empty()) return;
    ModelConfig config = released_config();
    config.qk_rope_head_dim = rope_dim;
    const RopeTable table = turn.table(config);
    const int64_t heads = std::ssize(x) / (std::ssize(positions) * head_dim), pairs = rope_dim / 2;
    for (size_t row = 0; row < positions.size(); ++row)
        for (int64_t i = 0; i < pairs; ++i) {
            const RopePair pair = pair_at(table, positions[row], static_cast<size_t>(i), turn);
            const float sine = turn.inverse ? -pair.sin : pair.sin;
            for (int64_t head = 0; head < heads; ++head) {
                Bf16* first = x.data() + (static_cast<int64_t>(row) * heads + head) * head_dim +
                              (turn.leading ? 0 : head_dim - rope_dim);
                Bf16& even = first[turn.half_split ? i : 2 * i];
                Bf16& odd = first[turn.half_split ? i + pairs : 2 * i + 1];
                const float a = to_float(even), b = to_float(odd);
                even = bf16_from_float(a * pair.cos - b * sine);
                odd = bf16_from_float(a * sine + b * pair.cos);
            }
        }
}

std::vector<int64_t> key_positions(const Call& call, int64_t token_of_group) {
    std::vector<int64_t> positions;
    for (int64_t group = 0; group < call["groups"]; ++group)
        positions.push_back((call["first_group"] + group) * call["ratio"] + token_of_group);
    return positions;
}

std::vector<int64_t> query_positions(const Call& call) {
    const auto positions = call.in<int64_t>("positions");
    return {positions.begin(), positions.end()};
}

/// The projected latents, bf16, normed or not.
std::vector<Bf16> unrotated_keys(Arithmetic arithmetic, const Call& call, bool normed) {
    std::vector<Bf16> projected(static_cast<size_t>(call["groups"] * call["head_dim"]));
    linear_bf16(arithmetic, SumOperator::index_wk, call.in<Bf16>("latents"), call["groups"],
                bf16_weight(call, "wk", call["head_dim"], call["channels"]), std::span<Bf16>(projected));
    if (!normed) return projected;
    std::vector<Bf16> keys(projected.size());
    rms_norm(projected, call["groups"], call.in<Bf16>("k_norm"), call.real("eps"), std::span<Bf16>(keys));
    return keys;
}

std::vector<Bf16> unrotated_queries(Arithmetic arithmetic, const Call& call) {
    std::vector<Bf16> queries(static_cast<size_t>(call["rows"] * call["heads"] * call["head_dim"]));
    linear_fp8(arithmetic, SumOperator::index_wq_b, call.in<Bf16>("qr"), call["rows"],
               fp8_weight(call, "wq_b", "wq_b_scale", call["heads"] * call["head_dim"], call["q_rank"]),
               std::span<Bf16>(queries));
    return queries;
}

/// The queries and what Q4i makes of them.
void put_queries(const Call& call, const std::vector<Bf16>& queries) {
    constexpr size_t block = 32;
    const BlockRule& rule = quantizer_info(Quantizer::q4i).rule;
    std::ranges::copy(queries, call.out<Bf16>("queries").begin());
    for (size_t i = 0; i < queries.size(); i += block)
        quantize_block(rule, queries.data() + i,
                       reinterpret_cast<std::byte*>(call.out<uint8_t>("codes").data() + i / 2),
                       reinterpret_cast<std::byte*>(call.out<E8m0>("scales").data() + i / block));
}

bool turn_keys(Arithmetic arithmetic, const Call& call, bool normed, int64_t token_of_group,
               const Turn& turn) {
    std::vector<Bf16> keys = unrotated_keys(arithmetic, call, normed);
    rotate(keys, key_positions(call, token_of_group), call["head_dim"], call["rope_dim"], turn);
    std::ranges::copy(keys, call.out<Bf16>("keys").begin());
    return true;
}

bool turn_queries(Arithmetic arithmetic, const Call& call, const Turn& turn) {
    std::vector<Bf16> queries = unrotated_queries(arithmetic, call);
    rotate(queries, query_positions(call), call["head_dim"], call["rope_dim"], turn);
    put_queries(call, queries);
    return true;
}

/// Keys or queries, whichever the operator makes, rotated in another way.
Outputs turned(const Turn& turn) {
    return recomputed([turn](Arithmetic arithmetic, const Call& call) {
        if (call.has_output("keys")) return turn_keys(arithmetic, call, true, 0, turn);
        return turn_queries(arithmetic, call, turn);
    });
}

bool keys_not_normed(Arithmetic arithmetic, const Call& call) {
    return turn_keys(arithmetic, call, false, 0, {});
}

bool keys_at_last_token(Arithmetic arithmetic, const Call& call) {
    return call["ratio"] > 1 && turn_keys(arithmetic, call, true, call["ratio"] - 1, {});
}

bool gain_of_ones(TensorMap& inputs, const OperatorRun&) {
    std::ranges::fill(inputs.find("k_norm")->second.view<Bf16>(), bf16_from_float(1));
    return true;
}

bool latents_rotated(TensorMap& inputs, const OperatorRun& run) {
    const int64_t channels = run.parameters["channels"], rope_dim = run.parameters["rope_dim"];
    if (channels < rope_dim) return false;
    TensorMap none;
    rotate(inputs.find("latents")->second.view<Bf16>(), key_positions({run.parameters, inputs, none}, 0),
           channels, rope_dim, {});
    return true;
}

bool latents_quantised(TensorMap& inputs, const OperatorRun& run) {
    if (run.parameters["channels"] % 16 != 0) return false;
    Tensor& latents = inputs.find("latents")->second;
    const truth::Matrix codes = truth::Ledger::released().q4m(matrix(latents, run.parameters["groups"]));
    std::transform(codes.data(), codes.data() + codes.size(), latents.view<Bf16>().begin(),
                   [](double x) { return bf16_from_float(static_cast<float>(x)); });
    return true;
}

/// Every row of `width` elements, a power of two, by the orthonormal Hadamard matrix.
std::vector<Bf16> hadamard(std::span<const Bf16> x, int64_t width) {
    std::vector<float> y(x.size());
    std::ranges::transform(x, y.begin(), [](Bf16 v) { return to_float(v); });
    for (int64_t half = 1; half < width; half *= 2)
        for (int64_t i = 0; i < std::ssize(y); ++i) {
            if (i / half % 2 != 0) continue;
            float &a = y[static_cast<size_t>(i)], &b = y[static_cast<size_t>(i + half)];
            const float sum = a + b;
            b = a - b;
            a = sum;
        }
    std::vector<Bf16> result;
    const float scale = 1 / std::sqrt(static_cast<float>(width));
    for (const float v : y) result.push_back(bf16_from_float(v * scale));
    return result;
}

bool hadamard_turned(const Call& call) {
    const int64_t width = call["head_dim"];
    if ((width & (width - 1)) != 0) return false;
    const std::string_view output = call.has_output("keys") ? "keys" : "queries";
    const std::vector<Bf16> turned = hadamard(call.out<Bf16>(output), width);
    std::ranges::copy(turned, call.out<Bf16>(output).begin());
    if (output == "queries") put_queries(call, turned);
    return true;
}

bool queries_normed(Arithmetic arithmetic, const Call& call) {
    const std::vector<Bf16> gain(static_cast<size_t>(call["head_dim"]), bf16_from_float(1));
    const std::vector<Bf16> queries = unrotated_queries(arithmetic, call);
    std::vector<Bf16> normed(queries.size());
    rms_norm(queries, call["rows"] * call["heads"], gain, 1e-20f, std::span<Bf16>(normed));
    rotate(normed, query_positions(call), call["head_dim"], call["rope_dim"], {});
    put_queries(call, normed);
    return true;
}

bool positions_moved(TensorMap& inputs, int64_t by) {
    for (int64_t& position : inputs.find("positions")->second.view<int64_t>())
        position = std::max<int64_t>(position + by, 0);
    return true;
}

bool scales_of_next_block(TensorMap& outputs, const OperatorRun& run) {
    const int64_t blocks = run.parameters["head_dim"] / 32;
    rotate_extent(outputs.find("scales")->second.view<E8m0>(), blocks, 1);
    return blocks > 1;
}

/// weights = projections * (heads^a head_dim^b).
Outputs head_weights_scaled(double heads_power, double head_dim_power) {
    return computed([heads_power, head_dim_power](const Call& call) {
        const double factor = std::pow(static_cast<double>(call["heads"]), heads_power) *
                              std::pow(static_cast<double>(call["head_dim"]), head_dim_power);
        store(call, "weights", matrix(call.outputs.find("projections")->second, call["rows"]) * factor);
        return true;
    });
}

std::vector<Hypothesis> rotation_rows() {
    const Cause fault = Cause::fault;
    return {
        {"index_rope_main_table", "K10", "rotated by the table of layers without compressed rows", fault,
         on_both, turned({.table = main_rope_table})},
        {"index_rope_without_yarn", "K10", "rotated by frequencies that YaRN has not stretched", fault,
         on_both, turned({.table = table_without_yarn})},
        {"index_rope_half_split", "K10", "channels i and i + half are rotated together, not adjacent ones",
         fault, on_both, turned({.half_split = true})},
        {"index_rope_leading_channels", "K10", "the first channels of a head are rotated, not the last",
         fault, on_both, turned({.leading = true})},
        {"index_rope_inverse", "K10", "rotated backwards", fault, on_both, turned({.inverse = true})},
        {"index_rope_missing", "K10", "not rotated", fault, on_both, turned({.none = true})},
        {"index_rope_angle_unrounded", "K10",
         "position times frequency is not rounded to fp32 before cos and sin", fault, on_both,
         turned({.unrounded_angle = true})},
        {"hadamard_on_one_side", "K11", "a Hadamard transform is applied, which V4.1 does not have", fault,
         on_both, computed(hadamard_turned)},
    };
}

std::vector<Hypothesis> key_rows() {
    const Cause fault = Cause::fault;
    return {
        {"key_from_rotated_latent", "K11", "the key is projected from the latent after its rotation", fault,
         on_keys, with_inputs(latents_rotated)},
        {"key_from_quantised_latent", "K11", "the key is projected from the latent as the cache stores it",
         fault, on_keys, with_inputs(latents_quantised)},
        {"key_not_normed", "K11", "the key's norm is left out", fault, on_keys, recomputed(keys_not_normed)},
        {"key_norm_gain_missing", "K11", "the gain of the key's norm is left out", fault, on_keys,
         with_inputs(gain_of_ones)},
        {"key_at_group_number", "K10", "group j is rotated at position j, not j * ratio", fault, on_keys,
         with_parameters(
             [](Parameters& parameters, const OperatorRun&) { return set_integer(parameters, "ratio", 1); })},
        {"key_at_last_token_of_group", "K10", "a group is rotated at its last token's position", fault,
         on_keys, recomputed(keys_at_last_token)},
        {"key_positions_of_the_chunk", "K08", "positions are counted from the chunk's first group", fault,
         on_keys, with_parameters([](Parameters& parameters, const OperatorRun&) {
             return set_integer(parameters, "first_group", 0);
         })},
    };
}

std::vector<Hypothesis> query_rows() {
    const Cause fault = Cause::fault;
    return {
        {"index_query_normed_per_head", "K11", "each query head is normed, as in V4", fault, on_queries,
         recomputed(queries_normed)},
        {"query_position_one_late", "K10", "queries are rotated one position too far", fault, on_queries,
         with_inputs([](TensorMap& inputs, const OperatorRun&) { return positions_moved(inputs, 1); })},
        {"query_position_one_early", "K10", "queries are rotated one position too little", fault, on_queries,
         with_inputs([](TensorMap& inputs, const OperatorRun&) { return positions_moved(inputs, -1); })},
        {"query_scales_of_next_block", "K16", "blocks of 32 channels carry the next block's scale", fault,
         on_queries, with_outputs(scales_of_next_block)},
        {"head_weights_unscaled", "K11", "head weights lack the factor (head_dim heads)^-1/2", fault,
         on_queries, head_weights_scaled(0, 0)},
        {"head_weights_scaled_by_head_dim", "K11", "head weights lack the factor heads^-1/2", fault,
         on_queries, head_weights_scaled(0, -0.5)},
        {"head_weights_scaled_by_heads", "K11", "head weights lack the factor head_dim^-1/2", fault,
         on_queries, head_weights_scaled(-0.5, 0)},
        {"head_weights_scaled_twice", "K11", "head weights are multiplied by (head_dim heads)^-1/2 twice",
         fault, on_queries, head_weights_scaled(-1, -1)},
    };
}

}  // namespace

std::vector<Hypothesis> indexer_hypotheses() {
    std::vector<Hypothesis> all;
    for (const auto& rows : {rotation_rows(), key_rows(), query_rows()})
        all.insert(all.end(), rows.begin(), rows.end());
    return all;
}

}  // namespace touchstone
