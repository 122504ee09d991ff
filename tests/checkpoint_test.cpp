// Checkpoint folders: what is written reads back, and every fault is named.
#include "reference/model/checkpoint.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <omp.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "reference/io/safetensors_writer.h"
#include "reference/io/user_error.h"
#include "reference/model/model.h"
#include "reference/model/synthetic_checkpoint.h"
#include "reference/numerics/tensor_hash.h"

using namespace touchstone;
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

/// A folder of the test's own, not there yet, removed with the scope.
class ScratchFolder {
  public:
    ScratchFolder() {
        static int number = 0;
        path_ = fs::temp_directory_path() / fmt::format("touchstone_checkpoint_{}_{}", getpid(), number++);
        fs::remove_all(path_);
    }
    ~ScratchFolder() { fs::remove_all(path_); }
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;
    const fs::path& path() const { return path_; }
    fs::path operator/(const std::string& name) const { return path_ / name; }

  private:
    fs::path path_;
};

const ModelConfig& tiny() {
    static const Model model = find_model("tiny");
    return *model.config();
}

/// tiny with seed 1, written once.
const fs::path& tiny_folder() {
    static const ScratchFolder folder;
    static const SyntheticCheckpoint written = write_synthetic_checkpoint(tiny(), folder.path(), {.seed = 1});
    CHECK(written.tensors == 990);
    return folder.path();
}

std::string read_file(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

void write_file(const fs::path& path, const std::string& bytes) {
    std::ofstream(path, std::ios::binary) << bytes;
}

std::vector<std::byte> bytes_of(const SafetensorsFile& file, const std::string& tensor) {
    const std::span<const std::byte> bytes = file.tensor(tensor).bytes;
    return {bytes.begin(), bytes.end()};
}

/// A tensor of a folder under test: its declaration, and its bytes.
struct Content {
    SafetensorsDeclaration declaration;
    std::vector<std::byte> bytes;
};

std::map<std::string, Content> tiny_content() {
    const SafetensorsFile file(tiny_folder() / "model.safetensors");
    std::map<std::string, Content> content;
    for (const auto& [name, tensor] : file.tensors())
        content[name] = {{name, tensor.type, tensor.shape}, bytes_of(file, name)};
    return content;
}

void write_tensors(const fs::path& path, const std::map<std::string, Content>& content) {
    std::vector<SafetensorsDeclaration> declarations;
    for (const auto& [name, tensor] : content) declarations.push_back(tensor.declaration);
    SafetensorsWriter writer(path, declarations);
    for (const SafetensorsDeclaration& tensor : writer.tensors())
        writer.write(tensor.name, content.at(tensor.name).bytes);
    writer.finish();
}

/// A folder with tiny's configuration and these tensors.
void write_folder(const fs::path& folder, const std::map<std::string, Content>& content) {
    fs::create_directories(folder);
    write_file(folder / "config.json", hugging_face_config(tiny()));
    write_tensors(folder / "model.safetensors", content);
}

std::vector<std::string> problems(const fs::path& folder, const Checkpoint::VerifyOptions& options = {}) {
    std::vector<std::string> lines;
    for (const CheckpointProblem& problem : Checkpoint(folder).verify(options).problems)
        lines.push_back(fmt::format("{}: {}: {}", name(problem.fault), problem.subject, problem.what));
    return lines;
}
using Lines = std::vector<std::string>;

std::string refusal(const std::function<void()>& action) {
    try {
        action();
    } catch (const UserError& error) {
        return error.parts().what;
    }
    return "";
}

double rms(std::span<const float> values) {
    double sum = 0;
    for (const float value : values) sum += double{value} * value;
    return std::sqrt(sum / static_cast<double>(values.size()));
}

double rms(const Checkpoint& checkpoint, const TensorSpec& spec) {
    return rms(checkpoint.dequantised(spec.name, 0, spec.elements()));
}

std::span<const std::byte> stored_bytes(const Checkpoint& checkpoint, const TensorSpec& spec) {
    switch (spec.type) {
        case TensorType::f32: return std::as_bytes(checkpoint.values<float>(spec.name));
        case TensorType::bf16: return std::as_bytes(checkpoint.values<Bf16>(spec.name));
        case TensorType::f8_e4m3: return std::as_bytes(checkpoint.values<E4m3>(spec.name));
        case TensorType::f8_e8m0: return std::as_bytes(checkpoint.values<E8m0>(spec.name));
        case TensorType::i8_e2m1: return std::as_bytes(checkpoint.values<uint8_t>(spec.name));
    }
    return {};
}

const std::string scale_name = "layers.0.attn.wq_a.scale";

}  // namespace

