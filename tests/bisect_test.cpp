// Bisect against passes with planted mistakes: the right tensor, layer and call, and where a hypothesis is
// about the mistake, its name. Passes that only sum in another order have none.
#include "golden/bisect/bisect.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "tests/planted_trace.h"
#include "tests/small_model.h"
#include "tests/synthetic_weights.h"

using namespace touchstone;
using traced::Alter;
using traced::PlantedTrace;

namespace {

const TensorSource& source() {
    static const SyntheticTensors made(small::config(), 1);
    return made;
}

/// 41 tokens, then three decode steps: positions 41 to 43, of which 42 closes no group of two.
const std::vector<int64_t> calls{41, 1, 1, 1};

const TensorMap& reference_trace() {
    static const TensorMap trace = traced::pass(source(), Arithmetic::exact, calls);
    return trace;
}

/// Bisects with the exact reference.
BisectResult bisected(const TensorMap& theirs, const TensorMap* reference = &reference_trace(),
                      Arithmetic arithmetic = Arithmetic::exact) {
    const TracedPass pass(source().config(), views_of(theirs), "theirs");
    std::optional<TracedPass> other;
    if (reference != nullptr) other.emplace(source().config(), views_of(*reference), "the reference");
    return bisect(pass, other ? &*other : nullptr, source(), {arithmetic, nullptr});
}

std::string name_of(const TensorReport& report) {
    return fmt::format("{} {}", report.call, traced_name(report.layer, report.name));
}

std::vector<std::string> made_here(const BisectResult& result) {
    std::vector<std::string> names;
    for (const size_t index : result.made_here) names.push_back(name_of(result.tensors[index]));
    return names;
}

bool explained_by(const BisectResult& result, const std::string& cause) {
    return result.diagnosis &&
           std::ranges::any_of(result.diagnosis->diagnosis.explanations,
                               [&](const Explanation& one) { return one.hypothesis->name == cause; });
}

std::string causes(const BisectResult& result) {
    std::string text;
    if (result.diagnosis)
        for (const Explanation& one : result.diagnosis->diagnosis.explanations)
            text += one.hypothesis->name + " ";
    return text;
}

/// The first mistake is in `where` ("1 L02.attn.q"), and `cause` explains it; "": unknown.
void check_located(const TensorMap& theirs, const std::string& where, const std::string& cause) {
    const BisectResult result = bisected(theirs);
    CAPTURE(where);
    CAPTURE(cause);
    REQUIRE_FALSE(result.made_here.empty());
    CAPTURE(causes(result));
    CHECK(made_here(result).front() == where);
    CHECK(result.diverges());
    REQUIRE(result.diagnosis.has_value());
    if (cause.empty())
        CHECK(result.diagnosis->diagnosis.finding == Finding::unknown);
    else
        CHECK(explained_by(result, cause));
    // Beyond rounding there cannot be less than the mistake itself.
    REQUIRE(result.first_beyond.has_value());
    CHECK(*result.first_beyond <= result.made_here.front());
}

/// One mistake in a step of the exact pass, everything behind it made anew.
struct Planted {
    const char* what;
    size_t call;
    int layer;
    const char* tensor;
    size_t link;
    Alter alter;
    const char* cause;  ///< "": outside the hypotheses
};

void set_choice(Parameters& parameters, const char* name, const char* value) {
    parameters.values.find(name)->second = std::string(value);
}

Tensor& tensor_in(TensorMap& inputs, const char* name) {
    return inputs.find(name)->second;
}

void zero_last_block(TensorMap& inputs, const char* name) {
    Tensor& x = tensor_in(inputs, name);
    const int64_t width = x.shape.back();
    for (int64_t i = 0; i < x.elements(); ++i)
        if (i % width >= width - 32) x.view<Bf16>()[static_cast<size_t>(i)] = Bf16{0};
}

void shift_positions(TensorMap& inputs, int64_t by) {
    for (int64_t& position : tensor_in(inputs, "positions").view<int64_t>()) position += by;
}

const std::vector<Planted>& planted() {
    static const std::vector<Planted> all{
        {"queries rotated by the other table", 0, 3, "attn.q", 1,
         [](Parameters& p, TensorMap&, const StepPlace&) { set_choice(p, "table", "main"); },
         "rope_of_the_other_table"},
        {"window rows one position on", 0, 1, "attn.window_kv", 2,
         [](Parameters&, TensorMap& in, const StepPlace&) { shift_positions(in, 1); },
         "rope_position_plus_1"},
        {"a block of K left out", 0, 5, "attn.out", 0,
         [](Parameters&, TensorMap& in, const StepPlace&) { zero_last_block(in, "x"); }, "k_last_32_missing"},
        {"no epsilon, no gain in a norm", 0, 2, "ffn.x", 0,
         [](Parameters&, TensorMap& in, const StepPlace&) {
             for (Bf16& x : tensor_in(in, "weight").view<Bf16>()) x = bf16_from_float(1);
         },
         "gain_missing"},
        {"comb transposed where it is used", 0, 4, "x_mid", 0,
         [](Parameters&, TensorMap& in, const StepPlace&) {
             Tensor& comb = tensor_in(in, "comb");
             const auto n = static_cast<size_t>(comb.shape.back());
             const std::span<float> values = comb.view<float>();
             for (size_t row = 0; row < values.size() / (n * n); ++row)
                 for (size_t j = 0; j < n; ++j)
                     for (size_t k = 0; k < j; ++k)
                         std::swap(values[row * n * n + j * n + k], values[row * n * n + k * n + j]);
         },
         "expand_comb_transposed"},
        {"the sink left out of the denominator, in one decode step", 2, 7, "attn.o", 0,
         [](Parameters&, TensorMap& in, const StepPlace&) {
             for (float& x : tensor_in(in, "sink").view<float>()) x = -HUGE_VALF;
         },
         "sink_missing"},
        {"a window slot of the position before the window", 3, 0, "attn.o", 0,
         [](Parameters&, TensorMap& in, const StepPlace& place) {
             // Position p - W of the ring stands where p - W + 1 should.
             const Tensor* prefill = place.theirs.tensor(0, 0, "attn.window_kv");
             const int64_t width = prefill->shape.back(),
                           stale = place.position() - place.config().sliding_window;
             for (int64_t d = 0; d < width; ++d)
                 tensor_in(in, "rows").view<Bf16>()[static_cast<size_t>(d)] =
                     bf16_from_float(prefill->view<float>()[static_cast<size_t>(stale * width + d)]);
         },
         "window_slot_stale"},
        {"experts chosen without the bias", 0, 3, "ffn.experts", 0,
         [](Parameters&, TensorMap& in, const StepPlace&) {
             for (float& x : tensor_in(in, "bias").view<float>()) x = 0;
         },
         "gate_bias_missing"},
        {"weights of experts not scaled", 0, 6, "ffn.expert_weights", 0,
         [](Parameters& p, TensorMap&, const StepPlace&) { p.values.find("scaling_factor")->second = 1.0; },
         "gate_scale_missing"},
        {"gate and up swapped in the shared expert", 0, 8, "ffn.shared_out", 0,
         [](Parameters&, TensorMap& in, const StepPlace&) {
             std::swap(tensor_in(in, "w1"), tensor_in(in, "w3"));
             std::swap(tensor_in(in, "w1_scale"), tensor_in(in, "w3_scale"));
         },
         "gate_and_up_swapped"},
        {"the group left open by the call before is dropped", 1, 2, "attn.compressor.pooled", 0,
         [](Parameters&, TensorMap& in, const StepPlace&) {
             for (float& x : tensor_in(in, "open_kv").view<float>()) x = 0;
             for (float& x : tensor_in(in, "open_score").view<float>()) x = 0;
         },
         "open_group_zeroed"},
        {"index keys of rotated latents", 0, 6, "attn.indexer.key", 0,
         [](Parameters&, TensorMap& in, const StepPlace& place) {
             Tensor& latents = tensor_in(in, "latents");
             std::vector<int64_t> positions;
             for (int64_t i = 0; i < latents.shape.front(); ++i) positions.push_back(i);
             rope(compress_rope_table(place.config()), RopeDirection::forward, positions, 1,
                  latents.shape.back(), latents.view<Bf16>());
         },
         "key_from_rotated_latent"},
        {"each row's output is another row's", 0, 5, "attn.wo_a_out", 1,
         [](Parameters&, TensorMap& in, const StepPlace&) {
             Tensor& x = tensor_in(in, "x");
             std::rotate(x.bytes.begin(), x.bytes.begin() + std::ssize(x.bytes) / x.shape.front(),
                         x.bytes.end());
         },
         "output_rows_rotated"},
        {"noise that is none of the hypotheses", 0, 4, "attn.qr", 1,
         [](Parameters&, TensorMap& in, const StepPlace&) {
             Tensor& x = tensor_in(in, "x");
             for (size_t i = 0; i < x.view<Bf16>().size(); i += 3)
                 x.view<Bf16>()[i] = bf16_from_float(to_float(x.view<Bf16>()[i]) * (1 + 0.1f * float(i % 7)));
         },
         ""},
        {"Engram without its gate", 0, 4, "x_in", 0,
         [](Parameters&, TensorMap& in, const StepPlace&) {
             for (Bf16& x : tensor_in(in, "q_weight").view<Bf16>()) x = bf16_from_float(1);
         },
         "engram_q_gain_missing"},
        {"the mean of the streams goes to the head", 3, -1, "final.normed", 0,
         [](Parameters&, TensorMap& in, const StepPlace&) {
             for (float& x : tensor_in(in, "pre").view<float>()) x = 0.25f;
         },
         "collapse_by_mean"},
    };
    return all;
}

}  // namespace

