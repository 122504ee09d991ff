// Cases shared by the CPU and CUDA tests of the quantisers: every record in every page layout, and rows
// shaped to trip known faults.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reference/quantize.h"

namespace touchstone {

/// Counter-based: the same value for the same (seed, counter) everywhere (the finaliser of splitmix64).
inline uint64_t random_bits(uint64_t seed, uint64_t counter) {
    uint64_t z = seed * 0xD1342543DE82EF95u + (counter + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/// A bf16 of one of ten kinds; blocks of 16 channels share a kind.
inline Bf16 trap_value(uint64_t kind, uint64_t random) {
    const uint32_t sign = uint32_t(random & 1) << 15, mantissa = (random >> 1) & 0x7F;
    const uint32_t coarse = mantissa & 0x78;  // four significant bits: quotients land on ties
    const uint32_t r = uint32_t(random >> 8);
    const auto value = [sign](uint32_t exponent, uint32_t m) {
        return Bf16{static_cast<uint16_t>(sign | exponent << 7 | m)};
    };
    const bool rare = r % 11 == 0;
    switch (kind % 10) {
        case 0: return Bf16{static_cast<uint16_t>(r)};                                  // any bits
        case 1: return value(123 + r % 9, mantissa);                                    // 2^-4 to 2^5
        case 2: return value(123 + r % 9, coarse);                                      // the same, ties
        case 3: return value(0, 0);                                                     // +0 and -0
        case 4: return value(108 + r % 10, mantissa);                                   // around 1e-4
        case 5: return value(r % 3, mantissa);                                          // subnormal and near
        case 6: return rare ? value(255, mantissa | 1) : value(123 + r % 9, mantissa);  // some NaN
        case 7: return rare ? value(255, 0) : value(123 + r % 9, coarse);               // some infinity
        case 8: return value(236 + r % 19, mantissa);  // the top of the range
        default:
            return rare ? value(100 + r % 60, 0x60) : value(100 + r % 8, coarse);  // 448 * 2^k as maximum
    }
}

/// Row-major [rows, width].
inline std::vector<Bf16> trap_rows(uint64_t seed, int64_t rows, int64_t width) {
    std::vector<Bf16> values(size_t(rows * width));
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = trap_value(random_bits(seed, i / 16) >> 8, random_bits(seed + 1, i));
    return values;
}

/// Rows in which every bf16 pattern leads a scale block once, its companions of at most its magnitude; the
/// tail is random bits. Row-major [rows, channels + tail_channels], as many rows as 65,536 blocks need.
inline std::vector<Bf16> maximum_rows(uint64_t seed, const KvRecord& record) {
    const int64_t width = record.channels + record.tail_channels, blocks = record.scale_count();
    std::vector<Bf16> values(size_t((65536 + blocks - 1) / blocks * width));
    for (int64_t i = 0; i < std::ssize(values); ++i) {
        const uint64_t r = random_bits(seed, uint64_t(i));
        const int64_t channel = i % width, block = channel / record.scale_block;
        const uint16_t pattern = uint16_t(i / width * blocks + block);
        const int magnitude = pattern & 0x7FFF, companion = std::max(0, magnitude - int(r % 0x600));
        values[size_t(i)].bits = channel >= record.channels ? uint16_t(r)
                                 : channel % record.scale_block == 0
                                     ? pattern
                                     : uint16_t(companion | int(r >> 40 & 1) << 15);
    }
    return values;
}

/// A record, the pages it comes in, and a quantiser that writes it (none: only unpacked and dequantised
/// here).
struct QuantizeCase {
    std::string name;
    KvPage page;
    const QuantizerInfo* quantizer;
};

/// Every quantiser with every record it fits, real and tiny, and the records without a quantiser of ours,
/// each planar and per token; odd page sizes and alignments among them.
inline std::vector<QuantizeCase> quantize_cases() {
    struct Named {
        std::string_view name;
        KvRecord record;
        int64_t page_records, alignment_bytes;
    };
    const std::vector<Named> records{{"v4.1 fp8 528", fp8_record(512), 32, 512},
                                     {"v4.1 fp4 main 288", fp4_main_record(512), 128, 512},
                                     {"v4.1 fp4 index key 68", fp4_index_key_record(128), 64, 512},
                                     {"v4 584", v4_record(512, 64), 64, 576},
                                     {"v3.2 656", v32_record(512, 64), 64, 1},
                                     {"v3.2 without rope 528", v32_record(512, 0), 64, 1},
                                     {"fp8 index key 132", fp8_index_key_record(128), 64, 576},
                                     {"int8 index key 130", int8_index_key_record(128), 64, 1},
                                     {"bf16 1024", bf16_record(512), 64, 1},
                                     {"fp8 without scale 512", fp8_unscaled_record(512), 64, 1},
                                     {"tiny fp8 132", fp8_record(128), 5, 7},
                                     {"tiny fp4 main 72", fp4_main_record(128), 3, 64},
                                     {"tiny fp4 index key 34", fp4_index_key_record(64), 1, 1},
                                     {"tiny fp8 index key 68", fp8_index_key_record(64), 7, 3}};
    std::vector<QuantizeCase> cases;
    for (const Named& named : records)
        for (const KvPageLayout layout : {KvPageLayout::planar, KvPageLayout::per_token}) {
            const KvPage page{named.record, layout, named.page_records, named.alignment_bytes};
            const std::string name =
                std::string(named.name) + (layout == KvPageLayout::planar ? ", planar" : ", per token");
            const size_t before = cases.size();
            for (const QuantizerInfo& info : quantizers())
                if (fits(info.quantizer, named.record))
                    cases.push_back({name + ", " + std::string(info.name), page, &info});
            if (cases.size() == before) cases.push_back({name, page, nullptr});
        }
    return cases;
}

}  // namespace touchstone
