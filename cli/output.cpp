#include "cli/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <string_view>

namespace touchstone::cli {

void write_result(const std::string& text) {
    const size_t written = std::fwrite(text.data(), 1, text.size(), stdout);
    if (written != text.size() || std::fflush(stdout) != 0)
        throw std::runtime_error("cannot write to standard output");
}

std::string shell_word(const std::string& word) {
    const auto plain = [](char c) {
        return std::string_view("-_./=,:+@%").find(c) != std::string_view::npos || (c >= '0' && c <= '9') ||
               (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    };
    if (!word.empty() && std::ranges::all_of(word, plain)) return word;
    std::string text = "'";
    for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return text + "'";
}

std::string to_text(const nlohmann::json& object) {
    return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + '\n';
}

nlohmann::json to_json(const Rational& value) {
    if (value.is_integer()) return value.numerator();
    return value.value();
}

std::string assumptions_text(const std::vector<std::string>& assumptions) {
    if (assumptions.empty()) return "";
    std::string text = "\nAssumptions\n";
    for (const std::string& assumption : assumptions) text += fmt::format("  - {}\n", assumption);
    return text;
}

}  // namespace touchstone::cli
