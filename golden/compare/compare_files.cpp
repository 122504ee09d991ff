// Pairs of tensors of two files: names, layouts, tolerances and scores are found, and every pair is judged.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "golden/compare/compare.h"
#include "golden/compare/element_types.h"
#include "golden/compare/tensor_pattern.h"
#include "reference/io/config_json.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace {

/// Index tensors that are sets, by the last part of their names, and the scores beside them. Experts are
/// none: their weights stand in their order, and they are chosen by a score and a bias that no tensor holds.
constexpr std::string_view set_names[]{"selected", "indices", "blocks"};
constexpr std::string_view scores_name = "scores";

/// The values that an output rounds, by the name of the output (the slots of the registry).
constexpr std::pair<std::string_view, std::string_view> unrounded_names[]{
    {"y", "accumulator"}, {"y", "unrounded"}, {"o", "unrounded"}};

/// Which part of a name stands behind its last '.' or '/'.
size_t last_part(const std::string& name) {
    const size_t at = name.find_last_of("./");
    return at == std::string::npos ? 0 : at + 1;
}

class FileComparison {
  public:
    FileComparison(const TensorFile& expected, const TensorFile& got, const CompareOptions& options)
        : expected_(expected), got_(got), options_(options), chosen_(options.tensor_pattern, "--tensor") {
        for (const auto& [pattern, tolerance] : options.tolerances)
            tolerances_.emplace_back(pattern, "--tolerance");
        if (!options.allow_mistrusted.empty())
            allowed_.emplace(options.allow_mistrusted, "--allow-mistrusted");
        for (const auto& [name, tensor] : expected.tensors()) names_.push_back(name);
    }

    CompareReport run() {
        report_.expected_path = expected_.path().string();
        report_.got_path = got_.path().string();
        map_their_names();
        if (!names_.empty()) require_known_names();
        for (const std::string& name : names_)
            if (chosen_.fits(name)) compare(name);
        if (options_.row_errors) add_row_errors();
        warn();
        for (const TensorComparison& tensor : report_.tensors)
            ++report_.counts[static_cast<size_t>(tensor.verdict)];
        return report_;
    }

  private:
    void map_their_names() {
        std::vector<std::string> theirs;
        for (const auto& [name, tensor] : got_.tensors()) theirs.push_back(name);
        const MappedNames mapped = map_names(options_.name_map, theirs);
        for (const auto& [their_name, ours] : mapped.by_their_name) {
            their_name_[ours.ours] = their_name;
            if (ours.layout) mapped_layouts_[ours.ours] = *ours.layout;
        }
        for (const std::string& rule : mapped.unused_rules)
            report_.warnings.push_back("no tensor fits the rule " + rule);
        // Two arrays without names of their own are a pair.
        if (expected_.is_single_array() && got_.is_single_array()) their_name_ = {{names_[0], theirs[0]}};
        for (const auto& [our_name, their_name] : their_name_)
            if (!expected_.tensors().contains(our_name)) extra_names_.push_back(our_name);
    }

    void require_known_names() const {
        chosen_.require_used(names_);
        for (const TensorPattern& pattern : tolerances_) pattern.require_used(names_);
        if (allowed_) allowed_->require_used(names_);
        for (const auto& [key, layout] : options_.layouts)
            (void)(key.second == Side::expected ? expected_.tensor(key.first)
                                                : got_.tensor(their_name(key.first)));
        for (const auto& [name, scores] : options_.scores) {
            (void)expected_.tensor(name);
            (void)expected_.tensor(scores);
        }
    }

    std::string their_name(const std::string& ours) const {
        const auto found = their_name_.find(ours);
        return found == their_name_.end() ? ours : found->second;
    }

    /// A tensor row by row: as it lies in its file, or a copy.
    struct Prepared {
        TensorView view;
        Tensor copy;
    };

