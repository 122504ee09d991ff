// What the released inference code computed on a tiny model: the recordings every parity test reads
// (official_tiny; README.md there names the tensors). The folder is TOUCHSTONE_PARITY, from the environment
// or else from CMake; where it is absent the test says so and exits with 77.
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "reference/io/safetensors.h"
#include "reference/numerics/small_float.h"

namespace touchstone::official_tiny {

inline const std::filesystem::path& folder() {
    static const std::filesystem::path path = [] {
        constexpr int skipped = 77;
        const char* variable = std::getenv("TOUCHSTONE_PARITY");
        const std::filesystem::path result =
            std::filesystem::path(variable != nullptr ? variable : TOUCHSTONE_PARITY) / "official_tiny";
        if (!std::filesystem::exists(result / "model.safetensors")) {
            std::printf("no %s: skipped; set TOUCHSTONE_PARITY\n", (result / "model.safetensors").c_str());
            std::exit(skipped);
        }
        return result;
    }();
    return path;
}

/// `stem`.safetensors, read once: model, prefill100, decode100_own, decode100_stale, lengths, smooth,
/// alternatives.
inline const SafetensorsFile& file(const std::string& stem) {
    static std::map<std::string, std::unique_ptr<const SafetensorsFile>> files;
    std::unique_ptr<const SafetensorsFile>& opened = files[stem];
    if (opened == nullptr)
        opened = std::make_unique<const SafetensorsFile>(folder() / (stem + ".safetensors"));
    return *opened;
}

/// "prefill100/L06.attn.out" for ("prefill100", 6, "attn.out").
inline std::string layer_tensor(const std::string& run, int layer, const std::string& name) {
    return fmt::format("{}/L{:02}.{}", run, layer, name);
}

inline bool has(const SafetensorsFile& from, const std::string& name) {
    return from.tensors().find(name) != from.tensors().end();
}

/// Any tensor of F32, BF16, I32 or U8, its elements widened (exactly).
inline std::vector<double> numbers(const SafetensorsFile& from, const std::string& name) {
    const std::string& type = from.tensor(name).type;
    const auto widened = [](const auto& values, const auto& widen) {
        std::vector<double> result;
        result.reserve(values.size());
        for (const auto& value : values) result.push_back(static_cast<double>(widen(value)));
        return result;
    };
    const auto same = [](auto value) { return value; };
    if (type == "BF16") return widened(from.values<Bf16>(name, type), [](Bf16 x) { return to_float(x); });
    if (type == "I32") return widened(from.values<int32_t>(name, type), same);
    if (type == "U8") return widened(from.values<uint8_t>(name, type), same);
    return widened(from.values<float>(name, "F32"), same);
}

/// Multipliers of the Engram hash, layers 1 and 4 (README.md; primes and offsets are in `alternatives`,
/// tables/engram.primes and tables/engram.offsets).
inline constexpr std::array<std::array<int64_t, 4>, 2> engram_multipliers{
    {{18984069153536581, 1198982504596559, 8908289623672409, 18328883108567563},
     {20378323963399201, 1248012217874625, 18246170261325197, 4695688200551669}}};

}  // namespace touchstone::official_tiny
