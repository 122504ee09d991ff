#include "golden/device/device_case.h"

#include <fmt/format.h>

namespace touchstone {

namespace {

/// A kind of case: the name in its text, and its parser.
struct CaseKind {
    std::string_view name;
    DeviceCase (*parse)(CaseText&);
};

constexpr CaseKind case_kinds[] = {
    {"tensor_core", [](CaseText& text) -> DeviceCase { return parse_tensor_core_case(text); }},
    {"conversion", [](CaseText& text) -> DeviceCase { return parse_unary_case(text); }},
    {"elementary", [](CaseText& text) -> DeviceCase { return parse_unary_case(text); }},
    {"sums", [](CaseText& text) -> DeviceCase { return parse_sums_case(text); }},
    {"matmul", [](CaseText& text) -> DeviceCase { return parse_matmul_case(text); }},
};

}  // namespace

DeviceCase parse_device_case(std::string_view text, const std::string& where) {
    CaseText parsed(text, where);
    std::string names;
    for (const CaseKind& kind : case_kinds) {
        names += (names.empty() ? "" : ", ") + std::string(kind.name);
        if (kind.name != parsed.name()) continue;
        DeviceCase result = kind.parse(parsed);
        parsed.require_all_taken();
        return result;
    }
    parsed.refuse(fmt::format("unknown kind \"{}\"", parsed.name()), names);
}

std::string to_text(const DeviceCase& device_case) {
    return std::visit([](const auto& c) { return to_text(c); }, device_case);
}

CaseHashes hashes_on_cpu(const DeviceCase& device_case) {
    return std::visit([](const auto& c) { return hashes_on_cpu(c); }, device_case);
}

int64_t cpu_cost(const DeviceCase& device_case) {
    return std::visit([](const auto& c) { return cpu_cost(c); }, device_case);
}

}  // namespace touchstone
