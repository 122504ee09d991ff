#include "golden/compare/difference.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "golden/compare/element_types.h"
#include "reference/numerics/random.h"

using namespace touchstone;

namespace {

__extension__ typedef __int128 Wide;  // holds distances of any 64-bit type

constexpr double infinity = std::numeric_limits<double>::infinity();

struct Bytes {
    std::string type;
    std::vector<int64_t> shape;
    std::vector<std::byte> bytes;

    TensorView view() const { return {type, shape, bytes}; }
};

template <class T>
Bytes tensor(const std::string& type, std::vector<int64_t> shape, const std::vector<T>& values) {
    Bytes result{type, std::move(shape), std::vector<std::byte>(values.size() * sizeof(T))};
    if (!values.empty()) std::memcpy(result.bytes.data(), values.data(), result.bytes.size());
    return result;
}

Bytes floats(std::vector<int64_t> shape, const std::vector<float>& values) {
    return tensor("F32", std::move(shape), values);
}

/// What a type is, written from the formats' definitions: exponent and mantissa bits of the floating ones.
struct Format {
    std::string name;
    int bytes, exponent_bits, mantissa_bits;  ///< 0 and 0: an integer
    bool is_signed, has_infinity;
};

const Format formats[]{
    {"F64", 8, 11, 52, true, true},     {"F32", 4, 8, 23, true, true},    {"F16", 2, 5, 10, true, true},
    {"BF16", 2, 8, 7, true, true},      {"F8_E5M2", 1, 5, 2, true, true}, {"F8_E4M3", 1, 4, 3, true, false},
    {"F8_E8M0", 1, 8, 0, false, false}, {"E2M1", 1, 2, 1, true, false},   {"BOOL", 1, 0, 0, false, false},
    {"U8", 1, 0, 0, false, false},      {"I8", 1, 0, 0, true, false},     {"U16", 2, 0, 0, false, false},
    {"I16", 2, 0, 0, true, false},      {"U32", 4, 0, 0, false, false},   {"I32", 4, 0, 0, true, false},
    {"U64", 8, 0, 0, false, false},     {"I64", 8, 0, 0, true, false},
};

enum class Kind { finite, nan, positive_infinity, negative_infinity };

struct Decoded {
    Kind kind = Kind::finite;
    double value = 0;
    Wide place = 0;  ///< representable values, counted from zero
    uint64_t bits = 0;
};

/// One element by arithmetic on sign, exponent and mantissa.
Decoded decode(const Format& format, uint64_t bits) {
    Decoded result;
    result.bits = bits;
    if (format.exponent_bits == 0) {
        const int unused = 64 - 8 * format.bytes;
        if (format.is_signed) {
            const int64_t value = static_cast<int64_t>(bits << unused) >> unused;
            return {Kind::finite, static_cast<double>(value), value, bits};
        }
        return {Kind::finite, static_cast<double>(bits), static_cast<Wide>(bits), bits};
    }
    if (format.name == "F8_E8M0") {
        if (bits == 255) return {Kind::nan, 0, 0, bits};
        return {Kind::finite, std::ldexp(1.0, static_cast<int>(bits) - 127), static_cast<Wide>(bits), bits};
    }
    const int exponent_bits = format.exponent_bits, mantissa_bits = format.mantissa_bits;
    const uint64_t mantissa = bits & ((uint64_t{1} << mantissa_bits) - 1);
    const int exponent = static_cast<int>(bits >> mantissa_bits & ((uint64_t{1} << exponent_bits) - 1));
    const bool negative = (bits >> (exponent_bits + mantissa_bits) & 1) != 0;
    const int highest = (1 << exponent_bits) - 1, bias = highest / 2;
    if (format.has_infinity && exponent == highest)
        return {mantissa != 0 ? Kind::nan
                : negative    ? Kind::negative_infinity
                              : Kind::positive_infinity,
                0, 0, bits};
    if (format.name == "F8_E4M3" && exponent == highest && mantissa == 7) return {Kind::nan, 0, 0, bits};
    const double fraction = static_cast<double>(mantissa) / std::ldexp(1.0, mantissa_bits);
    const double magnitude =
        exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
    const Wide place = static_cast<Wide>(mantissa) + (static_cast<Wide>(exponent) << mantissa_bits);
    return {Kind::finite, negative ? -magnitude : magnitude, negative ? -place : place, bits};
}

Decoded element(const Format& format, const Bytes& bytes, int64_t i) {
    uint64_t bits = 0;
    std::memcpy(&bits, bytes.bytes.data() + i * format.bytes, static_cast<size_t>(format.bytes));
    return decode(format, bits);
}

int64_t capped(Wide distance) {
    if (distance < 0) distance = -distance;
    const Wide most = std::numeric_limits<int64_t>::max();
    return static_cast<int64_t>(std::min(distance, most));
}

void count(Kind kind, bool e, bool g, Difference& d) {
    PlacesDifference& places = kind == Kind::nan                 ? d.nan
                               : kind == Kind::positive_infinity ? d.positive_infinity
                                                                 : d.negative_infinity;
    if (e && g) ++places.both;
    if (e && !g) ++places.expected_only;
    if (g && !e) ++places.got_only;
}

double row_rms(const Format& format, const Bytes& expected, int64_t row, int64_t columns) {
    double squares = 0;
    int64_t finite = 0;
    for (int64_t c = 0; c < columns; ++c) {
        const Decoded e = element(format, expected, row * columns + c);
        if (e.kind != Kind::finite) continue;
        squares += e.value * e.value;
        ++finite;
    }
    return finite == 0 ? 0 : std::sqrt(squares / static_cast<double>(finite));
}

bool passes(const Tolerance& t, int64_t ulp, double distance, double magnitude, double of_rms) {
    if (t.ulp && ulp <= *t.ulp) return true;
    if (t.rms && of_rms <= *t.rms) return true;
    const bool has_absolute = t.absolute || t.relative;
    return has_absolute && distance <= t.absolute.value_or(0) + t.relative.value_or(0) * magnitude;
}

/// Everything but `worst`, written plainly.
Difference naive(const Format& format, const Bytes& expected, const Bytes& got, const Tolerance& t) {
    Difference d;
    d.elements = expected.view().elements();
    const int64_t columns = expected.shape.empty() ? 1 : expected.shape.back();
    d.rows = d.elements == 0 ? 0 : d.elements / columns;
    d.one_value = d.elements > 0;
    double differences = 0, expected_squares = 0, products = 0, both_squares = 0;
    for (int64_t row = 0; row < d.rows; ++row) {
        const double rms = row_rms(format, expected, row, columns);
        bool row_differs = false;
        for (int64_t c = 0; c < columns; ++c) {
            const int64_t i = row * columns + c;
            const Decoded e = element(format, expected, i), g = element(format, got, i);
            if (e.bits != element(format, expected, 0).bits) d.one_value = false;
            if (e.kind != Kind::finite) ++d.not_finite;
            if (e.kind == Kind::finite && e.value == 0) ++d.zeros;
            for (Kind kind : {Kind::nan, Kind::positive_infinity, Kind::negative_infinity})
                count(kind, e.kind == kind, g.kind == kind, d);
            const bool identical = e.bits == g.bits || (e.kind == Kind::nan && g.kind == Kind::nan);
            if (identical)
                ++d.identical;
            else {
                row_differs = true;
                if (d.first.index < 0) d.first = {i, e.value, g.value, e.bits, g.bits};
            }
            if (e.kind != Kind::finite || g.kind != Kind::finite) {
                if (!identical) ++d.outside;
                continue;
            }
            const int64_t ulp = capped(e.place - g.place);
            const double distance =
                format.exponent_bits == 0
                    ? static_cast<double>(e.place < g.place ? g.place - e.place : e.place - g.place)
                    : std::abs(e.value - g.value);
            const double of_rms = distance == 0 ? 0 : rms == 0 ? infinity : distance / rms;
            if (!identical && e.value == 0 && g.value == 0) ++d.zero_signs;
            size_t bin = 0;
            while (bin < ulp_bin_ends.size() && ulp > ulp_bin_ends[bin]) ++bin;
            ++d.ulp_bins[bin];
            d.largest_ulp = std::max(d.largest_ulp, ulp);
            d.largest_absolute = std::max(d.largest_absolute, distance);
            if (e.value != 0) d.largest_relative = std::max(d.largest_relative, distance / std::abs(e.value));
            d.largest_of_rms = std::max(d.largest_of_rms, of_rms);
            differences += distance * distance;
            expected_squares += e.value * e.value;
            products += e.value * g.value;
            both_squares += e.value * e.value + g.value * g.value;
            if (!identical && !passes(t, ulp, distance, std::abs(e.value), of_rms)) ++d.outside;
        }
        if (row_differs) ++d.differing_rows;
    }
    d.normalised_mean_square = differences == 0 ? 0 : differences / expected_squares;
    d.cosine = differences == 0 ? 0 : 1 - 2 * products / both_squares;
    return d;
}

bool same_places(const PlacesDifference& a, const PlacesDifference& b) {
    return a.both == b.both && a.expected_only == b.expected_only && a.got_only == b.got_only;
}

bool same_pair(const ElementPair& a, const ElementPair& b) {
    return a.index == b.index && a.expected_bits == b.expected_bits && a.got_bits == b.got_bits;
}

/// The statistics that are sums may be added in another order.
void check_near(double value, double expected, double slack) {
    if (value == expected) return;
    CAPTURE(value);
    CAPTURE(expected);
    CHECK(std::abs(value - expected) <= slack + 1e-9 * std::abs(expected));
}

void check_same(const Difference& d, const Difference& e) {
    CHECK(d.elements == e.elements);
    CHECK(d.identical == e.identical);
    CHECK(d.zero_signs == e.zero_signs);
    CHECK(same_places(d.nan, e.nan));
    CHECK(same_places(d.positive_infinity, e.positive_infinity));
    CHECK(same_places(d.negative_infinity, e.negative_infinity));
    CHECK(d.outside == e.outside);
    CHECK(d.rows == e.rows);
    CHECK(d.differing_rows == e.differing_rows);
    CHECK(d.ulp_bins == e.ulp_bins);
    CHECK(d.largest_ulp == e.largest_ulp);
    CHECK(d.largest_absolute == e.largest_absolute);
    CHECK(d.largest_relative == e.largest_relative);
    check_near(d.largest_of_rms, e.largest_of_rms, 0);
    check_near(d.normalised_mean_square, e.normalised_mean_square, 0);
    check_near(d.cosine, e.cosine, 1e-12);  // of the oracle's: its difference of two sums cancels
    CHECK(same_pair(d.first, e.first));
    CHECK(d.zeros == e.zeros);
    CHECK(d.not_finite == e.not_finite);
    CHECK(d.one_value == e.one_value);
}

enum class Filling { any_bits, near };

uint64_t word(const RandomStream& random, int64_t i) {
    const PhiloxBlock block = random.block(static_cast<uint64_t>(i));
    return uint64_t{block.words[0]} << 32 | block.words[1];
}

/// Random bits. For F64 the exponents stay where squares do not overflow, in the oracle nor elsewhere.
Bytes random_bytes(const Format& format, const std::vector<int64_t>& shape, uint64_t seed) {
    Bytes result{format.name, shape, {}};
    result.bytes.resize(static_cast<size_t>(result.view().elements() * format.bytes));
    for (int64_t i = 0; i < result.view().elements(); ++i) {
        uint64_t bits = word({seed, 1}, i);
        if (format.name == "F64" && (bits >> 52 & 0x7FF) != 0x7FF)
            bits = (bits & 0x800FFFFFFFFFFFFF) | (900 + (bits >> 52 & 0xFF)) << 52;
        if (format.name == "E2M1") bits &= 15;
        std::memcpy(result.bytes.data() + i * format.bytes, &bits, static_cast<size_t>(format.bytes));
    }
    return result;
}

/// One element of `one_in` differs, in its lowest bits or in all.
Bytes changed(const Format& format, Bytes original, uint64_t seed, uint32_t one_in) {
    for (int64_t i = 0; i < original.view().elements(); ++i) {
        const uint64_t random = word({seed, 2}, i);
        if (random % one_in != 0) continue;
        std::byte& low = original.bytes[static_cast<size_t>(i * format.bytes)];
        low ^= std::byte{static_cast<uint8_t>(random >> 32 & (random >> 40 & 1 ? 1 : 15))};
    }
    return original;
}

struct Threads {
    explicit Threads(int count) : before(omp_get_max_threads()) { omp_set_num_threads(count); }
    ~Threads() { omp_set_num_threads(before); }
    int before;
};

}  // namespace

