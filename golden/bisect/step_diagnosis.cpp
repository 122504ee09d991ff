#include "golden/bisect/step_diagnosis.h"

#include <algorithm>
#include <utility>

#include "golden/bisect/reading_hypotheses.h"
#include "golden/bisect/step_origins.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace {

/// Rows of a row-by-row step that hypotheses are tried on.
constexpr size_t most_rows = 6;

/// A step that is tried: all of it, or some rows, each with its chain; what the reference and theirs have.
struct Trial {
    std::vector<ChainRun> chains;
    std::vector<int64_t> rows;  ///< of a row-by-row step
    Tensor expected, got;
};

/// The chains' results in one tensor, as theirs.
Tensor joined(const std::vector<Tensor>& results, const Tensor& as, bool row_by_row) {
    if (row_by_row) return stacked(results, as);
    Tensor whole = results.front();
    whole.shape = as.shape;
    return whole;
}

std::vector<int64_t> rows_to_try(const Step& step, const StepPlace& place, const Tensor& expected,
                                 const Tensor& got) {
    std::vector<int64_t> wrong, right;
    for (int64_t row = 0; row < place.rows; ++row) {
        const Tensor a = row_range(expected, row, 1), b = row_range(got, row, 1);
        const bool within_rounding =
            within(difference(view_of(a), view_of(b), step_tolerance(step)), step_tolerance(step));
        (within_rounding ? right : wrong).push_back(row);
    }
    while (wrong.size() > most_rows) wrong.erase(wrong.begin() + std::ssize(wrong) / 2);
    if (wrong.empty()) return right;
    if (!right.empty()) wrong.push_back(right.back());
    return wrong;
}

Tensor chosen_rows(const Tensor& tensor, const std::vector<int64_t>& rows) {
    Tensor chosen = row_range(tensor, 0, 0);
    for (const int64_t row : rows) append_rows(chosen, row_range(tensor, row, 1));
    return chosen;
}

std::optional<Trial> trial_of(const Step& step, StepPlace place, Arithmetic arithmetic) {
    std::string why;
    const std::optional<Tensor> expected = run_step(step, place, arithmetic, why);
    if (!expected) return std::nullopt;
    const Tensor& got = *place.theirs.tensor(place.call, place.layer, step.tensor);
    Trial trial{{}, {}, *expected, got};
    if (step.row_by_row) {
        trial.rows = rows_to_try(step, place, *expected, got);
        trial.expected = chosen_rows(*expected, trial.rows);
        trial.got = chosen_rows(got, trial.rows);
    }
    const std::vector<int64_t> runs = step.row_by_row ? trial.rows : std::vector<int64_t>{-1};
    for (const int64_t row : runs) {
        place.row = row;
        std::optional<ChainRun> chain = run_chain(step, place, arithmetic, why);
        if (!chain) return std::nullopt;
        trial.chains.push_back(std::move(*chain));
    }
    return trial;
}

/// What one chain gives when its operator `link` has the fault; nothing where that makes no sense there.
std::optional<Tensor> predicted(const Hypothesis& hypothesis, const ChainRun& chain, size_t link,
                                Arithmetic arithmetic) {
    const LinkRun& run = chain.links[link];
    const std::optional<TensorMap> outputs =
        predict(hypothesis, {*run.info, arithmetic, run.parameters, run.inputs, run.outputs});
    if (!outputs) return std::nullopt;
    try {
        return run_links_from(chain, link + 1, outputs->find(run.output)->second, arithmetic);
    } catch (const UserError&) {
        return std::nullopt;  // what the fault makes is refused further on
    }
}

/// The whole trial under one hypothesis; rows where it makes no sense stay the reference's.
std::optional<TensorMap> predicted_trial(const Step& step, const Trial& trial, const Hypothesis& hypothesis,
                                         size_t link, Arithmetic arithmetic) {
    bool any = false;
    std::vector<Tensor> results;
    for (const ChainRun& chain : trial.chains) {
        std::optional<Tensor> result = predicted(hypothesis, chain, link, arithmetic);
        any = any || result.has_value();
        results.push_back(result ? std::move(*result) : chain.result);
    }
    if (!any) return std::nullopt;
    return TensorMap{{step.tensor, joined(results, trial.expected, step.row_by_row)}};
}

/// Lower is better: exact ones, then those that leave less, then nothing.
double rank(const Diagnosis& diagnosis) {
    if (diagnosis.explanations.empty()) return 2;
    const Explanation& best = diagnosis.explanations.front();
    return best.exact ? -1 : best.unexplained;
}

/// The last operator of a whole step makes the tensor itself: everything is known of it, the block of K too.
Diagnosis diagnose_last_link(const Step& step, const Trial& trial, Arithmetic arithmetic) {
    const LinkRun& run = trial.chains.front().links.back();
    Tensor got = trial.got;
    got.shape = run.outputs.find(run.output)->second.shape;
    Diagnosis result = diagnose({*run.info, arithmetic, run.parameters, run.inputs, run.outputs},
                                {{run.output, std::move(got)}});
    if (result.first.output.empty()) return result;
    result.first.output = step.tensor;
    result.first.index = index_tuple(result.first.element.index, trial.got.shape);
    return result;
}

