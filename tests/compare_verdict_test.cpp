// The verdict on a pair: tolerances, selections, doubt, and what compare says would pass.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "golden/compare/compare_text.h"
#include "reference/io/npy.h"
#include "tests/compared_tensors.h"

using namespace touchstone;
using namespace touchstone::compared_tensors;

TEST_CASE("compare: an expectation that proves nothing is mistrusted, unless it is allowed") {
    const float nan = std::nanf("");
    const std::pair<Tensor, const char*> doubtful[]{
        {f32({3}, {0, 0, 0}), "all zeros"},
        {f32({3}, {2, 2, 2}), "one value"},
        {f32({3}, {nan, nan, nan}), "finite"},
    };
    for (const auto& entry : doubtful) {
        const auto& x = entry.first;
        const auto& words = entry.second;
        CAPTURE(words);
        const TensorComparison found = compare_one(x, x);
        CHECK(found.verdict == Verdict::mistrusted);
        CHECK(contains(found.reason, words));
        CHECK(contains(details_text(found, "--allow-mistrusted '^x$'"),
                       "to take it as it is: --allow-mistrusted '^x$'\n"));
        CompareOptions options;
        options.allow_mistrusted = "^x$";
        CHECK(compare({{"x", x}}, {{"x", x}}, options).exit_code() == 0);
        CHECK(compare({{"x", x}}, {{"x", x}}).exit_code() == 1);
    }
    CHECK(compare_one(f32({}, {2}), f32({}, {2})).verdict == Verdict::equal);
    CHECK(compare_one(f32({2}, {0, 0}), f32({2}, {0, 1})).verdict == Verdict::failed);
}

TEST_CASE("compare: tolerances by pattern, the last that fits counts") {
    const Tensor x = f32({2}, {1, 2}), y = f32({2}, {1, 2.5f});
    CompareOptions options;
    options.tolerances = {{"", parse_tolerance("abs=1", "t")}, {"^b", parse_tolerance("bit", "t")}};
    const CompareReport report = compare({{"a", x}, {"b", x}}, {{"a", y}, {"b", y}}, options);
    CHECK(report.tensors[0].verdict == Verdict::passed);
    CHECK(report.tensors[1].verdict == Verdict::failed);
    options.tolerances = {{"^c", {}}};
    CHECK(contains(refusal([&] { compare({{"a", x}}, {{"a", y}}, options); }), "no tensor fits \"^c\""));
    options.tolerances = {{"(", {}}};
    CHECK(contains(refusal([&] { compare({{"a", x}}, {{"a", y}}, options); }), "no regular expression"));
}

TEST_CASE("compare: the smallest tolerances that pass do pass, and smaller ones do not") {
    const Tensor e = f32({2, 3}, {1, 2, 3, 40, 50, 60});
    const Tensor g = f32({2, 3}, {1, 2.25f, 3, 40, 51, 60});
    const MinimumTolerances minimum = compare_one(e, g).minimum;
    CHECK(minimum.absolute == 1.0);
    CHECK(minimum.relative == 0.125);
    for (const char* key : {"ulp", "abs", "rel", "rms"}) {
        CAPTURE(key);
        const std::string_view name(key);
        const double limit = name == "ulp"   ? static_cast<double>(minimum.ulp.value())
                             : name == "abs" ? minimum.absolute.value()
                             : name == "rel" ? minimum.relative.value()
                                             : minimum.rms.value();
        CHECK(compare_one(e, g, fmt::format("{}={}", key, limit)).verdict == Verdict::passed);
        const double below = name == "ulp" ? limit - 1 : std::nextafter(limit, 0);
        CHECK(compare_one(e, g, fmt::format("{}={}", key, below)).verdict == Verdict::failed);
    }
}

TEST_CASE("compare: the value before rounding tells a tie from a bug") {
    // 1 and 1 + 2^-7 are neighbours in bf16; halfway lies 1 + 2^-8.
    const Tensor e = bf16({2}, {1, 2}), g = bf16({2}, {1.0078125f, 2});
    for (const auto& entry : {std::pair{"y", "accumulator"}, {"a.o", "a.unrounded"}, {"x", "x.unrounded"}}) {
        const auto& name = entry.first;
        const auto& unrounded = entry.second;
        CAPTURE(name);
        const Tensor tie = f32({2}, {1.00390625f, 2}), clear = f32({2}, {1.001f, 2});
        const CompareReport halfway = compare({{name, e}, {unrounded, tie}}, {{name, g}, {unrounded, tie}});
        const TensorComparison* found = halfway.worst();
        REQUIRE(found != nullptr);
        CHECK(found->name == name);
        CHECK(found->worst_unrounded == 1.00390625);
        CHECK(found->rounding_tie);
        CHECK(contains(details_text(*found, ""), "halfway"));
        const CompareReport bug = compare({{name, e}, {unrounded, clear}}, {{name, g}, {unrounded, clear}});
        REQUIRE(bug.worst() != nullptr);
        CHECK(bug.worst()->worst_unrounded.has_value());
        CHECK_FALSE(bug.worst()->rounding_tie);
    }
}

