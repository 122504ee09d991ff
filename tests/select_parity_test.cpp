// Compressor, indexer, candidate pool and attention against the released inference code: recorded inputs and
// outputs of a tiny model (official_tiny.h). Every operator starts from recorded tensors.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <vector>

#include "reference/candidate_pool.h"
#include "reference/compressor.h"
#include "reference/indexer.h"
#include "reference/model/config.h"
#include "reference/quantize.h"
#include "reference/sparse_attention.h"
#include "reference/top_k.h"
#include "tests/bf16_units.h"
#include "tests/official_tiny.h"

using namespace touchstone;

namespace {

constexpr Arithmetic arithmetics[]{Arithmetic::exact, Arithmetic::hopper};
constexpr float eps = 1e-20f;
constexpr int64_t hidden = 256, head_dim = 128, window = 48, top_k_rows = 40, prompt = 100, steps = 24;
constexpr IndexerShape shape{4, 64};
constexpr CandidatePoolShape pool_shape{4, 12};
const std::vector<std::string> runs{"prefill100", "decode100_own", "decode100_stale"};

const SafetensorsFile& model() {
    return official_tiny::file("model");
}

std::string name(const std::string& run, int layer, const std::string& tensor) {
    return official_tiny::layer_tensor(run, layer, "attn." + tensor);
}

template <class T>
std::vector<T> recorded(const std::string& run, int layer, const std::string& tensor, const char* type) {
    return official_tiny::file(run).values<T>(name(run, layer, tensor), type);
}

std::vector<Bf16> bf16(const std::string& run, int layer, const std::string& tensor) {
    return recorded<Bf16>(run, layer, tensor, "BF16");
}

int64_t rows_of(const std::string& run) {
    return run == "prefill100" ? prompt : steps;
}

/// The position of row 0.
int64_t start_of(const std::string& run) {
    return run == "prefill100" ? 0 : prompt;
}

int64_t ratio_of(int layer) {
    return layer < 2 ? 0 : layer < 6 ? 2 : 1;
}

/// The layer whose compressed rows and keys a layer reads.
int source_of(int layer) {
    return std::min(layer / 2 * 2, 6);
}

/// The prompt's rows of a tensor of which a decode has only its own.
template <class T>
std::vector<T> with_prompt(const std::string& run, int layer, const std::string& tensor, const char* type) {
    std::vector<T> all = recorded<T>("prefill100", layer, tensor, type);
    if (run == "prefill100") return all;
    const std::vector<T> own = recorded<T>(run, layer, tensor, type);
    all.insert(all.end(), own.begin(), own.end());
    return all;
}

/// Owns an indexer's and a compressor's tensors of one layer.
struct Layer {
    std::vector<Bf16> wkv, wgate, norm, weights_proj, wk, k_norm;
    std::vector<E4m3> wq_b;
    std::vector<E8m0> wq_b_scales;
    CompressorWeights compressor;
    IndexerWeights indexer;

    explicit Layer(int layer) {
        const auto load = [&](const std::string& tensor) {
            const std::string full = fmt::format("layers.{}.attn.{}.weight", layer, tensor);
            return official_tiny::has(model(), full) ? model().values<Bf16>(full, "BF16")
                                                     : std::vector<Bf16>();
        };
        wkv = load("compressor.wkv");
        wgate = load("compressor.wgate");
        norm = load("compressor.norm");
        weights_proj = load("indexer.weights_proj");
        wk = load("indexer.wk");
        k_norm = load("indexer.k_norm");
        const std::string up = fmt::format("layers.{}.attn.indexer.wq_b.", layer);
        wq_b = model().values<E4m3>(up + "weight", "F8_E4M3");
        wq_b_scales = model().values<E8m0>(up + "scale", "F8_E8M0");
        const auto outputs = [](const std::vector<Bf16>& weight, int64_t inputs) {
            return std::ssize(weight) / inputs;
        };
        compressor = {{"compressor.wkv", outputs(wkv, hidden), hidden, wkv},
                      {"compressor.wgate", outputs(wgate, hidden), hidden, wgate},
                      norm};
        indexer = {{"indexer.wq_b", shape.heads * shape.head_dim, 128, wq_b, wq_b_scales},
                   {"indexer.weights_proj", shape.heads, hidden, weights_proj},
                   {"indexer.wk", outputs(wk, head_dim), head_dim, wk},
                   k_norm};
    }
};

const RopeTable& table() {
    static const RopeTable compress =
        compress_rope_table(load_config((official_tiny::folder() / "config.json").string()));
    return compress;
}

/// Elements that differ, and by how many bf16 numbers at most.
struct Difference {
    int64_t differing = 0, count = 0;
    int32_t worst = 0;