TEST_CASE("checkpoint: tiny has the 990 tensors of the released code's checkpoint, by name, type and shape") {
    std::ifstream list(TOUCHSTONE_TEST_DATA "/official_tiny_tensors.txt");
    REQUIRE(list);
    std::set<std::string> expected, written;
    for (std::string line; std::getline(list, line);)
        if (!line.starts_with('#')) expected.insert(line);
    const SafetensorsFile file(tiny_folder() / "model.safetensors");
    for (const auto& [name, tensor] : file.tensors())
        written.insert(fmt::format("{} {} {}", name, tensor.type, fmt::join(tensor.shape, " ")));
    CHECK(expected.size() == 990);
    CHECK(written == expected);
}

TEST_CASE("checkpoint: config.json is the Hugging Face form, with every key that such files have") {
    CHECK(load_config((tiny_folder() / "config.json").string()) == tiny());
    CHECK(json::parse(hugging_face_config(tiny())) ==
          json::parse(read_file(TOUCHSTONE_TEST_DATA "/config/tiny_hf.json")));
    CHECK(json::parse(hugging_face_config(*find_model("deepseek-v4.1-flash").config())) ==
          json::parse(read_file(TOUCHSTONE_TEST_DATA "/config/deepseek_v41_hf.json")));
}

TEST_CASE("checkpoint: a synthetic checkpoint is complete, with finite values") {
    const Checkpoint checkpoint(tiny_folder());
    checkpoint.require_complete();
    int64_t done = 0, total = 0;
    const CheckpointReport report = checkpoint.verify({.values = true, .progress = [&](int64_t d, int64_t t) {
                                                           CHECK(d > done);
                                                           done = d;
                                                           total = t;
                                                       }});
    CHECK(report.problem_count == 0);
    CHECK(report.expected_tensors == 990);
    CHECK(report.sound_tensors == 990);
    CHECK(report.sound_bytes == 11723858);
    CHECK(done == total);
    CHECK(total > report.sound_bytes / 2);  // all but packed e2m1
    CHECK(total < report.sound_bytes);
}

TEST_CASE("checkpoint: the same bytes for 1 and 7 threads, in shards, and for a layer alone") {
    const std::string expected = read_file(tiny_folder() / "model.safetensors");
    const int threads = omp_get_max_threads();
    for (const int count : {1, 7}) {
        CAPTURE(count);
        omp_set_num_threads(count);
        const ScratchFolder folder;
        write_synthetic_checkpoint(tiny(), folder.path(), {.seed = 1});
        CHECK(read_file(folder / "model.safetensors") == expected);
    }
    omp_set_num_threads(threads);

    const Checkpoint whole(tiny_folder());
    const auto check_equal = [&](const fs::path& folder, std::optional<int> layer) {
        const Checkpoint part(folder);
        int64_t compared = 0;
        for_each_tensor(tiny(), [&](const TensorSpec& spec) {
            CHECK(part.has(spec.name) == (!layer || spec.layer == *layer));
            if (!part.has(spec.name)) return;
            ++compared;
            CAPTURE(spec.name);
            CHECK(std::ranges::equal(stored_bytes(part, spec), stored_bytes(whole, spec)));
        });
        CHECK(compared > 50);
    };
    const ScratchFolder layer, draft, sharded;
    write_synthetic_checkpoint(tiny(), layer.path(), {.seed = 1, .layer = 4, .engram_tables = true});
    check_equal(layer.path(), 4);
    write_synthetic_checkpoint(tiny(), draft.path(), {.seed = 1, .layer = 12});
    check_equal(draft.path(), 12);
    const SyntheticCheckpoint written =
        write_synthetic_checkpoint(tiny(), sharded.path(), {.seed = 1, .shard_bytes = 1'000'000});
    CHECK(written.files.size() > 12);
    check_equal(sharded.path(), std::nullopt);
    for (const std::string& file : written.files)
        if (file.ends_with(".safetensors")) CHECK(fs::file_size(sharded / file) < 1'100'000);
    CHECK(problems(sharded.path(), {.values = true}).empty());
}

