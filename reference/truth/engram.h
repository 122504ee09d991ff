// Engram in double: hashed rows of n-grams, and the gate by which they enter the stream (spec: text model
// 10.2; Engram A.3, A.5 and A.7).
#pragma once

#include <cstdint>
#include <vector>

#include "reference/truth/ledger.h"

namespace touchstone::truth {

/// Constants of one layer's hash.
struct EngramHash {
    std::vector<int64_t> multipliers;  ///< one per look-back, [max_ngram_size]
    std::vector<int64_t> primes;       ///< one per column, column (n - 2) * heads + head
    std::vector<int64_t> offsets;      ///< exclusive prefix sum of the primes
};

/// A compressed id that is none: position of an image.
inline constexpr int64_t engram_dead = -1;

/// Row ids [T, columns] of the last T entries of `history` (compressed ids from the sequence's start, or at
/// least max_ngram_size - 1 before those). From the first look-back that is before the start or dead onwards,
/// ids are `pad`.
std::vector<std::vector<int64_t>> engram_row_ids(const std::vector<int64_t>& history, int64_t tokens,
                                                 int64_t heads, int64_t pad, const EngramHash& hash);

/// Gate of every copy, [T, n]: sigmoid(copysign(sqrt(max(|d|, 1e-6)), d)) with d = rms-normed h . key times
/// q_weight k_weight D^-0.5. stream [T, n * D], key [T, n * D], q_weight and k_weight [n, D].
Matrix engram_gate(const Matrix& stream, const Matrix& key, const Matrix& q_weight, const Matrix& k_weight,
                   double eps);

/// stream + gate value, copy by copy: value [T, D] is shared by the copies. The model rounds it to bf16.
Matrix engram_update(const Matrix& stream, const Matrix& gate, const Matrix& value);

}  // namespace touchstone::truth
