// Steps of compressed rows: the compressor, index keys and queries, scores, the candidate pool, the
// selection.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "golden/bisect/step_origins.h"
#include "reference/compressor.h"
#include "reference/quantize.h"

namespace touchstone {

namespace {

int64_t ratio_of(const StepPlace& place) {
    return place.role().compress_ratio;
}

/// New rows of the call: with a gate, those whose kv is traced; without, a group each.
int64_t new_rows(const StepPlace& place) {
    return place.theirs.rows(place.call, place.layer,
                             ratio_of(place) > 1 ? "attn.compressor.kv" : "attn.compressor.pooled");
}

/// attn.x of the new rows.
std::optional<Tensor> new_x(const StepPlace& place) {
    StepPlace all = place;
    all.rows = new_rows(place);
    return traced("attn.x")(all);
}

/// Rows of the group that is open before the call, out of the calls before it.
Origin open_rows(const char* name) {
    return [name](const StepPlace& place) -> std::optional<Tensor> {
        const int64_t first = place.where().end() - new_rows(place), count = first % ratio_of(place);
        std::optional<Tensor> open = make_tensor("open", "F32", {count, place.config().head_dim});
        for (int64_t i = 0; i < count; ++i) {
            const int64_t position = first - count + i;
            const Tensor* found = nullptr;
            int64_t row = 0;
            for (size_t call = 0; call < place.call && found == nullptr; ++call) {
                const Tensor* part = place.theirs.tensor(call, place.layer, name);
                if (part == nullptr) continue;
                row = position - (place.theirs.calls()[call].end() - part->shape.front());
                if (row >= 0 && row < part->shape.front()) found = part;
            }
            if (found == nullptr) return std::nullopt;
            const Tensor one = row_range(*found, row, 1);
            std::ranges::copy(one.bytes, open->bytes.begin() + i * std::ssize(one.bytes));
        }
        return open;
    };
}

Origin where_gated(Origin origin) {
    return [origin = std::move(origin)](const StepPlace& place) -> std::optional<Tensor> {
        // What ratio 1 does not have is no input of the operator; an empty name leaves it out.
        return ratio_of(place) > 1 ? origin(place) : Tensor{};
    };
}

std::string compressor_text(const StepPlace& place) {
    return fmt::format("first_position={},ratio={},eps={}", place.where().end() - new_rows(place),
                       ratio_of(place), place.config().rms_norm_eps);
}

Step pooled_step() {
    return {"attn.compressor.pooled",
            {{"compressor",
              {{"x", new_x},
               {"wkv", layer_weight("attn.compressor.wkv.weight")},
               {"norm", layer_weight("attn.compressor.norm.weight")},
               {"wgate", where_gated(layer_weight("attn.compressor.wgate.weight"))},
               {"open_kv", where_gated(open_rows("attn.compressor.kv"))},
               {"open_score", where_gated(open_rows("attn.compressor.score"))}},
              compressor_text,
              "pooled"}},
            false,
            nullptr,
            {"attn.compressor.kv", "attn.compressor.score"}};
}

Step projection_step(const char* tensor, const char* weight, const char* sum) {
    return {tensor,
            {{"linear_bf16",
              {{"x", traced("attn.x")}, {"weight", layer_weight(weight)}},
              fixed(fmt::format("sum={}", sum)),
              "accumulator"}}};
}

int64_t step_first_group(const StepPlace& place) {
    return first_group(place.where(), ratio_of(place), place.rows);
}

std::optional<Tensor> group_positions(const StepPlace& place) {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < place.rows; ++i)
        values.push_back((step_first_group(place) + i) * ratio_of(place));
    return tensor_of({place.rows}, values);
}

std::string key_text(const StepPlace& place) {
    return fmt::format("first_group={},ratio={},rope_dim={},eps={}", step_first_group(place), ratio_of(place),
                       place.config().qk_rope_head_dim, place.config().rms_norm_eps);
}

Step compressed_kv_step() {
    return {"attn.compressed_kv",
            {{"rope",
              {{"x", shaped(traced("attn.compressor.latent"),
                            [](const ModelConfig& c) {
                                return std::vector<int64_t>{1, c.head_dim};
                            })},
               {"positions", group_positions}},
              [](const StepPlace& place) {
                  return fmt::format("rope_dim={},table=compress", place.config().qk_rope_head_dim);
              },
              "y"},
             {"quantize_q4m", {{"x", flat(link_before())}}, fixed(""), "values"}},
            false,
            nullptr,
            {},
            StepJudge::quantised};
}

Step key_step() {
    return {"attn.indexer.key",
            {{"index_keys",
              {{"latents", traced("attn.compressor.latent")},
               {"wk", layer_weight("attn.indexer.wk.weight")},
               {"k_norm", layer_weight("attn.indexer.k_norm.weight")}},
              key_text,
              "keys"},
             {"quantize_q4i", {{"x", link_before()}}, fixed(""), "values"}},
            false,
            nullptr,
            {},
            StepJudge::quantised};
}

std::string query_text(const StepPlace& place) {
    return fmt::format("heads={},head_dim={},rope_dim={}", place.config().index_n_heads,
                       place.config().index_head_dim, place.config().qk_rope_head_dim);
}

Step query_step(const char* tensor, const char* output) {
    return {tensor,
            {{"index_queries",
              {{"qr", traced("attn.qr")},
               {"x", traced("attn.x")},
               {"positions", positions()},
               {"wq_b", layer_weight("attn.indexer.wq_b.weight")},
               {"wq_b_scale", layer_weight("attn.indexer.wq_b.scale")},
               {"weights_proj", layer_weight("attn.indexer.weights_proj.weight")}},
              query_text,
              output}}};
}

/// Codes and scales of rows that Q4i packs: a row of codes, and one of scales, per row of `x` [rows, width].
struct PackedRows {
    Tensor codes, scales;
};

PackedRows packed(const Tensor& x) {
    const OperatorInfo& info = find_operator("quantize_q4i");
    const TensorMap inputs{{"x", x}};
    const ParsedCase parsed = parse_tensors(info, inputs, "", "quantize_q4i");
    const TensorMap outputs = run_operator(info, Arithmetic::exact, parsed.parameters, inputs);
    const Tensor& records = outputs.find("records")->second;
    const int64_t rows = x.shape[0], width = x.shape[1];
    PackedRows result{make_tensor("codes", "U8", {rows, width / 2}),
                      make_tensor("scales", "F8_E8M0", {rows, width / 32})};
    for (int64_t row = 0; row < rows; ++row) {
        const auto record = records.bytes.begin() + row * (width / 2 + width / 32);
        std::copy(record, record + width / 2, result.codes.bytes.begin() + row * (width / 2));
        std::copy(record + width / 2, record + width / 2 + width / 32,
                  result.scales.bytes.begin() + row * (width / 32));
    }
    return result;
}

/// A stored row has the values that its codes and scales give: packing them anew gives records of the same
/// values.
Tensor as_bf16(const Tensor& values) {
    std::vector<Bf16> narrow;
    for (const float x : values.view<float>()) narrow.push_back(bf16_from_float(x));
    return tensor_of(values.shape, narrow);
}

int64_t visible_rows(const StepPlace& place) {
    return visible_groups(place.position(), ratio_of(place));
}

/// Index keys that the row sees; one of zeros where it sees none, which the operator does not read.
std::optional<Tensor> visible_keys(const StepPlace& place) {
    const int64_t visible = visible_rows(place), width = place.config().index_head_dim;
    if (visible == 0) return make_tensor("keys", "BF16", {1, width});
    const std::optional<Tensor> keys =
        source_rows(place, place.index_key_source(), "attn.indexer.key", visible);
    if (!keys) return std::nullopt;
    return as_bf16(*keys);
}

Origin codes_of(Origin origin) {
    return [origin = std::move(origin)](const StepPlace& place) -> std::optional<Tensor> {
        const std::optional<Tensor> x = origin(place);
        if (!x) return std::nullopt;
        return packed(*x).codes;
    };
}

Origin scales_of(Origin origin) {
    return [origin = std::move(origin)](const StepPlace& place) -> std::optional<Tensor> {
        const std::optional<Tensor> x = origin(place);
        if (!x) return std::nullopt;
        return packed(*x).scales;
    };
}

/// The weights of the heads: the traced projections times (channels heads)^-1/2, in bf16.
std::optional<Tensor> head_weights(const StepPlace& place) {
    std::optional<Tensor> projections = traced_row("attn.indexer.weights")(place);
    if (!projections) return std::nullopt;
    const double channels = static_cast<double>(place.config().index_n_heads * place.config().index_head_dim);
    const auto factor = static_cast<float>(1.0 / std::sqrt(channels));
    for (Bf16& x : projections->view<Bf16>()) x = bf16_from_float(to_float(x) * factor);
    return projections;
}

Step scores_step() {
    const Origin query = traced_row("attn.indexer.query");
    return {"attn.indexer.scores",
            {{"index_scores",
              {{"codes", codes_of(query)},
               {"scales", scales_of(query)},
               {"weights", head_weights},
               {"key_codes", codes_of(visible_keys)},
               {"key_scales", scales_of(visible_keys)}},
              [](const StepPlace& place) {
                  return fmt::format("visible={},head_dim={}", visible_rows(place),
                                     place.config().index_head_dim);
              },
              "scores"}},
            true};
}

/// Scores of the rows that the row sees.
std::optional<Tensor> visible_scores(const StepPlace& place) {
    const std::optional<Tensor> row = traced_row("attn.indexer.scores")(place);
    if (!row || row->shape.front() < visible_rows(place)) return std::nullopt;
    return row_range(*row, 0, visible_rows(place));
}

Step pool_step(const char* tensor, const char* output) {
    return {tensor,
            {{"candidate_pool",
              {{"scores", visible_scores}},
              [](const StepPlace& place) {
                  return fmt::format("block_size={},topk_blocks={}", place.config().candidate_block_size,
                                     place.config().candidate_topk_blocks);
              },
              output}},
            true};
}

/// All scores, at least one column.
std::optional<Tensor> all_scores(const StepPlace& place) {
    const std::optional<Tensor> scores = traced("attn.indexer.scores")(place);
    if (!scores || scores->shape[1] > 0) return scores;
    return tensor_of({place.rows, 1}, std::vector<float>(static_cast<size_t>(place.rows)));
}

std::optional<Tensor> visible_counts(const StepPlace& place) {
    std::vector<int32_t> counts;
    for (int64_t row = 0; row < place.rows; ++row) {
        StepPlace at = place;
        at.row = row;
        counts.push_back(static_cast<int32_t>(visible_rows(at)));
    }
    return tensor_of({place.rows}, counts);
}

/// 1 inside the blocks that the pool's builder kept, where the layer is bound to them.
std::optional<Tensor> selectable(const StepPlace& place);

/// As the released code orders them: masked rows behind all others, but there.
std::optional<Tensor> ordered_scores(const StepPlace& place) {
    std::optional<Tensor> scores = all_scores(place);
    if (!scores || !place.reading.fill_with_masked) return scores;
    StepPlace masked = place;
    masked.reading = {};
    const std::optional<Tensor> mask = selectable(masked);
    if (!mask) return std::nullopt;
    for (size_t i = 0; i < mask->bytes.size(); ++i)
        if (mask->view<uint8_t>()[i] == 0) scores->view<float>()[i] = -std::numeric_limits<float>::infinity();
    return scores;
}

std::optional<Tensor> selectable(const StepPlace& place) {
    const std::optional<Tensor> scores = all_scores(place);
    if (!scores) return std::nullopt;
    const int64_t columns = scores->shape[1];
    if (place.role().pool != PoolRole::restricted || place.reading.fill_with_masked)
        return make_tensor("mask", "U8", {place.rows, columns}, std::byte{1});
    StepPlace builder = place;
    builder.layer = static_cast<int>(place.config().candidate_source_layer_id);
    const std::optional<Tensor> blocks = traced("attn.candidate_pool.blocks")(builder);
    if (!blocks) return std::nullopt;
    Tensor mask = make_tensor("mask", "U8", {place.rows, columns});
    const int64_t size = place.config().candidate_block_size, kept = blocks->shape[1];
    for (int64_t i = 0; i < place.rows * kept; ++i) {
        const int64_t block = std::as_const(*blocks).view<int32_t>()[static_cast<size_t>(i)];
        for (int64_t column = block * size; block >= 0 && column < std::min((block + 1) * size, columns);
             ++column)
            mask.view<uint8_t>()[static_cast<size_t>(i / kept * columns + column)] = 1;
    }
    return mask;
}

Step selected_step() {
    return {"attn.indexer.selected",
            {{"top_k",
              {{"scores", ordered_scores}, {"visible", visible_counts}, {"mask", selectable}},
              [](const StepPlace& place) {
                  return fmt::format("k={},order=ascending", place.config().index_topk);
              },
              "indices"}},
            false,
            nullptr,
            {},
            StepJudge::selection};
}

}  // namespace

std::vector<Step> compressed_steps() {
    return {
        projection_step("attn.compressor.kv", "attn.compressor.wkv.weight", "compressor_wkv"),
        projection_step("attn.compressor.score", "attn.compressor.wgate.weight", "compressor_wgate"),
        pooled_step(),
        {"attn.compressor.latent",
         {{"rms_norm",
           {{"x", traced("attn.compressor.pooled")}, {"weight", layer_weight("attn.compressor.norm.weight")}},
           norm_eps_text,
           "y"}}},
        compressed_kv_step(),
        key_step(),
        query_step("attn.indexer.query", "queries"),
        query_step("attn.indexer.weights", "projections"),
        scores_step(),
        pool_step("attn.candidate_pool.block_scores", "block_scores"),
        pool_step("attn.candidate_pool.blocks", "blocks"),
        selected_step()};
}

}  // namespace touchstone