TEST_CASE("bisect: an equal trace, and a run of the reference along it, differ in nothing") {
    const BisectResult result = bisected(reference_trace());
    CHECK_FALSE(result.diverges());
    CHECK_FALSE(result.first_bit.has_value());
    CHECK(std::ranges::all_of(result.tensors, [](const TensorReport& one) {
        return one.step.verdict == StepVerdict::same_bits || one.step.verdict == StepVerdict::given ||
               !one.traced;
    }));
    const TracedPass pass(source().config(), views_of(reference_trace()), "theirs");
    std::string why;
    const std::optional<TensorMap> again = reference_pass(pass, source(), {}, why);
    REQUIRE(again.has_value());
    const bool same = *again == reference_trace();
    CHECK(same);
}

TEST_CASE("bisect: other orders of summation make no mistake, whatever they choose") {
    for (const Arithmetic theirs : {Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper})
        for (const Arithmetic ours : {Arithmetic::exact, Arithmetic::hopper}) {
            CAPTURE(arithmetic_name(theirs));
            CAPTURE(arithmetic_name(ours));
            const TensorMap reference = traced::pass(source(), ours, calls);
            const BisectResult result = bisected(traced::pass(source(), theirs, calls), &reference, ours);
            CHECK(made_here(result) == std::vector<std::string>{});
            CHECK_FALSE(result.diverges());
            CHECK(result.first_bit.has_value() == (theirs != ours));
        }
}

