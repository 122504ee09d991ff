// The bit-exact text model against the released inference code: every block started from its recorded input,
// prefill of 100 tokens and the 24 decode steps behind it (official_tiny). A random tiny model amplifies each
// flipped code, so runs are compared stage by stage, not end to end.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "reference/block.h"
#include "reference/engram.h"
#include "reference/layout/cache_layout.h"
#include "reference/model/checkpoint.h"
#include "reference/model/checkpoint_weights.h"
#include "reference/rms_norm.h"
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
    if (name.ends_with("_boundary") || name == "attn.list" || name == "attn.index_dot") return "";
    if (name == "attn.q_h01" || name == "attn.o_h01") return name.substr(0, 6);
    if (name == "attn.candidate_mask") return "attn.candidate_pool.blocks";
    if (name == "attn.index_scores_all") return "attn.indexer.scores";
    if (starts("attn.candidate_")) return "attn.candidate_pool." + name.substr(15);
    if (starts("attn.index_")) return "attn.indexer." + name.substr(11);
    if (starts("attn.compressor_")) return "attn.compressor." + name.substr(16);
    return name;
}

/// How far a tensor may be from its recording. Every block starts from recorded streams, so nothing
/// accumulates over layers.
struct Limit {
    double share;             ///< of elements that may differ
    double of_rms;            ///< largest difference, of the row's root mean square
    double rows_beyond_1e_5;  ///< share of rows whose largest difference is above 1e-5 of their rms
};

/// Choices, codes, and what nothing but exactly summed products lies before.
const std::set<std::string> equal_in_all{"attn.candidate_block_scores",
                                         "attn.candidate_mask",
                                         "attn.compressed_kv",
                                         "attn.index_key",
                                         "attn.index_query",
                                         "attn.index_scores",
                                         "attn.index_scores_all",
                                         "attn.index_selected",
                                         "attn.index_weights",
                                         "attn.q_h01",
                                         "attn.window_kv",
                                         "engram.row_ids",
                                         "engram.rows",
                                         "ffn.experts"};
const std::set<std::string> equal_in_exact{"attn.qr", "engram.kv"};

/// bf16 tensors: another order of sums moves an element over a rounding boundary now and then, by one unit,
/// at most 2^-7 of an element that may be four times the rms. attn.out and the experts' results stand behind
/// fp8 activations: one such element may take another code, a step of 2^-3 of it, and that spreads over a row
/// of outputs. fp32 tensors have 1e-5, and what such an element leaves in its own row.
Limit limit_of(Arithmetic arithmetic, const std::string& name, const std::string& type) {
    if (equal_in_all.contains(name)) return {0, 0, 0};
    if (arithmetic == Arithmetic::exact && equal_in_exact.contains(name)) return {0, 0, 0};
    const bool behind_codes = name == "attn.out" || name == "ffn.out" || name == "ffn.shared_out";
    const bool widened = name == "attn.compressor_kv";  // bf16 at ratio 1, fp32 above
    if (name.starts_with("logits")) return {1, 1e-5, 0};
    if (type == "BF16" && !widened) return {0.01, behind_codes ? 0.1 : 0x1p-5, 1};
    const bool behind_attention =
        name.starts_with("hc_ffn.") || name.starts_with("ffn.") || name == "pre_out";
    return {1, behind_attention ? 5e-3 : 1e-3, behind_attention ? 0.04 : 0.02};
}

/// How far a tensor is from its recording.
struct Difference {
    std::string type;
    int64_t elements = 0, differing = 0, beyond_one_unit = 0, rows = 0, rows_beyond_1e_5 = 0;
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
    found.rows = rows;
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
        if (largest == 0) continue;
        const double of_rms = largest / std::sqrt(squares / static_cast<double>(width));
        found.rows_beyond_1e_5 += of_rms > 1e-5;
        found.of_rms = std::max(found.of_rms, of_rms);
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

/// Sums of differences over layers and rows, by tensor name, and which tensors of the file were compared.
struct Differences {
    std::map<std::string, Difference> of;
    std::set<std::string> compared;

