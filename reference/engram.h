// Engram, the conditional memory of V4.1 (text model 10.2; engram_dspark_vision, section A): hashes of the
// last token ids choose rows of a large table, which are projected and added, behind a gate, to the residual
// streams.
//
// The hash is integer arithmetic and exact. The table may be far larger than memory: it is read in place,
// through spans into a mapped file, and only the rows that are asked for.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "reference/linear.h"
#include "reference/model/config.h"
#include "reference/numerics/elementary.h"
#include "reference/numerics/sums.h"

namespace touchstone {

/// The compressed id of a position that no n-gram may look at or across: all positions of an image span.
inline constexpr int32_t engram_dead = -1;

/// Vocabulary id -> compressed id: ids whose text normalises to the same string share one (section A.2).
class TokenMap {
  public:
    /// `compressed[t]` is the compressed id of token t. Throws UserError when there are not vocab_size of
    /// them, when one is outside [0, compressed_vocab_size), or when `config` has no Engram.
    TokenMap(std::vector<int32_t> compressed, const ModelConfig& config);

    /// The map of synthetic models, which needs no tokenizer: t -> t below C = compressed_vocab_size, else t
    /// - C. Throws UserError when vocab_size > 2 C, where t - C would not be a compressed id.
    static TokenMap without_tokenizer(const ModelConfig& config);

    /// Compressed ids of tokens; engram_dead where `image` is nonzero (empty: nowhere). Throws UserError when
    /// a token, also of an image, is outside the vocabulary, or sizes do not match.
    std::vector<int32_t> compress(std::span<const int32_t> tokens, std::span<const uint8_t> image = {}) const;

    /// The compressed id of pad_token_id, which fills slots before the sequence and behind dead positions.
    int32_t pad() const { return pad_; }

  private:
    std::vector<int32_t> compressed_;
    int32_t pad_;
};

/// The hash of one Engram layer (section A.4). Column (n - 2) * heads + head belongs to the n-grams of n ids.
struct EngramLayerHash {
    int layer;
    std::vector<int64_t> multipliers;  ///< [max_ngram_size], one per look-back; odd
    std::vector<int64_t> primes;       ///< [columns]: rows of each column's part of the table
    std::vector<int64_t> offsets;      ///< [columns]: where that part begins, the sum of the primes before it
};

/// The hashes of all Engram layers, in the order of EngramConfig::layer_ids.
struct EngramHash {
    int64_t max_ngram_size, heads, compressed_vocab_size;
    std::vector<EngramLayerHash> layers;

    int64_t columns() const { return (max_ngram_size - 1) * heads; }
};

/// Multipliers from the generator of section A.4, bounded so that no product with a compressed id reaches
/// 2^63; primes upwards from engram_vocab_size, each taken once over all layers. Throws UserError when
/// `config` has no Engram, when a layer's primes do not sum to its engram_num_embeddings, or when
/// compressed_vocab_size is so large (2^30) that NumPy draws the multipliers another way.
EngramHash engram_hash(const ModelConfig& config);

/// Row ids [tokens, columns] of hash.layers[layer_index] for consecutive positions (sections A.3 and A.5).
/// `ids`: their compressed ids, engram_dead included. `history`: those of the positions before, oldest first;
/// where it is shorter than max_ngram_size - 1 the sequence begins with it, and of a longer one the last are
/// read. Prefill, chunks and decode so give the same rows. Throws UserError when an id is neither engram_dead
/// nor in [0, compressed_vocab_size).
std::vector<int64_t> engram_row_ids(const EngramHash& hash, size_t layer_index, int32_t pad,
                                    std::span<const int32_t> history, std::span<const int32_t> ids);

struct EngramShape {
    int64_t streams;      ///< n, copies of the residual stream
    int64_t hidden_size;  ///< D
    int64_t columns, head_dim;
    float norm_eps;
};

/// The shape of `config`, which must have Engram.
EngramShape engram_shape(const ModelConfig& config);

/// The weights of one Engram layer, as the checkpoint stores them.
struct EngramWeights {
    std::string_view name;               ///< for messages, e.g. "layers.1.engram"
    int64_t table_rows;                  ///< engram_num_embeddings of the layer
    std::span<const E4m3> table_codes;   ///< [table_rows, head_dim]
    std::span<const E8m0> table_scales;  ///< [table_rows, head_dim / 32]
    Fp8Weight wkv;                       ///< [(n + 1) D, columns * head_dim]: n keys, then the value
    std::span<const Bf16> q_weight;      ///< [n, D], gain of the norm on the stream side
    std::span<const Bf16> k_weight;      ///< [n, D], gain of the norm on the key side
};

/// Table rows as bf16 [row_ids.size(), head_dim]: fp32(code * scale), rounded to bf16 (exact for the scales
/// that real tables have). Throws UserError when the table's size is not table_rows rows or a row id is
/// outside it.
std::vector<Bf16> engram_lookup(std::span<const int64_t> row_ids, const EngramWeights& weights,
                                int64_t head_dim);

/// The gate of a normalised dot product: sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot)). Near zero it
/// therefore jumps from 0.49975 to 0.50025, at +0 against -0. NaN gives the canonical NaN.
TOUCHSTONE_HOST_DEVICE inline float engram_gate_of_dot(float dot) {
    const float root = sqrt_rn(larger(float_from_bits(float_bits(dot) & 0x7FFFFFFFu), 1e-6f));
    return elementary::sigmoid(float_from_bits(float_bits(root) | (float_bits(dot) & 0x80000000u)));
}

/// The gate of one copy of one token (section A.7, step 4): h and key [D] bf16; weight [D], q_weight *
/// k_weight. Each copy has its own norms. All in fp32; the three sums lie in the lanes of
/// SumOperator::engram_gate.
float engram_gate(std::span<const Bf16> h, std::span<const Bf16> key, std::span<const float> weight,
                  float norm_eps);

/// What the layer makes on the way, for comparison.
struct EngramResult {
    std::vector<Bf16> rows;   ///< [T, columns * head_dim]
    std::vector<Bf16> kv;     ///< [T, (n + 1) D]
    std::vector<float> gate;  ///< [T, n]
};

/// h += gate * value, in place, for every copy: h [T, n, D] bf16, the sum rounded once from fp32. `row_ids`
/// [T, columns] are those of engram_row_ids; the projection is an L8 summed as `arithmetic` says. Where
/// `dead` [T] (empty: nowhere) is nonzero, positions of images, the gate is 0 and h keeps its bytes. A
/// token's result depends on no other token. Throws UserError, with h as it was, when sizes do not match, a
/// row id is outside the table, or as linear_fp8 does.
EngramResult engram(Arithmetic arithmetic, std::span<const int64_t> row_ids, int64_t tokens,
                    const EngramWeights& weights, const EngramShape& shape, std::span<const uint8_t> dead,
                    std::span<Bf16> h);

}  // namespace touchstone
