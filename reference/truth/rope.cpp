#include "reference/truth/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace touchstone::truth {

namespace {

/// The pair that turns `turns` times over the original context, as a real number (spec 3.2, corr).
double yarn_pair_of_turns(const ModelConfig& config, double turns) {
    const double context = static_cast<double>(config.original_max_position_embeddings);
    return static_cast<double>(config.qk_rope_head_dim) * std::log(context / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(config.compress_rope_theta));
}

}  // namespace

std::vector<float> rope_frequencies(const ModelConfig& config, RopeTable table) {
    const bool compress = table == RopeTable::compress;
    const double theta = compress ? config.compress_rope_theta : config.rope_theta;
    const double width = static_cast<double>(config.qk_rope_head_dim);
    const double low = std::max(std::floor(yarn_pair_of_turns(config, config.beta_fast)), 0.0);
    const double high = std::min(std::ceil(yarn_pair_of_turns(config, config.beta_slow)), width - 1);
    const float range = static_cast<float>(std::max(high - low, 1e-3));

    std::vector<float> result;
    for (int64_t i = 0; i < config.qk_rope_head_dim / 2; ++i) {
        // Every line is one fp32 rounding, as in the released code.
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(width);
        const float power = static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
        float frequency = 1.0f / power;
        if (compress) {
            const float ramp =
                std::clamp((static_cast<float>(i) - static_cast<float>(low)) / range, 0.0f, 1.0f);
            const float smooth = 1.0f - ramp;
            const float interpolated = frequency / static_cast<float>(config.rope_factor) * (1.0f - smooth);
            frequency = interpolated + frequency * smooth;
        }
        result.push_back(frequency);
    }
    return result;
}

RopeEntry rope_entry(int64_t position, float frequency) {
    const double angle = static_cast<double>(static_cast<float>(position) * frequency);
    return {fp32_constant(std::cos(angle)), fp32_constant(std::sin(angle))};
}

Matrix rope(Matrix x, int64_t head_dim, const std::vector<int64_t>& positions,
            const std::vector<float>& frequencies, RopeDirection direction) {
    const int64_t pairs = static_cast<int64_t>(frequencies.size());
    for (int64_t t = 0; t < x.rows(); ++t)
        for (int64_t i = 0; i < pairs; ++i) {
            const RopeEntry entry =
                rope_entry(positions[static_cast<size_t>(t)], frequencies[static_cast<size_t>(i)]);
            const double sin = direction == RopeDirection::forward ? entry.sin : -entry.sin;
            for (int64_t head = 0; head < x.cols() / head_dim; ++head) {
                const int64_t real = (head + 1) * head_dim - 2 * pairs + 2 * i;
                const double a = x(t, real), b = x(t, real + 1);
                x(t, real) = a * entry.cos - b * sin;
                x(t, real + 1) = a * sin + b * entry.cos;
            }
        }
    return x;
}

}  // namespace touchstone::truth
