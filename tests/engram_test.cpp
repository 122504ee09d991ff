#include "reference/engram.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <omp.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "golden/store/sha256.h"
#include "reference/io/user_error.h"
#include "reference/model/model.h"
#include "reference/numerics/random.h"
#include "reference/truth/engram.h"

using namespace touchstone;

namespace {

constexpr std::array arithmetics{Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper};

const ModelConfig& preset(const char* name) {
    static const Model real = find_model("deepseek-v4.1-flash"), tiny = find_model("tiny");
    return *(std::string_view(name) == "tiny" ? tiny : real).config();
}

template <class T>
std::string sha256_of(const std::vector<T>& values) {
    return sha256(std::as_bytes(std::span(values)));
}

/// Rows of all layers of consecutive positions from a sequence's beginning: [token][layer][column].
std::vector<int64_t> all_rows(const EngramHash& hash, int32_t pad, std::span<const int32_t> ids) {
    const size_t columns = static_cast<size_t>(hash.columns()), layers = hash.layers.size();
    std::vector<int64_t> rows(ids.size() * layers * columns);
    for (size_t layer = 0; layer < layers; ++layer) {
        const std::vector<int64_t> of_layer = engram_row_ids(hash, layer, pad, {}, ids);
        for (size_t i = 0; i < of_layer.size(); ++i)
            rows[(i / columns * layers + layer) * columns + i % columns] = of_layer[i];
    }
    return rows;
}

std::vector<int64_t> part_of(const std::vector<int64_t>& rows, size_t first, size_t count) {
    return {rows.begin() + static_cast<std::ptrdiff_t>(first),
            rows.begin() + static_cast<std::ptrdiff_t>(first + count)};
}

/// Sum of four uniform numbers: near normal, of variance 1/3.
float bell(const RandomStream& random, uint64_t i) {
    float sum = 0;
    for (uint32_t word : random.block(i).words) sum += static_cast<float>(word >> 8) * 0x1p-24f - 0.5f;
    return sum;
}

std::vector<Bf16> random_bf16(int64_t count, uint64_t stream, float scale = 1, float mean = 0) {
    std::vector<Bf16> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = bf16_from_float(mean + scale * bell({21, stream}, i));
    return values;
}

/// Random weights of a layer, and what goes in. Owns what the weights refer to.
struct Case {
    EngramShape shape;
    int64_t tokens, table_rows = 97;
    std::vector<E4m3> table_codes, wkv_codes;
    std::vector<E8m0> table_scales, wkv_scales;
    std::vector<Bf16> q_weight, k_weight, h;
    std::vector<int64_t> row_ids;

    Case(const EngramShape& of, int64_t token_count) : shape(of), tokens(token_count) {
        const int64_t outputs = (shape.streams + 1) * shape.hidden_size,
                      inputs = shape.columns * shape.head_dim;
        const auto codes = [](int64_t count, uint64_t stream) {
            std::vector<E4m3> result(static_cast<size_t>(count));
            for (size_t i = 0; i < result.size(); ++i)
                result[i] = e4m3_from_float_saturating(200 * bell({21, stream}, i));
            return result;
        };
        const auto scales = [](int64_t count, uint64_t stream, uint8_t smallest) {
            std::vector<E8m0> result(static_cast<size_t>(count));
            for (size_t i = 0; i < result.size(); ++i)
                result[i] = {static_cast<uint8_t>(smallest + RandomStream{21, stream}.word(i) % 4)};
            return result;
        };
        table_codes = codes(table_rows * shape.head_dim, 1);
        table_scales = scales(table_rows * shape.head_dim / 32, 2, 118);
        wkv_codes = codes(outputs * inputs, 3);
        wkv_scales = scales((outputs + 31) / 32 * (inputs / 32), 4, 114);
        q_weight = random_bf16(shape.streams * shape.hidden_size, 5, 0.5f, 1);
        k_weight = random_bf16(shape.streams * shape.hidden_size, 6, 0.5f, 1);
        h = random_bf16(tokens * shape.streams * shape.hidden_size, 7, 2);
        row_ids.resize(static_cast<size_t>(tokens * shape.columns));
        for (size_t i = 0; i < row_ids.size(); ++i)
            row_ids[i] = RandomStream{21, 8}.word(i) % static_cast<uint32_t>(table_rows);
    }

