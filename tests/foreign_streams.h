// Somebody else's hyper-connections and Engram (tests/foreign.h).
#pragma once

#include "reference/engram.h"
#include "reference/registry/entry.h"
#include "tests/foreign.h"

namespace touchstone::foreign {

/// One matrix [n, n] of logits.
inline Floats sinkhorn_of(Floats a, size_t n, int64_t iterations, float eps, const Fault& fault) {
    if (fault("comb_by_sigmoid")) {
        for (float& x : a) x = 1 / (1 + std::exp(-x));
        return a;
    }
    const auto transpose = [n](Floats& m) {
        for (size_t j = 0; j < n; ++j)
            for (size_t k = 0; k < j; ++k) std::swap(m[j * n + k], m[k * n + j]);
    };
    const auto divide = [n, &a](bool columns, float added) {
        for (size_t line = 0; line < n; ++line) {
            float sum = 0;
            for (size_t i = 0; i < n; ++i) sum += a[columns ? i * n + line : line * n + i];
            for (size_t i = 0; i < n; ++i) a[columns ? i * n + line : line * n + i] /= sum + added;
        }
    };
    if (fault("sinkhorn_columns_first")) transpose(a);
    for (size_t row = 0; row < n; ++row) {
        const float most = *std::max_element(&a[row * n], &a[row * n] + n);
        for (size_t k = 0; k < n; ++k) a[row * n + k] = std::exp(a[row * n + k] - most);
    }
    divide(false, 0);
    if (fault("sinkhorn_missing")) return a;
    for (float& x : a) x += eps;
    divide(true, eps);
    for (int64_t i = 1; i < iterations - (fault("sinkhorn_one_iteration_less") ? 1 : 0); ++i) {
        divide(false, eps);
        divide(true, eps);
    }
    if (fault("sinkhorn_columns_first") || fault("comb_transposed")) transpose(a);
    return a;
}

inline void sinkhorn(const Call& call, const Fault& fault) {
    const auto n = static_cast<size_t>(call["streams"]);
    const Floats a = floats(call, "a");
    Floats comb;
    for (size_t row = 0; row < a.size(); row += n * n) {
        const Floats one =
            sinkhorn_of({&a[row], &a[row] + n * n}, n, call["iterations"], call.real("hc_eps"), fault);
        comb.insert(comb.end(), one.begin(), one.end());
    }
    put(call, "comb", comb);
}

/// The (2 + n) n projections of one row, over the rms.
inline Floats project(const Call& call, const float* h, const Floats& fn, const Fault& fault) {
    const auto n = static_cast<size_t>(call["streams"]), hidden = static_cast<size_t>(call["hidden"]);
    Floats scale(n, 1.0f);
    float squares = 0;
    for (size_t i = 0; i < n * hidden; ++i) {
        squares += h[i] * h[i];
        if (i % hidden != hidden - 1) continue;
        if (fault("mix_norm_per_stream")) {
            scale[i / hidden] = 1 / std::sqrt(squares / static_cast<float>(hidden) + call.real("norm_eps"));
            squares = 0;
        }
    }
    const float eps = fault("mix_norm_eps_1e_6") ? 1e-6f : call.real("norm_eps");
    const float rms = std::sqrt(squares / static_cast<float>(n * hidden) + eps);
    Floats mixes;
    for (size_t o = 0; o < (2 + n) * n; ++o) {
        float sum = 0;
        for (size_t i = 0; i < n * hidden; ++i) {
            float weight = fn[o * n * hidden + i];
            if (fault("projection_in_tf32")) weight = small_float(weight, 10, -126, 3e38f);
            sum += h[i] * scale[i / hidden] * weight;
        }
        mixes.push_back(fault("mix_norm_per_stream") || fault("mix_norm_missing") ? sum : sum / rms);
    }
    return mixes;
}

inline void mix(const Call& call, const Fault& fault) {
    const auto n = static_cast<size_t>(call["streams"]), hidden = static_cast<size_t>(call["hidden"]);
    const Floats h = floats(call, "h"), fn = floats(call, "fn"), base = floats(call, "base"),
                 scale = floats(call, "scale");
    Floats mixes, pre, post, comb;
    for (size_t row = 0; row < static_cast<size_t>(call["rows"]); ++row) {
        const Floats g = project(call, &h[row * n * hidden], fn, fault);
        mixes.insert(mixes.end(), g.begin(), g.end());
        Floats logits;
        for (size_t i = 0; i < g.size(); ++i) {
            const size_t part = std::min(i / n, size_t{2});
            const float factor = scale[fault("scale_of_next_part") ? (part + 1) % 3 : part];
            const float x = fault("base_before_scale") ? (g[i] + base[i]) * factor : g[i] * factor + base[i];
            const float sigmoid = 1 / (1 + std::exp(-x));
            if (part == 0) pre.push_back(sigmoid + (fault("pre_without_eps") ? 0 : call.real("hc_eps")));
            if (part == 1) post.push_back(fault("post_without_factor_two") ? sigmoid : 2 * sigmoid);
            if (part == 2) logits.push_back(x);
        }
        const Floats one = sinkhorn_of(logits, n, call["iterations"], call.real("hc_eps"), fault);
        comb.insert(comb.end(), one.begin(), one.end());
    }
    put(call, "mixes", mixes);
    put(call, "pre", pre);
    put(call, "post", post);
    put(call, "comb", comb);
}

/// Where channel d of a row's stream c lies.
inline size_t stream_at(size_t row, size_t c, size_t d, size_t n, size_t hidden, const Fault& fault) {
    if (fault("streams_interleaved")) return row * n * hidden + d * n + c;
    return (row * n + (fault("streams_reversed") ? n - 1 - c : c)) * hidden + d;
}

inline void collapse(const Call& call, const Fault& fault) {
    const auto n = static_cast<size_t>(call["streams"]), hidden = static_cast<size_t>(call["hidden"]);
    const Floats h = floats(call, "h");
    const Floats pre = fault("coefficients_in_bf16") ? rounded(floats(call, "pre")) : floats(call, "pre");
    Floats y;
    for (size_t row = 0; row < static_cast<size_t>(call["rows"]); ++row)
        for (size_t d = 0; d < hidden; ++d) {
            float sum = 0;
            for (size_t c = 0; c < n; ++c)
                sum += h[stream_at(row, c, d, n, hidden, fault)] *
                       (fault("collapse_by_mean") ? 1 / static_cast<float>(n) : pre[row * n + c]);
            y.push_back(sum);
        }
    put(call, "y", y);
}

inline void expand(const Call& call, const Fault& fault) {
    const auto n = static_cast<size_t>(call["streams"]), hidden = static_cast<size_t>(call["hidden"]);
    const Floats h = floats(call, "h"), y = floats(call, "y"), post = floats(call, "post"),
                 comb = floats(call, "comb");
    Floats out;
    for (size_t i = 0; i < h.size(); ++i) {
        const size_t row = i / (n * hidden), k = i / hidden % n, d = i % hidden;
        float sum = y[row * hidden + d] * post[row * n + k] * (fault("expand_with_half_post") ? 0.5f : 1.0f);
        for (size_t j = 0; j < n; ++j) {
            float factor = comb[row * n * n + (fault("expand_comb_transposed") ? k * n + j : j * n + k)];
            if (fault("expand_without_residual")) factor = 0;
            if (fault("expand_without_mixing")) factor = j == k ? 1.0f : 0.0f;
            sum += factor * h[stream_at(row, j, d, n, hidden, fault)];
        }
        out.push_back(sum);
    }
    put(call, "out", out);
}

/// The id that an n-gram ending at `position` sees `back` ids before; -1 stands before it: dead.
inline int64_t id_at(const std::vector<int64_t>& sequence, size_t position, size_t back, int64_t pad,
                     const Fault& fault) {
    bool hidden = false;
    int64_t id = pad;
    for (size_t i = 0; i <= back; ++i) {
        const bool dead = i > position || sequence[position - i] < 0;
        hidden = dead || (hidden && !fault("engram_looks_across_dead"));
        id = hidden ? pad : sequence[position - i];
    }
    return id;
}

inline void engram_row_ids(const Call& call, const Fault& fault) {
    const EngramHash hash = engram_hash(released_config());
    const auto layer_index = static_cast<size_t>(call["layer_index"]);
    const EngramLayerHash& layer =
        hash.layers[fault("engram_hash_of_other_layer") ? 1 - layer_index : layer_index];
    std::vector<int64_t> sequence;
    for (const int32_t id : call.in<int32_t>("past"))
        if (!fault("engram_history_dropped")) sequence.push_back(id);
    if (fault("engram_history_one_early")) {
        sequence.pop_back();
        sequence.insert(sequence.begin(), -1);
    }
    const size_t before = sequence.size();
    for (const int32_t id : call.in<int32_t>("ids")) sequence.push_back(id);
    if (fault("engram_dead_as_last_id"))
        for (int64_t& id : sequence) id = id < 0 ? 99092 + id : id;
    auto out = call.out<int64_t>("row_ids").begin();
    for (size_t position = before; position < sequence.size(); ++position)
        for (size_t column = 0; column < 24; ++column) {
            const size_t count = column / 8 + 2 - (fault("engram_ngrams_one_id_short") ? 1 : 0);
            int64_t mixed = 0;
            for (size_t back = 0; back < count; ++back) {
                const size_t at = fault("engram_multipliers_reversed") ? 3 - back : back;
                const int64_t term =
                    id_at(sequence, position, back, call["pad"], fault) * layer.multipliers[at];
                mixed = fault("engram_products_added")
                            ? static_cast<int64_t>(static_cast<uint64_t>(mixed) + static_cast<uint64_t>(term))
                            : mixed ^ term;
            }
            const int64_t prime = layer.primes[column];
            *out++ = (mixed % prime + prime) % prime +
                     (fault("engram_offsets_missing") ? 0 : layer.offsets[column]);
        }
}

/// The asked rows, one after the other.
inline Floats table_rows(const Call& call, const Fault& fault) {
    const auto width = static_cast<size_t>(call["head_dim"]), blocks = width / 32;
    const auto codes = call.in<E4m3>("table");
    const auto scales = call.in<E8m0>("table_scales");
    Floats rows;
    for (const int64_t id : call.in<int64_t>("row_ids"))
        for (size_t d = 0; d < width; ++d) {
            const size_t row = static_cast<size_t>(id);
            const size_t block = fault("engram_scales_of_next_block") ? (d / 32 + 1) % blocks : d / 32;
            const int exponent = fault("engram_scales_ignored") ? 0 : scales[row * blocks + block].bits - 127;
            rows.push_back(bf16(std::ldexp(to_float(codes[row * width + d]), exponent)));
        }
    return rows;
}

inline void engram_lookup(const Call& call, const Fault& fault) {
    put(call, "rows", table_rows(call, fault));
}

inline float engram_gate_of(const float* h, const float* key, const float* q, const float* k, size_t hidden,
                            float eps, const Fault& fault) {
    float dot = 0, h_squares = 0, key_squares = 0;
    for (size_t d = 0; d < hidden; ++d) {
        dot += h[d] * q[d] * key[d] * k[d];
        h_squares += h[d] * h[d];
        key_squares += key[d] * key[d];
    }
    const auto width = static_cast<float>(hidden);
    if (!fault("engram_stream_not_normed")) dot /= std::sqrt(h_squares / width + eps);
    if (!fault("engram_key_not_normed")) dot /= std::sqrt(key_squares / width + eps);
    if (!fault("engram_gate_without_width")) dot /= std::sqrt(width);
    float root = std::abs(dot);
    if (!fault("engram_gate_without_floor")) root = std::max(root, 1e-6f);
    if (!fault("engram_gate_without_root")) root = std::sqrt(root);
    if (!fault("engram_gate_without_sign")) root = std::copysign(root, dot);
    return fault("engram_ungated") ? 1 : 1 / (1 + std::exp(-root));
}

inline void engram(const Call& call, const Fault& fault) {
    const auto n = static_cast<size_t>(call["streams"]), hidden = static_cast<size_t>(call["hidden"]),
               tokens = static_cast<size_t>(call["tokens"]);
    const int64_t outputs = (call["streams"] + 1) * call["hidden"],
                  inputs = call["columns"] * call["head_dim"];
    const Floats kv = rounded(
        product(q8(table_rows(call, fault)), tiles(call, "wkv", outputs, inputs), call["tokens"], outputs));
    const Floats before = floats(call, "h"), q = floats(call, "q_weight"), k = floats(call, "k_weight");
    Floats h = before, gates(tokens * n, 0.0f);
    for (size_t i = 0; i < tokens * n; ++i) {
        const size_t token = i / n, c = i % n;
        if (call.in<uint8_t>("dead")[token] != 0 && !fault("engram_image_rows_changed")) continue;
        const float* of_token = &kv[token * (n + 1) * hidden];
        gates[i] = engram_gate_of(&before[i * hidden], of_token + c * hidden, &q[c * hidden], &k[c * hidden],
                                  hidden, call.real("eps"), fault);
        for (size_t d = 0; d < hidden; ++d) {
            float& x = h[i * hidden + d];
            if (fault("engram_residual_twice")) x *= 2;
            if (fault("engram_residual_missing")) x = 0;
            x += gates[i] * of_token[n * hidden + d];
        }
    }
    put(call, "kv", kv);
    put(call, "gate", gates);
    put(call, "h_out", h);
}

}  // namespace touchstone::foreign