TEST_CASE("difference: every statistic is that of the plain definition (every type, random bits)") {
    const std::vector<std::vector<int64_t>> shapes{{}, {1}, {37}, {3, 0}, {7, 5, 33}, {300, 1}, {2, 1000}};
    const std::string tolerances[]{"bit",           "ulp=1", "ulp=3,share=0.5", "rms=0.1", "abs=0.5,rel=0.01",
                                   "rms=1e-3,ulp=2"};
    for (const Format& format : formats)
        for (size_t s = 0; s < shapes.size(); ++s)
            for (uint32_t one_in : {1u, 7u, 1000000u}) {
                const Bytes expected = random_bytes(format, shapes[s], 5 + s);
                const Bytes got = changed(format, expected, 9 + s, one_in);
                const std::string& text = tolerances[(s + one_in) % std::size(tolerances)];
                INFO(fmt::format("{} shape {} one_in {} tolerance {}", format.name, s, one_in, text));
                const Tolerance tolerance = parse_tolerance(text, "test");
                check_same(difference(expected.view(), got.view(), tolerance),
                           naive(format, expected, got, tolerance));
            }
}

TEST_CASE("difference: two unrelated tensors (every type)") {
    for (const Format& format : formats) {
        CAPTURE(format.name);
        const Bytes expected = random_bytes(format, {9, 50}, 1), got = random_bytes(format, {9, 50}, 2);
        const Tolerance tolerance = parse_tolerance("ulp=4", "test");
        check_same(difference(expected.view(), got.view(), tolerance),
                   naive(format, expected, got, tolerance));
    }
}

