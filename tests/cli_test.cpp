// The command line as a new user meets it: answers, JSON, CSV, errors and exit codes.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/command_line.h"

using namespace touchstone::command_line;

namespace {

std::string data(const char* name) {
    return std::string(TOUCHSTONE_TEST_DATA) + "/config/" + name;
}

json read_config(const char* name) {
    return json::parse(read_file(data(name)));
}

}  // namespace

TEST_CASE("kv --json: 890 bytes per token in four modules") {
    const json kv = run_json("kv");
    CHECK(kv["schema"] == "touchstone.kv/1");
    CHECK(kv["bytes_per_token"].is_number_integer());
    CHECK(kv["bytes_per_token"] == 890);
    CHECK(kv["fixed_bytes_per_request"]["window"] == 2703360);
    CHECK(kv["fixed_bytes_per_request"]["draft_window"] == 202752);
    CHECK(kv["fixed_bytes_per_request"]["compressor_state"] == 98304);
    CHECK(kv["fixed_bytes_per_request"]["engram_history"] == 12);
    std::vector<std::pair<std::string, int>> modules;
    for (const json& module : kv["modules"]) modules.emplace_back(module["name"], module["bytes_per_token"]);
    CHECK(modules == std::vector<std::pair<std::string, int>>{
                         {"main_kv", 432}, {"main_kv", 288}, {"index_key", 102}, {"index_key", 68}});
    CHECK(!kv["assumptions"].empty());
}

TEST_CASE("kv --context --json: exact bytes") {
    const std::vector<std::pair<const char*, int64_t>> table{{"1048576", 933232640},
                                                             {"1M", 933232640},
                                                             {"131072", 116654080},
                                                             {"128K", 116654080},
                                                             {"127", 112496},
                                                             {"3", 2136},
                                                             {"1", 356},
                                                             {"0", 0}};
    for (const auto& row : table) {
        const char* context = row.first;
        const int64_t bytes = row.second;
        CAPTURE(context);
        const json kv = run_json(std::string("kv --context ") + context);
        CHECK(kv["global_bytes"] == bytes);
        CHECK(kv["total_bytes"] == bytes + 2703360 + 202752 + 98304 + 12);
    }
    CHECK(run_json("kv --context 1099511627776")["global_bytes"] == 978565348720640);
    CHECK(run_json("kv --context 1024G")["context_tokens"] == 1099511627776);
}

TEST_CASE("kv --compare --json: exact rationals and ratios") {
    const json kv = run_json("kv --compare deepseek-v4-flash,deepseek-v4-pro,deepseek-v3.2,deepseek-v3");
    const json& compare = kv["compare"];
    REQUIRE(compare.size() == 4);
    CHECK(compare[0]["bytes_per_token"] == 3514.25);
    CHECK(compare[0]["bytes_per_token_exact"] == "14057/4");
    CHECK(compare[0]["ratio_exact"] == "14057/3560");
    CHECK(compare[1]["bytes_per_token"] == 5031.4375);
    CHECK(compare[1]["bytes_per_token_exact"] == "80503/16");
    CHECK(compare[2]["bytes_per_token"] == 48068);
    CHECK(compare[2]["ratio_exact"] == "24034/445");
    CHECK(compare[3]["bytes_per_token"] == 70272);
    CHECK(compare[3]["ratio"].get<double>() == doctest::Approx(70272.0 / 890));
}

TEST_CASE("kv --format --json: the storage formats of the field") {
    const std::vector<std::pair<const char*, int>> table{{"fp4", 890},  {"fp8-fp4index", 1490},
                                                         {"fp8", 1650}, {"v4-fp4index", 1630},
                                                         {"v4", 1790},  {"bf16", 2890}};
    for (const auto& row : table) {
        const char* format = row.first;
        const int bytes = row.second;
        CAPTURE(format);
        CHECK(run_json(std::string("kv --format ") + format)["bytes_per_token"] == bytes);
    }
}

TEST_CASE("kv: requests, budget, turns, chain") {
    const json kv = run_json(
        "kv --context 128K --requests 1000 --budget 80GiB --draft off --new-tokens 500,10000 --chain");
    CHECK(kv["resident_requests"] == 719);
    CHECK(kv["requests_total_bytes"] == 1000 * kv["total_bytes"].get<int64_t>());
    CHECK(kv["persistent_per_turn"][1]["total_bytes"] == 8900000);
    CHECK(kv["chain"][1]["bytes_per_token"] == 652);
    CHECK(run_json("kv --context 1099511627776 --requests 4096")["requests_total_bytes"] > 0);
}

