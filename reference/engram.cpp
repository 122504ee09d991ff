#include "reference/engram.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

constexpr int64_t block = 32;  // columns of a table row that share a scale

__extension__ using Uint128 = unsigned __int128;

[[noreturn]] void refuse(std::string what, std::string where, std::string expected, std::string remedy = "") {
    throw UserError({std::move(what), std::move(where), std::move(expected), std::move(remedy)});
}

void require_size(std::string_view where, std::string_view name, size_t size, int64_t rows, int64_t width) {
    if (rows >= 0 && width >= 0 && static_cast<int64_t>(size) == rows * width) return;
    refuse(fmt::format("{} has {} elements", name, size), std::string(where),
           fmt::format("[{}, {}]", rows, width), "pass tensors whose shapes agree");
}

const EngramConfig& engram_of(const ModelConfig& config) {
    if (!config.engram)
        refuse("the configuration has no Engram", "engram_layer_ids", "at least one layer",
               "use a model with Engram");
    return *config.engram;
}

/// numpy.random.SeedSequence of a seed of one 32-bit word: the eight words that seed PCG64 (section A.4).
std::array<uint32_t, 8> seed_sequence(uint32_t seed) {
    uint32_t hash = 0x43b0d7e5;
    const auto hashmix = [&hash](uint32_t value) {
        value ^= hash;
        hash *= 0x931e8875;
        value *= hash;
        return value ^ value >> 16;
    };
    std::array<uint32_t, 4> pool{hashmix(seed), hashmix(0), hashmix(0), hashmix(0)};
    for (size_t from = 0; from < 4; ++from)
        for (size_t to = 0; to < 4; ++to)
            if (from != to) {
                const uint32_t mixed = 0xca01f9ddu * pool[to] - 0x4973f715u * hashmix(pool[from]);
                pool[to] = mixed ^ mixed >> 16;
            }
    uint32_t out_hash = 0x8b51f9dd;
    std::array<uint32_t, 8> words{};
    for (size_t i = 0; i < words.size(); ++i) {
        uint32_t value = pool[i % 4] ^ out_hash;
        out_hash *= 0x58f38ded;
        value *= out_hash;
        words[i] = value ^ value >> 16;
    }
    return words;
}

/// numpy.random.default_rng(seed): PCG64 with the XSL-RR output.
class Pcg64 {
  public:
    explicit Pcg64(uint32_t seed) {
        const std::array<uint32_t, 8> words = seed_sequence(seed);
        const auto pair = [&words](size_t i) {
            return words[2 * i] | static_cast<uint64_t>(words[2 * i + 1]) << 32;
        };
        increment_ = (static_cast<Uint128>(pair(2)) << 64 | pair(3)) << 1 | 1;
        step();
        state_ += static_cast<Uint128>(pair(0)) << 64 | pair(1);
        step();
    }

    uint64_t next() {
        step();
        const uint64_t folded = static_cast<uint64_t>(state_ >> 64) ^ static_cast<uint64_t>(state_);
        return std::rotr(folded, static_cast<int>(state_ >> 122));
    }

    /// Uniform in [0, bound), by Lemire's method; bound > 2^32.
    uint64_t below(uint64_t bound) {
        Uint128 product = static_cast<Uint128>(next()) * bound;
        const uint64_t threshold =
            (0 - bound) % bound;  // (2^64 - bound) mod bound: draws that would be too many
        while (static_cast<uint64_t>(product) < threshold) product = static_cast<Uint128>(next()) * bound;
        return static_cast<uint64_t>(product >> 64);
    }

  private:
    void step() {
        constexpr Uint128 multiplier = static_cast<Uint128>(0x2360ED051FC65DA4) << 64 | 0x4385DF649FCCF645;
        state_ = state_ * multiplier + increment_;
    }

    Uint128 state_ = 0, increment_;
};

std::vector<int64_t> hash_multipliers(const EngramConfig& config, int layer) {
    const int64_t bound = std::numeric_limits<int64_t>::max() / config.compressed_vocab_size / 2;
    if (bound <= int64_t{1} << 32)
        refuse(fmt::format("engram_compressed_vocab_size is {}", config.compressed_vocab_size),
               "engram_compressed_vocab_size",
               "less than 2^30: above, NumPy draws the multipliers another way");
    Pcg64 random(10007u * static_cast<uint32_t>(layer));
    std::vector<int64_t> multipliers(static_cast<size_t>(config.max_ngram_size));
    for (int64_t& multiplier : multipliers)
        multiplier = static_cast<int64_t>(2 * random.below(static_cast<uint64_t>(bound)) + 1);
    return multipliers;
}