TEST_CASE("difference: the type table covers safetensors, and every code of 8 and 16 bits decodes") {
    for (const Format& format : formats) {
        CAPTURE(format.name);
        CHECK(element_type_bytes(format.name) == format.bytes);
        CHECK(is_float_type(format.name) == (format.exponent_bits != 0));
        if (format.bytes > 2) continue;
        const uint64_t codes = format.name == "E2M1" ? 16 : uint64_t{1} << (8 * format.bytes);
        for (uint64_t code = 0; code < codes; ++code) {
            Bytes one{format.name, {1}, std::vector<std::byte>(static_cast<size_t>(format.bytes))};
            std::memcpy(one.bytes.data(), &code, one.bytes.size());
            const ElementValue value = element_at(one.view(), 0);
            const Decoded oracle = decode(format, code);
            CAPTURE(code);
            REQUIRE(value.bits == code);
            if (oracle.kind == Kind::finite) REQUIRE(value.value == oracle.value);
            if (oracle.kind == Kind::nan) REQUIRE(std::isnan(value.value));
            if (oracle.kind == Kind::negative_infinity) REQUIRE(value.value == -infinity);
        }
    }
}

TEST_CASE("difference: any NaN equals any NaN") {
    const Bytes expected = tensor<uint32_t>("F32", {4}, {0x7FC00000, 0x3F800000, 0xFF800001, 0x40000000});
    const Bytes got = tensor<uint32_t>("F32", {4}, {0x7FFFFFFF, 0x3F800000, 0x7F800001, 0x40000000});
    const Difference d = difference(expected.view(), got.view(), {});
    CHECK(d.equal());
    CHECK(d.nan.both == 2);
    CHECK(d.differing_rows == 0);
    CHECK(within(d, {}));
}