TEST_CASE("checkpoint: seed 1 of tiny is one file for every compiler and machine") {
    const std::string bytes = read_file(tiny_folder() / "model.safetensors");
    uint64_t hash = 0;
    for (size_t i = 0; i < bytes.size(); ++i) hash += element_hash(i, static_cast<uint8_t>(bytes[i]));
    CHECK(fmt::format("{:016x} of {} bytes", hash, bytes.size()) == "42bae0f27149d175 of 11821458 bytes");
}

TEST_CASE("checkpoint: any part of a tensor is filled with the same elements; seeds and names differ") {
    const TensorSpec tensors[] = {
        {"layers.0.hc_attn_base", TensorType::f32, {24}, WeightComponent::hyper_connections, 0},
        {"layers.0.attn_norm.weight", TensorType::bf16, {256}, WeightComponent::norms, 0},
        {"layers.0.attn.wq_a.weight", TensorType::f8_e4m3, {128, 256}, WeightComponent::attention, 0},
        {"layers.0.attn.wq_a.scale", TensorType::f8_e8m0, {4, 8}, WeightComponent::attention, 0}};
    for (const TensorSpec& tensor : tensors) {
        CAPTURE(tensor.name);
        std::vector<std::byte> whole(static_cast<size_t>(tensor.stored_bytes())), parts(whole.size()),
            other(whole.size());
        fill_synthetic_tensor(tensor, 7, 0, whole);
        const size_t width = tensor.type == TensorType::f32 ? 4 : tensor.type == TensorType::bf16 ? 2 : 1;
        const size_t elements = whole.size() / width;
        for (size_t at = 0; at < elements;) {
            const size_t count = std::min(elements - at, at % 11 + 1);
            fill_synthetic_tensor(tensor, 7, static_cast<int64_t>(at),
                                  std::span(parts).subspan(at * width, count * width));
            at += count;
        }
        CHECK(parts == whole);
        fill_synthetic_tensor(tensor, 8, 0, other);
        CHECK(other != whole);
        TensorSpec renamed = tensor;
        renamed.name.replace(7, 1, "1");
        fill_synthetic_tensor(renamed, 7, 0, other);
        CHECK(other != whole);
    }
}