TEST_CASE("kv: text and CSV carry the same numbers") {
    const Result text = run_touchstone("kv --context 1M --compare deepseek-v4-flash");
    CHECK(text.exit_code == 0);
    for (const char* fragment :
         {"total: 890 B/token", "933,232,640", "2,703,360", "3,514.25", "Assumptions"}) {
        CAPTURE(fragment);
        CHECK(text.out.find(fragment) != std::string::npos);
    }
    const Result csv = run_touchstone("kv --csv");
    CHECK(csv.out ==
          "module,layers,compress_ratio,record,record_bytes,bytes_per_token\r\n"
          "main_kv,\"2, 8, 14\",2,512 e2m1 /16 e4m3,288,432\r\n"
          "main_kv,20,1,512 e2m1 /16 e4m3,288,288\r\n"
          "index_key,\"2, 8, 14\",2,128 e2m1 /32 e8m0,68,102\r\n"
          "index_key,20,1,128 e2m1 /32 e8m0,68,68\r\n");
    CHECK(run_touchstone("kv --csv --compare deepseek-v4-flash").out.find("14057") == std::string::npos);
    CHECK(run_touchstone("kv --csv --chain").out.find("3514.25") != std::string::npos);
}

TEST_CASE("layers: roles and weights") {
    const json layers = run_json("layers --weights");
    CHECK(layers["schema"] == "touchstone.layers/1");
    REQUIRE(layers["layers"].size() == 43);
    CHECK(layers["layers"][21]["kv_source"] == 20);
    CHECK(layers["layers"][24]["mode"] == "reindex");
    CHECK(layers["layers"][0]["kv_source"].is_null());
    CHECK(layers["weights"]["tensors"] == 96085);
    CHECK(layers["weights"]["stored_bytes"] == 510286023000);
    CHECK(layers["weights"]["backbone_parameters"] == 551566180464);
    CHECK(layers["weights"]["parameters"] == 763205315794);
    CHECK(run_touchstone("layers").out.find("reindex") != std::string::npos);
    CHECK(run_touchstone("layers --csv --model deepseek-v4-pro").exit_code == 0);
    check_refused("layers --model llama-3.1-8b", {"llama-3.1-8b", "baseline"});
    check_refused("layers --weights --model deepseek-v4-flash", {"deepseek_v4", "without --weights"});
}

TEST_CASE("replay: lengths and ratios") {
    const json replay = run_json("replay --context 65536");
    CHECK(replay["schema"] == "touchstone.replay/1");
    CHECK(replay["exact_halo_tokens"] == 2541);
    CHECK(replay["bounded_tokens"] == 128);
    CHECK(std::abs(replay["prefill"]["bounded"]["ratio_to_full"].get<double>() - 0.511) < 5e-4);
    CHECK(std::abs(replay["prefill"]["exact"]["ratio_to_full"].get<double>() - 0.529) < 5e-4);
    const json turn = run_json("replay --context 64K --new 512");
    CHECK(turn["turn"]["miss_bounded"]["window_bytes_rebuilt"] == 1351680);
    CHECK(turn["prefix_global_bytes"] == 890 * (65536 - 512));
    CHECK(run_touchstone("replay --context 64K --csv").exit_code == 0);
    check_refused("replay --context 100 --new 101", {"--new"});
    check_refused("replay --context 0", {"--context"});
    check_refused("replay", {"--context"});
    check_refused("replay --context 64K --model deepseek-v4-flash", {"deepseek-v4-flash"});
}

TEST_CASE("config files answer as the preset does (both forms of V4.1, V4 recognised)") {
    const json preset = run_json("kv --context 12345 --compare deepseek-v4-flash");
    for (const char* file : {"deepseek_v41_hf.json", "deepseek_v41_inference.json"}) {
        CAPTURE(file);
        json kv = run_json("kv --context 12345 --compare deepseek-v4-flash --model " + data(file));
        for (const char* key : {"modules", "fixed_bytes_per_request", "bytes_per_token", "global_bytes",
                                "total_bytes", "by_mode"}) {
            CAPTURE(key);
            CHECK(kv[key] == preset[key]);
        }
        CHECK(run_json("layers --weights --model " + data(file))["weights"] ==
              run_json("layers --weights")["weights"]);
    }
    CHECK(run_json("kv --model " + data("deepseek_v4_flash_hf.json"))["bytes_per_token"] == 3514.25);
    CHECK(run_json("kv --model " + data("deepseek_v4_pro_hf.json"))["bytes_per_token"] == 5031.4375);
}

TEST_CASE("bad input: files that cannot be a configuration") {
    check_refused("kv --model /no/such/config.json", {"/no/such/config.json"});
    check_refused("kv --model " + scratch().string() + "/", {scratch().string()});
    check_refused("kv --model " + write_file("broken.json", "{\n  \"a\": 1,\n  oops\n}"),
                  {"broken.json", "line 3", "column"});
    check_refused("kv --model " + write_file("list.json", "[1, 2]"), {"list.json", "object"});
    check_refused("kv --model " + write_file("other.json", "{\"model_type\": \"llama\"}"),
                  {"llama", "deepseek_v41"});
    check_refused("kv --model " + write_file("near.json", "{\"model_type\": \"deepseek_v4_1\"}"),
                  {"deepseek_v4_1"});
}

