#include "reference/sparse_attention.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/elementary.h"
#include "reference/numerics/fill.h"
#include "reference/numerics/sums.h"
#include "reference/numerics/tensor_core.h"
#include "reference/sparse_attention_vector.h"
#include "reference/truth/sparse_attention.h"

using namespace touchstone;

namespace {

constexpr Arithmetic arithmetics[]{Arithmetic::exact, Arithmetic::hopper};
constexpr float infinity = std::numeric_limits<float>::infinity();
const float quiet_nan = float_from_bits(canonical_nan_bits);

/// One query and its list.
struct Case {
    int64_t heads, head_dim, entries;
    std::vector<Bf16> q;
    std::vector<float> rows;
    std::vector<uint8_t> valid;
    std::vector<float> sink;
    float scale;

    Case(int64_t heads_, int64_t head_dim_, int64_t entries_, uint64_t seed = 1)
        : heads(heads_),
          head_dim(head_dim_),
          entries(entries_),
          q(size_t(heads * head_dim)),
          rows(size_t(entries * head_dim)),
          valid(size_t(entries), 1),
          sink(size_t(heads)),
          scale(static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)))) {
        fill<Bf16>(Filler::normal, {seed, 1}, q);
        for (size_t i = 0; i < rows.size(); ++i)
            rows[i] = to_float(filled<Bf16>(Filler::normal, {seed, 2}, i));
        for (size_t i = 0; i < sink.size(); ++i) sink[i] = filled<float>(Filler::normal, {seed, 3}, i);
    }

    /// Entries first .. last - 1 are not there, and nobody may read their rows.
    void mask(int64_t first, int64_t last) {
        std::fill(valid.begin() + first, valid.begin() + last, uint8_t{0});
        std::fill(rows.begin() + first * head_dim, rows.begin() + last * head_dim, float_from_bits(~0u));
    }

    std::span<const float> row(int64_t entry) const {
        return std::span(rows).subspan(size_t(entry * head_dim), size_t(head_dim));
    }
};

std::vector<float> run(Arithmetic arithmetic, const Case& c) {
    std::vector<float> o(c.q.size(), quiet_nan);
    sparse_attention(arithmetic, c.q, c.heads, c.head_dim, c.rows, c.valid, c.sink, c.scale, std::span(o));
    return o;
}

/// The first place where two results differ in their bits, -1 where there is none.
int64_t first_difference(const std::vector<float>& left, const std::vector<float>& right) {
    if (left.size() != right.size()) return 0;
    for (size_t i = 0; i < left.size(); ++i)
        if (float_bits(left[i]) != float_bits(right[i])) return static_cast<int64_t>(i);
    return -1;
}

float chain(const std::vector<Bf16>& a, const std::vector<Bf16>& b, float c) {
    const TensorCoreInstruction& instruction = tensor_core_instruction("hopper.wgmma.bf16");
    for (size_t k = 0; k < a.size(); k += 16) {
        uint32_t left[16], right[16];
        for (size_t i = 0; i < 16; ++i) {
            left[i] = a[k + i].bits;
            right[i] = b[k + i].bits;
        }
        c = tensor_core_step(instruction, left, right, c);
    }
    return c;
}

std::vector<Bf16> as_bf16(std::span<const float> values) {
    std::vector<Bf16> result;
    for (float x : values) result.push_back(bf16_from_float(x));
    return result;
}

