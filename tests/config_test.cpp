// Configurations: every file form gives the preset, and every mistake is named.
#include "reference/model/config.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <sstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "reference/io/user_error.h"
#include "reference/model/model.h"

using namespace touchstone;
using Json = nlohmann::json;

namespace {

const std::string kData = TOUCHSTONE_TEST_DATA;

ModelConfig preset(const std::string& name) {
    return *find_model(name).config();
}

std::string file_text(const std::string& path) {
    std::ifstream file(path);
    REQUIRE_MESSAGE(file, path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

Json file_json(const std::string& name) {
    return Json::parse(file_text(kData + "/config/" + name));
}

/// What parse_config says against `text`; fails when it accepts.
UserError::Parts refusal(const std::string& text) {
    CAPTURE(text.substr(0, 4000));
    try {
        parse_config(text, "config.json");
    } catch (const UserError& error) {
        CHECK(error.parts().where.starts_with("config.json"));
        CHECK(!error.parts().what.empty());
        CHECK(!error.parts().expected.empty());
        return error.parts();
    }
    FAIL("accepted");
    return {};
}
UserError::Parts refusal(const Json& json) {
    return refusal(json.dump());
}

UserError::Parts load_refusal(const std::string& path) {
    try {
        load_config(path);
    } catch (const UserError& error) {
        CHECK(error.parts().where.starts_with(path));
        return error.parts();
    }
    FAIL("accepted " << path);
    return {};
}

bool mentions(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

/// Pointers to every value of the dump that is not an object.
std::vector<Json::json_pointer> leaves(const Json& object,
                                       const Json::json_pointer& path = Json::json_pointer()) {
    std::vector<Json::json_pointer> found;
    for (const auto& [key, value] : object.items()) {
        if (!value.is_object())
            found.push_back(path / key);
        else
            for (const Json::json_pointer& leaf : leaves(value, path / key)) found.push_back(leaf);
    }
    return found;
}

struct FileForm {
    std::string file;
    std::string preset;
};
const FileForm kForms[] = {{"deepseek_v41_hf.json", "deepseek-v4.1-flash"},
                           {"deepseek_v41_flat.json", "deepseek-v4.1-flash"},
                           {"deepseek_v41_flat_text.json", "deepseek-v4.1-flash"},
                           {"deepseek_v41_inference.json", "deepseek-v4.1-flash"},
                           {"deepseek_v4_flash_hf.json", "deepseek-v4-flash"},
                           {"deepseek_v4_flash_renamed.json", "deepseek-v4-flash"},
                           {"deepseek_v4_pro_hf.json", "deepseek-v4-pro"},
                           {"tiny_hf.json", "tiny"},
                           {"tiny_inference.json", "tiny"}};
const std::string kConfigPresets[] = {"deepseek-v4.1-flash", "deepseek-v4-flash", "deepseek-v4-pro", "tiny"};

}  // namespace

TEST_CASE("config: every file form equals the preset, field by field and in the dump") {
    for (const FileForm& form : kForms) {
        CAPTURE(form.file);
        const ModelConfig config = load_config(kData + "/config/" + form.file);
        CHECK(dump_config(config) == dump_config(preset(form.preset)));
        CHECK(config == preset(form.preset));
    }
}

TEST_CASE("config: a preset holds the released numbers (spot values of both families)") {
    const ModelConfig v41 = load_config(kData + "/config/deepseek_v41_inference.json");
    CHECK(v41.hidden_size == 5120);
    CHECK(v41.max_position_embeddings == 1048576);
    CHECK(v41.engram->num_embeddings == std::vector<int64_t>{384006168, 384016682});
    CHECK(v41.engram->columns() == 24);
    CHECK(v41.dspark->stages == 3);
    CHECK(v41.compress_ratios.size() == 43);
    CHECK(v41.weight_block_size == 32);
    CHECK(v41.vision->num_hidden_layers == 32);
    const ModelConfig pro = load_config(kData + "/config/deepseek_v4_pro_hf.json");
    CHECK(pro.family == ModelFamily::deepseek_v4);
    CHECK(pro.compress_ratios.size() == 64);
    CHECK(pro.weight_block_size == 128);
    CHECK(pro.dspark->n_routed_experts == 384);
    CHECK(!load_config(kData + "/config/tiny_hf.json").vision);
}

TEST_CASE("config: the dump reads back as the same configuration") {
    for (const std::string& name : kConfigPresets) {
        CAPTURE(name);
        const std::string dump = dump_config(preset(name));
        CHECK(parse_config(dump, "dump") == preset(name));
        CHECK(dump_config(parse_config(dump, "dump")) == dump);
    }
}

TEST_CASE("config: every preset passes its own checks") {
    for (const std::string& name : kConfigPresets) CHECK_NOTHROW(validate(preset(name), name));
}

TEST_CASE("config: a missing key is named (each key of the dump in turn)") {
    for (const std::string& name : kConfigPresets) {
        const Json whole = Json::parse(dump_config(preset(name)));
        for (const Json::json_pointer& leaf : leaves(whole)) {
            if (leaf.back() == "max_wh_ratio") continue;  // optional in the released code
            CAPTURE(leaf.to_string());
            Json broken = whole;
            broken.at(leaf.parent_pointer()).erase(leaf.back());
            const UserError::Parts parts = refusal(broken);
            CHECK(parts.what == leaf.back() + " is missing");
        }
    }
}

TEST_CASE("config: a value of the wrong type or range is named (each key of the dump in turn)") {
    const std::vector<Json> never_right = {"7",
                                           true,
                                           nullptr,
                                           Json::object(),
                                           -1,
                                           -1.5,
                                           1e300,
                                           Json::parse("1e30"),
                                           Json::parse("18446744073709551616"),
                                           INT64_MIN,
                                           UINT64_MAX};
    for (const std::string& name : kConfigPresets) {
        const Json whole = Json::parse(dump_config(preset(name)));
        for (const Json::json_pointer& leaf : leaves(whole)) {
            const bool is_number = whole.at(leaf).is_number();
            for (const Json& wrong : never_right) {
                if (leaf.back() == "max_wh_ratio" && wrong.is_null()) continue;  // null: no limit
                CAPTURE(leaf.to_string());
                CAPTURE(wrong.dump());
                Json broken = whole;
                broken.at(leaf) = wrong;
                const UserError::Parts parts = refusal(broken);
                CHECK(mentions(parts.where, leaf.back()));
                if (is_number) CHECK(mentions(parts.what, leaf.back() + " is "));
            }
        }
    }
}

TEST_CASE("config: integers are JSON integers, and counts are positive (each integer of the dump in turn)") {
    for (const std::string& name : kConfigPresets) {
        const Json whole = Json::parse(dump_config(preset(name)));
        for (const Json::json_pointer& leaf : leaves(whole)) {
            if (!whole.at(leaf).is_number_integer()) continue;
            CAPTURE(leaf.to_string());
            Json broken = whole;
            broken.at(leaf) = whole.at(leaf).get<double>();  // 128.0: equal in value, not in writing
            const UserError::Parts parts = refusal(broken);
            CHECK(parts.what == leaf.back() + " is " + broken.at(leaf).dump());
            CHECK(parts.expected.find("integer") != std::string::npos);
            static const std::vector<std::string> zero_is_fine = {
                "num_hash_layers", "candidate_source_layer_id", "engram_pad_token_id",
                "dspark_noise_token_id"};
            if (std::count(zero_is_fine.begin(), zero_is_fine.end(), leaf.back()) > 0) continue;
            broken.at(leaf) = 0;
            // Without draft stages the list of ratios is too long; every other zero is out of its own range.
            const bool by_length = leaf.back() == "num_nextn_predict_layers" && !mentions(name, "v4-");
            if (leaf.back() == "num_nextn_predict_layers" && !by_length)
                continue;  // V4 files say 1 for 3 stages
            CHECK(mentions(refusal(broken).what, by_length ? "compress_ratios has" : leaf.back() + " is 0"));
        }
    }
}

TEST_CASE("config: list elements are checked one by one") {
    for (const Json& wrong : std::vector<Json>{"2", 2.0, true, nullptr, -1, 129, 1LL << 40}) {
        Json broken = file_json("tiny_hf.json");
        broken["text_config"]["compress_ratios"][3] = wrong;
        CAPTURE(wrong.dump());
        CHECK(mentions(refusal(broken).what, "compress_ratios[3] is "));
    }
}

TEST_CASE("config: text that is not JSON is refused with line and column") {
    struct Case {
        std::string text, where;
    };
    const Case cases[] = {{"", "config.json: line 1, column 1"},
                          {"{", "config.json: line 1, column 2"},
                          {"{\n  \"a\": 1,\n  \"b\": nul\n}", "config.json: line 3, column 11"},
                          {"{\"a\": 1}\n x", "config.json: line 2, column 2"},
                          {"{\"a\": 1,}", "config.json: line 1, column 9"},
                          {"{'a': 1}", "config.json: line 1, column 2"},
                          {"{\"a\": NaN}", "config.json: line 1, column 7"},
                          {"{\"a\": \"\xff\"}", "config.json: line 1, column 8"},
                          {"{\"a\": 01}", "config.json: line 1, column 8"}};
    for (const Case& c : cases) {
        const UserError::Parts parts = refusal(c.text);
        CHECK(parts.where == c.where);
        CHECK(mentions(parts.what, "not valid JSON"));
        for (const char byte : parts.what) CHECK((byte >= ' ' && byte < 127));
    }
    CHECK(mentions(refusal(std::string("{\"a\": 1e999}")).what, "JSON"));
}

TEST_CASE("config: hostile JSON is refused (roots, duplicate keys, nesting, bytes in keys)") {
    for (const char* text : {"[]", "1", "\"deepseek_v41\"", "null", "true"})
        CHECK(mentions(refusal(std::string(text)).expected, "object"));
    CHECK(
        mentions(refusal(std::string(R"({"model_type": "deepseek_v4", "model_type": "deepseek_v41"})")).what,
                 "\"model_type\" is given twice"));
    std::string twice = file_text(kData + "/config/tiny_hf.json");
    twice.insert(twice.find("\"hidden_size\""), "\"hidden_size\": 256, ");
    CHECK(mentions(refusal(twice).what, "\"hidden_size\" is given twice"));
    // The same key in two different objects is no duplicate.
    CHECK_NOTHROW(load_config(kData + "/config/deepseek_v41_hf.json"));
    CHECK(mentions(refusal(std::string(100000, '[')).what, "nested"));
    std::string deep;
    for (int i = 0; i < 100; ++i) deep += "{\"a\":";
    CHECK(mentions(refusal(deep).what, "nested"));
    const auto is_ascii = [](const std::string& text) {
        return std::all_of(text.begin(), text.end(), [](char byte) { return byte >= ' ' && byte < 127; });
    };
    CHECK(is_ascii(refusal(std::string("{\"\\u001b[31m\":1,\"\\u001b[31m\":2}")).what));
    Json escape = file_json("tiny_hf.json");
    escape["\x1b[31m"] = 1;
    escape["text_config"]["\x1b[31m"] = 2;
    const UserError::Parts parts = refusal(escape);
    CHECK(is_ascii(parts.what + parts.where + parts.expected));
    Json unknown_type = file_json("tiny_hf.json");
    unknown_type["model_type"] = "\x1b" + std::string(10000, 'x');
    CHECK(is_ascii(refusal(unknown_type).what));
    CHECK(refusal(unknown_type).what.size() < 200);
}

TEST_CASE("config: files that cannot be read are refused") {
    const std::filesystem::path folder = std::filesystem::temp_directory_path() /
                                         ("touchstone_config_test_" + std::to_string(std::random_device{}()));
    std::filesystem::create_directories(folder);
    CHECK(load_refusal((folder / "absent.json").string()).what == "there is no such file");
    const UserError::Parts directory = load_refusal(folder.string());
    CHECK(directory.what == "this is a directory");
    CHECK(mentions(directory.remedy, "/config.json"));
    if (std::filesystem::exists("/dev/zero")) CHECK(mentions(load_refusal("/dev/zero").what, "regular file"));
    const std::string big = (folder / "big.json").string();
    std::ofstream(big) << std::string(100, ' ');
    std::filesystem::resize_file(big, (16 << 20) + 1);
    CHECK(mentions(load_refusal(big).what, "16777217 bytes"));
    // The limit itself is read, and judged by its content.
    std::filesystem::resize_file(big, 16 << 20);
    CHECK(mentions(load_refusal(big).what, "not valid JSON"));
    std::filesystem::remove_all(folder);
}

TEST_CASE("config: model_type is matched exactly") {
    for (const char* type :
         {"deepseek_v41_", "deepseek_v41x", "deepseek_v4_1", "deepseek_v4x", "deepseek_v", "deepseek_v3",
          "deepseek_v32", "DEEPSEEK_V41", " deepseek_v41", "deepseek_v41_vision", "llama", ""}) {
        for (const char* file : {"tiny_hf.json", "deepseek_v4_flash_hf.json"}) {
            Json json = file_json(file);
            json["model_type"] = type;
            const UserError::Parts parts = refusal(json);
            CHECK(parts.where == "config.json: model_type");
            CHECK(mentions(parts.expected, "deepseek_v41, deepseek_v41_text, deepseek_v4"));
        }
    }
    Json text = file_json("tiny_hf.json");
    text["text_config"]["model_type"] = "deepseek_v4";
    CHECK(refusal(text).where == "config.json: text_config.model_type");
    // A V4 file under the V4.1 name, and the reverse, lack keys of their family.
    Json v4 = file_json("deepseek_v4_flash_hf.json");
    v4["model_type"] = "deepseek_v41";
    CHECK(mentions(refusal(v4).what, "is missing"));
    Json v41 = file_json("deepseek_v41_flat.json");
    v41["model_type"] = "deepseek_v4";
    CHECK(refusal(v41).where == "config.json: kv_source_layer_ids");
    CHECK(mentions(refusal(std::string("{}")).what, "model_type is missing"));
    CHECK(mentions(refusal(std::string(R"({"dim": 5120})")).where, "vocab_size"));
}

TEST_CASE("config: a renamed key is named with the one that was meant") {
    struct Case {
        std::string file, from, to;
    };
    const Case cases[] = {{"tiny_hf.json", "/text_config/sliding_window", "sliding_windw"},
                          {"tiny_hf.json", "/text_config/hidden_size", "hiden_size"},
                          {"tiny_hf.json", "/text_config", "text_cfg"},
                          {"tiny_hf.json", "/model_type", "modeltype"},
                          {"tiny_inference.json", "/kv_source_layers", "kv_source_layer"},
                          {"deepseek_v4_flash_hf.json", "/compress_ratios", "compress_ratio"}};
    for (const Case& c : cases) {
        Json json = file_json(c.file);
        const Json::json_pointer from(c.from);
        json.at(from.parent_pointer())[c.to] = json.at(from);
        json.at(from.parent_pointer()).erase(from.back());
        const UserError::Parts parts = refusal(json);
        CHECK(parts.what == from.back() + " is missing");
        CHECK(mentions(parts.remedy, c.to));
    }
    // q_lora_rank is no slip of o_lora_rank: the file means both.
    Json json = file_json("tiny_hf.json");
    json["text_config"].erase("o_lora_rank");
    CHECK(refusal(json).remedy.empty());
}

namespace {

struct CrossFieldCase {
    std::string file;
    std::string key;    ///< JSON pointer
    std::string value;  ///< JSON
    std::string where;  ///< last part of "where"
    std::string what;   ///< part of "what" or of "expected"
};

const CrossFieldCase kCrossField[] = {
    {"tiny_hf.json", "/text_config/compress_ratios", "[0,0,2,2,2,2,1,1,1,1,0,0]", "compress_ratios",
     "has 12 values"},
    {"tiny_hf.json", "/text_config/compress_ratios", "[0,0,2,2,2,2,1,1,1,1,0,0,0,0]", "compress_ratios",
     "13 values"},
    {"tiny_hf.json", "/text_config/compress_ratios/4", "4", "compress_ratios", "compress_ratios[4] is 4"},
    {"tiny_hf.json", "/text_config/compress_ratios/11", "1", "compress_ratios",
     "a draft stage keeps only its window"},
    {"tiny_hf.json", "/text_config/compress_ratios/4", "0", "kv_source_layer_ids", "KV source with ratio 0"},
    {"tiny_hf.json", "/text_config/compress_ratios/8", "0", "index_source_layer_ids",
     "index source with ratio 0"},
    {"tiny_hf.json", "/text_config/compress_ratios/1", "2", "compress_ratios", "no KV source precedes it"},
    {"tiny_hf.json", "/text_config/compress_ratios/5", "1", "compress_ratios", "its KV source 4 has 2"},
    {"tiny_hf.json", "/text_config/kv_source_layer_ids", "[2,6,4]", "kv_source_layer_ids", "ascending"},
    {"tiny_hf.json", "/text_config/kv_source_layer_ids", "[2,4,4,6]", "kv_source_layer_ids", "ascending"},
    {"tiny_hf.json", "/text_config/kv_source_layer_ids", "[2,4,6,10]", "kv_source_layer_ids", "from 0 to 9"},
    {"tiny_hf.json", "/text_config/kv_source_layer_ids", "[]", "compress_ratios", "no KV source"},
    {"tiny_hf.json", "/text_config/index_source_layer_ids", "[2,4,8]", "index_source_layer_ids",
     "not an index source"},
    {"tiny_hf.json", "/text_config/index_source_layer_ids", "[2,4,6,8,12]", "index_source_layer_ids",
     "from 0 to 9"},
    {"tiny_hf.json", "/text_config/candidate_source_layer_id", "8", "candidate_source_layer_id",
     "kv_source_layer_ids"},
    {"tiny_hf.json", "/text_config/candidate_source_layer_id", "4", "candidate_source_layer_id",
     "the last of"},
    {"tiny_hf.json", "/text_config/candidate_block_size", "0", "candidate_block_size", "from 1"},
    {"tiny_hf.json", "/text_config/qk_rope_head_dim", "31", "qk_rope_head_dim", "multiple of 2"},
    {"tiny_hf.json", "/text_config/qk_rope_head_dim", "96", "qk_rope_head_dim",
     "at most head_dim and index_head_dim: 64"},
    {"tiny_hf.json", "/text_config/qk_rope_head_dim", "256", "qk_rope_head_dim", "at most head_dim"},
    {"tiny_hf.json", "/text_config/head_dim", "100", "head_dim", "multiple of 32"},
    {"tiny_hf.json", "/text_config/hidden_size", "250", "hidden_size", "multiple of 32"},
    {"tiny_hf.json", "/text_config/o_groups", "3", "o_groups", "divisor of num_attention_heads"},
    {"tiny_hf.json", "/text_config/num_experts_per_tok", "9", "num_experts_per_tok", "n_routed_experts, 8"},
    {"tiny_hf.json", "/text_config/n_shared_experts", "2", "n_shared_experts", "the integer 1"},
    {"tiny_hf.json", "/text_config/num_hash_layers", "3", "num_hash_layers", "0, the only choice"},
    {"tiny_hf.json", "/text_config/engram_num_embeddings", "[6126]", "engram_num_embeddings", "has 1 values"},
    {"tiny_hf.json", "/text_config/engram_num_embeddings/0", "5999", "engram_num_embeddings", "from columns"},
    {"tiny_hf.json", "/text_config/engram_layer_ids", "[1,10]", "engram_layer_ids", "from 0 to 9"},
    {"tiny_hf.json", "/text_config/engram_pad_token_id", "512", "engram_pad_token_id", "below vocab_size"},
    {"tiny_hf.json", "/text_config/dspark_target_layer_ids", "[7,8,10]", "dspark_target_layer_ids",
     "from 0 to 9"},
    {"tiny_hf.json", "/text_config/dspark_target_layer_ids", "[]", "dspark_target_layer_ids", "empty"},
    {"tiny_hf.json", "/text_config/dspark_num_experts_per_tok", "5", "dspark_num_experts_per_tok",
     "at most 4"},
    {"tiny_hf.json", "/text_config/dspark_noise_token_id", "512", "dspark_noise_token_id",
     "below vocab_size"},
    {"tiny_hf.json", "/text_config/num_nextn_predict_layers", "2", "compress_ratios", "has 13 values"},
    {"tiny_hf.json", "/text_config/max_position_embeddings", "1048577", "max_position_embeddings",
     "already in it"},
    {"tiny_hf.json", "/text_config/scoring_func", "\"sigmoid\"", "scoring_func", "sqrtsoftplus"},
    {"tiny_hf.json", "/text_config/tie_word_embeddings", "true", "tie_word_embeddings", "only choice"},
    {"tiny_hf.json", "/text_config/num_key_value_heads", "8", "num_key_value_heads", "only choice"},
    {"tiny_hf.json", "/text_config/rope_scaling/rope_type", "\"linear\"", "rope_scaling.rope_type", "yarn"},
    {"tiny_hf.json", "/text_config/rope_scaling", "null", "rope_scaling", "object"},
    {"tiny_hf.json", "/hidden_size", "512", "hidden_size", "text_config has, 256"},
    {"tiny_hf.json", "/quantization_config/weight_block_size", "[128,128]", "weight_block_size", "[32, 32]"},
    {"tiny_hf.json", "/quantization_config/weight_block_size", "[32,64]", "weight_block_size", "two equal"},
    {"tiny_hf.json", "/quantization_config/weight_block_size", "[32]", "weight_block_size", "two equal"},
    {"tiny_hf.json", "/quantization_config/expert_dtype", "\"fp8\"", "expert_dtype", "fp4"},
    {"tiny_hf.json", "/quantization_config/expert_dtype", "\"int4\"", "expert_dtype", "one of"},
    {"tiny_hf.json", "/quantization_config/quant_method", "\"bf16\"", "quant_method", "fp8"},
    {"tiny_hf.json", "/quantization_config/scale_fmt", "\"float\"", "scale_fmt", "ue8m0"},
    {"tiny_hf.json", "/quantization_config", "null", "quantization_config", "object"},
    {"deepseek_v41_hf.json", "/vision_config/num_attention_heads", "15", "num_attention_heads", "divisor"},
    {"deepseek_v41_hf.json", "/vision_config/patch_size", "0", "vision_config.patch_size", "from 1"},
    {"deepseek_v41_flat_text.json", "/text_config", "{}", "text_config", "no such key"},
    {"tiny_inference.json", "/dtype", "\"bf16\"", "dtype", "fp8"},
    {"tiny_inference.json", "/candidate_source_layer", "8", "candidate_source_layer", "the last of"},
    {"tiny_inference.json", "/window_size", "-48", "window_size", "window_size is -48"},
    {"tiny_inference.json", "/max_seq_len", "1048577", "max_seq_len", "already in it"},
    {"tiny_inference.json", "/n_hash_layers", "3", "n_hash_layers", "0, the only choice"},
    {"deepseek_v4_flash_hf.json", "/compress_ratios/5", "2", "compress_ratios", "one of 0, 4, 128"},
    {"deepseek_v4_flash_hf.json", "/compress_ratios/45", "4", "compress_ratios",
     "ratio 0 for every draft stage"},
    {"deepseek_v4_flash_hf.json", "/num_hash_layers", "44", "num_hash_layers", "from 0 to 43"},
    {"deepseek_v4_flash_hf.json", "/quantization_config/weight_block_size", "[32,32]", "weight_block_size",
     "[128, 128]"},
    {"deepseek_v4_flash_hf.json", "/qk_rope_head_dim", "66", "qk_rope_head_dim", "multiple of 64"},
    {"deepseek_v4_flash_hf.json", "/max_position_embeddings", "33554432", "max_position_embeddings",
     "already in it"},
};

}  // namespace

TEST_CASE("config: contradictions between fields are named") {
    for (const CrossFieldCase& c : kCrossField) {
        CAPTURE(c.file);
        CAPTURE(c.key);
        CAPTURE(c.value);
        Json json = file_json(c.file);
        json[Json::json_pointer(c.key)] = Json::parse(c.value);
        const UserError::Parts parts = refusal(json);
        CAPTURE(parts.what);
        CAPTURE(parts.expected);
        CHECK_MESSAGE(parts.where.ends_with(c.where), parts.where);
        CHECK(mentions(parts.what + "\n" + parts.expected, c.what));
    }
}

TEST_CASE("config: the position limit is never multiplied by the YaRN factor again") {
    CHECK(preset("deepseek-v4.1-flash").max_position_embeddings == 1048576);
    Json released = file_json("deepseek_v41_inference.json");
    CHECK(parse_config(released.dump(), "x").max_position_embeddings == 65536 * 16);
    released["max_seq_len"] = 4096;
    CHECK(parse_config(released.dump(), "x").max_position_embeddings == 4096);
    released.erase("max_seq_len");
    released["rope_factor"] = 1.5;
    CHECK(parse_config(released.dump(), "x").max_position_embeddings == 98304);
    released["rope_factor"] = 1.0000001;
    CHECK(refusal(released).where == "config.json: rope_factor");
}

TEST_CASE("config: parts that a model may lack (vision, Engram, draft stages)") {
    Json json = file_json("deepseek_v41_hf.json");
    json["vision_config"] = nullptr;
    json["text_config"]["num_nextn_predict_layers"] = 0;
    json["text_config"]["compress_ratios"].erase(40);
    json["text_config"]["compress_ratios"].erase(40);
    json["text_config"]["compress_ratios"].erase(40);
    json["text_config"]["engram_layer_ids"] = Json::array();
    const ModelConfig config = parse_config(json.dump(), "x");
    CHECK(!config.vision);
    CHECK(!config.engram);
    CHECK(!config.dspark);
    CHECK(parse_config(dump_config(config), "dump") == config);
    Json flash = file_json("deepseek_v41_hf.json");
    flash["vision_config"]["max_wh_ratio"] = 200;
    CHECK(parse_config(flash.dump(), "x").vision->max_wh_ratio == 200.0);
}

TEST_CASE("config: V4 draft stages (trailing ratios of both released lengths)") {
    Json json = file_json("deepseek_v4_flash_hf.json");
    json["compress_ratios"].erase(45);
    json["compress_ratios"].erase(44);  // num_nextn_predict_layers of them
    CHECK(parse_config(json.dump(), "x") == preset("deepseek-v4-flash"));
    json["compress_ratios"].push_back(0);
    CHECK(mentions(refusal(json).expected, "44 or 46 values"));
    // The first V4-Flash: one next-token stage and no DSpark.
    Json june = file_json("deepseek_v4_flash_hf.json");
    for (const char* key :
         {"dspark_block_size", "dspark_noise_token_id", "dspark_target_layer_ids", "dspark_markov_rank"})
        june.erase(key);
    CHECK(mentions(refusal(june).expected, "44 values"));
    june["compress_ratios"].erase(45);
    june["compress_ratios"].erase(44);
    const ModelConfig config = parse_config(june.dump(), "x");
    CHECK(!config.dspark);
    CHECK(config.compress_ratios.size() == 44);
    CHECK(parse_config(dump_config(config), "dump") == config);
}

TEST_CASE("config: V4 old and renamed keys (agreeing, contradicting, unknown)") {
    const Json old_form = file_json("deepseek_v4_flash_hf.json");
    Json mixed = file_json("deepseek_v4_flash_renamed.json");
    for (const char* key : {"compress_ratios", "num_hash_layers", "qk_rope_head_dim", "rope_scaling"})
        mixed[key] = old_form[key];
    CHECK(parse_config(mixed.dump(), "x") == preset("deepseek-v4-flash"));
    struct Case {
        std::string key, value, where, what;
    };
    const Case cases[] = {
        {"/layer_types/1", "\"linear_attention\"", "layer_types",
         "layer_types[1] is unknown: \"linear_attention\""},
        {"/layer_types/1", "\"compressed_sparse_attention\"", "compress_ratios", "layer_types"},
        {"/layer_types/1", "7", "layer_types", "texts"},
        {"/layer_types", "[\"sliding_attention\"]", "layer_types", "43 values"},
        {"/compress_rates/compressed_sparse_attention", "8", "compressed_sparse_attention", "the integer 4"},
        {"/compress_rates", "{}", "heavily_compressed_attention", ""},
        {"/mlp_layer_types/3", "\"hash_moe\"", "num_hash_layers", "4 hash_moe"},
        {"/mlp_layer_types/9", "\"hash_moe\"", "mlp_layer_types", "leading"},
        {"/mlp_layer_types/9", "\"dense\"", "mlp_layer_types", "leading"},
        {"/partial_rotary_factor", "0.25", "partial_rotary_factor", "qk_rope_head_dim / head_dim"},
        {"/rope_scaling/factor", "8", "rope_scaling", "rope_parameters"},
        {"/rope_parameters/main/rope_theta", "20000", "rope_theta", "20000"},
        {"/rope_parameters/compress/rope_theta", "20000", "compress_rope_theta", "20000"},
        {"/rope_parameters/compress/attention_factor", "1.2772588722239782", "attention_factor",
         "not scaled"},
        {"/compress_rate_csa", "8", "compress_rate_csa", "only choice"},
        {"/kv_source_layer_ids", "[2]", "kv_source_layer_ids", "no such key in a V4 file"},
        {"/engram_layer_ids", "[1]", "engram_layer_ids", "no such key in a V4 file"},
    };
    for (const Case& c : cases) {
        CAPTURE(c.key);
        CAPTURE(c.value);
        Json json = mixed;
        json[Json::json_pointer(c.key)] = Json::parse(c.value);
        const UserError::Parts parts = refusal(json);
        CAPTURE(parts.what);
        if (c.key != "/compress_rates") CHECK(mentions(parts.where, c.where));
        CHECK(mentions(parts.what + "\n" + parts.expected, c.what));
    }
    Json flat_rope = file_json("deepseek_v4_flash_renamed.json");
    flat_rope["rope_parameters"] = old_form["rope_scaling"];
    CHECK(parse_config(flat_rope.dump(), "x") == preset("deepseek-v4-flash"));
    Json runner = file_json("tiny_inference.json");
    runner.erase("kv_source_layers");
    runner["n_hash_layers"] = 3;
    CHECK(mentions(refusal(runner).what, "V4 configuration in the inference form"));
}

TEST_CASE("config: sizes whose byte counts would leave int64 are refused") {
    Json json = file_json("deepseek_v41_hf.json");
    Json& text = json["text_config"];
    text["n_routed_experts"] = 65536;
    text["moe_intermediate_size"] = 1 << 20;
    text["hidden_size"] = 1 << 20;
    CHECK(mentions(refusal(json).what, "parameters"));
    json = file_json("deepseek_v41_hf.json");
    json["text_config"]["head_dim"] = 1 << 15;
    CHECK(mentions(refusal(json).what, "bytes of cache"));
}

TEST_CASE("config: validate refuses objects that no file could hold") {
    const std::function<void(ModelConfig&)> edits[] = {
        [](ModelConfig& c) { c.sliding_window = -128; },
        [](ModelConfig& c) { c.rms_norm_eps = std::nan(""); },
        [](ModelConfig& c) { c.num_hidden_layers = INT64_MAX; },
        [](ModelConfig& c) { c.dspark->stages = INT64_MAX; },
        [](ModelConfig& c) { c.engram->n_heads = INT64_MAX; },
        [](ModelConfig& c) { c.engram->num_embeddings[0] = INT64_MIN; },
        [](ModelConfig& c) { c.kv_source_layer_ids = {-1}; },
        [](ModelConfig& c) { c.compress_ratios.clear(); },
        [](ModelConfig& c) { c.weight_block_size = 0; },
        [](ModelConfig& c) { c.expert_format = WeightFormat::bf16; },
        [](ModelConfig& c) { c.num_hash_layers = 1; },
        [](ModelConfig& c) { c.vision->max_wh_ratio = -1; },
        [](ModelConfig& c) { c.family = ModelFamily::deepseek_v4; },
    };
    for (const auto& edit : edits) {
        ModelConfig config = preset("deepseek-v4.1-flash");
        edit(config);
        CHECK_THROWS_AS(validate(config, "object"), UserError);
    }
}

TEST_CASE("presets: names, order and lookup") {
    const std::vector<std::string> expected = {"deepseek-v4.1-flash",
                                               "deepseek-v4-flash",
                                               "deepseek-v4-pro",
                                               "deepseek-v3.2",
                                               "deepseek-v3",
                                               "deepseek-v2",
                                               "deepseek-v1-67b",
                                               "llama-3.1-8b",
                                               "llama-3.1-70b",
                                               "llama-3.1-405b",
                                               "qwen3-32b",
                                               "qwen3-235b-a22b",
                                               "qwen3-coder-480b",
                                               "qwen3.5-397b",
                                               "glm-5",
                                               "kimi-k2",
                                               "kimi-k3",
                                               "minimax-m2.5",
                                               "minimax-m3",
                                               "gpt-oss-120b",
                                               "gpt-oss-20b",
                                               "tiny"};
    CHECK(preset_names() == expected);
    for (const std::string& name : expected) {
        const Model model = find_model(name);
        CHECK(model.name == name);
        CHECK(!model.source.empty());
    }
    const Model from_file = find_model(kData + "/config/tiny_hf.json");
    CHECK(*from_file.config() == preset("tiny"));
    CHECK(from_file.name == kData + "/config/tiny_hf.json");
}

TEST_CASE("presets: an unknown name is refused with the list and a guess; a path is read") {
    const auto refused = [](const std::string& word) {
        try {
            find_model(word);
        } catch (const UserError& error) {
            return error.parts();
        }
        FAIL("accepted " << word);
        return UserError::Parts{};
    };
    CHECK(mentions(refused("deepseek-v4.1-flsh").remedy, "\"deepseek-v4.1-flash\""));
    CHECK(mentions(refused("Tiny").remedy, "\"tiny\""));
    CHECK(refused("zebra").remedy.empty());
    CHECK(mentions(refused("zebra").expected, "gpt-oss-20b"));
    CHECK(mentions(refused("").what, "there is no model"));
    CHECK(refused("absent.json").what == "there is no such file");
    CHECK(refused("./absent").what == "there is no such file");
}

TEST_CASE("presets: baselines give the published bytes per token in bf16 (two bytes per channel)") {
    struct Case {
        std::string name;
        int64_t bytes_per_token;
    };
    const Case cases[] = {{"deepseek-v3", 70272},
                          {"deepseek-v2", 69120},
                          {"deepseek-v1-67b", 389120},
                          {"llama-3.1-8b", 131072},
                          {"llama-3.1-70b", 327680},
                          {"llama-3.1-405b", 516096},
                          {"qwen3-32b", 262144},
                          {"qwen3-235b-a22b", 192512},
                          {"qwen3-coder-480b", 253952},
                          {"qwen3.5-397b", 30720},
                          {"glm-5", 89856},
                          {"kimi-k2", 70272},
                          {"kimi-k3", 27648},
                          {"minimax-m2.5", 253952},
                          {"minimax-m3", 122880},
                          {"gpt-oss-120b", 36864},
                          {"gpt-oss-20b", 24576}};
    for (const Case& c : cases) {
        CAPTURE(c.name);
        const Model model = find_model(c.name);
        const BaselineModel& b = *model.baseline();
        const int64_t channels = b.attention == BaselineAttention::gqa ? 2 * b.kv_heads * b.head_dim
                                                                       : b.kv_lora_rank + b.rope_head_dim;
        CHECK(2 * b.cached_layers * channels == c.bytes_per_token);
    }
    const BaselineModel sparse = *find_model("deepseek-v3.2").baseline();
    CHECK(sparse.attention == BaselineAttention::mla_sparse);
    CHECK(sparse.cached_layers * (656 + 132) == 48068);
    CHECK(sparse.index_head_dim == 128);
    const BaselineModel oss = *find_model("gpt-oss-120b").baseline();
    CHECK(oss.windowed_layers * oss.window_tokens * 2 * oss.kv_heads * oss.head_dim * 2 == 4718592);
    CHECK(find_model("gpt-oss-20b").baseline()->windowed_layers == 12);
    for (const char* name : {"qwen3.5-397b", "kimi-k3"})
        CHECK(find_model(name).baseline()->not_counted.size() == 1);
    for (const char* name : {"glm-5", "minimax-m3", "gpt-oss-20b"})
        CHECK(find_model(name).baseline()->assumptions.size() == 1);
}
