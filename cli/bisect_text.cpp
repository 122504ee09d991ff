// touchstone bisect: what both halves say, as text and as JSON.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cmath>
#include <optional>

#include "cli/bisect.h"
#include "reference/io/safetensors.h"
#include "reference/io/user_error.h"

namespace touchstone::cli {

namespace {

using nlohmann::json;

std::string bits_text(uint64_t bits, std::string_view type) {
    return fmt::format("0x{:0{}x}", bits, 2 * safetensors_element_bytes(type).value_or(8));
}

bool is_integer(std::string_view type) {
    return type.starts_with('I') || type.starts_with('U');
}

/// Integers as they are, other numbers with their bits.
std::string value_text(double value, uint64_t bits, std::string_view type) {
    return is_integer(type) ? fmt::format("{}", static_cast<int64_t>(value))
                            : fmt::format("{:.9g} ({})", value, bits_text(bits, type));
}

json number_json(double x) {
    return std::isfinite(x) ? json(x) : json(fmt::format("{}", x));
}

std::string explanation_text(const Explanation& one) {
    const Hypothesis& hypothesis = *one.hypothesis;
    const std::string how =
        one.exact ? "gives these bits" : fmt::format("leaves {:.2g} of the difference", one.unexplained);
    return fmt::format("{} [{}]: {} ({})", hypothesis.name, hypothesis.kind, hypothesis.cause, how);
}

}  // namespace

Arithmetic bit_exact_arithmetic(const std::string& name) {
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper})
        if (name == arithmetic_name(arithmetic)) return arithmetic;
    throw UserError({fmt::format("arithmetic \"{}\"", name), "--arithmetic",
                     "exact, hopper or released_hopper: a reference to the bit", ""});
}

std::string index_text(const std::vector<int64_t>& index) {
    return fmt::format("[{}]", fmt::join(index, ", "));
}

std::string element_text(const ElementPair& element, std::string_view type) {
    return fmt::format("expected {}, got {}", value_text(element.expected, element.expected_bits, type),
                       value_text(element.got, element.got_bits, type));
}

json element_json(const ElementPair& element, const std::vector<int64_t>& index, std::string_view type) {
    return {{"index", index},
            {"expected", number_json(element.expected)},
            {"expected_bits", bits_text(element.expected_bits, type)},
            {"got", number_json(element.got)},
            {"got_bits", bits_text(element.got_bits, type)}};
}

json difference_json(const Difference& difference) {
    return {{"elements", difference.elements},
            {"identical", difference.identical},
            {"outside", difference.outside},
            {"largest_ulp", difference.largest_ulp},
            {"largest_absolute", number_json(difference.largest_absolute)},
            {"largest_of_rms", number_json(difference.largest_of_rms)},
            {"normalised_mean_square", number_json(difference.normalised_mean_square)}};
}

std::string_view finding_name(Finding finding) {
    constexpr std::array<std::string_view, 5> names{"equal", "order", "rounding", "named", "unknown"};
    return names[static_cast<size_t>(finding)];
}

std::string cause_text(const Diagnosis& diagnosis) {
    if (diagnosis.finding == Finding::equal) return "";
    if (diagnosis.finding == Finding::rounding)
        return "Cause: rounding explains all of it; no known order of summation gives these bits\n";
    if (diagnosis.finding == Finding::unknown)
        return fmt::format("Cause: unknown; none of {} explains it{}{}\n",
                           diagnosis.tried.size() == 1 ? std::string("1 hypothesis")
                                                       : fmt::format("{} hypotheses", diagnosis.tried.size()),
                           diagnosis.tried.empty() ? "" : ": ", fmt::join(diagnosis.tried, ", "));
    std::string text;
    for (const Explanation& one : diagnosis.explanations)
        text += (text.empty() ? "Cause: " : "   or: ") + explanation_text(one) + "\n";
    if (diagnosis.finding == Finding::order) text += "This is no fault: the same values in another order\n";
    return text;
}

json diagnosis_json(const Diagnosis& diagnosis) {
    json object = {{"finding", finding_name(diagnosis.finding)},
                   {"causes", json::array()},
                   {"k_block", diagnosis.first.k_block},
                   {"tried", diagnosis.tried}};
    for (const Explanation& one : diagnosis.explanations)
        object["causes"].push_back({{"name", one.hypothesis->name},
                                    {"kind", one.hypothesis->kind},
                                    {"cause", one.hypothesis->cause},
                                    {"fault", one.hypothesis->what == Cause::fault},
                                    {"exact", one.exact},
                                    {"unexplained", number_json(one.unexplained)}});
    return object;
}

}  // namespace touchstone::cli
