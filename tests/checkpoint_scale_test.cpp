// The released checkpoint at its real size: 510 GB in 48 files, which are holes but for their headers.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/model/checkpoint.h"
#include "reference/model/model.h"
#include "reference/model/synthetic_checkpoint.h"

using namespace touchstone;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

/// The shards of the release (spec/text_model 21), by what they hold.
std::string shard_of(const TensorSpec& tensor) {
    const auto file = [](int number) { return fmt::format("model-{:05}-of-00048.safetensors", number); };
    if (tensor.name.find(".engram.") != std::string::npos) return file(tensor.layer == 1 ? 47 : 48);
    if (tensor.layer >= 40) return file(44 + tensor.layer - 40);
    if (tensor.layer >= 0) return file(3 + tensor.layer);
    if (tensor.component == WeightComponent::vision) return file(1);
    return file(tensor.component == WeightComponent::embedding ? 2 : 43);
}

/// A file with these tensors, whose bytes are a hole.
void write_sparse(const fs::path& path, const std::vector<TensorSpec>& tensors) {
    json header;
    int64_t offset = 0;
    for (const TensorSpec& tensor : tensors) {
        header[tensor.name] = {{"dtype", safetensors_name(tensor.type)},
                               {"shape", tensor.shape},
                               {"data_offsets", {offset, offset + tensor.stored_bytes()}}};
        offset += tensor.stored_bytes();
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    std::string length;
    for (size_t i = 0; i < 8; ++i) length += static_cast<char>(text.size() >> (8 * i) & 0xFF);
    std::ofstream(path, std::ios::binary) << length << text;
    fs::resize_file(path, 8 + text.size() + static_cast<std::uintmax_t>(offset));
}

int64_t peak_memory_bytes() {
    struct rusage usage {};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_maxrss * 1024;
}

struct ScratchFolder {
    fs::path path = fs::temp_directory_path() / fmt::format("touchstone_checkpoint_scale_{}", getpid());
    ScratchFolder() { fs::create_directories(path); }
    ~ScratchFolder() { fs::remove_all(path); }
};

}  // namespace

TEST_CASE("checkpoint: the released one's 96,085 tensors in 48 files of 510 GB open in little memory") {
    const ModelConfig config = *find_model("deepseek-v4.1-flash").config();
    const ScratchFolder folder;
    std::map<std::string, std::vector<TensorSpec>> shards;
    json index = {{"metadata", {{"total_size", 510286023000}}}};
    for_each_tensor(config, [&](const TensorSpec& tensor) {
        shards[shard_of(tensor)].push_back(tensor);
        index["weight_map"][tensor.name] = shard_of(tensor);
    });
    CHECK(shards.size() == 48);
    for (const auto& [file, tensors] : shards) write_sparse(folder.path / file, tensors);
    std::ofstream(folder.path / "model.safetensors.index.json") << index.dump(2);
    std::ofstream(folder.path / "config.json") << hugging_face_config(config);

    const Checkpoint checkpoint(folder.path);
    const CheckpointReport report = checkpoint.verify({});
    CHECK(report.problem_count == 0);
    CHECK(report.sound_tensors == 96085);
    CHECK(report.sound_bytes == 510286023000);

    // A row of the Engram table, 100 GB into its file, and a whole expert.
    const std::span<const E4m3> table = checkpoint.values<E4m3>("layers.14.engram.embed.weight");
    CHECK(table.size() == 384016682ull * 256);
    CHECK(table.back().bits == 0);
    const Fp4Weight expert = checkpoint.fp4_weight("layers.39.ffn.experts.383.w2");
    CHECK(std::ranges::count(expert.codes, 0) == std::ssize(expert.codes));

    // Reading a layer, tensor by tensor, takes no more memory than a few tensors: the others have left it.
    const int64_t before = peak_memory_bytes();
    constexpr int layer = 41;  // a draft stage: 128 experts
    CHECK(checkpoint.verify({.layer = layer, .values = true}).sound_tensors == 798);
    int64_t read = 0;
    for (const TensorSpec& tensor : shards.at("model-00045-of-00048.safetensors"))
        if (tensor.type != TensorType::i8_e2m1) read += tensor.stored_bytes();
    const int64_t grown = peak_memory_bytes() - before;
    MESSAGE(fmt::format("{} bytes read, memory grew by {}", read, grown));
    CHECK(grown < read / 2);
}