uint64_t power_mod(uint64_t base, uint64_t exponent, uint64_t modulus) {
    uint64_t result = 1;
    for (base %= modulus; exponent > 0; exponent >>= 1) {
        if (exponent & 1) result = static_cast<uint64_t>(static_cast<Uint128>(result) * base % modulus);
        base = static_cast<uint64_t>(static_cast<Uint128>(base) * base % modulus);
    }
    return result;
}

/// Miller and Rabin's test; with the first twelve primes as bases it is never wrong below 2^64.
bool is_prime(uint64_t n) {
    constexpr std::array<uint64_t, 12> bases{2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37};
    if (n < 2) return false;
    for (uint64_t base : bases)
        if (n % base == 0) return n == base;
    const int halvings = std::countr_zero(n - 1);
    return std::ranges::all_of(bases, [n, halvings](uint64_t base) {
        uint64_t power = power_mod(base, (n - 1) >> halvings, n);
        if (power == 1) return true;
        for (int i = 0; i < halvings; ++i) {
            if (power == n - 1) return true;
            power = static_cast<uint64_t>(static_cast<Uint128>(power) * power % n);
        }
        return false;
    });
}

void require_ids(std::span<const int32_t> ids, int64_t compressed_vocab_size, std::string_view name) {
    for (size_t i = 0; i < ids.size(); ++i)
        if (ids[i] != engram_dead && (ids[i] < 0 || ids[i] >= compressed_vocab_size))
            refuse(fmt::format("{}[{}] is {}", name, i, ids[i]), "engram_row_ids",
                   fmt::format("a compressed id from 0 to {}, or -1 where dead", compressed_vocab_size - 1),
                   "pass what TokenMap::compress gives");
}

/// The slots of the last position of `ids`: its own id and those before, the pad from the first dead position
/// or the sequence's beginning onwards (section A.3).
void look_back(std::span<const int32_t> ids, int32_t pad, std::span<int32_t> slots) {
    bool blocked = false;  // sticky: what lies behind a dead position stays hidden
    for (size_t back = 0; back < slots.size(); ++back) {
        blocked = blocked || back >= ids.size() || ids[ids.size() - 1 - back] == engram_dead;
        slots[back] = blocked ? pad : ids[ids.size() - 1 - back];
    }
}

/// Row ids of one position [columns]. Products stay below 2^63, so signs play no part.
void hash_slots(const EngramLayerHash& layer, int64_t heads, std::span<const int32_t> slots, int64_t* rows) {
    int64_t rolling = slots[0] * layer.multipliers[0];
    size_t column = 0;
    for (size_t back = 1; back < slots.size(); ++back) {
        rolling ^= slots[back] * layer.multipliers[back];
        for (int64_t head = 0; head < heads; ++head, ++column)
            rows[column] = rolling % layer.primes[column] + layer.offsets[column];
    }
}

void require_shapes(std::span<const int64_t> row_ids, int64_t tokens, const EngramWeights& weights,
                    const EngramShape& shape, std::span<const uint8_t> dead, std::span<const Bf16> h) {
    const auto require = [&weights](std::string_view name, size_t size, int64_t rows, int64_t width) {
        require_size(weights.name, name, size, rows, width);
    };
    const int64_t looked_up = shape.columns * shape.head_dim,
                  projected = (shape.streams + 1) * shape.hidden_size;
    require("row ids", row_ids.size(), tokens, shape.columns);
    require("the residual stream", h.size(), tokens, shape.streams * shape.hidden_size);
    require("q_weight", weights.q_weight.size(), shape.streams, shape.hidden_size);
    require("k_weight", weights.k_weight.size(), shape.streams, shape.hidden_size);
    if (!dead.empty()) require("the mask of dead positions", dead.size(), tokens, 1);
    if (weights.wkv.outputs != projected || weights.wkv.inputs != looked_up)
        refuse(fmt::format("wkv is [{}, {}]", weights.wkv.outputs, weights.wkv.inputs),
               std::string(weights.name), fmt::format("[{}, {}]", projected, looked_up),
               "pass tensors whose shapes agree");
}

}  // namespace

TokenMap::TokenMap(std::vector<int32_t> compressed, const ModelConfig& config)
    : compressed_(std::move(compressed)) {
    const EngramConfig& engram = engram_of(config);
    if (std::ssize(compressed_) != config.vocab_size)
        refuse(fmt::format("the token map has {} entries", compressed_.size()), "Engram token map",
               fmt::format("{}, one for each id of the vocabulary", config.vocab_size),
               "use the map that was made for this tokenizer");
    for (size_t token = 0; token < compressed_.size(); ++token)
        if (compressed_[token] < 0 || compressed_[token] >= engram.compressed_vocab_size)
            refuse(fmt::format("token {} maps to {}", token, compressed_[token]), "Engram token map",
                   fmt::format("an id from 0 to {}", engram.compressed_vocab_size - 1),
                   "use the map that was made for this tokenizer");
    pad_ = compressed_.at(static_cast<size_t>(engram.pad_token_id));
}

