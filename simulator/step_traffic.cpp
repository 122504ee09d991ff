#include "simulator/step_traffic.h"

#include "reference/layout/kv_record.h"
#include "simulator/checked.h"

namespace touchstone {

int64_t stream_values_per_sublayer(int64_t streams, StreamForm form) {
    switch (form) {
        case StreamForm::single_pass: return 2 * streams + 2;
        case StreamForm::two_pass: return 3 * streams + 2;
        case StreamForm::original: break;
    }
    return 4 * streams + 4;
}

int64_t stream_bytes_per_token(const ModelConfig& config, StreamForm form) {
    const int64_t sublayers = 2 * config.num_hidden_layers;
    const int64_t row_bytes = bf16_record(config.hidden_size).record_bytes();
    return checked_multiply(checked_multiply(stream_values_per_sublayer(config.hc_mult, form), row_bytes),
                            sublayers);
}

int64_t engram_row_bytes(const ModelConfig& config) {
    return config.engram ? fp8_record(config.engram->head_dim).record_bytes() : 0;
}

int64_t engram_read_bytes_per_token(const ModelConfig& config) {
    if (!config.engram) return 0;
    const int64_t rows = config.engram->columns() * static_cast<int64_t>(config.engram->layer_ids.size());
    return checked_multiply(rows, engram_row_bytes(config));
}

namespace {

/// base^exponent by squaring: the same bits everywhere, which a libm's pow does not promise.
double integer_power(double base, int64_t exponent) {
    double power = 1.0;
    for (; exponent > 0; exponent /= 2, base *= base)
        if (exponent % 2 != 0) power *= base;
    return power;
}

}  // namespace

double expected_distinct_experts(const ModelConfig& config, int64_t tokens) {
    const double experts = static_cast<double>(config.n_routed_experts);
    const double missed = 1.0 - static_cast<double>(config.num_experts_per_tok) / experts;
    return experts * (1.0 - integer_power(missed, tokens));
}

StepWeightBytes step_weight_bytes(const ModelConfig& config, const WeightTotals& totals, int64_t tokens) {
    StepWeightBytes bytes;
    bytes.routed = expected_distinct_experts(config, tokens) / static_cast<double>(config.n_routed_experts) *
                   static_cast<double>(totals.of(WeightComponent::routed_experts).stored_bytes);
    for (const ComponentWeights& row : totals.components) {
        const bool read_by_every_step =
            row.component != WeightComponent::routed_experts && row.component != WeightComponent::embedding &&
            row.component != WeightComponent::engram_tables && row.component != WeightComponent::dspark &&
            row.component != WeightComponent::vision;
        if (read_by_every_step) bytes.others += row.stored_bytes;
    }
    return bytes;
}

}  // namespace touchstone
