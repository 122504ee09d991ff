// A report of compare, told: as text, as a page, as a plot.
#pragma once

#include <string>

#include "golden/compare/compare.h"

namespace touchstone {

/// A line for every tensor that is not equal (with `all`: for every tensor), the warnings, the counts, the
/// worst tensor in detail where the report fails, and as the last line then `reproducer`.
std::string compare_text(const CompareReport& report, bool all, const std::string& reproducer);

/// The worst element, minimum tolerances and the histogram of one tensor.
std::string details_text(const TensorComparison& tensor);

/// A page without external resources: verdicts, histograms, worst elements, errors by row.
std::string compare_html(const CompareReport& report, const std::string& reproducer);

/// The largest error of every tensor, in their order, on a logarithmic scale, and of the worst tensor the
/// error of every row.
std::string compare_svg(const CompareReport& report);

/// "INCOMPLETE" where nothing was compared, else the heaviest verdict.
std::string verdict_text(const CompareReport& report);

/// "0", "1 ulp", "3-4", ..: the bins of Difference::ulp_bins.
std::string bin_text(size_t bin);

/// A number as people read it: nine digits, integers whole.
std::string number_text(double value);

}  // namespace touchstone
