#include "golden/store/golden_case.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "golden/store/sweep_cases.h"
#include "reference/io/safetensors.h"

namespace touchstone {

namespace {

constexpr int64_t most_kept_bytes = 56 << 10;

/// What stands between the parentheses; "default" where nothing does.
std::string id_of(std::string_view text) {
    const size_t open = text.find('(');
    const std::string_view inside = text.substr(open + 1, text.size() - open - 2);
    return inside.empty() ? "default" : std::string(inside);
}

class CaseList {
  public:
    void add(const std::string& text, std::string_view limit, const std::vector<Arithmetic>& profiles,
             bool representative) {
        ParsedCase parsed = parse_case(text, "the golden store's cases");
        std::string full = case_text(*parsed.info, parsed.parameters);
        if (!texts_.insert(full).second) return;
        cases_.push_back({parsed.info, std::move(parsed.parameters), std::move(full), id_of(text),
                          std::string(limit), profiles.empty() ? parsed.info->profiles : profiles,
                          representative});
    }
    std::vector<GoldenCase> take() {
        std::ranges::stable_sort(cases_, {}, [](const GoldenCase& one) { return one.info; });
        return std::move(cases_);
    }

  private:
    std::vector<GoldenCase> cases_;
    std::set<std::string> texts_;
};

/// The first case of every operator that the row has is its representative.
void add_row(const SweepRow& row, CaseList& list) {
    std::set<std::string> seen;
    for (const std::string& text : expanded(row.cases)) {
        const bool first = seen.insert(text.substr(0, text.find('('))).second;
        list.add(text, row.limit, {}, first);
    }
}

std::vector<GoldenCase> make_list() {
    CaseList list;
    for (const OperatorInfo& info : operators())
        for (const OperatorCase& one : info.cases) list.add(one.text, one.limit, one.profiles, true);
    for (const SweepRow& row : sweep_rows()) add_row(row, list);
    return list.take();
}

int64_t bytes_of(const Slot& slot, const Parameters& parameters) {
    int64_t bytes = safetensors_element_bytes(slot.type).value();
    for (const int64_t extent : shape_of(slot, parameters)) bytes *= extent;
    return bytes;
}

/// Of the inputs and of the outputs of every profile.
int64_t tensor_bytes(const GoldenCase& golden) {
    int64_t bytes = 0;
    for (const Slot* slot : input_slots(*golden.info, golden.parameters))
        bytes += bytes_of(*slot, golden.parameters);
    for (const OutputSlot* slot : output_slots(*golden.info, golden.parameters))
        bytes += bytes_of(*slot, golden.parameters) * std::ssize(golden.profiles);
    return bytes;
}

std::set<std::string> make_kept() {
    std::map<std::string, const GoldenCase*> smallest;
    std::set<std::string> kept, operators_kept;
    for (const GoldenCase& one : golden_cases()) {
        const int64_t bytes = tensor_bytes(one);
        if (!one.representative || bytes == 0) continue;
        const GoldenCase*& least = smallest[one.info->name];
        if (least == nullptr || bytes < tensor_bytes(*least)) least = &one;
        if (one.limit.empty() || bytes > most_kept_bytes) continue;
        kept.insert(one.text);
        operators_kept.insert(one.info->name);
    }
    for (const auto& [name, least] : smallest)
        if (!operators_kept.contains(name)) kept.insert(least->text);
    return kept;
}

}  // namespace

const std::vector<GoldenCase>& golden_cases() {
    static const std::vector<GoldenCase> all = make_list();
    return all;
}

bool keeps_tensors(const GoldenCase& golden) {
    static const std::set<std::string> kept = make_kept();
    return kept.contains(golden.text);
}

TensorDigest digest_of(const Tensor& tensor) {
    return {fmt::format("{}[{}]", tensor.type, fmt::join(tensor.shape, ",")), tensor_hash(tensor)};
}

std::string digest_text(const TensorDigest& digest) {
    return fmt::format("{}:{:016x}", digest.form, digest.hash);
}

CaseTensors run_case(const OperatorInfo& info, const Parameters& parameters,
                     const std::vector<Arithmetic>& profiles) {
    CaseTensors result;
    const TensorMap inputs = make_inputs(info, parameters);
    for (const Arithmetic profile : profiles)
        result[std::string(arithmetic_name(profile))] = run_operator(info, profile, parameters, inputs);
    result[std::string(inputs_part)] = inputs;
    return result;
}

}  // namespace touchstone
