// Sums of one row on one core, per instruction set, at the sizes of the model's norms and dot products.
// Counter: elements per second. Timings are printed, never asserted.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "reference/numerics/fill.h"
#include "reference/numerics/sum_order.h"
#include "reference/numerics/sums.h"

namespace touchstone {
namespace {

struct Row {
    std::vector<float> x, y;
    std::vector<Bf16> bx, by;
};

Row row_of(int64_t k) {
    Row row{std::vector<float>(size_t(k)), std::vector<float>(size_t(k)), std::vector<Bf16>(size_t(k)),
            std::vector<Bf16>(size_t(k))};
    fill<float>(Filler::normal, {1}, row.x);
    fill<float>(Filler::normal, {2}, row.y);
    fill<Bf16>(Filler::normal, {3}, row.bx);
    fill<Bf16>(Filler::normal, {4}, row.by);
    return row;
}

struct Function {
    const char* name;
    float (*call)(const SumsKernels&, Lanes, const Row&, int64_t);
};

constexpr Function functions[]{
    {"squares_bf16", [](const SumsKernels& s, Lanes l, const Row& r,
                        int64_t k) { return s.squares_bf16(l, r.bx.data(), k); }},
    {"dot_bf16", [](const SumsKernels& s, Lanes l, const Row& r,
                    int64_t k) { return s.dot_bf16(l, r.bx.data(), r.by.data(), k); }},
    {"dot_f32", [](const SumsKernels& s, Lanes l, const Row& r,
                   int64_t k) { return s.dot_f32(l, r.x.data(), r.y.data(), k); }},
    {"largest_f32",
     [](const SumsKernels& s, Lanes, const Row& r, int64_t k) { return s.largest_f32(r.x.data(), k); }},
};

void run(benchmark::State& state, Isa isa, const Function& function, SumOperator op, int64_t k) {
    const Row row = row_of(k);
    const Lanes lanes = sum_order(op, k, 5120).lanes;
    const SumsKernels& set = sums_kernels(isa);
    for (auto _ : state) benchmark::DoNotOptimize(function.call(set, lanes, row, k));
    state.counters["elements_per_second"] =
        benchmark::Counter(double(state.iterations()) * double(k), benchmark::Counter::kIsRate);
}

}  // namespace
}  // namespace touchstone

int main(int argc, char** argv) {
    using namespace touchstone;
    for (const Isa isa : compiled_isas()) {
        if (!isa_supported(isa)) continue;
        for (const Function& function : functions)
            for (const auto& [op, k] : {std::pair{SumOperator::rms_norm, int64_t{512}},
                                        {SumOperator::rms_norm, 5120},
                                        {SumOperator::lm_head, 5120},
                                        {SumOperator::attention_scores, 512},
                                        {SumOperator::mhc_mix, 20480}}) {
                const std::string name = std::string(function.name) + "/" + std::string(isa_name(isa)) + "/" +
                                         std::string(sum_order_row(op).name) + "/" + std::to_string(k);
                benchmark::RegisterBenchmark(name.c_str(), run, isa, function, op, k);
            }
    }
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
}