TEST_CASE("checkpoint: weights have the deviation that keeps a forward pass healthy, scales included") {
    const Checkpoint checkpoint(tiny_folder());
    const auto over_inputs = [&](const std::string& name, double gain) {
        const TensorSpec& spec = checkpoint.spec(name);
        const double inputs = static_cast<double>(spec.shape[1] * (spec.type == TensorType::i8_e2m1 ? 2 : 1));
        CAPTURE(name);
        CHECK(rms(checkpoint, spec) * std::sqrt(inputs) == doctest::Approx(gain).epsilon(0.08));
    };
    over_inputs("layers.3.attn.wq_a.weight", 1);
    over_inputs("layers.3.attn.wo_b.weight", 0.1);
    over_inputs("layers.3.ffn.experts.5.w1.weight", 3.5);
    over_inputs("layers.3.ffn.experts.5.w2.weight", 0.0072);
    over_inputs("layers.3.ffn.shared_experts.w2.weight", 0.0072);
    over_inputs("layers.3.ffn.gate.weight", 1.5);
    over_inputs("head.weight", 3);
    CHECK(rms(checkpoint, checkpoint.spec("layers.4.engram.embed.weight")) ==
          doctest::Approx(1.9).epsilon(0.03));
    for (const float value : checkpoint.values<float>("layers.3.hc_attn_scale")) CHECK(value > 0);
    // More than one scale in a tensor, or a mistaken tile would not show.
    const std::span<const E8m0> scales = checkpoint.values<E8m0>("layers.3.attn.wq_b.scale");
    std::set<uint8_t> bytes;
    for (const E8m0 scale : scales) bytes.insert(scale.bits);
    CHECK(bytes.size() >= 3);
}

TEST_CASE("checkpoint: weights are views of the mapped file, with their scales") {
    const Checkpoint checkpoint(tiny_folder());
    const SafetensorsFile file(tiny_folder() / "model.safetensors");
    const Fp8Weight wq_a = checkpoint.fp8_weight("layers.0.attn.wq_a");
    CHECK(wq_a.name == "layers.0.attn.wq_a.weight");
    CHECK(wq_a.outputs == 128);
    CHECK(wq_a.inputs == 256);
    CHECK(std::ranges::equal(wq_a.codes, file.values<E4m3>("layers.0.attn.wq_a.weight", "F8_E4M3")));
    CHECK(std::ranges::equal(wq_a.scales, file.values<E8m0>(scale_name, "F8_E8M0")));
    const Fp4Weight w2 = checkpoint.fp4_weight("layers.9.ffn.experts.7.w2");
    CHECK(w2.outputs == 256);
    CHECK(w2.inputs == 64);
    CHECK(w2.codes.size() == 256 * 32);
    CHECK(w2.scales.size() == 256 * 2);
    const Bf16Weight head = checkpoint.bf16_weight("head.weight");
    CHECK(head.outputs == 512);
    CHECK(head.inputs == 256);
    CHECK(std::ranges::equal(head.values, file.values<Bf16>("head.weight", "BF16")));
    // Asked twice, the same memory; after a release too.
    const Bf16 before = head.values[0];
    checkpoint.release_layer(-1);
    CHECK(head.values[0] == before);
    CHECK(checkpoint.bf16_weight("head.weight").values.data() == head.values.data());
    CHECK(refusal([&] { checkpoint.values<float>("head.weight"); }) == "head.weight is BF16 [512, 256]");
    CHECK(refusal([&] { checkpoint.bf16_weight("norm.weight"); }) == "norm.weight is BF16 [256]");
    CHECK(refusal([&] { checkpoint.values<Bf16>("haed.weight"); }) == "there is no tensor \"haed.weight\"");
    CHECK(refusal([&] { checkpoint.dequantised("head.weight", 512 * 256 - 1, 2); }).starts_with("elements"));
}

TEST_CASE("checkpoint: dequantised values are code times the scale of the tile (text model 2.4)") {
    const Checkpoint checkpoint(tiny_folder());
    const std::string names[] = {"layers.0.attn.wq_b", "layers.0.ffn.experts.3.w1", "layers.1.engram.embed"};
    for (const std::string& name : names) {
        CAPTURE(name);
        const TensorSpec& spec = checkpoint.spec(name + ".weight");
        const bool packed = spec.type == TensorType::i8_e2m1;
        const size_t columns = static_cast<size_t>(spec.shape[1] * (packed ? 2 : 1));
        const size_t tile_rows = name.ends_with("wq_b") ? 32 : 1;
        const std::span<const E8m0> scales = checkpoint.values<E8m0>(name + ".scale");
        const std::vector<float> values = checkpoint.dequantised(spec.name, 0, spec.elements());
        const std::span<const std::byte> codes = stored_bytes(checkpoint, spec);
        size_t wrong = 0;
        for (size_t i = 0; i < values.size(); ++i) {
            const size_t row = i / columns, column = i % columns;
            const float scale = to_float(scales[row / tile_rows * (columns / 32) + column / 32]);
            const uint8_t byte = static_cast<uint8_t>(codes[packed ? i / 2 : i]);
            const E2m1 nibble{static_cast<uint8_t>(column % 2 == 0 ? byte & 15 : byte >> 4)};
            wrong += values[i] != (packed ? to_float(nibble) : to_float(E4m3{byte})) * scale;
        }
        CHECK(wrong == 0);
        const std::vector<float> part = checkpoint.dequantised(spec.name, 33, 100);
        CHECK(std::equal(part.begin(), part.end(), values.begin() + 33));
    }
}