/// One head by the words of the contract (section 7), scalar and one entry at a time.
std::vector<float> head_by_definition(Arithmetic arithmetic, const Case& c, int64_t head) {
    const auto width = size_t(c.head_dim);
    const std::vector<Bf16> q(c.q.begin() + head * c.head_dim, c.q.begin() + (head + 1) * c.head_dim);
    float m = -1e30f, l = 0;
    std::vector<float> o(width, 0.0f);
    for (int64_t first = 0; first < c.entries; first += 64) {
        std::vector<float> s(64, -infinity), p(64);
        for (int64_t j = 0; j < 64 && first + j < c.entries; ++j) {
            if (c.valid[size_t(first + j)] == 0) continue;
            const std::span<const float> row = c.row(first + j);
            s[size_t(j)] =
                arithmetic == Arithmetic::exact
                    ? dot_by_definition(sum_order(SumOperator::attention_scores, c.head_dim, 1).lanes,
                                        q.data(), row.data(), c.head_dim)
                    : chain(q, as_bf16(row), 0);
            s[size_t(j)] *= c.scale;
        }
        if (std::all_of(s.begin(), s.end(), [](float x) { return x == -infinity; })) continue;
        const float next = std::max(m, *std::max_element(s.begin(), s.end()));
        const float a = elementary::exp(m - next);
        for (size_t j = 0; j < 64; ++j) p[j] = elementary::exp(s[j] - next);
        l = l * a + sum_by_definition({LaneArrangement::interleaved, 8}, p.data(), 64);
        const std::vector<Bf16> rounded = as_bf16(p);
        for (size_t channel = 0; channel < width; ++channel) {
            float sum = o[channel] * a;
            std::vector<Bf16> column(64);
            for (int64_t j = 0; j < 64 && first + j < c.entries; ++j) {
                if (c.valid[size_t(first + j)] == 0) continue;
                const float value = c.row(first + j)[channel];
                column[size_t(j)] = bf16_from_float(value);
                if (arithmetic == Arithmetic::exact) sum = fma_rn(to_float(rounded[size_t(j)]), value, sum);
            }
            o[channel] = arithmetic == Arithmetic::exact ? sum : chain(rounded, column, sum);
        }
        m = next;
    }
    const float total = l + elementary::exp(c.sink[size_t(head)] - m);
    for (float& x : o) x /= total;
    return o;
}

std::vector<float> by_definition(Arithmetic arithmetic, const Case& c) {
    std::vector<float> o;
    for (int64_t head = 0; head < c.heads; ++head) {
        const std::vector<float> one = head_by_definition(arithmetic, c, head);
        o.insert(o.end(), one.begin(), one.end());
    }
    return o;
}

/// Like the released list of an early query: leading and trailing entries are not there, and some between.
void mask_some(Case& c) {
    c.mask(0, c.entries / 5);
    for (int64_t entry = c.entries / 2; entry < c.entries; entry += 7) c.mask(entry, entry + 1);
    c.mask(c.entries - c.entries / 6, c.entries);
}

truth::Matrix matrix(std::span<const float> values, int64_t rows, int64_t width) {
    truth::Matrix result(rows, width);
    for (Eigen::Index i = 0; i < result.size(); ++i) result.data()[i] = double{values[size_t(i)]};
    return result;
}

std::vector<float> widened(std::span<const Bf16> values) {
    std::vector<float> result;
    for (Bf16 x : values) result.push_back(to_float(x));
    return result;
}

constexpr double u = 0x1p-24;

/// How far the fp32 weighted sum of one channel may be from that in double: a step of `exact` is one FMA; a
/// step of the chain cuts 17 terms to multiples of 2^(e - 25) and its sum to 24 bits.
class WeightedSum {
  public:
    explicit WeightedSum(Arithmetic arithmetic) : arithmetic_(arithmetic) {}
    double bound = 0;

    void scale(double factor, double factor_error) {
        bound = bound * factor + std::abs(sum_ * factor) * (factor_error + u);
        sum_ *= factor;
    }
    void begin_step() { largest_ = std::abs(sum_); }
    void add(double p, double p_error, double value) {
        sum_ += p * value;
        bound += p_error * std::abs(value);
        largest_ = std::max(largest_, std::abs(p * value));
        if (arithmetic_ == Arithmetic::exact) bound += u * std::abs(sum_);
    }
    void end_step() {
        if (arithmetic_ != Arithmetic::exact && largest_ > 0)
            bound += 17 * std::ldexp(1.0, std::ilogb(largest_) - 25) + 2 * u * std::abs(sum_);
    }

  private:
    Arithmetic arithmetic_;
    double sum_ = 0, largest_ = 0;
};

/// The distance by which bf16(p) can move when p is uncertain by `error`: bf16 of both ends.
double rounding_distance(double p, double error) {
    const double low = truth::nearest_bf16(p - error), high = truth::nearest_bf16(p + error);
    return std::max(high - truth::nearest_bf16(p), truth::nearest_bf16(p) - low);
}

