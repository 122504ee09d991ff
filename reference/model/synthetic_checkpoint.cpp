#include "reference/model/synthetic_checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "reference/io/atomic_file.h"
#include "reference/io/safetensors_writer.h"
#include "reference/io/user_error.h"
#include "reference/numerics/fill.h"
#include "reference/numerics/random.h"
#include "reference/numerics/small_float.h"

namespace touchstone {

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// mean + deviation * N(0, 1); of a matrix with `over_inputs`, the deviation is over the root of its inputs.
struct Magnitude {
    std::string_view name_ending;
    double mean;
    double deviation;
    bool over_inputs = false;
};

/// The first that matches. Gains are those of the tiny checkpoint that the released code was recorded with:
/// branches (attn.wo_b, w2, engram.wkv) add about a tenth of the stream, so that it grows slowly over 40
/// layers; gate and up projections reach the clamp of SwiGLU now and then.
constexpr Magnitude magnitudes[] = {
    {"engram.embed.weight", 0, 1.9},
    {"markov_head.embed.weight", 0, 1},
    {"markov_head.head.weight", 0, 1.5, true},
    {"confidence_head.proj.weight", 0, 0.5, true},
    {"embed.weight", 0, 1.2},
    {"head.weight", 0, 3, true},
    {"norm.weight", 1, 0.2},
    {"norm1.weight", 1, 0.2},
    {"norm2.weight", 1, 0.2},
    {"engram.q_weight", 1, 0.3},
    {"engram.k_weight", 1, 0.3},
    {"engram.wkv.weight", 0, 0.1, true},
    {"hc_attn_fn", 0, 0.7, true},
    {"hc_ffn_fn", 0, 0.7, true},
    {"hc_attn_base", 0, 0.6},
    {"hc_ffn_base", 0, 0.6},
    {"hc_attn_scale", 1.2, 0.2},
    {"hc_ffn_scale", 1.2, 0.2},
    {"attn_sink", 1, 3},
    {"attn.wq_b.weight", 0, 1.6, true},
    {"indexer.wq_b.weight", 0, 1.2, true},
    {"attn.wo_a.weight", 0, 1.8, true},
    {"attn.wo_b.weight", 0, 0.1, true},
    {"compressor.wgate.weight", 0, 2, true},
    {"weights_proj.weight", 0, 1.5, true},
    {"gate.weight", 0, 1.5, true},
    {"gate.bias", 0, 0.1},
    {"gate.bias_vl", 0, 0.1},
    {"aligner.w1.weight", 0, 1, true},
    {"aligner.w2.weight", 0, 1, true},
    {"mlp.w1.weight", 0, 1, true},
    {"mlp.w2.weight", 0, 0.3, true},
    {"attn.wo.weight", 0, 0.3, true},
    {"w1.weight", 0, 3.5, true},
    {"w2.weight", 0, 0.0072, true},
    {"w3.weight", 0, 3.5, true},
    {".bias", 0, 0.02},
    {".weight", 0, 1, true},
    {"", 0, 1},
};

const Magnitude& magnitude_of(std::string_view name) {
    return *std::ranges::find_if(magnitudes,
                                 [&](const Magnitude& m) { return name.ends_with(m.name_ending); });
}

constexpr double e4m3_deviation = 96;  ///< of the codes' values; 448 is 4.7 deviations away
constexpr double e2m1_deviation = 1.9;
constexpr int64_t inputs_per_scale = 32;

/// 2^15 values of about N(0, 1), then their negatives. Every element draws from these.
constexpr size_t sample_size = 1 << 16;

std::vector<float> normal_sample(uint64_t stream) {
    std::vector<float> sample(sample_size);
    const std::span<float> half = std::span(sample).first(sample_size / 2);
    fill(Filler::normal, RandomStream{0, stream}, half);
    std::ranges::transform(half, sample.begin() + sample_size / 2, [](float value) { return -value; });
    return sample;
}

const std::vector<float>& normal_values() {
    static const std::vector<float> values = normal_sample(0);
    return values;
}

const std::vector<uint8_t>& e4m3_codes() {
    static const std::vector<uint8_t> codes = [] {
        std::vector<uint8_t> result;
        for (const float value : normal_values())
            result.push_back(e4m3_from_float_saturating(value * static_cast<float>(e4m3_deviation)).bits);
        return result;
    }();
    return codes;
}

/// Two independent e2m1 codes to a byte.
const std::vector<uint8_t>& e2m1_pairs() {
    static const std::vector<uint8_t> pairs = [] {
        const std::vector<float> odd = normal_sample(1);
        constexpr float deviation = static_cast<float>(e2m1_deviation);
        std::vector<uint8_t> result;
        for (size_t i = 0; i < sample_size; ++i)
            result.push_back(pack_e2m1(e2m1_from_float_saturating(normal_values()[i] * deviation),
                                       e2m1_from_float_saturating(odd[i] * deviation)));
        return result;
    }();
    return pairs;
}

/// FNV-1a: a tensor's numbers depend on its name, not on which others are written.
uint64_t hash_of(std::string_view name) {
    uint64_t hash = 0xCBF29CE484222325;
    for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3;
    return hash;
}

/// out[i] = element(16 random bits, first + i): eight elements to a Philox block, so any part of a tensor
/// gives the same values.
template <class Stored, class Element>
void fill_each(RandomStream random, int64_t first, std::span<std::byte> out, const Element& element) {
    constexpr int64_t per_block = 8;
    const int64_t end = first + std::ssize(out) / static_cast<int64_t>(sizeof(Stored));
    std::byte* to = out.data();
    for (int64_t i = first; i < end;) {
        const PhiloxBlock block = random.block(static_cast<uint64_t>(i / per_block));
        const int64_t block_end = std::min(end, (i / per_block + 1) * per_block);
        for (; i < block_end; ++i, to += sizeof(Stored)) {
            const uint32_t word = block.words[(i % per_block) / 2];
            const Stored value = element(i % 2 == 0 ? word & 0xFFFF : word >> 16, i);
            std::memcpy(to, &value, sizeof(Stored));
        }
    }
}

/// Byte of a block scale: 2^byte's mean square times the codes' makes the deviation squared.
struct ScaleBytes {
    uint32_t lower;      ///< byte of the power of two below
    uint32_t threshold;  ///< of 2^14: how often the power above it is taken