TEST_CASE("bad input: keys of a configuration (named, with what was expected)") {
    struct Edit {
        const char* name;
        void (*edit)(json&);
        std::vector<std::string> fragments;
    };
    const std::vector<Edit> edits{
        {"missing", [](json& c) { c["text_config"].erase("sliding_window"); }, {"sliding_window"}},
        {"renamed",
         [](json& c) {
             c["text_config"].erase("sliding_window");
             c["text_config"]["sliding_windows"] = 128;
         },
         {"sliding_window", "sliding_windows"}},
        {"type", [](json& c) { c["text_config"]["head_dim"] = "512"; }, {"head_dim", "integer"}},
        {"fraction", [](json& c) { c["text_config"]["head_dim"] = 512.5; }, {"head_dim", "integer"}},
        {"negative", [](json& c) { c["text_config"]["sliding_window"] = -128; }, {"sliding_window", "-128"}},
        {"overflow", [](json& c) { c["text_config"]["hidden_size"] = 1e30; }, {"hidden_size"}},
        {"ratios",
         [](json& c) { c["text_config"]["compress_ratios"].erase(0); },
         {"compress_ratios", "42", "43"}},
        {"source", [](json& c) { c["text_config"]["compress_ratios"][2] = 0; }, {"2"}},
        {"rope", [](json& c) { c["text_config"]["qk_rope_head_dim"] = 256; }, {"qk_rope_head_dim"}},
        {"context",
         [](json& c) { c["text_config"]["max_position_embeddings"] = 16777216; },
         {"max_position_embeddings"}},
    };
    for (const Edit& edit : edits) {
        CAPTURE(edit.name);
        json config = read_config("deepseek_v41_hf.json");
        edit.edit(config);
        std::vector<std::string> fragments = edit.fragments;
        fragments.push_back("expected:");
        check_refused("kv --model " + write_file("edited.json", config.dump(2)), fragments);
    }
}

TEST_CASE("bad input: options") {
    for (const char* context :
         {"-1", "1.5", "1e6", "12X", "1099511627777", "2048G", "99999999999999999999", "K", "''", "' 1'"}) {
        CAPTURE(context);
        check_refused(std::string("kv --context=") + context, {"--context"});
    }
    check_refused("kv --model deepseek-v4.1-flsh",
                  {"deepseek-v4.1-flsh", "did you mean \"deepseek-v4.1-flash\""});
    check_refused("kv --format fp5", {"fp5", "fp8-fp4index"});
    check_refused("kv --compare deepseek-v3,deepseek-v3", {"deepseek-v3", "twice"});
    check_refused("kv --compare deepseek-v4.1-flash", {"twice"});
    check_refused("kv --compare deepseek-v3,,deepseek-v2", {"--compare"});
    check_refused("kv --requests 5", {"--context"});
    check_refused("kv --context 1K --requests 0", {"--requests"});
    check_refused("kv --context 1K --budget 80GX", {"--budget"});
    check_refused("kv --context 1K --budget 0.3B", {"--budget"});
    check_refused("kv --draft maybe", {"--draft"});
    check_refused("kv --compressor-rows some", {"--compressor-rows"});
    check_refused("kv --new-tokens 5,x", {"--new-tokens"});
    check_refused("kv --json --csv", {"--csv"});
    check_refused("kv --nonsense", {"--nonsense"});
    check_refused("layer", {"layer", "did you mean \"layers\""});
    check_refused("", {"subcommand"});
    check_refused("kv --model qwen3.5-397b --context 1K --budget 1GB", {"qwen3.5-397b"});
    CHECK(run_json("kv --model qwen3.5-397b --context 1K")["total_bytes"].is_null());
}

TEST_CASE("gpu: without a device, exit 3, nothing on stdout, no file, and why on stderr") {
    setenv("CUDA_VISIBLE_DEVICES", "-1", 1);
    const fs::path receipts = scratch() / "receipts.txt";
    for (const char* command : {"probe", "check", "cublas"}) {
        CAPTURE(command);
        const Result result =
            run_touchstone("gpu " + std::string(command) + " --receipts " + receipts.string());
        CHECK(result.exit_code == 3);
        CHECK(result.out.empty());
        CHECK(result.err.starts_with("touchstone: nothing compared: "));
        CHECK_FALSE(fs::exists(receipts));
    }
    unsetenv("CUDA_VISIBLE_DEVICES");
}

