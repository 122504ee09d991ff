// Two tensors, element by element: what differs, how much, where it is worst.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "golden/compare/tolerance.h"
#include "reference/io/tensor_view.h"

namespace touchstone {

/// Differences by size in units in the last place: 0, 1, 2, 3-4, 5-16, 17-256, 257-65536, more.
inline constexpr std::array<int64_t, 7> ulp_bin_ends{0, 1, 2, 4, 16, 256, 65536};

/// Where two sets of places differ.
struct PlacesDifference {
    int64_t both = 0, expected_only = 0, got_only = 0;
};

/// An element of both tensors.
struct ElementPair {
    int64_t index = -1;  ///< row-major; -1: there is none
    double expected = 0, got = 0;
    uint64_t expected_bits = 0, got_bits = 0;
};

/// All of it is taken in one pass, in an order that depends neither on threads nor on how a file is read.
struct Difference {
    int64_t elements = 0;
    int64_t identical = 0;   ///< the same bits, or two NaN
    int64_t zero_signs = 0;  ///< +0 against -0
    PlacesDifference nan, positive_infinity, negative_infinity;
    int64_t outside = 0;  ///< elements that the tolerance does not let pass
    int64_t rows = 0;     ///< of the last extent
    int64_t differing_rows = 0;

    // Finite pairs alone.
    std::array<int64_t, 8> ulp_bins{};  ///< of floating types; of integers, distances of their values
    int64_t largest_ulp = 0;
    double largest_absolute = 0, largest_relative = 0;  ///< relative to |expected|, where that is not 0
    double largest_of_rms = 0;                          ///< in units of the expected row's rms
    double normalised_mean_square = 0;                  ///< sum (e - g)^2 / sum e^2; 0 where both are 0
    double cosine = 0;  ///< 1 - 2 sum(eg) / sum(e^2 + g^2); 0 where both are 0
    ElementPair first;  ///< that differs
    ElementPair
        worst;  ///< farthest outside the tolerance, or where all pass, the largest in units of the rms

    // What says whether the comparison proves anything, of the expected tensor.
    int64_t zeros = 0, not_finite = 0;
    bool one_value = false;  ///< all elements have the same bits

    bool equal() const { return identical == elements; }
};

/// Told, by any thread, which bytes of both tensors have been read: those of a mapped file may leave memory.
/// A piece may be read again later.
using AfterPiece = std::function<void(std::span<const std::byte> expected, std::span<const std::byte> got)>;

/// Compares tensors of one type and shape; other pairs are a broken invariant and abort. Types: every one of
/// safetensors, and "E2M1", an fp4 code per byte; bytes of packed fp4 (U8, I8) count as integers unless a
/// layout has unpacked them before. Parallel; rows are those of the last extent.
Difference difference(const TensorView& expected, const TensorView& got, const Tolerance& tolerance,
                      const AfterPiece& after_piece = {});

/// Whether the elements, the share of differing ones and the cosine are within the tolerance.
bool within(const Difference& difference, const Tolerance& tolerance);

/// Element `index` of a tensor of that shape: {3, 0, 17}.
std::vector<int64_t> index_tuple(int64_t index, const std::vector<int64_t>& shape);

}  // namespace touchstone