    uint8_t operator()(uint32_t random, int64_t) const {
        // One step down and one step up, each for a quarter of the scales: mean square (1/4 + 1 + 1 + 4) / 4.
        constexpr uint32_t down_to_up[] = {0, 1, 1, 2};
        const uint32_t above = (random & 0x3FFF) < threshold ? 1 : 0;
        return static_cast<uint8_t>(lower + above + down_to_up[random >> 14] - 1);
    }
};

ScaleBytes scale_bytes(double deviation, double code_deviation) {
    const double target = deviation / (code_deviation * 1.25);
    double below = 1;  // the power of two
    uint32_t byte = 127;
    for (; below > target; --byte) below /= 2;
    for (; 2 * below <= target; ++byte) below *= 2;
    // Mean square of the two powers: below^2 (1 + 3 p).
    const double p = (target * target / (below * below) - 1) / 3;
    return {byte, static_cast<uint32_t>(p * 0x4000)};
}

bool is_packed_scale(std::string_view name) {
    return name.find(".ffn.experts.") != std::string_view::npos;
}

/// What a tensor's elements are drawn from. The inputs of a scale's weight are 32 to a column.
struct Distribution {
    double mean, deviation;
};
Distribution distribution_of(const TensorSpec& tensor) {
    std::string name = tensor.name;
    int64_t inputs = tensor.shape.back();
    if (tensor.type == TensorType::f8_e8m0) {
        name.replace(name.size() - std::string_view("scale").size(), std::string::npos, "weight");
        inputs *= inputs_per_scale;
    }
    const Magnitude& magnitude = magnitude_of(name);
    const double root = magnitude.over_inputs ? std::sqrt(static_cast<double>(inputs)) : 1;
    return {magnitude.mean, magnitude.deviation / root};
}

/// How far the mixing matrix of a hyper-connection leans to the identity: 1.5 on the diagonal of the last
/// n * n of n (2 + n) coefficients (text model 8.1).
float diagonal_of_mix(const TensorSpec& tensor, int64_t index) {
    if (!tensor.name.ends_with("_base")) return 0;
    int64_t streams = 1;
    while (streams * (2 + streams) < tensor.shape[0]) ++streams;
    const int64_t in_matrix = index - 2 * streams;
    return in_matrix >= 0 && in_matrix % (streams + 1) == 0 ? 1.5f : 0.0f;
}

int64_t element_bytes(TensorType type) {
    if (type == TensorType::f32) return 4;
    return type == TensorType::bf16 ? 2 : 1;
}

}  // namespace

