// Option values shared by the subcommands.
#pragma once

#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "reference/io/user_error.h"

namespace touchstone::cli {

/// A count of tokens: digits with an optional binary suffix K, M or G (4K = 4096, 1M = 1048576), at most
/// 2^40. Throws UserError naming `option` for signs, fractions, other suffixes and values below `minimum`.
int64_t parse_tokens(std::string_view option, const std::string& text, int64_t minimum);

/// A count of bytes: digits, optionally with one decimal point, and KB, MB, GB, TB (powers of 1000) or KiB,
/// MiB, GiB, TiB (powers of 1024); at most 2^62.
int64_t parse_bytes(std::string_view option, const std::string& text);

/// Items between commas; an empty item is a UserError.
std::vector<std::string> parse_list(std::string_view option, const std::string& text);

/// A number, all of `text`, from `low` to `high`. Throws UserError naming `option`.
template <class T>
T parse_number(std::string_view option, std::string_view text, T low, T high) {
    T value{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc{} || end != text.data() + text.size() || !(value >= low) ||
        !(value <= high))
        throw UserError({fmt::format("\"{}\"", text), std::string(option),
                         fmt::format("a number from {} to {}", low, high), ""});
    return value;
}

}  // namespace touchstone::cli
