// RMS norms and rotations as somebody else might have written them, with faults to choose from.
#pragma once

#include "tests/foreign_numbers.h"

namespace foreign {

inline float norm_root(const std::vector<float>& x, size_t first, size_t width, float eps,
                       const Fault& fault) {
    const size_t counted = fault.is("half_of_the_row") ? width / 2 : width;
    float squares = 0, mean = 0;
    for (size_t i = first; i < first + counted; ++i) squares += x[i] * x[i];
    if (fault.is("eps_1e_6")) eps = 1e-6f;
    if (fault.is("eps_1e_5")) eps = 1e-5f;
    if (fault.is("eps_3e_7")) eps = 3e-7f;
    if (fault.is("eps_missing")) eps = 0;
    mean = fault.is("sum_for_mean") ? squares : squares / static_cast<float>(counted);
    if (fault.is("eps_outside")) return 1 / (std::sqrt(mean) + eps);
    return 1 / std::sqrt(mean + eps);
}

inline touchstone::TensorMap rms_norm(const touchstone::ParsedCase& parsed,
                                      const touchstone::TensorMap& inputs, const Fault& fault) {
    std::vector<float> x = bf16_tensor(inputs, "x"), y;
    const std::vector<float> weight = bf16_tensor(inputs, "weight");
    const size_t width = weight.size();
    for (size_t first = 0; first < x.size(); first += width) {
        if (fault.is("mean_subtracted")) {
            float sum = 0;
            for (size_t i = first; i < first + width; ++i) sum += x[i];
            for (size_t i = first; i < first + width; ++i) x[i] -= sum / static_cast<float>(width);
        }
        const float root = norm_root(x, first, width, parsed.parameters.real("eps"), fault);
        for (size_t i = 0; i < width; ++i) {
            const float gain = fault.is("gain_plus_one") ? 1 + weight[i] : weight[i];
            float normed = x[first + i] * root;
            if (fault.is("rounded_before_gain")) normed = through_bf16(normed);
            y.push_back(gain * normed);
        }
    }
    if (fault.is("channel_100_of_row_1_stale")) y[width + 100] = y[100];
    touchstone::TensorMap outputs = outputs_of(parsed);
    put_f32(outputs, "unrounded", y);
    put_bf16(outputs, "y", y);
    return outputs;
}

/// Frequencies of the compress table or of the main one, in double until the end of each step.
inline std::vector<float> frequencies(size_t rope_dim, bool main, const Fault& fault) {
    if (fault.is("other_table")) main = !main;
    const double base = fault.is("base_50000") ? 50000 : main ? 10000 : 160000;
    std::vector<float> result;
    const auto pair_of_turns = [&](double turns) {
        return static_cast<double>(rope_dim) * std::log(65536 / (turns * 2 * 3.14159265358979323846)) /
               (2 * std::log(base));
    };
    const auto low = static_cast<float>(std::floor(pair_of_turns(32))),
               high = static_cast<float>(std::ceil(pair_of_turns(1)));
    for (size_t i = 0; i < rope_dim / 2; ++i) {
        const float power =
            static_cast<float>(std::pow(base, static_cast<double>(2 * i) / static_cast<double>(rope_dim)));
        float f = 1 / power;
        if (!main && !fault.is("without_yarn")) {
            const float ramp = std::clamp((static_cast<float>(i) - low) / (high - low), 0.0f, 1.0f);
            f = f / 16 * (1 - (1 - ramp)) + f * (1 - ramp);
        }
        result.push_back(f);
    }
    return result;
}

inline double angle(int64_t position, float frequency, const Fault& fault) {
    if (fault.is("position_plus_1")) ++position;
    if (fault.is("position_halved")) position /= 2;
    if (fault.is("position_always_0")) position = 0;
    if (fault.is("angle_in_double")) return static_cast<double>(position) * static_cast<double>(frequency);
    const float rounded = static_cast<float>(position) * frequency;
    return static_cast<double>(fault.is("angle_in_bf16") ? through_bf16(rounded) : rounded);
}

inline touchstone::TensorMap rope(const touchstone::ParsedCase& parsed, const touchstone::TensorMap& inputs,
                                  const Fault& fault) {
    const touchstone::Parameters& p = parsed.parameters;
    const auto head_dim = static_cast<size_t>(p["head_dim"]), rope_dim = static_cast<size_t>(p["rope_dim"]),
               heads = static_cast<size_t>(p["heads"]);
    const std::vector<float> table = frequencies(rope_dim, p.choice("table") == "main", fault);
    const bool forward = (p.choice("direction") == "forward") != fault.is("other_direction");
    std::vector<float> y = bf16_tensor(inputs, "x");
    const size_t offset = fault.is("leading_channels") ? 0 : head_dim - rope_dim;
    for (size_t head = 0; head < y.size() / head_dim; ++head) {
        const int64_t position = inputs.find("positions")->second.view<int64_t>()[head / heads];
        for (size_t i = 0; i < rope_dim / 2; ++i) {
            const size_t first = head * head_dim + offset;
            float& a = y[first + (fault.is("half_split") ? i : 2 * i)];
            float& b = y[first + (fault.is("half_split") ? i + rope_dim / 2 : 2 * i + 1)];
            const double turned = angle(position, table[i], fault);
            float c = static_cast<float>(std::cos(turned)), s = static_cast<float>(std::sin(turned));
            if (!forward) s = -s;
            if (fault.is("magnitude")) c *= 1.2772589f, s *= 1.2772589f;
            const float turned_a = a * c - b * s;
            b = a * s + b * c;
            a = turned_a;
        }
        if (fault.is("head_3_doubled") && head == 3)
            for (size_t i = 0; i < head_dim; ++i) y[head * head_dim + i] *= 2;
    }
    touchstone::TensorMap outputs = outputs_of(parsed);
    put_bf16(outputs, "y", y);
    return outputs;
}

}  // namespace foreign
