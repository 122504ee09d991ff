// Somebody else's attention, indexer and compressor (tests/foreign.h).
#pragma once

#include <limits>

#include "reference/registry/entry.h"
#include "reference/truth/rope.h"
#include "tests/foreign.h"

namespace touchstone::foreign {

/// One head over the list: scores, then blocks of 64 under a running maximum.
inline void attend_head(const Floats& q, const Floats& rows, const std::vector<bool>& there, float sink,
                        float scale, const Fault& fault, float* o) {
    const size_t width = q.size(), entries = there.size();
    const size_t block = fault("p_rounded_under_final_maximum") ? entries : 64;
    const auto power = [&fault](float x) { return fault("exp2_of_scores") ? std::exp2(x) : std::exp(x); };
    const size_t part = fault("parts_averaged") ? (entries + 1) / 2 : entries;
    for (size_t begin = 0; begin < entries; begin += part) {
        float maximum = -1e30f, sum = 0;
        Floats values(width, 0.0f);
        for (size_t first = begin; first < std::min(begin + part, entries); first += block) {
            const size_t last = std::min({first + block, begin + part, entries});
            Floats scores(entries, -std::numeric_limits<float>::infinity());
            float largest = maximum;
            for (size_t j = first; j < last; ++j) {
                if (!there[j]) continue;
                float s = 0;
                for (size_t d = 0; d < width; ++d) s += q[d] * rows[j * width + d];
                scores[j] = s * scale;
                largest = std::max(largest, scores[j]);
            }
            const float change = power(maximum - largest);
            sum *= change;
            for (float& v : values) v *= change;
            maximum = largest;
            for (size_t j = first; j < last; ++j) {
                if (!there[j]) continue;
                const float p = power(scores[j] - maximum);
                sum += p;
                const size_t from = fault("values_of_next_entry") ? (j + 1) % entries : j;
                for (size_t d = 0; d < width; ++d)
                    values[d] += (fault("p_unrounded") ? p : bf16(p)) * rows[from * width + d];
            }
        }
        const float e = power(sink - maximum);
        if (fault("sink_in_every_part")) sum += e;
        if (!fault("sink_missing")) sum += e;
        for (size_t d = 0; d < width; ++d) o[d] += values[d] / sum * (part < entries ? 0.5f : 1.0f);
    }
}

inline void sparse_attention(const Call& call, const Fault& fault) {
    const auto heads = static_cast<size_t>(call["heads"]), width = static_cast<size_t>(call["head_dim"]);
    const auto valid = call.in<uint8_t>("valid");
    std::vector<bool> there;
    for (const uint8_t flag : valid) there.push_back(flag != 0 || fault("holes_as_zero_rows"));
    Floats rows = floats(call, "rows");
    for (size_t i = 0; i < rows.size(); ++i)
        if (valid[i / width] == 0) rows[i] = 0;
    if (fault("last_entry_dropped"))
        for (size_t j = there.size(); j-- > 0;)
            if (there[j]) {
                there[j] = false;
                break;
            }
    if (fault("last_partial_block_dropped")) there.resize(there.size() / 64 * 64);
    const Floats q = floats(call, "q"), sinks = floats(call, "sink");
    float scale = 1 / std::sqrt(static_cast<float>(width));
    if (fault("softmax_scale_missing")) scale = 1;
    if (fault("softmax_scale_with_yarn_factor")) scale *= std::pow(0.1f * std::log(16.0f) + 1, 2.0f);
    Floats o(heads * width);
    for (size_t head = 0; head < heads; ++head) {
        const float sink = sinks[fault("sink_of_next_head") ? (head + 1) % heads : head];
        const size_t from = fault("query_of_next_head") ? (head + 1) % heads : head;
        const auto first = q.begin() + static_cast<std::ptrdiff_t>(from * width);
        attend_head({first, first + static_cast<std::ptrdiff_t>(width)}, rows, there, sink, scale, fault,
                    &o[head * width]);
    }
    for (size_t i = 0; i < o.size(); ++i) {
        if (fault("rope_channels_not_in_value") && i % width >= width - 64) o[i] = 0;
        if ((fault("masked_front_gives_nan") || fault("masked_list_gives_nan")) && !there[0])
            o[i] = std::numeric_limits<float>::quiet_NaN();
    }
    put(call, "unrounded", o);
    put(call, "o", o);
}

/// The last `rope_dim` channels of rows [.., width] at their positions, one for `heads` rows.
inline Floats rope(Floats x, size_t width, size_t heads, const std::vector<int64_t>& positions,
                   int64_t rope_dim, const Fault& fault) {
    ModelConfig config = released_config();
    config.qk_rope_head_dim = rope_dim;
    const auto frequencies = truth::rope_frequencies(
        config, fault("index_rope_main_table") ? truth::RopeTable::main : truth::RopeTable::compress);
    const size_t pairs = frequencies.size();
    for (size_t row = 0; row < x.size() / width; ++row)
        for (size_t i = 0; i < pairs; ++i) {
            const float angle = static_cast<float>(positions[row / heads]) * frequencies[i];
            const double whole =
                static_cast<double>(positions[row / heads]) * static_cast<double>(frequencies[i]);
            const bool exact = fault("index_rope_angle_unrounded");
            const auto c = static_cast<float>(std::cos(exact ? whole : static_cast<double>(angle)));
            const auto s = static_cast<float>(std::sin(exact ? whole : static_cast<double>(angle)));
            float* first = &x[(row + 1) * width - 2 * pairs];
            float& a = first[fault("index_rope_half_split") ? i : 2 * i];
            float& b = first[fault("index_rope_half_split") ? i + pairs : 2 * i + 1];
            const float turned = bf16(a * c - b * s);
            b = bf16(a * s + b * c);
            a = turned;
        }
    return x;
}

/// Rows by the orthonormal matrix of signs (-1)^popcount(i & j).
inline Floats hadamard(const Floats& x, size_t width) {
    Floats y;
    for (size_t i = 0; i < x.size(); ++i) {
        float sum = 0;
        for (size_t j = 0; j < width; ++j)
            sum += (__builtin_popcountll(i % width & j) % 2 == 0 ? 1.0f : -1.0f) * x[i / width * width + j];
        y.push_back(bf16(sum / std::sqrt(static_cast<float>(width))));
    }
    return y;
}

inline void index_keys(const Call& call, const Fault& fault) {
    const auto width = static_cast<size_t>(call["head_dim"]);
    std::vector<int64_t> positions;
    for (int64_t group = 0; group < call["groups"]; ++group) {
        const int64_t number = group + (fault("key_positions_of_the_chunk") ? 0 : call["first_group"]);
        positions.push_back(fault("key_at_group_number") ? number : number * call["ratio"]);
    }
    Floats latents = floats(call, "latents");
    if (fault("key_from_rotated_latent"))
        latents = rope(latents, static_cast<size_t>(call["channels"]), 1, positions, call["rope_dim"], fault);
    Floats keys = rounded(product(latents, floats(call, "wk"), call["groups"], call["head_dim"]));
    if (!fault("key_not_normed")) keys = rounded(rms_norm(keys, floats(call, "k_norm"), call.real("eps")));
    keys = rope(keys, width, 1, positions, call["rope_dim"], fault);
    if (fault("hadamard_on_one_side")) keys = hadamard(keys, width);
    put(call, "keys", keys);
}

/// Q4i, into the operator's outputs.
inline void put_fp4_queries(const Call& call, const Floats& queries, const Fault& fault) {
    const size_t blocks = static_cast<size_t>(call["head_dim"]) / 32;
    for (size_t block = 0; block < queries.size() / 32; ++block) {
        const float scale = block_scale(&queries[block * 32], 32, 6 * 0x1p-126f, 6);
        const size_t row = block / blocks * blocks;
        const size_t to =
            fault("query_scales_of_next_block") ? row + (block - row + blocks - 1) % blocks : block;
        call.out<E8m0>("scales")[to] = {static_cast<uint8_t>(std::ilogb(scale) + 127)};
        for (size_t i = block * 32; i < block * 32 + 32; i += 2)
            call.out<uint8_t>("codes")[i / 2] = static_cast<uint8_t>(
                code_of_e2m1(e2m1(queries[i] / scale)) | code_of_e2m1(e2m1(queries[i + 1] / scale)) << 4);
    }
}

inline void index_queries(const Call& call, const Fault& fault) {
    const int64_t heads = call["heads"], width = call["head_dim"], rows = call["rows"];
    std::vector<int64_t> positions;
    for (const int64_t position : call.in<int64_t>("positions"))
        positions.push_back(position + (fault("query_position_one_late") ? 1 : 0));
    Floats queries = rounded(product(
        q8(floats(call, "qr")), tiles(call, "wq_b", heads * width, call["q_rank"]), rows, heads * width));
    if (fault("index_query_normed_per_head"))
        queries = rounded(rms_norm(queries, Floats(static_cast<size_t>(width), 1.0f), 1e-20f));
    queries = rope(queries, static_cast<size_t>(width), static_cast<size_t>(heads), positions,
                   call["rope_dim"], fault);
    put(call, "queries", queries);
    put_fp4_queries(call, queries, fault);
    Floats weights = rounded(product(floats(call, "x"), floats(call, "weights_proj"), rows, heads));
    put(call, "projections", weights);
    for (float& weight : weights) {
        if (!fault("head_weights_unscaled") && !fault("head_weights_scaled_by_heads"))
            weight /= std::sqrt(static_cast<float>(width));
        if (!fault("head_weights_unscaled")) weight /= std::sqrt(static_cast<float>(heads));
    }
    put(call, "weights", weights);
}

inline void index_scores(const Call& call, const Fault& fault) {
    const auto heads = static_cast<size_t>(call["heads"]), width = static_cast<size_t>(call["head_dim"]),
               visible = static_cast<size_t>(call["visible"]), blocks = width / 32;
    Floats key_scales = floats(call, "key_scales");
    if (fault("key_scales_of_next_block"))
        for (size_t first = 0; first < key_scales.size(); first += blocks)
            std::rotate(&key_scales[first], &key_scales[first + 1], &key_scales[first] + blocks);
    const Floats query = unpacked(call, "codes", floats(call, "scales")),
                 keys = unpacked(call, "key_codes", key_scales), weights = floats(call, "weights");
    Floats dots(heads * visible), scores(visible);
    for (size_t key = 0; key < visible; ++key) {
        const size_t from = fault("keys_one_row_on") ? key + 1 : key;
        float sum = 0;
        for (size_t head = 0; head < heads; ++head) {
            float dot = 0;
            for (size_t d = 0; d < width; ++d) dot += query[head * width + d] * keys[from * width + d];
            dot = bf16(dot);
            dots[head * visible + key] = dot;
            const float weight = fault("head_weights_missing") ? 1 : weights[head];
            const bool cut =
                !fault("relu_missing") && !fault("relu_after_head_sum") && !fault("relu_after_head_weight");
            float term = (cut ? std::max(dot, 0.0f) : dot) * weight;
            if (fault("relu_after_head_weight")) term = std::max(term, 0.0f);
            sum += fault("scores_in_fp32") ? term : bf16(term);
        }
        if (fault("relu_after_head_sum")) sum = std::max(sum, 0.0f);
        if (fault("score_scaled_again")) sum /= std::sqrt(static_cast<float>(heads * width));
        scores[key] = fault("scores_in_fp32") ? sum : bf16(sum);
    }
    if (fault("keys_behind_128_masked"))
        std::fill(scores.begin() + 128, scores.end(), -std::numeric_limits<float>::infinity());
    if (fault("last_visible_key_masked")) scores.back() = -std::numeric_limits<float>::infinity();
    put(call, "scores", scores);
    put(call, "dot", dots);
}

/// One channel of one group: kv and scores of its tokens.
inline float pooled_channel(const Floats& kv, const Floats& score, const Fault& fault) {
    const float most = *std::max_element(score.begin(), score.end());
    float total = 0, sum = 0;
    for (const float s : score) total += std::exp(s - most);
    for (size_t i = 0; i < kv.size(); ++i) {
        const float s = score[fault("pooling_weights_reversed") ? kv.size() - 1 - i : i];
        float weight = std::exp(s - most) / total;
        if (fault("pooling_by_mean")) weight = 1 / static_cast<float>(kv.size());
        if (fault("pooling_by_sigmoid")) weight = 1 / (1 + std::exp(-s));
        sum += kv[i] * weight;
    }
    return sum;
}

inline void softmax_over_channels(Floats& score, size_t channels) {
    for (size_t row = 0; row < score.size(); row += channels) {
        float total = 0;
        for (size_t c = 0; c < channels; ++c) total += std::exp(score[row + c]);
        for (size_t c = 0; c < channels; ++c) score[row + c] = std::exp(score[row + c]) / total;
    }
}

/// [groups, channels] of tokens that begin with the open group's.
inline Floats pooled(const Call& call, const Floats& kv, Floats score, const Fault& fault) {
    const auto ratio = static_cast<size_t>(call["ratio"]), channels = static_cast<size_t>(call["channels"]);
    const size_t tokens = kv.size() / channels;
    const auto open = static_cast<size_t>(call["first_position"]) % ratio;
    size_t first = 0;
    if (fault("groups_begin_with_the_chunk")) first = open;
    if (fault("groups_one_token_late")) first = 1;
    if (fault("pooling_softmax_over_channels")) softmax_over_channels(score, channels);
    Floats result;
    for (size_t group = 0; group < tokens / ratio; ++group)
        for (size_t c = 0; c < channels; ++c) {
            Floats values, scores;
            for (size_t t = first + group * ratio; t < std::min(first + (group + 1) * ratio, tokens); ++t) {
                if (fault("open_group_dropped") && t < open) continue;
                values.push_back(kv[t * channels + c]);
                scores.push_back(score[t * channels + c]);
            }
            float sum = 0;
            for (size_t i = 0; i < values.size(); ++i) sum += values[i] * scores[i];
            result.push_back(fault("pooling_softmax_over_channels") ? sum
                                                                    : pooled_channel(values, scores, fault));
        }
    return result;
}

inline void compressor(const Call& call, const Fault& fault) {
    const auto ratio = static_cast<size_t>(call["ratio"]), channels = static_cast<size_t>(call["channels"]);
    const Floats x = floats(call, "x"), gain = floats(call, "norm");
    const auto behind = [&](Floats open, const char* weight) {
        const Floats rows = product(x, floats(call, weight), call["rows"], call["channels"]);
        open.insert(open.end(), rows.begin(), rows.end());
        return fault("projections_in_bf16") ? rounded(open) : open;
    };
    Floats kv = behind(floats(call, "open_kv"), "wkv"), score = behind(floats(call, "open_score"), "wgate");
    const size_t left = kv.size() / channels % ratio * channels;
    put(call, "still_open_kv", Floats(kv.end() - static_cast<std::ptrdiff_t>(left), kv.end()));
    put(call, "still_open_score", Floats(score.end() - static_cast<std::ptrdiff_t>(left), score.end()));
    if (fault("latent_norm_before_pooling")) kv = rms_norm(kv, gain, call.real("eps"));
    Floats latents = rounded(pooled(call, kv, score, fault));
    put(call, "pooled", latents);
    if (!fault("latent_norm_missing") && !fault("latent_norm_before_pooling"))
        latents = rms_norm(latents, gain, call.real("eps"));
    if (fault("latents_rotated")) {
        std::vector<int64_t> positions;
        for (size_t group = 0; group < latents.size() / channels; ++group)
            positions.push_back((call["first_position"] / call["ratio"] + static_cast<int64_t>(group)) *
                                call["ratio"]);
        latents = rope(rounded(latents), channels, 1, positions, released_config().qk_rope_head_dim, fault);
    }
    put(call, "latents", latents);
}

}  // namespace touchstone::foreign
