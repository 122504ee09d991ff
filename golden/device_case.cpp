#include "golden/device_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>

#include "golden/case_text.h"
#include "reference/numerics/conversions.h"
#include "reference/numerics/random.h"
#include "reference/numerics/tensor_core.h"
#include "reference/numerics/tensor_hash.h"

namespace touchstone {

namespace {

constexpr int64_t most_tiles = 1 << 17, most_rows = 1 << 20;
constexpr int most_steps = 8;

template <class Range>
std::string joined(const Range& names) {
    std::string text;
    for (const std::string_view name : names) text += (text.empty() ? "" : ", ") + std::string(name);
    return text;
}

TensorCoreCase parse_tensor_core(CaseText& text) {
    TensorCoreCase result;
    result.instruction = text.take_text("instruction");
    const MatrixInstruction* instruction = find_matrix_instruction(result.instruction);
    if (instruction == nullptr) {
        std::vector<std::string_view> names;
        for (const MatrixInstruction& known : matrix_instructions) names.push_back(known.name);
        text.refuse("unknown instruction " + result.instruction, joined(names));
    }
    result.variant = text.take_text("variant");
    if (result.variant != "registers" && !(result.variant == "shared" && instruction->warpgroup))
        text.refuse("unknown variant " + result.variant,
                    instruction->warpgroup ? "registers or shared" : "registers");
    result.inputs = text.take_text("inputs");
    std::vector<std::string_view> kinds;
    for (const TensorCoreInputKind& kind : tensor_core_input_kinds())
        if (kind.applies(*instruction)) kinds.push_back(kind.name);
    if (std::ranges::find(kinds, result.inputs) == kinds.end())
        text.refuse("unknown inputs " + result.inputs, joined(kinds));
    result.steps = static_cast<int>(text.take_integer("steps", 1, most_steps));
    result.tiles = text.take_integer("tiles", 1, most_tiles);
    result.seed = static_cast<uint64_t>(text.take_integer("seed", 0, std::numeric_limits<int64_t>::max()));
    return result;
}

ConversionCase parse_conversion(CaseText& text) {
    ConversionCase result{text.take_text("name")};
    const std::vector<std::string_view> names = conversion_names();
    if (std::ranges::find(names, result.name) == names.end())
        text.refuse("unknown conversion " + result.name, joined(names));
    return result;
}

MatmulCase parse_matmul(CaseText& text) {
    MatmulCase result;
    result.m = text.take_integer("m", 1, most_rows);
    result.n = text.take_integer("n", 1, most_rows);
    result.k = text.take_integer("k", 16, most_rows);
    result.piece_k = text.take_integer("piece_k", 16, result.k);
    result.seed = static_cast<uint64_t>(text.take_integer("seed", 0, std::numeric_limits<int64_t>::max()));
    if (result.k % 16 != 0 || result.piece_k % 16 != 0)
        text.refuse("k or piece_k is not a multiple of 16", "multiples of the instruction's 16");
    return result;
}

/// A kind of case: its name and its parser.
struct CaseKind {
    std::string_view name;
    DeviceCase (*parse)(CaseText&);
};

constexpr CaseKind case_kinds[] = {
    {"tensor_core", [](CaseText& text) -> DeviceCase { return parse_tensor_core(text); }},
    {"conversion", [](CaseText& text) -> DeviceCase { return parse_conversion(text); }},
    {"matmul", [](CaseText& text) -> DeviceCase { return parse_matmul(text); }},
};

std::string text_of(const TensorCoreCase& c) {
    return fmt::format("tensor_core(instruction={},variant={},inputs={},steps={},tiles={},seed={})",
                       c.instruction, c.variant, c.inputs, c.steps, c.tiles, c.seed);
}
std::string text_of(const ConversionCase& c) {
    return fmt::format("conversion(name={})", c.name);
}
std::string text_of(const MatmulCase& c) {
    return fmt::format("matmul(m={},n={},k={},piece_k={},seed={})", c.m, c.n, c.k, c.piece_k, c.seed);
}

/// The hash of elements of `bytes` bytes, little-endian, at positions first ..
uint64_t operand_hash(const std::vector<std::byte>& operands, int bytes, uint64_t first) {
    const int64_t count = std::ssize(operands) / bytes;
    uint64_t sum = 0;
#pragma omp parallel for reduction(+ : sum) schedule(static)
    for (int64_t i = 0; i < count; ++i) {
        uint32_t bits = 0;
        std::memcpy(&bits, operands.data() + i * bytes, static_cast<size_t>(bytes));
        sum += element_hash(first + static_cast<uint64_t>(i), bits);
    }
    return sum;
}
static_assert(std::endian::native == std::endian::little);

uint64_t word_hash(const std::vector<uint32_t>& words, uint64_t first) {
    uint64_t sum = 0;
#pragma omp parallel for reduction(+ : sum) schedule(static)
    for (int64_t i = 0; i < std::ssize(words); ++i)
        sum += element_hash(first + static_cast<uint64_t>(i), words[static_cast<size_t>(i)]);
    return sum;
}

/// D = C + A B^T of int8, exact, mod 2^32.
void integer_tile(const MatrixInstruction& shape, int64_t k, const std::byte* a, const std::byte* b,
                  const uint32_t* c, uint32_t* d) {
    for (int i = 0; i < shape.m; ++i)
        for (int j = 0; j < shape.n; ++j) {
            uint32_t sum = c[i * shape.n + j];
            for (int64_t t = 0; t < k; ++t)
                sum += static_cast<uint32_t>(static_cast<int8_t>(a[i * k + t]) *
                                             static_cast<int8_t>(b[j * k + t]));
            d[i * shape.n + j] = sum;
        }
}

void float_tile(const TensorCoreInstruction& model, const MatrixInstruction& shape, int64_t k,
                const std::byte* a, const std::byte* b, const uint32_t* c, uint32_t* d) {
    const auto outputs = static_cast<size_t>(shape.m * shape.n);
    std::vector<float> c_values(outputs), d_values(outputs);
    std::memcpy(c_values.data(), c, outputs * sizeof(float));
    tensor_core_gemm(model, {a, shape.m, k}, {b, shape.n, k}, c_values, d_values);
    std::memcpy(d, d_values.data(), outputs * sizeof(float));
}

/// X columns [first, first + count) as a matrix of its own.
std::vector<uint16_t> columns(const std::vector<uint16_t>& rows, int64_t k, int64_t first, int64_t count) {
    std::vector<uint16_t> result(rows.size() / static_cast<size_t>(k) * static_cast<size_t>(count));
    for (int64_t row = 0; row < std::ssize(rows) / k; ++row)
        std::copy_n(rows.begin() + row * k + first, count, result.begin() + row * count);
    return result;
}

std::vector<uint16_t> random_bf16(int64_t count, uint64_t seed, uint64_t stream) {
    std::vector<uint16_t> values(static_cast<size_t>(count));
    const RandomStream words{seed, stream};
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; i += 4) {
        const PhiloxBlock block = words.block(static_cast<uint64_t>(i / 4));
        for (int64_t t = i; t < std::min(i + 4, count); ++t) {
            const uint32_t word = block.words[t - i];  // sign, mantissa, exponent in [-4, 4)
            values[static_cast<size_t>(t)] =
                static_cast<uint16_t>((word >> 31) << 15 | (123 + (word >> 8 & 7)) << 7 | (word & 0x7F));
        }
    }
    return values;
}

using CodeOf = uint32_t (*)(float);
struct NamedConversion {
    std::string_view name;
    CodeOf code;
    uint64_t (*part_hash)(uint32_t first_input);
};

template <class Conversion>
uint64_t part_hash(uint32_t first_input) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < unary_part_inputs; ++i)
        sum += element_hash(first_input + i, Conversion::code(float_from_bits(first_input + i)));
    return sum;
}

