// Index scores of one query, and attention of one query over its list, both of the released shape.
#include <benchmark/benchmark.h>

#include <vector>

#include "reference/indexer.h"
#include "reference/numerics/fill.h"
#include "reference/sparse_attention.h"

using namespace touchstone;

namespace {

constexpr IndexerShape index_shape{32, 128};
constexpr int64_t heads = 64, head_dim = 512, window_and_top_k = 640;

void run_index_scores(benchmark::State& state) {
    const int64_t keys = state.range(0), records = 64;
    const KvPage page{fp4_index_key_record(index_shape.head_dim), KvPageLayout::planar, records, 1};
    std::vector<std::byte> pages(static_cast<size_t>(keys / records * page.page_bytes()));
    for (size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<std::byte>(i * 0x9E3779B9 >> 24 & 0x7F);
    std::vector<uint8_t> codes(static_cast<size_t>(index_shape.heads * index_shape.head_dim / 2)),
        scales(static_cast<size_t>(index_shape.heads * index_shape.head_dim / 32), 127);
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<uint8_t>(i * 0x9E3779B9 >> 24);
    std::vector<Bf16> weights(static_cast<size_t>(index_shape.heads));
    fill<Bf16>(Filler::normal, {1}, weights);
    std::vector<float> scores(static_cast<size_t>(keys));
    for (auto _ : state) index_scores({codes, scales, weights}, index_shape, page, pages, keys, scores);
    state.counters["keys/s"] =
        benchmark::Counter(static_cast<double>(keys), benchmark::Counter::kIsIterationInvariantRate);
}

void run_attention(benchmark::State& state, Arithmetic arithmetic) {
    std::vector<Bf16> q(static_cast<size_t>(heads * head_dim));
    fill<Bf16>(Filler::normal, {1, 1}, q);
    std::vector<float> rows(static_cast<size_t>(window_and_top_k * head_dim)),
        sink(static_cast<size_t>(heads), 0.0f);
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = to_float(filled<Bf16>(Filler::normal, {1, 2}, i));
    const std::vector<uint8_t> valid(static_cast<size_t>(window_and_top_k), uint8_t{1});
    std::vector<Bf16> o(q.size());
    for (auto _ : state)
        sparse_attention(arithmetic, q, heads, head_dim, rows, valid, sink, 0x1.6a09e6p-5f, std::span(o));
    state.counters["MAC/s"] = benchmark::Counter(static_cast<double>(2 * heads * head_dim * window_and_top_k),
                                                 benchmark::Counter::kIsIterationInvariantRate);
}

}  // namespace

BENCHMARK(run_index_scores)
    ->Name("index_scores")
    ->Arg(4096)
    ->Arg(65536)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(run_attention, exact, Arithmetic::exact)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(run_attention, hopper, Arithmetic::hopper)->UseRealTime()->Unit(benchmark::kMillisecond);
BENCHMARK_MAIN();
