// Steps of Engram: row ids from tokens, table rows, their part of the streams.
#include <fmt/format.h>

#include <algorithm>

#include "golden/bisect/step_origins.h"
#include "reference/engram.h"

namespace touchstone {

namespace {

/// Tokens before the call's last `rows`, the last ones, at most `count`, or all there are; nothing where the
/// trace does not have them.
std::optional<std::vector<int32_t>> tokens_before(const StepPlace& place, int64_t count) {
    std::vector<int32_t> all;
    const int64_t end = place.where().end() - place.rows;
    for (size_t call = 0; call <= place.call; ++call) {
        const Tensor* tokens = place.theirs.tensor(call, -1, "tokens");
        if (tokens == nullptr || place.theirs.calls()[call].first_position != std::ssize(all))
            return std::nullopt;
        const auto ids = tokens->view<int32_t>();
        all.insert(all.end(), ids.begin(), ids.end());
    }
    if (std::ssize(all) < end) return std::nullopt;
    return std::vector<int32_t>(all.begin() + std::max<int64_t>(end - count, 0), all.begin() + end);
}

/// Ids outside the vocabulary have no rows.
bool in_vocabulary(std::span<const int32_t> tokens, const ModelConfig& config) {
    return std::ranges::all_of(tokens, [&](int32_t id) { return id >= 0 && id < config.vocab_size; });
}

std::optional<Tensor> row_ids(const StepPlace& place) {
    const ModelConfig& config = place.config();
    const Tensor* tokens = place.theirs.tensor(place.call, -1, "tokens");
    const auto before = tokens_before(place, config.engram->max_ngram_size - 1);
    if (tokens == nullptr || !before) return std::nullopt;
    const auto ids = tokens->view<int32_t>().last(static_cast<size_t>(place.rows));
    if (!in_vocabulary(ids, config) || !in_vocabulary(*before, config)) return std::nullopt;
    const TokenMap map = TokenMap::without_tokenizer(config);
    const auto index = std::ranges::find(config.engram->layer_ids, place.layer);
    const std::vector<int64_t> rows =
        engram_row_ids(engram_hash(config), static_cast<size_t>(index - config.engram->layer_ids.begin()),
                       map.pad(), map.compress(*before), map.compress(ids));
    return tensor_of({place.rows, config.engram->columns()}, rows);
}

/// Their row ids, each once, ascending; nothing where the table has no such row.
std::optional<std::vector<int64_t>> asked_rows(const StepPlace& place) {
    const std::optional<Tensor> ids = traced("engram.row_ids")(place);
    if (!ids) return std::nullopt;
    const auto values = std::as_const(*ids).view<int64_t>();
    std::vector<int64_t> rows(values.begin(), values.end());
    std::ranges::sort(rows);
    rows.erase(std::unique(rows.begin(), rows.end()), rows.end());
    const int64_t table = place.weights.spec(layer_weight_name(place, "engram.embed.weight")).shape[0];
    if (!rows.empty() && (rows.front() < 0 || rows.back() >= table)) return std::nullopt;
    return rows;
}

/// The table's rows that are asked for: the table itself is too large to be passed on.
template <class T>
Origin table_part(const char* name) {
    return [name](const StepPlace& place) -> std::optional<Tensor> {
        const std::optional<std::vector<int64_t>> rows = asked_rows(place);
        if (!rows) return std::nullopt;
        const std::string full = layer_weight_name(place, fmt::format("engram.embed.{}", name));
        const TensorSpec& spec = place.weights.spec(full);
        const std::span<const T> values = place.weights.values<T>(full);
        const auto width = static_cast<size_t>(spec.shape[1]);
        Tensor part = make_tensor(full, safetensors_name(spec.type), {std::ssize(*rows), spec.shape[1]});
        for (size_t i = 0; i < rows->size(); ++i)
            std::ranges::copy(values.subspan(static_cast<size_t>((*rows)[i]) * width, width),
                              part.view<T>().begin() + static_cast<int64_t>(i * width));
        return part;
    };
}

/// Their row ids, counted through the rows of table_part.
std::optional<Tensor> ids_in_part(const StepPlace& place) {
    std::optional<Tensor> ids = traced("engram.row_ids")(place);
    const std::optional<std::vector<int64_t>> rows = asked_rows(place);
    if (!ids || !rows) return std::nullopt;
    for (int64_t& id : ids->view<int64_t>()) id = std::ranges::lower_bound(*rows, id) - rows->begin();
    return ids;
}

Origin all_in_one_row(Origin origin) {
    return [origin = std::move(origin)](const StepPlace& place) -> std::optional<Tensor> {
        std::optional<Tensor> tensor = origin(place);
        if (tensor) tensor->shape = {tensor->elements()};
        return tensor;
    };
}

Step engram_step(std::string tensor, const char* output, std::vector<std::string> beside) {
    Step step{std::move(tensor),
              {{"engram",
                {{"row_ids", ids_in_part},
                 {"table", table_part<E4m3>("weight")},
                 {"table_scales", table_part<E8m0>("scale")},
                 {"wkv", layer_weight("engram.wkv.weight")},
                 {"wkv_scale", layer_weight("engram.wkv.scale")},
                 {"q_weight", layer_weight("engram.q_weight")},
                 {"k_weight", layer_weight("engram.k_weight")},
                 {"dead", no_images()},
                 {"h", traced("engram.x_in")}},
                norm_eps_text,
                output}}};
    step.beside = std::move(beside);
    return step;
}

bool with_engram(const ModelConfig& config, int layer) {
    return layer_roles(config)[static_cast<size_t>(layer)].engram;
}

}  // namespace

std::vector<Step> engram_steps() {
    std::vector<Step> steps;
    steps.push_back({"engram.row_ids", {}, false, row_ids});
    steps.push_back({"engram.rows",
                     {{"engram_lookup",
                       {{"row_ids", all_in_one_row(ids_in_part)},
                        {"table", table_part<E4m3>("weight")},
                        {"table_scales", table_part<E8m0>("scale")}},
                       fixed(""),
                       "rows"}}});
    steps.push_back({"engram.kv",
                     {{"linear_fp8",
                       {{"x", flat(traced("engram.rows"))},
                        {"weight", layer_weight("engram.wkv.weight")},
                        {"scale", layer_weight("engram.wkv.scale")}},
                       fixed("sum=engram_wkv"),
                       "y"}}});
    steps.push_back(engram_step("engram.gate", "gate", {"engram.rows", "engram.kv"}));
    steps.push_back(engram_step("x_in", "h_out", {"engram.rows", "engram.kv", "engram.gate"}));
    steps.back().where = with_engram;
    return steps;
}

}  // namespace touchstone
