// The memory of the real model: formulas and golden values of spec/memory sections 2, 3 and 10.
#include "simulator/kv_accounting.h"

#include <doctest/doctest.h>

#include <cmath>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "simulator/checked.h"

using namespace touchstone;

namespace {

constexpr int64_t gibibyte = int64_t{1} << 30;

KvAccount account_of(const char* model, const char* format = "", CompressorRows rows = CompressorRows::ring,
                     bool with_draft = true) {
    return KvAccount(find_model(model), format, rows, with_draft);
}

std::string bytes_per_token(const char* model, const char* format = "") {
    return account_of(model, format).bytes_per_token().decimal();
}

}  // namespace

TEST_CASE("kv: bytes per token by module (deepseek-v4.1-flash)") {
    const KvAccount account = account_of("deepseek-v4.1-flash");
    REQUIRE(account.modules().size() == 4);
    const std::vector<std::pair<CacheKind, std::vector<int>>> owners{{CacheKind::main_kv, {2, 8, 14}},
                                                                     {CacheKind::main_kv, {20}},
                                                                     {CacheKind::index_key, {2, 8, 14}},
                                                                     {CacheKind::index_key, {20}}};
    const std::vector<int64_t> rates{432, 288, 102, 68};
    for (size_t i = 0; i < rates.size(); ++i) {
        CAPTURE(i);
        CHECK(account.modules()[i].group.kind == owners[i].first);
        CHECK(account.modules()[i].group.layers == owners[i].second);
        CHECK(account.modules()[i].bytes_per_token == Rational(rates[i]));
    }
    CHECK(account.bytes_per_token() == Rational(890));
}

TEST_CASE("kv: exact bytes at any length (g1-g3, table 2.2)") {
    const KvAccount account = account_of("deepseek-v4.1-flash");
    for (int64_t tokens = 0; tokens < 1000; ++tokens) {
        CAPTURE(tokens);
        CHECK(account.global_bytes(tokens) == 356 * (3 * (tokens / 2) + tokens));
    }
    const std::vector<std::pair<int64_t, int64_t>> table{{0, 0},
                                                         {1, 356},
                                                         {2, 1780},
                                                         {3, 2136},
                                                         {127, 112496},
                                                         {128, 113920},
                                                         {129, 114276},
                                                         {4096, 3645440},
                                                         {8192, 7290880},
                                                         {32768, 29163520},
                                                         {65536, 58327040},
                                                         {131072, 116654080},
                                                         {262144, 233308160},
                                                         {524288, 466616320},
                                                         {1048575, 933231216},
                                                         {1048576, 933232640}};
    for (const auto& row : table) {
        const int64_t tokens = row.first, bytes = row.second;
        CAPTURE(tokens);
        CHECK(account.global_bytes(tokens) == bytes);
    }
}

TEST_CASE("kv: modules sum to the whole at every length (all presets)") {
    for (const std::string& name : preset_names()) {
        const KvAccount account(find_model(name), "");
        for (const int64_t tokens :
             {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{127}, int64_t{129}, max_context_tokens}) {
            CAPTURE(name);
            CAPTURE(tokens);
            int64_t sum = 0;
            for (const KvModule& module : account.modules()) sum += account.module_bytes(module, tokens);
            CHECK(sum == account.global_bytes(tokens));
        }
    }
}

TEST_CASE("kv: whole periods grow by exactly the slope (all presets, all formats)") {
    for (const std::string& name : preset_names()) {
        const Model model = find_model(name);
        for (const std::string& format : storage_format_names(model)) {
            if (name == "tiny" && format.starts_with("v4")) continue;  // refused, see below
            const KvAccount account(model, format);
            CAPTURE(name);
            CAPTURE(format);
            const int64_t period = 128;  // a multiple of every ratio: 1, 2, 4, 128
            for (const int64_t tokens : {int64_t{0}, int64_t{77}, int64_t{1} << 20})
                CHECK(Rational(account.global_bytes(tokens + period) - account.global_bytes(tokens)) ==
                      account.bytes_per_token() * Rational(period));
            CHECK(account.module_bytes(account.modules().front(), 0) == 0);
        }
    }
}