    void add(Bf16 ours, Bf16 theirs, double negligible = 0) {
        const int32_t distance = std::abs(ordered(ours) - ordered(theirs));
        const double difference = std::abs(double{to_float(ours)} - double{to_float(theirs)});
        ++count;
        differing += distance != 0;
        if (difference > negligible) worst = std::max(worst, distance);
    }
    /// Rows of head_dim. Where a row's terms cancel, units of the small rest say nothing: a thousandth of the
    /// row's rms is then allowed.
    void add(std::span<const Bf16> ours, std::span<const Bf16> theirs) {
        REQUIRE(ours.size() == theirs.size());
        for (size_t first = 0; first < ours.size(); first += head_dim) {
            const size_t last = std::min(first + head_dim, ours.size());
            double squares = 0;
            for (size_t i = first; i < last; ++i)
                squares += double{to_float(theirs[i])} * double{to_float(theirs[i])};
            const double negligible = 0x1p-10 * std::sqrt(squares / static_cast<double>(last - first));
            for (size_t i = first; i < last; ++i) add(ours[i], theirs[i], negligible);
        }
    }
    std::string text(const std::string& what) const {
        return fmt::format("{}: {} of {} differ, by at most {} units", what, differing, count, worst);
    }
};

/// At most one element in a hundred differs, each by one unit in the last place.
void check_near(const Difference& difference, const std::string& what) {
    const std::string shown = difference.text(what);
    INFO(shown);
    CHECK(difference.differing * 100 <= difference.count);
    CHECK(difference.worst <= 1);
}

void check_near(std::span<const Bf16> ours, std::span<const Bf16> theirs, const std::string& what) {
    Difference difference;
    difference.add(ours, theirs);
    check_near(difference, what);
}

void check_same(std::span<const Bf16> ours, std::span<const Bf16> theirs, const std::string& what) {
    Difference difference;
    difference.add(ours, theirs);
    const std::string shown = difference.text(what);
    INFO(shown);
    CHECK(difference.differing == 0);
}

/// Within 1e-5 of the row's root mean square.
void check_near(std::span<const float> ours, std::span<const float> theirs, const std::string& what) {
    REQUIRE(ours.size() == theirs.size());
    double worst = 0;
    for (size_t first = 0; first < ours.size(); first += head_dim) {
        double squares = 0, largest = 0;
        for (size_t i = first; i < first + head_dim; ++i) {
            squares += double{theirs[i]} * double{theirs[i]};
            largest = std::max(largest, std::abs(double{ours[i]} - double{theirs[i]}));
        }
        worst = std::max(worst, largest / std::sqrt(squares / head_dim));
    }
    const std::string shown = fmt::format("{}: {:.2e} of a row's rms", what, worst);
    INFO(shown);
    CHECK(worst <= 1e-5);
}

std::string label(const std::string& run, int layer, Arithmetic arithmetic, const char* what) {
    return fmt::format("{}, L{:02}, {}, {}", run, layer, arithmetic_name(arithmetic), what);
}

/// Rows of 64 channels through Q4i into pages of index keys.
constexpr int64_t records = 16;
KvPage index_page() {
    return {fp4_index_key_record(shape.head_dim), KvPageLayout::planar, records, 1};
}
std::vector<std::byte> stored(std::span<const Bf16> rows) {
    const int64_t count = std::ssize(rows) / shape.head_dim;
    std::vector<std::byte> pages(
        static_cast<size_t>((count + records - 1) / records * index_page().page_bytes()));
    quantize_rows(index_page(), Quantizer::q4i, rows, pages, 0);
    return pages;
}
/// The same and back.
std::vector<Bf16> quantised(std::span<const Bf16> rows) {
    std::vector<float> values(rows.size());
    dequantize_rows(index_page(), stored(rows), 0, std::ssize(rows) / shape.head_dim, values);
    std::vector<Bf16> result(rows.size());
    std::transform(values.begin(), values.end(), result.begin(), bf16_from_float);
    return result;
}

/// The keys that a layer's indexer scored in a row: its own, or in the released decode, where the step emits
/// none, those that were published last: of the last source, one row per token up to the one before.
std::vector<Bf16> keys_of(const std::string& run, int layer, int64_t position) {
    const bool stale = run == "decode100_stale" && ratio_of(layer) == 2 && position % 2 == 0;
    return with_prompt<Bf16>(run, stale ? 6 : source_of(layer), "index_key", "BF16");
}

/// The recorded scores of row `row` over its visible keys, widened.
std::vector<float> recorded_scores(const std::string& run, int layer, const std::string& tensor,
                                   int64_t row) {
    const auto all = bf16(run, layer, tensor);
    const int64_t width = std::ssize(all) / rows_of(run),
                  visible = visible_groups(start_of(run) + row, ratio_of(layer));
    std::vector<float> scores;
    for (int64_t j = 0; j < visible; ++j)
        scores.push_back(to_float(all[static_cast<size_t>(row * width + j)]));
    return scores;
}

/// The recorded list of one row as positions in the window (below 1,000) and compressed rows (from 1,000
/// on), -1 where there is none.
constexpr int32_t compressed_base = 1000;
std::vector<int32_t> released_list(const std::string& run, int layer, int64_t row) {
    const auto all = recorded<int32_t>(run, layer, "list", "I32");
    const int64_t width = std::ssize(all) / rows_of(run), position = start_of(run) + row;
    const int64_t window_rows = run == "prefill100" ? prompt : window;  // in front of the compressed rows
    std::vector<int32_t> list(all.begin() + row * width, all.begin() + (row + 1) * width);
    for (int32_t& entry : list) {
        if (entry < 0) continue;
        if (entry >= window_rows)
            entry = static_cast<int32_t>(entry - window_rows + compressed_base);
        else if (run != "prefill100")  // the newest position in this slot of the ring
            entry = static_cast<int32_t>(position - (position - entry) % window);
    }
    return list;
}

/// Our list of the same row (contract, section 7): the window, oldest first, then what was selected.
std::vector<int32_t> our_list(const std::string& run, int layer, int64_t row) {
    const int64_t position = start_of(run) + row;
    std::vector<int32_t> list;
    for (int64_t i = 0; i < window; ++i)
        list.push_back(static_cast<int32_t>(std::max<int64_t>(position - window + 1 + i, -1)));
    if (ratio_of(layer) == 0) return list;
    const auto selected = recorded<int32_t>(run, layer / 2 * 2, "index_selected", "I32");
    for (int64_t i = 0; i < top_k_rows; ++i) {
        const int32_t entry = selected[static_cast<size_t>(row * top_k_rows + i)];
        list.push_back(entry < 0 ? -1 : entry + compressed_base);
    }
    return list;
}

}  // namespace

