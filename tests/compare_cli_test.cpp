// touchstone compare as its users meet it: files in, verdicts, reports and exit codes out.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "reference/io/npy.h"
#include "reference/io/safetensors_writer.h"
#include "tests/command_line.h"

using namespace touchstone;
using namespace touchstone::command_line;

namespace {

struct Named {
    std::string name, type;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;
};

template <class T>
Named named(const std::string& name, const std::string& type, std::vector<int64_t> shape,
            const std::vector<T>& values) {
    Named result{name, type, std::move(shape), std::vector<std::byte>(values.size() * sizeof(T))};
    if (!values.empty()) std::memcpy(result.bytes.data(), values.data(), result.bytes.size());
    return result;
}

Named f32(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values) {
    return named(name, "F32", std::move(shape), values);
}

std::string write(const std::string& file, const std::vector<Named>& tensors,
                  const std::map<std::string, std::string>& metadata = {}) {
    const fs::path path = scratch() / file;
    std::vector<SafetensorsDeclaration> declarations;
    for (const Named& tensor : tensors) declarations.push_back({tensor.name, tensor.type, tensor.shape});
    SafetensorsWriter writer(path, declarations, metadata);
    for (const SafetensorsDeclaration& declaration : writer.tensors())
        for (const Named& tensor : tensors)
            if (tensor.name == declaration.name) writer.write(tensor.name, tensor.bytes);
    writer.finish();
    return path.string();
}

std::string last_line(const std::string& text) {
    const size_t end = text.find_last_not_of('\n');
    const size_t begin = text.find_last_of('\n', end);
    return text.substr(begin + 1, end - begin);
}

bool contains(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

/// Well-formed enough for any reader of XML: every element closed in order, no bare '&'.
void check_elements_close(const std::string& text, const std::vector<std::string>& void_elements) {
    std::vector<std::string> open;
    for (size_t at = text.find('<'); at != std::string::npos; at = text.find('<', at + 1)) {
        const size_t end = text.find('>', at);
        REQUIRE(end != std::string::npos);
        const std::string tag = text.substr(at + 1, end - at - 1);
        if (tag.starts_with('!') || tag.ends_with('/')) continue;
        const std::string name = tag.substr(tag.starts_with('/') ? 1 : 0, tag.find_first_of(" \n") - 0);
        if (tag.starts_with('/')) {
            REQUIRE_FALSE(open.empty());
            REQUIRE(open.back() == name);
            open.pop_back();
        } else if (std::find(void_elements.begin(), void_elements.end(), name) == void_elements.end()) {
            open.push_back(name);
        }
    }
    CHECK(open.empty());
    for (size_t at = text.find('&'); at != std::string::npos; at = text.find('&', at + 1))
        REQUIRE(text.find(';', at) < at + 7);
}

/// Two files of which `x` differs in one element and `same` does not.
struct Pair {
    std::string a = write("a.safetensors", {f32("L00.x's", {2, 2}, {1, 2, 3, 4}), f32("same", {2}, {5, 6})});
    std::string b =
        write("b.safetensors", {f32("L00.x's", {2, 2}, {1, 2, 3, 4.5f}), f32("same", {2}, {5, 6})});
};

}  // namespace

TEST_CASE("compare: equal files say so in one line and end in 0") {
    const Pair pair;
    const Result result = run_touchstone("compare " + pair.a + " " + pair.a);
    CHECK(result.exit_code == 0);
    CHECK(result.out == "EQUAL: 2 tensors, 2 EQUAL\n");
    CHECK(result.err.empty());
    const Result all = run_touchstone("compare " + pair.a + " " + pair.a + " --all");
    CHECK(contains(all.out, "EQUAL      same    F32 [2]\n"));
}

TEST_CASE("compare: a difference ends in 1, and the last line runs it again") {
    const Pair pair;
    const Result result = run_touchstone("compare " + pair.a + " " + pair.b + " --tolerance ulp=4");
    CHECK(result.exit_code == 1);
    CHECK(contains(result.out, "FAILED     L00.x's F32 [2, 2]  1 of 4 elements differ in 1 of 2 rows"));
    CHECK_FALSE(contains(result.out, "same"));
    CHECK(contains(result.out,
                   "worst [1, 1]: expected 4 (0x40800000 = 0 10000001 00000000000000000000000), got 4.5"));
    CHECK(contains(result.out, "would pass: ulp=1048576 or abs=0.5 or rel=0.125"));
    const std::string again = last_line(result.out);
    CHECK(again ==
          "touchstone compare " + pair.a + " " + pair.b + " --tensor '^L00\\.x'\\''s$' --tolerance ulp=4");
    const Result repeated = run_touchstone(again.substr(std::string("touchstone ").size()));
    CHECK(repeated.exit_code == 1);
    CHECK(contains(repeated.out, "FAILED: 1 tensor, 1 FAILED\n"));
    CHECK(last_line(repeated.out) == again);
}

TEST_CASE("compare: tolerances for all tensors and for some") {
    const Pair pair;
    const std::string both = pair.a + " " + pair.b;
    CHECK(run_touchstone("compare " + both + " --tolerance abs=0.5").exit_code == 0);
    CHECK(run_touchstone("compare " + both + " --tolerance bit --tolerance L00:abs=0.5").exit_code == 0);
    CHECK(run_touchstone("compare " + both + " --tolerance same:abs=0.5").exit_code == 1);
    CHECK(run_touchstone("compare " + both + " --tensor same").exit_code == 0);
    check_refused("compare " + both + " --tolerance near", {"near", "--tolerance", "bf16_step"});
    check_refused("compare " + both + " --tensor sane", {"no tensor fits", "did you mean \"same\"?"});
    check_refused("compare " + both + " --tolerance cosine=1e-3", {"a few wrong ones would pass"});
}

TEST_CASE("compare: names with control characters leave the terminal alone, and the last line runs") {
    const std::string name = "new\nline\x1b[31m";
    const std::string a = write("a.safetensors", {f32(name, {2}, {1, 2})});
    const std::string b = write("b.safetensors", {f32(name, {2}, {1, 3})});
    const Result result = run_touchstone("compare " + a + " " + b);
    CHECK(result.exit_code == 1);
    CHECK_FALSE(contains(result.out, "\x1b"));
    CHECK(contains(result.out, "FAILED     new\\nline\\x1B[31m F32 [2]  1 of 2"));
    const std::string again = last_line(result.out);
    CHECK(contains(again, "--tensor '^new\\nline\\x1B\\[31m$'"));
    const Result repeated = run_touchstone(again.substr(std::string("touchstone ").size()));
    CHECK(repeated.out == result.out);
    const Result extra = run_touchstone("compare " + write("c.safetensors", {}) + " " + a);
    CHECK_FALSE(contains(extra.err, "\x1b"));
}

TEST_CASE("compare: what cannot be compared in JSON is null") {
    const float nan = std::nanf("");
    const std::string a = write("a.safetensors", {f32("x", {2}, {1, 2}), f32("y", {2}, {1, 2})});
    const std::string b = write("b.safetensors", {f32("x", {2}, {1, nan})});
    const json report = json::parse(run_touchstone("compare " + a + " " + b + " --json").out);
    CHECK(report["tensors"][0]["difference"]["minimum"].is_null());
    CHECK(report["tensors"][1]["got_name"].is_null());
    CHECK(contains(run_touchstone("compare " + a + " " + b + " --csv").out, "x,FAILED,F32,2,1,1,1,,,,,"));
}

TEST_CASE("compare: JSON has a schema, verdicts and the worst element") {
    const Pair pair;
    const Result result = run_touchstone("compare " + pair.a + " " + pair.b + " --json");
    CHECK(result.exit_code == 1);
    const json report = json::parse(result.out);
    CHECK(report["schema"] == "touchstone.compare/1");
    CHECK(report["verdict"] == "FAILED");
    CHECK(report["counts"]["EQUAL"] == 1);
    CHECK(report["tensors"].size() == 2);
    const json& x = report["tensors"][0];
    CHECK(x["name"] == "L00.x's");
    CHECK(x["difference"]["worst"]["index"] == json({1, 1}));
    CHECK(x["difference"]["minimum"]["abs"] == 0.5);
    CHECK(x["difference"]["cosine_distance"] > 0);
    CHECK(x["got_name"] == "L00.x's");
    CHECK(x["difference"]["ulp_histogram"] == json({3, 0, 0, 0, 0, 0, 0, 1}));
    CHECK(report["reproduce"].get<std::string>().starts_with("touchstone compare "));
    const json equal = run_json("compare " + pair.a + " " + pair.a);
    CHECK(equal["verdict"] == "EQUAL");
    CHECK(equal["reproduce"].is_null());
    CHECK_FALSE(equal.contains("reproducer"));
}

TEST_CASE("compare: limits that no number satisfies are null in JSON") {
    const std::string a = write("a.safetensors", {f32("x", {2, 2}, {0, 0, 1, 2})});
    const std::string b = write("b.safetensors", {f32("x", {2, 2}, {0, 1, 1, 2})});
    const json report = json::parse(run_touchstone("compare " + a + " " + b + " --json").out);
    CHECK(report["tensors"][0]["difference"]["minimum"]["rms"].is_null());
    CHECK(report["tensors"][0]["difference"]["minimum"]["abs"] == 1);
}

TEST_CASE("compare: a row for every tensor as CSV") {
    const Pair pair;
    const Result result = run_touchstone("compare " + pair.a + " " + pair.b + " --csv");
    CHECK(result.exit_code == 1);
    CHECK(
        result.out.starts_with("tensor,verdict,type,elements,identical,outside,differing_rows,ulp,abs,rel,"
                               "rms,cosine_distance,tolerance,reason\r\n"));
    CHECK(contains(result.out, "L00.x's,FAILED,F32,4,3,1,1,1048576,0.5,0.125,"));
    CHECK(contains(result.out, "same,EQUAL,F32,2,2,0,0,0,0,0,0,0,bit,"));
    const std::string b = write("b.safetensors", {f32("same", {2}, {5, 6})});
    CHECK(contains(run_touchstone("compare " + pair.a + " " + b + " --csv").out,
                   "L00.x's,FAILED,F32,,,,,,,,,,bit,missing in"));
}

TEST_CASE("compare: nothing to compare ends in 3") {
    const std::string empty = write("empty.safetensors", {});
    const Pair pair;
    const Result result = run_touchstone("compare " + empty + " " + pair.a);
    CHECK(result.exit_code == 3);
    CHECK(result.out == "INCOMPLETE: 0 tensors\n");
}

TEST_CASE("compare: names, types and shapes that do not match are named") {
    const std::string a = write(
        "a.safetensors", {f32("attention", {2}, {1, 2}), f32("s", {1, 2}, {1, 2}), f32("t", {2}, {1, 2})});
    const std::string b = write("b.safetensors", {f32("atention", {2}, {1, 2}), f32("s", {2, 1}, {1, 2}),
                                                  named<double>("t", "F64", {2}, {1, 2})});
    const Result result = run_touchstone("compare " + a + " " + b);
    CHECK(result.exit_code == 1);
    CHECK(contains(result.out, "did you mean \"atention\"?"));
    CHECK(contains(result.out, "shape: expected [1, 2], got [2, 1]"));
    CHECK(contains(result.out, "type: expected F32, got F64"));
    CHECK(contains(result.err, "warning: "));
    CHECK(contains(result.err, "has 1 tensor beside what is expected: atention"));
}

TEST_CASE("compare: a map, layouts and npy files") {
    const std::string a = write("a.safetensors", {f32("L03.q", {2, 3}, {1, 2, 3, 4, 5, 6}),
                                                  named<uint8_t>("codes", "U8", {2}, {0x21, 0x43})});
    const fs::path folder = scratch() / "npy";
    fs::create_directories(folder);
    const std::vector<float> columns{1, 4, 2, 5, 3, 6};
    const std::vector<uint8_t> swapped{0x12, 0x34};
    write_npy(folder / "layers.3.q.npy", {"F32", {3, 2}, std::as_bytes(std::span(columns))});
    write_npy(folder / "codes.npy", {"U8", {2}, std::as_bytes(std::span(swapped))});
    const std::string map = write_file("map.txt", "layers.{n}.q = L{n:02}.q [transpose]  # theirs\n");
    const std::string command = "compare " + a + " " + folder.string() + " --map " + map;
    CHECK(run_touchstone(command + " --layout 'codes=fp4 high'").exit_code == 0);
    CHECK(run_touchstone(command).exit_code == 1);
    CHECK(run_touchstone(command + " --layout 'codes=A:fp4 high' --layout 'codes=fp4 low'").exit_code == 0);
    check_refused(command + " --layout codes", {"--layout", "NAME=LAYOUT"});
    check_refused(command + " --layout 'code=fp4 low'", {"did you mean \"codes\"?"});
    check_refused(command + " --layout 'codes=fp5'", {"fp5", "fp4 low"});
    check_refused("compare " + a + " " + folder.string() + " --map " + write_file("bad.txt", "a {n}\n"),
                  {"bad.txt:1"});
}

TEST_CASE("compare: ties pass, wrong selections do not") {
    const Named scores = f32("scores", {1, 4}, {2, 3, 3, 1});
    const std::string a = write("a.safetensors", {named<int32_t>("indices", "I32", {1, 2}, {0, 1}), scores});
    const std::string tie =
        write("b.safetensors", {named<int32_t>("indices", "I32", {1, 2}, {0, 2}), scores});
    const Result tied = run_touchstone("compare " + a + " " + tie);
    CHECK(tied.exit_code == 0);
    CHECK(contains(
        tied.out, "TIE        indices I32 [1, 2]  0 of 1 rows select alike, 1 otherwise among equal scores"));
    const std::string wild =
        write("c.safetensors", {named<int32_t>("indices", "I32", {1, 2}, {0, 2147483647}), scores});
    const Result wrong = run_touchstone("compare " + a + " " + wild);
    CHECK(wrong.exit_code == 1);
    CHECK(contains(wrong.out, "INT_MAX in 1 rows"));
    CHECK(run_touchstone("compare " + a + " " + tie + " --scores indices=scores").exit_code == 0);
}

TEST_CASE("compare: doubtful expectations fail unless they are allowed") {
    const std::string a = write("a.safetensors", {f32("x", {2}, {0, 0})});
    const Result result = run_touchstone("compare " + a + " " + a);
    CHECK(result.exit_code == 1);
    CHECK(contains(result.out, "MISTRUSTED x F32 [2]  the expectation is all zeros"));
    CHECK(contains(result.out, "to take it as it is: --allow-mistrusted '^x$'\n"));
    CHECK(run_touchstone("compare " + a + " " + a + " --allow-mistrusted '^x$'").exit_code == 0);
}

TEST_CASE("compare: cases that differ are a warning") {
    const std::string a = write("a.safetensors", {f32("x", {2}, {1, 2})}, {{"case", "top_k(rows=1)"}});
    const std::string b = write("b.safetensors", {f32("x", {2}, {1, 2})}, {{"case", "top_k(rows=2)"}});
    const Result result = run_touchstone("compare " + a + " " + b);
    CHECK(result.exit_code == 0);
    CHECK(contains(result.err, "different cases: top_k(rows=1) and top_k(rows=2)"));
    CHECK(run_json("compare " + a + " " + b)["warnings"].size() == 1);
}

TEST_CASE("compare: page and plot are whole, well formed and need nothing else") {
    const Pair pair;
    const std::string page = (scratch() / "report.html").string(), plot = (scratch() / "plot.svg").string();
    run_touchstone("compare " + pair.a + " " + pair.b + " --html " + page + " --svg " + plot);
    const std::string html = read_file(page), svg = read_file(plot);
    check_elements_close(svg, {});
    check_elements_close(html, {"meta"});
    for (const char* outside : {"src=", "href=", "@import", "url(", "<script"}) {
        CAPTURE(outside);
        CHECK_FALSE(contains(html, outside));
    }
    CHECK(contains(html, "prefers-color-scheme:dark"));
    CHECK(contains(html, "<span class=\"badge failed\">FAILED</span>"));
    CHECK(contains(html, "<svg "));
    CHECK(contains(svg, "error of each row of L00.x's"));
}

TEST_CASE("compare: files that cannot be read are refused by name") {
    const Pair pair;
    check_refused("compare " + pair.a + " /nonexistent.safetensors", {"/nonexistent.safetensors"});
    const std::string cut = write_file("cut.safetensors", read_file(pair.a).substr(0, 100));
    check_refused("compare " + pair.a + " " + cut, {"cut.safetensors"});
    check_refused("compare " + pair.a, {"B"});
    check_refused("compare " + pair.a + " " + pair.a + " --json --csv", {"--csv"});
}

TEST_CASE("compare: help shows every tolerance and layout") {
    const Result result = run_touchstone("compare --help");
    CHECK(result.exit_code == 0);
    for (const char* words : {"bf16_step", "flashmla_lse", "page planar", "--map", "Examples:"}) {
        CAPTURE(words);
        CHECK(contains(result.out, words));
    }
}
