// The bit-exact text model against the released inference code: every block started from its recorded input,
// prefill of 100 tokens and the 24 decode steps behind it (official_tiny). A random tiny model amplifies each
// flipped code, so runs are compared stage by stage, not end to end.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "reference/block.h"
#include "reference/engram.h"
#include "reference/model/checkpoint.h"
#include "reference/model/checkpoint_weights.h"
#include "reference/text_model.h"
#include "tests/official_tiny.h"
#include "tests/trace_map.h"

using namespace touchstone;

namespace {

const Checkpoint& checkpoint() {
    static const Checkpoint opened(official_tiny::folder());
    return opened;
}

/// Our name of a tensor that the recordings have, "" for what only they have.
std::string our_name(std::string name) {
    const auto starts = [&](std::string_view prefix) { return name.starts_with(prefix); };
    if (name.ends_with("_boundary") || name == "attn.list" || name == "attn.index_dot" ||
        name == "attn.index_scores_all")
        return "";
    if (name == "attn.q_h01" || name == "attn.o_h01") return name.substr(0, 6);
    if (name == "attn.candidate_mask") return "attn.candidate_pool.blocks";
    if (starts("attn.candidate_")) return "attn.candidate_pool." + name.substr(15);
    if (starts("attn.index_")) return "attn.indexer." + name.substr(11);
    if (starts("attn.compressor_")) return "attn.compressor." + name.substr(16);
    return name;
}

/// How far a tensor is from its recording.
struct Difference {
    int64_t elements = 0, differing = 0, beyond_one_unit = 0;
    double of_rms = 0;  ///< the largest difference, of the row's root mean square
};

/// Distance in units of bf16.
int64_t units(double a, double b) {
    const auto ordered = [](double x) {
        const uint16_t bits = bf16_from_float(static_cast<float>(x)).bits;
        return bits & 0x8000 ? -static_cast<int64_t>(bits & 0x7FFF) : static_cast<int64_t>(bits);
    };
    return std::abs(ordered(a) - ordered(b));
}

Difference compare(const std::vector<double>& ours, const std::vector<double>& theirs, int64_t rows) {
    REQUIRE(ours.size() == theirs.size());
    Difference found;
    found.elements = std::ssize(ours);
    const size_t width = ours.size() / static_cast<size_t>(std::max<int64_t>(rows, 1));
    for (size_t first = 0; first < ours.size(); first += width) {
        double squares = 0, largest = 0;
        for (size_t i = first; i < first + width; ++i) {
            if (ours[i] == theirs[i] || (std::isnan(ours[i]) && std::isnan(theirs[i]))) continue;
            ++found.differing;
            found.beyond_one_unit += units(ours[i], theirs[i]) > 1;
            largest = std::max(largest, std::abs(ours[i] - theirs[i]));
        }
        for (size_t i = first; i < first + width; ++i)
            if (std::isfinite(theirs[i])) squares += theirs[i] * theirs[i];
        if (largest > 0)
            found.of_rms = std::max(found.of_rms, largest / std::sqrt(squares / static_cast<double>(width)));
    }
    return found;
}

/// The recorded rows [first, first + count) of a tensor, without columns that `width` does not reach.
std::vector<double> recorded_rows(const SafetensorsFile& file, const std::string& name, int64_t first,
                                  int64_t count, int64_t width) {
    const std::vector<double> all = official_tiny::numbers(file, name);
    const int64_t stored = std::ssize(all) / file.tensor(name).shape.front();
    std::vector<double> rows;
    for (int64_t row = first; row < first + count; ++row)
        rows.insert(rows.end(), all.begin() + row * stored,
                    all.begin() + row * stored + std::min(width, stored));
    return rows;
}

/// A model's layers, each fed with recorded streams.
class RecordedRun {
  public:
    explicit RecordedRun(Arithmetic arithmetic, ReleasedBehaviour released = {})
        : config_(checkpoint().config()),
          weights_(checkpoint()),
          main_(main_rope_table(config_)),
          compress_(compress_rope_table(config_)),
          arithmetic_(arithmetic),
          released_(released),
          hash_(engram_hash(config_)),
          map_(TokenMap::without_tokenizer(config_)),
          state_(config_) {
        for (const LayerRole& role : layer_roles(config_))
            if (role.half != LayerHalf::draft) roles_.push_back(role);
    }