TEST_CASE("compare: selections are held against their scores") {
    const Tensor scores = f32({2, 4}, {1, 3, 3, 0, 5, 6, 7, 8});
    const Tensor e = i32({2, 2}, {0, 1, 2, 3}), tie = i32({2, 2}, {0, 2, 3, 2}),
                 wrong = i32({2, 2}, {0, 3, 2, 3});
    for (const auto& entry : {std::pair{"L02.attn.indexer.selected", "L02.attn.indexer.scores"},
                              {"candidate_pool/blocks", "candidate_pool/scores"},
                              {"indices", "scores"}}) {
        const auto& name = entry.first;
        const auto& score = entry.second;
        CAPTURE(name);
        CHECK(compare({{name, e}, {score, scores}}, {{name, tie}, {score, scores}}).verdict() ==
              Verdict::tie);
        CHECK(compare({{name, e}, {score, scores}}, {{name, wrong}, {score, scores}}).verdict() ==
              Verdict::failed);
    }
    CHECK(compare({{"s", e}, {"t", scores}}, {{"s", tie}, {"t", scores}}).verdict() == Verdict::failed);
    CompareOptions options;
    options.scores = {{"s", "t"}};
    const Tensor in_place = i32({2, 2}, {0, 2, 2, 3});
    const CompareReport report =
        compare({{"s", e}, {"t", scores}}, {{"s", in_place}, {"t", scores}}, options);
    CHECK(report.verdict() == Verdict::tie);
    CHECK(report.exit_code() == 0);
    CHECK(report.tensors[0].selection->ties == 1);
    options.scores = {{"s", "u"}};
    CHECK(contains(refusal([&] {
                       compare({{"s", e}, {"t", scores}}, {{"s", tie}}, options);
                   }),
                   "no tensor \"u\""));
}

TEST_CASE("compare: another order passes only where order means nothing") {
    const Tensor scores = f32({1, 4}, {1, 3, 3, 0}), e = i32({1, 2}, {0, 1}), swapped = i32({1, 2}, {1, 0});
    for (const char* name : {"selected", "L02.attn.indices", "pool/blocks"}) {
        CAPTURE(name);
        CHECK(compare({{name, e}}, {{name, swapped}}).verdict() == Verdict::passed);
        CHECK(compare({{name, e}}, {{name, i32({1, 2}, {1, 2})}}).verdict() == Verdict::failed);
        CHECK(compare({{name, e}}, {{name, i32({1, 2}, {1, 1})}}).verdict() == Verdict::failed);
    }
    for (const char* name : {"L02.ffn.experts", "chosen", "token_ids"}) {
        CAPTURE(name);
        const std::string prefix = std::string(name).substr(0, std::string(name).rfind('.') + 1);
        const std::string beside = prefix == "L02.ffn." ? prefix + "gate_scores" : "scores";
        CHECK(compare({{name, e}, {beside, scores}}, {{name, swapped}, {beside, scores}}).verdict() ==
              Verdict::failed);
        CompareOptions options;
        options.scores = {{name, beside}};
        const auto held = [&](const Tensor& got) {
            return compare({{name, e}, {beside, scores}}, {{name, got}, {beside, scores}}, options);
        };
        const CompareReport report = held(swapped);
        CHECK(report.verdict() == Verdict::failed);
        CHECK(contains(report.worst()->reason, "1 wrong; another order in 1 rows"));
        CHECK(held(i32({1, 2}, {0, 2})).verdict() == Verdict::tie);
        CHECK(held(i32({1, 2}, {2, 0})).verdict() == Verdict::failed);
    }
}