/// Per channel of a head, how far o may be from truth: scores by the bounds of linear layers, exp by 1 ulp
/// and by the error of its argument, bf16(p) where p is so near to a tie that it may fall on either side.
Eigen::RowVectorXd bound_of(Arithmetic arithmetic, const Case& c, int64_t head, const truth::Matrix& q,
                            const truth::Matrix& o) {
    double m = -1e30, m_error = 0, l = 0, l_error = 0;
    std::vector<WeightedSum> sums(size_t(c.head_dim), WeightedSum(arithmetic));
    for (int64_t first = 0; first < c.entries; first += 64) {
        // 1. Scores and their errors.
        std::vector<double> score(64, -infinity), score_error(64, 0.0);
        double next = m, next_error = m_error;
        for (int64_t j = 0; j < 64 && first + j < c.entries; ++j) {
            if (c.valid[size_t(first + j)] == 0) continue;
            const truth::LinearOperands operands{q.row(head), matrix(c.row(first + j), 1, c.head_dim)};
            const SumOrder order = sum_order(SumOperator::attention_scores, c.head_dim, 1);
            const double dot_error = arithmetic == Arithmetic::exact
                                         ? truth::exact_lanes_bound(operands, order.lanes)(0)
                                         : truth::hopper_bound(operands, order)(0);
            score[size_t(j)] = truth::linear(operands)(0) * double{c.scale};
            score_error[size_t(j)] = dot_error * double{c.scale} + u * std::abs(score[size_t(j)]);
            next = std::max(next, score[size_t(j)]);
            next_error = std::max(next_error, score_error[size_t(j)]);
        }
        // 2. exp of differences.
        const auto exp_error = [&](double x, double x_error) {
            return x < -200 ? 0.0 : std::expm1(x_error + u * std::abs(x)) + 2 * u;  // 0 on both sides
        };
        const double change = std::exp(m - next), change_error = exp_error(m - next, m_error + next_error);
        l *= change;
        l_error = l_error * change + l * (change_error + u);
        for (WeightedSum& sum : sums) sum.scale(change, change_error);
        for (int64_t step = 0; step < 64; step += 16) {
            for (WeightedSum& sum : sums) sum.begin_step();
            for (int64_t j = step; j < step + 16; ++j) {
                if (score[size_t(j)] == -double{infinity}) continue;
                const double p = std::exp(score[size_t(j)] - next),
                             p_error =
                                 p * exp_error(score[size_t(j)] - next, score_error[size_t(j)] + next_error);
                l += p;
                l_error += p_error + 12 * u * p;  // eight elements in a lane, three nodes, one addition
                const double moved = rounding_distance(p, p_error);
                for (int64_t channel = 0; channel < c.head_dim; ++channel)
                    sums[size_t(channel)].add(truth::nearest_bf16(p), moved,
                                              double{c.row(first + j)[size_t(channel)]});
            }
            for (WeightedSum& sum : sums) sum.end_step();
        }
        l_error += u * l;
        m = next;
        m_error = next_error;
    }
    // 3. The sink and the quotient.
    const double sink = std::exp(double{c.sink[size_t(head)]} - m);
    l += sink;
    l_error += sink * (std::expm1(m_error + u * std::abs(double{c.sink[size_t(head)]} - m)) + 2 * u) + u * l;
    Eigen::RowVectorXd bound(c.head_dim);
    for (int64_t channel = 0; channel < c.head_dim; ++channel)
        bound[channel] = (sums[size_t(channel)].bound / l + std::abs(o(head, channel)) * (l_error / l + u)) *
                         (1 + 0x1p-10);
    return bound;
}

}  // namespace

TEST_CASE("sparse attention: equals the contract's words bit for bit (heads, widths, list lengths, holes)") {
    struct Shape {
        int64_t heads, head_dim, entries;
    };
    for (const Shape shape : {Shape{1, 16, 1}, Shape{3, 32, 63}, Shape{5, 64, 64}, Shape{8, 128, 88},
                              Shape{2, 128, 65}, Shape{17, 80, 130}, Shape{2, 512, 640}})
        for (const Arithmetic arithmetic : arithmetics)
            for (const bool holes : {false, true}) {
                CAPTURE(shape.heads);
                CAPTURE(shape.head_dim);
                CAPTURE(shape.entries);
                CAPTURE(arithmetic_name(arithmetic));
                CAPTURE(holes);
                Case c(shape.heads, shape.head_dim, shape.entries);
                if (holes) mask_some(c);
                CHECK(first_difference(run(arithmetic, c), by_definition(arithmetic, c)) == -1);
            }
    const Case odd(3, 40, 70);  // no multiple of 16: exact alone
    CHECK(first_difference(run(Arithmetic::exact, odd), by_definition(Arithmetic::exact, odd)) == -1);
}

