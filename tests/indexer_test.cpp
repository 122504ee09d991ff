#include "reference/indexer.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "reference/compressor.h"
#include "reference/indexer_vector.h"
#include "reference/io/user_error.h"
#include "reference/numerics/fill.h"
#include "reference/numerics/sums.h"
#include "reference/quantize.h"
#include "reference/rms_norm.h"
#include "reference/top_k.h"
#include "reference/truth/indexer.h"
#include "reference/truth/rms_norm.h"
#include "reference/truth/rope.h"

using namespace touchstone;

namespace {

constexpr Arithmetic arithmetics[]{Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper};
constexpr float eps = 1e-20f;
constexpr KvPageLayout layouts[]{KvPageLayout::planar, KvPageLayout::per_token};

/// Query and keys of index_scores, as stored.
struct Scene {
    IndexerShape shape;
    std::vector<uint8_t> codes, scales;
    std::vector<Bf16> weights;
    std::vector<uint8_t> key_codes;  ///< [keys, head_dim], one to a byte
    std::vector<std::byte> key_scales;
    int64_t keys;

    Scene(IndexerShape shape_, int64_t keys_) : shape(shape_), weights(size_t(shape.heads)), keys(keys_) {
        const int64_t channels = shape.heads * shape.head_dim;
        const RandomStream random{8, 1};
        for (int64_t i = 0; i < channels / 2; ++i) codes.push_back(uint8_t(random.word(uint64_t(i))));
        for (int64_t i = 0; i < channels / 32; ++i)
            scales.push_back(uint8_t(125 + RandomStream{8, 2}.word(uint64_t(i)) % 4));
        for (size_t i = 0; i < weights.size(); ++i)
            weights[i] = bf16_from_float(filled<float>(Filler::normal, {8, 3}, i) * 0.0625f);
        for (int64_t i = 0; i < keys * shape.head_dim; ++i)
            key_codes.push_back(RandomStream{8, 4}.word(uint64_t(i)) & 15);
        for (int64_t i = 0; i < keys * shape.head_dim / 32; ++i)
            key_scales.push_back(std::byte(124 + RandomStream{8, 5}.word(uint64_t(i)) % 5));
    }

    IndexQuery query() const { return {codes, scales, weights}; }

    KvPage page(int64_t records, KvPageLayout layout = KvPageLayout::planar) const {
        return {fp4_index_key_record(shape.head_dim), layout, records, 1};
    }

    /// The keys in pages; every other byte is set.
    std::vector<std::byte> store(const KvPage& page, int64_t extra_pages = 1) const {
        const int64_t pages = (keys + page.records - 1) / page.records + extra_pages;
        std::vector<std::byte> bytes(size_t(pages * page.page_bytes()), std::byte{0xFF});
        pack_codes(page, keys, key_codes, key_scales, {}, bytes, 0);
        return bytes;
    }

    uint8_t query_code(int64_t head, int64_t channel) const {
        const uint8_t byte = codes[size_t((head * shape.head_dim + channel) / 2)];
        return channel % 2 == 0 ? byte & 15 : byte >> 4;
    }

    /// q . k of a head and a key in fp32: exact per 32 channels, an fma per group.
    float dot(int64_t head, int64_t key) const {
        float acc = 0;
        for (int64_t group = 0; group < shape.head_dim / 32; ++group) {
            double sum = 0;
            for (int64_t channel = 32 * group; channel < 32 * (group + 1); ++channel)
                sum += double{to_float(E2m1{query_code(head, channel)})} *
                       double{to_float(E2m1{key_codes[size_t(key * shape.head_dim + channel)]})};
            const int64_t groups = shape.head_dim / 32;
            const float scale = to_float(E8m0{scales[size_t(head * groups + group)]}) *
                                to_float(E8m0{uint8_t(key_scales[size_t(key * groups + group)])});
            acc = fma_rn(static_cast<float>(sum), scale, acc);
        }
        return acc;
    }