TEST_CASE("kv: slopes of all models and formats (g4, g6, tables 2.3, 2.5, 2.6)") {
    struct Slope {
        const char* model;
        const char* format;
        const char* bytes;
    };
    const std::vector<Slope> slopes{
        {"deepseek-v4.1-flash", "fp4", "890"},
        {"deepseek-v4.1-flash", "fp8-fp4index", "1490"},
        {"deepseek-v4.1-flash", "fp8", "1650"},
        {"deepseek-v4.1-flash", "v4-fp4index", "1630"},
        {"deepseek-v4.1-flash", "v4", "1790"},
        {"deepseek-v4.1-flash", "bf16-int8index", "2885"},
        {"deepseek-v4.1-flash", "bf16", "2890"},
        {"deepseek-v4.1-flash", "bf16-bf16index", "3200"},
        {"deepseek-v4-flash", "", "3514.25"},
        {"deepseek-v4-flash", "v4", "3850.25"},
        {"deepseek-v4-flash", "bf16-fp4index", "5893"},
        {"deepseek-v4-pro", "", "5031.4375"},
        {"deepseek-v3.2", "", "48068"},
        {"deepseek-v3", "", "70272"},
        {"deepseek-v3", "fp8", "40016"},
        {"deepseek-v2", "", "69120"},
        {"deepseek-v1-67b", "", "389120"},
        {"llama-3.1-8b", "", "131072"},
        {"llama-3.1-70b", "", "327680"},
        {"llama-3.1-70b", "fp8", "163840"},
        {"llama-3.1-405b", "", "516096"},
        {"llama-3.1-405b", "fp8", "258048"},
        {"qwen3-32b", "", "262144"},
        {"qwen3-235b-a22b", "", "192512"},
        {"qwen3-coder-480b", "", "253952"},
        {"qwen3.5-397b", "", "30720"},
        {"glm-5", "bf16-noindex", "89856"},
        {"glm-5", "fp8", "61464"},
        {"kimi-k2", "", "70272"},
        {"kimi-k2", "fp8", "40016"},
        {"kimi-k3", "", "27648"},
        {"minimax-m2.5", "", "253952"},
        {"minimax-m3", "", "122880"},
        {"gpt-oss-120b", "", "36864"},
        {"gpt-oss-20b", "", "24576"},
    };
    for (const Slope& slope : slopes) {
        CAPTURE(slope.model);
        CAPTURE(slope.format);
        CHECK(bytes_per_token(slope.model, slope.format) == slope.bytes);
    }
    CHECK(account_of("deepseek-v4-flash").bytes_per_token() == Rational(14057, 4));
    CHECK(account_of("deepseek-v4-pro").bytes_per_token() == Rational(80503, 16));
}

TEST_CASE("kv: factor against V1 (g5) and against V4-Flash") {
    const Rational v41 = account_of("deepseek-v4.1-flash").bytes_per_token();
    CHECK(std::abs((account_of("deepseek-v1-67b").bytes_per_token() / v41).value() - 437.213) < 5e-4);
    CHECK((account_of("deepseek-v4-flash").bytes_per_token() / v41) == Rational(14057, 3560));
}

TEST_CASE("kv: the step chain 3514.25, 652, 1630, 890 (g7)") {
    const std::vector<ChainStep> chain = step_chain();
    REQUIRE(chain.size() == 4);
    CHECK(chain[0].bytes_per_token == Rational(14057, 4));
    CHECK(chain[1].bytes_per_token == Rational(652));
    CHECK(chain[2].bytes_per_token == Rational(1630));
    CHECK(chain[3].bytes_per_token == Rational(890));
}

