#include "reference/sparse_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/elementary_vector.h"
#include "reference/numerics/gemm.h"
#include "reference/numerics/sums.h"
#include "reference/sparse_attention_vector.h"

namespace touchstone {

namespace isa_scalar {
extern const SparseAttentionKernels sparse_attention_kernels;
}
#ifdef __x86_64__
namespace isa_avx2 {
extern const SparseAttentionKernels sparse_attention_kernels;
}
namespace isa_avx512 {
extern const SparseAttentionKernels sparse_attention_kernels;
}
#endif

const SparseAttentionKernels& sparse_attention_kernels(Isa isa) {
#ifdef __x86_64__
    if (isa == Isa::avx512) return isa_avx512::sparse_attention_kernels;
    if (isa == Isa::avx2) return isa_avx2::sparse_attention_kernels;
#endif
    (void)isa;
    return isa_scalar::sparse_attention_kernels;
}

namespace {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();
/// Finite: with -infinity, a block whose scores are all -infinity would give NaN (text model 4.3).
constexpr float first_maximum = -1e30f;
/// Rows of a block are read once for so many heads.
constexpr int64_t heads_per_task = 16;

/// The rows of 64 entries of the list, null where an entry is not there.
using Block = std::array<const float*, attention_block>;

/// What is the same for all heads.
struct List {
    std::vector<Block> blocks;  ///< those that have an entry
    int64_t head_dim;
    float scale;
};

/// Rows of a block as the second operand of q . k: column j is entry j.
class Keys final : public PanelSource {
  public:
    explicit Keys(const Block& block) : block_(block) {}
    void pack(int64_t first_row, int64_t columns, int64_t first_k, int64_t count,
              float* values) const override {
        for (int64_t column = 0; column < columns; ++column) {
            const float* row = block_[static_cast<size_t>(first_row + column)];
            for (int64_t k = 0; k < count; ++k)
                values[k * panel_columns + column] = row == nullptr ? 0 : row[first_k + k];
        }
    }

  private:
    const Block& block_;
};

/// The same rows as the second operand of P . V: column j is channel j.
class Values final : public PanelSource {
  public:
    explicit Values(const Block& block) : block_(block) {}
    void pack(int64_t first_row, int64_t columns, int64_t first_k, int64_t count,
              float* values) const override {
        for (int64_t k = 0; k < count; ++k) {
            const float* row = block_[static_cast<size_t>(first_k + k)];
            if (row == nullptr)
                std::fill_n(values + k * panel_columns, columns, 0.0f);
            else
                std::copy_n(row + first_row, columns, values + k * panel_columns);
        }
    }

