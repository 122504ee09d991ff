// Exact fractions for rates such as 3514.25 bytes per token.
#pragma once

#include <cstdint>
#include <string>

namespace touchstone {

/// numerator / denominator in lowest terms, denominator > 0. Operations throw UserError when a term leaves
/// int64.
class Rational {
  public:
    Rational(int64_t value = 0) : numerator_(value), denominator_(1) {}  // NOLINT: integers are fractions
    Rational(int64_t numerator, int64_t denominator);

    int64_t numerator() const { return numerator_; }
    int64_t denominator() const { return denominator_; }
    bool is_integer() const { return denominator_ == 1; }
    double value() const { return static_cast<double>(numerator_) / static_cast<double>(denominator_); }

    /// "890", "14057/4".
    std::string fraction() const;
    /// The exact decimal expansion where it ends ("3514.25"), otherwise rounded to `digits` decimals.
    std::string decimal(int digits = 4) const;

    friend Rational operator+(const Rational& a, const Rational& b);
    friend Rational operator*(const Rational& a, const Rational& b);
    friend Rational operator/(const Rational& a, const Rational& b);
    friend bool operator==(const Rational&, const Rational&) = default;

  private:
    int64_t numerator_;
    int64_t denominator_;
};

}  // namespace touchstone