    /// Rows [row, row + count) of the recording `run`, the sequence's next positions. Calls check(layer,
    /// trace, row, count) after every layer that the recording has.
    template <class Check>
    void call(const SafetensorsFile& file, const SafetensorsFile& other, const std::string& run, int64_t row,
              int64_t count, const Check& check) {
        const auto tokens = official_tiny::file("alternatives").values<int32_t>("tables/tokens", "I32");
        const std::vector<int32_t> ids = map_.compress(
            std::span(tokens).subspan(static_cast<size_t>(state_.tokens()), static_cast<size_t>(count)));
        PublishedSelections published;
        for (const LayerRole& role : roles_) {
            CallRows rows{{{&state_, state_.tokens(), count}}};
            const std::string prefix = official_tiny::layer_tensor(run, role.layer, "");
            const bool here = official_tiny::has(file, prefix + "pre_in");
            const SafetensorsFile& source = here ? file : other;
            const std::string from =
                here ? prefix : official_tiny::layer_tensor("decode100_own", role.layer, "");
            const auto part = [&](const auto& all, const std::string& name) {
                const int64_t width = std::ssize(all) / source.tensor(name).shape.front();
                return std::vector(all.begin() + row * width, all.begin() + (row + count) * width);
            };
            const std::string x_in = from + (role.engram ? "engram.x_in" : "x_in");
            ResidualStreams streams{part(source.values<Bf16>(x_in, "BF16"), x_in),
                                    part(source.values<float>(from + "pre_in", "F32"), from + "pre_in")};
            std::vector<int64_t> row_ids;
            if (role.engram)
                row_ids = engram_row_ids(hash_, role.layer == config_.engram->layer_ids.front() ? 0 : 1,
                                         map_.pad(), state_.engram_history(), ids);
            TraceMap made;
            const AttentionContext context{config_, arithmetic_, released_, nullptr, main_, compress_};
            block(context, role, weights_.layer(role.layer), {}, row_ids, rows, streams, published,
                  Trace(&made));
            if (here) check(role.layer, made, row, count);
        }
        state_.advance(count, ids);
    }

    const ModelConfig& config() const { return config_; }

