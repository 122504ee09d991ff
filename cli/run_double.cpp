// touchstone run in truth and ideal: the same model in double.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "cli/run.h"
#include "reference/engram.h"
#include "reference/io/user_error.h"
#include "reference/truth/model.h"

namespace touchstone::cli {

namespace {

truth::EngramData engram_data(const ModelConfig& config) {
    truth::EngramData data;
    if (!config.engram) return data;
    std::vector<int32_t> every_token(static_cast<size_t>(config.vocab_size));
    for (size_t i = 0; i < every_token.size(); ++i) every_token[i] = static_cast<int32_t>(i);
    const std::vector<int32_t> compressed = TokenMap::without_tokenizer(config).compress(every_token);
    data.compressed_ids.assign(compressed.begin(), compressed.end());
    for (const EngramLayerHash& layer : engram_hash(config).layers)
        data.hashes.push_back({layer.multipliers, layer.primes, layer.offsets});
    return data;
}

/// Lists of a call's rows, where every row of it has one.
void take_rows(const std::map<int, std::map<int64_t, std::vector<int32_t>>>& from, int64_t first,
               int64_t count, std::map<int, std::vector<std::vector<int64_t>>>& to) {
    for (const auto& [layer, by_position] : from) {
        std::vector<std::vector<int64_t>> rows;
        for (int64_t position = first; position < first + count; ++position)
            if (const auto found = by_position.find(position); found != by_position.end())
                rows.emplace_back(found->second.begin(), found->second.end());
        if (std::ssize(rows) == count) to.emplace(layer, std::move(rows));
    }
}

/// Our names of what the double model calls as the recordings of the released code do.
constexpr std::pair<std::string_view, std::string_view> renamed[]{
    {"attn.index_", "attn.indexer."},
    {"attn.compressor_", "attn.compressor."},
    {"attn.candidate_block_scores", "attn.candidate_pool.block_scores"},
    {"attn.candidate_mask", "attn.candidate_pool.blocks"},
};
/// Of the recordings alone: parts of what is traced whole.
constexpr std::string_view left_out[]{"attn.q_h01", "attn.o_h01", "attn.index_dot", "main_hidden"};

/// The kept blocks of each row's pool, ascending, then -1.
truth::Matrix pool_blocks(const truth::Matrix& mask, const ModelConfig& config) {
    truth::Matrix blocks = truth::Matrix::Constant(mask.rows(), config.candidate_topk_blocks, -1);
    for (Eigen::Index row = 0; row < mask.rows(); ++row) {
        Eigen::Index kept = 0;
        for (Eigen::Index column = 0; column < mask.cols(); column += config.candidate_block_size)
            if (mask(row, column) != 0)
                blocks(row, kept++) = static_cast<double>(column / config.candidate_block_size);
    }
    return blocks;
}

using ForcedLists = std::vector<std::vector<int64_t>>;

const ForcedLists* forced_lists(const truth::ForcedChoices& forced, int layer) {
    const auto found = forced.positions.find(layer);
    return found == forced.positions.end() ? nullptr : &found->second;
}

/// Ids of each row, -1 behind them, as integers: what --force-choices reads. The double model traces what it
/// would have chosen; where rows are forced, they are what it took.
void trace_choices(TraceFile& trace, const std::string& name, const truth::Matrix& chosen, int64_t width,
                   const ForcedLists* forced) {
    std::vector<int32_t> ids(static_cast<size_t>(chosen.rows() * width), -1);
    for (Eigen::Index row = 0; row < chosen.rows(); ++row) {
        const auto out = ids.begin() + row * width;
        if (forced != nullptr)
            std::ranges::copy((*forced)[static_cast<size_t>(row)], out);
        else
            std::ranges::copy(chosen.row(row), out);
    }
    trace.add(name, "I32", {chosen.rows(), width}, std::as_bytes(std::span(ids)));
}

/// Writes a tensor of the double model under the name that the bit-exact model gives it.
void trace_as_ours(TraceFile& trace, int64_t first_position, const ModelConfig& config,
                   const truth::ForcedChoices& forced, const std::string& name, const truth::Matrix& value) {
    const size_t dot = name.find('.');
    std::string tensor = name.starts_with('L') ? name.substr(dot + 1) : name;
    if (std::ranges::find(left_out, tensor) != std::end(left_out)) return;
    // Layers inside the pool have their scores before and after its mask; ours are those before.
    const int layer = name.starts_with('L') ? std::stoi(name.substr(1, dot - 1)) : -1;
    const bool restricted =
        layer >= 0 && layer_roles(config)[static_cast<size_t>(layer)].pool == PoolRole::restricted;
    if (tensor == "attn.index_scores" && restricted) return;
    if (tensor == "attn.index_scores_all") tensor = "attn.index_scores";
    const bool mask = tensor == "attn.candidate_mask";
    for (const auto& [theirs, ours] : renamed)
        if (tensor.starts_with(theirs)) {
            tensor.replace(0, theirs.size(), ours);
            break;
        }
    const truth::Matrix stored = mask ? pool_blocks(value, config) : value;
    const std::string full_name =
        call_prefix(first_position) + (layer < 0 ? "" : name.substr(0, dot + 1)) + tensor;
    if (tensor == "attn.indexer.selected")
        return trace_choices(trace, full_name, value, config.index_topk, forced_lists(forced, layer));
    if (mask || tensor == "ffn.experts")
        return trace_choices(trace, full_name, stored, stored.cols(), nullptr);
    trace.add(full_name, "F64", {stored.rows(), stored.cols()},
              std::as_bytes(std::span(stored.data(), static_cast<size_t>(stored.size()))));
}

class DoubleRunner final : public Runner {
  public:
    DoubleRunner(std::shared_ptr<const truth::Model> model, ModelConfig config, const RunSettings& settings,
                 truth::State state)
        : model_(std::move(model)),
          config_(std::move(config)),
          settings_(settings),
          state_(std::move(state)) {}

