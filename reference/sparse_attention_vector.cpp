// Compiled once per instruction set: the loops of sparse attention (sparse_attention_vector.h).
#include "reference/sparse_attention_vector.h"

#include <utility>

#include "reference/numerics/isa_vector.h"
#include "reference/numerics/sums.h"

namespace touchstone::TOUCHSTONE_ISA_NAMESPACE {

namespace {

constexpr int width = vector_width;

[[gnu::always_inline]] inline Floats load(const float* from) {
    Floats vector;
    __builtin_memcpy(&vector, from, sizeof vector);
    return vector;
}

[[gnu::always_inline]] inline void store(float* to, Floats vector) {
    __builtin_memcpy(to, &vector, sizeof vector);
}

/// Sums of adjacent lanes: those of `a` in the lower half, those of `b` in the upper.
template <int... lane>
[[gnu::always_inline]] inline Floats pair_sums(Floats a, Floats b, std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(a, b, (2 * lane)...) + __builtin_shufflevector(a, b, (2 * lane + 1)...);
}

/// Dot products of `width` rows in `lanes` lanes, channels a multiple of them. All lanes of a row stand side
/// by side and rows behind each other, so that adding neighbours ends in one vector of the sums, in order.
template <int lanes>
[[gnu::always_inline]] inline Floats dots(const float* q, const float* const* rows, int64_t channels) {
    constexpr int vectors = lanes / width;
    Floats sums[lanes];
    for (int row = 0; row < width; ++row) {
        Floats lane[vectors] = {};
        for (int64_t channel = 0; channel < channels; channel += lanes)
            for (int v = 0; v < vectors; ++v)
                lane[v] =
                    fma_rn(load(q + channel + v * width), load(rows[row] + channel + v * width), lane[v]);
        for (int v = 0; v < vectors; ++v) sums[row * vectors + v] = lane[v];
    }
    for (int left = lanes / 2; left > 0; left /= 2)
        for (int i = 0; i < left; ++i)
            sums[i] = pair_sums(sums[2 * i], sums[2 * i + 1], std::make_integer_sequence<int, width>{});
    return sums[0];
}

void scores(const float* q, const float* const* rows, int64_t entries, int64_t channels, int64_t lanes,
            float* scores) {
    constexpr int fast_lanes = 64;  // attention_scores has them from 33 channels on
    const float* there = nullptr;
    for (int64_t j = 0; j < entries && there == nullptr; ++j) there = rows[j];
    for (int64_t first = 0; first < entries; first += width) {
        const float* some[width];
        for (int i = 0; i < width; ++i)
            some[i] = first + i < entries && rows[first + i] != nullptr ? rows[first + i] : there;
        float sums[width];
        if (lanes == fast_lanes && channels % fast_lanes == 0)
            store(sums, dots<fast_lanes>(q, some, channels));
        else
            for (int i = 0; i < width; ++i)
                sums[i] = sums_detail::sum_in_lanes({LaneArrangement::interleaved, static_cast<int>(lanes)},
                                                    channels, sums_detail::Product<float, float>{q, some[i]});
        for (int i = 0; i < width && first + i < entries; ++i)
            scores[first + i] = with_canonical_nan(sums[i]);
    }
}

/// `heads` heads, `vectors` vectors of channels, which stay in registers while the entries pass.
template <int heads, int vectors>
[[gnu::always_inline]] inline void add_to(const float* weights, const float* change, const float* const* rows,
                                          int64_t entries, int64_t channels, int64_t channel, float* values) {
    Floats sums[heads][vectors];
    for (int head = 0; head < heads; ++head)
        for (int v = 0; v < vectors; ++v)
            sums[head][v] = load(values + head * channels + channel + v * width) * change[head];
    for (int64_t j = 0; j < entries; ++j) {
        if (rows[j] == nullptr) continue;
        for (int v = 0; v < vectors; ++v) {
            const Floats row = load(rows[j] + channel + v * width);
            for (int head = 0; head < heads; ++head)
                sums[head][v] = fma_rn(Floats{} + weights[head * entries + j], row, sums[head][v]);
        }
    }
    for (int head = 0; head < heads; ++head)
        for (int v = 0; v < vectors; ++v)
            store(values + head * channels + channel + v * width, sums[head][v]);
}

template <int heads>
void add_of(const float* weights, const float* change, const float* const* rows, int64_t entries,
            int64_t channels, float* values) {
    constexpr int vectors = compiled_isa == Isa::avx512 ? 4 : 2;
    int64_t channel = 0;
    for (; channel + vectors * width <= channels; channel += vectors * width)
        add_to<heads, vectors>(weights, change, rows, entries, channels, channel, values);
    for (; channel + width <= channels; channel += width)
        add_to<heads, 1>(weights, change, rows, entries, channels, channel, values);
    for (; channel < channels; ++channel)
        for (int head = 0; head < heads; ++head) {
            float sum = values[head * channels + channel] * change[head];
            for (int64_t j = 0; j < entries; ++j)
                if (rows[j] != nullptr)
                    sum = touchstone::fma_rn(weights[head * entries + j], rows[j][channel], sum);
            values[head * channels + channel] = sum;
        }
}

void add_values(const float* weights, const float* change, int64_t heads, const float* const* rows,
                int64_t entries, int64_t channels, float* values) {
    constexpr int together = 4;
    int64_t head = 0;
    for (; head + together <= heads; head += together)
        add_of<together>(weights + head * entries, change + head, rows, entries, channels,
                         values + head * channels);
    for (; head < heads; ++head)
        add_of<1>(weights + head * entries, change + head, rows, entries, channels, values + head * channels);
}

}  // namespace

extern const SparseAttentionKernels sparse_attention_kernels;
const SparseAttentionKernels sparse_attention_kernels{compiled_isa, scores, add_values};

}  // namespace touchstone::TOUCHSTONE_ISA_NAMESPACE
