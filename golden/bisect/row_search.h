// The search for a cause in large results: hypotheses are slow code that is easy to read, so of operators
// whose rows know nothing of one another only a few rows are searched.
#pragma once

#include <cstdint>
#include <vector>

#include "golden/bisect/diagnosis.h"

namespace touchstone {

/// Rows [first, first + count).
struct RowWindow {
    int64_t first, count;

    friend bool operator==(const RowWindow&, const RowWindow&) = default;
};

struct RowDiagnosis {
    Diagnosis diagnosis;              ///< its first step is that of the whole result
    std::vector<RowWindow> searched;  ///< the rows that hypotheses were tried on; empty: all
};

/// As diagnose. Where trying every hypothesis on all rows would be more than `most_work` multiplications or
/// so, the rows around the first that is wrong and around the last are searched, each for itself: a cause has
/// to explain both. Throws as diagnose does.
RowDiagnosis diagnose_rows(const OperatorRun& run, const TensorMap& got, int64_t most_work = 20'000'000);

}  // namespace touchstone