    float score(int64_t key) const {
        std::vector<float> terms;
        for (int64_t head = 0; head < shape.heads; ++head) {
            const float d = to_float(bf16_from_float(dot(head, key)));
            const float weight = to_float(weights[size_t(head)]);
            terms.push_back(to_float(bf16_from_float(std::max(d, 0.0f) * weight)));
        }
        const Lanes lanes = sum_order(SumOperator::index_head_sum, shape.heads, 1).lanes;
        return to_float(bf16_from_float(sum_by_definition(lanes, terms.data(), shape.heads)));
    }
};

std::vector<float> scores_of(const Scene& scene, const KvPage& page, std::span<const std::byte> pages,
                             int64_t visible) {
    std::vector<float> scores(size_t(visible), -7.0f);
    index_scores(scene.query(), scene.shape, page, pages, visible, scores);
    return scores;
}

std::vector<float> scores_of(const Scene& scene) {
    const KvPage page = scene.page(64);
    return scores_of(scene, page, scene.store(page), scene.keys);
}

/// One key of 32 channels with value 1 in channel h, for each h: the dot with head h is what head h has
/// there.
Scene chosen_dots(const std::vector<float>& dots, const std::vector<float>& head_weights) {
    Scene scene({std::ssize(dots), 32}, 1);
    std::ranges::fill(scene.codes, uint8_t{0});
    std::ranges::fill(scene.scales, uint8_t{127});
    std::ranges::fill(scene.key_codes, uint8_t{0});
    std::ranges::fill(scene.key_scales, std::byte{127});
    scene.key_codes[0] = e2m1_from_float_saturating(1).bits;
    scene.key_codes[1] = e2m1_from_float_saturating(1).bits;
    for (size_t head = 0; head < dots.size(); ++head) {
        const float most = std::clamp(dots[head], -4.0f, 4.0f);  // 5 = 4 + 1
        scene.codes[head * 16] =
            pack_e2m1(e2m1_from_float_saturating(most), e2m1_from_float_saturating(dots[head] - most));
        scene.weights[head] = bf16_from_float(head_weights[head]);
    }
    return scene;
}

/// Weights of an indexer whose latents have 64 and whose hidden states have 96 channels.
struct Storage {
    IndexerShape shape;
    std::vector<E4m3> wq_b;
    std::vector<E8m0> wq_b_scales;
    std::vector<Bf16> weights_proj, wk, k_norm;
    static constexpr int64_t latent = 64, lora = 128, hidden = 96;

    explicit Storage(IndexerShape shape_) : shape(shape_) {
        const int64_t channels = shape.heads * shape.head_dim;
        wq_b.resize(size_t(channels * lora));
        wq_b_scales.resize(size_t(channels / 32 * (lora / 32)), E8m0{118});
        weights_proj.resize(size_t(shape.heads * hidden));
        wk.resize(size_t(shape.head_dim * latent));
        k_norm.resize(size_t(shape.head_dim));
        fill<E4m3>(Filler::normal, {8, 11}, wq_b);
        fill<Bf16>(Filler::normal, {8, 12}, weights_proj);
        fill<Bf16>(Filler::normal, {8, 13}, wk);
        fill<Bf16>(Filler::normal, {8, 14}, k_norm);
    }
    IndexerWeights weights() const {
        return {{"layers.2.attn.indexer.wq_b.weight", shape.heads * shape.head_dim, lora, wq_b, wq_b_scales},
                {"layers.2.attn.indexer.weights_proj.weight", shape.heads, hidden, weights_proj},
                {"layers.2.attn.indexer.wk.weight", shape.head_dim, latent, wk},
                k_norm};
    }
};

const RopeTable& table() {
    static const RopeTable yarn(32, 160000, YarnScaling{16, 32, 1, 65536});
    return yarn;
}

std::vector<Bf16> random_bf16(int64_t count, uint64_t stream) {
    std::vector<Bf16> values(static_cast<size_t>(count));
    fill<Bf16>(Filler::normal, {8, stream}, values);
    return values;
}

truth::Matrix matrix(std::span<const Bf16> values, int64_t rows) {
    truth::Matrix result(rows, std::ssize(values) / rows);
    for (Eigen::Index i = 0; i < result.size(); ++i)
        result.data()[i] = double{to_float(values[static_cast<size_t>(i)])};
    return result;
}

std::vector<float> frequencies() {
    return {table().frequencies().begin(), table().frequencies().end()};
}

/// At most one element in a hundred is another bf16 number, and then a neighbour.
void check_near(std::span<const Bf16> ours, const truth::Matrix& theirs, const char* what) {
    int64_t differing = 0;
    double worst = 0;  // in units of the last place
    REQUIRE(std::ssize(ours) == theirs.size());
    for (size_t i = 0; i < ours.size(); ++i) {
        const double difference = std::abs(double{to_float(ours[i])} - theirs.data()[i]);
        if (difference == 0) continue;
        ++differing;
        worst = std::max(worst, difference / std::ldexp(1.0, std::ilogb(theirs.data()[i]) - 7));
    }
    const std::string shown =
        fmt::format("{}: {} of {} differ, by {:.2f} units", what, differing, ours.size(), worst);
    INFO(shown);
    CHECK(differing * 100 <= std::ssize(ours));
    CHECK(worst <= 1);
}

}  // namespace