    EngramWeights weights() const {
        return {"layers.1.engram",
                table_rows,
                table_codes,
                table_scales,
                {"layers.1.engram.wkv.weight", (shape.streams + 1) * shape.hidden_size,
                 shape.columns * shape.head_dim, wkv_codes, wkv_scales},
                q_weight,
                k_weight};
    }
};

struct Run {
    EngramResult result;
    std::vector<Bf16> h;
};

Run run(const Case& c, Arithmetic arithmetic, std::span<const uint8_t> dead = {}) {
    std::vector<Bf16> h = c.h;
    EngramResult result = engram(arithmetic, c.row_ids, c.tokens, c.weights(), c.shape, dead, h);
    return {std::move(result), std::move(h)};
}

template <class T>
std::span<const T> slice(const std::vector<T>& values, int64_t index, int64_t width) {
    return std::span(values).subspan(static_cast<size_t>(index * width), static_cast<size_t>(width));
}

/// A sum in double and what fp32 may lose of it in these lanes: u |lane| after each FMA, u |sum| at each
/// node.
struct BoundedSum {
    double sum, loss;
};
constexpr double u = 0x1p-24, slack = 1 + 0x1p-10;

BoundedSum bounded_sum(std::span<const double> terms) {
    const Lanes lanes = sum_order(SumOperator::engram_gate, std::ssize(terms), 1).lanes;
    std::vector<double> sums(static_cast<size_t>(lanes.count), 0.0);
    double loss = 0;
    for (size_t e = 0; e < terms.size(); ++e) {
        double& lane = sums[static_cast<size_t>(lanes.lane_of(static_cast<int64_t>(e)))];
        lane += terms[e];
        loss += u * std::abs(lane);
    }
    for (; sums.size() > 1; sums.resize(sums.size() / 2))
        for (size_t i = 0; i < sums.size() / 2; ++i) {
            sums[i] = sums[2 * i] + sums[2 * i + 1];
            loss += u * std::abs(sums[i]);
        }
    return {sums[0], loss};
}

/// The gate of truth, and how far the fp32 one may be from it.
struct BoundedGate {
    double gate, bound;
};

BoundedGate truth_of_gate(std::span<const Bf16> h, std::span<const Bf16> key, std::span<const Bf16> q_weight,
                          std::span<const Bf16> k_weight, double norm_eps) {
    const auto row = [](std::span<const Bf16> values) {
        truth::Matrix result(1, std::ssize(values));
        for (Eigen::Index d = 0; d < result.size(); ++d)
            result(0, d) = static_cast<double>(to_float(values[static_cast<size_t>(d)]));
        return result;
    };
    const truth::Matrix x = row(h), k = row(key), q_gain = row(q_weight), k_gain = row(k_weight);
    const double gate = truth::engram_gate(x, k, q_gain, k_gain, norm_eps)(0, 0);

    const double channels = static_cast<double>(h.size());
    const auto bounded = [](const truth::Matrix& terms) {
        return bounded_sum({terms.data(), static_cast<size_t>(terms.size())});
    };
    // 1 / sqrt(sum / D + eps): the sum's loss and the roundings of quotient and sum, halved by the root; the
    // root's and the reciprocal's.
    double relative = 0, rstd = 1;
    for (const truth::Matrix* side : {&x, &k}) {
        const BoundedSum squares = bounded(side->cwiseProduct(*side));
        const double mean = squares.sum / channels + norm_eps;
        rstd /= std::sqrt(mean);
        relative += squares.loss / channels / mean / 2 + u + 2 * u;
    }
    // h times both gains is rounded once.
    const truth::Matrix terms = x.cwiseProduct(q_gain).cwiseProduct(k_gain).cwiseProduct(k);
    const BoundedSum raw = bounded(terms);
    const double scale = rstd / std::sqrt(channels), dot = raw.sum * scale;
    // Three products, and D^-0.5 itself.
    const double dot_loss =
        (raw.loss + u * terms.cwiseAbs().sum()) * scale + std::abs(dot) * (relative + 4 * u);
    const double root = std::sqrt(std::max(std::abs(dot), 1e-6));
    const double root_loss = dot_loss / (2 * root) + 2 * u * root;  // 1e-6 in fp32 is as far off
    // exp within one ulp, then a sum and a quotient.
    return {gate, slack * gate * ((1 - gate) * (root_loss + 2 * u) + 2 * u)};
}

std::vector<float> gains(std::span<const Bf16> q_weight, std::span<const Bf16> k_weight) {
    std::vector<float> result(q_weight.size());
    std::ranges::transform(q_weight, k_weight, result.begin(),
                           [](Bf16 q, Bf16 k) { return to_float(q) * to_float(k); });
    return result;
}

}  // namespace

