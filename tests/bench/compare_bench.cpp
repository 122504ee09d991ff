// Comparing two tensors in memory, per type: equal, one element of a hundred one unit apart, every element
// apart. Counters: bytes of the expected tensor per second, elements per second. Timings are printed, never
// asserted.
#include <benchmark/benchmark.h>

#include <cstring>
#include <string>
#include <vector>

#include "golden/compare/difference.h"
#include "golden/compare/element_types.h"
#include "reference/numerics/random.h"

namespace touchstone {
namespace {

constexpr int64_t columns = 5120;

struct Type {
    const char* name;
    uint32_t clear, set;  ///< of every 32 random bits: exponents near 1
};

constexpr Type types[]{
    {"BF16", 0x70007000, 0x3C003C00},
    {"F32", 0x70000000, 0x3C000000},
    {"F8_E4M3", 0x40404040, 0x20202020},
    {"I32", 0, 0},
};

/// Rows of `columns` elements, about `bytes` in all.
std::vector<std::byte> random_tensor(const Type& type, int64_t bytes) {
    const int64_t row_bytes = columns * element_type_bytes(type.name);
    std::vector<std::byte> result(static_cast<size_t>(bytes / row_bytes * row_bytes));
    const RandomStream random{7, 1};
    for (size_t i = 0; i < result.size() / 4; ++i) {
        const uint32_t word = (random.word(i) & ~type.clear) | type.set;
        std::memcpy(result.data() + 4 * i, &word, 4);
    }
    return result;
}

void flip_lowest_bits(std::vector<std::byte>& bytes, int64_t width, int64_t one_in) {
    for (size_t i = 0; i < bytes.size(); i += static_cast<size_t>(width * one_in)) bytes[i] ^= std::byte{1};
}

void compare(benchmark::State& state, const Type& type, int64_t one_in) {
    const int64_t width = element_type_bytes(type.name);
    const std::vector<std::byte> expected = random_tensor(type, 1'000'000'000);
    std::vector<std::byte> got = expected;
    if (one_in != 0) flip_lowest_bits(got, width, one_in);
    const std::vector<int64_t> shape{static_cast<int64_t>(expected.size()) / width / columns, columns};
    const TensorView e{type.name, shape, expected}, g{type.name, shape, got};
    for (auto _ : state) benchmark::DoNotOptimize(difference(e, g, {}).identical);
    const double rounds = static_cast<double>(state.iterations());
    state.counters["bytes_per_second"] =
        benchmark::Counter(rounds * static_cast<double>(expected.size()), benchmark::Counter::kIsRate);
    state.counters["elements_per_second"] =
        benchmark::Counter(rounds * static_cast<double>(e.elements()), benchmark::Counter::kIsRate);
}

}  // namespace
}  // namespace touchstone

int main(int argc, char** argv) {
    using namespace touchstone;
    for (const Type& type : types)
        for (const auto& [name, one_in] :
             {std::pair{"equal", int64_t{0}}, std::pair{"1_percent", int64_t{100}},
              std::pair{"all", int64_t{1}}})
            benchmark::RegisterBenchmark(
                (std::string(type.name) + "/" + name).c_str(),
                [&type, differing = one_in](benchmark::State& state) { compare(state, type, differing); })
                ->Unit(benchmark::kMillisecond)
                ->UseRealTime();
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
}