template <class... Conversion>
constexpr std::array<NamedConversion, sizeof...(Conversion)> named(ConversionList<Conversion...>) {
    return {NamedConversion{Conversion::name, [](float x) { return Conversion::code(x); },
                            part_hash<Conversion>}...};
}
constexpr auto conversions = named(Conversions{});

const NamedConversion& conversion_of(const ConversionCase& device_case) {
    return *std::ranges::find(conversions, device_case.name, &NamedConversion::name);
}

CaseHashes hashes_of(const TensorCoreCase& c) {
    const TensorCoreInputs inputs = inputs_of(c);
    const std::vector<uint32_t> outputs = outputs_on_cpu(c, inputs);
    return {input_hash(instruction_of(c), inputs), word_hash(outputs, 0), std::ssize(outputs)};
}
CaseHashes hashes_of(const ConversionCase& c) {
    return {0, sum_of(part_hashes_on_cpu(c)), unary_parts * unary_part_inputs};
}
CaseHashes hashes_of(const MatmulCase& c) {
    const MatmulInputs inputs = inputs_of(c);
    const std::vector<uint32_t> outputs = outputs_on_cpu(c, inputs);
    return {input_hash(inputs), word_hash(outputs, 0), std::ssize(outputs)};
}

int64_t cost_of(const TensorCoreCase& c) {
    const MatrixInstruction& shape = instruction_of(c);
    return c.tiles * c.steps * shape.m * shape.n * shape.k;
}
int64_t cost_of(const ConversionCase&) {
    return unary_parts * unary_part_inputs;
}
int64_t cost_of(const MatmulCase& c) {
    return c.m * c.n * c.k;
}

}  // namespace

DeviceCase parse_device_case(std::string_view text, const std::string& where) {
    CaseText parsed(text, where);
    std::vector<std::string_view> names;
    for (const CaseKind& kind : case_kinds) {
        names.push_back(kind.name);
        if (kind.name != parsed.name()) continue;
        DeviceCase result = kind.parse(parsed);
        parsed.require_all_taken();
        return result;
    }
    parsed.refuse(fmt::format("unknown kind \"{}\"", parsed.name()), joined(names));
}

