#include "golden/device/sums_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "reference/numerics/fill.h"

namespace touchstone {

namespace {

constexpr int64_t most_elements = int64_t{1} << 28;
constexpr int64_t elements_per_case = int64_t{1} << 18;

template <class Value>
struct Name {
    std::string_view name;
    Value value;
};

constexpr std::array sum_names{Name<RowSum>{"sum", RowSum::sum},
                               Name<RowSum>{"sum_of_squares", RowSum::sum_of_squares},
                               Name<RowSum>{"dot", RowSum::dot}, Name<RowSum>{"largest", RowSum::largest}};
constexpr std::array arrangement_names{Name<LaneArrangement>{"interleaved", LaneArrangement::interleaved},
                                       Name<LaneArrangement>{"chunked", LaneArrangement::chunked},
                                       Name<LaneArrangement>{"sequential", LaneArrangement::sequential}};
constexpr std::array filler_names{Name<Filler>{"normal", Filler::normal}, Name<Filler>{"trap", Filler::trap}};
constexpr std::array operand_names{Name<int>{"f32", 0}, Name<int>{"bf16", 1}, Name<int>{"bf16_f32", 2}};

template <class Names>
std::string take_name(CaseText& text, std::string_view key, const Names& names) {
    std::string value = text.take_text(key), known;
    for (const auto& name : names) {
        if (name.name == value) return value;
        known += (known.empty() ? "" : ", ") + std::string(name.name);
    }
    text.refuse(fmt::format("unknown {} \"{}\"", key, value), known);
}

template <class Names>
auto value_of(const Names& names, std::string_view name) {
    return std::ranges::find(names, name, &Names::value_type::name)->value;
}

template <class T>
std::vector<T> filled_rows(const SumsCase& c, uint64_t stream) {
    std::vector<T> values(static_cast<size_t>(c.rows * c.k));
    fill<T>(value_of(filler_names, c.inputs), {c.seed, stream}, values);
    return values;
}

template <class T>
std::vector<uint32_t> bits_of(const std::vector<T>& values) {
    std::vector<uint32_t> bits(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
        if constexpr (std::is_same_v<T, float>)
            bits[i] = float_bits(values[i]);
        else
            bits[i] = values[i].bits;
    }
    return bits;
}

template <class T>
uint64_t hash_values(const std::vector<T>& values, uint64_t& position) {
    const uint64_t first = position;
    position += values.size();
    return hash_of(std::span<const uint32_t>(bits_of(values)), first);
}

}  // namespace

std::vector<SumsCase> sums_cases() {
    struct Shape {
        const char* arrangement;
        int lanes;
        int64_t k;
    };
    // K of the model's sums, and one that ends inside a load of every thread.
    constexpr Shape shapes[] = {
        {"sequential", 1, 7},        {"interleaved", 8, 64},     {"interleaved", 64, 512},
        {"interleaved", 256, 1280},  {"interleaved", 256, 1237}, {"interleaved", 1024, 5120},
        {"interleaved", 1024, 4999}, {"chunked", 256, 20480},    {"chunked", 256, 20473}};
    std::vector<SumsCase> cases;
    for (const Shape& shape : shapes)
        for (const auto& what : sum_names)
            for (const auto& operands : operand_names)
                for (const auto& inputs : filler_names)
                    if (operands.name != "bf16_f32" || what.value == RowSum::dot)
                        cases.push_back({std::string(what.name), std::string(operands.name),
                                         shape.arrangement, shape.lanes, elements_per_case / shape.k, shape.k,
                                         std::string(inputs.name), 1});
    return cases;
}

SumsCase parse_sums_case(CaseText& text) {
    SumsCase result;
    result.what = take_name(text, "what", sum_names);
    result.operands = take_name(text, "operands", operand_names);
    result.arrangement = take_name(text, "arrangement", arrangement_names);
    result.lanes = static_cast<int>(text.take_integer("lanes", 1, Lanes::most));
    result.rows = text.take_integer("rows", 1, most_elements);
    result.k = text.take_integer("k", 1, most_elements / result.rows);
    result.inputs = take_name(text, "inputs", filler_names);
    result.seed = static_cast<uint64_t>(text.take_integer("seed", 0, std::numeric_limits<int64_t>::max()));
    if (!lanes_of(result).valid())
        text.refuse(fmt::format("lanes={}", result.lanes), "a power of two; 1 when sequential");
    if (result.operands == "bf16_f32" && result.what != "dot")
        text.refuse("operands=bf16_f32", "what=dot, or one type of operands");
    return result;
}

std::string to_text(const SumsCase& c) {
    return fmt::format("sums(what={},operands={},arrangement={},lanes={},rows={},k={},inputs={},seed={})",
                       c.what, c.operands, c.arrangement, c.lanes, c.rows, c.k, c.inputs, c.seed);
}

CaseHashes hashes_on_cpu(const SumsCase& c) {
    const SumsInputs inputs = inputs_of(c);
    return {input_hash(inputs), hash_of(std::span<const uint32_t>(outputs_on_cpu(c, inputs))), c.rows};
}

int64_t cpu_cost(const SumsCase& c) {
    constexpr int64_t nanoseconds_per_input = 60;  // most of it makes and hashes it
    return c.rows * c.k * nanoseconds_per_input;
}

RowSum row_sum_of(const SumsCase& c) {
    return value_of(sum_names, c.what);
}

Lanes lanes_of(const SumsCase& c) {
    return {value_of(arrangement_names, c.arrangement), c.lanes};
}

SumsInputs inputs_of(const SumsCase& c) {
    SumsInputs inputs;
    if (c.operands == "f32")
        inputs.x_f32 = filled_rows<float>(c, 0);
    else
        inputs.x_bf16 = filled_rows<Bf16>(c, 0);
    if (c.what != "dot") return inputs;
    if (c.operands == "bf16")
        inputs.y_bf16 = filled_rows<Bf16>(c, 1);
    else
        inputs.y_f32 = filled_rows<float>(c, 1);
    return inputs;
}

uint64_t input_hash(const SumsInputs& inputs) {
    uint64_t position = 0, sum = 0;
    sum += hash_values(inputs.x_f32, position);
    sum += hash_values(inputs.x_bf16, position);
    sum += hash_values(inputs.y_f32, position);
    sum += hash_values(inputs.y_bf16, position);
    return sum;
}

std::vector<uint32_t> outputs_on_cpu(const SumsCase& c, const SumsInputs& inputs) {
    std::vector<float> out(static_cast<size_t>(c.rows));
    const RowSum what = row_sum_of(c);
    const Lanes lanes = lanes_of(c);
    if (c.operands == "f32") {
        sum_rows(what, lanes, inputs.x_f32, inputs.y_f32, c.k, out);
    } else if (c.operands == "bf16") {
        sum_rows(what, lanes, inputs.x_bf16, inputs.y_bf16, c.k, out);
    } else {
        const auto k = static_cast<size_t>(c.k);
        for (size_t row = 0; row < out.size(); ++row)
            out[row] = dot(lanes, std::span(inputs.x_bf16).subspan(row * k, k),
                           std::span(inputs.y_f32).subspan(row * k, k));
    }
    return bits_of(out);
}

}  // namespace touchstone
