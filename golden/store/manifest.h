// MANIFEST.sha256: what every file of a golden store has to be, byte for byte. `sha256sum -c` reads it too.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace touchstone {

inline constexpr std::string_view manifest_name = "MANIFEST.sha256";

/// SHA-256 by path, relative to the store, with slashes.
using Manifest = std::map<std::string, std::string, std::less<>>;

/// A line per file, sorted; the last, a comment to sha256sum, is the digest of the lines before it.
std::string manifest_text(const Manifest& manifest);
/// Nothing where the text is not what manifest_text wrote: a damaged list says nothing about files.
std::optional<Manifest> parse_manifest(std::string_view text);

/// The whole file. Throws UserError, naming it, when it cannot be read.
std::string read_file(const std::filesystem::path& path);
/// sha256 of a text.
std::string sha256_of(std::string_view text);

}  // namespace touchstone
