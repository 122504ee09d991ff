#include "golden/device/tensor_core_inputs.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "reference/io/user_error.h"
#include "reference/numerics/random.h"

namespace touchstone {

namespace {

/// A binary format as far as inputs need it. Bits stand `shift` above the lowest of the stored word.
struct Format {
    int exponent_bits, mantissa_bits, shift;
    bool infinities;

    int largest_exponent() const { return (1 << (exponent_bits - 1)) - (infinities ? 1 : 0); }
    int smallest_exponent() const { return 2 - (1 << (exponent_bits - 1)); }
    int smallest_subnormal_exponent() const { return smallest_exponent() - mantissa_bits; }
    bool wide_range() const { return exponent_bits == 8; }
    uint32_t sign() const { return 1u << (exponent_bits + mantissa_bits) << shift; }
    uint32_t infinity() const { return ((1u << exponent_bits) - 1) << mantissa_bits << shift; }
};

constexpr Format fp32{8, 23, 0, true};

Format operand_format(const MatrixInstruction& instruction) {
    const std::string_view operands = instruction.name.substr(instruction.name.rfind('.') + 1);
    if (operands == "bf16") return {8, 7, 0, true};
    if (operands == "f16") return {5, 10, 0, true};
    if (operands == "tf32") return {8, 10, 13, true};
    return {4, 3, 0, false};  // e4m3; s8 takes bytes as they come
}

/// +-1.mantissa * 2^exponent as bits; exponents above the largest are clamped to it, below the smallest the
/// number is subnormal, or zero. The largest e4m3 mantissa would be NaN and is stepped down.
uint32_t encode(const Format& format, bool negative, int exponent, uint32_t mantissa) {
    mantissa &= (1u << format.mantissa_bits) - 1;
    exponent = std::min(exponent, format.largest_exponent());
    uint32_t bits = mantissa | 1u << format.mantissa_bits;
    if (exponent < format.smallest_exponent()) {
        bits >>= std::min(format.smallest_exponent() - exponent, 31);
    } else {
        if (!format.infinities && exponent == format.largest_exponent() && mantissa == 7) bits -= 1;
        bits += static_cast<uint32_t>(exponent - format.smallest_exponent()) << format.mantissa_bits;
    }
    return bits << format.shift | (negative ? format.sign() : 0);
}

/// The words of a stream, one after the other.
class RandomWords {
  public:
    RandomWords(uint64_t seed, uint64_t stream) : stream_{seed, stream} {}
    uint32_t next() {
        if (next_ % 4 == 0) block_ = stream_.block(next_ / 4);
        return block_.words[next_++ % 4];
    }
    /// A number in [0, n), n at most 2^16: the high bits of a word.
    uint32_t below(uint32_t n) { return (next() >> 16) * n >> 16; }
    bool one_in(uint32_t n) { return below(n) == 0; }

  private:
    RandomStream stream_;
    uint64_t next_ = 0;
    PhiloxBlock block_{};
};

/// One tile under construction: zero-extended operand bits, rows of `k_total`.
struct Tile {
    const MatrixInstruction& instruction;
    Format format;
    int64_t index;
    int k_total;
    std::vector<uint32_t> a, b, c;
    RandomWords words;

    int m() const { return instruction.m; }
    int n() const { return instruction.n; }
    uint32_t& at_a(int i, int k) { return a[static_cast<size_t>(i * k_total + k)]; }
    uint32_t& at_b(int j, int k) { return b[static_cast<size_t>(j * k_total + k)]; }

