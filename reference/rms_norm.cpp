#include "reference/rms_norm.h"

#include <fmt/format.h>

#include "reference/io/user_error.h"
#include "reference/numerics/elementary.h"
#include "reference/numerics/sum_order.h"
#include "reference/numerics/sums.h"

namespace touchstone {

namespace {

constexpr int64_t parallel_elements = 1 << 14;

void require(std::string_view tensor, size_t size, int64_t rows, int64_t width) {
    if (rows >= 0 && static_cast<int64_t>(size) == rows * width) return;
    throw UserError({fmt::format("{} has {} elements", tensor, size), "rms_norm",
                     fmt::format("[{}, {}]", rows, width), "pass tensors whose shapes agree"});
}

void store(float value, float& y) {
    y = with_canonical_nan(value);
}

void store(float value, Bf16& y) {
    y = bf16_from_float(value);
}

template <class Y>
void norm(std::span<const Bf16> x, int64_t rows, std::span<const Bf16> weight, float eps, std::span<Y> y) {
    const int64_t width = std::ssize(weight);
    require("x", x.size(), rows, width);
    require("y", y.size(), rows, width);
    const Lanes lanes = sum_order(SumOperator::rms_norm, width, 1).lanes;
#pragma omp parallel for schedule(static) if (rows > 1 && rows * width >= parallel_elements)
    for (int64_t row = 0; row < rows; ++row) {
        const Bf16* in = x.data() + row * width;
        Y* out = y.data() + row * width;
        const float mean = sum_of_squares(lanes, std::span(in, weight.size())) / static_cast<float>(width);
        const float r = elementary::reciprocal_sqrt(mean + eps);
        for (int64_t i = 0; i < width; ++i)
            store(to_float(weight[static_cast<size_t>(i)]) * (to_float(in[i]) * r), out[i]);
    }
}

}  // namespace

void rms_norm(std::span<const Bf16> x, int64_t rows, std::span<const Bf16> weight, float eps,
              std::span<float> y) {
    norm(x, rows, weight, eps, y);
}

void rms_norm(std::span<const Bf16> x, int64_t rows, std::span<const Bf16> weight, float eps,
              std::span<Bf16> y) {
    norm(x, rows, weight, eps, y);
}

}  // namespace touchstone
