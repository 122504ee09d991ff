#include "reference/numerics/isa.h"

#include <fmt/format.h>

#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

struct IsaInfo {
    Isa isa;
    std::string_view name;
    bool (*supported)();
};

constexpr std::array isa_infos{
    IsaInfo{Isa::scalar, "scalar", [] { return true; }},
#ifdef __x86_64__
    IsaInfo{Isa::avx2, "avx2",
            [] { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }},
    IsaInfo{Isa::avx512, "avx512",
            [] {
                return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                       __builtin_cpu_supports("avx512vnni");
            }},
#endif
};

}  // namespace

std::span<const Isa> compiled_isas() {
    static constexpr auto isas = [] {
        std::array<Isa, isa_infos.size()> result{};
        for (size_t i = 0; i < result.size(); ++i) result[i] = isa_infos[i].isa;
        return result;
    }();
    return isas;
}

std::string_view isa_name(Isa isa) {
    constexpr std::array<std::string_view, 3> names{"scalar", "avx2", "avx512"};
    return names.at(static_cast<size_t>(isa));
}

bool isa_supported(Isa isa) {
    for (const IsaInfo& info : isa_infos)
        if (info.isa == isa) return info.supported();
    return false;
}

Isa isa_from_variable(std::string_view value) {
    std::string supported;
    Isa widest = Isa::scalar;
    for (const IsaInfo& info : isa_infos) {
        if (!info.supported()) continue;
        if (info.name == value) return info.isa;
        supported += (supported.empty() ? "" : ", ") + std::string(info.name);
        widest = info.isa;
    }
    if (value.empty()) return widest;
    throw UserError({fmt::format("TOUCHSTONE_ISA is \"{}\"", value), "environment",
                     fmt::format("one of the sets of this machine: {}", supported),
                     "unset it to use the widest"});
}

Isa active_isa() {
    static const Isa isa = [] {
        const char* value = std::getenv("TOUCHSTONE_ISA");
        return isa_from_variable(value == nullptr ? "" : value);
    }();
    return isa;
}

}  // namespace touchstone
