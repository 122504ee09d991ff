// Engram against the released inference code: recorded inputs and outputs of a tiny model (official_tiny; the
// folder is TOUCHSTONE_PARITY). Nobody of this project wrote what made them.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "reference/engram.h"
#include "reference/io/safetensors.h"

using namespace touchstone;

namespace {

constexpr int skipped = 77;
constexpr std::array engram_layers{1, 4};

/// The checkpoint, the prefill of 100 tokens, the 24 steps after it, and the tables.
struct Recorded {
    ModelConfig config;
    SafetensorsFile model, prefill, decode, tables;
};

const Recorded& recorded() {
    static const Recorded files = [] {
        const char* variable = std::getenv("TOUCHSTONE_PARITY");
        const std::filesystem::path folder =
            std::filesystem::path(variable != nullptr ? variable : TOUCHSTONE_PARITY) / "official_tiny";
        if (!std::filesystem::exists(folder / "prefill100.safetensors")) {
            std::printf("no %s: skipped; set TOUCHSTONE_PARITY\n",
                        (folder / "prefill100.safetensors").c_str());
            std::exit(skipped);
        }
        return Recorded{load_config(folder / "config.json"), SafetensorsFile(folder / "model.safetensors"),
                        SafetensorsFile(folder / "prefill100.safetensors"),
                        SafetensorsFile(folder / "decode100_own.safetensors"),
                        SafetensorsFile(folder / "alternatives.safetensors")};
    }();
    return files;
}

/// Compressed ids of the recorded tokens, prefill and decode in a row.
std::vector<int32_t> recorded_ids(const TokenMap& map) {
    return map.compress(recorded().tables.values<int32_t>("tables/tokens", "I32"));
}

/// A recorded run: where its tensors lie and which positions it covers.
struct Episode {
    const SafetensorsFile& file;
    const char* name;
    int64_t first, tokens;

    std::string tensor(int layer, const char* what) const {
        return fmt::format("{}/L{:02}.{}", name, layer, what);
    }
};

std::vector<Episode> episodes() {
    return {{recorded().prefill, "prefill100", 0, 100}, {recorded().decode, "decode100_own", 100, 24}};
}

/// Codes of bf16 in the order of their values, so that neighbours are one apart.
int32_t ordered(Bf16 x) {
    return x.bits & 0x8000 ? -static_cast<int32_t>(x.bits & 0x7FFF) : static_cast<int32_t>(x.bits);
}

/// At most one element in a hundred differs, each by one unit in the last place.
void check_bf16(const std::vector<Bf16>& ours, const std::vector<Bf16>& theirs, const std::string& name) {
    REQUIRE(ours.size() == theirs.size());
    int64_t differing = 0;
    int32_t worst = 0;
    for (size_t i = 0; i < ours.size(); ++i) {
        const int32_t distance = std::abs(ordered(ours[i]) - ordered(theirs[i]));
        differing += distance != 0;
        worst = std::max(worst, distance);
    }
    const std::string shown =
        fmt::format("{}: {} of {} differ, by at most {} units", name, differing, ours.size(), worst);
    INFO(shown);
    CHECK(differing * 100 <= std::ssize(ours));
    CHECK(worst <= 1);
}

}  // namespace

TEST_CASE("engram: the tiny model's token map, multipliers, primes and offsets are the recorded ones") {
    const Recorded& r = recorded();
    const EngramHash hash = engram_hash(r.config);
    REQUIRE(hash.layers.size() == 2);
    CHECK(hash.layers[0].multipliers ==
          std::vector<int64_t>{18984069153536581, 1198982504596559, 8908289623672409, 18328883108567563});
    CHECK(hash.layers[1].multipliers ==
          std::vector<int64_t>{20378323963399201, 1248012217874625, 18246170261325197, 4695688200551669});
    std::vector<int32_t> primes, offsets;
    for (const EngramLayerHash& layer : hash.layers) {
        primes.insert(primes.end(), layer.primes.begin(), layer.primes.end());
        offsets.insert(offsets.end(), layer.offsets.begin(), layer.offsets.end());
    }
    CHECK(primes == r.tables.values<int32_t>("tables/engram.primes", "I32"));
    CHECK(offsets == r.tables.values<int32_t>("tables/engram.offsets", "I32"));
    std::vector<int32_t> tokens(512);
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i);
    CHECK(TokenMap::without_tokenizer(r.config).compress(tokens) ==
          r.tables.values<int32_t>("tables/token_map", "I32"));
}

TEST_CASE("engram: row ids are the released code's (prefill, and decode from a history of three)") {
    const EngramHash hash = engram_hash(recorded().config);
    const TokenMap map(recorded().tables.values<int32_t>("tables/token_map", "I32"), recorded().config);
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
    const Recorded& r = recorded();
    const EngramShape shape = engram_shape(r.config);
    for (Arithmetic arithmetic : {Arithmetic::exact, Arithmetic::hopper})
        for (size_t index = 0; index < engram_layers.size(); ++index)
            for (const Episode& episode : episodes()) {
                const int layer = engram_layers[index];
                const std::string name = fmt::format("layers.{}.engram", layer);
                const auto table_codes = r.model.values<E4m3>(name + ".embed.weight", "F8_E4M3");
                const auto table_scales = r.model.values<E8m0>(name + ".embed.scale", "F8_E8M0");
                const auto wkv_codes = r.model.values<E4m3>(name + ".wkv.weight", "F8_E4M3");
                const auto wkv_scales = r.model.values<E8m0>(name + ".wkv.scale", "F8_E8M0");
                const auto q_weight = r.model.values<Bf16>(name + ".q_weight", "BF16");
                const auto k_weight = r.model.values<Bf16>(name + ".k_weight", "BF16");
                const std::vector<int64_t>& projection = r.model.tensor(name + ".wkv.weight").shape;
                const EngramWeights weights{name,
                                            r.config.engram->num_embeddings[index],
                                            table_codes,
                                            table_scales,
                                            {name, projection[0], projection[1], wkv_codes, wkv_scales},
                                            q_weight,
                                            k_weight};
                const auto recorded_ids =
                    episode.file.values<int32_t>(episode.tensor(layer, "engram.row_ids"), "I32");
                auto h = episode.file.values<Bf16>(episode.tensor(layer, "engram.x_in"), "BF16");
                const EngramResult result =
                    engram(arithmetic, std::vector<int64_t>(recorded_ids.begin(), recorded_ids.end()),
                           episode.tokens, weights, shape, {}, h);
                const auto bf16 = [&](const char* what) {
                    return episode.file.values<Bf16>(episode.tensor(layer, what), "BF16");
                };
                const std::string shown =
                    fmt::format("{}, {}, layer {}", arithmetic_name(arithmetic), episode.name, layer);
                INFO(shown);
                CHECK(result.rows == bf16("engram.rows"));
                check_bf16(result.kv, bf16("engram.kv"), shown + ", kv");
                const auto gate = episode.file.values<float>(episode.tensor(layer, "engram.gate"), "F32");
                REQUIRE(gate.size() == result.gate.size());
                // Gates follow from kv, of which one element in a hundred may be a step off (numerics: 1e-3
                // then).
                const double allowed = result.kv == bf16("engram.kv") ? 1e-5 : 1e-3;
                double worst = 0;
                for (size_t i = 0; i < gate.size(); ++i)
                    worst = std::max(
                        worst, std::abs(static_cast<double>(result.gate[i]) - static_cast<double>(gate[i])) /
                                   static_cast<double>(gate[i]));
                CAPTURE(worst);
                CHECK(worst <= allowed);
                check_bf16(h, bf16("x_in"), shown + ", streams");
            }
}
