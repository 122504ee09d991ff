// touchstone bisect as its users meet it: operators and traces, reports, files, messages and exit codes.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "reference/io/safetensors.h"
#include "reference/io/safetensors_writer.h"
#include "reference/registry/tensor.h"
#include "tests/command_line.h"

using namespace touchstone;
using namespace touchstone::command_line;

namespace {

std::string file(const std::string& name) {
    return (scratch() / name).string();
}

TensorMap read(const std::string& path) {
    const SafetensorsFile opened(path);
    TensorMap tensors;
    for (const auto& [name, tensor] : opened.tensors())
        tensors[name] = {tensor.type, tensor.shape, {tensor.bytes.begin(), tensor.bytes.end()}};
    return tensors;
}

void write(const std::string& path, const TensorMap& tensors,
           const std::map<std::string, std::string>& metadata = {}) {
    std::vector<SafetensorsDeclaration> declarations;
    for (const auto& [name, tensor] : tensors) declarations.push_back({name, tensor.type, tensor.shape});
    SafetensorsWriter writer(path, declarations, metadata);
    for (const SafetensorsDeclaration& next : writer.tensors())
        writer.write(next.name, tensors.find(next.name)->second.bytes);
    writer.finish();
}

/// The result as JSON, whatever the exit code says; it has to be `exit_code`.
json bisect_json(const std::string& arguments, int exit_code) {
    const Result result = run_touchstone("bisect " + arguments + " --json");
    INFO("touchstone bisect " << arguments << " --json\n" << result.err);
    REQUIRE(result.exit_code == exit_code);
    return json::parse(result.out);
}

bool names_cause(const json& object, const std::string& cause) {
    return std::ranges::any_of(object.at("causes"), [&](const json& one) { return one.at("name") == cause; });
}

/// The last line that is not empty.
std::string last_line(const std::string& text) {
    const size_t end = text.find_last_not_of('\n');
    const size_t begin = text.find_last_of('\n', end);
    return text.substr(begin + 1, end - begin);
}

/// A trace of 50 tokens and two decode steps, made once.
const std::string& trace() {
    static const std::string path = [] {
        const std::string made = file("trace.safetensors");
        REQUIRE(run_touchstone("run --random-tokens 50 --decode 2 --trace " + made).exit_code == 0);
        return made;
    }();
    return path;
}

/// That trace with queries of layer 3 that have lost their rotation: every other pair's sign.
std::string faulty_trace() {
    TensorMap tensors = read(trace());
    Tensor& q = tensors.find("position_000000/L03.attn.q")->second;
    for (size_t i = 0; i < q.view<Bf16>().size(); i += 2) q.view<Bf16>()[i].bits ^= 0x8000;
    const std::string path = file("faulty.safetensors");
    write(path, tensors, {{"config", "tiny"}, {"arithmetic", "exact"}});
    return path;
}

}  // namespace

TEST_CASE("bisect cli: a case's own outputs are equal, another profile's are an order") {
    const std::string name = "'linear_fp8(rows=3,outputs=64,inputs=256,seed=3)'", out = file("y.safetensors");
    REQUIRE(run_touchstone("op --case " + name + " --out " + out).exit_code == 0);
    const json equal = bisect_json("--case " + name + " " + out, 0);
    CHECK(equal.at("schema") == "touchstone.bisect/1");
    CHECK(equal.at("kind") == "operator");
    CHECK(equal.at("finding") == "equal");
    CHECK(equal.at("assumptions").dump().find("arithmetic=exact") != std::string::npos);
    REQUIRE(run_touchstone("op --case " + name + " --arithmetic released_hopper --out " + out).exit_code ==
            0);
    CHECK(bisect_json("--case " + name + " " + out, 0).at("finding") == "order");
    CHECK(bisect_json("--case " + name + " --arithmetic released_hopper " + out, 0).at("finding") == "equal");
}

TEST_CASE("bisect cli: a fault of an operator is located and named, and the last line reproduces it") {
    const std::string name = "'rms_norm(rows=3,width=256,eps=1e-20,fill=normal,seed=3)'";
    const std::string in = file("in.safetensors"), out = file("out.safetensors");
    REQUIRE(run_touchstone("op --case " + name + " --save-inputs " + in).exit_code == 0);
    TensorMap inputs = read(in);
    std::ranges::fill(inputs.find("weight")->second.view<Bf16>(), bf16_from_float(1));
    const std::string without_gain = file("without_gain.safetensors");
    write(without_gain, inputs);
    REQUIRE(run_touchstone("op rms_norm --in " + without_gain + " --case 'rms_norm(eps=1e-20)' --out " + out)
                .exit_code == 0);
    const json found = bisect_json("--case " + name + " " + out, 1);
    CHECK(found.at("finding") == "named");
    CHECK(names_cause(found, "gain_missing"));
    CHECK(found.at("first").at("output") == "unrounded");
    const Result text = run_touchstone("bisect rms_norm " + out + " --in " + in);
    CHECK(text.exit_code == 1);
    CHECK(text.out.find("gain_missing") != std::string::npos);
    const std::string again = last_line(text.out);
    REQUIRE(again.starts_with("touchstone "));
    const Result repeated = run_touchstone(again.substr(std::string("touchstone ").size()));
    CHECK(repeated.exit_code == 1);
    CHECK(repeated.out.find("gain_missing") != std::string::npos);
}