TEST_CASE("engram: multipliers, primes and offsets of the released model") {
    const EngramHash hash = engram_hash(preset("real"));
    CHECK(hash.columns() == 24);
    REQUIRE(hash.layers.size() == 2);
    CHECK(hash.layers[0].multipliers ==
          std::vector<int64_t>{76632096046245, 4839876093313, 35959672319349, 73987337458391});
    CHECK(hash.layers[1].multipliers ==
          std::vector<int64_t>{67716810739261, 51510806800915, 30921347202721, 82619226485591});
    std::vector<int64_t> last_digits;
    for (int64_t prime : hash.layers[0].primes) last_digits.push_back(prime - 16000000);
    CHECK(last_digits == std::vector<int64_t>{57,  79,  81,  97,  121, 129, 133, 183, 189, 207, 211, 253,
                                              277, 289, 307, 321, 339, 381, 393, 399, 403, 409, 447, 463});
    last_digits.clear();
    for (int64_t prime : hash.layers[1].primes) last_digits.push_back(prime - 16000000);
    CHECK(last_digits == std::vector<int64_t>{477, 487, 499, 507, 511, 573, 609, 627, 667, 669, 693, 697,
                                              711, 729, 759, 769, 781, 799, 813, 819, 841, 877, 879, 889});
    CHECK(hash.layers[0].offsets.back() == 368005705);
    CHECK(hash.layers[1].offsets.back() == 368015793);
    CHECK(part_of(hash.layers[0].offsets, 0, 9) == std::vector<int64_t>{0, 16000057, 32000136, 48000217,
                                                                        64000314, 80000435, 96000564,
                                                                        112000697, 128000880});
}

TEST_CASE(
    "engram: a hash whose rows are not those of the table is refused (sums of primes, no Engram, C of "
    "2^30)") {
    ModelConfig config = preset("real");
    config.engram->num_embeddings[1] += 1;
    CHECK_THROWS_WITH_AS(engram_hash(config), doctest::Contains("384016682"), UserError);
    config = preset("real");
    config.engram->vocab_size -= 1;  // still the same first prime
    CHECK_NOTHROW(engram_hash(config));
    config.engram->vocab_size = 16000058;
    CHECK_THROWS_AS(engram_hash(config), UserError);
    config = preset("real");
    config.engram->compressed_vocab_size = 1 << 30;
    CHECK_THROWS_AS(engram_hash(config), UserError);
    config.engram.reset();
    CHECK_THROWS_AS(engram_hash(config), UserError);
    CHECK_THROWS_AS(TokenMap::without_tokenizer(config), UserError);
    CHECK_THROWS_AS(engram_shape(config), UserError);
}

