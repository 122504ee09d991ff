#include "golden/store/manifest.h"

#include <fmt/format.h>

#include <algorithm>

#include "golden/store/sha256.h"
#include "reference/io/mapped_file.h"

namespace touchstone {

namespace {

constexpr size_t digest_digits = 64;

bool is_digest(std::string_view text) {
    return text.size() == digest_digits &&
           text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// Nothing outside the store, no line of two meanings.
bool is_store_path(std::string_view path) {
    return !path.empty() && path.front() != '/' && path.find("..") == std::string_view::npos &&
           std::ranges::all_of(path, [](char c) { return c > ' ' && c < 0x7F; });
}

std::string last_line(std::string_view lines) {
    return fmt::format("# {}  (the lines above)\n", sha256_of(lines));
}

}  // namespace

std::string sha256_of(std::string_view text) {
    return sha256(std::as_bytes(std::span(text)));
}

std::string read_file(const std::filesystem::path& path) {
    const MappedFile file(path, "a readable file");
    return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

std::string manifest_text(const Manifest& manifest) {
    std::string text;
    for (const auto& [path, digest] : manifest) text += fmt::format("{}  {}\n", digest, path);
    return text + last_line(text);
}

std::optional<Manifest> parse_manifest(std::string_view text) {
    Manifest manifest;
    size_t at = 0;
    while (at < text.size() && text[at] != '#') {
        const size_t end = text.find('\n', at);
        if (end == std::string_view::npos || end - at < digest_digits + 3) return std::nullopt;
        const std::string_view digest = text.substr(at, digest_digits);
        const std::string_view path = text.substr(at + digest_digits + 2, end - at - digest_digits - 2);
        if (!is_digest(digest) || text.substr(at + digest_digits, 2) != "  " || !is_store_path(path) ||
            !manifest.emplace(path, digest).second)
            return std::nullopt;
        at = end + 1;
    }
    if (text.substr(at) != last_line(text.substr(0, at))) return std::nullopt;
    return manifest;
}

}  // namespace touchstone