TEST_CASE("bisect: what is about as far as another profile is rounding, before any cause is looked for") {
    const TensorMap theirs = traced::pass(source(), Arithmetic::released_hopper, calls);
    const TracedPass pass(source().config(), views_of(theirs), "theirs");
    const std::vector<LayerRole> roles = traced::backbone(source().config());
    for (const TracedTensor& tensor : pass.path()) {
        const Step* step = step_of(source().config(), tensor.layer, tensor.name);
        if (step == nullptr) continue;
        CAPTURE(traced_name(tensor.layer, tensor.name));
        const StepPlace place{pass, source(),     roles,
                              0,    tensor.layer, pass.rows(0, tensor.layer, tensor.name)};
        CHECK(judge_step(*step, place, Arithmetic::exact).verdict != StepVerdict::made_here);
    }
}

TEST_CASE("bisect: a planted mistake is found where it is, and named where a hypothesis is about it") {
    for (const Planted& one : planted()) {
        CAPTURE(one.what);
        PlantedTrace trace(reference_trace(), source());
        trace.plant(one.call, one.layer, one.tensor, one.link, one.alter);
        check_located(trace.tensors(), fmt::format("{} {}", one.call, traced_name(one.layer, one.tensor)),
                      one.cause);
    }
}

TEST_CASE("bisect: what the released code does otherwise is found where it does it") {
    const auto released = [](ReleasedBehaviour behaviour) {
        return traced::pass(source(), Arithmetic::exact, calls, behaviour);
    };
    // Position 42 closes no group: queries meet the keys last published.
    check_located(released({.stale_index_keys = true}), "2 L02.attn.indexer.scores", "stale_index_keys");
    const BisectResult masked = bisected(released({.masked_rows_attended = true}));
    REQUIRE_FALSE(masked.made_here.empty());
    CHECK(made_here(masked).front().ends_with("L08.attn.indexer.selected"));
    CHECK(explained_by(masked, "masked_rows_attended"));
}

