// Every fp32 input, every conversion: against the search in double, and against the host code of CUDA's own
// headers where the toolkit is installed. The loops convert blocks, as the quantisers do, so the vectorised
// form of the conversions is what is tested.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <iterator>
#include <vector>

#include "reference/numerics/small_float.h"
#include "tests/small_float_oracle.h"

#ifdef TOUCHSTONE_CUDA_HEADERS
#include <cuda_bf16.h>
#include <cuda_fp4.h>
#include <cuda_fp8.h>
#endif

using namespace touchstone;

namespace {

constexpr uint32_t block_inputs = 1u << 14;
constexpr int64_t blocks = int64_t{1} << 18;
constexpr uint64_t none = ~uint64_t{0};

using Codes = std::vector<uint16_t>;

/// Fills the codes of the `block_inputs` fp32 inputs whose bits begin at the first argument.
using FillBlock = std::function<void(uint32_t, Codes&)>;

template <class Convert>
FillBlock by(Convert convert) {
    return [convert](uint32_t start, Codes& codes) {
        uint16_t* out = codes.data();
        for (uint32_t i = 0; i < block_inputs; ++i) out[i] = convert(float_from_bits(start + i));
    };
}

/// The right codes by the search in double. A block lies on one side of zero, so its codes only rise, and
/// each fills the inputs up to its last one.
FillBlock by_search(const oracle::Conversion& conversion) {
    return [&conversion, last = oracle::last_magnitude_bits(conversion)](uint32_t start, Codes& codes) {
        const uint32_t magnitude = start & 0x7FFFFFFF;
        const auto reached = std::lower_bound(last.begin(), last.end(), magnitude);
        auto code = static_cast<uint32_t>(reached - last.begin());
        for (uint32_t i = 0; i < block_inputs; ++code) {
            uint32_t end = code < last.size() ? last[code] + 1 - magnitude : block_inputs;
            end = std::min(end, block_inputs);
            const float x = float_from_bits(start + i);
            std::fill(codes.begin() + i, codes.begin() + end,
                      static_cast<uint16_t>(oracle::with_policies(conversion, x, code)));
            i = end;
        }
        if (magnitude == 0x7F800000) {  // this block begins with infinity and goes on with NaNs
            std::fill(codes.begin() + 1, codes.end(), static_cast<uint16_t>(conversion.nan_code));
        }
    };
}

/// Our conversions, in the order of oracle::conversions().
const FillBlock ours[] = {
    by([](float x) { return bf16_from_float(x).bits; }),
    by([](float x) { return e4m3_from_float_saturating(x).bits; }),
    by([](float x) { return e4m3_from_float_overflow_to_nan(x).bits; }),
    by([](float x) { return e2m1_from_float_saturating(x).bits; }),
    by([](float x) { return e8m0_from_float_ceil(x).bits; }),
};

#ifdef TOUCHSTONE_CUDA_HEADERS
/// CUDA's, in the same order. No input is excepted: signs of zero, NaN codes and their signs all have to
/// agree.
const FillBlock cudas[] = {
    by([](float x) { return __nv_bfloat16_raw(__float2bfloat16_rn(x)).x; }),
    by([](float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }),
    by([](float x) { return __nv_cvt_float_to_fp8(x, __NV_NOSAT, __NV_E4M3); }),
    by([](float x) { return __nv_cvt_float_to_fp4(x, __NV_E2M1, cudaRoundNearest); }),
    by([](float x) { return __nv_cvt_float_to_e8m0(x, __NV_SATFINITE, cudaRoundPosInf); }),
};
#endif

/// The smallest fp32 bits whose code differs between `fill` and each of `oracles`; `none` where none does.
std::vector<uint64_t> first_differences(const FillBlock& fill, const std::vector<FillBlock>& oracles) {
    std::vector<uint64_t> first(oracles.size(), none);
#pragma omp parallel
    {
        Codes codes(block_inputs);
        Codes right(block_inputs);
#pragma omp for schedule(dynamic, 64)
        for (int64_t block = 0; block < blocks; ++block) {
            const uint32_t start = static_cast<uint32_t>(block) * block_inputs;
            fill(start, codes);
            for (size_t i = 0; i < oracles.size(); ++i) {
                oracles[i](start, right);
                if (codes == right) continue;
                const auto differ = std::mismatch(codes.begin(), codes.end(), right.begin());
                const uint64_t bits = start + static_cast<uint64_t>(differ.first - codes.begin());
#pragma omp critical
                first[i] = std::min(first[i], bits);
            }
        }
    }
    return first;
}

}  // namespace

TEST_CASE("small floats: all 2^32 inputs convert right (search in double, CUDA's headers)") {
    REQUIRE(oracle::conversions().size() == std::size(ours));
    for (size_t i = 0; i < std::size(ours); ++i) {
        const oracle::Conversion& conversion = oracle::conversions()[i];
        std::vector<FillBlock> oracles = {by_search(conversion)};
#ifdef TOUCHSTONE_CUDA_HEADERS
        oracles.push_back(cudas[i]);
#else
        MESSAGE("cuda_fp4.h was not found at configure time: " << conversion.name
                                                               << " is compared with the search alone");
#endif
        const std::vector<uint64_t> first = first_differences(ours[i], oracles);
        for (size_t judge = 0; judge < first.size(); ++judge) {
            INFO(conversion.name << (judge == 0 ? " against the search" : " against CUDA's headers"));
            INFO("first differing fp32 bits: " << first[judge]);
            CHECK(first[judge] == none);
        }
    }
}

#ifdef TOUCHSTONE_CUDA_HEADERS
TEST_CASE("small floats: every code decodes as in CUDA's headers (bits)") {
    for (uint32_t code = 0; code < 0x10000; ++code) {
        CAPTURE(code);
        __nv_bfloat16_raw raw;
        raw.x = static_cast<uint16_t>(code);
        CHECK(float_bits(to_float(Bf16{raw.x})) == float_bits(__bfloat162float(raw)));
    }
    for (uint32_t code = 0; code < 256; ++code) {
        CAPTURE(code);
        const auto byte = static_cast<uint8_t>(code);
        const float e4m3 = __half2float(__nv_cvt_fp8_to_halfraw(byte, __NV_E4M3));
        CHECK(float_bits(to_float(E4m3{byte})) == float_bits(with_canonical_nan(e4m3)));
        const float e8m0 = __bfloat162float(__nv_cvt_e8m0_to_bf16raw(byte));
        CHECK(float_bits(to_float(E8m0{byte})) == float_bits(with_canonical_nan(e8m0)));
    }
    for (uint8_t code = 0; code < 16; ++code) {
        CAPTURE(code);
        const float e2m1 = __half2float(__nv_cvt_fp4_to_halfraw(code, __NV_E2M1));
        CHECK(float_bits(to_float(E2m1{code})) == float_bits(e2m1));
    }
}
#endif
