// What kernels of hyper-connection coefficients have got wrong.
#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "golden/hypotheses/component_words.h"
#include "reference/hyper_connections.h"
#include "reference/numerics/elementary.h"
#include "reference/numerics/sums.h"
#include "reference/registry/entry.h"

namespace touchstone {

namespace {

const std::vector<std::string> on_mix{"mix"}, on_sinkhorn{"mix", "sinkhorn"};

double sigmoid(double x) {
    return 1 / (1 + std::exp(-x));
}

// The logits of comb, and another way from them to comb.

/// [rows, streams^2], row-major: what sinkhorn starts from.
truth::Matrix logits(const Call& call) {
    const int64_t n = call["streams"], rows = call["rows"];
    if (call.has_input("a")) return matrix(call, "a", rows);
    const truth::Matrix mixes = matrix(call.outputs.find("mixes")->second, rows);
    const truth::Vector base = vector(call, "base").tail(n * n);
    truth::Matrix a = vector(call, "scale")[2] * mixes.rightCols(n * n);
    a.rowwise() += base.transpose();
    return a;
}

/// One matrix of logits [n, n] into coefficients.
using ToCoefficients = truth::Matrix (*)(const truth::Matrix& logits, int64_t iterations, double eps);

Outputs comb_by(ToCoefficients to_coefficients) {
    return computed([to_coefficients](const Call& call) {
        const int64_t n = call["streams"];
        truth::Matrix comb = logits(call);
        for (Eigen::Index row = 0; row < comb.rows(); ++row)
            comb.row(row) = to_coefficients(comb.row(row).reshaped<Eigen::RowMajor>(n, n), call["iterations"],
                                            static_cast<double>(call.real("hc_eps")))
                                .reshaped<Eigen::RowMajor>()
                                .transpose();
        store(call, "comb", comb);
        return true;
    });
}

void divide_rows(truth::Matrix& m, double eps) {
    const truth::Vector sums = m.rowwise().sum();
    m = (m.array().colwise() / (sums.array() + eps)).eval();
}

void divide_columns(truth::Matrix& m, double eps) {
    const Eigen::RowVectorXd sums = m.colwise().sum();
    m = (m.array().rowwise() / (sums.array() + eps)).eval();
}

truth::Matrix softmax_of_rows(const truth::Matrix& a) {
    truth::Matrix m = (a.colwise() - a.rowwise().maxCoeff()).array().exp();
    divide_rows(m, 0);
    return m;
}

/// Sinkhorn from its second half step on.
truth::Matrix iterated(truth::Matrix m, int64_t iterations, double eps) {
    m.array() += eps;
    divide_columns(m, eps);
    for (int64_t i = 1; i < iterations; ++i) {
        divide_rows(m, eps);
        divide_columns(m, eps);
    }
    return m;
}

truth::Matrix columns_first(const truth::Matrix& a, int64_t iterations, double eps) {
    return iterated(softmax_of_rows(a.transpose()), iterations, eps).transpose();
}

truth::Matrix transposed(const truth::Matrix& a, int64_t iterations, double eps) {
    return iterated(softmax_of_rows(a), iterations, eps).transpose();
}

truth::Matrix without_softmax(const truth::Matrix& a, int64_t iterations, double eps) {
    return iterated(a.array().exp(), iterations, eps);
}

truth::Matrix softmax_alone(const truth::Matrix& a, int64_t, double) {
    return softmax_of_rows(a);
}

truth::Matrix sigmoids(const truth::Matrix& a, int64_t, double) {
    return a.unaryExpr([](double x) { return sigmoid(x); });
}

truth::Matrix from_sigmoids(const truth::Matrix& a, int64_t iterations, double eps) {
    return iterated(sigmoids(a, iterations, eps), iterations, eps);
}

truth::Matrix rows_last(const truth::Matrix& a, int64_t iterations, double eps) {
    truth::Matrix m = iterated(softmax_of_rows(a), iterations, eps);
    divide_rows(m, eps);
    return m;
}

Outputs iterations_more(int64_t more) {
    return with_parameters([more](Parameters& parameters, const OperatorRun&) {
        const int64_t iterations = parameters["iterations"] + more;
        return iterations > 0 && set_integer(parameters, "iterations", iterations);
    });
}

// pre and post.

/// From the reference's mixes: `to_coefficient` of mixes, scale and base.
using Coefficient = double (*)(double mix, double scale, double base, double eps);

bool put_coefficients(const Call& call, std::string_view output, int64_t part, Coefficient coefficient) {
    const int64_t n = call["streams"], rows = call["rows"];
    const truth::Matrix mixes = matrix(call.outputs.find("mixes")->second, rows);
    const truth::Vector base = vector(call, "base"), scale = vector(call, "scale");
    truth::Matrix result(rows, n);
    for (Eigen::Index row = 0; row < rows; ++row)
        for (int64_t c = 0; c < n; ++c)
            result(row, c) = coefficient(mixes(row, part * n + c), scale[part], base[part * n + c],
                                         static_cast<double>(call.real("hc_eps")));
    store(call, output, result);
    return true;
}

Outputs pre_by(Coefficient coefficient) {
    return computed(
        [coefficient](const Call& call) { return put_coefficients(call, "pre", 0, coefficient); });
}

Outputs post_by(Coefficient coefficient) {
    return computed(
        [coefficient](const Call& call) { return put_coefficients(call, "post", 1, coefficient); });
}

double pre_without_eps(double mix, double scale, double base, double) {
    return sigmoid(mix * scale + base);
}
double pre_doubled(double mix, double scale, double base, double) {
    return 2 * sigmoid(mix * scale + base);
}
double pre_without_sigmoid(double mix, double scale, double base, double eps) {
    return mix * scale + base + eps;
}
double post_without_two(double mix, double scale, double base, double) {
    return sigmoid(mix * scale + base);
}
double post_with_eps(double mix, double scale, double base, double eps) {
    return sigmoid(mix * scale + base) + eps;
}

/// All of pre, post and comb once more, from other mixes, base or scale.
bool remix(const Call& call, const truth::Matrix& mixes, const truth::Vector& base,
           const truth::Vector& scale) {
    const int64_t n = call["streams"], rows = call["rows"];
    const double eps = static_cast<double>(call.real("hc_eps"));
    truth::Matrix pre(rows, n), post(rows, n), comb(rows, n * n);
    for (Eigen::Index row = 0; row < rows; ++row) {
        for (int64_t c = 0; c < n; ++c) {
            pre(row, c) = sigmoid(mixes(row, c) * scale[0] + base[c]) + eps;
            post(row, c) = 2 * sigmoid(mixes(row, n + c) * scale[1] + base[n + c]);
        }
        const Eigen::RowVectorXd a = scale[2] * mixes.row(row).tail(n * n) + base.tail(n * n).transpose();
        comb.row(row) = iterated(softmax_of_rows(a.reshaped<Eigen::RowMajor>(n, n)), call["iterations"], eps)
                            .reshaped<Eigen::RowMajor>()
                            .transpose();
    }
    store(call, "mixes", mixes);
    store(call, "pre", pre);
    store(call, "post", post);
    store(call, "comb", comb);
    return true;
}

truth::Matrix mixes_of(const Call& call) {
    return matrix(call.outputs.find("mixes")->second, call["rows"]);
}

/// (mix + base) * scale: base joins in front of the factor.
bool base_before_scale(const Call& call) {
    const int64_t n = call["streams"];
    truth::Vector base = vector(call, "base");
    const truth::Vector scale = vector(call, "scale");
    for (Eigen::Index i = 0; i < base.size(); ++i) base[i] *= scale[std::min<Eigen::Index>(i / n, 2)];
    return remix(call, mixes_of(call), base, scale);
}

/// pre's mixes, base and rows of fn stand where post's do.
bool pre_and_post_swapped(const Call& call) {
    const size_t count = call.out<float>("pre").size();
    std::vector<float> post(count), pre(count);
    const auto eps = call.real("hc_eps");
    for (size_t i = 0; i < count; ++i) {
        pre[i] = call.out<float>("post")[i] / 2 + eps;
        post[i] = 2 * (call.out<float>("pre")[i] - eps);
    }
    std::ranges::copy(pre, call.out<float>("pre").begin());
    std::ranges::copy(post, call.out<float>("post").begin());
    return call["streams"] > 0;
}

/// 1 / rms of each row of h, and of each stream of it.
truth::Matrix stream_reciprocals(const Call& call) {
    const int64_t n = call["streams"], hidden = call["hidden"];
    const truth::Matrix h = matrix(call, "h", call["rows"] * n);
    const truth::Vector squares = h.rowwise().squaredNorm() / static_cast<double>(hidden);
    return (squares.array() + static_cast<double>(call.real("norm_eps")))
        .rsqrt()
        .matrix()
        .reshaped<Eigen::RowMajor>(call["rows"], n);
}

/// fn . h, every stream by a factor of its own.
truth::Matrix projected(const Call& call, const truth::Matrix& factors) {
    const int64_t n = call["streams"], hidden = call["hidden"];
    truth::Matrix h = matrix(call, "h", call["rows"]);
    for (Eigen::Index row = 0; row < h.rows(); ++row)
        for (int64_t c = 0; c < n; ++c) h.row(row).segment(c * hidden, hidden) *= factors(row, c);
    return h * matrix(call, "fn", (2 + n) * n).transpose();
}

bool norm_per_stream(const Call& call) {
    return remix(call, projected(call, stream_reciprocals(call)), vector(call, "base"),
                 vector(call, "scale"));
}

bool norm_missing(const Call& call) {
    return remix(call, projected(call, truth::Matrix::Ones(call["rows"], call["streams"])),
                 vector(call, "base"), vector(call, "scale"));
}

bool norm_of_first_stream(const Call& call) {
    truth::Matrix factors = stream_reciprocals(call);
    for (Eigen::Index c = 1; c < factors.cols(); ++c) factors.col(c) = factors.col(0);
    return remix(call, projected(call, factors), vector(call, "base"), vector(call, "scale"));
}

/// The sum over all streams, divided by the width of one.
bool norm_by_one_width(const Call& call) {
    return remix(call, mixes_of(call) / std::sqrt(static_cast<double>(call["streams"])), vector(call, "base"),
                 vector(call, "scale"));
}

/// The stream is scaled by 1 / rms, then projected.
bool stream_scaled_first(const Call& call) {
    const int64_t n = call["streams"], width = n * call["hidden"], outputs = (2 + n) * n;
    const Lanes squares = sum_order(SumOperator::mhc_mean_square, width, 1).lanes;
    const Lanes lanes = sum_order(SumOperator::mhc_mix, width, outputs).lanes;
    for (int64_t row = 0; row < call["rows"]; ++row) {
        const auto h =
            call.in<Bf16>("h").subspan(static_cast<size_t>(row * width), static_cast<size_t>(width));
        const float mean = sum_of_squares(squares, h) / static_cast<float>(width);
        const float factor = elementary::reciprocal_sqrt(mean + call.real("norm_eps"));
        std::vector<float> scaled;
        for (const Bf16 x : h) scaled.push_back(to_float(x) * factor);
        for (int64_t i = 0; i < outputs; ++i)
            call.out<float>("mixes")[static_cast<size_t>(row * outputs + i)] =
                dot(lanes, std::span<const float>(scaled),
                    call.in<float>("fn").subspan(static_cast<size_t>(i * width), static_cast<size_t>(width)));
    }
    return remix(call, mixes_of(call), vector(call, "base"), vector(call, "scale"));
}

// Changed inputs.

/// tf32 has 10 bits behind the leading one; ties away from zero, as cvt.rna rounds.
float to_tf32(float x) {
    return float_from_bits((float_bits(x) + 0x1000u) & ~0x1FFFu);
}
bool scales_rotated(TensorMap& inputs, const OperatorRun&) {
    rotate_extent(inputs.find("scale")->second.view<float>(), 3, 1);
    return true;
}

bool first_scale_for_all(TensorMap& inputs, const OperatorRun&) {
    const std::span<float> scale = inputs.find("scale")->second.view<float>();
    std::ranges::fill(scale, scale.front());
    return true;
}

std::vector<Hypothesis> sinkhorn_rows() {
    const Cause fault = Cause::fault;
    return {
        {"comb_transposed", "K20", "comb is transposed: stream k is carried into stream j", fault,
         on_sinkhorn, comb_by(transposed)},
        {"sinkhorn_columns_first", "K20", "the softmax runs over columns, and rows come second", fault,
         on_sinkhorn, comb_by(columns_first)},
        {"sinkhorn_rows_last", "K20", "one more step over rows ends the iteration", fault, on_sinkhorn,
         comb_by(rows_last)},
        {"sinkhorn_one_iteration_less", "K20", "one iteration too few", fault, on_sinkhorn,
         iterations_more(-1)},
        {"sinkhorn_one_iteration_more", "K20", "one iteration too many", fault, on_sinkhorn,
         iterations_more(1)},
        {"sinkhorn_without_softmax", "K20", "the iteration starts from exponentials, without the softmax",
         fault, on_sinkhorn, comb_by(without_softmax)},
        {"sinkhorn_from_sigmoids", "K20", "the iteration starts from sigmoids, not from a softmax", fault,
         on_sinkhorn, comb_by(from_sigmoids)},
        {"sinkhorn_missing", "K20", "comb is the softmax alone", fault, on_sinkhorn, comb_by(softmax_alone)},
        {"comb_by_sigmoid", "K20", "comb is a sigmoid, as pre and post are", fault, on_sinkhorn,
         comb_by(sigmoids)},
        {"hc_eps_missing", "K20", "no epsilon is added in pre and in the Sinkhorn steps", fault, on_sinkhorn,
         with_parameters(
             [](Parameters& parameters, const OperatorRun&) { return set_real(parameters, "hc_eps", 0); })},
    };
}

std::vector<Hypothesis> mix_rows() {
    const Cause fault = Cause::fault;
    return {
        {"stream_scaled_before_projection", "order", "the stream is divided by its rms, then projected",
         Cause::order, on_mix, computed(stream_scaled_first)},
        {"pre_without_eps", "K20", "pre lacks its epsilon", fault, on_mix, pre_by(pre_without_eps)},
        {"pre_with_factor_two", "K20", "pre has post's factor 2", fault, on_mix, pre_by(pre_doubled)},
        {"pre_without_sigmoid", "K20", "pre lacks its sigmoid", fault, on_mix, pre_by(pre_without_sigmoid)},
        {"post_without_factor_two", "K20", "post lacks its factor 2", fault, on_mix,
         post_by(post_without_two)},
        {"post_as_pre", "K20", "post is made as pre is: no factor 2, an epsilon", fault, on_mix,
         post_by(post_with_eps)},
        {"pre_and_post_swapped", "K20", "pre's and post's rows are swapped", fault, on_mix,
         computed(pre_and_post_swapped)},
        {"base_before_scale", "K20", "base is added in front of the factor scale", fault, on_mix,
         computed(base_before_scale)},
        {"base_missing", "K20", "base is left out", fault, on_mix, with_each({"base"}, to_zero)},
        {"scale_missing", "K20", "scale is left out", fault, on_mix, with_each({"scale"}, to_one)},
        {"scale_of_next_part", "K20", "pre has post's scale, post comb's, comb pre's", fault, on_mix,
         with_inputs(scales_rotated)},
        {"scale_of_pre_for_all", "K20", "pre, post and comb all have the first scale", fault, on_mix,
         with_inputs(first_scale_for_all)},
        {"mix_norm_missing", "K20", "the projections are not divided by the rms", fault, on_mix,
         computed(norm_missing)},
        {"mix_norm_per_stream", "K20", "each stream is divided by its own rms", fault, on_mix,
         computed(norm_per_stream)},
        {"mix_norm_of_first_stream", "K20", "the rms is the first stream's", fault, on_mix,
         computed(norm_of_first_stream)},
        {"mix_norm_by_one_width", "K20", "the sum of squares is divided by one stream's width", fault, on_mix,
         computed(norm_by_one_width)},
        {"mix_norm_eps_1e_6", "K20", "the mean square gets 1e-6, not 1e-20", fault, on_mix,
         with_parameters([](Parameters& parameters, const OperatorRun&) {
             return set_real(parameters, "norm_eps", 1e-6);
         })},
        {"projection_in_tf32", "K20", "the projection's weights are rounded to tf32", fault, on_mix,
         with_each({"fn"}, to_tf32)},
        {"projection_in_bf16", "K20", "the projection's weights are rounded to bf16", fault, on_mix,
         with_each({"fn"}, rounded_to_bf16)},
    };
}

}  // namespace

std::vector<Hypothesis> hyper_connection_hypotheses() {
    std::vector<Hypothesis> all = sinkhorn_rows();
    for (Hypothesis& row : mix_rows()) all.push_back(std::move(row));
    return all;
}

}  // namespace touchstone
