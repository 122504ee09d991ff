// Engram against the released inference code: recorded inputs and outputs of a tiny model (official_tiny; the
// folder is TOUCHSTONE_PARITY). Nobody of this project wrote what made them.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <string>
#include <vector>

#include "reference/engram.h"
#include "reference/io/safetensors.h"
#include "tests/bf16_units.h"
#include "tests/official_tiny.h"

using namespace touchstone;

namespace {

constexpr std::array engram_layers{1, 4};

const ModelConfig& tiny() {
    static const ModelConfig config = load_config(official_tiny::folder() / "config.json");
    return config;
}

/// Compressed ids of the recorded tokens, prefill and decode in a row.
std::vector<int32_t> recorded_ids(const TokenMap& map) {
    return map.compress(official_tiny::file("alternatives").values<int32_t>("tables/tokens", "I32"));
}

/// A recorded run: where its tensors lie and which positions it covers.
struct Episode {
    const SafetensorsFile& file;
    const char* name;
    int64_t first, tokens;

    std::string tensor(int layer, const char* what) const {
        return official_tiny::layer_tensor(name, layer, what);
    }
};

std::vector<Episode> episodes() {
    return {{official_tiny::file("prefill100"), "prefill100", 0, 100},
            {official_tiny::file("decode100_own"), "decode100_own", 100, 24}};
}

/// The weights of an Engram layer of the checkpoint, with what they refer to.
struct LayerWeights {
    std::string name;
    std::vector<E4m3> table_codes, wkv_codes;
    std::vector<E8m0> table_scales, wkv_scales;
    std::vector<Bf16> q_weight, k_weight;
    EngramWeights weights;

    explicit LayerWeights(size_t index) : name(fmt::format("layers.{}.engram", engram_layers.at(index))) {
        const SafetensorsFile& model = official_tiny::file("model");
        table_codes = model.values<E4m3>(name + ".embed.weight", "F8_E4M3");
        table_scales = model.values<E8m0>(name + ".embed.scale", "F8_E8M0");
        wkv_codes = model.values<E4m3>(name + ".wkv.weight", "F8_E4M3");
        wkv_scales = model.values<E8m0>(name + ".wkv.scale", "F8_E8M0");
        q_weight = model.values<Bf16>(name + ".q_weight", "BF16");
        k_weight = model.values<Bf16>(name + ".k_weight", "BF16");
        const std::vector<int64_t>& projection = model.tensor(name + ".wkv.weight").shape;
        weights = {name,
                   tiny().engram->num_embeddings[index],
                   table_codes,
                   table_scales,
                   {name, projection[0], projection[1], wkv_codes, wkv_scales},
                   q_weight,
                   k_weight};
    }
};

struct Pair {
    std::vector<Bf16> ours, theirs;
};

/// Gates within 1e-5, streams by check_bf16's rule, for the tokens whose projection is the recorded one. For
/// another, at most one in a hundred, a step of one key moves all four gates: they are within 1e-3.
void check_gated(const Pair& kv, const Pair& streams, const std::vector<float>& ours,
                 const std::vector<float>& theirs) {
    constexpr int64_t copies = 4;
    REQUIRE(ours.size() == theirs.size());
    const int64_t tokens = std::ssize(ours) / copies;
    int64_t other = 0;
    double worst = 0, worst_of_other = 0;
    Pair same;
    for (int64_t token = 0; token < tokens; ++token) {
        const auto part = [&](const std::vector<Bf16>& all) {
            const size_t width = all.size() / static_cast<size_t>(tokens);
            return std::span(all).subspan(static_cast<size_t>(token) * width, width);
        };
        const bool equal = std::ranges::equal(part(kv.ours), part(kv.theirs));
        other += !equal;
        for (size_t i = static_cast<size_t>(token * copies); i < static_cast<size_t>((token + 1) * copies);
             ++i) {
            const double gate = static_cast<double>(theirs[i]);
            double& largest = equal ? worst : worst_of_other;
            largest = std::max(largest, std::abs(static_cast<double>(ours[i]) - gate) / gate);
        }
        if (!equal) continue;
        same.ours.insert(same.ours.end(), part(streams.ours).begin(), part(streams.ours).end());
        same.theirs.insert(same.theirs.end(), part(streams.theirs).begin(), part(streams.theirs).end());
    }
    CAPTURE(worst);
    CAPTURE(worst_of_other);
    CHECK(worst <= 1e-5);
    CHECK(worst_of_other <= 1e-3);
    CHECK(other * 100 <= tokens);
    check_bf16(same.ours, same.theirs, "streams");
}

}  // namespace

