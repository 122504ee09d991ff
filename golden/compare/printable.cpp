#include "golden/compare/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace touchstone {

namespace {

bool is_continuation(char c) {
    return (static_cast<unsigned char>(c) & 0xC0) == 0x80;
}

/// First bytes of UTF-8 sequences, and what may stand second: overlong forms, surrogates and what lies beyond
/// U+10FFFF are no characters.
struct Utf8Form {
    uint8_t first_begin, first_end, second_begin, second_end;
    size_t bytes;
};

constexpr Utf8Form utf8_forms[]{
    // From U+00A0: C1, U+0080 to U+009F, are control characters.
    {0xC2, 0xC2, 0xA0, 0xBF, 2}, {0xC3, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3},
    {0xE1, 0xEC, 0x80, 0xBF, 3}, {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3},
    {0xF0, 0xF0, 0x90, 0xBF, 4}, {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4},
};

/// Bytes of the character that `text` begins with, 0 where it is none to be shown.
size_t character_bytes(std::string_view text) {
    const uint8_t first = static_cast<uint8_t>(text[0]);
    if (first < 0x80) return first >= 0x20 && first != 0x7F ? 1 : 0;
    const uint8_t second = text.size() < 2 ? uint8_t{0} : static_cast<uint8_t>(text[1]);
    for (const Utf8Form& form : utf8_forms) {
        if (first < form.first_begin || first > form.first_end || second < form.second_begin ||
            second > form.second_end || text.size() < form.bytes)
            continue;
        const std::string_view rest = text.substr(2, form.bytes - 2);
        return std::ranges::all_of(rest, is_continuation) ? form.bytes : 0;
    }
    return 0;
}

std::string escape_of(char c) {
    constexpr std::pair<char, std::string_view> short_forms[]{
        {'\n', "\\n"}, {'\r', "\\r"}, {'\t', "\\t"}, {'\f', "\\f"}, {'\v', "\\v"}};
    for (const auto& [character, form] : short_forms)
        if (character == c) return std::string(form);
    return fmt::format("\\x{:02X}", static_cast<uint8_t>(c));
}

}  // namespace

std::string printable(std::string_view text) {
    std::string result;
    while (!text.empty()) {
        const size_t bytes = character_bytes(text);
        result += bytes == 0 ? escape_of(text[0]) : std::string(text.substr(0, bytes));
        text.remove_prefix(std::max<size_t>(bytes, 1));
    }
    return result;
}

std::string escaped(std::string_view text) {
    std::string result;
    for (const char c : printable(text)) switch (c) {
            case '<': result += "&lt;"; break;
            case '>': result += "&gt;"; break;
            case '&': result += "&amp;"; break;
            case '"': result += "&quot;"; break;
            default: result += c;
        }
    return result;
}

std::string lower(std::string_view text) {
    std::string result(text);
    std::ranges::transform(result, result.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
    return result;
}

std::string shortened(std::string_view text, size_t most_bytes) {
    if (text.size() <= most_bytes) return std::string(text);
    std::string_view end = text.substr(text.size() - (most_bytes - 2));
    while (!end.empty() && is_continuation(end.front())) end.remove_prefix(1);
    return ".." + std::string(end);
}

std::string pattern_of(std::string_view text) {
    std::string pattern = "^";
    for (const char c : text) {
        const uint8_t code = static_cast<uint8_t>(c);
        if (std::string_view(".+*?()[]{}|^$\\").find(c) != std::string_view::npos) pattern += '\\';
        if (code < 0x20 || code == 0x7F)
            pattern += escape_of(c);
        else
            pattern += c;
    }
    return pattern + "$";
}

}  // namespace touchstone
