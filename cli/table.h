// Tables for people (aligned text) and for programs (CSV, RFC 4180).
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "simulator/rational.h"

namespace touchstone::cli {

/// A double with the number of decimals shown to people; CSV gets the shortest form that reads back the same.
struct Decimal {
    double value;
    int decimals;
};

/// Text cells are left-aligned, numbers right-aligned with thousands separators (none in CSV).
using Cell = std::variant<std::string, int64_t, Rational, Decimal>;

class Table {
  public:
    explicit Table(std::vector<std::string> headers) : headers_(std::move(headers)) {}
    void add_row(std::vector<Cell> cells);
    /// Lines with two leading spaces, columns two spaces apart.
    std::string text() const;
    std::string csv() const;

  private:
    std::vector<std::string> headers_;
    std::vector<std::vector<Cell>> rows_;
};

/// "2,703,360", "3,514.25".
std::string grouped(int64_t value);
std::string grouped(const Rational& value);
/// "2, 8, 14", "0-39", "2-42 step 2", "-" when empty.
std::string layer_list(const std::vector<int>& layers);

}  // namespace touchstone::cli
