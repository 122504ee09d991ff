#include "golden/compare/tolerance.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <vector>

#include "reference/io/config_json.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace {

/// The peers' limits are those of their own tests, commits of 2026.
constexpr ToleranceClass classes[]{
    {"bit", "bit", "the same bits; any NaN equals any NaN"},
    {"bf16_step", "ulp=1,share=0.01",
     "neighbours of the tensor's own type, in at most one element of a hundred: another order of summation "
     "before a rounding"},
    {"fp32_row", "rms=1e-5", "fp32 sums in another order: 1e-5 of the rms of the element's row"},
    {"flashmla_output", "abs=1e-3,rel=2.01/128,cosine=5e-6",
     "FlashMLA tests/test_flash_mla_sparse_decoding.py, output"},
    {"flashmla_lse", "abs=1e-6,rel=8.01/65536",
     "FlashMLA tests/test_flash_mla_sparse_decoding.py, log-sum-exp"},
    {"flashmla_prefill", "abs=8e-4,rel=3.01/128,cosine=7e-6",
     "FlashMLA tests/test_flash_mla_sparse_prefill.py, output"},
    // A cosine of c is an rms error of sqrt(2 c) of the rms; the largest of 10^8 normal errors is 5.6 times
    // theirs.
    {"deepgemm_fp8", "rms=0.25,cosine=1e-3",
     "DeepGEMM tests/test_fp8_fp4.py, whose cosine alone one wrong row in a thousand passes, and for each "
     "element 5.6 times the rms error that it allows"},
    {"deepgemm_fp4", "rms=1.12,cosine=2e-2", "the same for two fp4 sides"},
    {"torch_bf16", "abs=1e-5,rel=1.6e-2", "torch.testing.assert_close's default for bf16"},
    {"torch_f16", "abs=1e-5,rel=1e-3", "torch.testing.assert_close's default for fp16"},
    {"torch_f32", "abs=1e-5,rel=1.3e-6", "torch.testing.assert_close's default for fp32"},
    {"torch_f64", "abs=1e-7,rel=1e-7", "torch.testing.assert_close's default for fp64"},
};

[[noreturn]] void refuse(std::string_view text, const std::string& what, const std::string& where) {
    std::string names;
    for (const ToleranceClass& known : classes)
        names += (names.empty() ? "" : ", ") + std::string(known.name);
    throw UserError({fmt::format("tolerance {}: {}", quoted(std::string(text)), what), where,
                     "a class (" + names + ") or limits of ulp, rms, abs, rel, share, cosine",
                     "for example ulp=1,share=0.01 or abs=1e-3,rel=2.01/128"});
}

/// A decimal number, all of `text`, finite and not negative.
std::optional<double> number(std::string_view text) {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = error == std::errc{} && end == text.data() + text.size();
    if (!whole || !std::isfinite(value) || value < 0) return std::nullopt;
    return value;
}

/// A number, or a quotient of two.
std::optional<double> number_or_quotient(std::string_view text) {
    const size_t slash = text.find('/');
    if (slash == std::string_view::npos) return number(text);
    const std::optional<double> above = number(text.substr(0, slash)), below = number(text.substr(slash + 1));
    if (!above || !below || *below == 0) return std::nullopt;
    return *above / *below;
}

/// A limit that a user may type, and where it is kept.
struct Limit {
    std::string_view key;
    std::optional<double> (*get)(const Tolerance&);
    void (*set)(Tolerance&, double);
};

constexpr Limit limits[]{
    {"ulp",
     [](const Tolerance& t) { return t.ulp ? std::optional(static_cast<double>(*t.ulp)) : std::nullopt; },
     [](Tolerance& t, double value) { t.ulp = static_cast<int64_t>(value); }},
    {"rms", [](const Tolerance& t) { return t.rms; }, [](Tolerance& t, double value) { t.rms = value; }},
    {"abs", [](const Tolerance& t) { return t.absolute; },
     [](Tolerance& t, double value) { t.absolute = value; }},
    {"rel", [](const Tolerance& t) { return t.relative; },
     [](Tolerance& t, double value) { t.relative = value; }},
    {"share", [](const Tolerance& t) { return t.share < 1 ? std::optional(t.share) : std::nullopt; },
     [](Tolerance& t, double value) { t.share = value; }},
    {"cosine", [](const Tolerance& t) { return t.cosine; },
     [](Tolerance& t, double value) { t.cosine = value; }},
};

void set_limit(Tolerance& tolerance, std::string_view item, std::vector<std::string_view>& seen,
               std::string_view text, const std::string& where) {
    const size_t equals = item.find('=');
    const std::string_view key = item.substr(0, equals);
    for (const Limit& limit : limits) {
        if (limit.key != key || equals == std::string_view::npos) continue;
        for (std::string_view other : seen)
            if (other == key) refuse(text, fmt::format("{} stands twice", key), where);
        seen.push_back(limit.key);
        const std::optional<double> value = number_or_quotient(item.substr(equals + 1));
        if (!value) refuse(text, fmt::format("{} needs a number from 0 up", key), where);
        if (key == "ulp" && (*value != std::floor(*value) || *value > most_ulp))
            refuse(text, "ulp needs a whole number up to 2^53", where);
        if (key == "share" && *value > 1) refuse(text, "share is a part of all elements, from 0 to 1", where);
        limit.set(tolerance, *value);
        return;
    }
    refuse(text, fmt::format("nothing is known of {}", quoted(std::string(item))), where);
}

Tolerance parse_limits(std::string_view text, const std::string& where) {
    Tolerance tolerance;
    std::vector<std::string_view> seen;
    std::string_view rest = text;
    while (true) {
        const size_t comma = rest.find(',');
        set_limit(tolerance, rest.substr(0, comma), seen, text, where);
        if (comma == std::string_view::npos) break;
        rest.remove_prefix(comma + 1);
    }
    if (tolerance.exact())
        refuse(text, "none of its limits is one of the elements, so that a few wrong ones would pass", where);
    return tolerance;
}

}  // namespace

std::span<const ToleranceClass> tolerance_classes() {
    return classes;
}

Tolerance parse_tolerance(std::string_view text, const std::string& where) {
    if (text == "bit") return {};
    for (const ToleranceClass& known : classes)
        if (known.name == text) return parse_limits(known.text, where);
    return parse_limits(text, where);
}

std::string tolerance_text(const Tolerance& tolerance) {
    std::string text;
    for (const Limit& limit : limits)
        if (const std::optional<double> value = limit.get(tolerance))
            text += fmt::format("{}{}={}", text.empty() ? "" : ",", limit.key, *value);
    return text.empty() ? "bit" : text;
}

}  // namespace touchstone