TokenMap TokenMap::without_tokenizer(const ModelConfig& config) {
    const int64_t compressed_size = engram_of(config).compressed_vocab_size;
    if (config.vocab_size > 2 * compressed_size)
        refuse(fmt::format("vocab_size is {}", config.vocab_size), "Engram token map without a tokenizer",
               fmt::format("at most {}, twice engram_compressed_vocab_size", 2 * compressed_size),
               "give the token map of the model's tokenizer");
    std::vector<int32_t> compressed(static_cast<size_t>(config.vocab_size));
    for (int64_t token = 0; token < config.vocab_size; ++token)
        compressed[static_cast<size_t>(token)] =
            static_cast<int32_t>(token < compressed_size ? token : token - compressed_size);
    return {std::move(compressed), config};
}

std::vector<int32_t> TokenMap::compress(std::span<const int32_t> tokens,
                                        std::span<const uint8_t> image) const {
    if (!image.empty())
        require_size("Engram token map", "the image mask", image.size(), std::ssize(tokens), 1);
    std::vector<int32_t> ids(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] < 0 || tokens[i] >= std::ssize(compressed_))
            refuse(fmt::format("token id {} at position {} of the chunk", tokens[i], i), "Engram token map",
                   fmt::format("an id from 0 to {}", compressed_.size() - 1), "pass ids of this vocabulary");
        ids[i] = !image.empty() && image[i] != 0 ? engram_dead : compressed_[static_cast<size_t>(tokens[i])];
    }
    return ids;
}

EngramHash engram_hash(const ModelConfig& config) {
    const EngramConfig& engram = engram_of(config);
    EngramHash hash{engram.max_ngram_size, engram.n_heads, engram.compressed_vocab_size, {}};
    // The rule searches from engram_vocab_size for every layer and order anew and leaves out the primes that
    // were taken: that is, it takes one prime after the other.
    uint64_t candidate = static_cast<uint64_t>(engram.vocab_size);
    for (size_t i = 0; i < engram.layer_ids.size(); ++i) {
        EngramLayerHash layer{engram.layer_ids[i], hash_multipliers(engram, engram.layer_ids[i]), {}, {}};
        while (std::ssize(layer.primes) < engram.columns()) {
            for (; !is_prime(candidate); ++candidate) {
            }
            layer.primes.push_back(static_cast<int64_t>(candidate++));
        }
        layer.offsets.resize(layer.primes.size());
        std::exclusive_scan(layer.primes.begin(), layer.primes.end(), layer.offsets.begin(), int64_t{0});
        const int64_t rows = layer.offsets.back() + layer.primes.back();
        if (engram.num_embeddings.at(i) != rows)
            refuse(
                fmt::format("engram_num_embeddings of layer {} is {}", layer.layer, engram.num_embeddings[i]),
                "engram_num_embeddings",
                fmt::format("{}, the sum of the {} primes from {} on", rows, layer.primes.size(),
                            layer.primes.front()),
                "check engram_vocab_size, engram_n_heads, engram_max_ngram_size and engram_layer_ids");
        hash.layers.push_back(std::move(layer));
    }
    return hash;
}

std::vector<int64_t> engram_row_ids(const EngramHash& hash, size_t layer_index, int32_t pad,
                                    std::span<const int32_t> history, std::span<const int32_t> ids) {
    require_ids(history, hash.compressed_vocab_size, "history");
    require_ids(ids, hash.compressed_vocab_size, "ids");
    if (pad < 0 || pad >= hash.compressed_vocab_size)
        refuse(fmt::format("the pad is {}", pad), "engram_row_ids",
               fmt::format("a compressed id from 0 to {}", hash.compressed_vocab_size - 1),
               "pass TokenMap::pad");
    const size_t kept = std::min(history.size(), static_cast<size_t>(hash.max_ngram_size - 1));
    std::vector<int32_t> sequence(history.end() - static_cast<std::ptrdiff_t>(kept), history.end());
    sequence.insert(sequence.end(), ids.begin(), ids.end());

    const EngramLayerHash& layer = hash.layers.at(layer_index);
    const size_t columns = static_cast<size_t>(hash.columns());
    std::vector<int64_t> rows(ids.size() * columns);
    std::vector<int32_t> slots(static_cast<size_t>(hash.max_ngram_size));
    for (size_t i = 0; i < ids.size(); ++i) {
        look_back(std::span(sequence).first(kept + i + 1), pad, slots);
        hash_slots(layer, hash.heads, slots, rows.data() + i * columns);
    }
    return rows;
}

EngramShape engram_shape(const ModelConfig& config) {
    const EngramConfig& engram = engram_of(config);
    return {config.hc_mult, config.hidden_size, engram.columns(), engram.head_dim,
            static_cast<float>(config.rms_norm_eps)};
}

