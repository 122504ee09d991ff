#include "reference/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reference/io/user_error.h"
#include "reference/numerics/elementary.h"
#include "reference/numerics/trigonometry.h"

namespace touchstone {

namespace {

constexpr int64_t parallel_elements = 1 << 13;

void require(bool holds, std::string what, std::string where, std::string expected) {
    if (holds) return;
    throw UserError({std::move(what), std::move(where), std::move(expected), ""});
}

/// base^exponent of 0 <= exponent < 1, which is a sum of powers of 1/2 as every float is: the product of the
/// square root's square roots that its bits name. Five of them, at the released size, err by less than 2^-49.
double power(double base, float exponent) {
    double result = 1, root = base;
    for (float rest = exponent; rest > 0;) {
        root = std::sqrt(root);
        rest *= 2;
        if (rest < 1) continue;
        result *= root;
        rest -= 1;
    }
    return result;
}

double natural_log(double x) {
    return elementary_detail::log_in_double(x, x - 1);
}

/// The pair, as a real number, that turns `turns` times within the original context.
double pair_of_turns(double turns, int64_t rope_dim, double base, const YarnScaling& yarn) {
    constexpr double pi = 0x1.921fb54442d18p+1;
    const auto context = static_cast<double>(yarn.original_max_position_embeddings);
    return static_cast<double>(rope_dim) * natural_log(context / (turns * 2 * pi)) / (2 * natural_log(base));
}

/// YaRN's blend of each frequency with the frequency divided by `factor` (text model 3.2).
void interpolate(int64_t rope_dim, double base, const YarnScaling& yarn, std::span<float> frequencies) {
    const double low = std::max(std::floor(pair_of_turns(yarn.beta_fast, rope_dim, base, yarn)), 0.0);
    const double high = std::min(std::ceil(pair_of_turns(yarn.beta_slow, rope_dim, base, yarn)),
                                 static_cast<double>(rope_dim - 1));
    const auto first = static_cast<float>(low), width = static_cast<float>(std::max(high - low, 1e-3));
    const auto factor = static_cast<float>(yarn.factor);
    for (size_t i = 0; i < frequencies.size(); ++i) {
        const float ramp = std::clamp((static_cast<float>(i) - first) / width, 0.0f, 1.0f);
        const float smooth = 1.0f - ramp;
        frequencies[i] = frequencies[i] / factor * (1.0f - smooth) + frequencies[i] * smooth;
    }
}

}  // namespace

RopeTable::RopeTable(int64_t rope_dim, double base, const std::optional<YarnScaling>& yarn) {
    require(rope_dim > 0 && rope_dim % 2 == 0, fmt::format("{} rotated channels", rope_dim), "rope table",
            "an even number, at least 2");
    require(base > 1, fmt::format("base {}", base), "rope table", "a number above 1");
    for (int64_t i = 0; i < rope_dim / 2; ++i) {
        const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope_dim);
        frequencies_.push_back(1.0f / static_cast<float>(power(base, exponent)));
    }
    if (yarn) interpolate(rope_dim, base, *yarn, frequencies_);
}

void RopeTable::row(int64_t position, std::span<RopePair> pairs) const {
    require(position >= 0, fmt::format("position {}", position), "rope", "a position, at least 0");
    require(pairs.size() == frequencies_.size(), fmt::format("{} pairs", pairs.size()), "rope",
            fmt::format("{}", frequencies_.size()));
    for (size_t i = 0; i < pairs.size(); ++i) {
        const float angle = static_cast<float>(position) * frequencies_[i];
        const SinCos turned = sin_cos(angle);
        pairs[i] = {turned.cos, turned.sin};
    }
}

RopeTable main_rope_table(const ModelConfig& config) {
    return {config.qk_rope_head_dim, config.rope_theta, std::nullopt};
}

RopeTable compress_rope_table(const ModelConfig& config) {
    return {config.qk_rope_head_dim, config.compress_rope_theta,
            YarnScaling{config.rope_factor, config.beta_fast, config.beta_slow,
                        config.original_max_position_embeddings}};
}

void rope(const RopeTable& table, RopeDirection direction, std::span<const int64_t> positions, int64_t heads,
          int64_t head_dim, std::span<Bf16> x) {
    const int64_t rows = std::ssize(positions), rope_dim = table.rope_dim();
    require(heads >= 0 && head_dim >= rope_dim && std::ssize(x) == rows * heads * head_dim,
            fmt::format("x has {} elements", x.size()), "rope",
            fmt::format("[{}, {}, {}], heads of at least {} channels", rows, heads, head_dim, rope_dim));
    for (int64_t position : positions)
        require(position >= 0, fmt::format("position {}", position), "rope", "positions, at least 0");
#pragma omp parallel if (rows > 1 && std::ssize(x) >= parallel_elements)
    {
        std::vector<RopePair> pairs(static_cast<size_t>(rope_dim / 2));
#pragma omp for schedule(static)
        for (int64_t row = 0; row < rows; ++row) {
            table.row(positions[static_cast<size_t>(row)], pairs);
            for (int64_t head = 0; head < heads; ++head) {
                Bf16* channel = x.data() + (row * heads + head + 1) * head_dim - rope_dim;
                for (const RopePair& pair : pairs) {
                    const float s = direction == RopeDirection::forward ? pair.sin : -pair.sin;
                    const float a = to_float(channel[0]), b = to_float(channel[1]);
                    *channel++ = bf16_from_float(a * pair.cos - b * s);
                    *channel++ = bf16_from_float(a * s + b * pair.cos);
                }
            }
        }
    }
}

}  // namespace touchstone
