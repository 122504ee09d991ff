#include <fmt/format.h>

#include <cmath>

#include "cli/compare.h"
#include "golden/compare/compare_text.h"

namespace touchstone::cli {

namespace {

using nlohmann::json;

/// JSON has no infinities and no NaN: those are texts.
json number_json(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    return value;
}

json places_json(const PlacesDifference& places) {
    return {{"both", places.both}, {"expected_only", places.expected_only}, {"got_only", places.got_only}};
}

json element_json(const ElementPair& pair, const TensorComparison& tensor) {
    if (pair.index < 0) return nullptr;
    return {{"index", index_tuple(pair.index, tensor.shape)},
            {"expected", number_json(pair.expected)},
            {"got", number_json(pair.got)},
            {"expected_bits", bits_text(tensor.type, pair.expected_bits)},
            {"got_bits", bits_text(tensor.type, pair.got_bits)}};
}

json difference_json(const TensorComparison& tensor) {
    const Difference& d = *tensor.difference;
    return {{"elements", d.elements},
            {"identical", d.identical},
            {"outside", d.outside},
            {"zero_signs", d.zero_signs},
            {"rows", d.rows},
            {"differing_rows", d.differing_rows},
            {"nan", places_json(d.nan)},
            {"positive_infinity", places_json(d.positive_infinity)},
            {"negative_infinity", places_json(d.negative_infinity)},
            {"ulp_histogram", d.ulp_bins},
            {"normalised_mean_square", number_json(d.normalised_mean_square)},
            {"cosine", number_json(d.cosine)},
            {"minimum",
             {{"ulp", tensor.minimum.ulp},
              {"abs", number_json(tensor.minimum.absolute)},
              {"rel", number_json(tensor.minimum.relative)},
              {"rms", number_json(tensor.minimum.rms)}}},
            {"first", element_json(d.first, tensor)},
            {"worst", element_json(d.worst, tensor)}};
}

json selection_json(const SelectionDifference& s) {
    json faults = json::object();
    for (size_t fault = 1; fault < index_fault_count; ++fault)
        if (s.faults[fault] > 0)
            faults[std::string(name_of(static_cast<IndexFault>(fault)))] = s.faults[fault];
    json object{{"rows", s.rows},   {"equal", s.equal}, {"reordered", s.reordered},  {"ties", s.ties},
                {"wrong", s.wrong}, {"faults", faults}, {"has_scores", s.has_scores}};
    if (s.worst.row >= 0)
        object["worst"] = {{"row", s.worst.row},
                           {"column", s.worst.column},
                           {"expected", s.worst.expected},
                           {"got", s.worst.got}};
    return object;
}

json tensor_json(const TensorComparison& tensor) {
    json object{{"name", tensor.name},
                {"got_name", tensor.got_name},
                {"verdict", name_of(tensor.verdict)},
                {"reason", tensor.reason},
                {"doubt", tensor.doubt},
                {"type", tensor.type},
                {"shape", tensor.shape},
                {"tolerance", tolerance_text(tensor.tolerance)}};
    if (tensor.difference) object["difference"] = difference_json(tensor);
    if (tensor.selection) object["selection"] = selection_json(*tensor.selection);
    if (tensor.worst_unrounded)
        object["before_rounding"] = {{"expected", number_json(*tensor.worst_unrounded)},
                                     {"rounding_tie", tensor.rounding_tie}};
    return object;
}

}  // namespace

json compare_json(const CompareReport& report, const std::string& reproducer) {
    json counts, tensors = json::array();
    for (size_t v = 0; v < verdict_count; ++v)
        counts[std::string(name_of(static_cast<Verdict>(v)))] = report.counts[v];
    for (const TensorComparison& tensor : report.tensors) tensors.push_back(tensor_json(tensor));
    return {{"schema", "touchstone.compare/1"},
            {"verdict", verdict_text(report)},
            {"expected", report.expected_path},
            {"got", report.got_path},
            {"counts", counts},
            {"tensors", tensors},
            {"warnings", report.warnings},
            {"reproducer", reproducer}};
}

Table compare_table(const CompareReport& report) {
    Table table({"tensor", "verdict", "type", "elements", "identical", "outside", "differing_rows", "ulp",
                 "abs", "rel", "rms", "cosine", "tolerance", "reason"});
    const auto number = [](double value) { return Cell(fmt::format("{}", value)); };
    for (const TensorComparison& tensor : report.tensors) {
        const Difference d = tensor.difference.value_or(Difference{});
        table.add_row({tensor.name, std::string(name_of(tensor.verdict)), tensor.type, d.elements,
                       d.identical, d.outside, d.differing_rows, tensor.minimum.ulp,
                       number(tensor.minimum.absolute), number(tensor.minimum.relative),
                       number(tensor.minimum.rms), number(d.cosine), tolerance_text(tensor.tolerance),
                       tensor.reason});
    }
    return table;
}

}  // namespace touchstone::cli
