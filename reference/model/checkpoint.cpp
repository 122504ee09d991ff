#include "reference/model/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <set>
#include <type_traits>
#include <utility>

#include "reference/io/config_json.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view single_file = "model.safetensors";
constexpr std::string_view index_file = "model.safetensors.index.json";

bool is_shard_name(const std::string& name) {
    const bool plain = std::ranges::all_of(name, [](char c) { return c != '/' && c != '\\' && c != '\0'; });
    return plain && name.ends_with(".safetensors") && !name.starts_with('.');
}

std::string described(std::string_view type, const std::vector<int64_t>& shape) {
    return fmt::format("{} [{}]", type, fmt::join(shape, ", "));
}
std::string described(const TensorSpec& spec) {
    return described(safetensors_name(spec.type), spec.shape);
}

struct ForbiddenValues {
    int64_t count = 0;
    int64_t first = 0;
};

/// Elements whose bits under `mask` are all ones: what NaN (and infinity) are in every one of the formats.
template <class Bits>
ForbiddenValues with_all_ones(std::span<const std::byte> bytes, Bits mask) {
    const int64_t elements = std::ssize(bytes) / static_cast<int64_t>(sizeof(Bits));
    const auto is_forbidden = [&](int64_t i) {
        Bits bits;  // the file need not align it
        std::memcpy(&bits, bytes.data() + static_cast<size_t>(i) * sizeof(Bits), sizeof(Bits));
        return (bits & mask) == mask;
    };
    ForbiddenValues found;
    for (int64_t i = 0; i < elements; ++i) found.count += is_forbidden(i) ? 1 : 0;
    while (found.count > 0 && !is_forbidden(found.first)) ++found.first;
    return found;
}

ForbiddenValues forbidden_values(TensorType type, std::span<const std::byte> bytes) {
    switch (type) {
        case TensorType::f32: return with_all_ones<uint32_t>(bytes, 0x7F800000);
        case TensorType::bf16: return with_all_ones<uint16_t>(bytes, 0x7F80);
        case TensorType::f8_e4m3: return with_all_ones<uint8_t>(bytes, 0x7F);
        case TensorType::f8_e8m0: return with_all_ones<uint8_t>(bytes, 0xFF);
        case TensorType::i8_e2m1: return {};
    }
    std::abort();
}

}  // namespace

std::string_view name(CheckpointFault fault) {
    static constexpr std::string_view names[] = {"shard", "missing", "extra", "duplicate",
                                                 "type",  "shape",   "size",  "value"};
    return names[static_cast<size_t>(fault)];
}

ShardIndex parse_shard_index(std::string_view text, const std::string& source) {
    const JsonObject root = JsonObject::parse(text, source, {}, "the index of a sharded checkpoint");
    ShardIndex index;
    const JsonObject map = root.object("weight_map");
    for (const std::string& tensor : map.keys()) {
        const std::string file = map.string(tensor);
        if (!is_shard_name(file))
            map.refuse(tensor, "the name of a .safetensors file in the same folder, without a path");
        index.shard_of_tensor.emplace(tensor, file);
    }
    if (root.has("metadata") && root.object("metadata").has("total_size"))
        index.total_bytes =
            root.object("metadata").integer("total_size", 0, std::numeric_limits<int64_t>::max());
    return index;
}

Checkpoint::Checkpoint(const fs::path& folder) : folder_(folder) {
    std::error_code error;
    if (!fs::is_directory(folder, error))
        throw UserError({"there is no such folder", folder.string(),
                         "a folder with config.json and safetensors files", "check the path"});
    const std::string config_path = (folder / "config.json").string();
    set_config(load_config(config_path), config_path);
    const bool single = fs::exists(folder / single_file, error);
    const bool sharded = fs::exists(folder / index_file, error);
    if (single == sharded)
        throw UserError({fmt::format("{} {} and {}", single ? "both" : "neither", single_file, index_file),
                         folder.string(), "one of them",
                         single ? "move away the one that is not meant" : ""});
    if (single) {
        for (const auto& [tensor, where] : shard(single_file).tensors())
            shard_of_.emplace(tensor, std::string(single_file));
    } else {
        const std::string path = (folder / index_file).string();
        ShardIndex index = parse_shard_index(read_config_file(path), path);
        shard_of_ = std::move(index.shard_of_tensor);
        total_bytes_ = index.total_bytes;
    }
}

const SafetensorsFile& Checkpoint::shard(std::string_view file_name) const {
    const std::lock_guard lock(mutex_);
    const auto found = shards_.find(file_name);
    if (found != shards_.end()) return *found->second;
    auto file = std::make_unique<SafetensorsFile>(folder_ / file_name);
    return *shards_.emplace(std::string(file_name), std::move(file)).first->second;
}