TEST_CASE("bisect: other weights in one layer are found in the steps that use them") {
    const CheckpointWeights right(source());
    const std::vector<Bf16> ones(static_cast<size_t>(small::config().head_dim), bf16_from_float(1));
    const std::vector<E8m0> scales(right.layer(5).attention.wq_b.scales.size(), E8m0{121});
    const EditedWeights norm(right, [&](int layer, LayerWeights& weights) {
        if (layer == 3) weights.attention.kv_norm = ones;
    });
    check_located(traced::pass(TextModel(small::config(), norm, Arithmetic::exact), calls),
                  "0 L03.attn.window_kv", "gain_missing");
    const EditedWeights scaled(right, [&](int layer, LayerWeights& weights) {
        if (layer == 5) weights.attention.wq_b.scales = scales;
    });
    const BisectResult result =
        bisected(traced::pass(TextModel(small::config(), scaled, Arithmetic::exact), calls));
    // The same mistake in every call, and none in what follows from it.
    CHECK(made_here(result) ==
          std::vector<std::string>{"0 L05.attn.q", "1 L05.attn.q", "2 L05.attn.q", "3 L05.attn.q"});
}

TEST_CASE("bisect: what a step makes anew on its way is told apart from its own mistakes") {
    const CheckpointWeights right(source());
    const EditedWeights other(right, [&](int layer, LayerWeights& weights) {
        if (layer == 4) weights.hc_attn.fn = right.layer(5).hc_attn.fn;
    });
    const BisectResult result =
        bisected(traced::pass(TextModel(small::config(), other, Arithmetic::exact), calls));
    // pre, post and comb are those of the wrong mixes: they follow from them.
    CHECK(made_here(result) == std::vector<std::string>{"0 L04.hc_attn.mixes", "1 L04.hc_attn.mixes",
                                                        "2 L04.hc_attn.mixes", "3 L04.hc_attn.mixes"});
    CHECK(explained_by(result, "weights_of_layer_behind"));
    CHECK(std::ranges::count_if(result.tensors, [](const TensorReport& one) {
              return one.step.verdict == StepVerdict::inherited;
          }) == 12);
}

TEST_CASE("bisect: a second mistake is listed beside the first") {
    PlantedTrace trace(reference_trace(), source());
    const Planted& late = planted()[0];
    trace.plant(late.call, late.layer, late.tensor, late.link, late.alter);
    const Planted& decode = planted()[5];
    trace.plant(decode.call, decode.layer, decode.tensor, decode.link, decode.alter);
    const std::vector<std::string> found = made_here(bisected(trace.tensors()));
    CHECK(found == std::vector<std::string>{"0 L03.attn.q", "2 L07.attn.o"});
}

TEST_CASE("bisect: tensors that are only moved have to be the same (taken over from the layer before)") {
    PlantedTrace trace(reference_trace(), source());
    Tensor pre = *trace.pass().tensor(0, 4, "hc_attn.pre");
    trace.replace(0, 4, "pre_out", pre);
    check_located(trace.tensors(), "0 L04.pre_out", "");
    PlantedTrace ids(reference_trace(), source());
    Tensor shifted = *ids.pass().tensor(0, 1, "engram.row_ids");
    std::rotate(shifted.bytes.begin(),
                shifted.bytes.end() - std::ssize(shifted.bytes) / shifted.shape.front(), shifted.bytes.end());
    ids.replace(0, 1, "engram.row_ids", shifted);
    check_located(ids.tensors(), "0 L01.engram.row_ids", "");
}

TEST_CASE("bisect: tied choices are no mistake, others are") {
    PlantedTrace trace(reference_trace(), source());
    // Two experts of one row in the other order: the larger score comes first, so this is one.
    Tensor experts = *trace.pass().tensor(0, 2, "ffn.experts");
    std::swap(experts.view<int32_t>()[0], experts.view<int32_t>()[1]);
    trace.replace(0, 2, "ffn.experts", experts);
    CHECK(made_here(bisected(trace.tensors())) == std::vector<std::string>{"0 L02.ffn.experts"});

    // Selected rows: of equal scores another one.
    PlantedTrace tied(reference_trace(), source());
    Tensor scores = *tied.pass().tensor(0, 6, "attn.indexer.scores");
    const int64_t width = scores.shape[1];
    const auto row =
        scores.view<float>().subspan(static_cast<size_t>(40 * width), static_cast<size_t>(width));
    std::ranges::fill(row, 1.0f);
    tied.replace(0, 6, "attn.indexer.scores", scores);
    Tensor selected = *tied.pass().tensor(0, 6, "attn.indexer.selected");
    const int64_t k = selected.shape[1];
    for (int64_t i = 0; i < k; ++i)
        selected.view<int32_t>()[static_cast<size_t>(40 * k + i)] = static_cast<int32_t>(width - k + i);
    tied.replace(0, 6, "attn.indexer.selected", selected);
    const BisectResult result = bisected(tied.tensors());
    CHECK(made_here(result) == std::vector<std::string>{"0 L06.attn.indexer.scores"});
    const auto choice = std::ranges::find_if(result.tensors, [](const TensorReport& one) {
        return one.call == 0 && one.layer == 6 && one.name == "attn.indexer.selected";
    });
    CHECK(choice->step.verdict == StepVerdict::ties);
}