TEST_CASE("bisect cli: a trace against itself run again differs in nothing") {
    const json found = bisect_json(trace(), 0);
    CHECK(found.at("kind") == "trace");
    CHECK(found.at("diverges") == false);
    CHECK(found.at("first_bit").is_null());
    CHECK(found.at("no_reference") == "");
    CHECK(found.at("config") == "tiny");
    CHECK(bisect_json(trace() + " " + trace(), 0).at("first_bit").is_null());
}

TEST_CASE("bisect cli: a trace in another arithmetic is rounding alone") {
    const std::string hopper = file("hopper.safetensors");
    REQUIRE(
        run_touchstone("run --random-tokens 50 --decode 2 --arithmetic hopper --trace " + hopper).exit_code ==
        0);
    // By itself it says which arithmetic; the exact reference differs, and no step is wrong.
    CHECK(bisect_json(hopper, 0).at("first_bit").is_null());
    const json found = bisect_json(hopper + " --arithmetic exact --force-choices", 0);
    CHECK(found.at("first_bit").is_string());
    CHECK(found.at("made_here").empty());
}

TEST_CASE("bisect cli: a trace in double, whose floats are of another type, is rounding alone") {
    const std::string truth = file("truth.safetensors");
    REQUIRE(run_touchstone("run --random-tokens 50 --arithmetic truth --trace " + truth).exit_code == 0);
    // The double model traces index queries as Q4i leaves them, the others as they go in.
    TensorMap tensors = read(truth);
    std::erase_if(tensors, [](const auto& entry) { return entry.first.ends_with(".attn.indexer.query"); });
    write(truth, tensors, {{"config", "tiny"}, {"arithmetic", "truth"}});
    const json found = bisect_json(truth, 0);
    CHECK(found.at("arithmetic") == "exact");
    CHECK(found.at("made_here").empty());
}

TEST_CASE("bisect cli: a faulty tensor is reported with its layer, its step and how to run it alone") {
    const std::string theirs = faulty_trace(), dump = file("dump.safetensors"), svg = file("growth.svg");
    const json found = bisect_json(theirs, 1);
    CHECK(found.at("made_here").at(0) == "position_000000/L03.attn.q");
    CHECK(found.at("fault").at("chain") == json::array({"linear_fp8", "rope"}));
    CHECK(found.at("first_beyond_rounding") == "position_000000/L03.attn.q");
    const Result text =
        run_touchstone("bisect " + trace() + " " + theirs + " --dump " + dump + " --svg " + svg);
    CHECK(text.exit_code == 1);
    CHECK(text.out.find("MADE HERE") != std::string::npos);
    CHECK(text.out.find("Made here: position_000000/L03.attn.q, linear_fp8 -> rope") != std::string::npos);
    const std::string again = last_line(text.out);
    REQUIRE(again.starts_with("touchstone op "));
    CHECK(run_touchstone(again.substr(std::string("touchstone ").size())).exit_code == 0);
    const std::string drawing = read_file(svg);
    CHECK(drawing.starts_with("<svg "));
    CHECK(drawing.find("<polyline") != std::string::npos);
    CHECK(drawing.find("made here: position_000000/L03.attn.q") != std::string::npos);
}

TEST_CASE("bisect cli: other names are read through a map") {
    TensorMap renamed;
    for (auto& [name, tensor] : read(faulty_trace())) {
        std::string theirs = name;
        if (const size_t at = theirs.find("attn.q"); at != std::string::npos && theirs.size() == at + 6)
            theirs = "model.layers." + std::to_string(std::stoi(name.substr(17, 2))) + ".query@" +
                     name.substr(0, 15);
        renamed.emplace(theirs, std::move(tensor));
    }
    const std::string theirs = file("renamed.safetensors");
    write(theirs, renamed);
    const std::string map =
        write_file("names.txt",
                   "# theirs, ours\n"
                   "model.layers.{n}.query@position_000000 = position_000000/L{n:02}.attn.q\n");
    check_refused("bisect " + theirs, {"does not say of which model", "--config"});
    const json found = bisect_json(theirs + " --config tiny --map " + map, 1);
    CHECK(found.at("made_here").at(0) == "position_000000/L03.attn.q");
    CHECK(found.at("unknown_names").size() == 20);  // of the two decode steps, which the map does not have
}

TEST_CASE("bisect cli: what cannot be compared, and what is no use") {
    const std::string nothing = file("nothing.safetensors");
    write(nothing, {{"something", make_tensor("something", "F32", {2, 2})}});
    CHECK(run_touchstone("bisect " + nothing + " --config tiny").exit_code == 3);
    CHECK(run_touchstone("bisect --case 'rms_norm(rows=1,width=8)' " + nothing).exit_code == 3);
    check_refused("bisect /no/such/file", {"/no/such/file"});
    check_refused("bisect " + trace() + " --arithmetic truth", {"truth", "exact, hopper or released_hopper"});
    check_refused("bisect --case 'rms_norm(rows=1,width=8)' " + trace() + " --svg x", {"--svg", "traces"});
    check_refused("bisect --case 'rms_norm(rows=1,width=8)' a b", {"--case C THEIRS"});
    check_refused("bisect " + trace() + " --config deepseek-v4.1-flash", {"bytes of weights"});
    const std::string other = file("other.safetensors");
    write(other, {{"L00.attn.qr", make_tensor("", "BF16", {2, 5})}}, {{"config", "tiny"}});
    check_refused("bisect " + other, {"L00.attn.qr", "BF16 [2, 5]", "BF16 [rows, 128]"});
    const std::string pairs = write_file("pairs.txt", "one two three\n");
    check_refused("bisect " + trace() + " --map " + pairs, {"pairs.txt:1"});
}
