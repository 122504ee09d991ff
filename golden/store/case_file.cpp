#include "golden/store/case_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "golden/store/operator_json.h"
#include "reference/io/config_json.h"
#include "reference/io/safetensors.h"
#include "reference/io/safetensors_writer.h"
#include "reference/io/user_error.h"
#include "reference/numerics/sum_order.h"

namespace touchstone {

namespace {

constexpr size_t most_kept_input_bytes = 64 << 10;

std::string json_value(const std::variant<int64_t, double, std::string>& value) {
    if (const auto* text = std::get_if<std::string>(&value)) return json_string(*text);
    if (const auto* whole = std::get_if<int64_t>(&value)) return fmt::format("{}", *whole);
    return fmt::format("{}", std::get<double>(value));
}

std::string parameters_json(const Parameters& parameters) {
    std::vector<std::string> entries;
    for (const auto& [name, value] : parameters.values)
        entries.push_back(fmt::format("    {}: {}", json_string(name), json_value(value)));
    return fmt::format("{{\n{}\n  }}", fmt::join(entries, ",\n"));
}

std::vector<std::string> profile_names(const GoldenCase& golden) {
    std::vector<std::string> names;
    for (const Arithmetic profile : golden.profiles) names.emplace_back(arithmetic_name(profile));
    return names;
}

/// What another order of adding may change: nothing of choices and codes, low bits of the rest.
std::string_view tolerance_class_of(const OutputSlot& slot) {
    if (slot.judged == Judged::equal || slot.judged == Judged::not_judged) return "bit";
    return slot.type == "BF16" ? "bf16_step" : "fp32_row";
}

std::string outputs_json(const GoldenCase& golden) {
    std::map<std::string, std::string> entries;
    for (const OutputSlot* slot : output_slots(*golden.info, golden.parameters))
        entries[slot->name] =
            fmt::format("    {}: {{\"against_truth\": {}, \"tolerance\": {}}}", json_string(slot->name),
                        json_string(judged_text(*slot)), json_string(tolerance_class_of(*slot)));
    std::vector<std::string> lines;
    for (const auto& [name, line] : entries) lines.push_back(line);
    return fmt::format("{{\n{}\n  }}", fmt::join(lines, ",\n"));
}

std::string claim_of(const GoldenCase& golden) {
    return fmt::format("the bits of {} in {}, for this shape and seed alone{}{}", golden.info->name,
                       fmt::join(profile_names(golden), " and "),
                       golden.limit.empty() ? "" : "; it trips: ", golden.limit);
}

}  // namespace

std::string case_json(const GoldenCase& golden, bool inputs_kept) {
    std::vector<std::string> profiles;
    for (const std::string& name : profile_names(golden)) profiles.push_back(json_string(name));
    std::string text = "{\n";
    text += fmt::format("  \"arithmetic\": [{}],\n", fmt::join(profiles, ", "));
    text += fmt::format("  \"case\": {},\n", json_string(golden.text));
    text += fmt::format("  \"claim\": {},\n", json_string(claim_of(golden)));
    text += fmt::format("  \"generator\": {{\"name\": {}, \"version\": {}}},\n", json_string(generator_name),
                        generator_version);
    text += fmt::format("  \"inputs_kept\": {},\n", inputs_kept);
    text += fmt::format("  \"limit\": {},\n", json_string(golden.limit));
    text += fmt::format("  \"operator\": {},\n", json_string(golden.info->name));
    text += fmt::format("  \"outputs\": {},\n", outputs_json(golden));
    text += fmt::format("  \"parameters\": {},\n", parameters_json(golden.parameters));
    text += "  \"schema\": \"touchstone.golden_case/1\",\n";
    text += fmt::format("  \"seed\": {},\n", golden.parameters.seed);
    text += fmt::format("  \"source\": {},\n", json_string(golden.info->source));
    text += fmt::format("  \"sum_order_version\": {},\n", sum_order_version);
    text += fmt::format("  \"tool_version\": {}\n}}\n", json_string(TOUCHSTONE_VERSION));
    return text;
}

std::string case_of_json(std::string_view text, const std::string& where) {
    const JsonObject object = JsonObject::parse(text, where, {}, "the case.json of a golden case");
    if (object.string("schema") != "touchstone.golden_case/1")
        object.refuse("schema", "touchstone.golden_case/1");
    return object.string("case");
}

bool keeps_inputs(const CaseTensors& tensors) {
    size_t bytes = 0;
    for (const auto& [name, tensor] : tensors.find(inputs_part)->second) bytes += tensor.bytes.size();
    return bytes <= most_kept_input_bytes;
}

void write_case_tensors(const std::filesystem::path& path, const CaseTensors& tensors,
                        const std::string& case_line) {
    const bool with_inputs = keeps_inputs(tensors);
    std::map<std::string, const Tensor*> by_name;
    for (const auto& [part, slots] : tensors)
        for (const auto& [name, tensor] : slots)
            if (part != inputs_part || with_inputs) by_name[part + "/" + name] = &tensor;
    std::vector<SafetensorsDeclaration> declarations;
    for (const auto& [name, tensor] : by_name) declarations.push_back({name, tensor->type, tensor->shape});
    SafetensorsWriter writer(path, std::move(declarations), {{"case", case_line}});
    for (const SafetensorsDeclaration& declaration : writer.tensors())
        writer.write(declaration.name, by_name.find(declaration.name)->second->bytes);
    writer.finish();
}

CaseTensors read_case_tensors(const std::filesystem::path& path) {
    const SafetensorsFile file(path);
    CaseTensors tensors;
    for (const auto& [name, tensor] : file.tensors()) {
        const size_t slash = name.find('/');
        if (slash == std::string::npos)
            throw UserError(
                {fmt::format("tensor {}", quoted(name)), path.string(), "inputs/NAME or PROFILE/NAME", ""});
        tensors[name.substr(0, slash)][name.substr(slash + 1)] = {
            tensor.type, tensor.shape, {tensor.bytes.begin(), tensor.bytes.end()}};
    }
    return tensors;
}

}  // namespace touchstone