TEST_CASE("compare: tolerances of all tensors leave integers alone") {
    const Tensor ids = i32({2}, {7, 9}), near = i32({2}, {7, 10}), x = f32({2}, {1, 2}),
                 y = f32({2}, {1, 2.5f}), flags = tensor<uint8_t>("BOOL", {2}, {0, 1}),
                 other = tensor<uint8_t>("BOOL", {2}, {1, 1});
    CompareOptions options;
    options.tolerances = {{"", parse_tolerance("abs=1", "t")}};
    const CompareReport report =
        compare({{"b", flags}, {"ids", ids}, {"x", x}}, {{"b", other}, {"ids", near}, {"x", y}}, options);
    CHECK(report.tensors[0].verdict == Verdict::failed);
    CHECK(report.tensors[1].verdict == Verdict::failed);
    CHECK(tolerance_text(report.tensors[1].tolerance) == "bit");
    CHECK(contains(details_text(report.tensors[1], ""), "would pass: ulp=1 or abs=1 or rel=0.1"));
    CHECK(contains(details_text(report.tensors[1], ""), "as REGEX:LIMIT"));
    CHECK(report.tensors[2].verdict == Verdict::passed);
    options.tolerances = {{"^ids$", parse_tolerance("abs=1", "t")}};
    CHECK(compare({{"ids", ids}}, {{"ids", near}}, options).verdict() == Verdict::passed);
}

TEST_CASE("compare: constant integers and empty tensors prove what they can") {
    const Tensor zeros = i32({3}, {0, 0, 0}), x = f32({2}, {1, 2}), empty = f32({0, 4}, {});
    CHECK(compare_one(zeros, zeros).verdict == Verdict::equal);
    CHECK(compare_one(f32({1}, {0}), f32({1}, {0})).verdict == Verdict::equal);
    const CompareReport both = compare({{"e", empty}, {"x", x}}, {{"e", empty}, {"x", x}});
    CHECK(both.verdict() == Verdict::equal);
    CHECK(both.exit_code() == 0);
    const CompareReport alone = compare({{"e", empty}}, {{"e", empty}});
    CHECK(alone.tensors[0].verdict == Verdict::equal);
    CHECK(alone.exit_code() == 3);
    CHECK(contains(alone.warnings.at(0), "has elements"));
    CHECK(compare({{"e", empty}}, {{"e", f32({0, 3}, {})}}).exit_code() == 1);
}

TEST_CASE("compare: scores and values before rounding are read as tensors are") {
    // Read in the order of the file, neither index of the second row would tie.
    const std::vector<float> columns{1, 5, 3, 6, 3, 7, 0, 7};  // of the rows 1 3 3 0 and 5 6 7 7
    const fs::path a = scratch() / "scores_a", b = scratch() / "scores_b";
    fs::create_directories(a);
    fs::create_directories(b);
    const Tensor e = i32({2, 1}, {1, 2}), g = i32({2, 1}, {2, 3});
    write_npy(a / "selected.npy", {"I32", {2, 1}, e.bytes});
    write_npy(b / "selected.npy", {"I32", {2, 1}, g.bytes});
    const auto verdict = [&](const CompareOptions& options) {
        return compare_files(TensorFile(a), TensorFile(b), options).tensors.at(1).verdict;
    };
    write_npy(a / "scores.npy", {"F32", {4, 2}, std::as_bytes(std::span(columns))});
    CompareOptions transposed;
    transposed.layouts[{"scores", Side::expected}] = parse_layout("transpose", "test");
    CHECK(verdict(transposed) == Verdict::tie);
    CHECK(verdict({}) == Verdict::failed);
    const Tensor halves = bf16({2, 4}, {1, 3, 3, 0, 5, 6, 7, 7});
    write_npy(a / "scores.npy", {"U16", {2, 4}, halves.bytes});
    CHECK(verdict({}) == Verdict::tie);
    const Tensor y = bf16({1, 2}, {1, 2}), near = bf16({1, 2}, {1, 2.015625f}), before = bf16({1, 2}, {1, 2});
    write_npy(a / "y.npy", {"U16", {1, 2}, y.bytes});
    write_npy(a / "y.unrounded.npy", {"U16", {1, 2}, before.bytes});
    const TensorFile theirs(write("y.safetensors", {{"y", near}}));
    CompareOptions options;
    options.tensor_pattern = "^y$";
    CHECK(compare_files(TensorFile(a), theirs, options).tensors.at(0).worst_unrounded == 2.0);
}