TEST_CASE("index scores: equal the written chain of roundings bit for bit (shapes, page sizes, layouts)") {
    for (const IndexerShape shape : {IndexerShape{1, 32}, IndexerShape{2, 64}, IndexerShape{4, 64},
                                     IndexerShape{13, 96}, IndexerShape{32, 128}}) {
        const Scene scene(shape, 700);
        std::vector<float> expected;
        for (int64_t key = 0; key < scene.keys; ++key) expected.push_back(scene.score(key));
        for (const int64_t records : {1, 7, 64, 1000})
            for (const KvPageLayout layout : layouts) {
                CAPTURE(shape.heads);
                CAPTURE(shape.head_dim);
                CAPTURE(records);
                const KvPage page = scene.page(records, layout);
                const std::vector<std::byte> pages = scene.store(page);
                for (const int64_t visible : {0, 1, 63, 64, 65, 511, 512, 513, 700}) {
                    CAPTURE(visible);
                    CHECK(scores_of(scene, page, pages, visible) ==
                          std::vector<float>(expected.begin(), expected.begin() + visible));
                }
            }
    }
}

TEST_CASE("index scores: the dots are the first rounding of the chain") {
    const Scene scene({5, 64}, 600);
    const KvPage page = scene.page(64);
    const std::vector<std::byte> pages = scene.store(page);
    std::vector<float> scores(600);
    std::vector<Bf16> dot(5 * 600);
    index_scores(scene.query(), scene.shape, page, pages, 600, scores, dot);
    CHECK(scores == scores_of(scene));
    for (int64_t head = 0; head < 5; ++head)
        for (int64_t key = 0; key < 600; ++key)
            if (dot[size_t(head * 600 + key)] != bf16_from_float(scene.dot(head, key)))
                FAIL_CHECK(head << " " << key);
}

TEST_CASE("index scores: ReLU is on the dot, the weight behind it (two heads, B80)") {
    const auto score = [](const std::vector<float>& dots, const std::vector<float>& weights) {
        return scores_of(chosen_dots(dots, weights))[0];
    };
    CHECK(score({3, -5}, {1, 1}) == 3);    // without ReLU -2
    CHECK(score({3, -5}, {-1, 1}) == -3);  // ReLU on the sum or on the product: 0
    CHECK(score({3, -5}, {1, -1}) == 3);   // weight before ReLU: 8
    CHECK(score({-3, -5}, {1, -1}) == 0);
    CHECK_FALSE(std::signbit(score({-3, -5}, {-1, -1})));  // -0 * weight leaves no trace
    CHECK(score({5, 1.5f}, {0.5f, -2}) == -0.5f);
}

TEST_CASE("index scores: heads are added in eight lanes, head h in lane h mod 8") {
    // In head order 256 + 1 + 256 - 512 and so on would round elsewhere; lanes make this sum exact.
    std::vector<float> dots(16, 1.0f), weights(16, 1.0f);
    weights[0] = 0x1p25f;
    weights[8] = -0x1p25f;
    weights[1] = 3;
    CHECK(scores_of(chosen_dots(dots, weights))[0] == 3 + 13);  // in head order, 2^25 + 3 loses the 1s
}

