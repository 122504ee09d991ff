// Layer roles against the published table, and against the tensors that a checkpoint holds.
#include "reference/model/layer_roles.h"

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "reference/io/user_error.h"
#include "reference/model/model.h"

using namespace touchstone;

namespace {

ModelConfig preset(const std::string& name) {
    return *find_model(name).config();
}

std::string describe(const LayerRole& r) {
    return fmt::format("{} {} ratio {} {} {} kv {} keys {} top-k {} pool {}{}{}", r.layer, name(r.half),
                       r.compress_ratio, r.compress_rope ? "compress" : "main", name(r.mode), r.kv_source,
                       r.index_key_source, r.top_k_source, name(r.pool), r.engram ? " engram" : "",
                       r.draft_tap ? " tap" : "");
}

/// A run of layers of one group: its first layer, then reuse layers up to `last`.
struct Group {
    int first, last;
    int ratio;
    int kv, keys, top_k;
    LayerMode mode;  ///< of the first layer
    PoolRole pool;   ///< of the first layer
};

/// The table of spec/text_model 1.4.
const Group kReleased[] = {
    {2, 7, 2, 2, 2, 2, LayerMode::full, PoolRole::none},
    {8, 13, 2, 8, 8, 8, LayerMode::full, PoolRole::none},
    {14, 19, 2, 14, 14, 14, LayerMode::full, PoolRole::none},
    {20, 23, 1, 20, 20, 20, LayerMode::full, PoolRole::builds},
    {24, 27, 1, 20, 20, 24, LayerMode::reindex, PoolRole::restricted},
    {28, 31, 1, 20, 20, 28, LayerMode::reindex, PoolRole::restricted},
    {32, 35, 1, 20, 20, 32, LayerMode::reindex, PoolRole::restricted},
    {36, 39, 1, 20, 20, 36, LayerMode::reindex, PoolRole::restricted},
};
const Group kTiny[] = {
    {2, 3, 2, 2, 2, 2, LayerMode::full, PoolRole::none},
    {4, 5, 2, 4, 4, 4, LayerMode::full, PoolRole::none},
    {6, 7, 1, 6, 6, 6, LayerMode::full, PoolRole::builds},
    {8, 9, 1, 6, 6, 8, LayerMode::reindex, PoolRole::restricted},
};

/// The rows that the groups stand for; layers in no group keep only their window.
template <size_t N>
std::vector<LayerRole> expected_roles(const Group (&groups)[N], int layers, int stages, int first_decoder,
                                      const std::set<int>& engram, const std::set<int>& taps) {
    std::vector<LayerRole> roles;
    for (int layer = 0; layer < layers + stages; ++layer) {
        LayerRole role;
        role.layer = layer;
        role.half = layer >= layers          ? LayerHalf::draft
                    : layer >= first_decoder ? LayerHalf::decoder
                                             : LayerHalf::encoder;
        role.engram = engram.contains(layer);
        role.draft_tap = taps.contains(layer);
        for (const Group& group : groups) {
            if (layer < group.first || layer > group.last) continue;
            role.compress_ratio = group.ratio;
            role.compress_rope = true;
            role.mode = layer == group.first ? group.mode : LayerMode::reuse;
            role.pool = layer == group.first ? group.pool : PoolRole::none;
            role.kv_source = group.kv;
            role.index_key_source = group.keys;
            role.top_k_source = group.top_k;
        }
        roles.push_back(role);
    }
    return roles;
}

void check_equal(const std::vector<LayerRole>& roles, const std::vector<LayerRole>& expected) {
    REQUIRE(roles.size() == expected.size());
    for (size_t i = 0; i < roles.size(); ++i) {
        CHECK(describe(roles[i]) == describe(expected[i]));
        CHECK(roles[i] == expected[i]);
    }
}

}  // namespace

TEST_CASE("layer_roles: the released V4.1 table, row by row") {
    check_equal(layer_roles(preset("deepseek-v4.1-flash")),
                expected_roles(kReleased, 40, 3, 20, {1, 14}, {37, 38, 39}));
}

TEST_CASE("layer_roles: mode counts of the released V4.1 (Full 4, Reindex 4, Reuse 30, SWA only 2)") {
    std::map<LayerMode, int> counts;
    for (const LayerRole& role : layer_roles(preset("deepseek-v4.1-flash")))
        if (role.half != LayerHalf::draft) ++counts[role.mode];
    CHECK(counts == std::map<LayerMode, int>{{LayerMode::swa_only, 2},
                                             {LayerMode::full, 4},
                                             {LayerMode::reindex, 4},
                                             {LayerMode::reuse, 30}});
}

TEST_CASE("layer_roles: tiny, row by row") {
    check_equal(layer_roles(preset("tiny")), expected_roles(kTiny, 10, 3, 6, {1, 4}, {7, 8, 9}));
}