TEST_CASE("help and version go to stdout with exit 0") {
    for (const char* arguments : {"--help", "kv --help", "layers --help", "replay --help", "--version"}) {
        CAPTURE(arguments);
        const Result result = run_touchstone(arguments);
        CHECK(result.exit_code == 0);
        CHECK(!result.out.empty());
        CHECK(result.err.empty());
    }
    CHECK(run_touchstone("kv --help").out.find("Examples:") != std::string::npos);
}

TEST_CASE("output that cannot be written is an internal error, not silence") {
    const int status = std::system((std::string(TOUCHSTONE_BINARY) + " kv >/dev/full 2>/dev/null").c_str());
    CHECK(WEXITSTATUS(status) == 4);
}

TEST_CASE("checkpoint: make, verify and show of tiny") {
    const std::string folder = (scratch() / "tiny").string();
    const json made = run_json("checkpoint make --config tiny --seed 1 --out " + folder);
    CHECK(made["schema"] == "touchstone.checkpoint_make/1");
    CHECK(made["tensors"] == 990);
    CHECK(made["tensor_bytes"] == 11723858);
    CHECK(made["files"] == json{"model.safetensors", "config.json"});
    const json verified = run_json("checkpoint verify --values " + folder);
    CHECK(verified["schema"] == "touchstone.checkpoint_verify/1");
    CHECK(verified["sound_tensors"] == 990);
    CHECK(verified["problems"].empty());
    const json shown = run_json("checkpoint show " + folder);
    CHECK(shown["schema"] == "touchstone.checkpoint_show/1");
    CHECK(shown["total"]["present"] == 990);
    CHECK(shown["layers"].size() == 14);
    const json tensor = run_json("checkpoint show " + folder + " layers.0.ffn.experts.0.w1.weight");
    CHECK(tensor["schema"] == "touchstone.checkpoint_tensor/1");
    CHECK(tensor["type"] == "I8");
    CHECK(tensor["elements"] == 64 * 256);
    CHECK(tensor["first"].size() == 8);
    CHECK(tensor["rms"] > 0.1);
    CHECK(run_touchstone("checkpoint show " + folder).out.find("10 (mtp.0)") != std::string::npos);
    CHECK(run_touchstone("checkpoint show --csv " + folder).out.find("outside layers,3,3,524800,524800") !=
          std::string::npos);
    CHECK(run_touchstone("checkpoint show " + folder + " norm.weight").out.find("BF16 [256]") !=
          std::string::npos);
    check_refused("checkpoint make --config tiny --out " + folder, {"the folder is not empty", folder});
    check_refused("checkpoint show " + folder + " norm.wieght", {"did you mean \"norm.weight\"?"});
}

TEST_CASE("checkpoint: a layer alone says what it lacks, and verify fails with exit 1") {
    const std::string folder = (scratch() / "layer").string();
    const Result made = run_touchstone("checkpoint make --config tiny --layer 1 --out " + folder);
    CHECK(made.exit_code == 0);
    CHECK(made.err.find("the Engram table of layer 1 is left out; --engram-tables") != std::string::npos);
    CHECK(made.out.find("82 tensors") != std::string::npos);
    const Result layer = run_touchstone("checkpoint verify --layer 1 " + folder);
    CHECK(layer.exit_code == 1);
    CHECK(layer.out.find("missing: layers.1.engram.embed.weight") != std::string::npos);
    const Result whole = run_touchstone("checkpoint verify --json " + folder);
    CHECK(whole.exit_code == 1);
    CHECK(json::parse(whole.out)["problem_count"] == 908);
    CHECK(run_touchstone("checkpoint verify " + folder).out.find("and 808 more problems") !=
          std::string::npos);
}

TEST_CASE("checkpoint: bad options and folders are refused before anything is written") {
    const std::string folder = (scratch() / "none").string();
    check_refused("checkpoint make --config tiny --seed -1 --out " + folder, {"--seed is \"-1\""});
    check_refused("checkpoint make --config tiny --seed 18446744073709551616 --out " + folder, {"--seed"});
    check_refused("checkpoint make --config tiny --layer 13 --out " + folder,
                  {"there is no layer 13", "0 to 12"});
    check_refused("checkpoint make --config tiny --layer x --out " + folder, {"--layer is \"x\""});
    check_refused("checkpoint make --config tiny --shard-bytes 0 --out " + folder, {"shard"});
    check_refused("checkpoint make --config kimi-k2 --out " + folder, {"kimi-k2 is a baseline"});
    check_refused("checkpoint make --config tinyy --out " + folder, {"did you mean \"tiny\"?"});
    check_refused("checkpoint make --config tiny", {"--out"});
    CHECK(!fs::exists(folder));
    check_refused("checkpoint verify " + folder, {"there is no such folder", folder});
    check_refused("checkpoint show " + folder, {"there is no such folder"});
}