TEST_CASE("parity: the compressor's rows, pooled groups and latents are the released code's") {
    for (const Arithmetic arithmetic : arithmetics)
        for (const std::string& run : runs)
            for (const int layer : {2, 4, 6}) {
                const Layer weights(layer);
                const auto x = bf16(run, layer, "x");
                OpenGroup open;  // 100 tokens leave none
                const Latents result = compress(arithmetic, x, rows_of(run), start_of(run), ratio_of(layer),
                                                weights.compressor, eps, open);
                if (ratio_of(layer) == 2) {
                    check_near(result.kv, recorded<float>(run, layer, "compressor_kv", "F32"),
                               label(run, layer, arithmetic, "kv"));
                    check_near(result.score, recorded<float>(run, layer, "compressor_score", "F32"),
                               label(run, layer, arithmetic, "score"));
                } else {
                    check_near(result.pooled, bf16(run, layer, "compressor_kv"),
                               label(run, layer, arithmetic, "kv"));
                }
                check_near(result.pooled, bf16(run, layer, "compressor_pooled"),
                           label(run, layer, arithmetic, "pooled"));
                check_near(result.latents, bf16(run, layer, "compressor_latent"),
                           label(run, layer, arithmetic, "latent"));
            }
}

TEST_CASE("parity: index keys are the released code's after Q4i, from its latents") {
    for (const Arithmetic arithmetic : arithmetics)
        for (const std::string& run : runs)
            for (const int layer : {2, 4, 6}) {
                const auto latents = bf16(run, layer, "compressor_latent");
                const auto keys = index_keys(arithmetic, latents, std::ssize(latents) / head_dim,
                                             start_of(run) / ratio_of(layer), ratio_of(layer),
                                             Layer(layer).indexer, shape, table(), eps);
                check_same(quantised(keys), bf16(run, layer, "index_key"),
                           label(run, layer, arithmetic, "index keys"));
            }
}