    const Layout* layout_of(const std::string& name, Side side) const {
        const auto declared = options_.layouts.find({name, side});
        if (declared != options_.layouts.end()) return &declared->second;
        const auto mapped = mapped_layouts_.find(name);
        return side == Side::got && mapped != mapped_layouts_.end() ? &mapped->second : nullptr;
    }

    static void change(Prepared& prepared, const Layout& layout, const std::string& where) {
        Tensor copy = row_major(prepared.view, layout, where);
        prepared.copy = std::move(copy);
        prepared.view = {prepared.copy.type, prepared.copy.shape, prepared.copy.bytes};
    }

    void prepare(const std::string& name, Side side, const TensorFile& file, const StoredTensor& stored,
                 Prepared& prepared) const {
        const std::string where = fmt::format("{}: {}", file.where(stored), quoted(name));
        file.require_not_shortened(stored);
        prepared.view = stored.view;
        if (stored.fortran_order) change(prepared, {LayoutKind::transpose}, where);
        if (const Layout* layout = layout_of(name, side)) change(prepared, *layout, where);
    }

    /// Codes can be compared only with codes: an expectation of the same packed shape is ours, low nibble
    /// first.
    void unpack_like(const std::string& name, const TensorView& packed, Prepared& prepared) const {
        const Layout* theirs = layout_of(name, Side::got);
        const bool alike = theirs != nullptr && theirs->kind == LayoutKind::fp4 &&
                           layout_of(name, Side::expected) == nullptr &&
                           prepared.view.shape == packed.shape && element_type_bytes(prepared.view.type) == 1;
        if (alike)
            change(prepared, {LayoutKind::fp4}, fmt::format("{}: {}", expected_.path().string(), name));
    }

    /// npy has neither bf16 nor fp8: unsigned integers of the width stand for them.
    static void read_as(TensorView& npy_side, const std::string& type, bool of_npy) {
        const bool integer = npy_side.type == "U8" || npy_side.type == "U16";
        const bool same_width = element_type_bytes(type) == element_type_bytes(npy_side.type);
        if (of_npy && integer && is_float_type(type) && same_width) npy_side.type = type;
    }

    void warn_of_type(const std::string& name, const StoredTensor& stored, const Prepared& prepared) {
        if (stored.of_npy && prepared.view.type != "E2M1" && stored.view.type != prepared.view.type)
            report_.warnings.push_back(fmt::format("{}: {} of an npy file is read as {}", name,
                                                   stored.view.type, prepared.view.type));
    }

    /// Scores and values before rounding, which belong to the expectation. The floating type that npy has not
    /// and frameworks write is bf16.
    void prepare_floating(const std::string& name, Prepared& prepared) const {
        const StoredTensor& stored = expected_.tensor(name);
        prepare(name, Side::expected, expected_, stored, prepared);
        read_as(prepared.view, "BF16", stored.of_npy);
    }

    /// Pages of mapped files leave memory, copies do not.
    AfterPiece release_of(const StoredTensor& e, const Prepared& expected, const StoredTensor& g,
                          const Prepared& got) const {
        const bool e_mapped = expected.copy.bytes.empty(), g_mapped = got.copy.bytes.empty();
        return [this, &e, &g, e_mapped, g_mapped](std::span<const std::byte> read_e,
                                                  std::span<const std::byte> read_g) {
            if (e_mapped) expected_.release(e, read_e);
            if (g_mapped) got_.release(g, read_g);
        };
    }

    void add_row_errors() {
        constexpr int64_t points = 256;
        const TensorComparison* worst = report_.worst();
        if (worst == nullptr || !worst->difference) return;
        const StoredTensor& e = expected_.tensor(worst->name);
        const StoredTensor& g = got_.tensor(worst->got_name);
        Prepared expected, got;
        prepare_pair(worst->name, e, g, expected, got);
        std::vector<double> errors =
            row_errors(expected.view, got.view, points, release_of(e, expected, g, got));
        for (TensorComparison& tensor : report_.tensors)
            if (tensor.name == worst->name) tensor.row_errors = std::move(errors);
    }

