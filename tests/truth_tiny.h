// The tiny model of official_tiny in double, and what a run of it leaves.
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "reference/model/checkpoint.h"
#include "reference/truth/model.h"
#include "tests/official_tiny.h"

namespace touchstone::official_tiny {

inline const ModelConfig& config() {
    static const ModelConfig result = load_config((folder() / "config.json").string());
    return result;
}

/// Token map, primes and offsets as recorded, multipliers as README.md there lists them.
inline truth::EngramData engram_data() {
    const auto integers = [](const char* name) {
        const auto values = file("alternatives").values<int32_t>(name, "I32");
        return std::vector<int64_t>(values.begin(), values.end());
    };
    truth::EngramData data{integers("tables/token_map"), {}};
    const std::vector<int64_t> primes = integers("tables/engram.primes"),
                               offsets = integers("tables/engram.offsets");
    const int64_t columns = config().engram->columns();
    for (size_t layer = 0; layer < engram_multipliers.size(); ++layer) {
        const auto of_layer = [&](const std::vector<int64_t>& values) {
            const auto first = values.begin() + static_cast<int64_t>(layer) * columns;
            return std::vector<int64_t>(first, first + columns);
        };
        data.hashes.push_back({{engram_multipliers[layer].begin(), engram_multipliers[layer].end()},
                               of_layer(primes),
                               of_layer(offsets)});
    }
    return data;
}

/// The tokens at positions first .. first + count - 1 of every episode.
inline std::vector<int64_t> tokens(int64_t first, int64_t count) {
    const auto all = file("alternatives").values<int32_t>("tables/tokens", "I32");
    return {all.begin() + first, all.begin() + first + count};
}

/// The model with its recorded weights; they are read once.
inline truth::Model truth_model(truth::ModelOptions options) {
    static const Checkpoint checkpoint(folder());
    static const truth::Model model(config(), truth::dequantising_loader(checkpoint), engram_data(), {});
    return model.with(options);
}

/// Everything that a forward pass traces.
using Trace = std::map<std::string, truth::Matrix>;

inline truth::Matrix forward(const truth::Model& model, truth::State& state, int64_t first, int64_t count,
                             Trace& trace, truth::ForwardOptions options = {}) {
    options.trace = [&trace](const std::string& name, const truth::Matrix& value) { trace[name] = value; };
    return model.forward(state, tokens(first, count), first, options);
}

/// The numbers from 0 up in a row: a selection without its padding.
inline std::set<int64_t> selection(const double* row, int64_t count) {
    std::set<int64_t> result;
    for (int64_t i = 0; i < count; ++i)
        if (row[i] >= 0) result.insert(static_cast<int64_t>(row[i]));
    return result;
}

/// Rows of a recorded tensor [rows, ..].
struct RecordedRows {
    std::vector<double> values;
    int64_t rows = 0, width = 0;
    const double* row(int64_t i) const { return values.data() + i * width; }
};

/// Widened once for each tensor.
inline const RecordedRows& recorded_rows(const SafetensorsFile& from, const std::string& name) {
    static std::map<std::pair<const SafetensorsFile*, std::string>, RecordedRows> known;
    RecordedRows& result = known[{&from, name}];
    if (result.rows == 0) {
        result = {numbers(from, name), from.tensor(name).shape.front(), 0};
        result.width = std::ssize(result.values) / result.rows;
    }
    return result;
}

/// Largest difference of a row of `ours` from a recorded one, relative to the latter's root mean square.
inline double difference_over_rms(const truth::Matrix& ours, int64_t row, const double* theirs) {
    double difference = 0, squares = 0;
    for (int64_t i = 0; i < ours.cols(); ++i) {
        difference = std::max(difference, std::abs(ours(row, i) - theirs[i]));
        squares += theirs[i] * theirs[i];
    }
    return difference / std::sqrt(squares / static_cast<double>(ours.cols()));
}

}  // namespace touchstone::official_tiny