void fill_synthetic_tensor(const TensorSpec& tensor, uint64_t seed, int64_t first_element,
                           std::span<std::byte> out) {
    const RandomStream random{seed, hash_of(tensor.name)};
    const Distribution distribution = distribution_of(tensor);
    const float mean = static_cast<float>(distribution.mean);
    const float deviation = static_cast<float>(distribution.deviation);
    const float* normal = normal_values().data();
    switch (tensor.type) {
        case TensorType::f32:
            return fill_each<float>(random, first_element, out, [&](uint32_t bits, int64_t i) {
                return mean + deviation * normal[bits] + diagonal_of_mix(tensor, i);
            });
        case TensorType::bf16:
            return fill_each<Bf16>(random, first_element, out, [=](uint32_t bits, int64_t) {
                return bf16_from_float(mean + deviation * normal[bits]);
            });
        case TensorType::f8_e4m3:
            return fill_each<uint8_t>(
                random, first_element, out,
                [codes = e4m3_codes().data()](uint32_t bits, int64_t) { return codes[bits]; });
        case TensorType::i8_e2m1:
            return fill_each<uint8_t>(
                random, first_element, out,
                [pairs = e2m1_pairs().data()](uint32_t bits, int64_t) { return pairs[bits]; });
        case TensorType::f8_e8m0:
            return fill_each<uint8_t>(
                random, first_element, out,
                scale_bytes(distribution.deviation,
                            is_packed_scale(tensor.name) ? e2m1_deviation : e4m3_deviation));
    }
}

std::vector<TensorSpec> synthetic_tensors(const ModelConfig& config,
                                          const SyntheticCheckpointOptions& options) {
    std::vector<TensorSpec> tensors;
    int last_layer = -1;
    for_each_tensor(config, [&](const TensorSpec& tensor) {
        last_layer = std::max(last_layer, tensor.layer);
        if (options.layer && tensor.layer != *options.layer) return;
        if (options.layer && !options.engram_tables && tensor.component == WeightComponent::engram_tables)
            return;
        tensors.push_back(tensor);
    });
    if (options.layer && (*options.layer < 0 || *options.layer > last_layer))
        throw UserError({fmt::format("there is no layer {}", *options.layer), "layer",
                         fmt::format("a layer from 0 to {} (draft stages last)", last_layer), ""});
    return tensors;
}

namespace {

int64_t total_bytes(std::span<const TensorSpec> tensors) {
    int64_t bytes = 0;
    for (const TensorSpec& tensor : tensors) bytes += tensor.stored_bytes();
    return bytes;
}

/// Runs of tensors of at most `shard_bytes`, in order.
std::vector<std::span<const TensorSpec>> shards_of(std::span<const TensorSpec> tensors, int64_t shard_bytes) {
    std::vector<std::span<const TensorSpec>> shards;
    size_t first = 0;
    int64_t bytes = 0;
    for (size_t i = 0; i < tensors.size(); ++i) {
        const int64_t more = tensors[i].stored_bytes();
        if (i > first && more > shard_bytes - bytes) {
            shards.push_back(tensors.subspan(first, i - first));
            first = i;
            bytes = 0;
        }
        bytes += more;
    }
    shards.push_back(tensors.subspan(first));
    return shards;
}

/// Writes files and removes them again unless kept.
class SyntheticFolder {
  public:
    SyntheticFolder(fs::path folder, const SyntheticCheckpointOptions& options, int64_t bytes)
        : folder_(std::move(folder)), options_(options), total_bytes_(bytes), buffer_(buffer_bytes) {
        std::error_code error;
        folder_is_new_ = !fs::exists(folder_, error);
        fs::create_directories(folder_, error);
        if (!fs::is_directory(folder_))
            throw UserError({fmt::format("the folder cannot be made: {}", error.message()), folder_.string(),
                             "a path that can be written", ""});
    }
    ~SyntheticFolder() {
        if (kept_) return;
        std::error_code ignored;
        for (const std::string& file : files_) fs::remove(folder_ / file, ignored);
        if (folder_is_new_) fs::remove(folder_, ignored);
    }
    SyntheticFolder(const SyntheticFolder&) = delete;
    SyntheticFolder& operator=(const SyntheticFolder&) = delete;

    void write_shard(const std::string& file, std::span<const TensorSpec> tensors) {
        std::vector<SafetensorsDeclaration> declarations;
        std::map<std::string_view, const TensorSpec*> by_name;
        for (const TensorSpec& tensor : tensors) {
            declarations.push_back({tensor.name, std::string(safetensors_name(tensor.type)), tensor.shape});
            by_name.emplace(tensor.name, &tensor);
        }
        SafetensorsWriter writer(folder_ / file, std::move(declarations), {{"format", "pt"}});
        for (const SafetensorsDeclaration& declared : writer.tensors())
            write_tensor(writer, *by_name.at(declared.name));
        files_.push_back(file);
        writer.finish();
    }
    void write_text(const std::string& file, const std::string& text) {
        files_.push_back(file);
        write_file_atomically(folder_ / file, text);
    }
    std::vector<std::string> keep() {
        kept_ = true;
        return files_;
    }

  private:
    static constexpr size_t buffer_bytes = size_t{32} << 20;
    static constexpr int64_t piece_bytes = 1 << 16;

