// touchstone checkpoint: makes synthetic checkpoints, verifies and shows any.
#include "reference/model/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "cli/arguments.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/table.h"
#include "reference/io/user_error.h"
#include "reference/model/model.h"
#include "reference/model/synthetic_checkpoint.h"

namespace touchstone::cli {

namespace {

using nlohmann::json;

constexpr int exit_passed = 0;
constexpr int exit_check_failed = 1;

/// A line that counts bytes on a terminal, at most ten times a second; elsewhere nothing.
class Progress {
  public:
    explicit Progress(const char* what) : what_(what), shown_(::isatty(STDERR_FILENO) != 0) {}
    ~Progress() {
        if (shown_) fmt::print(stderr, "\r\x1b[K");
    }
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;

    void operator()(int64_t done, int64_t total) {
        const auto now = std::chrono::steady_clock::now();
        if (!shown_ || now < next_) return;
        next_ = now + std::chrono::milliseconds(100);
        fmt::print(stderr, "\r{} {:.2f} of {:.2f} GB\x1b[K", what_, static_cast<double>(done) / 1e9,
                   static_cast<double>(total) / 1e9);
        std::fflush(stderr);
    }

  private:
    const char* what_;
    bool shown_;
    std::chrono::steady_clock::time_point next_;
};

const ModelConfig& config_of(const Model& model) {
    if (const ModelConfig* config = model.config()) return *config;
    throw UserError({fmt::format("model {} is a baseline: only its caches are described", model.name),
                     "--config", "a DeepSeek-V4.1 configuration", ""});
}

std::optional<int> parse_layer(const std::string& text) {
    if (text.empty()) return std::nullopt;
    int layer = -1;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), layer);
    if (error != std::errc{} || end != text.data() + text.size() || layer < 0)
        throw UserError({fmt::format("--layer is \"{}\"", text), "--layer", "a layer's number, from 0", ""});
    return layer;
}

uint64_t parse_seed(const std::string& text) {
    uint64_t seed = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
    if (text.empty() || error != std::errc{} || end != text.data() + text.size())
        throw UserError(
            {fmt::format("--seed is \"{}\"", text), "--seed", "an integer from 0 to 2^64 - 1", ""});
    return seed;
}

std::string layer_name(const ModelConfig& config, int layer) {
    if (layer < 0) return "-";
    if (layer < config.num_hidden_layers) return std::to_string(layer);
    return fmt::format("{} (mtp.{})", layer, layer - config.num_hidden_layers);
}

struct Presence {
    int64_t tensors = 0, present = 0, bytes = 0, present_bytes = 0;

    void add(const TensorSpec& spec, bool is_present) {
        ++tensors;
        bytes += spec.stored_bytes();
        if (!is_present) return;
        ++present;
        present_bytes += spec.stored_bytes();
    }
    std::vector<Cell> cells(std::string of) const {
        return {std::move(of), present, tensors, present_bytes, bytes};
    }
    json to_json() const {
        return {
            {"present", present}, {"tensors", tensors}, {"present_bytes", present_bytes}, {"bytes", bytes}};
    }
};

/// What is there of what the configuration has, by component, by layer, and together.
struct Inventory {
    std::map<WeightComponent, Presence> components;
    std::map<int, Presence> layers;
    Presence total;
};

Inventory inventory_of(const Checkpoint& checkpoint) {
    Inventory inventory;
    for_each_tensor(checkpoint.config(), [&](const TensorSpec& spec) {
        const bool present = checkpoint.has(spec.name);
        inventory.components[spec.component].add(spec, present);
        inventory.layers[spec.layer].add(spec, present);
        inventory.total.add(spec, present);
    });
    return inventory;
}

Table layers_table(const ModelConfig& config, const Inventory& inventory) {
    Table table({"layer", "present", "tensors", "bytes present", "bytes"});
    for (const auto& [layer, presence] : inventory.layers)
        table.add_row(presence.cells(layer < 0 ? "outside layers" : layer_name(config, layer)));
    return table;
}

