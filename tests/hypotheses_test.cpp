// The table of hypotheses as a whole, and that each rule without a change is the reference: what it predicts
// then differs by its one change alone.
#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <set>
#include <string>
#include <vector>

#include "golden/bisect/diagnosis.h"
#include "golden/hypotheses/linear_operands.h"
#include "golden/hypotheses/norm_rule.h"
#include "golden/hypotheses/quantizer_rule.h"
#include "golden/hypotheses/rope_rule.h"
#include "golden/hypotheses/selection_rule.h"
#include "reference/io/user_error.h"

using namespace touchstone;

namespace {

/// A case of the registry, run.
struct Run {
    const OperatorInfo& info;
    Parameters parameters;
    TensorMap inputs, expected;
    Arithmetic arithmetic;

    Run(const OperatorInfo& of, const std::string& text, Arithmetic profile)
        : info(of), parameters(parse_case(text, "hypotheses_test").parameters), arithmetic(profile) {
        inputs = make_inputs(info, parameters);
        expected = run_operator(info, arithmetic, parameters, inputs);
    }
    OperatorRun run() const { return {info, arithmetic, parameters, inputs, expected}; }
};

/// Calls `check` with every case of an operator in every profile that runs it, but for large ones.
template <class Check>
void for_each_run(const std::string& name, const Check& check) {
    const OperatorInfo& info = find_operator(name);
    for (const Arithmetic arithmetic : info.profiles)
        for (const OperatorCase& one : info.cases) {
            const bool refused =
                !one.profiles.empty() && std::ranges::find(one.profiles, arithmetic) == one.profiles.end();
            if (refused) continue;
            INFO(one.text, " ", arithmetic_name(arithmetic));
            const Run run(info, one.text, arithmetic);
            check(run.run());
        }
}

/// Bytes, or all NaN alike: reading decides nothing about a NaN's payload.
void check_same(const std::optional<TensorMap>& outputs, const OperatorRun& run) {
    REQUIRE(outputs);
    for (const auto& expected : run.expected) {
        INFO(expected.first);
        CHECK(outputs->find(expected.first)->second == expected.second);
    }
}

/// What the registry's small cases do not reach.
const std::vector<std::string> more_cases{
    "index_keys(groups=4,first_group=9,channels=64,head_dim=32,rope_dim=16)",
    "grouped_linear(rows=3,groups=2,inputs=64,outputs=64)",
    "linear_bf16(rows=70,outputs=8,inputs=544)",
    "linear_bf16(rows=80,outputs=1000,inputs=32)",
    "rms_norm(rows=2,width=64,eps=0.1)",
    "rope(rows=9,heads=8,head_dim=64)",
    "sample_token(vocabulary=100,seed=3)",
    "greedy_token(vocabulary=4000,seed=16)"};

int64_t input_elements(const ParsedCase& parsed) {
    int64_t elements = 0;
    for (const Slot* slot : input_slots(*parsed.info, parsed.parameters)) {
        int64_t count = 1;
        for (const int64_t extent : shape_of(*slot, parsed.parameters)) count *= extent;
        elements += count;
    }
    return elements;
}

/// Every hypothesis on one run: outputs of the declared types and shapes; names of those that change a bit.
void try_all(const Run& run, std::set<std::string>& changed) {
    for (const Hypothesis& hypothesis : hypotheses()) {
        CAPTURE(hypothesis.name);
        const std::optional<TensorMap> outputs = predict(hypothesis, run.run());
        if (!outputs) continue;
        for (const auto& [name, tensor] : run.expected) {
            const auto found = outputs->find(name);
            REQUIRE(found != outputs->end());
            CHECK(found->second.type == tensor.type);
            CHECK(found->second.shape == tensor.shape);
            CHECK(found->second.bytes.size() == tensor.bytes.size());
            if (found->second != tensor) changed.insert(hypothesis.name);
        }
    }
}

}  // namespace

TEST_CASE("hypotheses: names are unique, lower case, and of operators that exist") {
    std::set<std::string> names;
    for (const Hypothesis& one : hypotheses()) {
        CAPTURE(one.name);
        CHECK(names.insert(one.name).second);
        CHECK(std::ranges::all_of(
            one.name, [](unsigned char c) { return std::islower(c) || std::isdigit(c) || c == '_'; }));
        CHECK(one.cause.size() > 10);
        CHECK((one.kind == "order") == (one.what == Cause::order));
        CHECK((one.kind == "order" || (one.kind.size() == 3 && one.kind[0] == 'K')));
        for (const std::string& name : one.operators) CHECK_NOTHROW(find_operator(name));
    }
}

