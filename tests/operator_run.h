// A case of an operator, run by the reference, and what a hypothesis about it would give.
#pragma once

#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "golden/bisect/diagnosis.h"

namespace touchstone {

struct CaseRun {
    ParsedCase parsed;
    TensorMap inputs, expected;

    explicit CaseRun(const std::string& text)
        : parsed(parse_case(text, "the test")), inputs(make_inputs(*parsed.info, parsed.parameters)) {
        expected = run_operator(*parsed.info, Arithmetic::exact, parsed.parameters, inputs);
    }
    OperatorRun run() const { return {*parsed.info, Arithmetic::exact, parsed.parameters, inputs, expected}; }
    TensorMap predicted(const std::string& name) const {
        const auto found = std::ranges::find(hypotheses(), name, &Hypothesis::name);
        REQUIRE(found != hypotheses().end());
        return *predict(*found, run());
    }
    Diagnosis diagnosed(const TensorMap& got) const { return diagnose(run(), got); }
};

}  // namespace touchstone