TEST_CASE("difference: a wrong neighbour of matching infinities fails, whatever the sums say") {
    const float inf = std::numeric_limits<float>::infinity();
    const Bytes expected = floats({1, 4}, {inf, 1, -inf, 2}), got = floats({1, 4}, {inf, 1.5f, -inf, 2});
    const Difference d = difference(expected.view(), got.view(), parse_tolerance("abs=0.1", "test"));
    CHECK(d.outside == 1);
    CHECK(d.worst.index == 1);
    CHECK(d.normalised_mean_square == doctest::Approx(0.05));
    CHECK_FALSE(within(d, parse_tolerance("abs=0.1,cosine=1", "test")));
}

TEST_CASE("difference: infinities and NaN are no limit's business") {
    const float inf = std::numeric_limits<float>::infinity();
    const Bytes expected = floats({3}, {1, inf, 3});
    const Tolerance wide = parse_tolerance("ulp=9e15,rms=1e30,abs=1e300,rel=1e300", "test");
    for (float wrong : {-inf, 3e38f, std::nanf("")}) {
        CAPTURE(wrong);
        const Bytes got = floats({3}, {1, wrong, 3});
        CHECK_FALSE(within(difference(expected.view(), got.view(), wide), wide));
        CHECK_FALSE(within(difference(got.view(), expected.view(), wide), wide));
    }
}