    int64_t tokens() const override { return tokens_; }

    std::vector<double> prefill(std::span<const int32_t> tokens, ReplayMode mode, bool traced) override {
        const int64_t first = tokens_, count = std::ssize(tokens);
        truth::ForwardOptions options;
        for (const LayerRange& range : replay_ranges(config_, mode, settings_.reading, first + count))
            options.replay.push_back({range.query_from, range.window_from});
        if (settings_.forced != nullptr) {
            require_forced_choices(*settings_.forced, config_, first, count);
            take_rows(settings_.forced->experts, first, count, options.forced.experts);
            take_rows(settings_.forced->selected, first, count, options.forced.positions);
        }
        if (traced && settings_.trace != nullptr) {
            settings_.trace->add(call_prefix(first) + "tokens", "I32", {count}, std::as_bytes(tokens));
            options.trace = [&](const std::string& name, const truth::Matrix& value) {
                trace_as_ours(*settings_.trace, first, config_, options.forced, name, value);
            };
        }
        const truth::Matrix logits =
            model_->forward(state_, std::vector<int64_t>(tokens.begin(), tokens.end()), first, options);
        tokens_ += count;
        const Eigen::Index last = logits.rows() - 1;
        return {logits.row(last).begin(), logits.row(last).end()};
    }

    std::vector<double> prefill_after_hit(std::span<const int32_t>, int64_t, int64_t) override {
        throw UserError({"a prefix hit in double", "--hit", "exact, hopper or released_hopper", ""});
    }

    std::unique_ptr<Runner> fork() const override { return std::make_unique<DoubleRunner>(*this); }
    std::optional<int64_t> state_bytes() const override { return std::nullopt; }
    void save(const std::string&) const override {
        throw UserError({"this arithmetic keeps its state in double", "--save",
                         "exact, hopper or released_hopper: their state is packed", ""});
    }

  private:
    std::shared_ptr<const truth::Model> model_;
    ModelConfig config_;
    RunSettings settings_;
    truth::State state_;
    int64_t tokens_ = 0;
};

}  // namespace

std::unique_ptr<Runner> double_runner(const TensorSource& source, bool rounds, const RunSettings& settings) {
    truth::ModelOptions options;
    options.ledger = rounds ? truth::Ledger::released() : truth::Ledger::none();
    if (settings.released.stale_index_keys) options.index_keys = truth::IndexKeys::released_pointer;
    if (settings.released.masked_rows_attended)
        options.masked_positions = truth::MaskedPositions::released_attended;
    auto model = std::make_shared<const truth::Model>(source.config(), truth::dequantising_loader(source),
                                                      engram_data(source.config()), options);
    truth::State state = model->start();
    return std::make_unique<DoubleRunner>(std::move(model), source.config(), settings, std::move(state));
}

}  // namespace touchstone::cli
