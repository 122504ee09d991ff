#include "golden/hypotheses/rope_rule.h"

#include <algorithm>
#include <utility>

#include "reference/numerics/trigonometry.h"
#include "reference/registry/entry.h"

namespace touchstone {

namespace {

RopePair turn(int64_t position, float frequency) {
    const SinCos turned = sin_cos(static_cast<float>(position) * frequency);
    return {turned.cos, turned.sin};
}

RopePair product(float a, float b, RopePair angle) {
    return {a * angle.cos - b * angle.sin, a * angle.sin + b * angle.cos};
}

void rotate_head(const RopeRule& rule, int64_t position, std::span<Bf16> channels) {
    const size_t pairs = rule.frequencies.size();
    for (size_t i = 0; i < pairs; ++i) {
        Bf16& first = channels[rule.half_split ? i : 2 * i];
        Bf16& second = channels[rule.half_split ? i + pairs : 2 * i + 1];
        RopePair angle = (rule.turn == nullptr ? turn : rule.turn)(position, rule.frequencies[i]);
        angle = {rule.factor * angle.cos, rule.factor * (rule.forward ? angle.sin : -angle.sin)};
        const RopePair turned =
            (rule.product == nullptr ? product : rule.product)(to_float(first), to_float(second), angle);
        first = bf16_from_float(turned.cos);
        second = bf16_from_float(turned.sin);
    }
}

}  // namespace

RopeTable released_rope_table(int64_t rope_dim, bool main, bool yarn) {
    ModelConfig config = released_config();
    config.qk_rope_head_dim = rope_dim;
    if (main) return main_rope_table(config);
    if (yarn) return compress_rope_table(config);
    return {rope_dim, config.compress_rope_theta, std::nullopt};
}

Outputs with_rope(std::function<bool(RopeRule&, const OperatorRun&)> change) {
    return [change = std::move(change)](const OperatorRun& run) -> std::optional<TensorMap> {
        const int64_t rope_dim = run.parameters["rope_dim"], head_dim = run.parameters["head_dim"];
        const RopeTable table = released_rope_table(rope_dim, run.parameters.choice("table") == "main");
        RopeRule rule{{table.frequencies().begin(), table.frequencies().end()},
                      run.parameters.choice("direction") == "forward"};
        if (!change(rule, run)) return std::nullopt;
        TensorMap outputs = run.expected;
        const Call call{run.parameters, run.inputs, outputs};
        const auto x = call.in<Bf16>("x");
        const auto y = call.out<Bf16>("y");
        std::ranges::copy(x, y.begin());
        const int64_t first = rule.leading ? 0 : head_dim - rope_dim, heads = run.parameters["heads"];
        for (int64_t head = 0; head < run.parameters["rows"] * heads; ++head) {
            const int64_t position = call.in<int64_t>("positions")[static_cast<size_t>(head / heads)];
            rotate_head(
                rule, rule.position == nullptr ? position : rule.position(position),
                y.subspan(static_cast<size_t>(head * head_dim + first), static_cast<size_t>(rope_dim)));
        }
        return outputs;
    };
}

}  // namespace touchstone
