// Matrix products on one core: multiply-accumulates per second of every order of summation and instruction
// set, beside the scalar definition in the same run. Run with OMP_NUM_THREADS=1.
#include "reference/numerics/gemm.h"

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "reference/numerics/random.h"
#include "reference/numerics/small_float.h"

using namespace touchstone;

namespace {

constexpr int64_t rows = 64, columns = 64, k = 2048;

std::vector<uint32_t> random_bits(OperandFormat format, int64_t count, uint64_t stream) {
    const RandomStream random{1, stream};
    std::vector<uint32_t> bits(static_cast<size_t>(count));
    for (size_t i = 0; i < bits.size(); ++i) {
        const float value = (static_cast<float>(random.word(i) >> 8) * 0x1p-23f - 1.0f) * 4;
        if (format == OperandFormat::bf16) bits[i] = bf16_from_float(value).bits;
        if (format == OperandFormat::e4m3) bits[i] = e4m3_from_float_saturating(value).bits;
        if (format == OperandFormat::tf32) bits[i] = float_bits(value);
    }
    return bits;
}

std::vector<float> random_values(OperandFormat format, int64_t count, uint64_t stream) {
    std::vector<float> values;
    for (uint32_t bits : random_bits(format, count, stream)) values.push_back(operand_value(format, bits));
    return values;
}

/// A panel source of values at hand.
class Values final : public PanelSource {
  public:
    explicit Values(std::vector<float> values) : values_(std::move(values)) {}
    void pack(int64_t first_row, int64_t width, int64_t first_k, int64_t count, float* out) const override {
        for (int64_t column = 0; column < width; ++column)
            for (int64_t i = 0; i < count; ++i)
                out[i * panel_columns + column] =
                    values_[static_cast<size_t>((first_row + column) * k + first_k + i)];
    }

  private:
    std::vector<float> values_;
};

void count_products(benchmark::State& state, int64_t products) {
    state.counters["MAC/s"] =
        benchmark::Counter(static_cast<double>(products), benchmark::Counter::kIsIterationInvariantRate);
}

void run_definition(benchmark::State& state, std::string_view name) {
    const TensorCoreInstruction& instruction = tensor_core_instruction(name);
    const auto a = random_bits(instruction.format, k, 1), b = random_bits(instruction.format, k, 2);
    for (auto _ : state) {
        float c = 0;
        for (int64_t i = 0; i < k; i += instruction.k()) c = tensor_core_step(instruction, &a[i], &b[i], c);
        benchmark::DoNotOptimize(c);
    }
    count_products(state, k);
}

void run_chain(benchmark::State& state, std::string_view name, Isa isa) {
    const TensorCoreInstruction& instruction = tensor_core_instruction(name);
    const std::vector<float> a = random_values(instruction.format, rows * k, 1);
    const Values b(random_values(instruction.format, columns * k, 2));
    std::vector<float> d(rows * columns);
    const KPiece whole{0, k};
    for (auto _ : state) chain_gemm(instruction, a, rows, b, columns, k, {&whole, 1}, {}, d, isa);
    count_products(state, rows * columns * k);
}

void run_lanes(benchmark::State& state, Isa isa) {
    const std::vector<float> a = random_values(OperandFormat::bf16, rows * k, 1);
    const Values b(random_values(OperandFormat::bf16, columns * k, 2));
    std::vector<float> d(rows * columns);
    for (auto _ : state) lanes_gemm(a, rows, b, columns, k, 32, d, isa);
    count_products(state, rows * columns * k);
}

void run_blocks(benchmark::State& state, BlockSum sum, Isa isa) {
    const std::vector<float> a = random_values(OperandFormat::e4m3, rows * k, 1), ones(rows * k / 32, 1.0f);
    const Values b(random_values(OperandFormat::e4m3, columns * k, 2));
    std::vector<float> d(rows * columns);
    for (auto _ : state) block_scaled_gemm(sum, a, rows, b, columns, k, {ones, ones}, d, isa);
    count_products(state, rows * columns * k);
}

/// The definition of an exact block sum: each product and sum in double, one rounding per block.
void run_blocks_by_definition(benchmark::State& state) {
    const std::vector<float> a = random_values(OperandFormat::e4m3, k, 1),
                             b = random_values(OperandFormat::e4m3, k, 2);
    for (auto _ : state) {
        float c = 0;
        for (int64_t block = 0; block < k; block += 32) {
            double sum = 0;
            for (int64_t i = block; i < block + 32; ++i)
                sum += double{a[static_cast<size_t>(i)]} * double{b[static_cast<size_t>(i)]};
            c += static_cast<float>(sum);
        }
        benchmark::DoNotOptimize(c);
    }
    count_products(state, k);
}

void run_fp4(benchmark::State& state, Isa isa) {
    constexpr int64_t keys = 4096, width = 128;  // the indexer's own shape: heads times keys of 128 channels
    const RandomStream random{3};
    std::vector<uint8_t> a(rows * width / 2), b(keys * width / 2), scales(keys * width / 32, 127);
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<uint8_t>(random.word(i));
    for (size_t i = 0; i < b.size(); ++i) b[i] = static_cast<uint8_t>(random.word(i) >> 8);
    std::vector<float> d(rows * keys);
    for (auto _ : state)
        fp4_gemm(a, std::span(scales).first(rows * width / 32), rows, b, scales, keys, width, d, isa);
    count_products(state, rows * keys * width);
}

template <class Run>
void for_each_isa(const std::string& name, Run run) {
    for (Isa isa : compiled_isas())
        if (isa_supported(isa))
            benchmark::RegisterBenchmark((name + "/" + std::string(isa_name(isa))).c_str(),
                                         [run, isa](benchmark::State& state) { run(state, isa); });
}

}  // namespace

int main(int argc, char** argv) {
    for (const char* name :
         {"hopper.wgmma.bf16", "hopper.wgmma.e4m3", "hopper.mma.tf32", "hopper.mma.e4m3"}) {
        benchmark::RegisterBenchmark((std::string(name) + "/definition").c_str(),
                                     [name](benchmark::State& state) { run_definition(state, name); });
        for_each_isa(name, [name](benchmark::State& state, Isa isa) { run_chain(state, name, isa); });
    }
    benchmark::RegisterBenchmark("exact_blocks/definition", run_blocks_by_definition);
    for_each_isa("exact_blocks",
                 [](benchmark::State& state, Isa isa) { run_blocks(state, BlockSum::exact, isa); });
    for_each_isa("released_hopper_blocks", [](benchmark::State& state, Isa isa) {
        run_blocks(state, BlockSum::hopper_fp8_wgmma, isa);
    });
    for_each_isa("fp32_lanes", run_lanes);
    for_each_isa("fp4_integers", run_fp4);
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
}
