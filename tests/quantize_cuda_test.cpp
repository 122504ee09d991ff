#include "cuda/quantize.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "reference/io/user_error.h"
#include "tests/quantize_cases.h"

using namespace touchstone;

namespace {

constexpr int skipped = 77;
constexpr int64_t values_per_case = 1 << 20;
constexpr size_t guard_bytes = 67;  // odd, so that pages are not aligned
constexpr std::byte poison{0xFF};   // NaN as bf16, fp32, e4m3 and e8m0

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

/// A device copy of host bytes, freed with the scope.
class DeviceBytes {
  public:
    explicit DeviceBytes(const std::vector<std::byte>& host) : size_(host.size()) {
        check(cudaMalloc(&data_, std::max<size_t>(size_, 1)));
        check(cudaMemcpy(data_, host.data(), size_, cudaMemcpyHostToDevice));
    }
    ~DeviceBytes() { cudaFree(data_); }
    DeviceBytes(const DeviceBytes&) = delete;
    DeviceBytes& operator=(const DeviceBytes&) = delete;

    std::byte* at(size_t offset) const { return static_cast<std::byte*>(data_) + offset; }
    std::vector<std::byte> to_host() const {
        std::vector<std::byte> host(size_);
        check(cudaMemcpy(host.data(), data_, size_, cudaMemcpyDeviceToHost));
        return host;
    }

  private:
    void* data_ = nullptr;
    size_t size_;
};

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
    std::vector<std::byte> bytes(values.size() * sizeof(T));
    if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
}

int64_t width_of(const KvPage& page) {
    return page.record.channels + page.record.tail_channels;
}

/// Rows that start inside the first page and end inside the last.
struct Span {
    int64_t first_slot, n, page_count;
};

Span span_of(const KvPage& page, int64_t n) {
    const int64_t first_slot = page.records / 2;
    return {first_slot, n, (first_slot + n) / page.records + 1};
}

/// Quantises `rows` on both sides into poisoned, guarded, misaligned pages; compares every byte of the
/// buffers. Returns the pages.
std::vector<std::byte> compare_quantize(const KvPage& page, Quantizer quantizer,
                                        const std::vector<Bf16>& rows) {
    const Span s = span_of(page, std::ssize(rows) / width_of(page));
    const size_t pages_bytes = size_t(s.page_count * page.page_bytes());
    std::vector<std::byte> expected(pages_bytes + 2 * guard_bytes, poison);
    const DeviceBytes device_rows(bytes_of(rows)), device_pages(expected);
    const std::span<std::byte> pages = std::span(expected).subspan(guard_bytes, pages_bytes);
    quantize_rows(page, quantizer, rows, pages, s.first_slot);
    cuda::quantize_rows(page, quantizer, reinterpret_cast<const Bf16*>(device_rows.at(0)), s.n,
                        device_pages.at(guard_bytes), int64_t(pages_bytes), s.first_slot, nullptr);
    check(cudaDeviceSynchronize());
    const std::vector<std::byte> got = device_pages.to_host();
    const int64_t first_wrong_byte = std::ranges::mismatch(got, expected).in1 - got.begin();
    CAPTURE(first_wrong_byte);
    CHECK(got == expected);
    return {pages.begin(), pages.end()};
}

/// Dequantises n rows of `pages` on both sides into poisoned, guarded buffers; compares every bit.
void compare_dequantize(const KvPage& page, const std::vector<std::byte>& pages, int64_t first_slot,
                        int64_t n) {
    constexpr size_t guard = 16;
    std::vector<uint32_t> poisoned(size_t(n * width_of(page)) + 2 * guard, 0xFFFFFFFF);
    std::vector<float> expected(poisoned.size() - 2 * guard);
    const DeviceBytes device_pages(pages), device_out(bytes_of(poisoned));
    dequantize_rows(page, pages, first_slot, n, expected);
    cuda::dequantize_rows(page, device_pages.at(0), std::ssize(pages), first_slot, n,
                          reinterpret_cast<float*>(device_out.at(guard * sizeof(float))), nullptr);
    check(cudaDeviceSynchronize());
    if (!expected.empty())
        std::memcpy(poisoned.data() + guard, expected.data(), expected.size() * sizeof(float));
    const std::vector<std::byte> got = device_out.to_host(), wanted = bytes_of(poisoned);
    const int64_t first_wrong_byte = std::ranges::mismatch(got, wanted).in1 - got.begin();
    CAPTURE(first_wrong_byte);
    CHECK(got == wanted);
}

}  // namespace