std::string to_text(const DeviceCase& device_case) {
    return std::visit([](const auto& c) { return text_of(c); }, device_case);
}

CaseHashes hashes_on_cpu(const DeviceCase& device_case) {
    return std::visit([](const auto& c) { return hashes_of(c); }, device_case);
}

int64_t cpu_cost(const DeviceCase& device_case) {
    return std::visit([](const auto& c) { return cost_of(c); }, device_case);
}

const MatrixInstruction& instruction_of(const TensorCoreCase& device_case) {
    return *find_matrix_instruction(device_case.instruction);
}

TensorCoreInputs inputs_of(const TensorCoreCase& c) {
    return make_tensor_core_inputs(instruction_of(c), c.inputs, c.steps, c.tiles, c.seed);
}

uint64_t input_hash(const MatrixInstruction& instruction, const TensorCoreInputs& inputs) {
    const int bytes = instruction.operand_bytes;
    const uint64_t a_count = inputs.a.size() / static_cast<size_t>(bytes);
    const uint64_t b_count = inputs.b.size() / static_cast<size_t>(bytes);
    return operand_hash(inputs.a, bytes, 0) + operand_hash(inputs.b, bytes, a_count) +
           word_hash(inputs.c, a_count + b_count);
}

std::vector<uint32_t> outputs_on_cpu(const TensorCoreCase& c, const TensorCoreInputs& inputs) {
    const MatrixInstruction& shape = instruction_of(c);
    const TensorCoreInstruction* model = shape.integer() ? nullptr : &tensor_core_instruction(shape.model);
    const int64_t k = c.steps * shape.k, outputs = shape.m * shape.n;
    std::vector<uint32_t> d(inputs.c.size());
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t t = 0; t < c.tiles; ++t) {
        const std::byte* a = inputs.a.data() + t * shape.m * k * shape.operand_bytes;
        const std::byte* b = inputs.b.data() + t * shape.n * k * shape.operand_bytes;
        const uint32_t* c_bits = inputs.c.data() + t * outputs;
        if (model == nullptr)
            integer_tile(shape, k, a, b, c_bits, d.data() + t * outputs);
        else
            float_tile(*model, shape, k, a, b, c_bits, d.data() + t * outputs);
    }
    return d;
}

MatmulInputs inputs_of(const MatmulCase& c) {
    return {random_bf16(c.m * c.k, c.seed, 0), random_bf16(c.n * c.k, c.seed, 1)};
}

uint64_t input_hash(const MatmulInputs& inputs) {
    uint64_t sum = 0;
    const int64_t x_count = std::ssize(inputs.x), count = x_count + std::ssize(inputs.w);
#pragma omp parallel for reduction(+ : sum) schedule(static)
    for (int64_t i = 0; i < count; ++i)
        sum +=
            element_hash(static_cast<uint64_t>(i), i < x_count ? inputs.x[static_cast<size_t>(i)]
                                                               : inputs.w[static_cast<size_t>(i - x_count)]);
    return sum;
}

std::vector<uint32_t> outputs_on_cpu(const MatmulCase& c, const MatmulInputs& inputs) {
    const TensorCoreInstruction& model = tensor_core_instruction("hopper.wgmma.bf16");
    const auto outputs = static_cast<size_t>(c.m * c.n);
    std::vector<float> sum(outputs), piece(outputs);
    for (int64_t first = 0; first < c.k; first += c.piece_k) {
        const int64_t k = std::min(c.piece_k, c.k - first);
        const std::vector<uint16_t> x = columns(inputs.x, c.k, first, k),
                                    w = columns(inputs.w, c.k, first, k);
        std::vector<float>& target = first == 0 ? sum : piece;
        tensor_core_gemm(model, OperandRows::of<uint16_t>(x, c.m, k), OperandRows::of<uint16_t>(w, c.n, k),
                         {}, target);
        for (size_t i = 0; first > 0 && i < outputs; ++i) sum[i] = sum[i] + piece[i];
    }
    std::vector<uint32_t> bits(outputs);
    std::memcpy(bits.data(), sum.data(), outputs * sizeof(float));
    return bits;
}

std::vector<std::string_view> conversion_names() {
    std::vector<std::string_view> names;
    for (const NamedConversion& conversion : conversions) names.push_back(conversion.name);
    return names;
}

UnaryHashes part_hashes_on_cpu(const ConversionCase& device_case) {
    const NamedConversion& conversion = conversion_of(device_case);
    UnaryHashes hashes{};
#pragma omp parallel for schedule(dynamic, 8)
    for (int part = 0; part < unary_parts; ++part)
        hashes[static_cast<size_t>(part)] =
            conversion.part_hash(static_cast<uint32_t>(part * unary_part_inputs));
    return hashes;
}

uint32_t output_on_cpu(const ConversionCase& device_case, uint32_t input_bits) {
    return conversion_of(device_case).code(float_from_bits(input_bits));
}

uint64_t sum_of(const UnaryHashes& parts) {
    return std::accumulate(parts.begin(), parts.end(), uint64_t{0});
}

}  // namespace touchstone