TEST_CASE("kv: windows (g8)") {
    const KvAccount fp4 = account_of("deepseek-v4.1-flash");
    CHECK(fp4.fixed().window == 2703360);
    CHECK(fp4.fixed().draft_window == 202752);
    CHECK(fp4.fixed().window + fp4.fixed().draft_window == 2906112);
    CHECK(account_of("deepseek-v4.1-flash", "v4").fixed().window == 2990080);
    CHECK(account_of("deepseek-v4.1-flash", "bf16").fixed().window == 5242880);
    CHECK(account_of("deepseek-v4-flash").fixed().window == 3214336);
    CHECK(account_of("deepseek-v4-pro").fixed().window == 4559872);
    CHECK(account_of("gpt-oss-120b").fixed().window == 4718592);
    CHECK(account_of("gpt-oss-20b").fixed().window == 3145728);
    CHECK(account_of("deepseek-v4.1-flash", "", CompressorRows::ring, false).fixed().draft_window == 0);
}

TEST_CASE("kv: window slots in use stop growing at the window (B05, B08)") {
    const KvAccount account = account_of("deepseek-v4.1-flash", "", CompressorRows::ring, false);
    CHECK(account.window_occupied_bytes(0) == 0);
    CHECK(account.window_occupied_bytes(1) == 21120);
    CHECK(account.window_occupied_bytes(127) == 127 * 21120);
    CHECK(account.window_occupied_bytes(128) == account.fixed().window);
    CHECK(account.window_occupied_bytes(1 << 20) == account.fixed().window);
}

TEST_CASE("kv: compressor state (g12, table 3.1)") {
    CHECK(account_of("deepseek-v4.1-flash", "", CompressorRows::minimal).fixed().compressor_state == 12288);
    CHECK(account_of("deepseek-v4.1-flash", "", CompressorRows::group).fixed().compressor_state == 24576);
    CHECK(account_of("deepseek-v4.1-flash", "", CompressorRows::ring).fixed().compressor_state == 98304);
    CHECK(account_of("deepseek-v4-flash").fixed().compressor_state == 12206080);
    CHECK(account_of("deepseek-v4-pro").fixed().compressor_state == 18710528);
    CHECK(account_of("deepseek-v4-flash", "", CompressorRows::ring, false).fixed().total() == 15420416);
    CHECK(account_of("deepseek-v4-pro", "", CompressorRows::ring, false).fixed().total() == 23270400);
    CHECK(account_of("deepseek-v4.1-flash").fixed().engram_history == 12);
    CHECK(account_of("deepseek-v4-flash").fixed().engram_history == 0);
}

TEST_CASE("kv: the reference cache of V4-Flash at 1M tokens (g11)") {
    const KvAccount account = account_of("deepseek-v4-flash", "bf16-bf16index", CompressorRows::ring, false);
    CHECK(account.fixed().window == 5636096);
    REQUIRE(account.modules().size() == 3);
    CHECK(account.module_bytes(account.modules()[0], 1 << 20) == 5637144576);
    CHECK(account.module_bytes(account.modules()[1], 1 << 20) == 167772160);
    CHECK(account.module_bytes(account.modules()[2], 1 << 20) == 1409286144);
    CHECK(account.total_bytes(1 << 20) == 7232045056);
}

