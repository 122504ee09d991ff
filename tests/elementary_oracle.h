// What both tests of the elementary functions share: true values in double, errors in ulp, the hash of a
// sample and the reading of golden/numerics/elementary_errors.txt.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "reference/numerics/elementary_vector.h"
#include "reference/numerics/tensor_hash.h"

namespace touchstone::oracle {

/// The true value to about 2^-52, by glibc's double functions (below 1 ulp of double, its manual says) on the
/// other side of cancellations.
inline double true_value(ElementaryFunction function, double x) {
    const auto sigmoid = [](double v) {
        return v < 0 ? std::exp(v) / (1 + std::exp(v)) : 1 / (1 + std::exp(-v));
    };
    const auto softplus = [](double v) { return v > 20 ? v : std::log1p(std::exp(v)); };
    switch (function) {
        case ElementaryFunction::exp2: return std::exp2(x);
        case ElementaryFunction::exp: return std::exp(x);
        case ElementaryFunction::log: return std::log(x);
        case ElementaryFunction::log1p: return std::log1p(x);
        // Below 2^-28 the next term, x^3/3, is lost in double; the function takes its time to find that.
        case ElementaryFunction::erf: return std::fabs(x) < 0x1p-28 ? x * 0x1.20dd750429b6dp+0 : std::erf(x);
        case ElementaryFunction::sigmoid: return sigmoid(x);
        case ElementaryFunction::silu: return x * sigmoid(x);
        case ElementaryFunction::softplus: return softplus(x);
        case ElementaryFunction::sqrt_softplus: return std::sqrt(softplus(x));
        case ElementaryFunction::gelu: return 0.5 * x * std::erfc(-x * 0x1.6a09e667f3bcdp-1);
        case ElementaryFunction::reciprocal_sqrt: return 1 / std::sqrt(x);
    }
    return std::numeric_limits<double>::quiet_NaN();
}

/// 1 / (distance of neighbouring fp32 numbers where `truth` lies), a power of two; |truth| < 2^128.
inline double per_ulp(double truth) {
    const auto exponent = static_cast<int64_t>(std::bit_cast<uint64_t>(truth) >> 52 & 0x7FF) - 1023;
    const int64_t normal = exponent < -126 ? -126 : exponent;
    return std::bit_cast<double>(static_cast<uint64_t>(1023 + 23 - normal) << 52);
}

/// |y - truth| in ulp of the truth's binade. Infinity stands for 2^128, as in rounding; NaN must meet NaN,
/// else the error is infinite.
inline double ulp_error(float y, double truth) {
    const auto finite = [](double v) { return std::fabs(v) < 0x1p128; };
    if (finite(truth) && finite(y)) return std::fabs(y - truth) * per_ulp(truth);
    if (std::isnan(y) || std::isnan(truth)) {
        return float_bits(y) == canonical_nan_bits && std::isnan(truth) ? 0 : HUGE_VAL;
    }
    const auto cut = [&](double v) { return finite(v) ? v : std::copysign(0x1p128, v); };
    return std::fabs(cut(y) - cut(truth)) * per_ulp(finite(truth) ? truth : 0x1p127);
}

/// fp32 patterns at which something ends or begins.
inline const std::vector<uint32_t>& special_bits() {
    static const std::vector<uint32_t> bits = [] {
        std::vector<uint32_t> result;
        for (uint32_t magnitude :
             {0x00000000u, 0x00000001u, 0x007FFFFFu, 0x00800000u, 0x3F800000u, 0x41A00000u, 0x7F7FFFFFu,
              0x7F800000u, 0x7F800001u, 0x7FC00000u, 0x7FFFFFFFu}) {
            result.push_back(magnitude);
            result.push_back(magnitude | 0x80000000u);
        }
        return result;
    }();
    return bits;
}

/// Every 1021st bit pattern (a prime): 2^22 inputs from all over.
inline constexpr uint32_t sample_stride = 1021;
inline constexpr uint32_t sample_size = 1u << 22;

/// The tensor hash of the function's results over the sample, by position = input bits.
inline uint64_t sample_hash(ElementaryFunction function) {
    constexpr uint32_t block = 1u << 12;
    std::vector<float> x(block), y(block);
    uint64_t hash = 0;
    for (uint32_t first = 0; first < sample_size; first += block) {
        for (uint32_t i = 0; i < block; ++i) x[i] = float_from_bits((first + i) * sample_stride);
        evaluate(function, x, y);
        for (uint32_t i = 0; i < block; ++i) {
            hash += element_hash(uint64_t{first + i} * sample_stride, float_bits(y[i]));
        }
    }
    return hash;
}

inline std::string golden_text() {
    std::ifstream file(TOUCHSTONE_ELEMENTARY_GOLDEN);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

/// The stored hashes, by function: of all 2^32 results and of the sample, the last two fields of a function's
/// line.
struct StoredHashes {
    uint64_t all = 0, sample = 0;
};

inline std::map<std::string, StoredHashes, std::less<>> stored_hashes() {
    std::map<std::string, StoredHashes, std::less<>> hashes;
    std::istringstream lines(golden_text());
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        std::vector<std::string> fields;
        for (std::string word; words >> word;) fields.push_back(word);
        for (const ElementaryFunctionInfo& info : elementary_functions()) {
            if (fields.size() < 3 || fields[0] != info.name) continue;
            hashes[fields[0]] = {std::stoull(fields[fields.size() - 2], nullptr, 16),
                                 std::stoull(fields.back(), nullptr, 16)};
        }
    }
    return hashes;
}

}  // namespace touchstone::oracle
