// Steps of attention: window rows, queries, the list that a query attends, output projections.
#include <fmt/format.h>

#include <algorithm>

#include "golden/bisect/step_origins.h"

namespace touchstone {

namespace {

Link linear_link(Origin x, const char* weight, const char* sum) {
    const std::string name = std::string("attn.") + weight;
    return {"linear_fp8",
            {{"x", std::move(x)},
             {"weight", layer_weight(name + ".weight")},
             {"scale", layer_weight(name + ".scale")}},
            fixed(fmt::format("sum={}", sum)),
            "y"};
}

Link norm_link(const char* weight) {
    return {"rms_norm", {{"x", link_before()}, {"weight", layer_weight(weight)}}, norm_eps_text, "y"};
}

std::vector<int64_t> head_widths(const ModelConfig& config) {
    return {config.num_attention_heads, config.head_dim};
}

std::vector<int64_t> one_head(const ModelConfig& config) {
    return {1, config.head_dim};
}

std::vector<int64_t> group_widths(const ModelConfig& config) {
    return {config.o_groups, config.num_attention_heads * config.head_dim / config.o_groups};
}

Link rope_link(Origin x, const char* direction) {
    return {"rope",
            {{"x", std::move(x)}, {"positions", positions()}},
            [direction](const StepPlace& place) {
                return fmt::format("rope_dim={},table={},direction={}", place.config().qk_rope_head_dim,
                                   place.role().compress_rope ? "compress" : "main", direction);
            },
            "y"};
}

Step window_step() {
    return {"attn.window_kv",
            {linear_link(traced("attn.x"), "wkv", "wkv"),
             norm_link("attn.kv_norm.weight"),
             rope_link(shaped(link_before(), one_head), "forward"),
             {"quantize_q8", {{"x", flat(link_before())}}, fixed(""), "values"}},
            false,
            nullptr,
            {},
            StepJudge::quantised};
}

/// Window rows of the layer at positions first .. first + count - 1, those that are there: a call's rows, and
/// rows of calls before as long as they adjoin.
struct WindowRows {
    int64_t first = 0;
    Tensor rows;
    bool begins_the_trace = false;  ///< nobody knows what came before
};

std::optional<WindowRows> window_rows(const StepPlace& place) {
    const Tensor* own = place.theirs.tensor(place.call, place.layer, "attn.window_kv");
    if (own == nullptr) return std::nullopt;
    WindowRows held{place.where().end() - own->shape.front(), *own, place.call == 0};
    // One more than the window, for hypotheses about it.
    const int64_t wanted = place.position() - place.config().sliding_window;
    for (size_t call = place.call; call-- > 0 && held.first > wanted;) {
        const Tensor* part = place.theirs.tensor(call, place.layer, "attn.window_kv");
        const int64_t end = place.theirs.calls()[call].end();
        if (part == nullptr || end != held.first) break;
        Tensor rows = *part;
        append_rows(rows, held.rows);
        held = {end - part->shape.front(), std::move(rows), call == 0};
    }
    return held;
}

/// What the query of the row attends: slot i < W is position p - W + 1 + i, then its selected rows.
struct AttentionEntries {
    std::vector<Bf16> rows;
    std::vector<uint8_t> valid;
};

bool add_window(const StepPlace& place, AttentionEntries& entries) {
    const std::optional<WindowRows> window = window_rows(place);
    if (!window) return false;
    const int64_t w = place.config().sliding_window, dim = place.config().head_dim;
    const int64_t begin = place.position() - w + 1;
    if (window->begins_the_trace && window->first > std::max<int64_t>(begin, 0) &&
        window->first == place.theirs.calls().front().first_position)
        return false;
    const auto values = window->rows.view<float>();
    for (int64_t slot = begin; slot <= place.position(); ++slot) {
        const bool stale = place.reading.first_slot_stale && slot == begin;
        const int64_t position = slot + place.reading.window_positions - (stale ? 1 : 0);
        const bool there = position >= window->first && position < place.where().end();
        entries.valid.push_back(there ? 1 : 0);
        for (int64_t d = 0; d < dim; ++d)
            entries.rows.push_back(
                there ? bf16_from_float(values[static_cast<size_t>((position - window->first) * dim + d)])
                      : Bf16{0});
    }
    return true;
}

bool add_selected(const StepPlace& place, AttentionEntries& entries) {
    if (place.role().compress_ratio == 0) return true;
    StepPlace source = place;
    source.layer = place.top_k_source();
    const std::optional<Tensor> selected = traced_row("attn.indexer.selected")(source);
    if (!selected) return false;
    int64_t most = -1;
    for (const int32_t row : std::as_const(*selected).view<int32_t>()) most = std::max<int64_t>(most, row);
    if (most < 0) return true;
    const std::optional<Tensor> rows = source_rows(place, place.kv_source(), "attn.compressed_kv", most + 1);
    if (!rows) return false;
    const int64_t dim = place.config().head_dim;
    for (const int32_t row : std::as_const(*selected).view<int32_t>()) {
        if (row < 0) continue;
        entries.valid.push_back(1);
        for (int64_t d = 0; d < dim; ++d)
            entries.rows.push_back(
                bf16_from_float(std::as_const(*rows).view<float>()[static_cast<size_t>(row * dim + d)]));
    }
    return true;
}

std::optional<AttentionEntries> attention_entries(const StepPlace& place) {
    AttentionEntries entries;
    if (!add_window(place, entries) || !add_selected(place, entries)) return std::nullopt;
    return entries;
}

std::optional<Tensor> entry_rows(const StepPlace& place) {
    const std::optional<AttentionEntries> entries = attention_entries(place);
    if (!entries) return std::nullopt;
    return tensor_of({std::ssize(entries->valid), place.config().head_dim}, entries->rows);
}

std::optional<Tensor> entry_valid(const StepPlace& place) {
    const std::optional<AttentionEntries> entries = attention_entries(place);
    if (!entries) return std::nullopt;
    return tensor_of({std::ssize(entries->valid)}, entries->valid);
}

Step attend_step() {
    return {"attn.o",
            {{"sparse_attention",
              {{"q", traced_row("attn.q")},
               {"rows", entry_rows},
               {"valid", entry_valid},
               {"sink", layer_weight("attn.attn_sink")}},
              fixed(""),
              "o"}},
            true};
}

}  // namespace

std::vector<Step> attention_steps() {
    return {window_step(),
            {"attn.qr", {linear_link(traced("attn.x"), "wq_a", "wq_a"), norm_link("attn.q_norm.weight")}},
            {"attn.q",
             {linear_link(traced("attn.qr"), "wq_b", "wq_b"),
              rope_link(shaped(link_before(), head_widths), "forward")}},
            attend_step(),
            {"attn.wo_a_out",
             {rope_link(traced("attn.o"), "inverse"),
              {"grouped_linear",
               {{"x", shaped(link_before(), group_widths)},
                {"weight", layer_weight("attn.wo_a.weight")},
                {"scale", layer_weight("attn.wo_a.scale")}},
               fixed(""),
               "y"}}},
            {"attn.out", {linear_link(flat(traced("attn.wo_a_out")), "wo_b", "wo_b")}}};
}

}  // namespace touchstone