TEST_CASE("parity: index queries after Q4i and index weights are the released code's") {
    for (const Arithmetic arithmetic : arithmetics)
        for (const std::string& run : runs)
            for (const int layer : {2, 4, 6, 8}) {
                std::vector<int64_t> positions;
                for (int64_t row = 0; row < rows_of(run); ++row) positions.push_back(start_of(run) + row);
                const IndexQueries result =
                    index_queries(arithmetic, bf16(run, layer, "qr"), bf16(run, layer, "x"), positions,
                                  Layer(layer).indexer, shape, table());
                check_same(quantised(result.queries), bf16(run, layer, "index_query"),
                           label(run, layer, arithmetic, "index queries"));
                check_same(result.projections, bf16(run, layer, "index_weights"),
                           label(run, layer, arithmetic, "index weights"));
            }
}

TEST_CASE("parity: dots and scores of the indexer have the released code's bits") {
    for (const std::string& run : runs)
        for (const int layer : {2, 4, 6, 8}) {
            const int64_t rows = rows_of(run), channels = shape.heads * shape.head_dim;
            const auto queries = bf16(run, layer, "index_query"), weights = bf16(run, layer, "index_weights"),
                       dots = bf16(run, layer, "index_dot");
            const int64_t width = std::ssize(dots) / rows / shape.heads;
            // Quantising what was quantised keeps every value, if not every code.
            check_same(quantised(queries), queries, "quantised twice");
            const KvPage as_rows{fp4_index_key_record(shape.head_dim), KvPageLayout::planar,
                                 rows * shape.heads, 1};
            std::vector<std::byte> codes(static_cast<size_t>(as_rows.page_bytes()));
            quantize_rows(as_rows, Quantizer::q4i, queries, codes, 0);
            const auto* bytes = reinterpret_cast<const uint8_t*>(codes.data());
            Difference dot_difference, score_difference;
            for (int64_t row = 0; row < rows; ++row) {
                const int64_t position = start_of(run) + row,
                              visible = visible_groups(position, ratio_of(layer));
                std::vector<Bf16> scaled;
                for (int64_t head = 0; head < shape.heads; ++head)
                    scaled.push_back(bf16_from_float(
                        to_float(weights[static_cast<size_t>(row * shape.heads + head)]) * 0x1p-4f));
                const IndexQuery query{
                    {bytes + row * channels / 2, static_cast<size_t>(channels / 2)},
                    {bytes + rows * channels / 2 + row * channels / 32, static_cast<size_t>(channels / 32)},
                    scaled};
                std::vector<float> scores(static_cast<size_t>(visible));
                std::vector<Bf16> dot(static_cast<size_t>(visible * shape.heads));
                index_scores(query, shape, index_page(), stored(keys_of(run, layer, position)), visible,
                             scores, dot);
                const std::vector<float> theirs =
                    recorded_scores(run, layer, layer == 8 ? "index_scores_all" : "index_scores", row);
                for (size_t j = 0; j < scores.size(); ++j)
                    score_difference.add(bf16_from_float(scores[j]), bf16_from_float(theirs[j]));
                for (int64_t head = 0; head < shape.heads; ++head)
                    for (int64_t j = 0; j < visible; ++j)
                        dot_difference.add(dot[static_cast<size_t>(head * visible + j)],
                                           dots[static_cast<size_t>((row * shape.heads + head) * width + j)]);
            }
            const std::string dot_text = dot_difference.text("dots"),
                              score_text = score_difference.text("scores");
            INFO(run << ", L0" << layer << ", " << dot_text << "; " << score_text);
            CHECK(dot_difference.count > 0);
            CHECK(dot_difference.differing == 0);
            CHECK(score_difference.differing == 0);
        }
}

TEST_CASE("parity: block scores and mask of the candidate pool are the released code's") {
    for (const std::string& run : runs) {
        const auto block_scores = bf16(run, 6, "candidate_block_scores");
        const auto mask = recorded<uint8_t>(run, 6, "candidate_mask", "U8");
        const int64_t rows = rows_of(run), blocks = std::ssize(block_scores) / rows,
                      width = std::ssize(mask) / rows;
        for (int64_t row = 0; row < rows; ++row) {
            CAPTURE(run);
            CAPTURE(row);
            const std::vector<float> scores = recorded_scores(run, 6, "index_scores", row);
            const CandidatePool pool = candidate_pool(scores, pool_shape);
            for (int64_t block = 0; block < blocks; ++block) {
                const float theirs = to_float(block_scores[static_cast<size_t>(row * blocks + block)]);
                const bool ours = block < std::ssize(pool.block_scores);
                CHECK((ours ? pool.block_scores[static_cast<size_t>(block)]
                            : -std::numeric_limits<float>::infinity()) == theirs);
            }
            std::vector<uint8_t> ours(scores.size());
            pool_mask(pool.blocks, pool_shape, ours);
            CHECK(std::equal(ours.begin(), ours.end(), mask.begin() + row * width));
        }
    }
}