    /// A number of random sign and mantissa, exponent uniform in [low, high].
    uint32_t number(const Format& of, int low, int high) {
        const uint32_t word = words.next();
        const int exponent = low + static_cast<int>(words.below(static_cast<uint32_t>(high - low + 1)));
        return encode(of, word >> 31, exponent, word);
    }
    uint32_t zero() { return words.one_in(2) ? format.sign() : 0; }
    void fill(std::vector<uint32_t>& operand, int low, int high, bool with_zeros = true) {
        for (uint32_t& x : operand) x = with_zeros && words.one_in(16) ? zero() : number(format, low, high);
    }
    /// C of one of four kinds, by tile: zero, of exponents [low, high], 8 to 28 binades above, and with its
    /// low 14 bits set.
    void fill_c(int low, int high) {
        const int kind = static_cast<int>(index % 4);
        for (uint32_t& x : c) {
            x = 0;
            if (kind == 1) x = number(fp32, low, high);
            if (kind == 2) x = number(fp32, high + 8, high + 28);
            if (kind == 3) x = number(fp32, low, high) | 0x3FFF;
        }
    }
};

template <int spread>
void fill_spread(Tile& tile) {
    const int low = std::max(-spread, tile.format.smallest_subnormal_exponent());
    const int high = std::min(spread, tile.format.largest_exponent());
    tile.fill(tile.a, low, high, spread > 1);
    tile.fill(tile.b, low, high, spread > 1);
    tile.fill_c(-2 * spread, 2 * spread + 4);
}

/// A of a tile around 2^r, B around 2^-r, r anywhere in the format's exponents, subnormals included.
void fill_full_range(Tile& tile) {
    const Format& f = tile.format;
    const int lowest = f.smallest_subnormal_exponent();
    const int r = lowest + static_cast<int>(tile.words.below(f.largest_exponent() - lowest + 1));
    tile.fill(tile.a, r - 4, r + 4);
    tile.fill(tile.b, -r - 4, -r + 4);
    tile.fill_c(-10, 12);
}

/// Products so small that the exponent given to zero terms decides where they are cut: for formats of 8
/// exponent bits their sums lie around 2^-149, where fp32 ends. By tile: both operands normal; B subnormal;
/// one nonzero product per row among zeros. C: +0, -0, subnormal, small.
void fill_tiny_products(Tile& tile) {
    const Format& f = tile.format;
    const int lowest = f.smallest_subnormal_exponent(), variant = static_cast<int>(tile.index % 3);
    if (!f.wide_range()) {
        tile.fill(tile.a, lowest, f.smallest_exponent() + 1);
        tile.fill(tile.b, lowest, f.smallest_exponent() + 1);
    } else if (variant == 1) {
        tile.fill(tile.a, -26, -8);
        tile.fill(tile.b, lowest, f.smallest_exponent() - 1);
    } else {
        tile.fill(tile.a, -78, -70);
        tile.fill(tile.b, -78, -70);
    }
    for (int i = 0; i < tile.m(); ++i) {
        const int kept = static_cast<int>(tile.words.below(static_cast<uint32_t>(tile.k_total)));
        for (int k = 0; k < tile.k_total; ++k)
            if (variant == 2 ? k != kept : i % 2 == 1 && tile.words.one_in(4)) tile.at_a(i, k) = tile.zero();
    }
    const int c_kind = static_cast<int>(tile.index / 3 % 4);
    for (uint32_t& x : tile.c)
        x = c_kind == 0   ? 0
            : c_kind == 1 ? fp32.sign()
            : c_kind == 2 ? tile.number(fp32, -149, -127)
                          : tile.number(fp32, -126, -118);
}

/// Zeros times the largest numbers, beside small products: a zero must not lift the common exponent.
void fill_zero_times_large(Tile& tile) {
    const Format& f = tile.format;
    const int small = f.wide_range() ? -20 : f.smallest_exponent() / 2;
    std::vector<uint32_t>& zeros = tile.index % 2 == 0 ? tile.a : tile.b;
    std::vector<uint32_t>& large = tile.index % 2 == 0 ? tile.b : tile.a;
    tile.fill(zeros, small - 2, small + 2);
    tile.fill(large, small - 2, small + 2);
    for (size_t i = 0; i < zeros.size(); i += 2) zeros[i] = tile.zero();
    for (size_t i = 0; i < large.size(); i += 2)
        large[i] = tile.number(f, f.largest_exponent() - 1, f.largest_exponent());
    for (uint32_t& x : tile.c) x = tile.index / 2 % 2 == 0 ? 0 : tile.number(fp32, 2 * small, 2 * small + 4);
}

/// Infinities of one sign among finite positive numbers: the sum is infinite, never NaN.
void fill_infinities(Tile& tile) {
    const bool in_c = tile.index % 2 == 1 || !tile.format.infinities;
    const uint32_t rarity = static_cast<uint32_t>(4 * tile.k_total);
    for (std::vector<uint32_t>* operand : {&tile.a, &tile.b})
        for (uint32_t& x : *operand)
            x = !in_c && tile.words.one_in(rarity) ? tile.format.infinity()
                                                   : tile.number(tile.format, -4, 4) & ~tile.format.sign();
    for (uint32_t& x : tile.c)
        x = (in_c && tile.words.one_in(4) ? fp32.infinity() : tile.number(fp32, -8, 12)) & ~fp32.sign();
    if (in_c && tile.index % 4 == 3)
        for (uint32_t& x : tile.c) x |= fp32.sign();
}

/// NaNs of any payload, infinities of both signs and zeros in A, B and C: NaN in, inf * 0, inf - inf.
void fill_nans(Tile& tile) {
    const Format& f = tile.format;
    const uint32_t rarity = static_cast<uint32_t>(4 * tile.k_total);
    const uint32_t payload_mask = ((1u << f.mantissa_bits) - 1) << f.shift;
    const auto special = [&](const Format& of, uint32_t mask) {
        const uint32_t word = tile.words.next(), sign = word >> 31 ? of.sign() : 0;
        if (!of.infinities) return of.infinity() | mask | sign;
        const bool nan = tile.words.one_in(2);
        return of.infinity() | sign | (nan ? (word & mask) | 1u << of.shift : 0);
    };
    for (std::vector<uint32_t>* operand : {&tile.a, &tile.b})
        for (uint32_t& x : *operand) {
            const bool is_special = tile.words.one_in(rarity);
            x = is_special             ? special(f, payload_mask)
                : tile.words.one_in(8) ? tile.zero()
                                       : tile.number(f, -4, 4);
        }
    for (uint32_t& x : tile.c) x = tile.words.one_in(8) ? special(fp32, 0x7FFFFF) : tile.number(fp32, -8, 12);
}

/// Sums around the largest fp32, from products of one sign (even rows) and of both; every fourth tile has
/// products of 2^254 that cancel in pairs, which no product on its own can hold.
void fill_overflow(Tile& tile) {
    const Format& f = tile.format;
    const bool cancelling = f.wide_range() && tile.index % 4 == 3;
    const int exponent = f.wide_range() ? (cancelling ? 127 : 62) : f.largest_exponent();
    tile.fill(tile.a, exponent - 2, exponent, false);
    tile.fill(tile.b, exponent - 2, exponent, false);
    for (int k = 0; k < tile.k_total; ++k) {
        for (int i = 0; i < tile.m(); i += 2) tile.at_a(i, k) &= ~f.sign();
        for (int j = 0; j < tile.n(); ++j) tile.at_b(j, k) &= ~f.sign();
    }
    for (int k = 1; cancelling && k < tile.k_total; k += 2) {
        for (int i = 0; i < tile.m(); ++i) tile.at_a(i, k) = tile.at_a(i, k - 1) ^ f.sign();
        for (int j = 0; j < tile.n(); ++j) tile.at_b(j, k) = tile.at_b(j, k - 1);
    }
    const bool zero_c = tile.index % 4 == 0;
    for (uint32_t& x : tile.c) x = zero_c ? 0 : tile.number(fp32, 124, 127);
}

/// Every product -0 (even tiles) or a zero of either sign; C +0, -0, or not zero.
void fill_negative_zero(Tile& tile) {
    for (uint32_t& x : tile.a) x = tile.index % 2 == 0 ? 0 : tile.zero();
    for (uint32_t& x : tile.b)
        x = (tile.words.one_in(4) ? 0 : tile.number(tile.format, -4, 4)) | tile.format.sign();
    const int c_kind = static_cast<int>(tile.index / 2 % 3);
    for (uint32_t& x : tile.c) x = c_kind == 0 ? 0 : c_kind == 1 ? fp32.sign() : tile.number(fp32, -149, 4);
}

/// Results around and below 2^-126, C among them.
void fill_subnormal_results(Tile& tile) {
    const Format& f = tile.format;
    const int low = f.wide_range() ? -70 : f.smallest_subnormal_exponent();
    const int high = f.wide_range() ? -62 : low + 2;
    tile.fill(tile.a, low, high);
    tile.fill(tile.b, low, high);
    if (!f.wide_range() && tile.index % 2 == 1)  // these formats reach fp32's subnormals through C alone
        for (uint32_t& x : tile.a) x = tile.zero();
    for (uint32_t& x : tile.c) x = tile.index % 4 == 3 ? 0 : tile.number(fp32, -149, -120);
}

/// In every step a pair of equal large products of opposite sign among small ones: what is left shows where
/// the small ones were cut. B has one value per column.
void fill_cancellation(Tile& tile) {
    const Format& f = tile.format;
    const int large = std::min(12, f.largest_exponent());
    const int least = std::max(large - 30, f.smallest_subnormal_exponent());
    for (int i = 0; i < tile.m(); ++i)
        for (int k = 0; k < tile.k_total; k += tile.instruction.k) {
            for (int t = 0; t < tile.instruction.k; ++t)
                tile.at_a(i, k + t) = tile.number(f, least, std::min(large - 1, least + 14));
            const int pair = k + 2 * static_cast<int>(tile.words.below(tile.instruction.k / 2));
            tile.at_a(i, pair) = tile.number(f, large, large);
            tile.at_a(i, pair + 1) = tile.at_a(i, pair) ^ f.sign();
        }
    for (int j = 0; j < tile.n(); ++j) {
        const uint32_t column = tile.number(f, 0, 0);
        for (int k = 0; k < tile.k_total; ++k) tile.at_b(j, k) = column;
    }
    for (uint32_t& x : tile.c) x = tile.index % 2 == 0 ? 0 : tile.number(fp32, least, large);
}

/// tf32 operands whose 13 ignored bits are random, among them infinities that would be NaNs if they counted.
void fill_ignored_bits(Tile& tile) {
    fill_spread<4>(tile);
    const uint32_t rarity = static_cast<uint32_t>(8 * tile.k_total);
    for (std::vector<uint32_t>* operand : {&tile.a, &tile.b})
        for (uint32_t& x : *operand) {
            if (tile.words.one_in(rarity)) x = fp32.infinity();
            x |= tile.words.next() & 0x1FFF;
        }
}

/// Any byte, any accumulator.
void fill_bytes(Tile& tile) {
    for (std::vector<uint32_t>* operand : {&tile.a, &tile.b})
        for (uint32_t& x : *operand) x = tile.words.next() >> 24;
    for (uint32_t& x : tile.c) x = tile.words.next();
}

/// Bytes -128 and 127 alone, accumulators within 2^20 of the ends of int32: most sums leave the range.
void fill_wrap(Tile& tile) {
    for (std::vector<uint32_t>* operand : {&tile.a, &tile.b})
        for (uint32_t& x : *operand) x = tile.words.one_in(2) ? 0x80 : 0x7F;
    for (uint32_t& x : tile.c) x = 0x80000000u + (tile.words.next() >> 11) - (1u << 20);
}

bool floating(const MatrixInstruction& instruction) {
    return !instruction.integer;
}
bool integer(const MatrixInstruction& instruction) {
    return instruction.integer;
}
bool tf32(const MatrixInstruction& instruction) {
    return instruction.name.ends_with(".tf32");
}

constexpr TensorCoreInputKind kinds[] = {
    {"narrow", "one binade each side of 1", true, floating},
    {"medium", "16 binades of products", true, floating},
    {"wide", "56 binades of products, or all that the format has", true, floating},
    {"full_range", "every exponent of the format, subnormals included", true, floating},
    {"bytes", "all int8 values, any accumulator", true, integer},
    {"tiny_products", "the exponent of zero terms; subnormal operands", false, floating},
    {"zero_times_large", "whether zeros lift the common exponent", false, floating},
    {"infinities", "infinities of one sign", false, floating},
    {"nans", "NaN in, inf * 0, inf - inf; the bits of NaN out", false, floating},
    {"overflow", "sums beyond the largest fp32; products beyond it that cancel", false, floating},
    {"negative_zero", "the sign of zero sums", false, floating},
    {"subnormal_results", "results below 2^-126", false, floating},
    {"cancellation", "where small terms are cut beside large ones that cancel", false, floating},
    {"ignored_bits", "the 13 low bits of tf32 operands", false, tf32},
    {"wrap", "int32 sums out of range", false, integer},
};

using Fill = void (*)(Tile&);

/// In the order of `kinds`.
constexpr Fill fills[] = {
    fill_spread<1>,     fill_spread<4>,         fill_spread<14>,   fill_full_range,   fill_bytes,
    fill_tiny_products, fill_zero_times_large,  fill_infinities,   fill_nans,         fill_overflow,
    fill_negative_zero, fill_subnormal_results, fill_cancellation, fill_ignored_bits, fill_wrap,
};
static_assert(std::size(kinds) == std::size(fills));

Fill fill_of(const MatrixInstruction& instruction, std::string_view kind) {
    std::string applicable;
    for (size_t i = 0; i < std::size(kinds); ++i) {
        if (!kinds[i].applies(instruction)) continue;
        if (kinds[i].name == kind) return fills[i];
        applicable += (applicable.empty() ? "" : ", ") + std::string(kinds[i].name);
    }
    throw UserError(
        {fmt::format("no inputs \"{}\" for {}", kind, instruction.name), "inputs", applicable, ""});
}

void pack(const std::vector<uint32_t>& values, int bytes, std::byte* to) {
    for (size_t i = 0; i < values.size(); ++i)
        for (int byte = 0; byte < bytes; ++byte) *to++ = static_cast<std::byte>(values[i] >> 8 * byte & 0xFF);
}

}  // namespace

std::span<const TensorCoreInputKind> tensor_core_input_kinds() {
    return kinds;
}

TensorCoreInputs make_tensor_core_inputs(const MatrixInstruction& instruction, std::string_view kind,
                                         int steps, int64_t tiles, uint64_t seed) {
    const Fill fill = fill_of(instruction, kind);
    const int bytes = instruction.operand_bytes, k_total = steps * instruction.k;
    const auto a_size = static_cast<size_t>(instruction.m * k_total);
    const auto b_size = static_cast<size_t>(instruction.n * k_total);
    const auto c_size = static_cast<size_t>(instruction.m * instruction.n);
    const auto count = static_cast<size_t>(tiles), width = static_cast<size_t>(bytes);
    TensorCoreInputs inputs{std::vector<std::byte>(count * a_size * width),
                            std::vector<std::byte>(count * b_size * width),
                            std::vector<uint32_t>(count * c_size)};
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < tiles; ++t) {
        Tile tile{.instruction = instruction,
                  .format = operand_format(instruction),
                  .index = t,
                  .k_total = k_total,
                  .a = std::vector<uint32_t>(a_size),
                  .b = std::vector<uint32_t>(b_size),
                  .c = std::vector<uint32_t>(c_size),
                  .words = {seed, static_cast<uint64_t>(t)}};
        fill(tile);
        const auto at = static_cast<size_t>(t);
        pack(tile.a, bytes, inputs.a.data() + at * a_size * width);
        pack(tile.b, bytes, inputs.b.data() + at * b_size * width);
        std::copy(tile.c.begin(), tile.c.end(), inputs.c.begin() + static_cast<int64_t>(at * c_size));
    }
    return inputs;
}

}  // namespace touchstone
