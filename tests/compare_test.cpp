// Two files: names, what is missing, and the report as text, page and plot.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "golden/compare/compare_text.h"
#include "reference/io/npy.h"
#include "tests/compared_tensors.h"

using namespace touchstone;
using namespace touchstone::compared_tensors;

TEST_CASE("compare: verdicts of one tensor, and the exit code of all") {
    const Tensor x = f32({2, 2}, {1, 2, 3, 4}), near = f32({2, 2}, {1, 2, 3, 4.001f});
    CHECK(compare_one(x, x).verdict == Verdict::equal);
    CHECK(compare_one(x, near).verdict == Verdict::failed);
    CHECK(compare_one(x, near, "abs=0.01").verdict == Verdict::passed);
    CHECK(compare_one(x, near, "abs=0.0001").verdict == Verdict::failed);
    CHECK(compare({{"x", x}}, {{"x", x}}).exit_code() == 0);
    CHECK(compare({{"x", x}}, {{"x", near}}).exit_code() == 1);
    const CompareReport nothing = compare({}, {{"x", x}});
    CHECK(nothing.exit_code() == 3);
    CHECK(verdict_text(nothing) == "INCOMPLETE");
}

TEST_CASE("compare: a missing tensor fails and its near name is shown, an extra one is a warning") {
    const Tensor x = f32({2}, {1, 2});
    const CompareReport report =
        compare({{"attention", x}, {"x", x}}, {{"atention", x}, {"more", x}, {"x", x}});
    REQUIRE(report.tensors.size() == 2);
    CHECK(report.exit_code() == 1);
    CHECK(report.tensors[0].verdict == Verdict::failed);
    CHECK(contains(report.tensors[0].reason, "missing in"));
    CHECK(contains(report.tensors[0].reason, "did you mean \"atention\"?"));
    REQUIRE(report.warnings.size() == 1);
    CHECK(contains(report.warnings[0], "has 2 tensors beside what is expected: atention, more"));
    const CompareReport foreign = compare({{"attention", x}}, {{"model.attn", x}});
    CHECK(foreign.exit_code() == 3);
    CHECK(contains(foreign.warnings.at(1), "--map"));
}

TEST_CASE("compare: other types and shapes are named, both sides") {
    const TensorComparison type = compare_one(f32({2}, {1, 2}), bf16({2}, {1, 2}));
    CHECK(type.verdict == Verdict::failed);
    CHECK(type.reason == "type: expected F32, got BF16");
    const TensorComparison shape = compare_one(f32({2, 1}, {1, 2}), f32({1, 2}, {1, 2}));
    CHECK(shape.verdict == Verdict::failed);
    CHECK(shape.reason == "shape: expected [2, 1], got [1, 2]");
}

TEST_CASE("compare: neighbouring fp4 codes are caught and said") {
    const Tensor e = tensor<uint8_t>("U8", {2, 2}, {0x21, 0x43, 0x98, 0x07}),
                 g = tensor<uint8_t>("U8", {2, 2}, {0x12, 0x34, 0x89, 0x80});
    CompareOptions options;
    options.layouts[{"x", Side::got}] = parse_layout("fp4 high", "test");
    const CompareReport report = compare({{"x", e}}, {{"x", g}}, options);
    const TensorComparison& found = report.tensors.at(0);
    CHECK(found.type == "E2M1");
    CHECK(found.shape == std::vector<int64_t>{2, 4});
    CHECK(found.verdict == Verdict::failed);
    CHECK(found.difference->identical == 7);
    CHECK(found.difference->first.index == 6);
    const Tensor next = tensor<uint8_t>("U8", {2, 2}, {0x12, 0x35, 0x89, 0x70});
    const TensorComparison neighbour = compare({{"x", e}}, {{"x", next}}, options).tensors.at(0);
    CHECK(contains(neighbour.reason, "one fp4 code apart"));
    CHECK(bits_text("E2M1", 11) == "0xB = 1 01 1");
}

TEST_CASE("compare: names, npy files and folders") {
    const std::vector<float> values{1, 2, 3, 4, 5, 6}, columns{1, 4, 2, 5, 3, 6};
    const fs::path folder = scratch() / "theirs";
    fs::create_directories(folder);
    write_npy(folder / "model.layers.3.q.npy", {"F32", {3, 2}, std::as_bytes(std::span(columns))});
    const Tensor y = bf16({2}, {1, 2});
    write_npy(folder / "y.npy", {"U16", {2}, y.bytes});
    const TensorFile a(write("ours.safetensors", {{"L03.attn.q", f32({2, 3}, values)}, {"y", y}})), b(folder);
    CompareOptions options;
    options.name_map =
        parse_name_map("model.layers.{n}.q = L{n:02}.attn.q [transpose]\nnever = used # no\n", "map");
    const CompareReport report = compare_files(a, b, options);
    CHECK(report.counts[0] == 2);
    CHECK(report.tensors[0].got_name == "model.layers.3.q");
    REQUIRE(report.warnings.size() == 2);
    CHECK(contains(report.warnings[0], "map:2: never = used"));
    CHECK(contains(report.warnings[1], "y: U16 of an npy file is read as BF16"));
    const TensorFile one(folder / "y.npy");
    write_npy(scratch() / "other_name.npy", {"U16", {2}, y.bytes});
    const TensorFile other(scratch() / "other_name.npy");
    CHECK(compare_files(one, other, {}).counts[0] == 1);
}