TEST_CASE("engram: rows of two tokens have the published hashes (ids 0, 3; SHA-256 of int64)") {
    const EngramHash hash = engram_hash(preset("real"));
    CHECK(sha256({}) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    const std::vector<int32_t> ids{0, 3};
    const std::vector<int64_t> layer1 = engram_row_ids(hash, 0, 2, {}, ids),
                               layer14 = engram_row_ids(hash, 1, 2, {}, ids);
    CHECK(sha256_of(all_rows(hash, 2, ids)) ==
          "f5a64799492bea90bc6d87f0cb8a67bb983441e1cd9c12ec2e7b8df6cbcfee1d");
    CHECK(sha256_of(layer1) == "8e0187ea859a7db65517a540eb5210457ec907fd0b2f44042d830366cbedbda5");
    CHECK(sha256_of(layer14) == "33e046238287e6e8b7c3466bdb4b7b47182ad19f9115afac8a1983ede219ba80");
    CHECK(part_of(layer1, 0, 4) == std::vector<int64_t>{5702652, 24393184, 39183301, 61503783});
    CHECK(part_of(layer14, 20, 4) == std::vector<int64_t>{328367036, 349372619, 363873742, 372375971});
    CHECK(part_of(layer1, 24, 3) == std::vector<int64_t>{13136173, 17031479, 36294826});
    // All slots padded: the only id is dead, or is the pad.
    for (int32_t id : {engram_dead, 2}) {
        const std::vector<int64_t> rows = all_rows(hash, 2, {&id, 1});
        CHECK(part_of(rows, 0, 4) == std::vector<int64_t>{4299726, 29253038, 43157972, 58397134});
        CHECK(part_of(rows, 22, 2) == std::vector<int64_t>{365224186, 370096053});
        CHECK(part_of(rows, 24, 2) == std::vector<int64_t>{6788701, 28249242});
        CHECK(part_of(rows, 46, 2) == std::vector<int64_t>{363928019, 381853422});
    }
}

TEST_CASE("engram: rows of a published test with a dead position (F1, F2, F3; SHA-256 of int32)") {
    ModelConfig config = preset("real");
    const EngramHash hash = engram_hash(config);
    config.vocab_size = 10;
    const TokenMap map({0, 1, 2, 3, 3, 5, 6, 7, 99091, 2}, config);
    CHECK(map.pad() == 2);
    const auto rows_of = [&](const std::vector<int32_t>& tokens, const std::vector<uint8_t>& image = {}) {
        const std::vector<int64_t> rows = all_rows(hash, map.pad(), map.compress(tokens, image));
        return std::vector<int32_t>(rows.begin(), rows.end());
    };
    const std::vector<int32_t> f1 = rows_of({0, 1, 2, 3, 4, 5, 6, 9});
    const std::vector<int32_t> f2 = rows_of({0, 1, 2, 3, 4, 5, 6, 9}, {0, 0, 0, 1, 0, 0, 0, 0});
    CHECK(sha256_of(f1) == "66db30d48c026b2023f77501eecdfc11e75cd578ad151595b8cea1941d6c3d96");
    CHECK(sha256_of(f2) == "dca3cc49fa6a1ae4223d37ffe0f35ae48406bd36a471dde66d143ecd1903f5b3");
    CHECK(sha256_of(rows_of({3, 5, 6, 8})) ==
          "bceda83a71ed7732ea6d0f74771d595f0f562601ea64124548fabd4756418e1d");
    for (int64_t position = 0; position < 8; ++position) {
        CAPTURE(position);
        CHECK(std::ranges::equal(slice(f1, position, 48), slice(f2, position, 48)) ==
              (position < 3 || position > 6));
    }
}

TEST_CASE("engram: rows of five ids (text model 18.4; the largest id)") {
    const EngramHash hash = engram_hash(preset("real"));
    const std::vector<int32_t> ids{5, 17, 99, 1234, 99091};
    const std::array<std::vector<int64_t>, 2> first{
        std::vector<int64_t>{5412672, 127351390, 143494632, 247008214, 256353435, 372009279},
        std::vector<int64_t>{6939818, 119840903, 131576092, 243164617, 268363546, 382274687}};
    const std::array<std::vector<int64_t>, 2> last{
        std::vector<int64_t>{7841506, 127974346, 134978181, 243429729, 271536431, 379584336},
        std::vector<int64_t>{3315102, 127296527, 130509870, 240522805, 260452148, 375629892}};
    for (size_t layer = 0; layer < 2; ++layer) {
        const std::vector<int64_t> rows = engram_row_ids(hash, layer, 2, {}, ids);
        size_t i = 0;
        for (size_t column : std::array<size_t, 6>{0, 7, 8, 15, 16, 23}) {
            CAPTURE(layer);
            CAPTURE(column);
            CHECK(rows[column] == first[layer][i]);
            CHECK(rows[4 * 24 + column] == last[layer][i++]);
        }
    }
}

TEST_CASE("engram: the worked example (three ids, two heads, small primes)") {
    const EngramHash hash{3, 2, 10, {{0, {3, 5, 7}, {11, 13, 17, 19}, {0, 11, 24, 41}}}};
    const std::vector<int32_t> ids{4, 9, 6, engram_dead, 8};
    CHECK(engram_row_ids(hash, 0, 2, {}, ids) ==
          std::vector<int64_t>{6, 17, 32, 49, 4, 13, 25, 42, 8, 22, 25, 57, 1, 23, 26, 43, 7, 16, 35, 50});
}

TEST_CASE("engram: prefill, chunks and decode give the same rows (dead positions, every cut)") {
    for (const char* name : {"real", "tiny"}) {
        const ModelConfig& config = preset(name);
        const EngramHash hash = engram_hash(config);
        const TokenMap map = TokenMap::without_tokenizer(config);
        constexpr size_t length = 24;
        std::vector<int32_t> tokens(length);
        std::vector<uint8_t> image(length, 0);
        for (size_t i = 0; i < length; ++i)
            tokens[i] =
                static_cast<int32_t>(RandomStream{21, 9}.word(i) % static_cast<uint64_t>(config.vocab_size));
        image[6] = image[7] = image[8] = image[9] = image[12] = image[17] = 1;
        const std::vector<int32_t> ids = map.compress(tokens, image);
        for (size_t layer = 0; layer < hash.layers.size(); ++layer) {
            const std::vector<int64_t> whole = engram_row_ids(hash, layer, map.pad(), {}, ids);
            for (size_t chunk : std::array<size_t, 7>{1, 2, 3, 4, 5, 7, 23}) {
                std::vector<int64_t> joined, from_least_history;
                for (size_t at = 0; at < length; at += chunk) {
                    const auto part = std::span<const int32_t>(ids).subspan(at, std::min(chunk, length - at));
                    const auto before = std::span<const int32_t>(ids).first(at);
                    const auto rows = engram_row_ids(hash, layer, map.pad(), before, part);
                    joined.insert(joined.end(), rows.begin(), rows.end());
                    const auto least =
                        engram_row_ids(hash, layer, map.pad(), before.last(std::min<size_t>(3, at)), part);
                    from_least_history.insert(from_least_history.end(), least.begin(), least.end());
                }
                CAPTURE(name);
                CAPTURE(layer);
                CAPTURE(chunk);
                CHECK(joined == whole);
                CHECK(from_least_history == whole);
            }
        }
    }
}

TEST_CASE("engram: rows lie in their column's part of the table (random ids)") {
    const EngramHash hash = engram_hash(preset("real"));
    std::vector<int32_t> ids(4000);
    for (size_t i = 0; i < ids.size(); ++i)
        ids[i] = static_cast<int32_t>(RandomStream{21, 10}.word(i) % 99092);
    for (size_t layer = 0; layer < 2; ++layer) {
        const std::vector<int64_t> rows = engram_row_ids(hash, layer, 2, {}, ids);
        int64_t outside = 0;
        for (size_t i = 0; i < rows.size(); ++i) {
            const int64_t in_column = rows[i] - hash.layers[layer].offsets[i % 24];
            outside += in_column < 0 || in_column >= hash.layers[layer].primes[i % 24];
        }
        CHECK(outside == 0);
    }
}

TEST_CASE("engram: rows are those of truth (random ids, dead positions)") {
    for (const char* name : {"real", "tiny"}) {
        const EngramHash hash = engram_hash(preset(name));
        std::vector<int32_t> ids(500);
        for (size_t i = 0; i < ids.size(); ++i) {
            const PhiloxBlock block = RandomStream{21, 14}.block(i);
            ids[i] = block.words[0] % 5 == 0
                         ? engram_dead
                         : static_cast<int32_t>(block.words[1] %
                                                static_cast<uint64_t>(hash.compressed_vocab_size));
        }
        const std::vector<int64_t> history(ids.begin(), ids.end());
        for (size_t layer = 0; layer < 2; ++layer) {
            const EngramLayerHash& of = hash.layers[layer];
            std::vector<int64_t> expected;
            for (const auto& row :
                 truth::engram_row_ids(history, 500, hash.heads, 3, {of.multipliers, of.primes, of.offsets}))
                expected.insert(expected.end(), row.begin(), row.end());
            CAPTURE(name);
            CAPTURE(layer);
            CHECK(engram_row_ids(hash, layer, 3, {}, ids) == expected);
        }
    }
}

TEST_CASE("engram: token ids outside the vocabulary are refused (-1, 129280)") {
    const TokenMap map = TokenMap::without_tokenizer(preset("real"));
    const std::vector<int32_t> ends{0, 99091, 99092, 129279};
    CHECK(map.compress(ends) == std::vector<int32_t>{0, 99091, 0, 30187});
    CHECK(map.pad() == 2);
    const std::vector<uint8_t> image{1};
    for (int32_t token :
         {-1, 129280, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
        CAPTURE(token);
        CHECK_THROWS_WITH_AS(map.compress({&token, 1}), doctest::Contains("129279"), UserError);
        CHECK_THROWS_AS(map.compress({&token, 1}, image), UserError);
    }
    CHECK_THROWS_AS(map.compress(ends, image), UserError);
    const EngramHash hash = engram_hash(preset("real"));
    const std::vector<int32_t> good{5};
    for (int32_t id : {-2, 99092}) {
        CAPTURE(id);
        CHECK_THROWS_AS(engram_row_ids(hash, 0, 2, {}, {&id, 1}), UserError);
        CHECK_THROWS_AS(engram_row_ids(hash, 0, 2, {&id, 1}, good), UserError);
        CHECK_THROWS_AS(engram_row_ids(hash, 0, id, {}, good), UserError);
    }
    CHECK_THROWS_AS(engram_row_ids(hash, 0, engram_dead, {}, good), UserError);
}

TEST_CASE("engram: token maps of another size or range are refused") {
    const ModelConfig& config = preset("tiny");
    CHECK_NOTHROW(TokenMap(std::vector<int32_t>(512, 399), config));
    CHECK_THROWS_AS(TokenMap(std::vector<int32_t>(511, 0), config), UserError);
    CHECK_THROWS_AS(TokenMap(std::vector<int32_t>(513, 0), config), UserError);
    for (int32_t wrong : {-1, 400}) {
        std::vector<int32_t> compressed(512, 0);
        compressed[300] = wrong;
        CHECK_THROWS_WITH_AS(TokenMap(compressed, config), doctest::Contains("token 300"), UserError);
    }
    ModelConfig sparse = config;
    sparse.engram->compressed_vocab_size = 256;  // the last token maps to 255
    CHECK_NOTHROW(TokenMap::without_tokenizer(sparse));
    sparse.engram->compressed_vocab_size = 255;
    CHECK_THROWS_AS(TokenMap::without_tokenizer(sparse), UserError);
}

TEST_CASE("engram: looked-up rows are code times scale in bf16 (every code and scale)") {
    constexpr int64_t rows = 256 * 256 / 64, dim = 64;
    std::vector<E4m3> codes(rows * dim);
    std::vector<E8m0> scales(rows * dim / 32);
    // Row r: codes 64 (r mod 4) .. + 63 under the scale r / 4.
    for (size_t i = 0; i < codes.size(); ++i) codes[i] = {static_cast<uint8_t>(i % 256)};
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = {static_cast<uint8_t>(i / 8)};
    std::vector<int64_t> ids(rows);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int64_t>(ids.size() - 1 - i);
    const EngramWeights weights{"layers.1.engram", rows, codes, scales, {}, {}, {}};
    const std::vector<Bf16> found = engram_lookup(ids, weights, dim);
    int64_t differing = 0;
    for (size_t i = 0; i < found.size(); ++i) {
        const size_t from = static_cast<size_t>(ids[i / dim]) * dim + i % dim;
        const Bf16 expected = bf16_from_float(to_float(codes[from]) * to_float(scales[from / 32]));
        differing += found[i] != expected;
        // Exact but at the ends: 448 * 2^127 overflows, and below 2^-133 bf16 has no numbers.
        if (scales[from / 32].bits >= 3 && scales[from / 32].bits <= 246 && (codes[from].bits & 0x7F) != 0x7F)
            differing +=
                std::ldexp(to_float(codes[from]), scales[from / 32].bits - 127) != to_float(found[i]);
    }
    CHECK(differing == 0);
}

TEST_CASE("engram: rows beyond 2^31 bytes are found (a table of the real size, mostly untouched memory)") {
    constexpr int64_t rows = 384006168, dim = 256;
    const auto map = [](int64_t bytes) {
        void* at = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        REQUIRE(at != MAP_FAILED);
        return static_cast<uint8_t*>(at);
    };
    uint8_t *codes = map(rows * dim), *scales = map(rows * dim / 32);
    const std::vector<int64_t> ids{0, 8388607, 8388608, 67108863, 67108864, rows - 1};
    for (size_t i = 0; i < ids.size(); ++i) {
        codes[ids[i] * dim] = static_cast<uint8_t>(0x38 + i);        // 1 + i / 8
        codes[ids[i] * dim + 255] = static_cast<uint8_t>(0xB8 + i);  // the same below zero
        scales[ids[i] * 8] = 127;
        scales[ids[i] * 8 + 7] = 128;
    }
    const EngramWeights weights{"layers.1.engram",
                                rows,
                                {reinterpret_cast<const E4m3*>(codes), static_cast<size_t>(rows * dim)},
                                {reinterpret_cast<const E8m0*>(scales), static_cast<size_t>(rows * dim / 32)},
                                {},
                                {},
                                {}};
    const std::vector<Bf16> found = engram_lookup(ids, weights, dim);
    for (size_t i = 0; i < ids.size(); ++i) {
        CAPTURE(ids[i]);
        const float one = 1 + static_cast<float>(i) / 8;
        CHECK(to_float(found[i * dim]) == one);
        CHECK(to_float(found[i * dim + 255]) == -2 * one);
        CHECK(to_float(found[i * dim + 1]) == 0);
    }
    munmap(codes, static_cast<size_t>(rows * dim));
    munmap(scales, static_cast<size_t>(rows * dim / 32));
}

TEST_CASE("engram: tables cut short or too long, and rows outside, are refused with nothing written") {
    const Case c({4, 64, 6, 32, 1e-20f}, 3);
    EngramWeights weights = c.weights();
    std::vector<Bf16> h = c.h;
    const auto refused = [&](const std::vector<int64_t>& ids, std::span<const uint8_t> dead = {}) {
        CHECK_THROWS_AS(engram(Arithmetic::exact, ids, c.tokens, weights, c.shape, dead, h), UserError);
        CHECK(h == c.h);
    };
    for (int64_t rows : {c.table_rows - 1, c.table_rows + 1}) {
        weights.table_rows = rows;
        refused(c.row_ids);
        weights = c.weights();
    }
    weights.table_codes = weights.table_codes.first(weights.table_codes.size() - 1);
    refused(c.row_ids);
    weights = c.weights();
    weights.table_scales = weights.table_scales.first(weights.table_scales.size() - 1);
    refused(c.row_ids);
    weights = c.weights();
    for (int64_t wrong : {int64_t{-1}, c.table_rows}) {
        std::vector<int64_t> ids = c.row_ids;
        ids[11] = wrong;
        refused(ids);
    }
    refused(std::vector<int64_t>(c.row_ids.begin(), c.row_ids.end() - 1));
    const std::vector<uint8_t> dead{0, 1};
    refused(c.row_ids, dead);
    weights.wkv.outputs -= 64;
    weights.wkv.codes =
        weights.wkv.codes.first(static_cast<size_t>(weights.wkv.outputs * weights.wkv.inputs));
    weights.wkv.scales = weights.wkv.scales.first(weights.wkv.scales.size() - 12);
    refused(c.row_ids);
    weights = c.weights();
    weights.q_weight = weights.q_weight.first(64);
    refused(c.row_ids);
    weights = c.weights();
    weights.k_weight = weights.k_weight.first(64);
    refused(c.row_ids);
    weights = c.weights();
    CHECK_NOTHROW(engram(Arithmetic::exact, c.row_ids, c.tokens, weights, c.shape, {}, h));
    CHECK(h != c.h);
}

TEST_CASE("engram: the gate at zero, at the clamp and beyond (0, -0, +-1e-7, +-1e-6, +-4, NaN)") {
    // sigmoid(0.001), to fp32 within an ulp or two; and its complement.
    const auto near = [](float gate, double expected) {
        return std::abs(static_cast<double>(gate) - expected) < 1e-7;
    };
    constexpr double above = 0.50024999997916667;
    for (float dot : {0.0f, 1e-7f, 1e-6f, 0x1p-149f}) {
        CAPTURE(dot);
        CHECK(near(engram_gate_of_dot(dot), above));
        CHECK(near(engram_gate_of_dot(-dot), 1 - above));
        CHECK(float_bits(engram_gate_of_dot(dot)) == float_bits(engram_gate_of_dot(0.0f)));
    }
    CHECK(engram_gate_of_dot(0.0f) != engram_gate_of_dot(-0.0f));
    CHECK(engram_gate_of_dot(2e-6f) > engram_gate_of_dot(1e-6f));
    CHECK(near(engram_gate_of_dot(4), 0.88079707797788243));
    CHECK(near(engram_gate_of_dot(-4), 0.11920292202211757));
    CHECK(engram_gate_of_dot(float_from_bits(0x7F800000)) == 1.0f);
    CHECK(engram_gate_of_dot(float_from_bits(0xFF800000)) == 0.0f);
    CHECK(float_bits(engram_gate_of_dot(float_from_bits(0xFFC00001))) == canonical_nan_bits);
}

TEST_CASE("engram: the published gate example (D = 4)") {
    const auto bf16 = [](const std::vector<float>& values) {
        std::vector<Bf16> result;
        for (float value : values) result.push_back(bf16_from_float(value));
        return result;
    };
    const std::vector<Bf16> h = bf16({1, -2, 0.5f, 3}), key = bf16({0.5f, 1, -1, 2}),
                            q = bf16({1, 0.5f, 2, 1}), k = bf16({2, 1, 1, 0.5f});
    const float gate = engram_gate(h, key, gains(q, k), 1e-20f);
    CHECK(std::abs(static_cast<double>(gate) - 0.65724431415) < 2e-7);
    const BoundedGate truth = truth_of_gate(h, key, q, k, 1e-20);
    CHECK(std::abs(truth.gate - 0.65724431415) < 1e-11);
    CHECK(std::abs(static_cast<double>(gate) - truth.gate) <= truth.bound);
}

TEST_CASE("engram: the gate is the written steps (sums by definition, one rounding each)") {
    struct Width {
        int64_t channels;
        int lanes;
    };
    for (const auto& [channels, lane_count] :
         {Width{32, 32}, {96, 128}, {1024, 1024}, {1056, 1024}, {5120, 1024}}) {
        const std::vector<Bf16> h = random_bf16(channels, 11, 3), key = random_bf16(channels, 12, 0.7f),
                                q = random_bf16(channels, 13, 1, 1);
        std::vector<float> weight, weighted;
        for (size_t d = 0; d < h.size(); ++d) {
            weight.push_back(to_float(q[d]) * 1.0078125f);
            weighted.push_back(to_float(h[d]) * weight[d]);
        }
        const Lanes lanes{LaneArrangement::interleaved, lane_count};
        const float n = static_cast<float>(channels);
        const float rx = 1 / std::sqrt(sum_of_squares_by_definition(lanes, h.data(), channels) / n + 1e-20f);
        const float rk =
            1 / std::sqrt(sum_of_squares_by_definition(lanes, key.data(), channels) / n + 1e-20f);
        const float raw = dot_by_definition(lanes, weighted.data(), key.data(), channels);
        const float inverse_root = channels == 5120
                                       ? float_from_bits(0x3C64F92E)
                                       : static_cast<float>(1 / std::sqrt(static_cast<double>(n)));
        const float rstd = rx * rk, dot = raw * rstd * inverse_root;
        const std::string shown = fmt::format("{} channels", channels);
        INFO(shown);
        CHECK(float_bits(engram_gate(h, key, weight, 1e-20f)) == float_bits(engram_gate_of_dot(dot)));
    }
}

TEST_CASE("engram: gates stay within the bound of double and reach a hundredth of it") {
    double worst = 0;
    for (int64_t channels : {32, 256, 1056, 5120}) {
        for (uint64_t i = 0; i < 24; ++i) {
            const float scale = std::ldexp(1.0f, static_cast<int>(i % 9) - 4);
            const std::vector<Bf16> h = random_bf16(channels, 100 + i, scale),
                                    key = random_bf16(channels, 200 + i),
                                    q = random_bf16(channels, 300 + i, 1, 1),
                                    k = random_bf16(channels, 400 + i, 1, 1);
            const float gate = engram_gate(h, key, gains(q, k), 1e-20f);
            const BoundedGate truth = truth_of_gate(h, key, q, k, static_cast<double>(1e-20f));
            const double share = std::abs(static_cast<double>(gate) - truth.gate) / truth.bound;
            worst = std::max(worst, share);
            CAPTURE(channels);
            CAPTURE(i);
            CAPTURE(share);
            CHECK(share <= 1);
        }
    }
    CAPTURE(worst);
    CHECK(worst >= 0.01);
}

TEST_CASE(
    "engram: every part of a whole layer is where it belongs (keys copy-major, one value, residual once)") {
    const Case c({4, 96, 6, 32, 1e-20f}, 5);
    for (Arithmetic arithmetic : arithmetics) {
        const Run r = run(c, arithmetic);
        CHECK(r.result.rows == engram_lookup(c.row_ids, c.weights(), 32));
        std::vector<Bf16> kv(r.result.kv.size());
        linear_fp8(arithmetic, SumOperator::engram_wkv, r.result.rows, c.tokens, c.weights().wkv,
                   std::span<Bf16>(kv));
        CHECK(r.result.kv == kv);
        for (int64_t token = 0; token < c.tokens; ++token)
            for (int64_t stream = 0; stream < 4; ++stream) {
                const std::vector<float> weight =
                    gains(slice(c.q_weight, stream, 96), slice(c.k_weight, stream, 96));
                const auto h = slice(c.h, token * 4 + stream, 96), out = slice(r.h, token * 4 + stream, 96);
                const float gate = r.result.gate[static_cast<size_t>(token * 4 + stream)];
                const std::string shown =
                    fmt::format("{}, token {}, stream {}", arithmetic_name(arithmetic), token, stream);
                INFO(shown);
                CHECK(float_bits(gate) ==
                      float_bits(engram_gate(h, slice(kv, token * 5 + stream, 96), weight, 1e-20f)));
                const auto value = slice(kv, token * 5 + 4, 96);
                int64_t differing = 0;
                for (size_t d = 0; d < 96; ++d) {
                    const float added = gate * to_float(value[d]);
                    differing += out[d] != bf16_from_float(to_float(h[d]) + added);
                }
                CHECK(differing == 0);
            }
    }
}

TEST_CASE("engram: dead positions keep their bytes, others do not notice (mixed mask; -0 and NaN payloads)") {
    Case c({4, 64, 6, 32, 1e-20f}, 6);
    const std::vector<uint8_t> dead{0, 1, 0, 1, 1, 0};
    const std::array<uint16_t, 4> patterns{0x8000, 0x7FC1, 0xFFFF, 0xFF80};
    for (size_t i = 0; i < 4 * 64; ++i) c.h[4 * 64 + i] = {patterns[i % 4]};
    for (Arithmetic arithmetic : arithmetics) {
        const Run all = run(c, arithmetic), some = run(c, arithmetic, dead);
        for (int64_t token = 0; token < 6; ++token) {
            CAPTURE(token);
            const bool is_dead = dead[static_cast<size_t>(token)] != 0;
            CHECK(std::ranges::equal(slice(some.h, token, 256), slice(is_dead ? c.h : all.h, token, 256)));
            CHECK(std::ranges::all_of(slice(some.result.gate, token, 4),
                                      [&](float g) { return (g == 0) == is_dead; }));
        }
    }
    const std::vector<uint8_t> everywhere(6, 1);
    CHECK(run(c, Arithmetic::exact, everywhere).h == c.h);
}

TEST_CASE("engram: a token's bits depend on neither its neighbours nor the thread count (1, 2, 7)") {
    const Case c({4, 96, 6, 32, 1e-20f}, 19);
    const int threads = omp_get_max_threads();
    for (Arithmetic arithmetic : arithmetics) {
        const Run together = run(c, arithmetic);
        for (int64_t token : {0, 7, 18}) {
            Case alone = c;
            alone.tokens = 1;
            const auto h = slice(c.h, token, 4 * 96);
            const auto ids = slice(c.row_ids, token, 6);
            alone.h.assign(h.begin(), h.end());
            alone.row_ids.assign(ids.begin(), ids.end());
            CAPTURE(token);
            CHECK(std::ranges::equal(run(alone, arithmetic).h, slice(together.h, token, 4 * 96)));
        }
        for (int count : {1, 2, 7}) {
            omp_set_num_threads(count);
            CAPTURE(count);
            CHECK(run(c, arithmetic).h == together.h);
        }
        omp_set_num_threads(threads);
    }
}
