#include "cuda/numerics/sums.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>
#include <vector>

#include "reference/io/user_error.h"
#include "reference/numerics/fill.h"
#include "reference/numerics/sum_order.h"

using namespace touchstone;

namespace {

constexpr int skipped = 77;
constexpr int64_t longest = 20480, guard = 64;

void require_device() {
    int devices = 0;
    if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) return;
    std::printf("no CUDA device: skipped\n");
    std::exit(skipped);
}

void check(cudaError_t error) {
    INFO(cudaGetErrorString(error));
    REQUIRE(error == cudaSuccess);
}

/// Device memory for `count` elements, poisoned by every upload.
template <class T>
class DeviceArray {
  public:
    explicit DeviceArray(int64_t count) : count_(count) {
        void* memory = nullptr;
        check(cudaMalloc(&memory, size_t(count) * sizeof(T)));
        data_ = static_cast<T*>(memory);
        poison();
    }
    ~DeviceArray() { cudaFree(data_); }
    DeviceArray(const DeviceArray&) = delete;
    DeviceArray& operator=(const DeviceArray&) = delete;

    T* at(int64_t offset) const { return data_ + offset; }
    void poison() const { check(cudaMemset(data_, 0xFF, size_t(count_) * sizeof(T))); }
    /// `values` from `offset` on, NaN everywhere else.
    void upload(std::span<const T> values, int64_t offset) const {
        poison();
        check(cudaMemcpy(at(offset), values.data(), values.size_bytes(), cudaMemcpyHostToDevice));
    }
    std::vector<T> download() const {
        std::vector<T> values(static_cast<size_t>(count_));
        check(cudaMemcpy(values.data(), data_, values.size() * sizeof(T), cudaMemcpyDeviceToHost));
        return values;
    }

  private:
    T* data_ = nullptr;
    int64_t count_;
};

/// Counts results that differ from the CPU's and canaries that were overwritten; describes the first.
struct Comparison {
    int64_t compared = 0, wrong = 0;
    std::string first_wrong;

    void add(const std::vector<float>& got, const std::vector<float>& expected, const std::string& where) {
        for (size_t i = 0; i < got.size(); ++i) {
            const int64_t row = int64_t(i) - guard;
            const bool inside = row >= 0 && row < std::ssize(expected);
            const uint32_t wanted = inside ? float_bits(expected[size_t(row)]) : 0xFFFFFFFF;
            compared += inside;
            if (float_bits(got[i]) == wanted || wrong++ > 0) continue;
            std::array<char, 96> text{};
            std::snprintf(text.data(), text.size(), ", row %lld of %zu: %08x, expected %08x",
                          static_cast<long long>(row), expected.size(), float_bits(got[i]), wanted);
            first_wrong = where + text.data();
        }
    }
};

std::string text(Lanes lanes) {
    return std::string(lane_arrangement_name(lanes.arrangement)) + " " + std::to_string(lanes.count);
}

std::vector<Lanes> all_lanes() {
    std::vector<Lanes> lanes{{LaneArrangement::sequential, 1}};
    for (int count = 1; count <= Lanes::most; count *= 2) {
        lanes.push_back({LaneArrangement::interleaved, count});
        lanes.push_back({LaneArrangement::chunked, count});
    }
    return lanes;
}

/// Rows of `x` and `y` on both sides. They start `shift` elements into their arrays, so that vector loads are
/// possible for some rows, some lengths, or none.
template <class X, class Y>
struct Fixture {
    static constexpr int64_t most_rows = 7;
    std::vector<X> x = std::vector<X>(size_t(most_rows * longest));
    std::vector<Y> y = std::vector<Y>(size_t(most_rows * longest));
    DeviceArray<X> device_x{most_rows * longest + 2 * guard};
    DeviceArray<Y> device_y{most_rows * longest + 2 * guard};
    DeviceArray<float> device_out{most_rows + 2 * guard};
    Comparison comparison;

    Fixture(Filler filler, bool special) {
        fill<X>(filler, {31}, x);
        fill<Y>(filler, {32}, y);
        if (!special) return;
        for (size_t i = 0; i < x.size(); ++i) {
            const uint32_t r = RandomStream{33}.word(i);
            if (r % 5000 == 0) x[i] = filled<X>(Filler::poison, {0}, 0);
            if constexpr (std::is_same_v<X, float>)
                if (r % 5000 == 1) x[i] = r % 2 == 0 ? HUGE_VALF : -HUGE_VALF;
        }
    }

    void compare(RowSum what, Lanes lanes, int64_t rows, int64_t k, int64_t shift) {
        const auto row_span = [&](const auto& all) { return std::span(all).first(size_t(rows * k)); };
        const bool dot_product = what == RowSum::dot;
        std::vector<float> expected(size_t(rows), 0.0f);
        device_x.upload(row_span(x), shift);
        if (dot_product) device_y.upload(row_span(y), shift);
        device_out.poison();
        if constexpr (std::is_same_v<X, Y>) {
            sum_rows(what, lanes, row_span(x), dot_product ? row_span(y) : std::span<const Y>{}, k, expected);
            cuda::sum_rows(what, lanes, device_x.at(shift), dot_product ? device_y.at(shift) : nullptr, rows,
                           k, device_out.at(guard), nullptr);
        } else {
            for (int64_t row = 0; row < rows; ++row)
                expected[size_t(row)] = dot(lanes, std::span(x).subspan(size_t(row * k), size_t(k)),
                                            std::span(y).subspan(size_t(row * k), size_t(k)));
            cuda::dot_rows(lanes, device_x.at(shift), device_y.at(shift), rows, k, device_out.at(guard),
                           nullptr);
        }
        check(cudaDeviceSynchronize());
        comparison.add(device_out.download(), expected,
                       text(lanes) + " lanes, k = " + std::to_string(k) + ", shift " + std::to_string(shift) +
                           ", sum " + std::to_string(int(what)));
    }
};