  private:
    const Block& block_;
};

/// scores [heads, 64] of a block, before the scale.
void block_scores(Arithmetic arithmetic, std::span<const float> q, int64_t heads, const List& list,
                  const Block& block, std::span<float> scores) {
    if (arithmetic != Arithmetic::exact) {
        const KPiece whole{0, list.head_dim};
        chain_gemm(tensor_core_instruction("hopper.wgmma.bf16"), q, heads, Keys(block), attention_block,
                   list.head_dim, {&whole, 1}, {}, scores);
        return;
    }
    const int64_t lanes = sum_order(SumOperator::attention_scores, list.head_dim, 1).lanes.count;
    const SparseAttentionKernels& kernels = sparse_attention_kernels(active_isa());
    for (int64_t head = 0; head < heads; ++head)
        kernels.scores(q.data() + head * list.head_dim, block.data(), attention_block, list.head_dim, lanes,
                       scores.data() + head * attention_block);
}

/// values [heads, head_dim] = values * change + weights [heads, 64] . rows.
void add_block_values(Arithmetic arithmetic, std::span<const float> weights, std::span<const float> change,
                      const List& list, const Block& block, std::vector<float>& values) {
    const int64_t heads = std::ssize(change);
    if (arithmetic == Arithmetic::exact) {
        sparse_attention_kernels(active_isa())
            .add_values(weights.data(), change.data(), heads, block.data(), attention_block, list.head_dim,
                        values.data());
        return;
    }
    for (size_t i = 0; i < values.size(); ++i) values[i] *= change[i / static_cast<size_t>(list.head_dim)];
    std::vector<float> sums(values.size());
    const KPiece whole{0, attention_block};
    chain_gemm(tensor_core_instruction("hopper.wgmma.bf16"), weights, heads, Values(block), list.head_dim,
               attention_block, {&whole, 1}, values, sums);
    values.swap(sums);
}

/// The state of one head: the running maximum and the sum of p under it.
struct Softmax {
    float maximum = first_maximum, sum = 0;
};

/// Takes up a block's `scores` [64], which become p rounded to bf16; returns by what O is to be multiplied.
float advance(const Block& block, float scale, Softmax& softmax, std::span<float> scores) {
    constexpr Lanes lanes = sum_order(SumOperator::attention_softmax, attention_block, 1).lanes;
    for (size_t j = 0; j < scores.size(); ++j)
        scores[j] = block[j] == nullptr ? minus_infinity : scores[j] * scale;
    const float maximum = larger(softmax.maximum, largest(scores));
    const float change = elementary::exp(softmax.maximum - maximum);
    for (float& score : scores) score -= maximum;
    elementary::exp(scores, scores);
    softmax = {maximum, softmax.sum * change + sum(lanes, std::span<const float>(scores))};
    for (float& p : scores) p = to_float(bf16_from_float(p));  // after the sum, for P . V alone
    return change;
}

/// o [heads, head_dim] of some heads.
void attend(Arithmetic arithmetic, std::span<const float> q, const List& list, std::span<const float> sink,
            float* o) {
    const int64_t heads = std::ssize(sink);
    std::vector<Softmax> softmax(sink.size());
    std::vector<float> values(q.size()), scores(sink.size() * attention_block), change(sink.size());
    for (const Block& block : list.blocks) {
        block_scores(arithmetic, q, heads, list, block, scores);
        for (size_t head = 0; head < sink.size(); ++head)
            change[head] = advance(block, list.scale, softmax[head],
                                   std::span(scores).subspan(head * attention_block, attention_block));
        add_block_values(arithmetic, scores, change, list, block, values);
    }
    for (size_t i = 0; i < values.size(); ++i) {
        const size_t head = i / static_cast<size_t>(list.head_dim);
        const float total = softmax[head].sum + elementary::exp(sink[head] - softmax[head].maximum);
        o[i] = with_canonical_nan(values[i] / total);
    }
}

void require(int64_t got, int64_t expected, const char* what) {
    if (got == expected) return;
    throw UserError({fmt::format("{} has {} elements", what, got), "sparse_attention",
                     fmt::format("{}", expected), "pass tensors whose shapes agree"});
}

List list_of(std::span<const float> rows, std::span<const uint8_t> valid, int64_t head_dim, float scale) {
    List list{{}, head_dim, scale};
    for (int64_t first = 0; first < std::ssize(valid); first += attention_block) {
        Block block{};
        const int64_t last = std::min(first + attention_block, std::ssize(valid));
        bool any = false;
        for (int64_t entry = first; entry < last; ++entry) {
            if (valid[static_cast<size_t>(entry)] == 0) continue;
            block[static_cast<size_t>(entry - first)] = rows.data() + entry * head_dim;
            any = true;
        }
        if (any) list.blocks.push_back(block);
    }
    return list;
}

}  // namespace

void sparse_attention(Arithmetic arithmetic, std::span<const Bf16> q, int64_t heads, int64_t head_dim,
                      std::span<const float> rows, std::span<const uint8_t> valid,
                      std::span<const float> sink, float scale, std::span<float> o) {
    constexpr int64_t step = 16;  // of the chain
    if (heads < 0 || head_dim < 1 || (arithmetic != Arithmetic::exact && head_dim % step != 0))
        throw UserError({fmt::format("{} heads of {} channels", heads, head_dim), "sparse_attention",
                         "no negative number of heads, channels a multiple of 16 unless exact", ""});
    require(std::ssize(q), heads * head_dim, "q");
    require(std::ssize(rows), std::ssize(valid) * head_dim, "rows");
    require(std::ssize(sink), heads, "sink");
    require(std::ssize(o), heads * head_dim, "o");
    const List list = list_of(rows, valid, head_dim, scale);
    if (list.blocks.empty()) {  // whatever the sink: -infinity would make it 0 / 0
        std::ranges::fill(o, 0.0f);
        return;
    }
    std::vector<float> queries(q.size());
    std::transform(q.begin(), q.end(), queries.begin(), [](Bf16 x) { return to_float(x); });
#pragma omp parallel for schedule(static)
    for (int64_t first = 0; first < heads; first += heads_per_task) {
        const auto count = static_cast<size_t>(std::min(heads_per_task, heads - first));
        const auto start = static_cast<size_t>(first * head_dim);
        attend(arithmetic, std::span(queries).subspan(start, count * static_cast<size_t>(head_dim)), list,
               sink.subspan(static_cast<size_t>(first), count), o.data() + first * head_dim);
    }
}

void sparse_attention(Arithmetic arithmetic, std::span<const Bf16> q, int64_t heads, int64_t head_dim,
                      std::span<const float> rows, std::span<const uint8_t> valid,
                      std::span<const float> sink, float scale, std::span<Bf16> o) {
    std::vector<float> unrounded(o.size());
    sparse_attention(arithmetic, q, heads, head_dim, rows, valid, sink, scale, std::span<float>(unrounded));
    std::transform(unrounded.begin(), unrounded.end(), o.begin(), bf16_from_float);
}

}  // namespace touchstone
