#include "reference/registry/shape_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

/// Recursive descent; one function per level of precedence.
class Parser {
  public:
    Parser(std::string_view text, const Lookup& lookup) : text_(text), rest_(text), lookup_(lookup) {}

    int64_t whole() {
        const int64_t value = sum();
        if (next() != 0) refuse(fmt::format("\"{}\" is left over", rest_));
        return value;
    }

  private:
    int64_t sum() {
        int64_t value = product();
        for (char op = next(); op == '+' || op == '-'; op = next()) {
            take();
            value = combine(value, op, product());
        }
        return value;
    }
    int64_t product() {
        int64_t value = factor();
        for (char op = next(); op == '*' || op == '/' || op == '%'; op = next()) {
            take();
            value = combine(value, op, factor());
        }
        return value;
    }
    int64_t factor() {
        if (next() == '(') {
            take();
            const int64_t value = sum();
            if (next() != ')') refuse("a ) is missing");
            take();
            return value;
        }
        size_t length = 0;
        while (length < rest_.size() && (is_letter(rest_[length]) || is_digit(rest_[length]))) ++length;
        const std::string_view word = rest_.substr(0, length);
        rest_.remove_prefix(length);
        if (is_identifier(word)) return lookup_(word);
        int64_t number = 0;
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
        if (error != std::errc() || end != word.data() + word.size())
            refuse(fmt::format("\"{}\" is no number, name or (", word.empty() ? rest_ : word));
        return number;
    }

    int64_t combine(int64_t a, char op, int64_t b) const {
        int64_t result = 0;
        bool fits = true;
        switch (op) {
            case '+': fits = !__builtin_add_overflow(a, b, &result); break;
            case '-': fits = !__builtin_sub_overflow(a, b, &result); break;
            case '*': fits = !__builtin_mul_overflow(a, b, &result); break;
            default:
                if (b == 0) refuse("it divides by 0");
                result = op == '/' ? a / b : a % b;
        }
        if (!fits) refuse("it leaves 64 bits");
        return result;
    }

    char next() {
        while (!rest_.empty() && rest_.front() == ' ') rest_.remove_prefix(1);
        return rest_.empty() ? '\0' : rest_.front();
    }
    void take() { rest_.remove_prefix(1); }
    [[noreturn]] void refuse(const std::string& what) const {
        throw UserError({fmt::format("expression \"{}\": {}", text_, what), "a shape or limit",
                         "numbers, names, ( ) + - * / %", ""});
    }

    std::string_view text_, rest_;
    const Lookup& lookup_;
};

}  // namespace

int64_t evaluate(std::string_view expression, const Lookup& lookup) {
    return Parser(expression, lookup).whole();
}

std::vector<std::string> extents_of(std::string_view shape) {
    if (!shape.starts_with('[') || !shape.ends_with(']'))
        throw UserError({fmt::format("\"{}\" is no shape", shape), "", "[extent, extent, ..]", ""});
    std::vector<std::string> extents;
    std::string_view rest = shape.substr(1, shape.size() - 2);
    while (!rest.empty()) {
        const size_t comma = std::min(rest.find(','), rest.size());
        std::string_view extent = rest.substr(0, comma);
        while (extent.starts_with(' ')) extent.remove_prefix(1);
        while (extent.ends_with(' ')) extent.remove_suffix(1);
        extents.emplace_back(extent);
        rest.remove_prefix(std::min(comma + 1, rest.size()));
    }
    return extents;
}

std::vector<int64_t> evaluate_shape(std::string_view shape, const Lookup& lookup) {
    std::vector<int64_t> result;
    for (const std::string& extent : extents_of(shape)) result.push_back(evaluate(extent, lookup));
    return result;
}

bool is_identifier(std::string_view text) {
    return !text.empty() && is_letter(text.front()) &&
           std::ranges::all_of(text, [](char c) { return is_letter(c) || is_digit(c); });
}

}  // namespace touchstone