/// Every length to 300, then all within 9 of a multiple of 256 to 5120 and of 1024 to 20480.
std::vector<int64_t> lengths() {
    std::vector<int64_t> lengths;
    for (int64_t k = 1; k <= longest; ++k) {
        const int64_t period = k <= 5120 + 9 ? 256 : 1024;
        const bool near = k % period <= 9 || k % period >= period - 9;
        if (k <= 300 || near) lengths.push_back(k);
    }
    return lengths;
}

template <class X, class Y>
void compare_all(const char* name, Filler filler, bool special) {
    Fixture<X, Y> fixture(filler, special);
    const std::vector<Lanes> lanes = all_lanes();
    std::vector<RowSum> sums{RowSum::dot};
    if (std::is_same_v<X, Y>) sums = {RowSum::sum, RowSum::sum_of_squares, RowSum::dot, RowSum::largest};
    int64_t turn = 0;
    for (const int64_t k : lengths())
        for (const RowSum what : sums) {
            const int64_t rows = 1 + turn % Fixture<X, Y>::most_rows;
            // 256 and 1024 lanes, the table's, at every length; the others in turn.
            fixture.compare(what, {LaneArrangement::interleaved, 256}, rows, k, turn % 3 == 0 ? 0 : turn % 9);
            fixture.compare(what, {LaneArrangement::interleaved, 1024}, rows, k,
                            turn % 2 == 0 ? 8 : turn % 7);
            fixture.compare(what, lanes[size_t(turn) % lanes.size()], rows, k, turn % 4 == 0 ? 0 : turn % 11);
            ++turn;
        }
    const Comparison& comparison = fixture.comparison;
    std::printf("%-12s %9lld results compared\n", name, static_cast<long long>(comparison.compared));
    CAPTURE(name);
    CAPTURE(comparison.first_wrong);
    CHECK(comparison.wrong == 0);
    CHECK(comparison.compared > 1000);
}

}  // namespace

TEST_CASE("cuda sums: equal the CPU's bit for bit, fp32 (k to 20480, every lane count)") {
    require_device();
    compare_all<float, float>("fp32", Filler::normal, false);
    compare_all<float, float>("fp32 traps", Filler::trap, true);
}

TEST_CASE("cuda sums: equal the CPU's bit for bit, bf16 (k to 20480, every lane count)") {
    require_device();
    compare_all<Bf16, Bf16>("bf16", Filler::normal, false);
    compare_all<Bf16, Bf16>("bf16 traps", Filler::trap, true);
}

TEST_CASE("cuda sums: equal the CPU's bit for bit, bf16 with fp32 (k to 20480, every lane count)") {
    require_device();
    compare_all<Bf16, float>("bf16, fp32", Filler::normal, false);
    compare_all<Bf16, float>("mixed traps", Filler::trap, true);
}

TEST_CASE("cuda sums: many rows (65,537 of 128, more than a grid has blocks)") {
    require_device();
    constexpr int64_t rows = 65537, k = 128;
    std::vector<Bf16> x(size_t(rows * k));
    fill<Bf16>(Filler::normal, {41}, x);
    const DeviceArray<Bf16> device_x(rows * k);
    const DeviceArray<float> device_out(rows + 2 * guard);
    device_x.upload(x, 0);
    for (const Lanes lanes :
         {Lanes{LaneArrangement::interleaved, 128}, Lanes{LaneArrangement::interleaved, 512},
          Lanes{LaneArrangement::chunked, 64}}) {
        std::vector<float> expected(size_t(rows), 0.0f);
        sum_rows(RowSum::sum_of_squares, lanes, x, {}, k, expected);
        device_out.poison();
        cuda::sum_rows(RowSum::sum_of_squares, lanes, device_x.at(0), nullptr, rows, k, device_out.at(guard),
                       nullptr);
        check(cudaDeviceSynchronize());
        Comparison comparison;
        comparison.add(device_out.download(), expected, text(lanes));
        CAPTURE(comparison.first_wrong);
        CHECK(comparison.wrong == 0);
    }
}

TEST_CASE("cuda sums: no rows, rows of nothing, and what is refused before a launch") {
    require_device();
    const DeviceArray<float> x(64), out(4);
    const Lanes lanes{LaneArrangement::interleaved, 8};
    cuda::sum_rows(RowSum::sum, lanes, x.at(0), nullptr, 0, 8, out.at(0), nullptr);
    cuda::sum_rows(RowSum::sum, lanes, x.at(0), nullptr, 2, 0, out.at(1), nullptr);
    CHECK_THROWS_AS(cuda::sum_rows(RowSum::sum, {LaneArrangement::interleaved, 3}, x.at(0), nullptr, 1, 8,
                                   out.at(0), nullptr),
                    UserError);
    CHECK_THROWS_AS(cuda::sum_rows(RowSum::sum, lanes, x.at(0), nullptr, 1, -8, out.at(0), nullptr),
                    UserError);
    CHECK_THROWS_AS(cuda::sum_rows(RowSum::dot, lanes, x.at(0), nullptr, 1, 8, out.at(0), nullptr),
                    UserError);
    CHECK_THROWS_AS(cuda::sum_rows(RowSum::sum, lanes, x.at(0), x.at(0), 1, 8, out.at(0), nullptr),
                    UserError);
    check(cudaDeviceSynchronize());
    const std::vector<float> after = out.download();
    CHECK(float_bits(after[0]) == 0xFFFFFFFF);
    CHECK(float_bits(after[1]) == 0);
    CHECK(float_bits(after[2]) == 0);
    CHECK(float_bits(after[3]) == 0xFFFFFFFF);
}