  private:
    ModelConfig config_;
    CheckpointWeights weights_;
    RopeTable main_, compress_;
    Arithmetic arithmetic_;
    ReleasedBehaviour released_;
    EngramHash hash_;
    TokenMap map_;
    SequenceState state_;
    std::vector<LayerRole> roles_;
};

/// Sums of differences over layers and rows, by tensor name.
using Differences = std::map<std::string, Difference>;

/// Compares everything that the recording has of a layer.
void compare_layer(const SafetensorsFile& file, const std::string& run, const ModelConfig& config, int layer,
                   const TraceMap& made, int64_t row, int64_t count, Differences& differences) {
    const std::string prefix = official_tiny::layer_tensor(run, layer, "");
    for (const auto& [full_name, tensor] : file.tensors()) {
        if (!full_name.starts_with(prefix)) continue;
        const std::string name = full_name.substr(prefix.size()), ours = our_name(name);
        if (ours.empty() || name == "x_in" || name == "pre_in" || name == "engram.x_in") continue;
        const bool per_group = name == "attn.compressor_latent" || name == "attn.compressor_pooled" ||
                               name == "attn.compressed_kv" || name == "attn.index_key";
        INFO(full_name);
        // At ratio 1 a token is a group: what is projected is what the norm sees.
        const bool pooled = name == "attn.compressor_kv" && made.find(ours) == nullptr;
        const TraceMap::Tensor* const found = made.find(pooled ? "attn.compressor.pooled" : ours);
        REQUIRE(found != nullptr);
        std::vector<double> values = found->numbers;
        int64_t first = row, rows = count;
        if (per_group) {  // decode files hold the emitted groups alone, one after another
            const int64_t ratio = config.compress_ratios[static_cast<size_t>(layer)];
            first = row / ratio;
            rows = found->shape.front();
            if (rows == 0) continue;
        }
        if (name.ends_with("_h01")) {  // two heads of all
            const int64_t heads = config.num_attention_heads, dim = config.head_dim;
            std::vector<double> two;
            for (int64_t r = 0; r < count; ++r)
                two.insert(two.end(), values.begin() + r * heads * dim,
                           values.begin() + (r * heads + 2) * dim);
            values = std::move(two);
        }
        int64_t width = std::ssize(values) / std::max<int64_t>(rows, 1);
        if (name == "attn.candidate_mask") {
            const int64_t columns = made.find("attn.indexer.scores")->shape.back();
            std::vector<double> mask(static_cast<size_t>(rows * columns), 0.0);
            for (int64_t r = 0; r < rows; ++r)
                for (int64_t i = 0; i < width; ++i)
                    for (int64_t j = 0; j < config.candidate_block_size; ++j) {
                        const double blk = values[static_cast<size_t>(r * width + i)];
                        const int64_t column = static_cast<int64_t>(blk) * config.candidate_block_size + j;
                        if (blk >= 0 && column < columns) mask[static_cast<size_t>(r * columns + column)] = 1;
                    }
            values = std::move(mask);
            width = columns;
        }
        std::vector<double> theirs = recorded_rows(file, full_name, first, rows, width);
        // A selection narrower than the list (few rows visible) is padded with -1 on our side only.
        if (const int64_t their_width = std::ssize(theirs) / rows; their_width < width) {
            std::vector<double> wide(static_cast<size_t>(rows * width), -1.0);
            for (int64_t r = 0; r < rows; ++r)
                std::copy_n(theirs.begin() + r * their_width, their_width, wide.begin() + r * width);
            theirs = std::move(wide);
        }
        const Difference d = compare(values, theirs, rows);
        Difference& sum = differences[name];
        sum.elements += d.elements;
        sum.differing += d.differing;
        sum.beyond_one_unit += d.beyond_one_unit;
        sum.of_rms = std::max(sum.of_rms, d.of_rms);
    }
}

void show(const char* title, const Differences& differences) {
    std::printf("%s\n", title);
    for (const auto& [name, d] : differences)
        std::printf("  %-32s %8ld of %8ld differ, %6ld beyond one unit, %.1e of rms\n", name.c_str(),
                    static_cast<long>(d.differing), static_cast<long>(d.elements),
                    static_cast<long>(d.beyond_one_unit), d.of_rms);
}

}  // namespace

TEST_CASE(
    "text model: every block gives the released code's results (prefill of 100 tokens, 24 decode steps)") {
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper}) {
        RecordedRun run(arithmetic);
        const SafetensorsFile& prefill = official_tiny::file("prefill100");
        const SafetensorsFile& decode = official_tiny::file("decode100_own");
        Differences prefilled, decoded;
        run.call(prefill, prefill, "prefill100", 0, 100,
                 [&](int layer, const TraceMap& made, int64_t row, int64_t count) {
                     compare_layer(prefill, "prefill100", run.config(), layer, made, row, count, prefilled);
                 });
        for (int64_t step = 0; step < 24; ++step)
            run.call(decode, decode, "decode100_own", step, 1,
                     [&](int layer, const TraceMap& made, int64_t row, int64_t count) {
                         compare_layer(decode, "decode100_own", run.config(), layer, made, row, count,
                                       decoded);
                     });
        show(fmt::format("{}, prefill", arithmetic_name(arithmetic)).c_str(), prefilled);
        show(fmt::format("{}, decode", arithmetic_name(arithmetic)).c_str(), decoded);
    }
}
