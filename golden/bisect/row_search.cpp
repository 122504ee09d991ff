#include "golden/bisect/row_search.h"

#include <algorithm>
#include <optional>
#include <string_view>

namespace touchstone {

namespace {

/// Rows on either side of a wrong one: what a neighbour's place was taken for shows.
constexpr int64_t beside = 1;

bool is_by_row(const Slot& slot) {
    return slot.shape == "[rows]" || slot.shape.starts_with("[rows, ");
}

bool has_rows(const OperatorInfo& info) {
    return std::ranges::any_of(info.parameters, [](const Parameter& one) { return one.name == "rows"; }) &&
           std::ranges::all_of(info.outputs, is_by_row);
}

int64_t elements_of(const OperatorRun& run, bool by_row) {
    int64_t count = 0;
    for (const Slot& slot : run.info.inputs)
        if (const auto found = run.inputs.find(slot.name);
            found != run.inputs.end() && is_by_row(slot) == by_row)
            count += found->second.elements();
    return count;
}

Tensor cut(const Tensor& tensor, const RowWindow& window) {
    Tensor part{tensor.type, tensor.shape, {}};
    part.shape.front() = window.count;
    const int64_t row_bytes = std::ssize(tensor.bytes) / tensor.shape.front();
    const auto begin = tensor.bytes.begin() + window.first * row_bytes;
    part.bytes.assign(begin, begin + window.count * row_bytes);
    return part;
}

template <class Slots>
TensorMap cut(const Slots& slots, const TensorMap& tensors, const RowWindow& window) {
    TensorMap result;
    for (const Slot& slot : slots)
        if (const auto found = tensors.find(slot.name); found != tensors.end())
            result[slot.name] = is_by_row(slot) ? cut(found->second, window) : found->second;
    return result;
}

Diagnosis diagnose_window(const OperatorRun& run, const TensorMap& got, const RowWindow& window) {
    Parameters parameters = run.parameters;
    parameters.values.find("rows")->second = window.count;
    const TensorMap inputs = cut(run.info.inputs, run.inputs, window);
    const TensorMap expected = cut(run.info.outputs, run.expected, window);
    return diagnose({run.info, run.arithmetic, parameters, inputs, expected},
                    cut(run.info.outputs, got, window));
}

/// Without hypotheses: equal, rounding or unknown.
Diagnosis judge(const OperatorRun& run, const TensorMap& got) {
    return diagnose(run.info.outputs, run.expected, got,
                    [](const Hypothesis&) -> std::optional<TensorMap> { return std::nullopt; });
}

bool is_wrong(const OperatorRun& run, const TensorMap& got, int64_t row, Finding at_least) {
    const RowWindow window{row, 1};
    const TensorMap expected = cut(run.info.outputs, run.expected, window);
    const OperatorRun one{run.info, run.arithmetic, run.parameters, run.inputs, expected};
    const Finding found = judge(one, cut(run.info.outputs, got, window)).finding;
    return found == at_least || (found == Finding::unknown && at_least == Finding::rounding);
}

RowWindow around(int64_t row, int64_t rows) {
    const int64_t first = std::max<int64_t>(row - beside, 0);
    return {first, std::min(row + beside + 1, rows) - first};
}

/// The first and the last row that are as wrong as the whole.
std::vector<RowWindow> windows_of(const OperatorRun& run, const TensorMap& got, Finding whole) {
    const int64_t rows = run.parameters["rows"];
    int64_t first = 0, last = rows - 1;
    while (first < last && !is_wrong(run, got, first, whole)) ++first;
    while (last > first && !is_wrong(run, got, last, whole)) --last;
    const RowWindow front = around(first, rows), back = around(last, rows);
    return front == back ? std::vector{front} : std::vector{front, back};
}

/// What explains both.
void keep_common(Diagnosis& diagnosis, const Diagnosis& other) {
    std::erase_if(diagnosis.explanations, [&](Explanation& one) {
        const auto same = std::ranges::find(other.explanations, one.hypothesis, &Explanation::hypothesis);
        if (same == other.explanations.end()) return true;
        one.exact = one.exact && same->exact;
        one.unexplained = std::max(one.unexplained, same->unexplained);
        return false;
    });
}

Finding finding_of(const Diagnosis& diagnosis, Finding whole) {
    if (diagnosis.explanations.empty()) return whole;
    return diagnosis.explanations.front().hypothesis->what == Cause::order ? Finding::order : Finding::named;
}

}  // namespace

RowDiagnosis diagnose_rows(const OperatorRun& run, const TensorMap& got, int64_t most_work) {
    const bool large =
        has_rows(run.info) && run.parameters["rows"] > 2 * beside + 1 &&
        run.parameters["rows"] * elements_of(run, false) + 16 * elements_of(run, true) > most_work;
    if (!large) return {diagnose(run, got), {}};
    require_outputs(run, got);
    const Diagnosis whole = judge(run, got);
    if (whole.finding == Finding::equal) return {whole, {}};
    RowDiagnosis result{{}, windows_of(run, got, whole.finding)};
    for (const RowWindow& window : result.searched) {
        Diagnosis found = diagnose_window(run, got, window);
        if (&window == &result.searched.front())
            result.diagnosis = std::move(found);
        else
            keep_common(result.diagnosis, found);
    }
    result.diagnosis.finding = finding_of(result.diagnosis, whole.finding);
    const int64_t k_block = result.diagnosis.first.k_block;
    result.diagnosis.first = whole.first;
    result.diagnosis.first.k_block = k_block;
    return result;
}

}  // namespace touchstone