TEST_CASE("kv: persistent bytes per turn (g9, g10)") {
    const Model v4 = find_model("deepseek-v4-flash"), v41 = find_model("deepseek-v4.1-flash");
    const KvAccount old_account(v4, ""), new_account(v41, "");
    CHECK(snapshot_half_tokens(v4, old_account).value() == doctest::Approx(1829.3).epsilon(1e-4));
    CHECK(snapshot_half_tokens(find_model("deepseek-v4-pro"), account_of("deepseek-v4-pro")).value() ==
          doctest::Approx(1813).epsilon(1e-3));
    CHECK(snapshot_half_tokens(v41, new_account) == Rational(0));
    for (const int64_t tokens : {500, 1829, 10000}) {
        CAPTURE(tokens);
        const PersistentTurn turn = persistent_turn(v4, old_account, tokens);
        CHECK(turn.window_snapshot_bytes == 6428672);
        const double ratio = (persistent_turn(v41, new_account, tokens).total() / turn.total()).value();
        CHECK(ratio ==
              doctest::Approx(1 / (3.9486 * (1 + 1829.3 / static_cast<double>(tokens)))).epsilon(1e-4));
    }
    const auto factor = [&](int64_t tokens) {
        return (persistent_turn(v4, old_account, tokens).total() /
                persistent_turn(v41, new_account, tokens).total())
            .value();
    };
    CHECK(factor(1829) == doctest::Approx(7.897).epsilon(1e-3));
    CHECK(factor(500) == doctest::Approx(18.4).epsilon(5e-3));
    CHECK(factor(10000) == doctest::Approx(4.67).epsilon(5e-3));
    const auto snapshot_share = [&](int64_t tokens) {
        const PersistentTurn turn = persistent_turn(v4, old_account, tokens);
        return static_cast<double>(turn.window_snapshot_bytes) / turn.total().value();
    };
    CHECK(snapshot_share(500) == doctest::Approx(0.79).epsilon(1e-2));
    CHECK(snapshot_share(10000) == doctest::Approx(0.15).epsilon(3e-2));
}

TEST_CASE("kv: resident requests in 80 GiB (g29, table 3.3)") {
    struct Resident {
        const char* model;
        const char* format;
        std::vector<int64_t> requests;  // at 4K, 32K, 128K, 1M
    };
    const std::vector<Resident> table{
        {"deepseek-v4.1-flash", "fp4", {13323, 2687, 719, 91}},
        {"deepseek-v4.1-flash", "fp8-fp4index", {9646, 1663, 433, 54}},
        {"deepseek-v4.1-flash", "v4", {8243, 1391, 361, 45}},
        {"deepseek-v4-flash", "", {2881, 657, 180, 23}},
        {"deepseek-v4-pro", "", {1957, 456, 125, 16}},
        {"deepseek-v3.2", "", {436, 54, 13, 1}},
        {"deepseek-v3", "fp8", {524, 65, 16, 2}},
        {"deepseek-v3", "bf16", {298, 37, 9, 1}},
        {"glm-5", "fp8", {341, 42, 10, 1}},
        {"llama-3.1-70b", "", {64, 8, 2, 0}},
        {"llama-3.1-405b", "", {40, 5, 1, 0}},
        {"qwen3-235b-a22b", "", {108, 13, 3, 0}},
        {"gpt-oss-120b", "", {551, 70, 17, 2}},
        {"minimax-m2.5", "", {82, 10, 2, 0}},
    };
    const std::vector<int64_t> contexts{4096, 32768, 131072, 1048576};
    for (const Resident& row : table) {
        const KvAccount account = account_of(row.model, row.format, CompressorRows::ring, false);
        for (size_t i = 0; i < contexts.size(); ++i) {
            CAPTURE(row.model);
            CAPTURE(row.format);
            CAPTURE(contexts[i]);
            CHECK(account.resident_requests(80 * gibibyte, contexts[i]) == row.requests[i]);
        }
    }
}

TEST_CASE("kv: a budget is filled and never exceeded (B05)") {
    for (const char* model : {"deepseek-v4.1-flash", "deepseek-v4-flash", "deepseek-v3.2", "tiny"})
        for (const int64_t tokens : {int64_t{1}, int64_t{127}, int64_t{128}, int64_t{129}, int64_t{1048576}})
            for (const int64_t budget : {int64_t{0}, int64_t{1} << 20, 15 * gibibyte, 66 * gibibyte}) {
                CAPTURE(model);
                CAPTURE(tokens);
                CAPTURE(budget);
                const KvAccount account = account_of(model);
                const int64_t requests = account.resident_requests(budget, tokens);
                CHECK(requests * account.total_bytes(tokens) <= budget);
                CHECK((requests + 1) * account.total_bytes(tokens) > budget);
            }
}

