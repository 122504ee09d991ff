#include "golden/compare/tolerance.h"

#include <doctest/doctest.h>

#include <string>

#include "golden/compare/difference.h"
#include "reference/io/user_error.h"

using namespace touchstone;

namespace {

std::string refusal(const std::string& text) {
    try {
        parse_tolerance(text, "--tolerance");
    } catch (const UserError& error) {
        CHECK(error.parts().where == "--tolerance");
        return error.parts().what;
    }
    return "";
}

/// A difference of 100 elements of which `differing` differ, all within the limits of elements.
Difference mild(int64_t differing) {
    Difference d;
    d.elements = 100;
    d.identical = 100 - differing;
    d.normalised_mean_square = 1e-9;
    d.cosine = 1e-9;
    return d;
}

}  // namespace

TEST_CASE("tolerance: limits and quotients are read") {
    const Tolerance t = parse_tolerance("abs=1e-3,rel=2.01/128,cosine=5e-6", "test");
    CHECK(t.absolute == 1e-3);
    CHECK(t.relative == 2.01 / 128);
    CHECK(t.cosine == 5e-6);
    CHECK_FALSE(t.ulp);
    CHECK_FALSE(t.rms);
    CHECK(t.share == 1);
    CHECK_FALSE(t.exact());
    const Tolerance step = parse_tolerance("ulp=1,share=0.01", "test");
    CHECK(step.ulp == 1);
    CHECK(step.share == 0.01);
    CHECK(parse_tolerance("rms=0", "test").rms == 0);
}

TEST_CASE("tolerance: every class reads, means something and comes back from its text") {
    std::string names;
    for (const ToleranceClass& known : tolerance_classes()) {
        CAPTURE(known.name);
        const Tolerance t = parse_tolerance(known.name, "test");
        CHECK_FALSE(known.meaning.empty());
        const Tolerance again = parse_tolerance(tolerance_text(t), "test");
        CHECK(tolerance_text(again) == tolerance_text(t));
        CHECK(again.ulp == t.ulp);
        CHECK(again.relative == t.relative);
        CHECK(again.cosine == t.cosine);
        CHECK(t.exact() == (known.name == "bit"));
        names += std::string(known.name) + " ";
    }
    for (const char* name : {"bit ", "bf16_step ", "fp32_row ", "flashmla_output ", "flashmla_lse ",
                             "deepgemm_fp8 ", "deepgemm_fp4 ", "torch_bf16 ", "torch_f32 "})
        CHECK(names.find(name) != std::string::npos);
}

TEST_CASE("tolerance: what is no tolerance is refused and named") {
    CHECK(refusal("") != "");
    CHECK(refusal("bf16_stepp").find("bf16_stepp") != std::string::npos);
    CHECK(refusal("ulp=1,ulp=2").find("twice") != std::string::npos);
    for (const char* text : {"ulp", "ulp=", "ulp=1.5", "ulp=-1", "ulp=1e300", "rms=nan", "rms=inf", "abs=1/0",
                             "abs=1/", "abs=1e-3,", "share=1.5,ulp=1", "rel=0x1", "ulp=1;rel=1", " ulp=1"}) {
        CAPTURE(text);
        CHECK(refusal(text) != "");
    }
}

TEST_CASE("tolerance: a cosine or a share alone would let wrong elements pass, so it is refused") {
    CHECK(refusal("cosine=1e-3").find("a few wrong ones") != std::string::npos);
    CHECK(refusal("share=0.01") != "");
    CHECK(refusal("cosine=1e-3,share=0.5") != "");
}

TEST_CASE("tolerance: share and cosine are limits of their own") {
    CHECK(within(mild(1), parse_tolerance("ulp=1,share=0.01", "test")));
    CHECK_FALSE(within(mild(2), parse_tolerance("ulp=1,share=0.01", "test")));
    CHECK(within(mild(2), parse_tolerance("ulp=1", "test")));
    CHECK(within(mild(2), parse_tolerance("ulp=1,cosine=1e-9", "test")));
    CHECK_FALSE(within(mild(2), parse_tolerance("ulp=1,cosine=9e-10", "test")));
    CHECK_FALSE(within(mild(2), parse_tolerance("ulp=1,share=0", "test")));
}