std::vector<Bf16> engram_lookup(std::span<const int64_t> row_ids, const EngramWeights& weights,
                                int64_t head_dim) {
    require_size(weights.name, "embed.weight", weights.table_codes.size(), weights.table_rows, head_dim);
    require_size(weights.name, "embed.scale", weights.table_scales.size(), weights.table_rows,
                 head_dim / block);
    for (size_t i = 0; i < row_ids.size(); ++i)
        if (row_ids[i] < 0 || row_ids[i] >= weights.table_rows)
            refuse(fmt::format("row id {} is {}", i, row_ids[i]), std::string(weights.name),
                   fmt::format("a row from 0 to {}", weights.table_rows - 1),
                   "pass ids of this layer's hash");
    std::vector<Bf16> rows(row_ids.size() * static_cast<size_t>(head_dim));
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < row_ids.size(); ++i) {
        // 64 bits: a table has more than 2^36 codes.
        const E4m3* codes = weights.table_codes.data() + row_ids[i] * head_dim;
        const E8m0* scales = weights.table_scales.data() + row_ids[i] * (head_dim / block);
        Bf16* row = rows.data() + i * static_cast<size_t>(head_dim);
        for (int64_t j = 0; j < head_dim; ++j)
            row[j] = bf16_from_float(to_float(codes[j]) * to_float(scales[j / block]));
    }
    return rows;
}

float engram_gate(std::span<const Bf16> h, std::span<const Bf16> key, std::span<const float> weight,
                  float norm_eps) {
    const Lanes lanes = sum_order(SumOperator::engram_gate, std::ssize(h), 1).lanes;
    // 1. Both norms, without their gains.
    const float channels = static_cast<float>(h.size());
    const float h_rstd = elementary::reciprocal_sqrt(sum_of_squares(lanes, h) / channels + norm_eps);
    const float key_rstd = elementary::reciprocal_sqrt(sum_of_squares(lanes, key) / channels + norm_eps);
    // 2. sum (h w) k: the product with the gains is rounded, that with the key goes into the lane unrounded.
    std::vector<float> weighted(h.size());
    for (size_t d = 0; d < h.size(); ++d) weighted[d] = to_float(h[d]) * weight[d];
    const float raw = dot(lanes, key, std::span<const float>(weighted));
    // 3. D^-0.5: double has bits enough for one rounding to give the nearest fp32.
    const float inverse_root = static_cast<float>(1.0 / std::sqrt(static_cast<double>(h.size())));
    return engram_gate_of_dot(raw * (h_rstd * key_rstd) * inverse_root);
}

EngramResult engram(Arithmetic arithmetic, std::span<const int64_t> row_ids, int64_t tokens,
                    const EngramWeights& weights, const EngramShape& shape, std::span<const uint8_t> dead,
                    std::span<Bf16> h) {
    require_shapes(row_ids, tokens, weights, shape, dead, h);
    const int64_t streams = shape.streams, hidden = shape.hidden_size;
    // 1. Rows of the table side by side, and their projection: keys of the copies, then one value for all of
    // them.
    EngramResult result{engram_lookup(row_ids, weights, shape.head_dim), {}, {}};
    result.kv.resize(static_cast<size_t>(tokens * (streams + 1) * hidden));
    linear_fp8(arithmetic, SumOperator::engram_wkv, result.rows, tokens, weights.wkv,
               std::span<Bf16>(result.kv));
    // 2. The gains only ever occur as their product, which fp32 holds.
    std::vector<float> gains(weights.q_weight.size());
    std::ranges::transform(weights.q_weight, weights.k_weight, gains.begin(),
                           [](Bf16 q, Bf16 k) { return to_float(q) * to_float(k); });
    // 3. Gate and sum per token and copy.
    result.gate.assign(static_cast<size_t>(tokens * streams), 0.0f);
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < tokens * streams; ++i) {
        const int64_t token = i / streams, stream = i % streams;
        if (!dead.empty() && dead[static_cast<size_t>(token)] != 0)
            continue;  // adding 0 would turn -0 into +0
        const auto part = [hidden](auto all, int64_t index) {
            return all.subspan(static_cast<size_t>(index * hidden), static_cast<size_t>(hidden));
        };
        const std::span<const Bf16> kv(result.kv);
        const std::span<Bf16> copy = part(h, i);
        const std::span<const Bf16> value = part(kv, token * (streams + 1) + streams);
        const float gate = engram_gate(copy, part(kv, token * (streams + 1) + stream),
                                       part(std::span<const float>(gains), stream), shape.norm_eps);
        for (size_t d = 0; d < copy.size(); ++d)
            copy[d] = bf16_from_float(to_float(copy[d]) + gate * to_float(value[d]));
        result.gate[static_cast<size_t>(i)] = gate;
    }
    return result;
}

}  // namespace touchstone