TEST_CASE("compare: folders and files that are none are refused by name") {
    const fs::path empty = scratch() / "empty";
    fs::create_directories(empty);
    CHECK(contains(refusal([&] { TensorFile file(empty); }), "without tensors"));
    CHECK(contains(refusal([&] { TensorFile file(scratch() / "absent"); }), "absent"));
    std::ofstream(scratch() / "text.npy") << "hello";
    CHECK(contains(refusal([&] { TensorFile file(scratch() / "text.npy"); }), "text.npy"));
    const fs::path twice = scratch() / "twice";
    fs::create_directories(twice);
    write("twice/a.safetensors", {{"x", f32({1}, {1})}});
    write("twice/b.safetensors", {{"x", f32({1}, {1})}});
    CHECK(contains(refusal([&] { TensorFile file(twice); }), "stands in two files"));
}

TEST_CASE("compare: files of different cases are a warning") {
    const Tensor x = f32({2}, {1, 2});
    const TensorFile a(write("a.safetensors", {{"x", x}}, {{"case", "rms_norm(rows=1)"}}));
    const TensorFile b(write("b.safetensors", {{"x", x}}, {{"case", "rms_norm(rows=2)"}}));
    const CompareReport report = compare_files(a, b, {});
    REQUIRE(report.warnings.size() == 1);
    CHECK(contains(report.warnings[0], "different cases: rms_norm(rows=1) and rms_norm(rows=2)"));
    CHECK(compare_files(a, a, {}).warnings.empty());
}

TEST_CASE("compare: the worst tensor comes first, and its errors by row") {
    const Tensor x = f32({3, 2}, {1, 1.5f, 1, 1, 1, 1}), a = f32({3, 2}, {1, 1.5f, 1, 1, 1, 1.25f}),
                 b = f32({3, 2}, {1, 1.5f, 1, 2, 1, 1});
    CompareOptions options;
    options.row_errors = true;
    const CompareReport report = compare({{"a", x}, {"b", x}}, {{"a", a}, {"b", b}}, options);
    REQUIRE(report.worst() != nullptr);
    CHECK(report.worst()->name == "b");
    CHECK(compare({{"a", x}, {"b", x}}, {{"a", a}, {"b", b}}).worst()->row_errors.empty());
    CHECK(report.worst()->row_errors == std::vector<double>{0, 1, 0});
    const float nan = std::nanf("");
    CHECK(row_errors(view_of(x), view_of(f32({3, 2}, {1, 1.5f, 1, nan, 1, 1})), 2) ==
          std::vector<double>{std::numeric_limits<double>::infinity(), 0});
}

TEST_CASE("compare: bits are split into sign, exponent and mantissa") {
    CHECK(bits_text("F32", 0xC0490FDB) == "0xC0490FDB = 1 10000000 10010010000111111011011");
    CHECK(bits_text("BF16", 0x3F81) == "0x3F81 = 0 01111111 0000001");
    CHECK(bits_text("F8_E4M3", 0x7E) == "0x7E = 0 1111 110");
    CHECK(bits_text("F8_E8M0", 0x7F) == "0x7F = 01111111");
    CHECK(bits_text("I32", 5) == "0x00000005");
}

TEST_CASE("compare: text, page and plot say what differs, and names cannot break them") {
    const std::string name = "<b>&\"x\"";
    const CompareReport report =
        compare({{name, f32({2, 2}, {1, 2, 3, 4})}}, {{name, f32({2, 2}, {1, 2, 3, 5})}});
    const std::string text = compare_text(report, false, {"touchstone compare again"});
    CHECK(contains(text, "FAILED"));
    CHECK(contains(text, "worst [1, 1]: expected 4 (0x40800000 = 0 10000001"));
    CHECK(text.ends_with("\ntouchstone compare again\n"));
    const std::string page = compare_html(report, {"touchstone compare again"});
    CHECK(contains(page, "&lt;b&gt;&amp;&quot;x&quot;"));
    CHECK_FALSE(contains(page, "<b>"));
    CHECK_FALSE(contains(page, "src="));
    CHECK(contains(page, "would pass"));
    CHECK(page.ends_with("</html>\n"));
    const std::string plot = compare_svg(report);
    CHECK(contains(plot, "class=\"failed\""));
    CHECK_FALSE(contains(plot, "<b>"));
    CHECK_FALSE(contains(plot, "nan"));
    CHECK(contains(text, "cosine distance 0.0"));
}
