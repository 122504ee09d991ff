// The table of steps against the model: every traced tensor made anew from the traced tensors before it.
#include "golden/bisect/trace_steps.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <set>

#include "reference/replay.h"
#include "tests/small_model.h"
#include "tests/traced_model.h"

using namespace touchstone;

namespace {

/// Makes every tensor of the trace with its step and holds it against the trace; the number of them.
int64_t check_all_steps(const TensorMap& trace, const TensorSource& source, Arithmetic arithmetic,
                        const std::set<std::string>& unseen = {}) {
    const TracedPass pass(source.config(), views_of(trace), "the trace");
    CHECK(pass.unknown_names().empty());
    const std::vector<LayerRole> roles = traced::backbone(source.config());
    int64_t made = 0;
    for (size_t call = 0; call < pass.calls().size(); ++call) {
        for (const TracedTensor& tensor : pass.path()) {
            const std::string name = pass.calls()[call].prefix + traced_name(tensor.layer, tensor.name);
            CAPTURE(name);
            const Tensor* expected = pass.tensor(call, tensor.layer, tensor.name);
            if (expected == nullptr || tensor.name == "tokens") continue;
            const Step* step = step_of(source.config(), tensor.layer, tensor.name);
            REQUIRE(step != nullptr);
            std::string why;
            const auto again = run_step(
                *step, {pass, source, roles, call, tensor.layer, expected->shape.front()}, arithmetic, why);
            if (unseen.contains(name)) {
                CHECK_FALSE(again.has_value());
                continue;
            }
            CAPTURE(why);
            REQUIRE(again.has_value());
            CHECK(again->type == expected->type);
            CHECK(again->shape == expected->shape);
            const bool same_bits = again->bytes == expected->bytes;
            CHECK(same_bits);
            ++made;
        }
        pass.forget();
    }
    return made;
}

}  // namespace

TEST_CASE("trace steps: every tensor is made anew to the bit (tiny, prefill and decode, all profiles)") {
    for (const Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper}) {
        CAPTURE(arithmetic_name(arithmetic));
        const std::vector<int64_t> calls{57, 1, 1, 2};
        const TensorMap trace = traced::pass(traced::tiny(), arithmetic, calls);
        // Tokens, which nothing makes, are the only ones without a step.
        CHECK(check_all_steps(trace, traced::tiny(), arithmetic) == std::ssize(trace) - std::ssize(calls));
    }
}

TEST_CASE(
    "trace steps: replayed prompts too, whose decoder has fewer rows, and the reference runs along them") {
    const SyntheticTensors source(small::config(), 1);
    const CheckpointWeights views(source);
    const TextModel model(source.config(), views, Arithmetic::exact);
    const std::vector<int32_t> tokens = small::tokens(3, 41);
    for (const BoundaryReading reading :
         {BoundaryReading::truncated, BoundaryReading::own_windows, BoundaryReading::whole})
        for (const int64_t chunk : {41, 16}) {
            CAPTURE(chunk);
            TraceTensors made;
            SequenceState state(source.config());
            PrefillOptions options{ReplayMode::bounded, reading, chunk, {}, nullptr};
            options.trace_of_call = [&](int64_t first) { return Trace(&made, call_prefix(first)); };
            prefill(model, state, std::span(tokens).first(40), options);
            options.mode = ReplayMode::none;
            prefill(model, state, std::span(tokens).last(1), options);
            const int64_t calls = chunk == 41 ? 2 : 4;
            CHECK(check_all_steps(made.tensors, source, Arithmetic::exact) ==
                  std::ssize(made.tensors) - calls);
            const TracedPass pass(source.config(), views_of(made.tensors), "the trace");
            std::string why;
            const std::optional<TensorMap> again = reference_pass(pass, source, {}, why);
            REQUIRE(again.has_value());
            const bool same = *again == made.tensors;
            CHECK(same);
        }
}

TEST_CASE("trace steps: a trace has the tensors of the path, and no others") {
    const std::vector<int64_t> calls{60};
    const TensorMap trace = traced::pass(traced::tiny(), Arithmetic::exact, calls);
    const TracedPass pass(traced::tiny().config(), views_of(trace), "the trace");
    CHECK(pass.unknown_names().empty());
    REQUIRE(pass.calls().size() == 1);
    CHECK(pass.calls().front().rows == 60);
    for (const TracedTensor& tensor : pass.path()) {
        CAPTURE(traced_name(tensor.layer, tensor.name));
        const TensorView* stored = pass.stored(0, tensor.layer, tensor.name);
        REQUIRE(stored != nullptr);
        CHECK(stored->type == tensor.type);
    }
}