TEST_CASE("compare: limits that are said to pass do, and impossible ones are not said") {
    const auto tries = [](const Tensor& e, const Tensor& g) {
        const TensorComparison found = compare_one(e, g);
        const MinimumTolerances& m = found.minimum;
        const std::string text = details_text(found, "");
        CAPTURE(text);
        if (m.ulp) CHECK(compare_one(e, g, fmt::format("ulp={}", *m.ulp)).verdict == Verdict::passed);
        if (m.absolute)
            CHECK(compare_one(e, g, fmt::format("abs={}", *m.absolute)).verdict == Verdict::passed);
        if (m.relative)
            CHECK(compare_one(e, g, fmt::format("rel={}", *m.relative)).verdict == Verdict::passed);
        if (m.rms) CHECK(compare_one(e, g, fmt::format("rms={}", *m.rms)).verdict == Verdict::passed);
        CHECK_FALSE(contains(text, "=inf"));
        CHECK_FALSE(contains(text, "=nan"));
        CHECK_FALSE(contains(text + found.reason, "9223372036854775807"));
        return m;
    };
    std::vector<float> values, changed;
    for (int i = 1; i <= 500; ++i) {
        values.push_back(1.0f / static_cast<float>(i));
        changed.push_back(values.back() * (1 + 1e-3f * static_cast<float>(1 + i % 7)));
    }
    for (size_t i = 0; i < values.size(); ++i)
        CHECK(tries(f32({}, {values[i]}), f32({}, {changed[i]})).relative.has_value());
    const MinimumTolerances zero = tries(f32({2}, {0, 2}), f32({2}, {0.5f, 2}));
    CHECK_FALSE(zero.relative.has_value());
    CHECK(zero.absolute == 0.5);
    CHECK_FALSE(tries(f32({2, 2}, {0, 0, 1, 2}), f32({2, 2}, {0, 1, 1, 2})).rms.has_value());
    const float nan = std::nanf(""), infinite = std::numeric_limits<float>::infinity();
    CHECK(tries(f32({2}, {1, 2}), f32({2}, {1, nan})).none());
    CHECK(tries(f32({2}, {1, -infinite}), f32({2}, {1, infinite})).none());
    CHECK(contains(details_text(compare_one(f32({2}, {1, 2}), f32({2}, {1, nan})), ""),
                   "no tolerance passes: NaN or infinities differ"));
    const auto f64 = [](const std::vector<double>& v) { return tensor("F64", {std::ssize(v)}, v); };
    CHECK_FALSE(tries(f64({1, 2}), f64({-1, 2})).ulp.has_value());  // beyond 2^53
    CHECK(tries(f64({1e308, 1}), f64({-1e308, 1})).none());
}

TEST_CASE("compare: scores beside a set that do not fit are a warning, scores that are named are not") {
    const Tensor e = i32({4, 1}, {0, 1, 2, 3}), g = i32({4, 1}, {0, 1, 2, 0});
    for (const Tensor& scores :
         {f32({8, 4}, std::vector<float>(32, 1)), f32({4, 2}, std::vector<float>(8, 1)),
          i32({4, 4}, std::vector<int32_t>(16, 1)), f32({}, {1})}) {
        CAPTURE(scores.type);
        const Tensors a{{"indices", e}, {"scores", scores}}, b{{"indices", g}, {"scores", scores}};
        const CompareReport report = compare(a, b);
        CHECK(report.tensors[0].verdict == Verdict::failed);
        CHECK(contains(report.tensors[0].reason, "ties cannot be told without scores"));
        REQUIRE(report.warnings.size() == 1);
        CHECK(contains(report.warnings[0], "indices: scores does not fit"));
        CompareOptions options;
        options.scores = {{"indices", "scores"}};
        CHECK_FALSE(refusal([&] { compare(a, b, options); }).empty());
    }
}

TEST_CASE("compare: a tensor without a name that differs is not missing") {
    const CompareReport report = compare({{"", f32({2}, {1, 2})}}, {{"", f32({2}, {1, 3})}});
    CHECK(report.exit_code() == 1);
    CHECK(verdict_text(report) == "FAILED");
    CHECK(report.warnings.empty());
    CHECK(contains(compare_text(report, false, {}), "FAILED     \"\" F32 [2]"));
}

TEST_CASE("compare: near names are looked for twenty times") {
    const Tensor x = f32({2}, {1, 2});
    Tensors a, b{{"other", x}};
    for (int i = 0; i < 30; ++i) a[fmt::format("attn{:02}", i)] = x, b[fmt::format("atn{:02}", i)] = x;
    int suggestions = 0;
    for (const TensorComparison& tensor : compare(a, b).tensors)
        suggestions += contains(tensor.reason, "did you mean") ? 1 : 0;
    CHECK(suggestions == 20);
}

TEST_CASE("compare: the errors of rows tell which bytes they have read, once each") {
    const std::vector<float> values(1 << 19, 1);
    const Tensor x = f32({1 << 12, 1 << 7}, values), one = f32({3, 1 << 18}, std::vector<float>(3 << 18, 1));
    for (const Tensor* t : {&x, &one}) {
        size_t next = 0, pieces = 0;
        row_errors(view_of(*t), view_of(*t), 4,
                   [&](std::span<const std::byte> e, std::span<const std::byte> g) {
                       CHECK(e.data() == t->bytes.data() + next);
                       CHECK(e.size() == g.size());
                       next += e.size();
                       ++pieces;
                   });
        CHECK(next == t->bytes.size());
        CHECK(pieces > 2);
    }
}