    /// Tolerances of all tensors are of floating ones: an index or a code near another is another.
    Tolerance tolerance_for(const std::string& name, std::string_view type) const {
        Tolerance tolerance;
        for (size_t i = 0; i < tolerances_.size(); ++i) {
            if (options_.tolerances[i].first.empty() && !is_float_type(type)) continue;
            if (tolerances_[i].fits(name)) tolerance = options_.tolerances[i].second;
        }
        return tolerance;
    }

    void prepare_pair(const std::string& name, const StoredTensor& e, const StoredTensor& g,
                      Prepared& expected, Prepared& got) const {
        prepare(name, Side::expected, expected_, e, expected);
        prepare(name, Side::got, got_, g, got);
        unpack_like(name, g.view, expected);
        read_as(got.view, expected.view.type, g.of_npy);
        read_as(expected.view, got.view.type, e.of_npy);
    }

    void compare(const std::string& name) {
        const StoredTensor& e = expected_.tensor(name);
        const auto found = got_.tensors().find(their_name(name));
        if (found == got_.tensors().end()) {
            report_.tensors.push_back(missing(name, e));
            return;
        }
        const StoredTensor& g = found->second;
        Prepared expected, got;
        prepare_pair(name, e, g, expected, got);
        warn_of_type(name, e, expected);
        warn_of_type(name, g, got);
        TensorComparison result =
            compare_tensors(name, expected.view, got.view, tolerance_for(name, expected.view.type),
                            release_of(e, expected, g, got));
        result.got_name = found->first;
        if (result.difference) refine(result, expected.view, got.view);
        report_.tensors.push_back(std::move(result));
    }

    TensorComparison missing(const std::string& name, const StoredTensor& e) {
        constexpr int most_suggestions =
            20;  // distances to thousands of names are slow, and nobody reads them
        TensorComparison result{name};
        result.verdict = Verdict::failed;
        result.type = e.view.type;
        result.shape = e.view.shape;
        result.tolerance = tolerance_for(name, e.view.type);
        result.reason = "missing in " + got_.path().string();
        if (++suggestions_ > most_suggestions) return result;
        const std::string near = did_you_mean(name, extra_names_);
        if (!near.empty()) result.reason += fmt::format("; did you mean {}?", quoted(near));
        return result;
    }

    /// Scores, doubt, and the value before rounding.
    void refine(TensorComparison& result, const TensorView& expected, const TensorView& got) {
        if (result.verdict != Verdict::equal) judge_indices(result, expected, got);
        result.doubt_allowed = allowed_ && allowed_->fits(result.name);
        if (!result.doubt.empty() && !result.doubt_allowed && result.verdict < Verdict::mistrusted) {
            result.verdict = Verdict::mistrusted;
            result.reason = result.doubt + (result.reason.empty() ? "" : "; " + result.reason);
        }
        if (result.difference->worst.index >= 0) find_unrounded(result);
    }

    static bool is_set(const std::string& name) {
        return std::ranges::find(set_names, name.substr(last_part(name))) != std::end(set_names);
    }

    /// The scores that the user has named, or those beside a set.
    std::optional<std::string> scores_of(const std::string& name) const {
        const auto declared = options_.scores.find(name);
        if (declared != options_.scores.end()) return declared->second;
        const std::string beside = name.substr(0, last_part(name)) + std::string(scores_name);
        if (is_set(name) && expected_.tensors().contains(beside)) return beside;
        return std::nullopt;
    }