TEST_CASE("difference: the sums keep what stands beside a lost huge element") {
    const float inf = std::numeric_limits<float>::infinity();
    const Bytes expected = floats({1, 2}, {1e30f, 1}), got = floats({1, 2}, {inf, 1.5f});
    const Difference d = difference(expected.view(), got.view(), {});
    CHECK(d.normalised_mean_square == 0.25);
    CHECK(d.cosine == doctest::Approx(0.25 / 3.25));
}

TEST_CASE("difference: a row of zeros lets only zeros pass") {
    const Bytes expected = floats({2, 2}, {0, 0, 1, 1}), got = floats({2, 2}, {0, 1e-30f, 1, 1});
    const Tolerance rms = parse_tolerance("rms=1e9", "test");
    const Difference d = difference(expected.view(), got.view(), rms);
    CHECK(d.largest_of_rms == infinity);
    CHECK_FALSE(within(d, rms));
    const Bytes negative = floats({2, 2}, {0, -0.0f, 1, 1});
    const Difference signs = difference(expected.view(), negative.view(), rms);
    CHECK(signs.zero_signs == 1);
    CHECK(signs.largest_ulp == 0);
    CHECK(within(signs, rms));
    CHECK_FALSE(within(difference(expected.view(), negative.view(), {}), {}));
}

TEST_CASE("difference: statistics that are not numbers fail") {
    const Bytes expected = tensor<double>("F64", {2}, {1e200, 1}),
                got = tensor<double>("F64", {2}, {1e200, 1.1});
    const Tolerance wide = parse_tolerance("abs=1e9", "test");
    const Difference d = difference(expected.view(), got.view(), wide);
    CHECK(d.largest_of_rms == infinity);  // the rms is beyond a double
    const Bytes far = tensor<double>("F64", {2}, {-1e200, 1});
    const Tolerance wider = parse_tolerance("abs=1e300", "test");
    const Difference overflowed = difference(expected.view(), far.view(), wider);
    CHECK(overflowed.outside == 0);
    CHECK(std::isnan(overflowed.cosine));
    CHECK_FALSE(within(overflowed, wider));
}

TEST_CASE("difference: empty tensors are equal and have no value") {
    const Bytes empty = floats({0, 4}, {});
    const Difference d = difference(empty.view(), empty.view(), {});
    CHECK(d.equal());
    CHECK(d.elements == 0);
    CHECK(d.rows == 0);
    CHECK_FALSE(d.one_value);
    CHECK(d.first.index == -1);
}

TEST_CASE("difference: one wrong row of 4096 passes a cosine and not an rms") {
    const int64_t rows = 4096, columns = 64;
    std::vector<float> values(static_cast<size_t>(rows * columns));
    for (size_t i = 0; i < values.size(); ++i)
        values[i] =
            static_cast<float>(static_cast<int64_t>(word({3, 0}, static_cast<int64_t>(i)) % 2001) - 1000);
    const Bytes expected = floats({rows, columns}, values);
    for (int64_t c = 0; c < columns; ++c) values[static_cast<size_t>(1234 * columns + c)] *= -1;
    const Bytes got = floats({rows, columns}, values);
    const Tolerance rms = parse_tolerance("rms=1e-5", "test");
    const Difference d = difference(expected.view(), got.view(), rms);
    CHECK(d.cosine < 1e-3);
    CHECK(d.cosine > 2e-4);
    CHECK(d.differing_rows == 1);
    CHECK(d.worst.index / columns == 1234);
    CHECK_FALSE(within(d, rms));
    CHECK_FALSE(within(d, parse_tolerance("deepgemm_fp8", "test")));
}