TEST_CASE("parity: the selected rows are the released code's in every row, in L08 inside the pool") {
    for (const std::string& run : runs)
        for (const int layer : {2, 4, 6, 8}) {
            const auto selected = recorded<int32_t>(run, layer, "index_selected", "I32");
            for (int64_t row = 0; row < rows_of(run); ++row) {
                CAPTURE(run);
                CAPTURE(layer);
                CAPTURE(row);
                const auto scores =
                    recorded_scores(run, layer, layer == 8 ? "index_scores_all" : "index_scores", row);
                std::vector<uint8_t> mask(scores.size(), uint8_t{1});
                if (layer == 8)
                    pool_mask(candidate_pool(recorded_scores(run, 6, "index_scores", row), pool_shape).blocks,
                              pool_shape, mask);
                std::vector<int32_t> ours(top_k_rows);
                top_k(scores, 1, std::ssize(scores), top_k_rows, {{}, mask}, TopKOutput::ascending, ours);
                CHECK(std::equal(ours.begin(), ours.end(), selected.begin() + row * top_k_rows));
            }
        }
}

TEST_CASE("parity: attention gives the released code's outputs, over our list and over its own") {
    for (const Arithmetic arithmetic : arithmetics)
        for (const bool their_list : {false, true}) {
            Difference total;
            for (const std::string& run : runs)
                for (int layer = run == "decode100_stale" ? 2 : 0; layer < 10; ++layer) {
                    const auto q = bf16(run, layer, "q_h01"), theirs = bf16(run, layer, "o_h01");
                    const auto window_kv = with_prompt<Bf16>(run, layer, "window_kv", "BF16");
                    const auto compressed = ratio_of(layer) == 0 ? std::vector<Bf16>()
                                                                 : with_prompt<Bf16>(run, source_of(layer),
                                                                                     "compressed_kv", "BF16");
                    const auto sink =
                        model().values<float>(fmt::format("layers.{}.attn.attn_sink", layer), "F32");
                    Difference difference;
                    for (int64_t row = 0; row < rows_of(run); ++row) {
                        const auto list =
                            their_list ? released_list(run, layer, row) : our_list(run, layer, row);
                        std::vector<float> rows(list.size() * head_dim);
                        std::vector<uint8_t> valid(list.size());
                        for (size_t entry = 0; entry < list.size(); ++entry) {
                            if (list[entry] < 0) continue;
                            valid[entry] = 1;
                            const bool is_window = list[entry] < compressed_base;
                            const auto& from = is_window ? window_kv : compressed;
                            const auto at = static_cast<size_t>(
                                (list[entry] - (is_window ? 0 : compressed_base)) * head_dim);
                            REQUIRE(at + head_dim <= from.size());
                            for (size_t i = 0; i < head_dim; ++i)
                                rows[entry * head_dim + i] = to_float(from[at + i]);
                        }
                        std::vector<Bf16> o(2 * head_dim);
                        sparse_attention(
                            arithmetic,
                            std::span(q).subspan(static_cast<size_t>(row) * 2 * head_dim, 2 * head_dim), 2,
                            head_dim, rows, valid, std::span(sink).first(2), 0x1.6a09e6p-4f, std::span(o));
                        difference.add(o, std::span(theirs).subspan(static_cast<size_t>(row) * 2 * head_dim,
                                                                    2 * head_dim));
                    }
                    total.differing += difference.differing;
                    total.count += difference.count;
                    total.worst = std::max(total.worst, difference.worst);
                    check_near(difference, label(run, layer, arithmetic, their_list ? "o" : "o, our list"));
                }
            const std::string shown = total.text(fmt::format("o, {}, {}", arithmetic_name(arithmetic),
                                                             their_list ? "the released list" : "our list"));
            INFO(shown);
            CHECK(total.differing * 2000 <= total.count);  // measured: 33 in 366,592 at most
        }
}