TEST_CASE("sparse attention: blocks of 64 in which the largest score rises (running maximum)") {
    // Rows grow along the list, so that every block moves the maximum: P is rounded relative to it as it was.
    Case c(2, 64, 640);
    for (int64_t entry = 0; entry < c.entries; ++entry)
        for (int64_t channel = 0; channel < c.head_dim; ++channel) {
            float& x = c.rows[size_t(entry * c.head_dim + channel)];
            x = to_float(bf16_from_float(x * (1 + static_cast<float>(entry / 64)) * 0.25f));
        }
    for (const Arithmetic arithmetic : arithmetics)
        CHECK(first_difference(run(arithmetic, c), by_definition(arithmetic, c)) == -1);
}

TEST_CASE("sparse attention: hopper and released_hopper are the same, exact is another sum") {
    const Case c(4, 128, 200);
    CHECK(first_difference(run(Arithmetic::hopper, c), run(Arithmetic::released_hopper, c)) == -1);
    CHECK(first_difference(run(Arithmetic::hopper, c), run(Arithmetic::exact, c)) != -1);
}

TEST_CASE("sparse attention: errors against truth stay within the bound and reach a hundredth of it") {
    for (const Arithmetic arithmetic : arithmetics) {
        double nearest = 0;
        struct Shape {
            int64_t head_dim, entries;
            bool holes;
        };
        for (const Shape shape : {Shape{16, 3, false}, Shape{32, 20, false}, Shape{128, 200, false},
                                  Shape{128, 200, true}, Shape{512, 640, false}}) {
            Case c(2, shape.head_dim, shape.entries);
            if (shape.holes) mask_some(c);
            const truth::Matrix q = matrix(widened(c.q), c.heads, c.head_dim);
            truth::AttentionList list{matrix(c.rows, c.entries, c.head_dim), {}};
            for (const uint8_t valid : c.valid) list.taken.push_back(valid != 0);
            truth::Vector sink(c.heads);
            for (int64_t head = 0; head < c.heads; ++head) sink[head] = double{c.sink[size_t(head)]};
            const truth::Matrix expected = truth::sparse_attention(q, list, sink, truth::Ledger::released());
            const std::vector<float> o = run(arithmetic, c);
            double worst = 0;
            for (int64_t head = 0; head < c.heads; ++head) {
                const Eigen::RowVectorXd bound = bound_of(arithmetic, c, head, q, expected);
                for (int64_t channel = 0; channel < c.head_dim; ++channel) {
                    if (!(bound[channel] > 0)) FAIL("no bound");
                    const double error =
                        double{o[size_t(head * c.head_dim + channel)]} - expected(head, channel);
                    worst = std::max(worst, std::abs(error) / bound[channel]);
                }
            }
            const std::string shown =
                fmt::format("{}, {} channels, {} entries: {:.4f} of the bound", arithmetic_name(arithmetic),
                            shape.head_dim, shape.entries, worst);
            INFO(shown);
            CHECK(worst <= 1);
            nearest = std::max(nearest, worst);
        }
        const std::string reached = fmt::format("{}: {:.4f}", arithmetic_name(arithmetic), nearest);
        INFO(reached);
        CHECK(nearest >= 0.01);
    }
}

TEST_CASE("sparse attention: masked runs of 1, 16, 64, 511 entries at front, middle and end (B94)") {
    for (const Arithmetic arithmetic : arithmetics)
        for (const int64_t masked : {1, 16, 64, 511}) {
            CAPTURE(arithmetic_name(arithmetic));
            CAPTURE(masked);
            for (const int64_t front : {int64_t{0}, 640 - masked, (640 - masked) / 2}) {
                CAPTURE(front);
                Case c(2, 64, 640);
                c.mask(front, front + masked);
                const std::vector<float> o = run(arithmetic, c);
                CHECK(std::none_of(o.begin(), o.end(), is_nan));
                CHECK(first_difference(o, by_definition(arithmetic, c)) == -1);
            }
            // One entry behind, before or between masked ones is that entry alone.
            Case alone(2, 64, 1);
            const std::vector<float> expected = run(arithmetic, alone);
            for (const int64_t place : {int64_t{0}, masked / 2, masked}) {
                CAPTURE(place);
                Case c(2, 64, masked + 1);
                c.q = alone.q;
                c.sink = alone.sink;
                c.mask(0, masked + 1);
                c.valid[size_t(place)] = 1;
                std::copy(alone.rows.begin(), alone.rows.end(), c.rows.begin() + place * 64);
                CHECK(first_difference(run(arithmetic, c), expected) == -1);
            }
        }
}