    void add(const std::string& full_name, const std::string& name, const std::string& type,
             const Difference& d) {
        compared.insert(full_name);
        Difference& sum = of[name];
        sum.type = type;
        sum.elements += d.elements;
        sum.differing += d.differing;
        sum.beyond_one_unit += d.beyond_one_unit;
        sum.rows += d.rows;
        sum.rows_beyond_1e_5 += d.rows_beyond_1e_5;
        sum.of_rms = std::max(sum.of_rms, d.of_rms);
    }
};

/// Index queries as their codes say: the recording has them after Q4i.
std::vector<double> through_q4i(const std::vector<double>& queries, const ModelConfig& config) {
    KvCache coded(storage_format({"", "", config}, "fp4").index_key, Quantizer::q4i);
    std::vector<Bf16> rows;
    for (const double x : queries) rows.push_back(bf16_from_float(static_cast<float>(x)));
    coded.append(rows);
    std::vector<double> result;
    std::vector<float> row(static_cast<size_t>(config.index_head_dim));
    for (int64_t i = 0; i < coded.rows(); ++i) {
        coded.read(i, row);
        result.insert(result.end(), row.begin(), row.end());
    }
    return result;
}

/// Compares everything that the recording has of a layer.
void compare_layer(const SafetensorsFile& file, const std::string& run, const ModelConfig& config, int layer,
                   const TraceMap& made, int64_t row, int64_t count, Differences& differences) {
    const std::string prefix = official_tiny::layer_tensor(run, layer, "");
    for (const auto& entry : file.tensors()) {
        const std::string& full_name = entry.first;
        const SafetensorsTensor& tensor = entry.second;
        if (!full_name.starts_with(prefix)) continue;
        const std::string name = full_name.substr(prefix.size()), ours = our_name(name);
        // Engram's result is recorded as the layer's x_in; elsewhere x_in is what we start from.
        const bool given = name == "pre_in" || name == "engram.x_in" ||
                           (name == "x_in" && !official_tiny::has(file, prefix + "engram.x_in"));
        if (ours.empty() || given) continue;
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
        if (name == "attn.index_query") values = through_q4i(values, config);
        int64_t width = std::ssize(values) / std::max<int64_t>(rows, 1);
        if (name == "attn.index_scores" && official_tiny::has(file, prefix + "attn.index_scores_all")) {
            const std::vector<double> mask = recorded_rows(
                file,
                official_tiny::layer_tensor(run, static_cast<int>(config.candidate_source_layer_id),
                                            "attn.candidate_mask"),
                first, rows, width);
            for (size_t i = 0; i < values.size(); ++i)
                if (mask[i] == 0) values[i] = -std::numeric_limits<double>::infinity();
        }
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
        differences.add(full_name, name, tensor.type, compare(values, theirs, rows));
    }
}

/// The head, from the recorded streams behind the last layer.
void compare_head(const SafetensorsFile& file, const std::string& run, const ModelConfig& config,
                  Arithmetic arithmetic, Differences& differences) {
    const std::string last = official_tiny::layer_tensor(run, 9, "");
    const auto streams = file.values<Bf16>(last + "x_out", "BF16");
    const auto pre = file.values<float>(last + "pre_out", "F32");
    const int64_t rows = std::ssize(pre) / config.hc_mult, width = config.hidden_size;
    const CheckpointWeights weights(checkpoint());
    std::vector<Bf16> collapsed(static_cast<size_t>(rows * width)), normed(collapsed.size());
    collapse(streams, rows, pre, collapsed);
    rms_norm(collapsed, rows, weights.final_norm(), static_cast<float>(config.rms_norm_eps),
             std::span<Bf16>(normed));
    std::vector<float> logits(static_cast<size_t>(rows * config.vocab_size));
    linear_bf16(arithmetic, SumOperator::lm_head, normed, rows, weights.head(), std::span<float>(logits));

    const std::vector<double> ours(logits.begin(), logits.end());
    std::vector<double> ours_normed;
    for (const Bf16 x : normed) ours_normed.push_back(static_cast<double>(to_float(x)));
    const auto add = [&](const std::string& name, const std::vector<double>& values, int64_t recorded) {
        const std::string full_name = run + "/" + name;
        if (!official_tiny::has(file, full_name)) return;
        INFO(full_name);
        const std::vector<double> last_rows(values.end() - std::ssize(values) / rows * recorded,
                                            values.end());
        differences.add(full_name, name, file.tensor(full_name).type,
                        compare(last_rows, official_tiny::numbers(file, full_name), recorded));
    };
    add("final.normed", ours_normed, rows);
    add("logits_all", ours, rows);
    add("logits", ours, run.starts_with("prefill") ? 1 : rows);
}

/// Every tensor within its limit; `golden` of them where golden/parity is read, `full` in the full
/// recordings.
void check(const std::string& run, Arithmetic arithmetic, const Differences& differences, int64_t golden,
           int64_t full) {
    const bool all = official_tiny::has(official_tiny::file("prefill100"), "prefill100/L00.attn.list");
    INFO(run << ", " << arithmetic_name(arithmetic));
    CHECK(std::ssize(differences.compared) == (all ? full : golden));
    for (const auto& [name, d] : differences.of) {
        const Limit limit = limit_of(arithmetic, name, d.type);
        const std::string shown = fmt::format(
            "{}: {} of {} differ, {} beyond one unit of bf16, by {:.1e} of the rms; {} of {} rows beyond "
            "1e-5",
            name, d.differing, d.elements, d.beyond_one_unit, d.of_rms, d.rows_beyond_1e_5, d.rows);
        INFO(shown);
        CHECK(d.elements > 0);
        CHECK(static_cast<double>(d.differing) <= limit.share * static_cast<double>(d.elements));
        CHECK(d.of_rms <= limit.of_rms);
        CHECK(static_cast<double>(d.rows_beyond_1e_5) <=
              limit.rows_beyond_1e_5 * static_cast<double>(d.rows));
    }
}

/// Prefill of 100 tokens and 24 steps of `steps`; what differs in each.
std::pair<Differences, Differences> replayed(Arithmetic arithmetic, ReleasedBehaviour released,
                                             const std::string& steps) {
    RecordedRun run(arithmetic, released);
    const SafetensorsFile& prefill = official_tiny::file("prefill100");
    const SafetensorsFile& decode = official_tiny::file(steps);
    std::pair<Differences, Differences> found;
    run.call(prefill, prefill, "prefill100", 0, 100,
             [&](int layer, const TraceMap& made, int64_t row, int64_t count) {
                 compare_layer(prefill, "prefill100", run.config(), layer, made, row, count, found.first);
             });
    for (int64_t step = 0; step < 24; ++step)
        run.call(decode, official_tiny::file("decode100_own"), steps, step, 1,
                 [&](int layer, const TraceMap& made, int64_t row, int64_t count) {
                     compare_layer(decode, steps, run.config(), layer, made, row, count, found.second);
                 });
    compare_head(prefill, "prefill100", run.config(), arithmetic, found.first);
    compare_head(decode, steps, run.config(), arithmetic, found.second);
    return found;
}

}  // namespace

TEST_CASE(
    "text model: every block gives the released code's results (prefill of 100 tokens, 24 decode steps)") {
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper}) {
        const auto [prefilled, decoded] = replayed(arithmetic, {}, "decode100_own");
        check("prefill100", arithmetic, prefilled, 220, 300);
        check("decode100_own", arithmetic, decoded, 220, 269);
    }
}

TEST_CASE("text model: stale index keys give what the released code's decode steps select") {
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper}) {
        const auto [prefilled, decoded] = replayed(arithmetic, {.stale_index_keys = true}, "decode100_stale");
        check("decode100_stale", arithmetic, decoded, 149, 212);
    }
}

TEST_CASE("text model: own index keys do not give the stale recording (even positions of ratio-2 sources)") {
    const auto [prefilled, decoded] = replayed(Arithmetic::exact, {}, "decode100_stale");
    CHECK(decoded.of.at("attn.index_scores").differing > 0);
    CHECK(decoded.of.at("attn.index_selected").differing > 0);
    CHECK(decoded.of.at("attn.index_key").differing == 0);
}