TEST_CASE(
    "cuda quantize: traps, pages and values equal the CPU's bit for bit (every record, layout, quantiser)") {
    require_device();
    uint64_t seed = 1000;
    for (const QuantizeCase& c : quantize_cases()) {
        CAPTURE(c.name);
        CAPTURE(++seed);
        const int64_t width = width_of(c.page), n = (values_per_case + width - 1) / width;
        int64_t quantised = 0, dequantised = 0;
        if (c.quantizer != nullptr) {
            const std::vector<std::byte> pages =
                compare_quantize(c.page, c.quantizer->quantizer, trap_rows(seed, n, width));
            compare_dequantize(c.page, pages, span_of(c.page, n).first_slot, n);
            quantised = n * width, dequantised = n * width;
        }
        // Bytes that no quantiser writes: NaN codes under every scale, padding that is not zero.
        const Span s = span_of(c.page, n);
        std::vector<std::byte> garbage(size_t(s.page_count * c.page.page_bytes()));
        for (size_t i = 0; i < garbage.size(); ++i)
            garbage[i] = std::byte(random_bits(seed, i / 8) >> (i % 8 * 8) & 0xFF);
        compare_dequantize(c.page, garbage, s.first_slot, n);
        dequantised += n * width;
        std::printf("%-50s quantised %9lld  dequantised %9lld\n", c.name.c_str(),
                    static_cast<long long>(quantised), static_cast<long long>(dequantised));
    }
}

TEST_CASE(
    "cuda quantize: every bf16 pattern as block maximum equals the CPU's bit for bit (every quantiser)") {
    require_device();
    for (const QuantizeCase& c : quantize_cases()) {
        if (c.page.record.scale_count() == 0 || c.quantizer == nullptr) continue;
        CAPTURE(c.name);
        compare_quantize(c.page, c.quantizer->quantizer, maximum_rows(7, c.page.record));
    }
}

TEST_CASE("cuda quantize: what the CPU refuses is refused before anything is launched") {
    require_device();
    const KvPage page{fp8_record(64), KvPageLayout::planar, 4, 1};
    const DeviceBytes rows(std::vector<std::byte>(64 * 2)),
        pages(std::vector<std::byte>(size_t(page.page_bytes()), poison));
    const auto* x = reinterpret_cast<const Bf16*>(rows.at(0));
    const int64_t size = page.page_bytes();
    CHECK_THROWS_AS(cuda::quantize_rows(page, Quantizer::q4m, x, 1, pages.at(0), size, 0, nullptr),
                    UserError);
    CHECK_THROWS_AS(cuda::quantize_rows(page, Quantizer::q8, x, 1, pages.at(0), size, 4, nullptr), UserError);
    CHECK_THROWS_AS(cuda::quantize_rows(page, Quantizer::q8, x, 1, pages.at(0), size - 1, 0, nullptr),
                    UserError);
    CHECK_THROWS_AS(cuda::dequantize_rows(page, pages.at(0), size, 5, 1, nullptr, nullptr), UserError);
    CHECK_NOTHROW(cuda::quantize_rows(page, Quantizer::q8, x, 0, pages.at(0), size, 4, nullptr));
    check(cudaDeviceSynchronize());
    const std::vector<std::byte> after = pages.to_host();
    CHECK(std::ranges::count(after, poison) == std::ssize(after));
}
