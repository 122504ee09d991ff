// Is my tensor right? The verdict on a tensor, and on all of two files.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "golden/compare/difference.h"
#include "golden/compare/layout_change.h"
#include "golden/compare/name_map.h"
#include "golden/compare/selection_compare.h"
#include "golden/compare/tensor_file.h"

namespace touchstone {

/// In the order of their weight.
enum class Verdict : uint8_t {
    equal,       ///< the same bits
    passed,      ///< within the tolerance; of indices: the same set
    tie,         ///< indices: another choice among equal scores
    mistrusted,  ///< equal or within the tolerance, but the expectation proves nothing
    failed,
};
inline constexpr size_t verdict_count = 5;
/// "EQUAL", "PASSED", ..
std::string_view name_of(Verdict verdict);

/// The smallest limits that, each alone, would let the tensor pass; none where no limit of that kind does: of
/// relative where 0 was expected, of rms where the row's is 0, of all where NaN or infinities stand at other
/// places.
struct MinimumTolerances {
    std::optional<int64_t> ulp = {};
    std::optional<double> absolute = {}, relative = {}, rms = {};

    bool none() const { return !ulp && !absolute && !relative && !rms; }
};

/// How one tensor came out.
struct TensorComparison {
    std::string name;           ///< ours
    bool found = false;         ///< whether `got` has it
    std::string got_name = {};  ///< theirs, where a map has translated it; empty where not found
    Verdict verdict = Verdict::equal;
    std::string reason = {};  ///< one line for people; empty where equal
    std::string type = {};
    std::vector<int64_t> shape = {};
    Tolerance tolerance = {};
    std::string doubt = {};      ///< why the expectation proves nothing; empty where it does
    bool doubt_allowed = false;  ///< the user takes it as it is
    std::optional<Difference> difference = {};
    std::optional<SelectionDifference> selection = {};
    MinimumTolerances minimum = {};
    /// The expected value at the worst element before it was rounded to the tensor's type.
    std::optional<double> worst_unrounded = {};
    /// Whether that value lies so near the middle of both that either is a rounding of it.
    bool rounding_tie = false;
    /// row_errors of the report's worst tensor, where they were asked for; empty for others.
    std::vector<double> row_errors = {};
};

/// All of two files.
struct CompareReport {
    std::string expected_path, got_path;
    std::vector<TensorComparison> tensors;  ///< by name
    std::vector<std::string> warnings;
    std::array<int64_t, verdict_count> counts{};

    /// Whether no tensor has a namesake.
    bool nothing_found() const;
    /// Whether no tensor with elements has a namesake.
    bool nothing_compared() const;
    /// The heaviest verdict.
    Verdict verdict() const;
    /// What shows first: the heaviest verdict, of those the largest error; none where nothing differs.
    const TensorComparison* worst() const;
    /// 0 all passed, 1 a check failed or is mistrusted, 3 nothing was compared.
    int exit_code() const;
};

/// Which of the two files a layout is declared for.
enum class Side : uint8_t { expected, got };

struct CompareOptions {
    std::string tensor_pattern;  ///< regular expression; empty: every tensor
    /// Regular expression and tolerance; the last that fits a name counts, none: bit. An empty expression
    /// stands for all floating tensors: an integer near another is another.
    std::vector<std::pair<std::string, Tolerance>> tolerances;
    std::string allow_mistrusted;  ///< regular expression of tensors whose expectation may prove nothing
    std::vector<NameRule> name_map;
    std::map<std::pair<std::string, Side>, Layout> layouts;  ///< by our name
    std::map<std::string, std::string> scores;               ///< of index tensors, by our names
    bool row_errors = false;                                 ///< whether the worst tensor's are wanted
};

/// Compares every tensor of `expected` with its namesake in `got`. Index tensors called selected, indices or
/// blocks are sets, row by row, held against `scores` beside them where `expected` has them; others are held
/// against the scores that `options` names, and their order counts. Throws UserError for patterns that are
/// none, layouts and scores of tensors that are not there, scores named that do not fit, and tolerances and
/// patterns that fit no tensor.
CompareReport compare_files(const TensorFile& expected, const TensorFile& got, const CompareOptions& options);

/// One pair in memory, e.g. of operators' outputs.
TensorComparison compare_tensors(const std::string& name, const TensorView& expected, const TensorView& got,
                                 const Tolerance& tolerance, const AfterPiece& after_piece = {});

/// What the scores say of an index tensor that differs.
void judge_selection(TensorComparison& result, const SelectionDifference& selection);

/// The bits of an element for people: "0x3F81 = 0 01111111 0000001", sign, exponent and mantissa; of integers
/// the hexadecimal number alone.
std::string bits_text(std::string_view type, uint64_t bits);

/// The errors of a tensor along its rows, at most `points` groups of neighbouring ones: the largest of each
/// group's |got - expected| in units of the row's rms; infinity where a NaN or an infinity is not matched.
std::vector<double> row_errors(const TensorView& expected, const TensorView& got, int64_t points,
                               const AfterPiece& after_piece = {});

}  // namespace touchstone