TEST_CASE("engram: the tiny model's token map, multipliers, primes and offsets are the recorded ones") {
    const EngramHash hash = engram_hash(tiny());
    REQUIRE(hash.layers.size() == 2);
    for (size_t layer = 0; layer < 2; ++layer)
        CHECK(std::ranges::equal(hash.layers[layer].multipliers, official_tiny::engram_multipliers[layer]));
    std::vector<int32_t> primes, offsets;
    for (const EngramLayerHash& layer : hash.layers) {
        primes.insert(primes.end(), layer.primes.begin(), layer.primes.end());
        offsets.insert(offsets.end(), layer.offsets.begin(), layer.offsets.end());
    }
    CHECK(primes == official_tiny::file("alternatives").values<int32_t>("tables/engram.primes", "I32"));
    CHECK(offsets == official_tiny::file("alternatives").values<int32_t>("tables/engram.offsets", "I32"));
    std::vector<int32_t> tokens(512);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
    CHECK(TokenMap::without_tokenizer(tiny()).compress(tokens) ==
          official_tiny::file("alternatives").values<int32_t>("tables/token_map", "I32"));
}

TEST_CASE("engram: row ids are the released code's (prefill, and decode from a history of three)") {
    const EngramHash hash = engram_hash(tiny());
    const TokenMap map(official_tiny::file("alternatives").values<int32_t>("tables/token_map", "I32"),
                       tiny());
    const std::vector<int32_t> ids = recorded_ids(map);
    for (size_t layer = 0; layer < engram_layers.size(); ++layer)
        for (const Episode& episode : episodes()) {
            const auto theirs =
                episode.file.values<int32_t>(episode.tensor(engram_layers[layer], "engram.row_ids"), "I32");
            const auto at = [&](int64_t first, int64_t count) {
                return std::span<const int32_t>(ids).subspan(static_cast<size_t>(first),
                                                             static_cast<size_t>(count));
            };
            std::vector<int64_t> ours;
            if (episode.first == 0) ours = engram_row_ids(hash, layer, map.pad(), {}, at(0, episode.tokens));
            for (int64_t p = episode.first; episode.first > 0 && p < episode.first + episode.tokens; ++p) {
                const std::vector<int64_t> rows =
                    engram_row_ids(hash, layer, map.pad(), at(p - 3, 3), at(p, 1));
                ours.insert(ours.end(), rows.begin(), rows.end());
            }
            CAPTURE(episode.name);
            CAPTURE(layer);
            CHECK(std::ranges::equal(ours, theirs));
        }
}

TEST_CASE("engram: rows, projection, gate and streams are the released code's (prefill and decode)") {
    const EngramShape shape = engram_shape(tiny());
    for (Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper})
        for (size_t index = 0; index < engram_layers.size(); ++index)
            for (const Episode& episode : episodes()) {
                const int layer = engram_layers[index];
                const auto bf16 = [&](const char* what) {
                    return episode.file.values<Bf16>(episode.tensor(layer, what), "BF16");
                };
                const auto ids = episode.file.values<int32_t>(episode.tensor(layer, "engram.row_ids"), "I32");
                const LayerWeights storage(index);
                auto h = bf16("engram.x_in");
                const EngramResult result = engram(arithmetic, std::vector<int64_t>(ids.begin(), ids.end()),
                                                   episode.tokens, storage.weights, shape, {}, h);
                const std::string shown =
                    fmt::format("{}, {}, layer {}", arithmetic_name(arithmetic), episode.name, layer);
                INFO(shown);
                CHECK(result.rows == bf16("engram.rows"));
                check_bf16(result.kv, bf16("engram.kv"), shown + ", kv");
                check_gated({result.kv, bf16("engram.kv")}, {h, bf16("x_in")}, result.gate,
                            episode.file.values<float>(episode.tensor(layer, "engram.gate"), "F32"));
            }
}
