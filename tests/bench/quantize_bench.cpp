// Quantise + pack and unpack + dequantise of each record on one core. Counters: GB/s of bf16 rows read or
// fp32 rows written (rows_per_second: of packed pages, packed_per_second). Timings are printed, never
// asserted.
#include <benchmark/benchmark.h>
#include <omp.h>

#include <string>
#include <vector>

#include "reference/quantize.h"

namespace touchstone {
namespace {

struct Case {
    Quantizer quantizer;
    KvPage page;
};

constexpr int64_t rows_per_run = 1024;  // 1 MiB of bf16 at 512 channels: in the second-level cache

std::vector<Case> cases() {
    const KvPageLayout planar = KvPageLayout::planar, per_token = KvPageLayout::per_token;
    return {{Quantizer::q8, {fp8_record(512), planar, 128, 512}},
            {Quantizer::q4m, {fp4_main_record(512), planar, 128, 512}},
            {Quantizer::q4i, {fp4_index_key_record(128), planar, 64, 1}},
            {Quantizer::flashmla_v4, {v4_record(512, 64), planar, 64, 576}},
            {Quantizer::vllm_v32, {v32_record(512, 64), per_token, 64, 1}},
            {Quantizer::vllm_index_key, {fp8_index_key_record(128), planar, 64, 1}},
            {Quantizer::deepgemm_index_key, {fp8_index_key_record(128), planar, 64, 1}},
            {Quantizer::copy, {bf16_record(512), per_token, 64, 1}}};
}

/// Values of -4 to 4 with bf16's 8 significant bits, the same in every run.
std::vector<Bf16> rows_of(const KvRecord& record) {
    std::vector<Bf16> rows(size_t(rows_per_run * (record.channels + record.tail_channels)));
    uint32_t state = 1;
    for (Bf16& x : rows) {
        state = state * 1664525 + 1013904223;
        x = bf16_from_float((float(state >> 8) * 0x1p-24f - 0.5f) * 8);
    }
    return rows;
}

void report(benchmark::State& state, double row_bytes, double packed_bytes) {
    const double runs = double(state.iterations());
    state.counters["rows_per_second"] = benchmark::Counter(runs * row_bytes, benchmark::Counter::kIsRate);
    state.counters["packed_per_second"] =
        benchmark::Counter(runs * packed_bytes, benchmark::Counter::kIsRate);
}

void quantize(benchmark::State& state, const Case& c) {
    omp_set_num_threads(1);
    const std::vector<Bf16> rows = rows_of(c.page.record);
    std::vector<std::byte> pages(size_t(rows_per_run / c.page.records * c.page.page_bytes()));
    for (auto _ : state) {
        quantize_rows(c.page, c.quantizer, rows, pages, 0);
        benchmark::DoNotOptimize(pages.data());
        benchmark::ClobberMemory();
    }
    report(state, double(2 * rows.size()), double(rows_per_run * c.page.record.record_bytes()));
}

void dequantize(benchmark::State& state, const Case& c) {
    omp_set_num_threads(1);
    const std::vector<Bf16> rows = rows_of(c.page.record);
    std::vector<std::byte> pages(size_t(rows_per_run / c.page.records * c.page.page_bytes()));
    quantize_rows(c.page, c.quantizer, rows, pages, 0);
    std::vector<float> out(rows.size());
    for (auto _ : state) {
        dequantize_rows(c.page, pages, 0, rows_per_run, out);
        benchmark::DoNotOptimize(out.data());
        benchmark::ClobberMemory();
    }
    report(state, double(4 * rows.size()), double(rows_per_run * c.page.record.record_bytes()));
}

void register_cases() {
    for (const Case& c : cases()) {
        const std::string name(quantizer_info(c.quantizer).name);
        benchmark::RegisterBenchmark(("quantize/" + name).c_str(),
                                     [c](benchmark::State& s) { quantize(s, c); });
        benchmark::RegisterBenchmark(("dequantize/" + name).c_str(),
                                     [c](benchmark::State& s) { dequantize(s, c); });
    }
}

}  // namespace
}  // namespace touchstone

int main(int argc, char** argv) {
    touchstone::register_cases();
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
    return 0;
}