TEST_CASE("index scores: a NaN scale is not dropped and reaches its own key alone") {
    Scene scene({4, 64}, 20);
    const std::vector<float> clean = scores_of(scene);
    scene.key_scales[2 * 7] = std::byte{255};
    const std::vector<float> scores = scores_of(scene);
    for (size_t key = 0; key < 20; ++key)
        CHECK((key == 7 ? std::isnan(scores[key]) : scores[key] == clean[key]));
}

TEST_CASE("index scores: a group that is open is never selected, however good its row (B58, p = 0..7)") {
    for (const int64_t ratio : {1, 2, 4})
        for (int64_t position = 0; position < 8; ++position) {
            CAPTURE(ratio);
            CAPTURE(position);
            Scene scene({2, 32}, 9);
            const int64_t visible = visible_groups(position, ratio);
            for (int64_t channel = 0; channel < 32; ++channel) {  // the query's own copy, 2^60 times as large
                scene.key_codes[size_t(visible * 32 + channel)] = scene.query_code(0, channel);
                scene.key_scales[size_t(visible)] = std::byte{187};
            }
            const KvPage page = scene.page(4);
            const std::vector<float> scores = scores_of(scene, page, scene.store(page), visible);
            CHECK(scores_of(scene)[size_t(visible)] != 0);
            std::vector<int32_t> selected(9);
            top_k(scores, 1, visible, 9, {}, TopKOutput::ascending, selected);
            for (int32_t i = 0; i < 9; ++i) CHECK(selected[size_t(i)] == (i < visible ? i : -1));
        }
}

TEST_CASE("index scores: equal truth but for bf16 neighbours") {
    for (const IndexerShape shape : {IndexerShape{4, 64}, IndexerShape{32, 128}}) {
        const Scene scene(shape, 600);
        truth::Matrix query(1, shape.heads * shape.head_dim), keys(600, shape.head_dim);
        const int64_t groups = shape.head_dim / 32;
        for (int64_t i = 0; i < query.size(); ++i)
            query(i) = double{to_float(E2m1{scene.query_code(i / shape.head_dim, i % shape.head_dim)})} *
                       double{to_float(E8m0{scene.scales[size_t(i / 32)]})};
        for (int64_t i = 0; i < keys.size(); ++i)
            keys.data()[i] =
                double{to_float(E2m1{scene.key_codes[size_t(i)]})} *
                double{to_float(E8m0{uint8_t(
                    scene.key_scales[size_t(i / shape.head_dim * groups + i % shape.head_dim / 32)])})};
        const truth::IndexScores expected =
            truth::index_scores(query, matrix(scene.weights, 1), keys, truth::Ledger::released());
        std::vector<Bf16> scores, dot(size_t(shape.heads * 600));
        std::vector<float> wide(600);
        const KvPage page = scene.page(64);
        index_scores(scene.query(), shape, page, scene.store(page), 600, wide, dot);
        for (float x : wide) scores.push_back(bf16_from_float(x));
        check_near(dot, expected.dot, "dot");
        check_near(scores, expected.scores, "scores");
    }
}

TEST_CASE("index scores: every instruction set and thread count gives the same bits") {
    const Scene scene({32, 128}, 3000);
    omp_set_num_threads(1);
    const std::vector<float> expected = scores_of(scene);
    for (const int threads : {2, 7}) {
        omp_set_num_threads(threads);
        CHECK(scores_of(scene) == expected);
    }
    omp_set_num_threads(2);
    for (const int64_t heads : {1, 2, 8, 13, 32})
        for (const int64_t keys : {1, 63, 64, 200}) {
            std::vector<float> products(size_t(heads * keys)), weights(static_cast<size_t>(heads));
            fill<float>(Filler::trap, {8, 21}, products);
            fill<float>(Filler::normal, {8, 22}, weights);
            const int64_t lanes = sum_order(SumOperator::index_head_sum, heads, 1).lanes.count;
            std::vector<uint32_t> first;
            for (const Isa isa : compiled_isas()) {
                if (!isa_supported(isa)) continue;
                CAPTURE(isa_name(isa));
                CHECK(indexer_kernels(isa).isa == isa);
                std::vector<float> scores(static_cast<size_t>(keys));
                indexer_kernels(isa).head_sums(products.data(), heads, keys, weights.data(), lanes,
                                               scores.data());
                std::vector<uint32_t> bits;
                for (float x : scores) bits.push_back(float_bits(x));
                if (first.empty()) first = bits;
                CHECK(bits == first);
            }
        }
}

