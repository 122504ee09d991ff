#include "simulator/rational.h"

#include <fmt/format.h>

#include <cstdlib>
#include <numeric>

#include "simulator/checked.h"

namespace touchstone {

Rational::Rational(int64_t numerator, int64_t denominator) {
    if (denominator == 0) {
        fmt::print(stderr, "touchstone: internal error: Rational({}, 0)\n", numerator);
        std::abort();
    }
    const int64_t sign = denominator < 0 ? -1 : 1;
    const int64_t divisor = std::gcd(numerator, denominator);
    numerator_ = sign * (numerator / divisor);
    denominator_ = sign * (denominator / divisor);
}

std::string Rational::fraction() const {
    return is_integer() ? fmt::format("{}", numerator_) : fmt::format("{}/{}", numerator_, denominator_);
}

std::string Rational::decimal(int digits) const {
    int64_t rest = denominator_;
    while (rest % 2 == 0) rest /= 2;
    while (rest % 5 == 0) rest /= 5;
    if (rest != 1) return fmt::format("{:.{}f}", value(), digits);
    // The expansion ends: long division, digit by digit.
    std::string text = fmt::format("{}{}", numerator_ < 0 ? "-" : "", std::abs(numerator_ / denominator_));
    int64_t remainder = std::abs(numerator_ % denominator_);
    if (remainder != 0) text += '.';
    while (remainder != 0) {
        remainder = checked_multiply(remainder, 10);
        text += static_cast<char>('0' + remainder / denominator_);
        remainder %= denominator_;
    }
    return text;
}

Rational operator+(const Rational& a, const Rational& b) {
    return {checked_add(checked_multiply(a.numerator_, b.denominator_),
                        checked_multiply(b.numerator_, a.denominator_)),
            checked_multiply(a.denominator_, b.denominator_)};
}

Rational operator*(const Rational& a, const Rational& b) {
    return {checked_multiply(a.numerator_, b.numerator_), checked_multiply(a.denominator_, b.denominator_)};
}

Rational operator/(const Rational& a, const Rational& b) {
    return {checked_multiply(a.numerator_, b.denominator_), checked_multiply(a.denominator_, b.numerator_)};
}

}  // namespace touchstone
