// The tensor table against the released totals and against the header of a checkpoint.
#include "reference/model/weights.h"

#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "reference/io/user_error.h"
#include "reference/model/model.h"

using namespace touchstone;

namespace {

ModelConfig preset(const std::string& name) {
    return *find_model(name).config();
}

std::vector<TensorSpec> tensors(const ModelConfig& config) {
    std::vector<TensorSpec> all;
    for_each_tensor(config, [&all](const TensorSpec& tensor) { all.push_back(tensor); });
    return all;
}

const std::vector<TensorSpec>& released() {
    static const std::vector<TensorSpec> all = tensors(preset("deepseek-v4.1-flash"));
    return all;
}

std::string line(const TensorSpec& tensor) {
    return fmt::format("{} {} {}", tensor.name, safetensors_name(tensor.type), fmt::join(tensor.shape, " "));
}

}  // namespace

TEST_CASE("weights: tensor count and payload of the released checkpoint") {
    int64_t payload_bytes = 0;
    for (const TensorSpec& tensor : released()) payload_bytes += tensor.stored_bytes();
    CHECK(released().size() == 96085);
    CHECK(payload_bytes == 510286023000);
}

TEST_CASE("weights: parameters by component (spec/text_model 11)") {
    std::map<WeightComponent, int64_t> parameters;
    for (const TensorSpec& tensor : released()) parameters[tensor.component] += tensor.parameters();
    using enum WeightComponent;
    CHECK(parameters[routed_experts] == 543581798400);
    CHECK(parameters[shared_experts] == 1415577600);
    CHECK(parameters[attention] == 5064696320);
    CHECK(parameters[gate] == 78673920);
    CHECK(parameters[hyper_connections] == 39323760);
    CHECK(parameters[compressor] == 18352128);
    CHECK(parameters[indexer] == 43516416);
    CHECK(parameters[norms] == 414720);
    CHECK(parameters[embedding] == 661913600);
    CHECK(parameters[head] == 661913600);
    CHECK(parameters[engram_tables] == 196613849600);
    CHECK(parameters[engram_projections] == 314654720);
    CHECK(parameters[dspark] == 14225362530);
    CHECK(parameters[vision] == 485268480);
    int64_t backbone = 0, total = 0;
    const std::set<WeightComponent> beside_backbone = {engram_tables, engram_projections, dspark, vision};
    for (const auto& [component, count] : parameters) {
        total += count;
        if (!beside_backbone.contains(component)) backbone += count;
    }
    CHECK(parameters.size() == 14);
    CHECK(backbone == 551566180464);
    CHECK(total == 763205315794);
}

TEST_CASE("weights: values by storage type (two per packed byte, scales not counted)") {
    std::map<TensorType, int64_t> values;
    for (const TensorSpec& tensor : released()) values[tensor.type] += tensor.parameters();
    CHECK(values[TensorType::f32] == 42307282);
    CHECK(values[TensorType::bf16] == 1976441856);
    CHECK(values[TensorType::f8_e4m3] == 204015223296);
    CHECK(values[TensorType::i8_e2m1] == 557171343360);
    CHECK(values[TensorType::f8_e8m0] == 0);
}

TEST_CASE("weights: tensors per layer") {
    std::map<int, int> count;
    for (const TensorSpec& tensor : released()) ++count[tensor.layer];
    const std::map<int, int> special = {{1, 2340},  {2, 2342},  {8, 2342},  {14, 2348},
                                        {20, 2341}, {24, 2337}, {28, 2337}, {32, 2337},
                                        {36, 2337}, {40, 801},  {41, 798},  {42, 802}};
    for (int layer = 0; layer < 43; ++layer) {
        CAPTURE(layer);
        CHECK(count[layer] == (special.contains(layer) ? special.at(layer) : 2334));
    }
    CHECK(count[-1] == 3 + 266);
}