    /// Sets and tensors whose scores are named; what is neither keeps its verdict.
    void judge_indices(TensorComparison& result, const TensorView& expected, const TensorView& got) {
        const std::optional<std::string> scores = scores_of(result.name);
        const bool set = is_set(result.name);
        if (is_float_type(result.type) || result.type == "BOOL" || (!set && !scores)) return;
        const SelectionOrder order = set ? SelectionOrder::free : SelectionOrder::counts;
        const auto judge = [&](const std::optional<TensorView>& view) {
            judge_selection(result, compare_selection(expected, got, view, result.name, order));
        };
        if (!scores) return judge(std::nullopt);
        Prepared prepared;
        prepare_floating(*scores, prepared);
        try {
            judge(prepared.view);
        } catch (const UserError& error) {
            if (options_.scores.contains(result.name))
                throw;  // a guess may be wrong, the user's word may not
            report_.warnings.push_back(fmt::format("{}: {} does not fit ({}), so that ties cannot be told",
                                                   result.name, *scores, error.parts().what));
            judge(std::nullopt);
        }
    }

    /// Whether a tensor holds the values that output `name` has rounded.
    bool find_unrounded_of(const std::string& name, int64_t elements, Prepared& prepared) const {
        std::vector<std::string> candidates{name + ".unrounded"};
        const size_t at = last_part(name);
        for (const auto& [rounded, unrounded] : unrounded_names)
            if (name.substr(at) == rounded) candidates.push_back(name.substr(0, at) + std::string(unrounded));
        for (const std::string& candidate : candidates) {
            if (!expected_.tensors().contains(candidate)) continue;
            prepared = {};
            prepare_floating(candidate, prepared);
            if (prepared.view.elements() == elements && is_float_type(prepared.view.type)) return true;
        }
        return false;
    }

    void find_unrounded(TensorComparison& result) const {
        const Difference& d = *result.difference;
        Prepared unrounded;
        if (!is_float_type(result.type) || !find_unrounded_of(result.name, d.elements, unrounded)) return;
        const double value = element_at(unrounded.view, d.worst.index).value;
        const double middle = (d.worst.expected + d.worst.got) / 2;
        const double step = std::abs(d.worst.expected - d.worst.got);
        result.worst_unrounded = value;
        // A hundredth of the step: what sums in another order move an fp32 value that bf16 then rounds.
        result.rounding_tie = d.largest_ulp == 1 && std::abs(value - middle) <= step / 100;
    }

    void warn() {
        std::vector<std::string> extra;
        for (const std::string& our_name : extra_names_) extra.push_back(their_name(our_name));
        std::ranges::sort(extra);
        constexpr size_t shown = 3;
        if (!extra.empty())
            report_.warnings.push_back(
                fmt::format("{} has {} tensor{} beside what is expected: {}{}", got_.path().string(),
                            extra.size(), extra.size() == 1 ? "" : "s",
                            fmt::join(extra.begin(), extra.begin() + std::min(extra.size(), shown), ", "),
                            extra.size() > shown ? ", .." : ""));
        if (report_.nothing_found() && !report_.tensors.empty())
            report_.warnings.push_back("no tensor has a namesake: --map translates the names of " +
                                       got_.path().string());
        else if (report_.nothing_compared() && !report_.tensors.empty())
            report_.warnings.push_back("no tensor that was compared has elements");
        const auto a = expected_.metadata().find("case"), b = got_.metadata().find("case");
        if (a != expected_.metadata().end() && b != got_.metadata().end() && a->second != b->second)
            report_.warnings.push_back(
                fmt::format("the files are of different cases: {} and {}", a->second, b->second));
    }

    const TensorFile& expected_;
    const TensorFile& got_;
    const CompareOptions& options_;
    TensorPattern chosen_;
    std::vector<TensorPattern> tolerances_;
    std::optional<TensorPattern> allowed_;
    std::vector<std::string> names_;
    std::map<std::string, std::string> their_name_;  ///< by ours
    std::map<std::string, Layout> mapped_layouts_;   ///< by our name
    std::vector<std::string> extra_names_;           ///< ours, of tensors that are theirs alone
    int suggestions_ = 0;
    CompareReport report_;
};

}  // namespace

CompareReport compare_files(const TensorFile& expected, const TensorFile& got,
                            const CompareOptions& options) {
    return FileComparison(expected, got, options).run();
}

}  // namespace touchstone