TEST_CASE(
    "sparse attention: absent entries behind the list, and whole absent blocks before it, change nothing") {
    const Case c(3, 64, 100);
    for (const Arithmetic arithmetic : arithmetics) {
        const std::vector<float> expected = run(arithmetic, c);
        for (const int64_t before : {0, 64, 512})
            for (const int64_t behind : {0, 1, 28, 500}) {
                CAPTURE(before);
                CAPTURE(behind);
                Case padded(3, 64, before + 100 + behind);
                padded.q = c.q;
                padded.sink = c.sink;
                padded.mask(0, padded.entries);
                std::copy(c.valid.begin(), c.valid.end(), padded.valid.begin() + before);
                std::copy(c.rows.begin(), c.rows.end(), padded.rows.begin() + before * 64);
                CHECK(first_difference(run(arithmetic, padded), expected) == -1);
            }
    }
}

TEST_CASE("sparse attention: without any entry o is +0, whatever the sink (B95)") {
    for (const Arithmetic arithmetic : arithmetics)
        for (const int64_t entries : {0, 1, 64, 640})
            for (const float sink : {-infinity, 0.0f, infinity, quiet_nan}) {
                Case c(2, 32, entries);
                c.mask(0, entries);
                std::ranges::fill(c.sink, sink);
                CHECK(first_difference(run(arithmetic, c), std::vector<float>(64, 0.0f)) == -1);
            }
}

TEST_CASE("sparse attention: the sink is a term of the denominator alone, unscaled, outside the maximum") {
    for (const Arithmetic arithmetic : arithmetics) {
        Case c(1, 16, 1);
        std::ranges::fill(c.q, bf16_from_float(1.0f));
        std::ranges::fill(c.rows, 0.5f);  // q . k = 8, scale 1/4: the score is 2
        const auto with_sink = [&](float sink) {
            c.sink = {sink};
            return run(arithmetic, c)[5];
        };
        CHECK(with_sink(-infinity) == 0.5f);
        CHECK(with_sink(2.0f) == 0.25f);
        CHECK(with_sink(3.0f) == 0.5f / (1 + elementary::exp(1.0f)));
        CHECK(with_sink(2.0f - 200.0f) == 0.5f);
        CHECK(with_sink(2.0f + 88.0f) > 0);  // inside the maximum, p would be rounded relative to it
        CHECK(with_sink(2.0f + 89.0f) == 0);
        CHECK(with_sink(infinity) == 0);
        CHECK(float_bits(with_sink(quiet_nan)) == canonical_nan_bits);
        CHECK(with_sink(2.0f + 20.0f) == 0.5f / (1 + elementary::exp(20.0f)));
    }
}

TEST_CASE("sparse attention: scores of -infinity have no weight, and the first maximum is finite") {
    // Products of -1e40 overflow; the rows themselves are finite.
    for (const Arithmetic arithmetic : arithmetics)
        for (const int64_t entries : {1, 64, 65}) {
            Case c(1, 16, entries);
            std::ranges::fill(c.q, bf16_from_float(1e20f));
            std::ranges::fill(c.rows, to_float(bf16_from_float(-1e20f)));
            const std::vector<float> o = run(arithmetic, c);
            CHECK(std::all_of(o.begin(), o.end(), [](float x) { return x == 0; }));
        }
}

TEST_CASE(
    "sparse attention: a NaN in a row that counts is not dropped, and canonical; other heads keep theirs") {
    for (const Arithmetic arithmetic : arithmetics) {
        Case c(2, 64, 130);
        const std::vector<float> clean = run(arithmetic, c);
        c.q[3] = bf16_from_float(quiet_nan);  // head 0
        const std::vector<float> o = run(arithmetic, c);
        for (size_t i = 0; i < 64; ++i) CHECK(float_bits(o[i]) == canonical_nan_bits);
        CHECK(std::equal(o.begin() + 64, o.end(), clean.begin() + 64));
        Case rows(2, 64, 130);
        rows.rows[70 * 64] = quiet_nan;
        for (float x : run(arithmetic, rows)) CHECK(float_bits(x) == canonical_nan_bits);
    }
}