TEST_CASE("hypotheses: each changes something on some small case, and none crashes on any") {
    std::set<std::string> changed;
    for (const OperatorInfo& info : operators())
        for (const OperatorCase& one : info.cases) {
            if (input_elements(parse_case(one.text, "hypotheses_test")) > 60'000) continue;
            CAPTURE(one.text);
            try_all(Run(info, one.text, Arithmetic::exact), changed);
        }
    for (const std::string& text : more_cases) {
        CAPTURE(text);
        try_all(Run(*parse_case(text, "hypotheses_test").info, text, Arithmetic::hopper), changed);
    }
    for (const Hypothesis& hypothesis : hypotheses()) {
        CAPTURE(hypothesis.name);
        CHECK(changed.contains(hypothesis.name));
    }
}

TEST_CASE("hypotheses: a linear layer's own operands give the reference's bits in every profile") {
    for (const std::string& name : linear_layers)
        for_each_run(name, [](const OperatorRun& run) {
            const std::optional<LinearOperands> operands = linear_operands(run);
            if (run.parameters["rows"] == 0) {
                CHECK_FALSE(operands);
                return;
            }
            REQUIRE(operands);
            check_same(linear_outputs(run, *operands), run);
        });
}

TEST_CASE("hypotheses: norm, rotation, selections and quantisers without a change are the reference") {
    for_each_run("rms_norm",
                 [](const OperatorRun& run) { check_same(with_norm([](NormRule&) {})(run), run); });
    for_each_run("rope", [](const OperatorRun& run) {
        check_same(with_rope([](RopeRule&, const OperatorRun&) { return true; })(run), run);
    });
    for_each_run("top_k", [](const OperatorRun& run) { check_same(with_top_k([](TopKRule&) {})(run), run); });
    for_each_run("candidate_pool", [](const OperatorRun& run) {
        if (run.parameters["visible"] > 0) check_same(with_pool([](PoolRule&) {})(run), run);
    });
    for (const char* name : {"quantize_q8", "quantize_q4i", "quantize_q4m"})
        for_each_run(name, [](const OperatorRun& run) {
            check_same(with_quantizer([](QuantizerRule&) { return true; })(run), run);
        });
    for (const char* name : {"dequantize_q8", "dequantize_q4i", "dequantize_q4m"})
        for_each_run(name, [](const OperatorRun& run) {
            check_same(with_decoding([](DecodeRule&, Quantizer) { return true; })(run), run);
        });
}

TEST_CASE("diagnosis: the reference's own result is equal, in all outputs or in one") {
    const Run run(find_operator("rms_norm"), "rms_norm(rows=3,width=64)", Arithmetic::exact);
    CHECK(diagnose(run.run(), run.expected).finding == Finding::equal);
    const Diagnosis one = diagnose(run.run(), {*run.expected.find("y")});
    CHECK(one.finding == Finding::equal);
    CHECK(one.first.output.empty());
    CHECK(one.tried.empty());
}

TEST_CASE("diagnosis: a result that no operator gives is refused") {
    const Run run(find_operator("rms_norm"), "rms_norm(rows=3,width=64)", Arithmetic::exact);
    CHECK_THROWS_AS(diagnose(run.run(), {}), UserError);
    CHECK_THROWS_AS(diagnose(run.run(), {{"z", run.expected.find("y")->second}}), UserError);
    CHECK_THROWS_AS(diagnose(run.run(), {{"unrounded", run.expected.find("y")->second}}), UserError);
}

TEST_CASE("diagnosis: a row of large values does not speak for the others") {
    // The first row is explained by its neighbour's fault, the small second one is not.
    const Run run(find_operator("rms_norm"), "rms_norm(rows=4,width=64,eps=1)", Arithmetic::exact);
    const Hypothesis* gain = nullptr;
    for (const Hypothesis& one : hypotheses())
        if (one.name == "gain_plus_one") gain = &one;
    REQUIRE(gain != nullptr);
    TensorMap inputs = run.inputs;
    for (size_t i = 64; i < 256; ++i) {
        Bf16& x = inputs.find("x")->second.view<Bf16>()[i];
        x = bf16_from_float(to_float(x) * 0x1p-10f);
    }
    const TensorMap expected = run_operator(run.info, Arithmetic::exact, run.parameters, inputs);
    const OperatorRun small{run.info, Arithmetic::exact, run.parameters, inputs, expected};
    TensorMap got = *predict(*gain, small);
    // Rows 1 to 3 have an error of their own, of the size of their values.
    for (size_t i = 64; i < 256; ++i) {
        float& x = got.find("unrounded")->second.view<float>()[i];
        x = -x;
        got.find("y")->second.view<Bf16>()[i] = bf16_from_float(x);
    }
    CHECK(diagnose(small, got).finding == Finding::unknown);
}
