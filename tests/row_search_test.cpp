#include "golden/bisect/row_search.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <utility>

#include "reference/io/user_error.h"
#include "tests/operator_run.h"

using namespace touchstone;

namespace {

/// Row `row` of every output taken from `from`.
void take_row(TensorMap& got, const TensorMap& from, int64_t row) {
    for (auto& [name, tensor] : got) {
        const int64_t bytes = std::ssize(tensor.bytes) / tensor.shape.front();
        std::copy_n(from.find(name)->second.bytes.begin() + row * bytes, bytes,
                    tensor.bytes.begin() + row * bytes);
    }
}

constexpr int64_t always = 0;

}  // namespace

TEST_CASE("row search: a few rows name what all rows name") {
    for (const auto& [text, name] : std::initializer_list<std::pair<const char*, const char*>>{
             {"linear_fp8(rows=24,outputs=64,inputs=256)", "weight_scales_twice"},
             {"rms_norm(rows=24,width=512)", "gain_missing"},
             {"expand(rows=24,hidden=64)", "expand_comb_transposed"},
             {"swiglu(rows=24,width=96)", "gate_and_up_swapped"}}) {
        CAPTURE(text);
        const CaseRun run(text);
        const RowDiagnosis found = diagnose_rows(run.run(), run.predicted(name), always);
        CHECK(found.searched == std::vector<RowWindow>{{0, 2}, {22, 2}});
        REQUIRE(found.diagnosis.finding == Finding::named);
        CHECK(found.diagnosis.explanations.front().hypothesis->name == name);
    }
}

TEST_CASE("row search: the rows around the first and the last wrong one are searched") {
    const CaseRun run("rms_norm(rows=24,width=512)");
    TensorMap got = run.expected;
    const TensorMap wrong = run.predicted("gain_missing");
    for (const int64_t row : {5, 6, 7, 8, 16}) take_row(got, wrong, row);
    const RowDiagnosis found = diagnose_rows(run.run(), got, always);
    CHECK(found.searched == std::vector<RowWindow>{{4, 3}, {15, 3}});
    CHECK(found.diagnosis.first.index.front() == 5);
}

TEST_CASE("row search: a cause of the first rows that the last ones do not have is none") {
    const CaseRun run("rms_norm(rows=24,width=512)");
    TensorMap got = run.predicted("gain_missing");
    const TensorMap other = run.predicted("gain_plus_one");
    for (int64_t row = 12; row < 24; ++row) take_row(got, other, row);
    const RowDiagnosis found = diagnose_rows(run.run(), got, always);
    CHECK(found.diagnosis.finding == Finding::unknown);
    CHECK(found.diagnosis.first.output == "unrounded");
}

TEST_CASE("row search: another order of summation is no fault, and the same bits are equal") {
    const CaseRun run("linear_fp8(rows=24,outputs=64,inputs=2304)");
    const TensorMap hopper =
        run_operator(*run.parsed.info, Arithmetic::hopper, run.parsed.parameters, run.inputs);
    CHECK(diagnose_rows(run.run(), hopper, always).diagnosis.finding == Finding::order);
    const RowDiagnosis same = diagnose_rows(run.run(), run.expected, always);
    CHECK(same.diagnosis.finding == Finding::equal);
    CHECK(same.searched.empty());
}

TEST_CASE("row search: small results and operators whose rows hang together are searched whole") {
    const CaseRun small("rms_norm(rows=24,width=64)");
    CHECK(diagnose_rows(small.run(), small.predicted("gain_missing")).searched.empty());
    const CaseRun groups("compressor(rows=7,hidden=512,channels=128)");
    TensorMap got = groups.expected;
    got.find("pooled")->second.bytes[1] ^= std::byte{0x40};
    CHECK(diagnose_rows(groups.run(), got, always).searched.empty());
}

TEST_CASE("row search: outputs of another shape are refused") {
    const CaseRun run("rms_norm(rows=24,width=64)");
    TensorMap got{{"y", make_tensor("y", "BF16", {23, 64})}};
    CHECK_THROWS_AS(diagnose_rows(run.run(), got, always), UserError);
}
