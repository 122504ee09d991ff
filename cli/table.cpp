#include "cli/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

namespace touchstone::cli {

namespace {

std::string group_digits(const std::string& number) {
    const size_t start = number.starts_with('-') ? 1 : 0;
    const size_t end = std::min(number.find('.'), number.size());
    std::string text = number.substr(0, start);
    for (size_t i = start; i < end; ++i) {
        if (i > start && (end - i) % 3 == 0) text += ',';
        text += number[i];
    }
    return text + number.substr(end);
}

std::string shown(const Cell& cell) {
    if (const auto* text = std::get_if<std::string>(&cell)) return *text;
    if (const auto* integer = std::get_if<int64_t>(&cell)) return grouped(*integer);
    if (const auto* rational = std::get_if<Rational>(&cell)) return grouped(*rational);
    const Decimal& decimal = std::get<Decimal>(cell);
    return group_digits(fmt::format("{:.{}f}", decimal.value, decimal.decimals));
}

std::string quoted(const std::string& text) {
    if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
    std::string out = "\"";
    for (const char c : text) {
        if (c == '"') out += '"';
        out += c;
    }
    return out + '"';
}

std::string csv_cell(const Cell& cell) {
    if (const auto* text = std::get_if<std::string>(&cell)) return quoted(*text);
    if (const auto* integer = std::get_if<int64_t>(&cell)) return fmt::format("{}", *integer);
    if (const auto* rational = std::get_if<Rational>(&cell)) return rational->decimal(9);
    return fmt::format("{}", std::get<Decimal>(cell).value);
}

std::string trimmed(std::string line) {
    line.erase(line.find_last_not_of(' ') + 1);
    return line;
}

}  // namespace

void Table::add_row(std::vector<Cell> cells) {
    if (cells.size() != headers_.size()) {
        fmt::print(stderr, "touchstone: internal error: {} cells for {} columns\n", cells.size(),
                   headers_.size());
        std::abort();
    }
    rows_.push_back(std::move(cells));
}

std::string Table::text() const {
    std::vector<size_t> widths;
    std::vector<bool> numeric;
    for (size_t column = 0; column < headers_.size(); ++column) {
        size_t width = headers_[column].size();
        bool is_numeric = false;
        for (const std::vector<Cell>& row : rows_) {
            width = std::max(width, shown(row[column]).size());
            is_numeric = is_numeric || row[column].index() != 0;
        }
        widths.push_back(width);
        numeric.push_back(is_numeric);
    }
    const auto line = [&](const auto& cell_text) {
        std::string text;
        for (size_t column = 0; column < headers_.size(); ++column)
            text += numeric[column] ? fmt::format("  {:>{}}", cell_text(column), widths[column])
                                    : fmt::format("  {:<{}}", cell_text(column), widths[column]);
        return trimmed(text) + '\n';
    };
    std::string out = line([&](size_t column) { return headers_[column]; });
    for (const std::vector<Cell>& row : rows_) out += line([&](size_t column) { return shown(row[column]); });
    return out;
}

std::string Table::csv() const {
    std::string out;
    for (size_t column = 0; column < headers_.size(); ++column)
        out += (column ? "," : "") + quoted(headers_[column]);
    out += "\r\n";
    for (const std::vector<Cell>& row : rows_) {
        for (size_t column = 0; column < row.size(); ++column)
            out += (column ? "," : "") + csv_cell(row[column]);
        out += "\r\n";
    }
    return out;
}

std::string grouped(int64_t value) {
    return group_digits(fmt::format("{}", value));
}

std::string grouped(const Rational& value) {
    return group_digits(value.decimal());
}

std::string layer_list(const std::vector<int>& layers) {
    if (layers.empty()) return "-";
    const int step = layers.size() > 1 ? layers[1] - layers[0] : 1;
    bool even_steps = layers.size() > 3;
    for (size_t i = 1; i < layers.size(); ++i) even_steps = even_steps && layers[i] - layers[i - 1] == step;
    if (even_steps)
        return fmt::format("{}-{}{}", layers.front(), layers.back(),
                           step == 1 ? "" : fmt::format(" step {}", step));
    std::string text;
    for (const int layer : layers) text += (text.empty() ? "" : ", ") + std::to_string(layer);
    return text;
}

}  // namespace touchstone::cli
