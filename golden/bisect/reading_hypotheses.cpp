#include "golden/bisect/reading_hypotheses.h"

#include <algorithm>

namespace touchstone {

namespace {

using Reading = std::function<std::optional<OtherReading>(const StepPlace&)>;

Reading weights_of_layer(int by) {
    return [by](const StepPlace& place) -> std::optional<OtherReading> {
        if (place.layer < 0 || place.layer + by < 0 || place.layer + by >= std::ssize(place.roles))
            return std::nullopt;
        return OtherReading{.weight_layers = by};
    };
}

Reading window(OtherReading reading) {
    return [reading](const StepPlace& place) -> std::optional<OtherReading> {
        if (place.layer < 0) return std::nullopt;
        return reading;
    };
}

/// The nearest of `sources` before or behind the layer's own.
std::optional<int> neighbour(const std::vector<int>& sources, int own, int by) {
    const auto found = std::ranges::find(sources, own);
    const auto index = found - sources.begin() + by;
    if (found == sources.end() || index < 0 || index >= std::ssize(sources)) return std::nullopt;
    return sources[static_cast<size_t>(index)];
}

bool compresses(const StepPlace& place) {
    return place.layer >= 0 && place.role().compress_ratio > 0;
}

std::optional<OtherReading> keys_last_published(const StepPlace& place) {
    if (!compresses(place)) return std::nullopt;
    const int last = place.config().kv_source_layer_ids.back();
    if (last == place.role().index_key_source) return std::nullopt;
    return OtherReading{.index_key_source = last};
}

Reading selection_of_neighbour(int by) {
    return [by](const StepPlace& place) -> std::optional<OtherReading> {
        if (!compresses(place)) return std::nullopt;
        const auto source = neighbour(place.config().index_source_layer_ids, place.role().top_k_source, by);
        if (!source) return std::nullopt;
        return OtherReading{.top_k_source = source};
    };
}

Reading rows_of_neighbour(int by) {
    return [by](const StepPlace& place) -> std::optional<OtherReading> {
        if (!compresses(place)) return std::nullopt;
        const auto source = neighbour(place.config().kv_source_layer_ids, place.role().kv_source, by);
        if (!source) return std::nullopt;
        return OtherReading{.kv_source = source};
    };
}

std::optional<OtherReading> masked_rows(const StepPlace& place) {
    if (place.layer < 0 || place.role().pool != PoolRole::restricted) return std::nullopt;
    return OtherReading{.fill_with_masked = true};
}

ReadingHypothesis row(std::string name, std::string kind, std::string cause, Reading reading) {
    return {{std::move(name), std::move(kind), std::move(cause), Cause::fault, {}, nullptr},
            std::move(reading)};
}

}  // namespace

const std::vector<ReadingHypothesis>& reading_hypotheses() {
    static const std::vector<ReadingHypothesis> all{
        row("weights_of_layer_before", "K16", "the weights are those of the layer before",
            weights_of_layer(-1)),
        row("weights_of_layer_behind", "K16", "the weights are those of the layer behind",
            weights_of_layer(1)),
        row("window_slot_stale", "K08", "the window's first slot still holds the position before it",
            window({.first_slot_stale = true})),
        row("window_one_early", "K09", "the window ends one position before the query's own",
            window({.window_positions = -1})),
        row("window_one_late", "K09", "the window ends one position behind the query's own",
            window({.window_positions = 1})),
        row("stale_index_keys", "K12",
            "queries meet the index keys last published, those of the last source, as in the released code's "
            "decode steps that close no group",
            keys_last_published),
        row("selection_of_source_before", "K12", "the selected rows are those of the index source before",
            selection_of_neighbour(-1)),
        row("selection_of_source_behind", "K12", "the selected rows are those of the next index source",
            selection_of_neighbour(1)),
        row("rows_of_source_before", "K07", "the compressed rows are those of the KV source before",
            rows_of_neighbour(-1)),
        row("rows_of_source_behind", "K07", "the compressed rows are those of the next KV source",
            rows_of_neighbour(1)),
        row("masked_rows_attended", "K13",
            "where fewer rows than top-k lie in the pool, rows outside it fill the list, as in the released "
            "code",
            masked_rows),
    };
    return all;
}

}  // namespace touchstone
