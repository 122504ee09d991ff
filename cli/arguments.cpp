#include "cli/arguments.h"

#include <fmt/format.h>

#include <charconv>

#include "reference/io/user_error.h"
#include "simulator/kv_accounting.h"

namespace touchstone::cli {

namespace {

struct Suffix {
    const char* text;
    int64_t factor;
};

constexpr Suffix token_suffixes[] = {{"", 1}, {"K", 1 << 10}, {"M", 1 << 20}, {"G", 1 << 30}};
constexpr Suffix byte_suffixes[] = {
    {"", 1},
    {"B", 1},
    {"KB", 1'000},
    {"MB", 1'000'000},
    {"GB", 1'000'000'000},
    {"TB", 1'000'000'000'000},
    {"KiB", int64_t{1} << 10},
    {"MiB", int64_t{1} << 20},
    {"GiB", int64_t{1} << 30},
    {"TiB", int64_t{1} << 40},
};

/// The number that `text` begins with, as an integer of `decimals`-fold tenths; fails on anything but digits
/// and one point followed by digits.
struct Number {
    bool valid = false;
    int64_t digits = 0;          ///< all digits without the point
    int64_t fraction_scale = 1;  ///< 10^(digits behind the point)
    std::string_view rest;
};

Number parse_number(std::string_view text, bool fractions) {
    Number number;
    std::string digits;
    size_t i = 0;
    bool point = false;
    for (; i < text.size(); ++i) {
        if (text[i] >= '0' && text[i] <= '9') {
            digits += text[i];
            if (point && number.fraction_scale <= 1'000'000'000) number.fraction_scale *= 10;
        } else if (fractions && text[i] == '.' && !point && !digits.empty()) {
            point = true;
        } else {
            break;
        }
    }
    number.rest = text.substr(i);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number.digits);
    number.valid = error == std::errc() && !digits.empty() && (!point || number.fraction_scale > 1) &&
                   number.fraction_scale <= 1'000'000'000;
    return number;
}

template <size_t N>
int64_t factor_of(const Suffix (&suffixes)[N], std::string_view text) {
    for (const Suffix& suffix : suffixes)
        if (text == suffix.text) return suffix.factor;
    return 0;
}

}  // namespace

int64_t parse_tokens(std::string_view option, const std::string& text, int64_t minimum) {
    const auto refuse = [&](const std::string& remedy) {
        throw UserError(
            {fmt::format("\"{}\" is not a number of tokens", text), std::string(option),
             fmt::format("a whole number from {} to 2^40, with an optional suffix K, M or G (1K = 1024)",
                         minimum),
             remedy});
    };
    const Number number = parse_number(text, false);
    const int64_t factor = factor_of(token_suffixes, number.rest);
    if (!number.valid || factor == 0) refuse("");
    int64_t tokens = 0;
    if (__builtin_mul_overflow(number.digits, factor, &tokens) || tokens > max_context_tokens ||
        tokens < minimum)
        refuse("choose a number inside this range");
    return tokens;
}

int64_t parse_bytes(std::string_view option, const std::string& text) {
    const Number number = parse_number(text, true);
    const int64_t factor = factor_of(byte_suffixes, number.rest);
    int64_t scaled = 0;
    const bool fits = number.valid && factor != 0 && !__builtin_mul_overflow(number.digits, factor, &scaled);
    const int64_t bytes = fits ? scaled / number.fraction_scale : 0;
    if (!fits || scaled % number.fraction_scale != 0 || bytes > (int64_t{1} << 62))
        throw UserError({fmt::format("\"{}\" is not a number of bytes", text), std::string(option),
                         "a whole number of bytes such as 85899345920, 80GiB or 141GB",
                         "units: B, KB, MB, GB, TB (powers of 1000), KiB, MiB, GiB, TiB (powers of 1024)"});
    return bytes;
}

std::vector<std::string> parse_list(std::string_view option, const std::string& text) {
    std::vector<std::string> items;
    size_t start = 0;
    while (start <= text.size()) {
        const size_t comma = std::min(text.find(',', start), text.size());
        items.push_back(text.substr(start, comma - start));
        if (items.back().empty())
            throw UserError({fmt::format("an empty item in \"{}\"", text), std::string(option),
                             "items between commas", ""});
        start = comma + 1;
    }
    return items;
}

}  // namespace touchstone::cli
