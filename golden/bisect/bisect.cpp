#include "golden/bisect/bisect.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace touchstone {

namespace {

/// Noise grows from step to step: this many times the largest error before, above what one layer's rounding
/// reaches, is none.
constexpr double largest_jump = 8, noise_of_a_layer = 0x1p-7;

/// The call of the reference that begins at the same position.
std::optional<size_t> same_call(const TracedPass& reference, const TracedCall& call) {
    const auto& calls = reference.calls();
    const auto found = std::ranges::find(calls, call.first_position, &TracedCall::first_position);
    if (found == calls.end()) return std::nullopt;
    return static_cast<size_t>(found - calls.begin());
}

/// A tensor that is only moved may carry the rounding of the step before.
Tolerance path_tolerance(const Step* step, const std::string& type) {
    if (step != nullptr && !step->links.empty()) return step_tolerance(*step);
    OutputSlot slot;
    slot.type = type;
    slot.judged = Judged::bound;
    return rounding_tolerance(slot);
}

void compare(TensorReport& report, const TracedPass& theirs, const TracedPass* reference, const Step* step) {
    if (reference == nullptr) return;
    const std::optional<size_t> call = same_call(*reference, theirs.calls()[report.call]);
    if (!call) return;
    const Tensor* expected = reference->tensor(*call, report.layer, report.name);
    const Tensor* got = theirs.tensor(report.call, report.layer, report.name);
    if (expected == nullptr || got == nullptr || expected->shape != got->shape) return;
    const Tolerance tolerance = path_tolerance(step, got->type);
    report.against = difference(view_of(*expected), view_of(*got), tolerance);
    report.beyond_rounding = !within(*report.against, tolerance);
}

/// A mistake in a tensor that the chain makes anew is not one of this step.
bool follows_from(const Step& step, const TensorReport& report, const BisectResult& result) {
    return std::ranges::any_of(result.made_here, [&](size_t i) {
        const TensorReport& wrong = result.tensors[i];
        return wrong.call == report.call && wrong.layer == report.layer &&
               std::ranges::find(step.beside, wrong.name) != step.beside.end();
    });
}

void judge(TensorReport& report, const StepPlace& place, const Step* step, Arithmetic arithmetic,
           const BisectResult& result) {
    if (step == nullptr) {
        report.step.verdict = StepVerdict::given;
        return;
    }
    report.step = judge_step(*step, place, arithmetic);
    if (report.step.verdict == StepVerdict::made_here && follows_from(*step, report, result))
        report.step.verdict = StepVerdict::inherited;
}

/// Nobody sees the step, and what it gave is too far away for rounding.
bool is_suspect(const TensorReport& report, const BisectResult& result) {
    const std::optional<double> error = relative_error(report);
    if (!report.traced || report.step.verdict != StepVerdict::unseen || !error) return false;
    double before = 0;
    for (const TensorReport& one : result.tensors) before = std::max(before, relative_error(one).value_or(0));
    return !(*error <= std::max(noise_of_a_layer, largest_jump * before));
}

void note(BisectResult& result, const TensorReport& report) {
    const size_t index = result.tensors.size();
    if (report.against && !report.against->equal() && !result.first_bit) result.first_bit = index;
    if (report.beyond_rounding && !result.first_beyond) result.first_beyond = index;
    if (report.step.verdict == StepVerdict::made_here) result.made_here.push_back(index);
    if (is_suspect(report, result) && !result.suspect) result.suspect = index;
}

StepPlace place_of(const TensorReport& report, const TracedPass& theirs, const TensorSource& weights,
                   const std::vector<LayerRole>& roles) {
    return {theirs,      weights,      roles,
            report.call, report.layer, theirs.rows(report.call, report.layer, report.name)};
}

/// The first of made_here that is no other order of summation; what is one is no mistake.
void diagnose_first(BisectResult& result, const TracedPass& theirs, const TensorSource& weights,
                    const std::vector<LayerRole>& roles, Arithmetic arithmetic) {
    while (!result.made_here.empty()) {
        TensorReport& first = result.tensors[result.made_here.front()];
        const Step& step = *step_of(theirs.config(), first.layer, first.name);
        StepDiagnosis diagnosis = diagnose_step(step, place_of(first, theirs, weights, roles), arithmetic);
        if (diagnosis.diagnosis.finding != Finding::order) {
            result.diagnosis = std::move(diagnosis);
            return;
        }
        first.step.verdict = StepVerdict::rounding;
        result.made_here.erase(result.made_here.begin());
    }
}

}  // namespace

int64_t BisectResult::compared() const {
    return std::ranges::count_if(tensors, [](const TensorReport& one) {
        return one.traced && (one.against.has_value() || (one.step.verdict != StepVerdict::unseen &&
                                                          one.step.verdict != StepVerdict::given));
    });
}

std::optional<double> relative_error(const TensorReport& report) {
    if (!report.against) return std::nullopt;
    return std::sqrt(report.against->normalised_mean_square);
}

BisectResult bisect(const TracedPass& theirs, const TracedPass* reference, const TensorSource& weights,
                    const BisectSettings& options) {
    std::vector<LayerRole> roles = layer_roles(theirs.config());
    std::erase_if(roles, [](const LayerRole& role) { return role.half == LayerHalf::draft; });
    BisectResult result;
    for (size_t call = 0; call < theirs.calls().size(); ++call) {
        int layer = -1;
        for (const TracedTensor& tensor : theirs.path()) {
            if (tensor.layer != layer) {
                layer = tensor.layer;
                theirs.forget();
                if (reference != nullptr) reference->forget();
                if (options.progress && layer >= 0) options.progress(theirs.calls()[call], layer);
            }
            TensorReport report{call, layer, tensor.name, theirs.has(call, layer, tensor.name),
                                {},   false, {}};
            if (report.traced) {
                const Step* step = step_of(theirs.config(), layer, tensor.name);
                compare(report, theirs, reference, step);
                judge(report, place_of(report, theirs, weights, roles), step, options.arithmetic, result);
            }
            note(result, report);
            result.tensors.push_back(std::move(report));
        }
    }
    diagnose_first(result, theirs, weights, roles, options.arithmetic);
    if (!result.made_here.empty()) result.suspect.reset();
    return result;
}

}  // namespace touchstone