TEST_CASE("sparse attention: a head's result is the same alone, in a batch, on any number of threads") {
    Case c(37, 64, 150);
    mask_some(c);
    for (const Arithmetic arithmetic : arithmetics) {
        std::vector<float> alone;
        for (int64_t head = 0; head < c.heads; ++head) {
            Case one = c;
            one.heads = 1;
            one.q.assign(c.q.begin() + head * 64, c.q.begin() + (head + 1) * 64);
            one.sink = {c.sink[size_t(head)]};
            const std::vector<float> o = run(arithmetic, one);
            alone.insert(alone.end(), o.begin(), o.end());
        }
        for (const int threads : {1, 2, 7}) {
            CAPTURE(threads);
            omp_set_num_threads(threads);
            CHECK(first_difference(run(arithmetic, c), alone) == -1);
            std::vector<std::vector<float>> queries(5);  // as in a prefill: parallel over queries
#pragma omp parallel for
            for (size_t i = 0; i < 5; ++i) queries[i] = run(arithmetic, c);
            for (const std::vector<float>& query : queries) CHECK(first_difference(query, alone) == -1);
        }
        omp_set_num_threads(2);
    }
}

TEST_CASE("sparse attention: the bf16 form rounds the fp32 form once") {
    const Case c(3, 64, 100);
    for (const Arithmetic arithmetic : arithmetics) {
        std::vector<Bf16> o(c.q.size());
        sparse_attention(arithmetic, c.q, c.heads, c.head_dim, c.rows, c.valid, c.sink, c.scale,
                         std::span(o));
        CHECK(o == as_bf16(run(arithmetic, c)));
    }
}

TEST_CASE("sparse attention: every instruction set's loops give the same bits") {
    for (const int64_t channels : {40, 64, 128, 200, 512})
        for (const int64_t heads : {1, 5, 16}) {
            Case c(heads, channels, 64);
            const int64_t lanes = sum_order(SumOperator::attention_scores, channels, 1).lanes.count;
            const std::vector<float> q = widened(c.q), change(size_t(heads), 0.75f);
            std::vector<const float*> rows(64);
            for (int64_t j = 0; j < 64; ++j) rows[size_t(j)] = j % 5 == 0 ? nullptr : c.row(j).data();
            std::vector<float> weights(size_t(heads * 64));
            for (size_t i = 0; i < weights.size(); ++i) weights[i] = filled<float>(Filler::normal, {9}, i);
            for (const Isa isa : compiled_isas()) {
                if (!isa_supported(isa)) continue;
                CAPTURE(isa_name(isa));
                const SparseAttentionKernels& kernels = sparse_attention_kernels(isa);
                CHECK(kernels.isa == isa);
                std::vector<float> scores(64), values = q, expected = q;
                kernels.scores(q.data(), rows.data(), 64, channels, lanes, scores.data());
                kernels.add_values(weights.data(), change.data(), heads, rows.data(), 64, channels,
                                   values.data());
                for (size_t j = 0; j < 64; ++j)
                    if (rows[j] != nullptr)
                        CHECK(scores[j] ==
                              dot_by_definition({LaneArrangement::interleaved, static_cast<int>(lanes)},
                                                q.data(), rows[j], channels));
                for (size_t i = 0; i < expected.size(); ++i) {
                    const size_t head = i / size_t(channels), channel = i % size_t(channels);
                    expected[i] *= change[head];
                    for (size_t j = 0; j < 64; ++j)
                        if (rows[j] != nullptr)
                            expected[i] = fma_rn(weights[head * 64 + j], rows[j][channel], expected[i]);
                }
                CHECK(first_difference(values, expected) == -1);
            }
        }
}

TEST_CASE("sparse attention: sizes that do not match are refused with both numbers, and nothing is written") {
    const Case c(2, 32, 10);
    std::vector<float> o(64, 7.0f);
    const auto refused = [&](auto change, const std::string& words) {
        Case changed = c;
        change(changed);
        CAPTURE(words);
        for (const Arithmetic arithmetic : arithmetics) {
            try {
                sparse_attention(arithmetic, changed.q, changed.heads, changed.head_dim, changed.rows,
                                 changed.valid, changed.sink, changed.scale, std::span(o));
                FAIL_CHECK("accepted");
            } catch (const UserError& error) {
                CHECK(std::string(error.what()).find(words) != std::string::npos);
            }
        }
        CHECK(o == std::vector<float>(64, 7.0f));
    };
    refused([](Case& x) { x.q.pop_back(); }, "q has 63 elements");
    refused([](Case& x) { x.rows.pop_back(); }, "rows has 319 elements");
    refused([](Case& x) { x.valid.pop_back(); }, "rows has 320 elements");
    refused([](Case& x) { x.sink.pop_back(); }, "sink has 1 elements");
    refused([](Case& x) { x.head_dim = 0; }, "2 heads of 0 channels");
    refused([](Case& x) { x.heads = -1; }, "-1 heads");
    CHECK_THROWS_AS(run(Arithmetic::hopper, Case(1, 40, 3)), UserError);
}
