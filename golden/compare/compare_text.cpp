#include "golden/compare/compare_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "golden/compare/element_types.h"
#include "golden/compare/printable.h"
#include "reference/registry/tensor.h"

namespace touchstone {

namespace {

constexpr int bar_width = 40;

std::string histogram_text(const Difference& d) {
    std::string text = "  units in the last place\n";
    const int64_t most = std::max<int64_t>(1, *std::ranges::max_element(d.ulp_bins));
    for (size_t bin = 0; bin < d.ulp_bins.size(); ++bin) {
        const double share = static_cast<double>(d.ulp_bins[bin]) / static_cast<double>(most);
        const int length = d.ulp_bins[bin] == 0 ? 0 : std::max(1, static_cast<int>(share * bar_width));
        text += fmt::format("  {:>11} {:>12} {}\n", bin_text(bin), d.ulp_bins[bin],
                            std::string(static_cast<size_t>(length), '#'));
    }
    return text;
}

std::string element_text(std::string_view label, const ElementPair& pair, const TensorComparison& tensor) {
    return fmt::format("  {} [{}]: expected {} ({}), got {} ({})\n", label,
                       fmt::join(index_tuple(pair.index, tensor.shape), ", "), number_text(pair.expected),
                       bits_text(tensor.type, pair.expected_bits), number_text(pair.got),
                       bits_text(tensor.type, pair.got_bits));
}

std::string unrounded_text(const TensorComparison& tensor) {
    if (!tensor.worst_unrounded) return "";
    return fmt::format("  expected before rounding {}{}\n", number_text(*tensor.worst_unrounded),
                       tensor.rounding_tie ? ": halfway, either is a rounding of it" : "");
}

std::string selection_details(const SelectionDifference& s) {
    if (s.worst.row < 0) return "";
    return fmt::format("  row {} column {}: expected {}, got {}{}\n", s.worst.row, s.worst.column,
                       s.worst.expected, s.worst.got,
                       s.worst.fault == IndexFault::none ? "" : fmt::format(" ({})", name_of(s.worst.fault)));
}

}  // namespace

std::string name_text(const std::string& name) {
    return name.empty() ? "\"\"" : printable(name);
}

std::string number_text(double value) {
    return std::isnan(value) ? "nan" : fmt::format("{:.9g}", value);
}

std::string sums_text(const Difference& d) {
    const auto text = [](double value) { return std::isnan(value) ? "nan" : fmt::format("{:.3g}", value); };
    return fmt::format("normalised mean square {}, cosine distance {}", text(d.normalised_mean_square),
                       text(d.cosine));
}

std::string minimum_text(const TensorComparison& tensor) {
    if (tensor.selection) return "no tolerance passes: indices are not measured";
    const MinimumTolerances& minimum = tensor.minimum;
    if (minimum.none()) {
        const bool sums = std::isnan(tensor.difference->normalised_mean_square + tensor.difference->cosine);
        return fmt::format("no tolerance passes: {}",
                           sums ? "sums beyond a double" : "NaN or infinities differ");
    }
    std::vector<std::string> limits;
    const auto add = [&limits](std::string_view key, const auto& limit) {
        if (limit)
            limits.push_back(fmt::format("{}={}", key, *limit));  // the shortest that reads back the same
    };
    add("ulp", minimum.ulp);
    add("abs", minimum.absolute);
    add("rel", minimum.relative);
    add("rms", minimum.rms);
    return fmt::format("would pass: {}{}", fmt::join(limits, " or "),
                       is_float_type(tensor.type) ? "" : ", as REGEX:LIMIT since these are integers");
}

bool is_doubted(const TensorComparison& tensor) {
    return !tensor.doubt.empty() && !tensor.doubt_allowed;
}

std::string bin_text(size_t bin) {
    if (bin == ulp_bin_ends.size()) return fmt::format("> {}", ulp_bin_ends.back());
    const int64_t begin = bin == 0 ? 0 : ulp_bin_ends[bin - 1] + 1;
    return begin == ulp_bin_ends[bin] ? fmt::format("{}", begin)
                                      : fmt::format("{}-{}", begin, ulp_bin_ends[bin]);
}

std::string verdict_text(const CompareReport& report) {
    return report.nothing_compared() ? "INCOMPLETE" : std::string(name_of(report.verdict()));
}

std::string details_text(const TensorComparison& tensor, const std::string& allow) {
    std::string text = fmt::format("{}: {}, tolerance {}\n", name_text(tensor.name),
                                   describe(tensor.type, tensor.shape), tolerance_text(tensor.tolerance));
    if (!tensor.difference) return text + "  " + printable(tensor.reason) + "\n";
    const Difference& d = *tensor.difference;
    text += fmt::format(
        "  {} of {} elements identical ({:.4f} %), {} of {} rows differ\n", d.identical, d.elements,
        100 * static_cast<double>(d.identical) / std::max(1.0, static_cast<double>(d.elements)),
        d.differing_rows, d.rows);
    if (tensor.selection) text += selection_details(*tensor.selection);
    if (d.first.index >= 0) text += element_text("first", d.first, tensor);
    if (d.worst.index >= 0) text += element_text("worst", d.worst, tensor) + unrounded_text(tensor);
    if (d.zero_signs > 0) text += fmt::format("  {} zeros of the other sign\n", d.zero_signs);
    if (is_doubted(tensor)) text += fmt::format("  {}; to take it as it is: {}\n", tensor.doubt, allow);
    if (d.equal()) return text;
    return text + fmt::format("  {}\n  {}\n", minimum_text(tensor), sums_text(d)) + histogram_text(d);
}

std::string compare_text(const CompareReport& report, bool all, const CompareCommands& commands) {
    size_t name_width = 0;
    for (const TensorComparison& tensor : report.tensors)
        if (all || tensor.verdict != Verdict::equal)
            name_width = std::max(name_width, name_text(tensor.name).size());
    std::string text;
    for (const TensorComparison& tensor : report.tensors) {
        if (!all && tensor.verdict == Verdict::equal) continue;
        text += fmt::format("{:<10} {:<{}} {}{}{}\n", name_of(tensor.verdict), name_text(tensor.name),
                            name_width, describe(tensor.type, tensor.shape),
                            tensor.reason.empty() ? "" : "  ", printable(tensor.reason));
    }
    std::string counts;
    for (size_t v = 0; v < verdict_count; ++v)
        if (report.counts[v] > 0)
            counts += fmt::format(", {} {}", report.counts[v], name_of(static_cast<Verdict>(v)));
    text += fmt::format("{}: {} tensor{}{}\n", verdict_text(report), report.tensors.size(),
                        report.tensors.size() == 1 ? "" : "s", counts);
    const TensorComparison* worst = report.worst();
    if (worst == nullptr || report.exit_code() == 0) return text;
    return text + "\n" + details_text(*worst, commands.allow) + "\n" + commands.reproduce + "\n";
}

}  // namespace touchstone