Diagnosis diagnose_link(const Step& step, const Trial& trial, size_t link, Arithmetic arithmetic) {
    if (link + 1 == step.links.size() && !step.row_by_row) return diagnose_last_link(step, trial, arithmetic);
    OutputSlot slot = step_output(step);
    slot.name = step.tensor;
    return diagnose({&slot, 1}, {{step.tensor, trial.expected}}, {{step.tensor, trial.got}},
                    [&](const Hypothesis& hypothesis) {
                        return predicted_trial(step, trial, hypothesis, link, arithmetic);
                    });
}

/// A step that moves a tensor has no operator: only where it differs can be said.
Diagnosis first_difference(const Step& step, const Trial& trial) {
    OutputSlot slot;
    slot.name = step.tensor;
    return diagnose({&slot, 1}, {{step.tensor, trial.expected}}, {{step.tensor, trial.got}},
                    [](const Hypothesis&) { return std::nullopt; });
}

/// The trial's tensor when the step reads something else; nothing where that is not there, or the same.
std::optional<Tensor> read_otherwise(const Step& step, StepPlace place, const Trial& trial,
                                     const OtherReading& reading, Arithmetic arithmetic) {
    place.reading = reading;
    std::vector<Tensor> results;
    const std::vector<int64_t> runs = step.row_by_row ? trial.rows : std::vector<int64_t>{-1};
    for (const int64_t row : runs) {
        std::string why;
        place.row = row;
        std::optional<ChainRun> chain = run_chain(step, place, arithmetic, why);
        if (!chain) return std::nullopt;
        results.push_back(std::move(chain->result));
    }
    Tensor whole = joined(results, trial.expected, step.row_by_row);
    if (whole.bytes.size() != trial.got.bytes.size() || whole.bytes == trial.expected.bytes)
        return std::nullopt;
    return whole;
}

/// Hypotheses about what the step reads, where none about its operators gives the bits.
void try_readings(StepDiagnosis& result, const Step& step, const StepPlace& place, const Trial& trial,
                  Arithmetic arithmetic) {
    Diagnosis& diagnosis = result.diagnosis;
    std::vector<Explanation> found;
    for (const ReadingHypothesis& one : reading_hypotheses()) {
        const std::optional<OtherReading> reading = one.reading(place);
        if (!reading) continue;
        const std::optional<Tensor> made = read_otherwise(step, place, trial, *reading, arithmetic);
        if (!made) continue;
        diagnosis.tried.push_back(one.hypothesis.name);
        const double left = unexplained_share(trial.expected, trial.got, *made, Cause::fault);
        if (left <= most_unexplained) found.push_back({&one.hypothesis, left == 0, left});
    }
    if (found.empty()) return;
    std::ranges::stable_sort(found, {}, &Explanation::unexplained);
    if (found.front().unexplained >= rank(diagnosis)) return;
    diagnosis.explanations = std::move(found);
    diagnosis.finding = Finding::named;
}

void keep_inputs(StepDiagnosis& result, const Trial& trial, size_t link) {
    const LinkRun& run = trial.chains.front().links[link];
    result.operator_name = run.info->name;
    result.case_line = case_text(*run.info, run.parameters);
    result.inputs = run.inputs;
    if (!trial.rows.empty()) result.row = trial.rows.front();
}

}  // namespace

StepDiagnosis diagnose_step(const Step& step, const StepPlace& place, Arithmetic arithmetic) {
    StepDiagnosis result;
    for (const Link& link : step.links) result.chain.push_back(link.operator_name);
    const std::optional<Trial> trial = trial_of(step, place, arithmetic);
    if (!trial) return result;
    result.diagnosis_type = trial->got.type;
    if (step.links.empty()) {
        result.diagnosis = first_difference(step, *trial);
        return result;
    }
    std::vector<std::string> tried;
    double best = 3;
    for (size_t link = 0; link < step.links.size(); ++link) {
        Diagnosis diagnosis = diagnose_link(step, *trial, link, arithmetic);
        for (const std::string& name : diagnosis.tried)
            if (std::ranges::find(tried, name) == tried.end()) tried.push_back(name);
        if (rank(diagnosis) >= best) continue;
        best = rank(diagnosis);
        result.diagnosis = std::move(diagnosis);
        keep_inputs(result, *trial, link);
    }
    result.diagnosis.tried = std::move(tried);
    if (rank(result.diagnosis) > -1) try_readings(result, step, place, *trial, arithmetic);
    // The place in the whole tensor, not among the rows that were tried.
    FirstStep& first = result.diagnosis.first;
    if (!trial->rows.empty() && !first.index.empty())
        first.index.front() = trial->rows[static_cast<size_t>(first.index.front())];
    return result;
}

}  // namespace touchstone