TEST_CASE("checkpoint: tensors that the file does not align are copied once, and right") {
    const ScratchFolder folder;
    fs::create_directories(folder.path());
    write_file(folder / "config.json", hugging_face_config(tiny()));
    // A byte before the others: one tensor less aligned than every writer would have it.
    std::string header = R"({"embed.weight":{"dtype":"BF16","shape":[512,256],"data_offsets":[1,262145]},)"
                         R"("odd":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::string bytes;
    for (size_t i = 0; i < 8; ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 0xFF);
    bytes += header + '\0';
    for (size_t i = 0; i < 131072; ++i) {
        bytes += static_cast<char>(i & 0xFF);
        bytes += static_cast<char>(i >> 8 & 0x3F);
    }
    write_file(folder / "model.safetensors", bytes);
    const SafetensorsFile file(folder / "model.safetensors");
    CHECK(!file.view<Bf16>("embed.weight", "BF16"));
    CHECK(file.view<uint8_t>("odd", "U8"));
    const Checkpoint checkpoint(folder.path());
    const std::span<const Bf16> values = checkpoint.values<Bf16>("embed.weight");
    CHECK(reinterpret_cast<uintptr_t>(values.data()) % alignof(Bf16) == 0);
    size_t wrong = 0;
    for (size_t i = 0; i < values.size(); ++i) wrong += values[i].bits != (i & 0x3FFF);
    CHECK(values.size() == 131072);
    CHECK(wrong == 0);
    CHECK(checkpoint.values<Bf16>("embed.weight").data() == values.data());
}

