// What transformers' deepseek_v41 computed on a synthetic checkpoint of tiny
// (golden/parity/transformers_tiny).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "reference/io/safetensors.h"
#include "reference/model/model.h"
#include "reference/model/synthetic_tensors.h"
#include "tests/trace_map.h"

namespace touchstone::transformers_tiny {

inline const ModelConfig& config() {
    static const ModelConfig tiny = *find_model("tiny").config();
    return tiny;
}

/// The checkpoint.
inline const SyntheticTensors& tensors() {
    static const SyntheticTensors made(config(), 1);
    return made;
}

/// A matrix of numbers.
struct Numbers {
    int64_t rows = 0;
    std::vector<double> values;
    int64_t width() const { return std::ssize(values) / std::max<int64_t>(rows, 1); }
    std::span<const double> row(int64_t i) const {
        return std::span(values).subspan(static_cast<size_t>(i * width()), static_cast<size_t>(width()));
    }
};
using NumbersByName = std::map<std::string, Numbers>;

inline NumbersByName numbers_of(const TraceMap& trace) {
    NumbersByName numbers;
    for (const auto& [name, tensor] : trace.tensors()) numbers[name] = {tensor.shape.front(), tensor.numbers};
    return numbers;
}

/// One call. Names are those of our traces without the call.
struct RecordedCall {
    int64_t first_position = 0;
    std::vector<int32_t> tokens;
    std::vector<int64_t> rows;  ///< of the call, whose numbers are here; caches and logits may have others
    NumbersByName numbers;
    std::map<std::string, std::vector<std::set<int64_t>>> choices;  ///< ids of every row
};
using Episode = std::vector<RecordedCall>;

inline std::vector<std::set<int64_t>> id_sets(const Numbers& ids) {
    constexpr double none = 255;
    std::vector<std::set<int64_t>> sets(static_cast<size_t>(ids.rows));
    for (int64_t row = 0; row < ids.rows; ++row)
        for (const double id : ids.row(row))
            if (id != none) sets[static_cast<size_t>(row)].insert(static_cast<int64_t>(id));
    return sets;
}

/// Tokens of an episode go to its calls.
inline Episode episode_of(std::map<int64_t, RecordedCall> calls, const std::vector<double>& tokens) {
    Episode episode;
    for (auto call = calls.begin(); call != calls.end(); ++call) {
        const int64_t end = std::next(call) == calls.end() ? std::ssize(tokens) : std::next(call)->first;
        call->second.first_position = call->first;
        call->second.tokens.assign(tokens.begin() + call->first, tokens.begin() + end);
        episode.push_back(std::move(call->second));
    }
    return episode;
}

/// The episodes of `stem`.safetensors, by name: names there are EPISODE/position_P/Lnn.x_out and the like.
inline std::map<std::string, Episode> read_episodes(const std::string& stem) {
    const SafetensorsFile file(
        fmt::format("{}/parity/transformers_tiny/{}.safetensors", TOUCHSTONE_GOLDEN, stem));
    TraceMap all;
    for (const auto& [name, tensor] : file.tensors()) all.add(name, tensor.type, tensor.shape, tensor.bytes);
    const NumbersByName numbers = numbers_of(all);
    std::map<std::string, std::map<int64_t, RecordedCall>> calls;
    for (const auto& [name, value] : numbers) {
        if (name.ends_with("/tokens")) continue;
        const size_t call_at = name.find('/') + 1, tensor_at = name.find('/', call_at) + 1;
        const int64_t first = std::stoll(name.substr(call_at + std::string("position_").size()));
        RecordedCall& call = calls[name.substr(0, call_at - 1)][first];
        const std::string tensor = name.substr(tensor_at);
        if (tensor == "rows")
            call.rows.assign(value.values.begin(), value.values.end());
        else if (file.tensor(name).type == "U8")
            call.choices[tensor] = id_sets(value);
        else
            call.numbers[tensor] = value;
    }
    std::map<std::string, Episode> episodes;
    for (auto& [name, of_episode] : calls)
        episodes[name] = episode_of(std::move(of_episode), numbers.at(name + "/tokens").values);
    return episodes;
}

/// "L06." for layer 6.
inline std::string at_layer(int64_t layer) {
    return fmt::format("L{:02}.", layer);
}

/// Layer and tensor of a name such as "L06.x_out"; -1 for what belongs to no layer.
inline std::pair<int, std::string> parts(const std::string& name) {
    if (!name.starts_with('L') || name.find('.') != 3) return {-1, name};
    return {std::stoi(name.substr(1, 2)), name.substr(4)};
}

}  // namespace touchstone::transformers_tiny
