// Attention of one query over a list of rows that are key and value at once (spec: text model, 4.3; the list:
// numerics contract, section 7).
#pragma once

#include <cstdint>
#include <span>

#include "reference/linear.h"

namespace touchstone {

/// Entries of the list that are worked on together: the running maximum, to which P is rounded, moves once
/// per block.
inline constexpr int64_t attention_block = 64;

/// Per head, over the list in blocks of 64 from entry 0, with m = -1e30, l = 0, O = 0:
///     s = (q . k) * scale;  m' = max(m, largest s);  a = exp(m - m');  p = exp(s - m')
///     l = l * a + sum of p;  O = O * a + sum of bf16(p) * k;  m = m'
/// and at the end o = bf16(O / (l + exp(sink - m))). `released_hopper` is `hopper` here. q . k: lanes of
/// attention_scores in `exact`, one chain over the channels in `hopper`; sum of p: lanes of
/// attention_softmax over the 64 entries; P.V: entries ascending by FMA into O in `exact`, the chain of 4
/// steps with C = O in `hopper`. Everything else is one fp32 rounding each.
///
/// `q` is [heads, head_dim]; `rows` [list size, head_dim] holds bf16-exact values; `valid` [list size] is 0
/// for an entry that is not there: score -infinity, p = 0, its row neither read nor used (it may hold NaN);
/// `exact` takes no FMA for it, the chain sees a row of zeros. A block without valid entries is skipped. No
/// valid entry at all: o = 0, whatever the sink. `sink` is [heads], `scale` fl32(head_dim^-1/2). `o` is
/// [heads, head_dim]; the fp32 form gives what the bf16 form rounds. Heads run in parallel and are
/// independent. Throws UserError, with nothing written, when sizes do not match, or unless `exact` when
/// head_dim is no multiple of 16.
void sparse_attention(Arithmetic arithmetic, std::span<const Bf16> q, int64_t heads, int64_t head_dim,
                      std::span<const float> rows, std::span<const uint8_t> valid,
                      std::span<const float> sink, float scale, std::span<float> o);
void sparse_attention(Arithmetic arithmetic, std::span<const Bf16> q, int64_t heads, int64_t head_dim,
                      std::span<const float> rows, std::span<const uint8_t> valid,
                      std::span<const float> sink, float scale, std::span<Bf16> o);

}  // namespace touchstone