void show_folder(const Checkpoint& checkpoint, const CheckpointShowOptions& options) {
    const Inventory inventory = inventory_of(checkpoint);
    const Table layers = layers_table(checkpoint.config(), inventory);
    if (options.output.csv) return write_result(layers.csv());
    if (options.output.json) {
        json object = {{"schema", "touchstone.checkpoint_show/1"},
                       {"folder", options.folder},
                       {"components", json::array()},
                       {"layers", json::array()},
                       {"total", inventory.total.to_json()},
                       {"assumptions", json::array()}};
        for (const auto& [component, presence] : inventory.components) {
            object["components"].push_back(presence.to_json());
            object["components"].back()["component"] = name(component);
        }
        for (const auto& [layer, presence] : inventory.layers) {
            object["layers"].push_back(presence.to_json());
            object["layers"].back()["layer"] = layer < 0 ? json(nullptr) : json(layer);
        }
        return write_result(to_text(object));
    }
    Table components({"component", "present", "tensors", "bytes present", "bytes"});
    for (const auto& [component, presence] : inventory.components)
        components.add_row(presence.cells(std::string(name(component))));
    components.add_row(inventory.total.cells("total"));
    write_result(fmt::format("{}: tensors that the configuration has, and those listed here\n\n{}\n{}",
                             options.folder, components.text(), layers.text()));
}

struct Statistics {
    float least = std::numeric_limits<float>::infinity();
    float greatest = -std::numeric_limits<float>::infinity();
    double sum_of_squares = 0;
    int64_t elements = 0;
    int64_t not_finite = 0;
    std::vector<float> first;

    void add(std::span<const float> values) {
        for (const float value : values) {
            ++elements;
            if (!std::isfinite(value)) {
                ++not_finite;
                continue;
            }
            least = std::min(least, value);
            greatest = std::max(greatest, value);
            sum_of_squares += double{value} * value;
        }
    }
    double rms() const {
        const int64_t finite = elements - not_finite;
        return finite == 0 ? 0 : std::sqrt(sum_of_squares / static_cast<double>(finite));
    }
};

Statistics statistics_of(const Checkpoint& checkpoint, const TensorSpec& spec) {
    constexpr int64_t piece = 1 << 20, shown = 8;
    Statistics statistics;
    const int64_t elements = spec.elements();
    for (int64_t start = 0; start < elements; start += piece)
        statistics.add(checkpoint.dequantised(spec.name, start, std::min(piece, elements - start)));
    statistics.first = checkpoint.dequantised(spec.name, 0, std::min(shown, elements));
    return statistics;
}

void show_tensor(const Checkpoint& checkpoint, const CheckpointShowOptions& options) {
    const TensorSpec& spec = checkpoint.spec(options.tensor);
    const Statistics statistics = statistics_of(checkpoint, spec);
    const bool scaled = spec.type == TensorType::f8_e4m3 || spec.type == TensorType::i8_e2m1;
    const bool any_finite = statistics.not_finite < statistics.elements;
    if (options.output.json)
        return write_result(to_text({{"schema", "touchstone.checkpoint_tensor/1"},
                                     {"folder", options.folder},
                                     {"tensor", spec.name},
                                     {"type", safetensors_name(spec.type)},
                                     {"shape", spec.shape},
                                     {"component", name(spec.component)},
                                     {"stored_bytes", spec.stored_bytes()},
                                     {"elements", statistics.elements},
                                     {"not_finite", statistics.not_finite},
                                     {"scaled", scaled},
                                     {"first", statistics.first},
                                     {"min", any_finite ? json(statistics.least) : json(nullptr)},
                                     {"max", any_finite ? json(statistics.greatest) : json(nullptr)},
                                     {"rms", statistics.rms()},
                                     {"assumptions", json::array()}}));
    Table table({"", spec.name});
    table.add_row({std::string("type"),
                   fmt::format("{} [{}]", safetensors_name(spec.type), fmt::join(spec.shape, ", "))});
    table.add_row({std::string("component"), std::string(name(spec.component))});
    table.add_row({std::string("stored bytes"), grouped(spec.stored_bytes())});
    table.add_row({std::string("elements"), grouped(statistics.elements)});
    table.add_row({std::string(scaled ? "first, times scale" : "first"),
                   fmt::format("{}", fmt::join(statistics.first, " "))});
    if (any_finite) {
        table.add_row({std::string("min"), fmt::format("{}", statistics.least)});
        table.add_row({std::string("max"), fmt::format("{}", statistics.greatest)});
        table.add_row({std::string("rms"), fmt::format("{:.6g}", statistics.rms())});
    }
    table.add_row({std::string("not finite"), grouped(statistics.not_finite)});
    write_result(options.output.csv ? table.csv() : table.text());
}

