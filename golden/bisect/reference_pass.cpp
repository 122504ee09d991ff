#include "golden/bisect/reference_pass.h"

#include <fmt/format.h>

#include <algorithm>

#include "reference/model/checkpoint_weights.h"
#include "reference/text_model.h"

namespace touchstone {

namespace {

/// Calls whose tokens follow one another from position 0 on.
bool runs_from_the_beginning(const TracedPass& theirs, std::string& why) {
    int64_t next = 0;
    for (size_t call = 0; call < theirs.calls().size(); ++call) {
        const TracedCall& at = theirs.calls()[call];
        if (at.first_position != next) {
            why = fmt::format("its call at position {} does not follow from position {}", at.first_position,
                              next);
            return false;
        }
        if (!theirs.has(call, -1, "tokens")) {
            why = fmt::format("it has no tensor {}tokens", at.prefix);
            return false;
        }
        next = at.end();
    }
    if (next == 0) why = "it has no call";
    return next > 0;
}

/// The rows that each layer of theirs computes, and makes window rows of.
std::vector<LayerRange> ranges_of(const TracedPass& theirs, size_t call, int layers) {
    const TracedCall& at = theirs.calls()[call];
    const auto from = [&](int layer, std::string_view name, int64_t otherwise) {
        return theirs.has(call, layer, name) ? at.end() - theirs.rows(call, layer, name) : otherwise;
    };
    const int decoder = first_decoder_layer(theirs.config());
    std::vector<LayerRange> ranges;
    for (int layer = 0; layer < layers; ++layer) {
        LayerRange range;
        // A decoder layer that a whole trace does not have had no rows in this call.
        if (layer >= decoder && theirs.has(call, 0, "x_mid") && !theirs.has(call, layer, "x_mid")) {
            ranges.push_back({from(layer, "attn.window_kv", at.end()), at.end()});
            continue;
        }
        const int64_t queries = from(layer, "x_mid", from(layer, "x_out", at.first_position));
        if (queries > at.first_position) range.query_from = queries;
        const int64_t windows = from(layer, "attn.window_kv", at.first_position);
        range.window_from = std::min(windows > at.first_position ? windows : 0, range.query_from);
        ranges.push_back(range);
    }
    return ranges;
}

/// -1 behind the last of a list is no choice.
std::vector<int32_t> list_of(const Tensor& lists, int64_t row) {
    const int64_t width = lists.shape[1];
    const auto values =
        lists.view<int32_t>().subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
    std::vector<int32_t> list(values.begin(), values.end());
    std::erase(list, -1);
    return list;
}

void take_lists(const TracedPass& theirs, size_t call, int layer, std::string_view name,
                std::map<int, std::map<int64_t, std::vector<int32_t>>>& into) {
    const Tensor* lists = theirs.tensor(call, layer, name);
    if (lists == nullptr) return;
    const int64_t rows = lists->shape.front(), first = theirs.calls()[call].end() - rows;
    for (int64_t row = 0; row < rows; ++row) into[layer][first + row] = list_of(*lists, row);
}

ForcedChoices choices_of(const TracedPass& theirs, int layers) {
    ForcedChoices forced;
    for (size_t call = 0; call < theirs.calls().size(); ++call)
        for (int layer = 0; layer < layers; ++layer) {
            take_lists(theirs, call, layer, "ffn.experts", forced.experts);
            take_lists(theirs, call, layer, "attn.indexer.selected", forced.selected);
        }
    return forced;
}

}  // namespace

std::optional<TensorMap> reference_pass(const TracedPass& theirs, const TensorSource& weights,
                                        const ReferencePassOptions& options, std::string& why) {
    if (!runs_from_the_beginning(theirs, why)) return std::nullopt;
    const CheckpointWeights views(weights);
    const TextModel model(theirs.config(), views, options.arithmetic);
    const auto layers = static_cast<int>(std::ssize(model.roles()));
    const ForcedChoices forced = options.force_choices ? choices_of(theirs, layers) : ForcedChoices{};
    TraceTensors made;
    SequenceState state(theirs.config());
    for (size_t call = 0; call < theirs.calls().size(); ++call) {
        const std::vector<LayerRange> ranges = ranges_of(theirs, call, layers);
        ForwardOptions forward{.trace = Trace(&made, theirs.calls()[call].prefix), .ranges = ranges};
        if (options.force_choices) forward.forced = &forced;
        forward.all_logits = theirs.rows(call, -1, "logits") > 1;
        if (options.progress) forward.before_layer = [&, call](int layer) { options.progress(call, layer); };
        const Tensor tokens = *theirs.tensor(call, -1, "tokens");
        const Request request{&state, tokens.view<int32_t>()};
        model.forward({&request, 1}, forward);
        theirs.forget();
    }
    return std::move(made.tensors);
}

}  // namespace touchstone
