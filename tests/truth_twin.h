// A call of the bit-exact model followed in double: every layer of `truth` starts from the bit-exact model's
// streams and takes its choices, so what differs was made in that layer.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "reference/engram.h"
#include "reference/truth/model.h"
#include "tests/trace_map.h"

namespace touchstone {

inline truth::EngramData truth_engram(const ModelConfig& config) {
    truth::EngramData data;
    if (!config.engram) return data;
    std::vector<int32_t> all(static_cast<size_t>(config.vocab_size));
    std::iota(all.begin(), all.end(), 0);
    for (const int32_t id : TokenMap::without_tokenizer(config).compress(all))
        data.compressed_ids.push_back(id);
    for (const EngramLayerHash& layer : engram_hash(config).layers)
        data.hashes.push_back({layer.multipliers, layer.primes, layer.offsets});
    return data;
}

/// Of one tensor, over all layers.
struct TwinDifference {
    int64_t elements = 0, differing = 0;
    double of_rms = 0;  ///< largest difference, of its row's root mean square
};

class TruthTwin {
  public:
    TruthTwin(const ModelConfig& config, truth::Model model)
        : config_(config), model_(std::move(model)), state_(model_.start()) {}

    /// Runs the tokens at first_position .. as the call did that left `made`.
    void follow(const TraceMap& made, std::span<const int32_t> tokens, int64_t first_position,
                const std::vector<truth::LayerRows>& replay = {}) {
        truth::ForwardOptions options;
        options.replay = replay;
        options.trace = [&](const std::string& name, const truth::Matrix& value) {
            compare(made, name, value);
        };
        options.stream_in = [&](const std::string& name, truth::Stream& stream) {
            compare(made, name, stream.h);
            stream.h = matrix(*made.find(name), stream.h.cols());
            stream.pre = matrix(*made.find(name.substr(0, 4) + "pre_in"), stream.pre.cols());
        };
        for (int layer = 0; layer < config_.num_hidden_layers; ++layer) force(made, layer, options.forced);
        model_.forward(state_, {tokens.begin(), tokens.end()}, first_position, options);
    }

    const std::map<std::string, TwinDifference>& differences() const { return differences_; }
    /// Of them, e.g. "x_out".
    TwinDifference of(const std::string& name) const {
        const auto found = differences_.find(name);
        return found == differences_.end() ? TwinDifference{} : found->second;
    }
    /// Rows with another choice of experts, compressed rows or pool blocks.
    const std::vector<std::string>& choices_that_differ() const { return choices_; }
    int64_t choices_compared() const { return choices_compared_; }
    truth::State& state() { return state_; }

  private:
    static truth::Matrix matrix(const TraceMap::Tensor& tensor, Eigen::Index columns) {
        truth::Matrix result(std::ssize(tensor.numbers) / columns, columns);
        std::copy(tensor.numbers.begin(), tensor.numbers.end(), result.data());
        return result;
    }

    /// The numbers from 0 on in each row: padding is -1.
    static std::vector<std::vector<int64_t>> rows_of(const TraceMap::Tensor& tensor) {
        const int64_t width = tensor.shape.back();
        std::vector<std::vector<int64_t>> rows(static_cast<size_t>(tensor.shape.front()));
        for (size_t i = 0; i < tensor.numbers.size(); ++i)
            if (tensor.numbers[i] >= 0)
                rows[i / static_cast<size_t>(width)].push_back(static_cast<int64_t>(tensor.numbers[i]));
        return rows;
    }

    void force(const TraceMap& made, int layer, truth::ForcedChoices& forced) const {
        const std::string prefix = fmt::format("L{:02}.", layer);
        if (const auto* experts = made.find(prefix + "ffn.experts"))
            forced.experts[layer] = rows_of(*experts);
        if (const auto* selected = made.find(prefix + "attn.indexer.selected"))
            forced.positions[layer] = rows_of(*selected);
        const auto* blocks = made.find(prefix + "attn.candidate_pool.blocks");
        if (blocks == nullptr) return;
        for (const std::vector<int64_t>& kept : rows_of(*blocks)) {
            std::vector<bool> mask(static_cast<size_t>(config_.max_position_embeddings), false);
            for (const int64_t block : kept)
                for (int64_t j = 0; j < config_.candidate_block_size; ++j)
                    if (const size_t at = static_cast<size_t>(block * config_.candidate_block_size + j);
                        at < mask.size())
                        mask[at] = true;
            forced.pool[layer].push_back(mask);
        }
    }