TEST_CASE("layer_roles: tiny roles are what its checkpoint has tensors for") {
    std::ifstream list(TOUCHSTONE_TEST_DATA "/official_tiny_tensors.txt");
    REQUIRE(list);
    std::set<std::string> tensors;
    for (std::string line; std::getline(list, line);) tensors.insert(line.substr(0, line.find(' ')));
    REQUIRE(tensors.size() > 900);
    for (const LayerRole& role : layer_roles(preset("tiny"))) {
        const std::string block = role.half == LayerHalf::draft ? fmt::format("mtp.{}.", role.layer - 10)
                                                                : fmt::format("layers.{}.", role.layer);
        CAPTURE(describe(role));
        const bool full = role.mode == LayerMode::full;
        CHECK(tensors.contains(block + "attn.wkv.weight"));
        CHECK(tensors.contains(block + "attn.compressor.wkv.weight") == full);
        CHECK(tensors.contains(block + "attn.compressor.wgate.weight") == (full && role.compress_ratio == 2));
        CHECK(tensors.contains(block + "attn.indexer.wk.weight") == full);
        CHECK(tensors.contains(block + "attn.indexer.wq_b.weight") ==
              (full || role.mode == LayerMode::reindex));
        CHECK(tensors.contains(block + "engram.embed.weight") == role.engram);
    }
}

TEST_CASE("layer_roles: V4 layers own what they read (Flash 2 + 21 + 20, Pro 0 + 30 + 31)") {
    struct Case {
        std::string name;
        int swa_only, csa, hca, stages;
    };
    for (const Case& c : {Case{"deepseek-v4-flash", 2, 21, 20, 3}, Case{"deepseek-v4-pro", 0, 30, 31, 3}}) {
        CAPTURE(c.name);
        int swa_only = 0, csa = 0, hca = 0, stages = 0;
        for (const LayerRole& role : layer_roles(preset(c.name))) {
            CAPTURE(describe(role));
            const bool draft = role.half == LayerHalf::draft;
            stages += draft;
            CHECK((draft || role.half == LayerHalf::backbone));
            swa_only += !draft && role.mode == LayerMode::swa_only;
            csa += role.mode == LayerMode::csa;
            hca += role.mode == LayerMode::hca;
            CHECK(role.kv_source == (role.mode == LayerMode::swa_only ? -1 : role.layer));
            CHECK(role.index_key_source == (role.mode == LayerMode::csa ? role.layer : -1));
            CHECK(role.top_k_source == (role.mode == LayerMode::csa ? role.layer : -1));
            CHECK(role.compress_rope == (role.compress_ratio > 0));
            CHECK(role.pool == PoolRole::none);
            CHECK(!role.engram);
            if (role.mode == LayerMode::csa) CHECK(role.compress_ratio == 4);
            if (role.mode == LayerMode::hca) CHECK(role.compress_ratio == 128);
        }
        CHECK(swa_only == c.swa_only);
        CHECK(csa == c.csa);
        CHECK(hca == c.hca);
        CHECK(stages == c.stages);
    }
    CHECK(layer_roles(preset("deepseek-v4-pro"))[58].draft_tap);
    CHECK(!layer_roles(preset("deepseek-v4-pro"))[57].draft_tap);
}

TEST_CASE("layer_roles: the decoder starts at the last KV source; V4 has no halves") {
    CHECK(first_decoder_layer(preset("deepseek-v4.1-flash")) == 20);
    CHECK(first_decoder_layer(preset("tiny")) == 6);
    CHECK_THROWS_AS(first_decoder_layer(preset("deepseek-v4-flash")), UserError);
}

TEST_CASE("layer_roles: a source that is not followed by a reuse layer, and adjacent sources") {
    ModelConfig config = preset("tiny");
    config.kv_source_layer_ids = {2, 3, 4, 6};
    config.index_source_layer_ids = {2, 3, 4, 6, 7, 9};
    validate(config, "edited tiny");
    const std::vector<LayerRole> roles = layer_roles(config);
    const auto row = [&](size_t layer) { return describe(roles[layer]); };
    CHECK(row(2) == "2 encoder ratio 2 compress full kv 2 keys 2 top-k 2 pool none");
    CHECK(row(3) == "3 encoder ratio 2 compress full kv 3 keys 3 top-k 3 pool none");
    CHECK(row(5) == "5 encoder ratio 2 compress reuse kv 4 keys 4 top-k 4 pool none");
    CHECK(row(7) == "7 decoder ratio 1 compress reindex kv 6 keys 6 top-k 7 pool restricted tap");
    CHECK(row(8) == "8 decoder ratio 1 compress reuse kv 6 keys 6 top-k 7 pool none tap");
    CHECK(row(9) == "9 decoder ratio 1 compress reindex kv 6 keys 6 top-k 9 pool restricted tap");
}
