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

/// Null where no tolerance passes, and for each limit that does not.
json minimum_json(const MinimumTolerances& minimum) {
    if (minimum.none()) return nullptr;
    const auto limit = [](const auto& value) { return value ? json(*value) : json(nullptr); };
    return {{"ulp", limit(minimum.ulp)},
            {"abs", limit(minimum.absolute)},
            {"rel", limit(minimum.relative)},
            {"rms", limit(minimum.rms)}};
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
            {"cosine_distance", number_json(d.cosine)},
            {"minimum", minimum_json(tensor.minimum)},
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
                {"got_name", tensor.found ? json(tensor.got_name) : json(nullptr)},
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

/// Nine cells; empty where nothing was measured, and where no such limit lets the tensor pass.
void add_measurements(const TensorComparison& tensor, std::vector<Cell>& row) {
    if (!tensor.difference) {
        row.insert(row.end(), 9, Cell(""));
        return;
    }
    const Difference& d = *tensor.difference;
    for (int64_t count : {d.elements, d.identical, d.outside, d.differing_rows}) row.emplace_back(count);
    const auto add = [&row](const auto& limit) {
        row.emplace_back(limit ? fmt::format("{}", *limit) : std::string());
    };
    add(tensor.minimum.ulp);
    add(tensor.minimum.absolute);
    add(tensor.minimum.relative);
    add(tensor.minimum.rms);
    row.emplace_back(std::isnan(d.cosine) ? "nan" : fmt::format("{}", d.cosine));
}

}  // namespace

json compare_json(const CompareReport& report, const CompareCommands& commands) {
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
            {"reproduce", commands.reproduce.empty() ? json(nullptr) : json(commands.reproduce)}};
}

Table compare_table(const CompareReport& report) {
    Table table({"tensor", "verdict", "type", "elements", "identical", "outside", "differing_rows", "ulp",
                 "abs", "rel", "rms", "cosine_distance", "tolerance", "reason"});
    for (const TensorComparison& tensor : report.tensors) {
        std::vector<Cell> row{tensor.name, std::string(name_of(tensor.verdict)), tensor.type};
        add_measurements(tensor, row);
        row.emplace_back(tolerance_text(tensor.tolerance));
        row.emplace_back(tensor.reason);
        table.add_row(std::move(row));
    }
    return table;
}

}  // namespace touchstone::cli
