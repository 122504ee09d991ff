#include "golden/device/unary_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "reference/numerics/conversions.h"
#include "reference/numerics/elementary_vector.h"
#include "reference/numerics/tensor_hash.h"

namespace touchstone {

namespace {

constexpr uint32_t block_inputs = 4096;

struct Conversion {
    std::string_view name;
    void (*codes)(uint32_t first, uint32_t* out);  ///< of block_inputs inputs
};

template <class Named>
void codes_of(uint32_t first, uint32_t* out) {
    for (uint32_t i = 0; i < block_inputs; ++i) out[i] = Named::code(float_from_bits(first + i));
}

template <class... Named>
constexpr auto table_of(ConversionList<Named...>) {
    return std::array{Conversion{Named::name, codes_of<Named>}...};
}
constexpr auto conversions = table_of(Conversions{});

void elementary_bits(ElementaryFunction function, uint32_t first, uint32_t* out) {
    std::array<float, block_inputs> x, y;
    for (uint32_t i = 0; i < block_inputs; ++i) x[i] = float_from_bits(first + i);
    evaluate(function, x, y);
    for (uint32_t i = 0; i < block_inputs; ++i) out[i] = float_bits(y[i]);
}

/// The bits of a block, for a case that exists.
void block_outputs(const UnaryCase& c, uint32_t first, uint32_t* out) {
    if (c.kind == "conversion") {
        std::ranges::find(conversions, c.name, &Conversion::name)->codes(first, out);
        return;
    }
    const auto functions = elementary_functions();
    elementary_bits(std::ranges::find(functions, c.name, &ElementaryFunctionInfo::name)->function, first,
                    out);
}

}  // namespace

std::vector<UnaryCase> unary_cases() {
    std::vector<UnaryCase> cases;
    for (const Conversion& conversion : conversions)
        cases.push_back({"conversion", std::string(conversion.name)});
    for (const ElementaryFunctionInfo& info : elementary_functions())
        cases.push_back({"elementary", std::string(info.name)});
    return cases;
}

UnaryCase parse_unary_case(CaseText& text) {
    UnaryCase result{text.name(), text.take_text(text.name() == "conversion" ? "name" : "function")};
    std::string names;
    for (const UnaryCase& known : unary_cases()) {
        if (known == result) return result;
        if (known.kind == result.kind) names += (names.empty() ? "" : ", ") + known.name;
    }
    text.refuse(fmt::format("unknown {} \"{}\"", result.kind, result.name), names);
}

std::string to_text(const UnaryCase& c) {
    return fmt::format("{}({}={})", c.kind, c.kind == "conversion" ? "name" : "function", c.name);
}

CaseHashes hashes_on_cpu(const UnaryCase& c) {
    return {0, whole_hash(part_hashes_on_cpu(c)), input_parts * part_inputs};
}

int64_t cpu_cost(const UnaryCase&) {
    constexpr int64_t nanoseconds_per_input = 5;
    return input_parts * part_inputs * nanoseconds_per_input;
}

std::vector<uint64_t> part_hashes_on_cpu(const UnaryCase& c) {
    std::vector<uint64_t> hashes(input_parts);
#pragma omp parallel for schedule(dynamic, 8)
    for (int part = 0; part < input_parts; ++part) {
        std::array<uint32_t, block_inputs> bits;
        uint64_t sum = 0;
        for (int64_t at = 0; at < part_inputs; at += block_inputs) {
            const auto first = static_cast<uint32_t>(part * part_inputs + at);
            block_outputs(c, first, bits.data());
            sum += tensor_hash(bits.data(), bits.size(), first);
        }
        hashes[static_cast<size_t>(part)] = sum;
    }
    return hashes;
}

std::vector<uint32_t> part_outputs_on_cpu(const UnaryCase& c, int part) {
    std::vector<uint32_t> bits(part_inputs);
    for (int64_t at = 0; at < part_inputs; at += block_inputs)
        block_outputs(c, static_cast<uint32_t>(part * part_inputs + at), bits.data() + at);
    return bits;
}

uint64_t whole_hash(const std::vector<uint64_t>& part_hashes) {
    return std::accumulate(part_hashes.begin(), part_hashes.end(), uint64_t{0});
}

}  // namespace touchstone
