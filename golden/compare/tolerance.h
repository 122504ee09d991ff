// How far a tensor may be from what was expected: classes with names, and the text that a user types.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace touchstone {

/// An element passes when it is within any of the limits that are given; where none is given, when its bits
/// are equal. NaN and infinities are not measured: they have to stand at the same places.
struct Tolerance {
    std::optional<int64_t> ulp = {};  ///< units in the last place of the tensor's own type
    std::optional<double> rms =
        {};  ///< |got - expected| in units of the rms of the expected row (last extent)
    std::optional<double> absolute = {};  ///< |got - expected| <= absolute + relative * |expected|
    std::optional<double> relative = {};
    double share = 1;  ///< of the elements that may differ at all, within those limits
    /// Beside another limit alone: 1 - 2 sum(xy) / sum(x^2 + y^2), the peers' measure.
    std::optional<double> cosine = {};

    bool exact() const { return !ulp && !rms && !absolute && !relative; }
};

/// The largest limit of ulp that a text may give, 2^53: a distance that a double carries exactly.
inline constexpr double most_ulp = 0x1p53;

/// A tolerance that people know by name.
struct ToleranceClass {
    std::string_view name, text, meaning;
};

/// "bit", "bf16_step", "fp32_row", and the peers' own, in the order in which help shows them.
std::span<const ToleranceClass> tolerance_classes();

/// Reads a class's name, or limits such as "ulp=1,share=0.01" or "abs=1e-3,rel=2.01/128,cosine=5e-6" (a
/// number or a quotient of two). Throws UserError naming `where` for anything else, and for a cosine alone.
Tolerance parse_tolerance(std::string_view text, const std::string& where);

/// The text that parse_tolerance reads.
std::string tolerance_text(const Tolerance& tolerance);

}  // namespace touchstone