TEST_CASE("bisect: what stands behind the end of a selection is part of it") {
    PlantedTrace trace(reference_trace(), source());
    Tensor selected = *trace.pass().tensor(0, 6, "attn.indexer.selected");
    REQUIRE(selected.view<int32_t>()[3] == -1);  // row 0 sees one row
    selected.view<int32_t>()[3] = 999'999;
    trace.replace(0, 6, "attn.indexer.selected", selected);
    CHECK(made_here(bisected(trace.tensors())) == std::vector<std::string>{"0 L06.attn.indexer.selected"});
}

TEST_CASE("bisect: a tensor that lacks columns is not the same bits") {
    TensorMap tensors = reference_trace();
    Tensor& scores = tensors.find("position_000000/L06.attn.indexer.scores")->second;
    const int64_t rows = scores.shape[0], width = scores.shape[1];
    Tensor narrow = make_tensor("narrow", "F32", {rows, width - 1});
    for (int64_t row = 0; row < rows; ++row)
        std::ranges::copy(
            scores.view<float>().subspan(static_cast<size_t>(row * width), static_cast<size_t>(width - 1)),
            narrow.view<float>().begin() + row * (width - 1));
    scores = narrow;
    const BisectResult result = bisected(tensors);
    const auto found = std::ranges::find_if(result.tensors, [](const TensorReport& one) {
        return one.call == 0 && one.layer == 6 && one.name == "attn.indexer.scores";
    });
    CHECK(found->step.verdict == StepVerdict::unseen);
    CHECK(found->step.why.find("the step makes rows of") != std::string::npos);
}

TEST_CASE("bisect: without a reference the steps are judged alone") {
    PlantedTrace trace(reference_trace(), source());
    const Planted& one = planted()[0];
    trace.plant(one.call, one.layer, one.tensor, one.link, one.alter);
    const BisectResult result = bisected(trace.tensors(), nullptr);
    CHECK(made_here(result) == std::vector<std::string>{"0 L03.attn.q"});
    CHECK_FALSE(result.first_bit.has_value());
}

TEST_CASE("bisect: of a trace with few tensors, the first far from the reference is suspect") {
    TensorMap few;
    for (const auto& [name, tensor] : reference_trace())
        if (name.ends_with(".x_out") || name.ends_with("/logits")) few.emplace(name, tensor);
    CHECK_FALSE(bisected(few).diverges());
    // Every row has the streams of the next: nobody sees why.
    Tensor& streams = few.find("position_000000/L05.x_out")->second;
    std::rotate(streams.bytes.begin(),
                streams.bytes.begin() + std::ssize(streams.bytes) / streams.shape.front(),
                streams.bytes.end());
    const BisectResult result = bisected(few);
    REQUIRE(result.suspect.has_value());
    CHECK(name_of(result.tensors[*result.suspect]) == "0 L05.x_out");
    CHECK(result.made_here.empty());
    CHECK(result.diverges());
}

TEST_CASE("bisect: floats of other types and shapes run together are read as the path has them") {
    TensorMap wide = reference_trace();
    for (auto& [name, tensor] : wide) {
        if (tensor.type != "BF16") continue;
        Tensor as_double = make_tensor(name, "F64", {0});
        as_double.shape = {1, tensor.shape.front(),
                           tensor.elements() / std::max<int64_t>(tensor.shape.front(), 1)};
        as_double.bytes.resize(static_cast<size_t>(tensor.elements()) * sizeof(double));
        for (int64_t i = 0; i < tensor.elements(); ++i)
            as_double.view<double>()[static_cast<size_t>(i)] = element_as_double(tensor, i);
        tensor = std::move(as_double);
    }
    const BisectResult result = bisected(wide);
    CHECK_FALSE(result.first_bit.has_value());
    CHECK_FALSE(result.diverges());
}
