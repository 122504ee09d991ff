#include "reference/registry/case_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

constexpr const char* form = "name(key=value,key=value) without spaces";

bool is_word(std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, [](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
               c == '.' || c == '-' || c == '+';
    });
}

}  // namespace

CaseText::CaseText(std::string_view text, std::string where) : text_(text), where_(std::move(where)) {
    const size_t open = text.find('(');
    if (open == std::string_view::npos || !text.ends_with(')')) refuse("it has no (...)", form);
    name_ = text.substr(0, open);
    if (!is_word(name_)) refuse(fmt::format("\"{}\" is no name", name_), form);
    std::string_view rest = text.substr(open + 1, text.size() - open - 2);
    while (!rest.empty()) {
        const size_t comma = std::min(rest.find(','), rest.size());
        const std::string_view item = rest.substr(0, comma);
        const size_t equals = std::min(item.find('='), item.size());
        const std::string key(item.substr(0, equals));
        const std::string value(item.substr(std::min(equals + 1, item.size())));
        if (!is_word(key) || !is_word(value)) refuse(fmt::format("\"{}\" is no key=value", item), form);
        if (std::ranges::find(parameters_, key, &std::pair<std::string, std::string>::first) !=
            parameters_.end())
            refuse(fmt::format("\"{}\" is given twice", key), "each key once");
        parameters_.emplace_back(key, value);
        if (comma + 1 == rest.size()) refuse("it ends with a comma", form);
        rest = rest.substr(std::min(comma + 1, rest.size()));
    }
}

bool CaseText::has(std::string_view key) const {
    return std::ranges::find(parameters_, key, &std::pair<std::string, std::string>::first) !=
           parameters_.end();
}

std::string CaseText::take_text(std::string_view key) {
    const auto found = std::ranges::find(parameters_, key, &std::pair<std::string, std::string>::first);
    if (found == parameters_.end())
        refuse(fmt::format("\"{}\" is missing", key), fmt::format("{}=... among the parameters", key));
    std::string value = found->second;
    parameters_.erase(found);
    return value;
}

int64_t CaseText::take_integer(std::string_view key, int64_t low, int64_t high) {
    const std::string text = take_text(key);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool digits = std::ranges::all_of(text, [](char c) { return c >= '0' && c <= '9'; });
    if (error != std::errc() || end != text.data() + text.size() || !digits || value < low || value > high)
        refuse(fmt::format("{}={}", key, text), fmt::format("a whole number from {} to {}", low, high));
    return value;
}

double CaseText::take_real(std::string_view key, double low, double high) {
    const std::string text = take_text(key);
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || end != text.data() + text.size() || !(value >= low && value <= high))
        refuse(fmt::format("{}={}", key, text), fmt::format("a number from {} to {}", low, high));
    return value;
}

void CaseText::require_all_taken() const {
    if (!parameters_.empty())
        refuse(fmt::format("unknown parameter \"{}\"", parameters_.front().first),
               fmt::format("only parameters that {} has", name_));
}

void CaseText::refuse(const std::string& what, const std::string& expected) const {
    throw UserError({fmt::format("case \"{}\": {}", text_, what), where_, expected, ""});
}

}  // namespace touchstone
