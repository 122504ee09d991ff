// Elementary functions on one core: every function by every instruction set that this machine has, over an
// array that fits the first-level cache, beside the scalar function called in a plain loop ("call").
// Counters: elements per second, ns per element. Timings are printed, never asserted.
#include <benchmark/benchmark.h>

#include <functional>
#include <string>
#include <vector>

#include "reference/numerics/elementary_vector.h"
#include "reference/numerics/random.h"

namespace touchstone {
namespace {

constexpr size_t elements = 2048;  // 16 KiB in and out

/// Uniform in [0, 8): every function has its ordinary results there, none overflows.
std::vector<float> inputs() {
    std::vector<float> x(elements);
    const RandomStream random{1};
    for (size_t i = 0; i < elements; ++i) x[i] = static_cast<float>(random.word(i) >> 8) * 0x1p-21f;
    return x;
}

void run(benchmark::State& state,
         const std::function<void(std::span<const float>, std::span<float>)>& apply) {
    const std::vector<float> x = inputs();
    std::vector<float> y(elements);
    for (auto _ : state) {
        apply(x, y);
        benchmark::DoNotOptimize(y.data());
        benchmark::ClobberMemory();
    }
    const double done = static_cast<double>(state.iterations()) * static_cast<double>(elements);
    state.counters["elements_per_second"] = benchmark::Counter(done, benchmark::Counter::kIsRate);
    state.counters["seconds_per_element"] =
        benchmark::Counter(done, benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void register_cases() {
    for (const ElementaryFunctionInfo& info : elementary_functions()) {
        const std::string name(info.name);
        benchmark::RegisterBenchmark((name + "/call").c_str(), [&info](benchmark::State& state) {
            run(state, [&info](std::span<const float> x, std::span<float> y) {
                for (size_t i = 0; i < x.size(); ++i) y[i] = info.scalar(x[i]);
            });
        });
        for (Isa isa : compiled_isas()) {
            if (!isa_supported(isa)) continue;
            benchmark::RegisterBenchmark(
                (name + "/" + std::string(isa_name(isa))).c_str(), [&info, isa](benchmark::State& state) {
                    run(state, [&info, isa](std::span<const float> x, std::span<float> y) {
                        evaluate(info.function, x, y, isa);
                    });
                });
        }
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