    void write_tensor(SafetensorsWriter& writer, const TensorSpec& tensor) {
        const int64_t bytes = tensor.stored_bytes(), width = element_bytes(tensor.type);
        for (int64_t start = 0; start < bytes;) {
            const int64_t length = std::min<int64_t>(bytes - start, std::ssize(buffer_));
            const std::span<std::byte> part = std::span(buffer_).first(static_cast<size_t>(length));
            const int64_t pieces = (length + piece_bytes - 1) / piece_bytes;
#pragma omp parallel for if (pieces > 1)
            for (int64_t piece = 0; piece < pieces; ++piece) {
                const int64_t from = piece * piece_bytes, count = std::min(piece_bytes, length - from);
                fill_synthetic_tensor(tensor, options_.seed, (start + from) / width,
                                      part.subspan(static_cast<size_t>(from), static_cast<size_t>(count)));
            }
            writer.write(tensor.name, part);
            start += length;
            written_ += length;
            if (options_.progress) options_.progress(written_, total_bytes_);
        }
    }

    fs::path folder_;
    const SyntheticCheckpointOptions& options_;
    int64_t total_bytes_;
    int64_t written_ = 0;
    std::vector<std::byte> buffer_;
    std::vector<std::string> files_;
    bool folder_is_new_ = false;
    bool kept_ = false;
};

void require_empty(const fs::path& folder) {
    std::error_code error;
    if (!fs::exists(folder, error)) return;
    if (fs::is_directory(folder, error) && fs::is_empty(folder, error)) return;
    throw UserError({"the folder is not empty", folder.string(), "a new or an empty folder",
                     "choose another, or remove it"});
}

void require_room(const fs::path& folder, int64_t bytes) {
    std::error_code error;
    fs::path existing = fs::absolute(folder, error);
    while (!fs::exists(existing, error) && existing != existing.parent_path())
        existing = existing.parent_path();
    const fs::space_info space = fs::space(existing, error);
    if (error || space.available >= static_cast<std::uintmax_t>(bytes)) return;
    throw UserError(
        {fmt::format("the tensors have {} bytes, the disk has room for {}", bytes, space.available),
         folder.string(), "a disk with room for them", "write one layer (--layer), or elsewhere"});
}

}  // namespace

SyntheticCheckpoint write_synthetic_checkpoint(const ModelConfig& config, const fs::path& folder,
                                               const SyntheticCheckpointOptions& options) {
    const std::vector<TensorSpec> tensors = synthetic_tensors(config, options);
    const int64_t bytes = total_bytes(tensors);
    if (options.shard_bytes < 1)
        throw UserError(
            {fmt::format("shards of {} bytes", options.shard_bytes), "shard bytes", "at least 1", ""});
    require_empty(folder);
    require_room(folder, bytes);
    SyntheticFolder written(folder, options, bytes);
    const std::vector<std::span<const TensorSpec>> shards = shards_of(tensors, options.shard_bytes);
    if (shards.size() == 1) {
        written.write_shard("model.safetensors", tensors);
    } else {
        json index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", json::object()}};
        for (size_t i = 0; i < shards.size(); ++i) {
            const std::string file = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
            written.write_shard(file, shards[i]);
            for (const TensorSpec& tensor : shards[i]) index["weight_map"][tensor.name] = file;
        }
        written.write_text("model.safetensors.index.json", index.dump(2) + "\n");
    }
    written.write_text("config.json", hugging_face_config(config));
    return {std::ssize(tensors), bytes, written.keep()};
}

std::string hugging_face_config(const ModelConfig& config) {
    json root = json::parse(dump_config(config));
    root.update({{"architectures", {"DeepseekV41ForCausalLM"}},
                 {"dtype", "bfloat16"},
                 {"bos_token_id", 0},
                 {"eos_token_id", 1},
                 {"pad_token_id", 2}});
    root["quantization_config"].update({{"activation_scheme", "dynamic"}, {"scale_fmt", "ue8m0"}});
    root["text_config"].update({{"model_type", "deepseek_v41_text"},
                                {"num_key_value_heads", 1},
                                {"hidden_act", "silu"},
                                {"attention_bias", false},
                                {"attention_dropout", 0.0},
                                {"initializer_range", 0.02},
                                {"use_cache", true},
                                {"tie_word_embeddings", false},
                                {"scoring_func", "sqrtsoftplus"},
                                {"topk_method", "noaux_tc"},
                                {"norm_topk_prob", true}});
    if (config.vision) {
        root["vision_config"]["model_type"] = "deepseek_v41_vision";
        constexpr int released_image_token = 129264;
        root["image_token_id"] = released_image_token;
    }
    return root.dump(2) + "\n";
}

}  // namespace touchstone
