// touchstone op as its users meet it: list, describe, cases, tensors in and out, messages and exit codes.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "reference/io/safetensors_writer.h"
#include "reference/registry/registry.h"

using namespace touchstone;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

struct Result {
    int exit_code;
    std::string out, err;
};

std::string read_file(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

/// A folder of this process that is removed at exit.
const fs::path& scratch() {
    static const struct Folder {
        fs::path path = fs::temp_directory_path() / ("touchstone_op_cli_test_" + std::to_string(getpid()));
        Folder() { fs::create_directories(path); }
        ~Folder() { fs::remove_all(path); }
    } folder;
    return folder.path;
}

Result op(const std::string& arguments) {
    const fs::path out = scratch() / "out", err = scratch() / "err";
    const std::string command = std::string(TOUCHSTONE_BINARY) + " op " + arguments + " >" + out.string() +
                                " 2>" + err.string() + " </dev/null";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
}

json op_json(const std::string& arguments) {
    const Result result = op(arguments + " --json");
    INFO("touchstone op " << arguments << " --json\n" << result.err);
    REQUIRE(result.exit_code == 0);
    CHECK(result.err.empty());
    return json::parse(result.out);
}

/// Exit 2, nothing on stdout, every fragment in the message.
void check_refused(const std::string& arguments, const std::vector<std::string>& fragments) {
    const Result result = op(arguments);
    INFO("touchstone op " << arguments << "\n" << result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    for (const std::string& fragment : fragments) {
        CAPTURE(fragment);
        CHECK(result.err.find(fragment) != std::string::npos);
    }
}

std::string path(const char* name) {
    return (scratch() / name).string();
}

/// Two tensors of rms_norm, the second as wrong as asked for.
void write_norm(const char* name, const std::string& type, const std::vector<int64_t>& shape) {
    const TensorMap tensors{{"x", make_tensor("x", "BF16", {2, 64})},
                            {"weight", make_tensor("weight", type, shape)}};
    SafetensorsWriter writer(path(name), {{"x", "BF16", {2, 64}}, {"weight", type, shape}});
    for (const SafetensorsDeclaration& declaration : writer.tensors())
        writer.write(declaration.name, tensors.at(declaration.name).bytes);
    writer.finish();
}

}  // namespace

TEST_CASE("op --list: every operator of the registry, in text, CSV and JSON") {
    const Result text = op("--list"), csv = op("--list --csv");
    CHECK(text.exit_code == 0);
    CHECK(csv.exit_code == 0);
    const json listed = op_json("--list");
    CHECK(listed["schema"] == "touchstone.op_list/1");
    CHECK(listed["operators"].size() == operators().size());
    for (const OperatorInfo& info : operators()) {
        CHECK(text.out.find("  " + info.name + " ") != std::string::npos);
        CHECK(csv.out.find("\n" + info.name + ",") != std::string::npos);
    }
}

TEST_CASE("op --describe: everything the registry says, for every operator") {
    for (const OperatorInfo& info : operators()) {
        CAPTURE(info.name);
        const Result result = op("--describe " + info.name);
        CHECK(result.exit_code == 0);
        for (const std::string& text : {info.purpose, info.equation, info.source, info.cases.front().text})
            CHECK(result.out.find(text) != std::string::npos);
        for (const Slot& slot : info.inputs) CHECK(result.out.find(slot.shape) != std::string::npos);
    }
    const json described = op_json("--describe compressor");
    CHECK(described["schema"] == "touchstone.op_describe/1");
    CHECK(described["inputs"].size() == 6);
    CHECK(described["profiles"] == json({"exact", "hopper"}));
}

TEST_CASE("op --case: outputs with the library's bits, error against truth, assumptions") {
    const json result = op_json("--case 'linear_fp8(rows=2,outputs=40,inputs=256)' --arithmetic hopper");
    CHECK(result["schema"] == "touchstone.op/1");
    CHECK(result["case"] == "linear_fp8(rows=2,outputs=40,inputs=256,sum=wq_a,fill=normal,seed=7)");
    CHECK(result["assumptions"] == json({"sum=wq_a", "fill=normal", "seed=7"}));
    const ParsedCase parsed = parse_case(result["case"].get<std::string>(), "");
    const TensorMap outputs = run_operator(*parsed.info, Arithmetic::hopper, parsed.parameters,
                                           make_inputs(*parsed.info, parsed.parameters));
    REQUIRE(result["outputs"].size() == 2);
    for (const json& output : result["outputs"]) {
        const Tensor& tensor = outputs.at(output["name"].get<std::string>());
        CHECK(output["hash"] == fmt::format("{:016x}", tensor_hash(tensor)));
        CHECK(output["shape"] == json({2, 40}));
        CHECK(output["first"][0] == element_as_double(tensor, 0));
    }
    REQUIRE(result["against_truth"].size() == 2);
    CHECK(result["against_truth"][0]["share"] > 0);
    CHECK(result["against_truth"][0]["share"] <= 1);
    CHECK(op_json("--case 'linear_fp8(rows=2,outputs=40,inputs=256)'")["assumptions"].back() ==
          "arithmetic=exact");

    const json truth = op_json("--case 'linear_fp8(rows=2,outputs=40,inputs=256)' --arithmetic truth");
    CHECK(truth["outputs"][0]["type"] == "F64");
    CHECK(truth["against_truth"].empty());
    const json ideal = op_json("--case 'linear_fp8(rows=2,outputs=40,inputs=256)' --arithmetic ideal");
    CHECK(ideal["outputs"][0]["hash"] != truth["outputs"][0]["hash"]);
}

TEST_CASE("op --case: another seed gives other outputs, the same line the same") {
    const auto hash = [](const char* text) {
        return op_json(fmt::format("--case '{}'", text))["outputs"][0]["hash"];
    };
    CHECK(hash("rope(rows=3,seed=7)") == hash("rope(rows=3)"));
    CHECK(hash("rope(rows=3,seed=7)") != hash("rope(rows=3,seed=8)"));
}

TEST_CASE("op --in: tensors that went through files give the bits of their case") {
    for (const char* text :
         {"sparse_attention(entries=129,heads=3,head_dim=64,fill=leading_gap)",
          "compressor(rows=4,first_position=129,hidden=512,channels=128)",
          "experts(rows=3,experts=2,experts_per_token=2,hidden=64,width=32)", "top_k(rows=2,columns=513)"}) {
        CAPTURE(text);
        const std::string name = std::string(text).substr(0, std::string(text).find('('));
        const json made = op_json(fmt::format("--case '{}' --arithmetic hopper --save-inputs {} --out {}",
                                              text, path("inputs.safetensors"), path("a.safetensors")));
        const json given = op_json(fmt::format("{} --in {} --case '{}' --arithmetic hopper --out {}", name,
                                               path("inputs.safetensors"), text, path("b.safetensors")));
        CHECK(given["outputs"] == made["outputs"]);
        CHECK(read_file(path("a.safetensors")) == read_file(path("b.safetensors")));
        CHECK(read_file(path("a.safetensors")).size() > 100);
    }
    // Extents alone are enough where they say everything.
    const json made =
        op_json(fmt::format("--case 'rms_norm(rows=2,width=65)' --save-inputs {}", path("norm.safetensors")));
    const json given = op_json(fmt::format("rms_norm --in {}", path("norm.safetensors")));
    CHECK(given["outputs"] == made["outputs"]);
    CHECK(given["assumptions"] == json({"eps=1e-20"}));
    CHECK(given["against_truth"].empty());
}

TEST_CASE("op: what cannot be used is refused with 2, and writes nothing") {
    check_refused("", {"no operator", "--list"});
    check_refused("rms_norm", {"no inputs", "--case", "--in"});
    check_refused("rms_nrom --case 'rms_norm(rows=2)'", {"--case", "rms_nrom"});
    check_refused("--describe rms_nrom", {"unknown operator \"rms_nrom\"", "did you mean \"rms_norm\"?"});
    check_refused("--case 'rms_norm(rows=2'", {"--case", "(...)"});
    check_refused("--case 'rms_norm(width=0)'", {"width is 0", "from 1 to"});
    check_refused("--case 'rms_norm(rows=1048576,width=1048576)'", {"64 GiB"});
    check_refused("--case 'rms_norm(rows=2,width=64)' --arithmetic fast",
                  {"\"fast\"", "--arithmetic", "released_hopper"});
    check_refused("rms_norm --in " + path("nowhere.safetensors"), {"nowhere.safetensors"});
    check_refused("--in " + path("nowhere.safetensors"), {"no operator"});

    write_norm("type.safetensors", "F16", {64});
    check_refused("rms_norm --in " + path("type.safetensors") + " --out " + path("never.safetensors"),
                  {"tensor \"weight\" is F16 [64]", "BF16 [64] = [width]", "store it as BF16"});
    write_norm("width.safetensors", "BF16", {65});
    check_refused("rms_norm --in " + path("width.safetensors"),
                  {"tensor \"weight\": width is 65", "64, as in \"x\""});
    write_norm("rank.safetensors", "BF16", {64, 1});
    check_refused("rms_norm --in " + path("rank.safetensors"), {"tensor \"weight\" is BF16 [64, 1]"});
    check_refused("rope --in " + path("rank.safetensors"), {"tensor \"x\" is BF16 [2, 64]"});
    CHECK_FALSE(fs::exists(path("never.safetensors")));

    const std::string ids = "engram_lookup(ids=2,table_rows=4,head_dim=32)";
    CHECK(op(fmt::format("--case '{}' --save-inputs {}", ids, path("ids.safetensors"))).exit_code == 0);
    check_refused("rms_norm --in " + path("ids.safetensors"),
                  {"tensor \"x\" is missing", "rms_norm takes x, weight"});
}