TEST_CASE("checkpoint: concurrent first use of shards gives every thread the same views") {
    const ScratchFolder folder;
    write_synthetic_checkpoint(tiny(), folder.path(), {.seed = 1, .shard_bytes = 500'000});
    const Checkpoint checkpoint(folder.path());
    std::vector<std::string> names;
    for_each_tensor(tiny(), [&](const TensorSpec& spec) {
        if (spec.type == TensorType::f8_e8m0) names.push_back(spec.name);
    });
    constexpr int threads = 4;
    std::vector<std::vector<const E8m0*>> seen(threads);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int thread = 0; thread < threads; ++thread)
        for (const std::string& name : names) {
            seen[static_cast<size_t>(thread)].push_back(checkpoint.values<E8m0>(name).data());
            if (thread == 0) checkpoint.release_layer(checkpoint.spec(name).layer);
        }
    for (const std::vector<const E8m0*>& views : seen) CHECK(views == seen[0]);
}

TEST_CASE("checkpoint: a layer alone opens; what it lacks is named when asked for") {
    const ScratchFolder folder;
    write_synthetic_checkpoint(tiny(), folder.path(), {.seed = 3, .layer = 1});
    const Checkpoint checkpoint(folder.path());
    CHECK(checkpoint.fp8_weight("layers.1.engram.wkv").outputs == 1280);
    CHECK(refusal([&] { checkpoint.values<Bf16>("embed.weight"); }) ==
          "the checkpoint has no tensor embed.weight");
    CHECK(refusal([&] { checkpoint.fp8_weight("layers.2.attn.wq_a"); }) ==
          "the checkpoint has no tensor layers.2.attn.wq_a.weight");
    CHECK(problems(folder.path(), {.layer = 1}) ==
          Lines{"missing: layers.1.engram.embed.weight: F8_E4M3 [6126, 32]",
                "missing: layers.1.engram.embed.scale: F8_E8M0 [6126, 1]"});
    const CheckpointReport whole = checkpoint.verify({.most_problems = 7});
    CHECK(whole.problem_count == 990 - 82);
    CHECK(whole.problems.size() == 7);
    CHECK(whole.sound_tensors == 82);
    CHECK(refusal([&] { checkpoint.require_complete(); }).find("908 problems") != std::string::npos);
    CHECK(refusal([&] { checkpoint.verify({.layer = 13}); }) == "there is no layer 13");
}

TEST_CASE("checkpoint: tensors that are missing, extra, of another type or shape are all named") {
    const ScratchFolder folder;
    std::map<std::string, Content> content = tiny_content();
    content.erase("norm.weight");
    content.erase("mtp.2.norm.weight");
    content["layers.0.attn.wq_c.weight"] = {{"layers.0.attn.wq_c.weight", "U8", {2}},
                                            std::vector<std::byte>(2)};
    content[scale_name] = {{scale_name, "F8_E8M0", {1, 2}}, std::vector<std::byte>(2)};  // tiles of 128
    content["layers.0.attn.attn_sink"].declaration.type = "I32";
    content["layers.0.attn.wkv.weight"].declaration.shape = {256, 128};
    write_folder(folder.path(), content);
    Lines found = problems(folder.path(), {.values = true});
    std::ranges::sort(found);
    CHECK(found ==
          Lines{"extra: \"layers.0.attn.wq_c.weight\": in model.safetensors, not in the configuration",
                "missing: mtp.2.norm.weight: BF16 [256]", "missing: norm.weight: BF16 [256]",
                "shape: layers.0.attn.wkv.weight: F8_E4M3 [256, 128] in model.safetensors, not F8_E4M3 [128, "
                "256]",
                "shape: layers.0.attn.wq_a.scale: F8_E8M0 [1, 2] in model.safetensors, not F8_E8M0 [4, 8]",
                "type: layers.0.attn.attn_sink: I32 [8] in model.safetensors, not F32 [8]"});
    const Checkpoint checkpoint(folder.path());
    CHECK(refusal([&] { checkpoint.fp8_weight("layers.0.attn.wq_a"); }) ==
          "layers.0.attn.wq_a.scale is F8_E8M0 [1, 2]");
    CHECK(refusal([&] { checkpoint.values<float>("layers.0.attn.attn_sink"); }) ==
          "layers.0.attn.attn_sink is I32 [8]");
}

TEST_CASE("checkpoint: NaN scales and codes, NaN and infinity in bf16 and fp32 are named with their index") {
    const ScratchFolder folder;
    std::map<std::string, Content> content = tiny_content();
    const auto poke = [&](const std::string& name, size_t at, std::initializer_list<int> bytes) {
        for (const int byte : bytes) content.at(name).bytes.at(at++) = static_cast<std::byte>(byte);
    };
    poke(scale_name, 5, {0xFF, 0xFE, 0xFF});
    poke("layers.0.attn.wkv.weight", 1000, {0xFF});
    poke("layers.2.ffn.experts.0.w1.weight", 3, {0x7F});  // any byte is two e2m1 numbers
    poke("norm.weight", 2 * 255, {0x80, 0xFF});           // -infinity
    poke("layers.0.attn.attn_sink", 4 * 7, {0x01, 0x00, 0x80, 0x7F});
    poke("layers.0.hc_attn_scale", 0, {0xFF, 0xFF, 0x7F, 0x7F});  // the largest finite
    write_folder(folder.path(), content);
    CHECK(problems(folder.path()).empty());
    Lines found = problems(folder.path(), {.values = true});
    std::ranges::sort(found);
    const std::string value = " are no finite numbers, the first at index ";
    CHECK(found == Lines{"value: layers.0.attn.attn_sink: 1 of 8 elements of F32" + value + "7",
                         "value: layers.0.attn.wkv.weight: 1 of 32768 elements of F8_E4M3" + value + "1000",
                         "value: layers.0.attn.wq_a.scale: 2 of 32 elements of F8_E8M0" + value + "5",
                         "value: norm.weight: 1 of 256 elements of BF16" + value + "255"});
    CHECK(Checkpoint(folder.path()).verify({.values = true}).sound_tensors == 986);
}

TEST_CASE("checkpoint: absent and broken shards, tensors in two of them or in none") {
    const ScratchFolder folder;
    write_synthetic_checkpoint(tiny(), folder.path(), {.seed = 1, .shard_bytes = 5'000'000});
    const std::string shards[] = {"model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors",
                                  "model-00003-of-00003.safetensors"};
    CHECK(problems(folder.path()).empty());
    const fs::path index_path = folder / "model.safetensors.index.json";
    const json index = json::parse(read_file(index_path));

    json edited = index;
    edited["weight_map"]["embed.weight"] = shards[1];
    edited["weight_map"].erase("norm.weight");
    edited["metadata"]["total_size"] = 11723857;
    write_file(index_path, edited.dump());
    CHECK(
        problems(folder.path()) ==
        Lines{"duplicate: embed.weight: in " + shards[0] + ", and by the index in " + shards[1],
              "extra: norm.weight: in " + shards[0] + ", not in the index",
              "missing: embed.weight: by the index in " + shards[1] + ", where it is not",
              "missing: norm.weight: BF16 [256]",
              "size: model.safetensors.index.json: total_size is 11723857, the shards have 11723858 bytes"});

    write_file(index_path, index.dump());
    int64_t in_last = 0;
    for (const json& file : index["weight_map"]) in_last += file == shards[2];
    const std::string bytes = read_file(folder / shards[2]);
    fs::remove(folder / shards[2]);
    CHECK(problems(folder.path()) ==
          Lines{fmt::format(
              "shard: {}: the file cannot be opened: No such file or directory; {} tensors are missing",
              shards[2], in_last)});
    CHECK(refusal([&] { Checkpoint(folder.path()).values<Bf16>("mtp.2.norm.weight"); }) ==
          "the file cannot be opened: No such file or directory");
    CHECK(Checkpoint(folder.path()).bf16_weight("head.weight").outputs == 512);  // of a shard that is there
    // Cut short by a byte, by a page, by half: the mapped bytes would not be there.
    for (const size_t cut : {size_t{1}, size_t{4096}, bytes.size() / 2}) {
        CAPTURE(cut);
        write_file(folder / shards[2], bytes.substr(0, bytes.size() - cut));
        const Lines found = problems(folder.path());
        REQUIRE(found.size() == 1);
        CHECK(found[0].starts_with("shard: " + shards[2]));
    }
}

TEST_CASE("checkpoint: an index that is no index is refused with the reason") {
    const auto of = [](const std::string& text) {
        return refusal([&] { parse_shard_index(text, "index"); });
    };
    CHECK(of(R"({"weight_map":{"a":"x.safetensors"}})").empty());
    CHECK(parse_shard_index(R"({"metadata":{"total_size":7},"weight_map":{"a":"x.safetensors"}})", "index")
              .total_bytes == 7);
    CHECK(of("{").starts_with("not valid JSON"));
    CHECK(of(R"({"weight_map":[]})").find("weight_map") != std::string::npos);
    CHECK(of(R"({})").find("weight_map") != std::string::npos);
    CHECK(of(R"({"weight_map":{"a":"x.safetensors","a":"x.safetensors"}})").find("given twice") !=
          std::string::npos);
    CHECK(of(R"({"metadata":{"total_size":-1},"weight_map":{}})").find("total_size") != std::string::npos);
    for (const char* name : {"../x.safetensors", "/x.safetensors", "a/x.safetensors", "x.bin", "", "..",
                             ".safetensors", "a\\\\x.safetensors", "x\\u0000.safetensors"}) {
        CAPTURE(name);
        CHECK(!of(fmt::format(R"({{"weight_map":{{"a":"{}"}}}})", name)).empty());
    }
}

TEST_CASE("checkpoint: folders that cannot be opened are refused") {
    const ScratchFolder folder;
    CHECK(refusal([&] { Checkpoint{folder.path()}; }) == "there is no such folder");
    fs::create_directories(folder.path());
    CHECK(!refusal([&] { Checkpoint{folder.path()}; }).empty());  // no config.json
    write_file(folder / "config.json", hugging_face_config(tiny()));
    CHECK(refusal([&] { Checkpoint{folder.path()}; }).starts_with("neither"));
    write_file(folder / "model.safetensors", "");
    CHECK(refusal([&] { Checkpoint{folder.path()}; }) == "0 bytes");
    write_file(folder / "model.safetensors.index.json", "{}");
    CHECK(refusal([&] { Checkpoint{folder.path()}; }).starts_with("both"));
}

TEST_CASE("checkpoint: nothing is written over, without room, or of models whose tensors are not known") {
    const ScratchFolder folder;
    const auto make = [&](const char* model, SyntheticCheckpointOptions options) {
        return refusal(
            [&] { write_synthetic_checkpoint(*find_model(model).config(), folder.path(), options); });
    };
    CHECK(make("deepseek-v4-flash", {}).find("not published") != std::string::npos);
    CHECK(make("tiny", {.layer = 13}) == "there is no layer 13");
    CHECK(make("tiny", {.layer = -1}) == "there is no layer -1");
    CHECK(make("tiny", {.shard_bytes = 0}) == "shards of 0 bytes");
    if (fs::space(fs::temp_directory_path()).available < 510'286'023'000)
        CHECK(make("deepseek-v4.1-flash", {}).starts_with("the tensors have 510286023000 bytes"));
    CHECK(!fs::exists(folder.path()));
    fs::create_directories(folder.path());
    write_file(folder / "mine", "mine");
    CHECK(make("tiny", {}) == "the folder is not empty");
    CHECK(read_file(folder / "mine") == "mine");
    CHECK(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
}

TEST_CASE("checkpoint: a folder whose writing fails is left as it was") {
    const ScratchFolder folder;
    int calls = 0;
    const auto fail_late = [&](int64_t, int64_t) {
        if (++calls == 700) throw std::runtime_error("stop");
    };
    CHECK_THROWS_AS(write_synthetic_checkpoint(tiny(), folder.path(),
                                               {.seed = 1, .shard_bytes = 2'000'000, .progress = fail_late}),
                    std::runtime_error);
    CHECK(calls == 700);
    CHECK(!fs::exists(folder.path()));
}

TEST_CASE("checkpoint: one layer of the released model has the tensors and bytes of its shard") {
    const ModelConfig config = *find_model("deepseek-v4.1-flash").config();
    const auto bytes = [&](const SyntheticCheckpointOptions& options) {
        int64_t sum = 0;
        for (const TensorSpec& tensor : synthetic_tensors(config, options)) sum += tensor.stored_bytes();
        return sum;
    };
    CHECK(synthetic_tensors(config, {.layer = 3}).size() == 2334);
    CHECK(synthetic_tensors(config, {.layer = 14}).size() == 2346);
    CHECK(synthetic_tensors(config, {.layer = 14, .engram_tables = true}).size() == 2348);
    CHECK(bytes({.layer = 14, .engram_tables = true}) - bytes({.layer = 14}) == 384016682LL * 264);
    CHECK(bytes({}) == 510286023000);
}