TEST_CASE("weights: vision tensors") {
    int64_t count = 0, parameters = 0, aligner = 0;
    for (const TensorSpec& tensor : released()) {
        if (tensor.component != WeightComponent::vision) continue;
        ++count;
        parameters += tensor.parameters();
        if (tensor.name.starts_with("aligner.")) aligner += tensor.parameters();
        CHECK(tensor.type == TensorType::bf16);
    }
    CHECK(count == 266);
    CHECK(parameters == 485268480);
    CHECK(aligner == 73410560);
}

TEST_CASE("weights: one of each released tensor, by name, type and shape (spec/text_model 21)") {
    std::map<std::string, std::string> by_name;
    for (const TensorSpec& tensor : released()) by_name[tensor.name] = line(tensor);
    CHECK(by_name.size() == released().size());  // no name twice
    const std::string expected[] = {
        "embed.weight BF16 129280 5120",
        "head.weight BF16 129280 5120",
        "norm.weight BF16 5120",
        "layers.39.attn_norm.weight BF16 5120",
        "layers.0.ffn_norm.weight BF16 5120",
        "layers.0.hc_attn_fn F32 24 20480",
        "layers.0.hc_ffn_base F32 24",
        "layers.0.hc_ffn_scale F32 3",
        "layers.0.attn.wq_a.weight F8_E4M3 1280 5120",
        "layers.0.attn.wq_a.scale F8_E8M0 40 160",
        "layers.0.attn.wq_b.weight F8_E4M3 32768 1280",
        "layers.0.attn.wq_b.scale F8_E8M0 1024 40",
        "layers.0.attn.wkv.scale F8_E8M0 16 160",
        "layers.0.attn.attn_sink F32 64",
        "layers.0.attn.wo_a.weight F8_E4M3 8192 4096",
        "layers.0.attn.wo_a.scale F8_E8M0 256 128",
        "layers.0.attn.wo_b.weight F8_E4M3 5120 8192",
        "layers.0.attn.wo_b.scale F8_E8M0 160 256",
        "layers.14.attn.compressor.wgate.weight BF16 512 5120",
        "layers.20.attn.compressor.wkv.weight BF16 512 5120",
        "layers.20.attn.indexer.wk.weight BF16 128 512",
        "layers.36.attn.indexer.wq_b.weight F8_E4M3 4096 1280",
        "layers.36.attn.indexer.wq_b.scale F8_E8M0 128 40",
        "layers.36.attn.indexer.weights_proj.weight BF16 32 5120",
        "layers.5.ffn.gate.weight BF16 384 5120",
        "layers.5.ffn.gate.bias_vl F32 384",
        "layers.5.ffn.experts.383.w1.weight I8 2304 2560",
        "layers.5.ffn.experts.383.w1.scale F8_E8M0 2304 160",
        "layers.5.ffn.experts.383.w2.weight I8 5120 1152",
        "layers.5.ffn.experts.383.w2.scale F8_E8M0 5120 72",
        "layers.5.ffn.shared_experts.w2.weight F8_E4M3 5120 2304",
        "layers.5.ffn.shared_experts.w2.scale F8_E8M0 160 72",
        "layers.14.engram.embed.weight F8_E4M3 384016682 256",
        "layers.14.engram.embed.scale F8_E8M0 384016682 8",
        "layers.1.engram.wkv.weight F8_E4M3 25600 6144",
        "layers.1.engram.wkv.scale F8_E8M0 800 192",
        "layers.1.engram.q_weight BF16 4 5120",
        "mtp.0.main_proj.weight F8_E4M3 5120 15360",
        "mtp.0.main_proj.scale F8_E8M0 160 480",
        "mtp.0.main_norm.weight BF16 5120",
        "mtp.1.ffn.gate.weight BF16 128 5120",
        "mtp.2.ffn.experts.127.w3.weight I8 2304 2560",
        "mtp.2.norm.weight BF16 5120",
        "mtp.2.markov_head.embed.weight BF16 129280 256",
        "mtp.2.confidence_head.proj.weight BF16 1 5376",
        "vision.patch_embed.proj.weight BF16 1024 588",
        "vision.blocks.31.attn.wqkv.weight BF16 3072 1024",
        "vision.blocks.31.mlp.w1.weight BF16 5632 1024",
        "vision.blocks.31.mlp.w2.weight BF16 1024 2816",
        "aligner.w1.weight BF16 5120 9216",
        "image_newline BF16 5120",
    };
    for (const std::string& tensor : expected) CHECK(by_name[tensor.substr(0, tensor.find(' '))] == tensor);
    for (const char* absent :
         {"layers.20.attn.compressor.wgate.weight", "layers.24.attn.indexer.wk.weight",
          "layers.3.attn.indexer.wq_b.weight", "mtp.1.main_proj.weight", "mtp.0.markov_head.embed.weight",
          "mtp.0.embed.weight", "layers.40.attn.wkv.weight"})
        CHECK_MESSAGE(!by_name.contains(absent), absent);
}

