#include "reference/layout/kv_record.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "reference/io/user_error.h"

using namespace touchstone;

TEST_CASE("kv_record: the six real records have their published widths") {
    CHECK(fp8_record(512).record_bytes() == 528);
    CHECK(fp4_main_record(512).record_bytes() == 288);
    CHECK(fp4_index_key_record(128).record_bytes() == 68);
    CHECK(v4_record(512, 64).record_bytes() == 584);
    CHECK(fp8_index_key_record(128).record_bytes() == 132);
    CHECK(v32_record(512, 64).record_bytes() == 656);
    CHECK(int8_index_key_record(128).record_bytes() == 130);
    CHECK(bf16_record(512).record_bytes() == 1024);
    CHECK(fp8_unscaled_record(512).record_bytes() == 512);
}

TEST_CASE("kv_record: sections of the real records") {
    const KvRecord v4 = v4_record(512, 64);
    CHECK(v4.value_bytes() == 448);
    CHECK(v4.tail_bytes() == 128);
    CHECK(v4.scale_bytes() == 7);
    CHECK(v4.padding_bytes == 1);
    const KvRecord v32 = v32_record(512, 64);
    CHECK(v32.value_bytes() == 512);
    CHECK(v32.scale_bytes() == 16);
    CHECK(v32.scale_count() == 4);
    CHECK(v32.tail_bytes() == 128);
    CHECK(v32.scales_before_tail);
    const KvRecord main = fp4_main_record(512);
    CHECK(main.value_bytes() == 256);
    CHECK(main.scale_bytes() == 32);
    CHECK(fp8_record(512).scale_count() == 16);
    CHECK(fp4_index_key_record(128).scale_count() == 4);
    CHECK(fp8_index_key_record(128).scale_count() == 1);
}

TEST_CASE("kv_record: tiny's records (head 128, index 64)") {
    CHECK(fp8_record(128).record_bytes() == 132);
    CHECK(fp4_main_record(128).record_bytes() == 72);
    CHECK(fp4_index_key_record(64).record_bytes() == 34);
}

TEST_CASE("kv_record: records of one width differ in geometry and in name") {
    const std::vector<std::pair<KvRecord, KvRecord>> pairs{
        {fp8_record(128), fp8_index_key_record(128)},  // 132
        {fp8_record(512), v32_record(512, 0)},         // 528
        {bf16_record(256), fp8_unscaled_record(512)},  // 512
    };
    for (const auto& pair : pairs) {
        const KvRecord &a = pair.first, &b = pair.second;
        CAPTURE(a.describe());
        CAPTURE(b.describe());
        CHECK(a.record_bytes() == b.record_bytes());
        CHECK(a != b);
        CHECK(a.describe() != b.describe());
    }
    CHECK(fp8_record(128).describe() == "128 e4m3 /32 e8m0");
    CHECK(fp8_index_key_record(128).describe() == "128 e4m3 /128 fp32");
    CHECK(v4_record(512, 64).describe() == "448 e4m3 /64 e8m0 + 64 bf16 + 1 pad");
}

TEST_CASE("kv_record: three layouts called \"FP4 main KV\" are three records") {
    // V4.1's own quantises every channel; two add-ons to V4 keep the RoPE channels in bf16.
    const KvRecord own = fp4_main_record(512);
    const KvRecord e4m3_scales{.channels = 448,
                               .element = KvElement::fp4_e2m1,
                               .scale_block = 16,
                               .scale = KvScale::e4m3,
                               .tail_channels = 64,
                               .padding_bytes = 4};
    const KvRecord e8m0_scales{.channels = 448,
                               .element = KvElement::fp4_e2m1,
                               .scale_block = 32,
                               .scale = KvScale::e8m0,
                               .tail_channels = 64,
                               .padding_bytes = 2};
    CHECK(own.record_bytes() == 288);
    CHECK(e4m3_scales.record_bytes() == 384);
    CHECK(e8m0_scales.record_bytes() == 368);
    for (const KvRecord& record : {own, e4m3_scales, e8m0_scales}) record.validate("test");
}

TEST_CASE("kv_record: V4's padding makes the scale row a multiple of 8 bytes") {
    for (int64_t blocks = 1; blocks <= 24; ++blocks) {
        const KvRecord record = v4_record(64 * blocks + 64, 64);
        CAPTURE(blocks);
        CHECK((record.scale_bytes() + record.padding_bytes) % 8 == 0);
        CHECK(record.padding_bytes < 8);
    }
}

TEST_CASE("kv_record: what cannot be stored is refused") {
    const auto refused = [](KvRecord record) {
        try {
            record.validate("case");
        } catch (const UserError& error) {
            return error.parts().where == "case";
        }
        return false;
    };
    CHECK_NOTHROW(KvRecord{}.validate("case"));
    CHECK(refused({.channels = -1, .element = KvElement::fp8_e4m3}));
    CHECK(refused({.channels = 32}));
    CHECK(refused({.element = KvElement::fp8_e4m3}));
    CHECK(refused({.channels = 33, .element = KvElement::fp4_e2m1}));
    CHECK(
        refused({.channels = 33, .element = KvElement::fp8_e4m3, .scale_block = 32, .scale = KvScale::e8m0}));
    CHECK(refused({.channels = 32, .element = KvElement::fp8_e4m3, .scale_block = 32}));
    CHECK(refused({.channels = 32, .element = KvElement::fp8_e4m3, .scale = KvScale::e8m0}));
    CHECK(refused({.tail_channels = -1}));
    CHECK(refused({.padding_bytes = -1}));
    CHECK(refused({.tail_channels = int64_t{1} << 60}));
    CHECK(refused(v4_record(128, 32)));  // 96 channels are no whole blocks of 64
}