/// The tensor where it is stored, its type and shape as specified.
const SafetensorsTensor& Checkpoint::stored(const TensorSpec& spec) const {
    const auto file_name = shard_of_.find(spec.name);
    if (file_name == shard_of_.end())
        throw UserError({fmt::format("the checkpoint has no tensor {}", spec.name), folder_.string(),
                         described(spec), "touchstone checkpoint verify lists all that is absent"});
    const SafetensorsFile& file = shard(file_name->second);
    const SafetensorsTensor& tensor = file.tensor(spec.name);
    if (tensor.type != safetensors_name(spec.type) || tensor.shape != spec.shape)
        throw UserError({fmt::format("{} is {}", spec.name, described(tensor.type, tensor.shape)),
                         file.path().string(), described(spec), ""});
    return tensor;
}

std::span<const std::byte> Checkpoint::stored_bytes(const TensorSpec& spec, size_t alignment) const {
    const std::span<const std::byte> bytes = stored(spec).bytes;
    if (reinterpret_cast<uintptr_t>(bytes.data()) % alignment == 0) return bytes;
    const std::lock_guard lock(mutex_);
    const auto copy = copies_.find(spec.name);
    if (copy != copies_.end()) return copy->second;
    return copies_.emplace(spec.name, std::vector(bytes.begin(), bytes.end())).first->second;
}

void Checkpoint::release_layer(int layer) const {
    for (const TensorSpec& spec : specs()) {
        if (spec.layer != layer) continue;
        const auto file_name = shard_of_.find(spec.name);
        if (file_name == shard_of_.end()) continue;
        const std::lock_guard lock(mutex_);
        const auto file = shards_.find(file_name->second);
        if (file == shards_.end()) continue;  // never used
        const auto tensor = file->second->tensors().find(spec.name);
        if (tensor != file->second->tensors().end()) file->second->release(tensor->second);
    }
}

/// One pass over a folder.
struct Checkpoint::Verification {
    const Checkpoint& checkpoint;
    const VerifyOptions& options;
    CheckpointReport report;
    std::map<const TensorSpec*, std::string> sound;      ///< and their files
    std::map<std::string, int64_t> absent_tensors;       ///< of shards that cannot be read
    std::map<std::string, std::string> unusable_shards;  ///< and why
    int64_t stored_bytes = 0;                            ///< of all tensors of all shards

    bool asked_for(const TensorSpec& spec) const { return !options.layer || spec.layer == *options.layer; }

    void problem(CheckpointFault fault, std::string subject, std::string what) {
        if (report.problem_count++ < options.most_problems)
            report.problems.push_back({fault, std::move(subject), std::move(what)});
    }

    /// A tensor that lies in a shard: is it the one that the index and the configuration mean?
    void look_at(const std::string& file, const std::string& tensor, const SafetensorsTensor& stored) {
        const auto indexed = checkpoint.shard_of_.find(tensor);
        const TensorSpec* known = checkpoint.find_spec(tensor);
        stored_bytes += std::ssize(stored.bytes);
        if (known != nullptr && !asked_for(*known)) return;
        if (known == nullptr)
            return problem(CheckpointFault::extra, quoted(tensor),
                           fmt::format("in {}, not in the configuration", file));
        if (indexed == checkpoint.shard_of_.end())
            return problem(CheckpointFault::extra, tensor, fmt::format("in {}, not in the index", file));
        if (indexed->second != file)
            return problem(CheckpointFault::duplicate, tensor,
                           fmt::format("in {}, and by the index in {}", file, indexed->second));
        const TensorSpec& spec = *known;
        const std::string is = described(stored.type, stored.shape);
        if (stored.type != safetensors_name(spec.type))
            return problem(CheckpointFault::type, tensor,
                           fmt::format("{} in {}, not {}", is, file, described(spec)));
        if (stored.shape != spec.shape)
            return problem(CheckpointFault::shape, tensor,
                           fmt::format("{} in {}, not {}", is, file, described(spec)));
        sound.emplace(&spec, file);
    }

    void look_into_shards() {
        std::set<std::string> files;
        for (const auto& [tensor, file] : checkpoint.shard_of_) files.insert(file);
        for (const std::string& file : files) {
            try {
                for (const auto& [tensor, stored] : checkpoint.shard(file).tensors())
                    look_at(file, tensor, stored);
            } catch (const UserError& error) {
                unusable_shards.emplace(file, error.parts().what);
            }
        }
    }