TEST_CASE("kv: one request is alpha + beta T at three lengths (B13)") {
    const KvAccount account = account_of("deepseek-v4.1-flash");
    for (const int64_t tokens : {1024, 65536, 1048576}) {
        CAPTURE(tokens);
        CHECK(account.total_bytes(tokens) == account.fixed().total() + 890 * tokens);
    }
}

TEST_CASE("kv: shares by layer mode own everything once") {
    const KvAccount account = account_of("deepseek-v4.1-flash");
    Rational growing(0);
    int64_t layers = 0, windows = 0;
    for (const ModeShare& share : account.by_mode()) {
        growing = growing + share.bytes_per_token;
        layers += share.layers;
        windows += share.window_bytes;
        if (share.mode == "full") CHECK(share.bytes_per_token == Rational(890));
        if (share.mode == "full" || share.mode == "reindex") CHECK(share.layers == 4);
        if (share.mode == "reuse") CHECK(share.layers == 30);
    }
    CHECK(growing == account.bytes_per_token());
    CHECK(layers == 43);
    CHECK(windows == account.fixed().window + account.fixed().draft_window);
}

TEST_CASE("kv: 2^40 tokens do not overflow (deepseek-v4.1-flash)") {
    const KvAccount account = account_of("deepseek-v4.1-flash");
    CHECK(account.global_bytes(max_context_tokens) == 890 * max_context_tokens);
    CHECK_THROWS_AS(account.global_bytes(max_context_tokens + 1), UserError);
    CHECK_THROWS_AS(account.global_bytes(-1), UserError);
}

TEST_CASE("kv: counts that do not fit are refused, not wrapped") {
    CHECK_THROWS_AS(checked_multiply(int64_t{1} << 40, int64_t{1} << 40), UserError);
    CHECK_THROWS_AS(checked_add(INT64_MAX, 1), UserError);
    CHECK_THROWS_AS(Rational(1, int64_t{1} << 40) * Rational(1, int64_t{1} << 40), UserError);
    CHECK(checked_multiply(int64_t{1} << 31, int64_t{1} << 31) == int64_t{1} << 62);
}

TEST_CASE("kv: state of unpublished size refuses totals (qwen3.5-397b)") {
    const KvAccount account = account_of("qwen3.5-397b");
    CHECK(account.global_bytes(1000) == 30720000);
    CHECK_THROWS_AS(account.total_bytes(1000), UserError);
    CHECK_THROWS_AS(account.resident_requests(80 * gibibyte, 1000), UserError);
}

TEST_CASE("kv: a format that the widths cannot store is refused (tiny, V4's record)") {
    // 96 channels without RoPE are not whole blocks of 64.
    CHECK_THROWS_AS(storage_format(find_model("tiny"), "v4"), UserError);
    CHECK_THROWS_AS(storage_format(find_model("tiny"), "fp5"), UserError);
}

TEST_CASE("kv: tiny runs the same layout code") {
    const KvAccount account = account_of("tiny");
    // Main rows 64 + 8, index keys 32 + 2 bytes; sources 2 and 4 at ratio 2, source 6 at ratio 1.
    CHECK(account.bytes_per_token() == Rational(2 * (72 + 34), 2) + Rational(72 + 34));
    CHECK(account.fixed().window == 10 * 48 * (128 + 4));
    CHECK(account.fixed().draft_window == 3 * 48 * (128 + 4));
}

TEST_CASE("rational: lowest terms, exact decimals") {
    CHECK(Rational(6, -4).fraction() == "-3/2");
    CHECK(Rational(14057, 4).decimal() == "3514.25");
    CHECK(Rational(80503, 16).decimal() == "5031.4375");
    CHECK(Rational(1, 3).decimal(4) == "0.3333");
    CHECK(Rational(-1, 8).decimal() == "-0.125");
    CHECK(Rational(0, 5).fraction() == "0");
    CHECK((Rational(1, 2) + Rational(1, 3)) == Rational(5, 6));
    CHECK((Rational(3, 4) / Rational(3, 8)) == Rational(2));
}
