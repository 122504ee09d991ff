// A report of compare, told: as text, as a page, as a plot.
#pragma once

#include <string>

#include "golden/compare/compare.h"

namespace touchstone {

/// What to type next, as a shell reads it; empty where nothing differs.
struct CompareCommands {
    std::string reproduce = {};  ///< compares the worst tensor alone
    std::string allow = {};      ///< the option that takes the worst tensor's expectation as it is
};

/// A line for every tensor that is not equal (with `all`: for every tensor), the counts, the worst tensor in
/// detail where the report fails, and as the last line then the command that runs it again.
std::string compare_text(const CompareReport& report, bool all, const CompareCommands& commands);

/// The worst element, minimum tolerances and the histogram of one tensor. `allow`: see CompareCommands.
std::string details_text(const TensorComparison& tensor, const std::string& allow);

/// "ulp=1 or abs=0.5 or ..", the limits that would each let the tensor pass, or why none would.
std::string minimum_text(const TensorComparison& tensor);

/// Whether the expectation proves nothing and the user has not allowed that.
bool is_doubted(const TensorComparison& tensor);

/// A page without external resources: verdicts, histograms, worst elements, errors by row.
std::string compare_html(const CompareReport& report, const CompareCommands& commands);

/// The largest error of every tensor, in their order, on a logarithmic scale, and of the worst tensor the
/// error of every row.
std::string compare_svg(const CompareReport& report);

/// "INCOMPLETE" where nothing was compared, else the heaviest verdict.
std::string verdict_text(const CompareReport& report);

/// "0", "1 ulp", "3-4", ..: the bins of Difference::ulp_bins.
std::string bin_text(size_t bin);

/// A name for people: printable, and "" where it is empty.
std::string name_text(const std::string& name);

/// A number as people read it: nine digits, integers whole; NaN without a sign.
std::string number_text(double value);

/// "normalised mean square 1.2e-05, cosine distance 6e-06".
std::string sums_text(const Difference& difference);

}  // namespace touchstone
