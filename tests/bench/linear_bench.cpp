// Linear layers at the released model's shapes: weights per second (a weight times one row counts once), for
// the batches of decode, of drafts and of prefill, and all linear layers of one decoded token. Run with
// OMP_NUM_THREADS=1 for the numbers of one core.
#include "reference/linear.h"

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "reference/numerics/random.h"

using namespace touchstone;

namespace {

enum class Storage : uint8_t { fp8, fp4, bf16 };

struct Shape {
    const char* name;
    SumOperator op;
    Storage storage;
    int64_t outputs, inputs;

    int64_t weights() const { return outputs * inputs; }
};

constexpr Shape attention[]{{"wq_a", SumOperator::wq_a, Storage::fp8, 1280, 5120},
                            {"wq_b", SumOperator::wq_b, Storage::fp8, 32768, 1280},
                            {"wkv", SumOperator::wkv, Storage::fp8, 512, 5120},
                            {"wo_a", SumOperator::wo_a, Storage::bf16, 8192, 4096},
                            {"wo_b", SumOperator::wo_b, Storage::fp8, 5120, 8192}};
constexpr Shape routed[]{{"expert_w1", SumOperator::expert_w1_w3, Storage::fp4, 2304, 5120},
                         {"expert_w2", SumOperator::expert_w2, Storage::fp4, 5120, 2304}};
constexpr Shape shared[]{{"shared_w1", SumOperator::shared_w1_w3, Storage::fp8, 2304, 5120},
                         {"shared_w2", SumOperator::shared_w2, Storage::fp8, 5120, 2304}};

/// A weight of random codes that are numbers, with scales near one.
class Weight {
  public:
    explicit Weight(const Shape& shape) : shape_(shape) {
        const RandomStream random{5, static_cast<uint64_t>(shape.weights())};
        const auto byte = [&](size_t i) {
            return static_cast<uint8_t>(random.block(i / 4).words[i % 4] >> 8);
        };
        codes_.resize(static_cast<size_t>(shape.weights() / (shape.storage == Storage::fp4 ? 2 : 1)));
        for (size_t i = 0; i < codes_.size() && i < 65536; ++i) codes_[i] = byte(i);
        for (size_t i = 65536; i < codes_.size(); ++i) codes_[i] = codes_[i % 65521];
        if (shape.storage == Storage::bf16) {
            for (uint8_t code : codes_) values_.push_back(bf16_from_float(static_cast<float>(code) - 128));
        } else if (shape.storage == Storage::fp8) {
            for (uint8_t& code : codes_) code = (code & 0x7F) == 0x7F ? 0x38 : code;
            e4m3_.resize(codes_.size());
            for (size_t i = 0; i < codes_.size(); ++i) e4m3_[i] = {codes_[i]};
        }
        scales_.assign(static_cast<size_t>(shape.weights() / 32), E8m0{120});
    }

    void multiply(Arithmetic arithmetic, std::span<const Bf16> x, int64_t rows, std::span<Bf16> y) const {
        const Shape& s = shape_;
        if (s.storage == Storage::bf16)
            linear_bf16(arithmetic, s.op, x, rows, {s.name, s.outputs, s.inputs, values_}, y);
        if (s.storage == Storage::fp8)
            linear_fp8(arithmetic, s.op, x, rows,
                       {s.name, s.outputs, s.inputs, e4m3_, std::span(scales_).first(scales_.size() / 32)},
                       y);
        if (s.storage == Storage::fp4)
            linear_fp4(arithmetic, s.op, x, rows, {s.name, s.outputs, s.inputs, codes_, scales_}, y);
    }

    const Shape& shape() const { return shape_; }

  private:
    Shape shape_;
    std::vector<uint8_t> codes_;
    std::vector<E4m3> e4m3_;
    std::vector<Bf16> values_;
    std::vector<E8m0> scales_;
};

std::vector<Bf16> random_rows(int64_t count) {
    const RandomStream random{6};
    std::vector<Bf16> x(static_cast<size_t>(count));
    for (size_t i = 0; i < x.size(); ++i)
        x[i] = bf16_from_float(static_cast<float>(random.word(i) >> 8) * 0x1p-23f - 1);
    return x;
}

void count_weights(benchmark::State& state, int64_t weights) {
    state.counters["weights/s"] =
        benchmark::Counter(static_cast<double>(weights), benchmark::Counter::kIsIterationInvariantRate);
}

void run(benchmark::State& state, Arithmetic arithmetic, const Shape& shape, int64_t rows) {
    const Weight weight(shape);
    const std::vector<Bf16> x = random_rows(rows * shape.inputs);
    std::vector<Bf16> y(static_cast<size_t>(rows * shape.outputs));
    for (auto _ : state) weight.multiply(arithmetic, x, rows, y);
    count_weights(state, shape.weights() * rows);
}

/// The linear layers of one token in one layer: attention, six routed experts and the shared one; each with
/// weights of its own, as in memory.
void run_layer(benchmark::State& state, Arithmetic arithmetic) {
    std::vector<Weight> weights;
    for (const Shape& shape : attention) weights.emplace_back(shape);
    for (int expert = 0; expert < 6; ++expert)
        for (const Shape& shape : {routed[0], routed[0], routed[1]}) weights.emplace_back(shape);
    for (const Shape& shape : {shared[0], shared[0], shared[1]}) weights.emplace_back(shape);
    const std::vector<Bf16> x = random_rows(8192);
    std::vector<Bf16> y(32768);
    int64_t count = 0;
    for (const Weight& weight : weights) count += weight.shape().weights();
    for (auto _ : state)
        for (const Weight& weight : weights)
            weight.multiply(arithmetic, std::span(x).first(static_cast<size_t>(weight.shape().inputs)), 1,
                            std::span(y).first(static_cast<size_t>(weight.shape().outputs)));
    count_weights(state, count);
}

}  // namespace

int main(int argc, char** argv) {
    for (Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper}) {
        const std::string prefix = std::string(arithmetic_name(arithmetic)) + "/";
        for (const Shape& shape : {attention[0], attention[3], attention[4], routed[0], routed[1]})
            for (int64_t rows : {1, 4, 8, 16, 128})
                benchmark::RegisterBenchmark(
                    (prefix + shape.name + "/rows:" + std::to_string(rows)).c_str(),
                    [=](benchmark::State& state) { run(state, arithmetic, shape, rows); })
                    ->Unit(benchmark::kMillisecond)
                    ->UseRealTime();
        benchmark::RegisterBenchmark((prefix + "one_token_of_a_layer").c_str(),
                                     [=](benchmark::State& state) { run_layer(state, arithmetic); })
            ->Unit(benchmark::kMillisecond)
            ->UseRealTime();
    }
    benchmark::Initialize(&argc, argv);
    benchmark::RunSpecifiedBenchmarks();
}