TEST_CASE("difference: the worst element is the farthest outside, else the largest of its row") {
    const Bytes expected = floats({2, 2}, {100, 100, 1, 1}), got = floats({2, 2}, {101, 100, 1, 1.5f});
    CHECK(difference(expected.view(), got.view(), {}).worst.index == 3);
    const Tolerance all_pass = parse_tolerance("abs=2", "test");
    CHECK(difference(expected.view(), got.view(), all_pass).worst.index == 3);
    const Tolerance by_absolute = parse_tolerance("abs=0.6", "test");
    const Difference d = difference(expected.view(), got.view(), by_absolute);
    CHECK(d.outside == 1);
    CHECK(d.worst.index == 0);
    CHECK(d.first.index == 0);
}

TEST_CASE("difference: integers beyond 2^53 keep their distance") {
    const int64_t large = int64_t{1} << 60;
    const Bytes expected = tensor<int64_t>("I64", {2}, {large, std::numeric_limits<int64_t>::min()});
    const Bytes got = tensor<int64_t>("I64", {2}, {large + 1, std::numeric_limits<int64_t>::max()});
    const Difference d = difference(expected.view(), got.view(), {});
    CHECK(d.ulp_bins[1] == 1);
    CHECK(d.largest_ulp == std::numeric_limits<int64_t>::max());
}

TEST_CASE("difference: the same for every number of threads, long rows and short (1, 2, 7)") {
    const Format& bf16 = formats[3];
    const Format& f32 = formats[1];
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{900, 1500}, {3, 400001}, {1300007}}) {
        for (const Format* format : {&bf16, &f32}) {
            const Bytes expected = random_bytes(*format, shape, 11);
            const Bytes got = changed(*format, expected, 12, 100);
            const Tolerance tolerance = parse_tolerance("ulp=1", "test");
            const Difference oracle = naive(*format, expected, got, tolerance);
            std::vector<Difference> results;
            for (int threads : {1, 2, 7}) {
                Threads scope(threads);
                CAPTURE(threads);
                CAPTURE(format->name);
                CAPTURE(shape.size());
                results.push_back(difference(expected.view(), got.view(), tolerance));
                check_same(results.back(), oracle);
                CHECK(results.back().largest_of_rms == results[0].largest_of_rms);
                CHECK(results.back().normalised_mean_square == results[0].normalised_mean_square);
                CHECK(results.back().cosine == results[0].cosine);
                CHECK(same_pair(results.back().worst, results[0].worst));
            }
        }
    }
}

TEST_CASE("difference: elements need no alignment, and every byte is told to have been read") {
    std::vector<std::byte> buffer(1 + 4 * 200000), other(buffer.size());
    for (size_t i = 0; i < buffer.size(); ++i)
        buffer[i] = other[i] = std::byte{static_cast<uint8_t>(i % 251)};
    other[9] = std::byte{0};
    const TensorView expected{"F32", {200000}, std::span(buffer).subspan(1)};
    const TensorView got{"F32", {200000}, std::span(other).subspan(1)};
    size_t told = 0;
    const AfterPiece tell = [&](std::span<const std::byte> e, std::span<const std::byte> g) {
#pragma omp critical(test_told)
        if (e.size() == g.size()) told += e.size();
    };
    const Difference d = difference(expected, got, {}, tell);
    CHECK(d.identical == 199999);
    CHECK(d.first.index == 2);
    CHECK(told % expected.bytes.size() == 0);
    CHECK(told > 0);
}

TEST_CASE("difference: index tuples are row-major") {
    CHECK(index_tuple(17 + 20 * (1 + 2 * 3), {4, 2, 20}) == std::vector<int64_t>{3, 1, 17});
    CHECK(index_tuple(0, {}).empty());
}