TEST_CASE("index keys: of the unrotated latent, turned at the position of the group's first token") {
    const Storage storage({4, 64});
    const std::vector<Bf16> latents = random_bf16(6 * 64, 31);
    for (const Arithmetic arithmetic : arithmetics) {
        CAPTURE(arithmetic_name(arithmetic));
        const auto keys = [&](std::span<const Bf16> of, int64_t first_group, int64_t ratio) {
            return index_keys(arithmetic, of, std::ssize(of) / 64, first_group, ratio, storage.weights(),
                              storage.shape, table(), eps);
        };
        const std::vector<Bf16> all = keys(latents, 3, 2);
        for (int64_t group = 0; group < 6; ++group) {
            const auto latent = std::span(latents).subspan(size_t(64 * group), 64);
            const std::vector<Bf16> one = keys(latent, 2 * (3 + group), 1);  // position 2 (3 + group)
            CHECK(std::equal(one.begin(), one.end(), all.begin() + 64 * group));
        }
        // Position 0 turns nothing: the norm of the projection.
        std::vector<Bf16> projected(64), normed(64);
        const auto latent = std::span(latents).first(64);
        linear_bf16(arithmetic, SumOperator::index_wk, latent, 1, storage.weights().wk, std::span(projected));
        rms_norm(projected, 1, storage.k_norm, eps, std::span(normed));
        CHECK(keys(latent, 0, 2) == normed);
        CHECK(keys({}, 0, 2).empty());

        const truth::Ledger ledger = truth::Ledger::released();
        const truth::Matrix expected = ledger.bf16(truth::rope(
            ledger.bf16(truth::rms_norm(
                ledger.bf16(truth::Matrix(matrix(latents, 6) * matrix(storage.wk, 64).transpose())),
                matrix(storage.k_norm, 1).transpose(), double{eps})),
            64, {6, 8, 10, 12, 14, 16}, frequencies()));
        check_near(all, expected, "keys");
    }
}

TEST_CASE("index queries: projection, rope, Q4i and scaled weights, row by row") {
    const Storage storage({4, 64});
    const std::vector<Bf16> qr = random_bf16(5 * 128, 41), x = random_bf16(5 * 96, 42);
    const std::vector<int64_t> positions{0, 7, 1, 65536, 1048575};
    for (const Arithmetic arithmetic : arithmetics) {
        CAPTURE(arithmetic_name(arithmetic));
        const auto queries = [&](size_t first, size_t rows) {
            return index_queries(arithmetic, std::span(qr).subspan(first * 128, rows * 128),
                                 std::span(x).subspan(first * 96, rows * 96),
                                 std::span(positions).subspan(first, rows), storage.weights(), storage.shape,
                                 table());
        };
        const IndexQueries all = queries(0, 5);
        std::vector<Bf16> rotated(5 * 256);
        linear_fp8(arithmetic, SumOperator::index_wq_b, qr, 5, storage.weights().wq_b, std::span(rotated));
        rope(table(), RopeDirection::forward, positions, 4, 64, rotated);
        CHECK(all.queries == rotated);
        // Codes and scales are those of a stored index key with the same channels.
        const KvPage page{fp4_index_key_record(64), KvPageLayout::planar, 20, 1};
        std::vector<std::byte> stored(size_t(page.page_bytes()));
        quantize_rows(page, Quantizer::q4i, all.queries, stored, 0);
        std::vector<std::byte> flat;
        for (uint8_t code : all.codes) flat.push_back(std::byte{code});
        for (uint8_t scale : all.scales) flat.push_back(std::byte{scale});
        CHECK(flat == stored);
        for (size_t i = 0; i < all.weights.size(); ++i)
            CHECK(to_float(all.weights[i]) == to_float(all.projections[i]) * 0.0625f);
        for (size_t row = 0; row < 5; ++row) {  // alone
            const IndexQueries one = queries(row, 1);
            CHECK(std::equal(one.queries.begin(), one.queries.end(), all.queries.begin() + long(row) * 256));
            CHECK(std::equal(one.codes.begin(), one.codes.end(), all.codes.begin() + long(row) * 128));
            CHECK(std::equal(one.scales.begin(), one.scales.end(), all.scales.begin() + long(row) * 8));
            CHECK(std::equal(one.weights.begin(), one.weights.end(), all.weights.begin() + long(row) * 4));
        }
        check_near(all.projections,
                   truth::Ledger::released().bf16(
                       truth::Matrix(matrix(x, 5) * matrix(storage.weights_proj, 4).transpose())),
                   "projections");
    }
}