    void compare(const TraceMap& made, const std::string& name, const truth::Matrix& truth) {
        const size_t dot = name.find('.');
        if (!name.starts_with("L") || dot == std::string::npos) return;
        const std::string layer = name.substr(0, dot + 1), what = name.substr(dot + 1);
        if (what == "ffn.experts") return compare_rows(made, layer + "ffn.experts", truth);
        if (what == "attn.index_selected") return compare_rows(made, layer + "attn.indexer.selected", truth);
        if (what == "attn.candidate_mask") return compare_pool(made, layer, truth);
        static const std::map<std::string, std::string> ours{
            {"attn.compressor_pooled", "attn.compressor.pooled"},
            {"attn.compressor_latent", "attn.compressor.latent"},
            {"attn.index_key", "attn.indexer.key"},
            {"attn.index_weights", "attn.indexer.weights"}};
        const auto renamed = ours.find(what);
        const auto* found = made.find(layer + (renamed == ours.end() ? what : renamed->second));
        if (found == nullptr || found->numbers.empty() || what == "pre_in") return;
        // Rows that were dropped later are in truth's trace and not in ours, and the other way round.
        const int64_t width = truth.cols(), rows = std::ssize(found->numbers) / width;
        const int64_t count = std::min<int64_t>(rows, truth.rows());
        TwinDifference& d = differences_[what];
        for (int64_t row = 0; row < count; ++row) {
            const double* a = found->numbers.data() + (rows - count + row) * width;
            double squares = 0, largest = 0;
            for (int64_t i = 0; i < width; ++i) {
                const double b = truth(truth.rows() - count + row, i);
                ++d.elements;
                d.differing += a[i] != b;
                // NaN counts as far away.
                largest = std::abs(a[i] - b) <= largest ? largest : std::abs(a[i] - b);
                squares += b * b;
            }
            if (largest == 0) continue;
            const double of_rms = largest / std::sqrt(squares / static_cast<double>(width));
            d.of_rms = of_rms <= d.of_rms ? d.of_rms : of_rms;
        }
    }

    void note_row(const std::string& name, size_t row, bool equal) {
        ++choices_compared_;
        if (!equal) choices_.push_back(fmt::format("{} row {}", name, row));
    }

    void compare_rows(const TraceMap& made, const std::string& name, const truth::Matrix& truth) {
        const auto* found = made.find(name);
        if (found == nullptr) return;
        const auto rows = rows_of(*found);
        for (size_t row = 0; row < rows.size(); ++row) {
            std::set<int64_t> theirs;
            for (Eigen::Index i = 0; i < truth.cols(); ++i)
                if (const double x = truth(static_cast<Eigen::Index>(row), i); x >= 0)
                    theirs.insert(static_cast<int64_t>(x));
            note_row(name, row, theirs == std::set<int64_t>(rows[row].begin(), rows[row].end()));
        }
    }

    void compare_pool(const TraceMap& made, const std::string& layer, const truth::Matrix& truth) {
        const auto rows = rows_of(*made.find(layer + "attn.candidate_pool.blocks"));
        for (size_t row = 0; row < rows.size(); ++row) {
            std::set<int64_t> theirs;
            for (Eigen::Index i = 0; i < truth.cols(); ++i)
                if (truth(static_cast<Eigen::Index>(row), i) != 0)
                    theirs.insert(i / config_.candidate_block_size);
            note_row(layer + "attn.candidate_pool", row,
                     theirs == std::set<int64_t>(rows[row].begin(), rows[row].end()));
        }
    }

    const ModelConfig& config_;
    truth::Model model_;
    truth::State state_;
    std::map<std::string, TwinDifference> differences_;
    std::vector<std::string> choices_;
    int64_t choices_compared_ = 0;
};

}  // namespace touchstone
