#include "reference/numerics/sums.h"

#include <fmt/format.h>

#include "reference/io/user_error.h"

namespace touchstone {

namespace isa_scalar {
extern const SumsKernels sums_kernels;
}
#ifdef __x86_64__
namespace isa_avx2 {
extern const SumsKernels sums_kernels;
}
namespace isa_avx512 {
extern const SumsKernels sums_kernels;
}
#endif

const SumsKernels& sums_kernels(Isa isa) {
#ifdef __x86_64__
    if (isa == Isa::avx512) return isa_avx512::sums_kernels;
    if (isa == Isa::avx2) return isa_avx2::sums_kernels;
#endif
    (void)isa;
    return isa_scalar::sums_kernels;
}

namespace {

constexpr int64_t parallel_elements = 1 << 16;

const SumsKernels& active_kernels() {
    static const SumsKernels& kernels = sums_kernels(active_isa());
    return kernels;
}

void require_lanes(Lanes lanes, const char* where) {
    if (lanes.valid()) return;
    throw UserError({fmt::format("{} lanes", lanes.count), where,
                     fmt::format("a power of two from 1 to {}, 1 when sequential", Lanes::most), ""});
}

void require_equal_lengths(size_t x, size_t y) {
    if (x == y) return;
    throw UserError(
        {fmt::format("x has {} elements, y has {}", x, y), "dot", "two vectors of one length", ""});
}

void require_rows(RowSum what, Lanes lanes, int64_t x, int64_t y, int64_t k, int64_t rows) {
    const char* where = "sum_rows";
    require_lanes(lanes, where);
    if (k < 0 || x != rows * k)
        throw UserError({fmt::format("x has {} elements", x), where,
                         fmt::format("{}: {} rows of {}", rows * k, rows, k), ""});
    const int64_t expected = what == RowSum::dot ? x : 0;
    if (y != expected)
        throw UserError({fmt::format("y has {} elements", y), where,
                         fmt::format("{}: as many as x for dot, none otherwise", expected), ""});
}

/// `kernel(row)` for each row.
template <class Kernel>
void for_rows(std::span<float> out, int64_t k, Kernel kernel) {
    const int64_t rows = std::ssize(out);
#pragma omp parallel for schedule(static) if (rows > 1 && rows * k >= parallel_elements)
    for (int64_t row = 0; row < rows; ++row) out[static_cast<size_t>(row)] = kernel(row);
}

}  // namespace

float sum(Lanes lanes, std::span<const float> x) {
    require_lanes(lanes, "sum");
    return active_kernels().sum_f32(lanes, x.data(), std::ssize(x));
}

float sum(Lanes lanes, std::span<const Bf16> x) {
    require_lanes(lanes, "sum");
    return active_kernels().sum_bf16(lanes, x.data(), std::ssize(x));
}

float sum_of_squares(Lanes lanes, std::span<const float> x) {
    require_lanes(lanes, "sum_of_squares");
    return active_kernels().squares_f32(lanes, x.data(), std::ssize(x));
}

float sum_of_squares(Lanes lanes, std::span<const Bf16> x) {
    require_lanes(lanes, "sum_of_squares");
    return active_kernels().squares_bf16(lanes, x.data(), std::ssize(x));
}

float dot(Lanes lanes, std::span<const float> x, std::span<const float> y) {
    require_lanes(lanes, "dot");
    require_equal_lengths(x.size(), y.size());
    return active_kernels().dot_f32(lanes, x.data(), y.data(), std::ssize(x));
}

float dot(Lanes lanes, std::span<const Bf16> x, std::span<const Bf16> y) {
    require_lanes(lanes, "dot");
    require_equal_lengths(x.size(), y.size());
    return active_kernels().dot_bf16(lanes, x.data(), y.data(), std::ssize(x));
}

float dot(Lanes lanes, std::span<const Bf16> x, std::span<const float> y) {
    require_lanes(lanes, "dot");
    require_equal_lengths(x.size(), y.size());
    return active_kernels().dot_bf16_f32(lanes, x.data(), y.data(), std::ssize(x));
}

float largest(std::span<const float> x) {
    return active_kernels().largest_f32(x.data(), std::ssize(x));
}

float largest(std::span<const Bf16> x) {
    return active_kernels().largest_bf16(x.data(), std::ssize(x));
}

void sum_rows(RowSum what, Lanes lanes, std::span<const float> x, std::span<const float> y, int64_t k,
              std::span<float> out) {
    require_rows(what, lanes, std::ssize(x), std::ssize(y), k, std::ssize(out));
    const SumsKernels& kernels = active_kernels();
    for_rows(out, k, [&](int64_t row) {
        const float* const at = x.data() + row * k;
        switch (what) {
            case RowSum::sum: return kernels.sum_f32(lanes, at, k);
            case RowSum::sum_of_squares: return kernels.squares_f32(lanes, at, k);
            case RowSum::dot: return kernels.dot_f32(lanes, at, y.data() + row * k, k);
            case RowSum::largest: break;
        }
        return kernels.largest_f32(at, k);
    });
}

void sum_rows(RowSum what, Lanes lanes, std::span<const Bf16> x, std::span<const Bf16> y, int64_t k,
              std::span<float> out) {
    require_rows(what, lanes, std::ssize(x), std::ssize(y), k, std::ssize(out));
    const SumsKernels& kernels = active_kernels();
    for_rows(out, k, [&](int64_t row) {
        const Bf16* const at = x.data() + row * k;
        switch (what) {
            case RowSum::sum: return kernels.sum_bf16(lanes, at, k);
            case RowSum::sum_of_squares: return kernels.squares_bf16(lanes, at, k);
            case RowSum::dot: return kernels.dot_bf16(lanes, at, y.data() + row * k, k);
            case RowSum::largest: break;
        }
        return kernels.largest_bf16(at, k);
    });
}

}  // namespace touchstone
