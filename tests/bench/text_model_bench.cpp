// The tiny model from end to end, and one layer of the released size in each mode: 1, 4 and 128 tokens behind
// 4K and 64K of context.
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <omp.h>

#include <map>
#include <memory>

#include "reference/block.h"
#include "reference/model/checkpoint_weights.h"
#include "reference/model/model.h"
#include "reference/model/synthetic_tensors.h"
#include "reference/numerics/fill.h"
#include "reference/replay.h"

using namespace touchstone;

namespace {

const ModelConfig& config_of(const char* preset) {
    static std::map<std::string, Model> models;
    return *models.try_emplace(preset, find_model(preset)).first->second.config();
}

void tiny_prefill(benchmark::State& state, Arithmetic arithmetic) {
    const SyntheticTensors source(config_of("tiny"), 1);
    const CheckpointWeights weights(source);
    const TextModel model(source.config(), weights, arithmetic);
    const std::vector<int32_t> tokens(static_cast<size_t>(state.range(0)), 7);
    for (auto _ : state) {
        SequenceState sequence(source.config());
        benchmark::DoNotOptimize(prefill(model, sequence, tokens));
    }
    state.SetItemsProcessed(state.iterations() * state.range(0));
}

void tiny_decode(benchmark::State& state, Arithmetic arithmetic) {
    const SyntheticTensors source(config_of("tiny"), 1);
    const CheckpointWeights weights(source);
    const TextModel model(source.config(), weights, arithmetic);
    SequenceState sequence(source.config());
    const std::vector<int32_t> tokens(100, 7);
    prefill(model, sequence, tokens);
    for (auto _ : state) {
        SequenceState fork = sequence;
        benchmark::DoNotOptimize(prefill(model, fork, std::span(tokens).first(1)));
    }
    state.SetItemsProcessed(state.iterations());
}

/// The released model with 16 experts of its 384 made and each standing for 24: memory for all would be 7 GB
/// per layer, and a token's six are as many as ever.
class SharedExperts final : public TextWeights {
  public:
    explicit SharedExperts(const TensorSource& source) : weights_(source) {}
    LayerWeights layer(int layer) const override {
        LayerWeights result = weights_.layer(layer);
        result.expert = [expert = result.expert](int32_t id) { return expert(id % 16); };
        return result;
    }
    Bf16Weight embedding() const override { return weights_.embedding(); }
    std::span<const Bf16> final_norm() const override { return weights_.final_norm(); }
    Bf16Weight head() const override { return weights_.head(); }