TEST_CASE("weights: tiny is the header of its checkpoint (name, type and shape of 990 tensors)") {
    std::ifstream file(TOUCHSTONE_TEST_DATA "/official_tiny_tensors.txt");
    REQUIRE(file);
    std::set<std::string> expected, listed;
    for (std::string text; std::getline(file, text);)
        if (!text.starts_with('#')) expected.insert(text);
    CHECK(expected.size() == 990);
    for (const TensorSpec& tensor : tensors(preset("tiny"))) {
        CHECK_MESSAGE(listed.insert(line(tensor)).second, line(tensor));
        CHECK_MESSAGE(expected.contains(line(tensor)), line(tensor));
    }
    for (const std::string& tensor : expected) CHECK_MESSAGE(listed.contains(tensor), tensor);
}

TEST_CASE("weights: the order is embedding, head, norm, layers ascending, draft stages, vision") {
    const std::vector<TensorSpec>& all = released();
    CHECK(all[0].name == "embed.weight");
    CHECK(all[1].name == "head.weight");
    CHECK(all[2].name == "norm.weight");
    int layer = 0;
    size_t index = 3;
    for (; index < all.size() && all[index].layer >= 0; ++index) {
        CHECK(all[index].layer >= layer);
        layer = all[index].layer;
    }
    CHECK(layer == 42);
    CHECK(all.size() - index == 266);
    for (; index < all.size(); ++index) CHECK(all[index].component == WeightComponent::vision);
}

TEST_CASE("weights: a scale tile that an edge cuts still has a scale") {
    ModelConfig config = preset("tiny");
    config.index_n_heads = 5;
    config.o_lora_rank = 48;  // two groups: 96 rows, three tiles
    config.engram->head_dim = 32;
    config.num_attention_heads = 6;
    validate(config, "edited tiny");
    std::map<std::string, std::string> by_name;
    for (const TensorSpec& tensor : tensors(config)) by_name[tensor.name] = line(tensor);
    CHECK(by_name["layers.2.attn.indexer.wq_b.scale"] == "layers.2.attn.indexer.wq_b.scale F8_E8M0 10 4");
    CHECK(by_name["layers.0.attn.wo_a.scale"] == "layers.0.attn.wo_a.scale F8_E8M0 3 12");
    config.weight_block_size = 128;  // not a file that validate accepts: only the ceiling is asked for here
    by_name.clear();
    for (const TensorSpec& tensor : tensors(config)) by_name[tensor.name] = line(tensor);
    CHECK(by_name["layers.2.attn.indexer.wq_b.scale"] == "layers.2.attn.indexer.wq_b.scale F8_E8M0 3 1");
}

TEST_CASE("weights: a V4 tensor list is refused, not guessed") {
    CHECK_THROWS_AS(for_each_tensor(preset("deepseek-v4-flash"), [](const TensorSpec&) {}), UserError);
}
