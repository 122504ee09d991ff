#include "golden/bisect/diagnosis.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/numerics/random.h"
#include "tests/operator_run.h"

using namespace touchstone;

namespace {

bool is_float(const Tensor& tensor) {
    return tensor.type == "F32" || tensor.type == "BF16";
}

void set(Tensor& tensor, int64_t i, float value) {
    const auto at = static_cast<size_t>(i);
    if (tensor.type == "F32")
        tensor.view<float>()[at] = value;
    else
        tensor.view<Bf16>()[at] = bf16_from_float(value);
}

/// Every number of every output replaced.
template <class Value>
TensorMap replaced(const TensorMap& outputs, const Value& value) {
    TensorMap result = outputs;
    for (auto& [name, tensor] : result)
        if (is_float(tensor))
            for (int64_t i = 0; i < tensor.elements(); ++i) set(tensor, i, value(i));
    return result;
}

/// Small cases of all operators.
template <class Check>
void for_each_small_case(const Check& check) {
    for (const OperatorInfo& info : operators())
        for (const OperatorCase& one : info.cases) {
            const CaseRun run(one.text);
            int64_t elements = 0;
            for (const auto& [name, tensor] : run.inputs) elements += tensor.elements();
            if (elements > 20'000) continue;
            INFO(one.text);
            check(run);
        }
}

/// A result that has nothing of the reference's is explained by what gives the same numbers alone.
void check_not_named_by_likeness(const CaseRun& run, const TensorMap& got) {
    const Diagnosis diagnosis = run.diagnosed(got);
    for (const Explanation& one : diagnosis.explanations) {
        INFO(one.hypothesis->name << " leaves " << one.unexplained);
        CHECK((one.exact || one.unexplained == 0));
    }
}

}  // namespace

TEST_CASE("diagnosis: outputs that nobody wrote are not what makes everything small (every operator)") {
    for_each_small_case([](const CaseRun& run) {
        check_not_named_by_likeness(run, replaced(run.expected, [](int64_t) { return 0.0f; }));
    });
}

TEST_CASE("diagnosis: neither is garbage a hundredth as large (every operator)") {
    const RandomStream random{3, 1};
    for_each_small_case([&](const CaseRun& run) {
        check_not_named_by_likeness(
            run, replaced(run.expected, [&](int64_t i) {
                return static_cast<float>(random.word(static_cast<uint64_t>(i)) % 2001) * 1e-5f - 0.01f;
            }));
    });
}

TEST_CASE("diagnosis: a fault and a row of NaN beside it are not that fault alone") {
    const CaseRun run("rms_norm(rows=40,width=512,seed=3)");
    TensorMap got = run.predicted("gain_plus_one");
    REQUIRE(run.diagnosed(got).finding == Finding::named);
    for (auto& [name, tensor] : got)
        for (int64_t i = 39 * 512; i < 40 * 512; ++i) set(tensor, i, std::numeric_limits<float>::quiet_NaN());
    CHECK(run.diagnosed(got).finding == Finding::unknown);
    for (auto& [name, tensor] : got)
        for (int64_t i = 39 * 512; i < 40 * 512; ++i) set(tensor, i, 1e30f);
    CHECK(run.diagnosed(got).finding == Finding::unknown);
}

TEST_CASE("diagnosis: zeros of the other sign are no fault where values are judged by rounding") {
    const CaseRun run("index_scores(keys=48,visible=47,heads=32,fill=ties,seed=7)");
    TensorMap got = run.expected;
    int64_t zeros = 0;
    for (auto& [name, tensor] : got)
        if (is_float(tensor))
            for (int64_t i = 0; i < tensor.elements(); ++i)
                if (element_as_double(tensor, i) == 0) {
                    set(tensor, i, -0.0f);
                    ++zeros;
                }
    REQUIRE(zeros > 4);
    CHECK(run.diagnosed(got).finding == Finding::rounding);
}

TEST_CASE("diagnosis: another rounding of P does not hide a missing sink") {
    const CaseRun run("sparse_attention(entries=640,heads=8,head_dim=128,seed=5)");
    CaseRun without_sink = run;
    std::ranges::fill(without_sink.inputs.find("sink")->second.view<float>(),
                      -std::numeric_limits<float>::infinity());
    without_sink.expected =
        run_operator(*run.parsed.info, Arithmetic::exact, run.parsed.parameters, without_sink.inputs);
    for (const char* rounding : {"p_unrounded", "p_rounded_under_final_maximum"}) {
        CAPTURE(rounding);
        TensorMap got = without_sink.predicted(rounding);
        got.erase("unrounded");
        CHECK(run.diagnosed(got).finding != Finding::order);
        CHECK(run.diagnosed(got).finding != Finding::rounding);
    }
}
