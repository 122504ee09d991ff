// Option values shared by the subcommands.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace touchstone::cli {

/// A count of tokens: digits with an optional binary suffix K, M or G (4K = 4096, 1M = 1048576), at most
/// 2^40. Throws UserError naming `option` for signs, fractions, other suffixes and values below `minimum`.
int64_t parse_tokens(std::string_view option, const std::string& text, int64_t minimum);

/// A count of bytes: digits, optionally with one decimal point, and KB, MB, GB, TB (powers of 1000) or KiB,
/// MiB, GiB, TiB (powers of 1024); at most 2^62.
int64_t parse_bytes(std::string_view option, const std::string& text);

/// Items between commas; an empty item is a UserError.
std::vector<std::string> parse_list(std::string_view option, const std::string& text);

}  // namespace touchstone::cli