TEST_CASE("index queries: the weights' factor is fl32 of a double quotient, rounded with the product once") {
    for (const int64_t heads : {1, 3, 32}) {  // (64 heads)^-1/2: no power of two but for 1
        const Storage storage({heads, 64});
        const std::vector<Bf16> qr = random_bf16(128, 41), x = random_bf16(96, 42);
        const std::vector<int64_t> position{3};
        const IndexQueries result =
            index_queries(Arithmetic::exact, qr, x, position, storage.weights(), storage.shape, table());
        const auto factor = static_cast<float>(truth::index_weight_scale(heads, 64));
        for (size_t i = 0; i < result.weights.size(); ++i)
            CHECK(result.weights[i] == bf16_from_float(to_float(result.projections[i]) * factor));
    }
    CHECK(truth::index_weight_scale(32, 128) == 0x1p-6);
}

TEST_CASE("indexer: sizes that do not match are refused with both numbers, and nothing is written") {
    const Scene scene({2, 32}, 10);
    const KvPage page = scene.page(5);
    const std::vector<std::byte> pages = scene.store(page, 0);
    std::vector<float> scores(10, -7.0f);
    std::vector<Bf16> dot(19);
    const auto refused = [&](const Scene& s, const KvPage& p, int64_t visible, std::span<Bf16> d,
                             const std::string& words) {
        CAPTURE(words);
        try {
            index_scores(s.query(), s.shape, p, pages, visible, scores, d);
            FAIL_CHECK("accepted");
        } catch (const UserError& error) {
            CHECK(std::string(error.what()).find(words) != std::string::npos);
        }
        CHECK(scores == std::vector<float>(10, -7.0f));
    };
    refused(scene, page, 9, {}, "10 scores");
    refused(scene, page, 11, {}, "11");
    refused(scene, page, -1, {}, "-1");
    refused(scene, page, 10, dot, "19 elements of dot");
    refused(scene, {fp8_index_key_record(32), KvPageLayout::planar, 5, 1}, 10, {}, "pages of");
    Scene changed = scene;
    changed.codes.pop_back();
    refused(changed, page, 10, {}, "31 bytes of query codes");
    changed = scene;
    changed.scales.pop_back();
    refused(changed, page, 10, {}, "1 query scales");
    changed = scene;
    changed.weights.pop_back();
    refused(changed, page, 10, {}, "1 head weights");
    changed = scene;
    changed.shape.head_dim = 40;
    refused(changed, page, 10, {}, "2 heads of 40 channels");

    const Storage storage({2, 64});
    const std::vector<int64_t> position{3};
    IndexerWeights weights = storage.weights();
    weights.wq_b.outputs = 96;
    CHECK_THROWS_AS(index_queries(Arithmetic::exact, random_bf16(128, 1), random_bf16(96, 1), position,
                                  weights, storage.shape, table()),
                    UserError);
    weights.wk.outputs = 32;
    CHECK_THROWS_AS(
        index_keys(Arithmetic::exact, random_bf16(64, 1), 1, 0, 2, weights, storage.shape, table(), eps),
        UserError);
    CHECK_THROWS_AS(index_keys(Arithmetic::exact, random_bf16(64, 1), 2, 0, 2, storage.weights(),
                               storage.shape, table(), eps),
                    UserError);
}