json to_json(const CheckpointReport& report, const CheckpointVerifyOptions& options) {
    json object = {{"schema", "touchstone.checkpoint_verify/1"},
                   {"folder", options.folder},
                   {"values_read", options.values},
                   {"expected_tensors", report.expected_tensors},
                   {"sound_tensors", report.sound_tensors},
                   {"sound_bytes", report.sound_bytes},
                   {"problem_count", report.problem_count},
                   {"problems", json::array()},
                   {"assumptions", json::array()}};
    for (const CheckpointProblem& problem : report.problems)
        object["problems"].push_back(
            {{"fault", name(problem.fault)}, {"subject", problem.subject}, {"what", problem.what}});
    return object;
}

std::string to_text(const CheckpointReport& report, const CheckpointVerifyOptions& options) {
    std::string text =
        fmt::format("{}: {} of {} tensors are sound, {} bytes; values {}\n", options.folder,
                    grouped(report.sound_tensors), grouped(report.expected_tensors),
                    grouped(report.sound_bytes), options.values ? "read" : "not read (--values)");
    for (const CheckpointProblem& problem : report.problems)
        text += fmt::format("  {}: {}: {}\n", name(problem.fault), problem.subject, problem.what);
    const int64_t more = report.problem_count - std::ssize(report.problems);
    if (more > 0) text += fmt::format("  and {} more problems\n", grouped(more));
    return text;
}

}  // namespace

void run_checkpoint_make(const CheckpointMakeOptions& options) {
    const Model model = find_model(options.config);
    Progress progress("written");
    const SyntheticCheckpointOptions make{.seed = parse_seed(options.seed),
                                          .layer = parse_layer(options.layer),
                                          .engram_tables = options.engram_tables,
                                          .shard_bytes = parse_bytes("--shard-bytes", options.shard_bytes),
                                          .progress = std::ref(progress)};
    const ModelConfig& config = config_of(model);
    if (make.layer && config.engram && !make.engram_tables &&
        std::ranges::count(config.engram->layer_ids, *make.layer) > 0)
        fmt::print(stderr,
                   "touchstone: the Engram table of layer {} is left out; --engram-tables writes it too\n",
                   *make.layer);
    const SyntheticCheckpoint written = write_synthetic_checkpoint(config, options.out, make);
    if (options.json)
        return write_result(cli::to_text(json{{"schema", "touchstone.checkpoint_make/1"},
                                              {"model", model.name},
                                              {"seed", make.seed},
                                              {"layer", make.layer ? json(*make.layer) : json(nullptr)},
                                              {"folder", options.out},
                                              {"files", written.files},
                                              {"tensors", written.tensors},
                                              {"tensor_bytes", written.bytes},
                                              {"assumptions", json::array()}}));
    write_result(fmt::format("{}: {} tensors, {} bytes, seed {}\n  {}\n", options.out,
                             grouped(written.tensors), grouped(written.bytes), make.seed,
                             fmt::join(written.files, "\n  ")));
}

int run_checkpoint_verify(const CheckpointVerifyOptions& options) {
    const Checkpoint checkpoint(options.folder);
    CheckpointReport report;
    {
        Progress progress("read");
        report = checkpoint.verify(
            {.layer = parse_layer(options.layer), .values = options.values, .progress = std::ref(progress)});
    }
    write_result(options.json ? cli::to_text(to_json(report, options)) : to_text(report, options));
    return report.problem_count == 0 ? exit_passed : exit_check_failed;
}

void run_checkpoint_show(const CheckpointShowOptions& options) {
    const Checkpoint checkpoint(options.folder);
    if (options.tensor.empty()) return show_folder(checkpoint, options);
    show_tensor(checkpoint, options);
}

}  // namespace touchstone::cli