  private:
    CheckpointWeights weights_;
};

const SyntheticTensors& released_source() {
    static const SyntheticTensors source(config_of("deepseek-v4.1-flash"), 1);
    return source;
}

std::vector<Bf16> random_rows(int64_t count, uint64_t stream) {
    std::vector<Bf16> values(static_cast<size_t>(count));
    fill(Filler::normal, {1, stream}, std::span(values));
    return values;
}

/// A state that has seen `context` tokens: random rows in every cache that the layer reads.
/// Where another layer is the source, it has appended the rows of the call as well.
SequenceState state_with_context(const ModelConfig& config, const LayerRole& role, int64_t context,
                                 int64_t call_rows) {
    SequenceState state(config);
    const int64_t window = config.sliding_window, dim = config.head_dim;
    state.window(role.layer).clear(context - window);
    state.window(role.layer).append(context - window, random_rows(window * dim, 1));
    if (role.kv_source >= 0) {
        SourceState& source = state.source(role.kv_source);
        const int64_t rows = (context + (role.kv_source == role.layer ? 0 : call_rows)) / source.ratio;
        source.main.append(random_rows(rows * dim, 2));
        source.keys.append(random_rows(rows * config.index_head_dim, 3));
    }
    state.advance(context, {});
    return state;
}

/// What the index source before `layer` would have published: the newest rows, every block.
PublishedSelections published_before(const ModelConfig& config, const LayerRole& role, int64_t rows,
                                     int64_t context) {
    PublishedSelections published;
    if (role.compress_ratio == 0) return published;
    std::vector<int32_t> selected, pool;
    const int64_t visible = context / role.compress_ratio;
    for (int64_t i = std::max<int64_t>(visible - config.index_topk, 0); i < visible; ++i)
        selected.push_back(static_cast<int32_t>(i));
    for (int64_t i = 0; i < std::min(visible / config.candidate_block_size, config.candidate_topk_blocks);
         ++i)
        pool.push_back(static_cast<int32_t>(i));
    published.selected.assign(static_cast<size_t>(rows), selected);
    published.pool.assign(static_cast<size_t>(rows), pool);
    return published;
}

/// Multiplications and additions of one layer, of `rows` tokens behind `context`.
double layer_macs(const ModelConfig& config, const LayerRole& role, int64_t rows, int64_t context) {
    const double d = static_cast<double>(config.hidden_size),
                 h = static_cast<double>(config.num_attention_heads),
                 dh = static_cast<double>(config.head_dim), q = static_cast<double>(config.q_lora_rank),
                 o = static_cast<double>(config.o_lora_rank * config.o_groups),
                 i = static_cast<double>(config.moe_intermediate_size);
    double macs = d * q + q * h * dh + d * dh + o * h * dh / static_cast<double>(config.o_groups) + o * d;
    macs += static_cast<double>(config.num_experts_per_tok + 1) * 3 * d * i +
            d * static_cast<double>(config.n_routed_experts);
    macs += 2 * 24 * 4 * d;
    double list = static_cast<double>(config.sliding_window);
    if (role.compress_ratio > 0) {
        const double visible = static_cast<double>(context / role.compress_ratio);
        list += std::min(visible, static_cast<double>(config.index_topk));
        if (role.top_k_source == role.layer) {
            const double heads = static_cast<double>(config.index_n_heads),
                         dim = static_cast<double>(config.index_head_dim);
            macs += q * heads * dim + d * heads + heads * dim * visible;
        }
        if (role.kv_source == role.layer) macs += d * dh * (role.compress_ratio > 1 ? 2 : 1);
    }
    macs += 2 * h * dh * list;
    return macs * static_cast<double>(rows);
}

void released_layer(benchmark::State& bench, Arithmetic arithmetic, int layer) {
    const ModelConfig& config = config_of("deepseek-v4.1-flash");
    const SharedExperts weights(released_source());
    const LayerRole role = layer_roles(config)[static_cast<size_t>(layer)];
    const RopeTable main_table = main_rope_table(config), compress_table = compress_rope_table(config);
    const AttentionContext context{config, arithmetic, {}, nullptr, main_table, compress_table};
    const int64_t rows = bench.range(0), tokens = bench.range(1);
    const SequenceState before = state_with_context(config, role, tokens, rows);
    const LayerWeights layer_weights = weights.layer(layer);
    for (int32_t id = 0; id < 16; ++id) layer_weights.expert(id);  // made now, not while time is taken
    const std::vector<Bf16> h = random_rows(rows * config.hc_mult * config.hidden_size, 4);
    for (auto _ : bench) {
        bench.PauseTiming();
        SequenceState sequence = before;
        CallRows call{{{&sequence, tokens, rows}}};
        ResidualStreams streams{h, std::vector<float>(static_cast<size_t>(rows * config.hc_mult), 0.25f)};
        PublishedSelections published = published_before(config, role, rows, tokens);
        bench.ResumeTiming();
        block(context, role, layer_weights, {}, {}, call, streams, published, {});
        benchmark::DoNotOptimize(streams.h.data());
    }
    const double macs = layer_macs(config, role, rows, tokens) * static_cast<double>(bench.iterations());
    bench.counters["GMAC/s/core"] =
        benchmark::Counter(macs / 1e9 / omp_get_max_threads(), benchmark::Counter::kIsRate);
    bench.SetItemsProcessed(bench.iterations() * rows);
}

}  // namespace

int main(int argc, char** argv) {
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper}) {
        const std::string suffix(arithmetic_name(arithmetic));
        const auto add = [](const std::string& name, auto run) {
            return benchmark::RegisterBenchmark(name.c_str(), run)
                ->Unit(benchmark::kMillisecond)
                ->UseRealTime();
        };
        add("tiny_prefill/" + suffix, [=](benchmark::State& s) { tiny_prefill(s, arithmetic); })
            ->Arg(1)
            ->Arg(100)
            ->Arg(500);
        add("tiny_decode/" + suffix, [=](benchmark::State& s) { tiny_decode(s, arithmetic); });
        const std::pair<const char*, int> layers[]{
            {"swa", 0}, {"full_ratio_2", 2}, {"reuse", 3}, {"full_ratio_1", 20}, {"reindex", 24}};
        for (const auto& [mode, layer] : layers) {
            auto* bench =
                add(fmt::format("released_layer/{}/{}", mode, suffix),
                    [=, layer = layer](benchmark::State& s) { released_layer(s, arithmetic, layer); });
            for (const int64_t rows : {1, 4, 128})
                for (const int64_t context : {4096, 65536}) bench->Args({rows, context});
        }
    }
    benchmark::Initialize(&argc, argv);
    if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
    benchmark::RunSpecifiedBenchmarks();
}