    /// Tensors that the configuration has and nothing was found for.
    void look_for_missing() {
        for (const TensorSpec& spec : checkpoint.specs()) {
            if (!asked_for(spec)) continue;
            ++report.expected_tensors;
            const auto indexed = checkpoint.shard_of_.find(spec.name);
            if (indexed == checkpoint.shard_of_.end()) {
                problem(CheckpointFault::missing, spec.name, described(spec));
                continue;
            }
            if (unusable_shards.contains(indexed->second)) {
                ++absent_tensors[indexed->second];
                continue;
            }
            if (!checkpoint.shard(indexed->second).tensors().contains(spec.name))
                problem(CheckpointFault::missing, spec.name,
                        fmt::format("by the index in {}, where it is not", indexed->second));
        }
        for (const auto& [file, why] : unusable_shards)
            if (absent_tensors[file] > 0 || !options.layer)
                problem(CheckpointFault::shard, file,
                        fmt::format("{}; {} tensors are missing", why, absent_tensors[file]));
        if (checkpoint.total_bytes_ && !options.layer && unusable_shards.empty() &&
            *checkpoint.total_bytes_ != stored_bytes)
            problem(CheckpointFault::size, std::string(index_file),
                    fmt::format("total_size is {}, the shards have {} bytes", *checkpoint.total_bytes_,
                                stored_bytes));
    }

    /// Reads the sound tensors of one shard after the other, and lets go of each.
    void look_at_values() {
        std::map<std::string_view, std::vector<const TensorSpec*>> by_file;
        int64_t total = 0, done = 0;
        for (const TensorSpec& spec : checkpoint.specs()) {
            const auto found = sound.find(&spec);
            if (found == sound.end() || spec.type == TensorType::i8_e2m1) continue;  // all codes are numbers
            by_file[found->second].push_back(&spec);
            total += spec.stored_bytes();
        }
        for (const auto& [file_name, specs] : by_file) {
            const SafetensorsFile& file = checkpoint.shard(file_name);
            constexpr size_t batch = 256;  // between two reports of progress
            for (size_t first = 0; first < specs.size(); first += batch) {
                const size_t count = std::min(batch, specs.size() - first);
                look_at_values_of(file, std::span(specs).subspan(first, count));
                for (size_t i = first; i < first + count; ++i) done += specs[i]->stored_bytes();
                if (options.progress) options.progress(done, total);
            }
        }
    }

    void look_at_values_of(const SafetensorsFile& file, std::span<const TensorSpec* const> specs) {
        const int64_t count = std::ssize(specs);
        std::vector<const SafetensorsTensor*> tensors;
        for (const TensorSpec* spec : specs) tensors.push_back(&file.tensor(spec->name));
        std::vector<ForbiddenValues> found(specs.size());
#pragma omp parallel for schedule(dynamic)
        for (int64_t i = 0; i < count; ++i) {
            const size_t at = static_cast<size_t>(i);
            found[at] = forbidden_values(specs[at]->type, tensors[at]->bytes);
            file.release(*tensors[at]);
        }
        for (size_t i = 0; i < specs.size(); ++i) {
            if (found[i].count == 0) continue;
            problem(CheckpointFault::value, specs[i]->name,
                    fmt::format("{} of {} elements of {} are no finite numbers, the first at index {}",
                                found[i].count, tensors[i]->elements(), safetensors_name(specs[i]->type),
                                found[i].first));
            sound.erase(specs[i]);
        }
    }
};

CheckpointReport Checkpoint::verify(const VerifyOptions& options) const {
    const int last_layer = std::ranges::max_element(specs(), {}, &TensorSpec::layer)->layer;
    if (options.layer && (*options.layer < 0 || *options.layer > last_layer))
        throw UserError({fmt::format("there is no layer {}", *options.layer), folder_.string(),
                         fmt::format("a layer from 0 to {} (draft stages last)", last_layer), ""});
    Verification verification{*this, options, {}, {}, {}, {}, 0};
    verification.look_into_shards();
    verification.look_for_missing();
    if (options.values) verification.look_at_values();
    CheckpointReport& report = verification.report;
    for (const auto& [spec, file] : verification.sound) {
        ++report.sound_tensors;
        report.sound_bytes += spec->stored_bytes();
    }
    return std::move(report);
}

void Checkpoint::require_complete() const {
    const CheckpointReport report = verify({.most_problems = 5});
    if (report.problem_count == 0) return;
    std::string list;
    for (const CheckpointProblem& problem : report.problems)
        list += fmt::format("\n    {} {}: {}", name(problem.fault), problem.subject, problem.what);
    throw UserError(
        {fmt::format("the checkpoint is not complete: {} problems, such as{}", report.problem_count, list),
         folder_.string(), fmt::format("the {} tensors of its configuration", report.expected_tensors),
         "touchstone checkpoint verify lists all"});
}

}  // namespace touchstone
