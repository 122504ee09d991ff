#include "golden/device/tensor_core_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "reference/numerics/tensor_core.h"

namespace touchstone {

namespace {

constexpr int64_t most_tiles = 1 << 17;
constexpr int64_t most_steps = 8;
static_assert(std::endian::native == std::endian::little);  // operands are hashed and decoded as they lie

template <class T>
uint64_t operand_hash(const std::vector<std::byte>& operands, uint64_t first_index) {
    std::vector<T> elements(operands.size() / sizeof(T));
    std::memcpy(elements.data(), operands.data(), operands.size());
    return hash_of(std::span<const T>(elements), first_index);
}

uint64_t operand_hash(const std::vector<std::byte>& operands, int bytes, uint64_t first_index) {
    if (bytes == 1) return operand_hash<uint8_t>(operands, first_index);
    if (bytes == 2) return operand_hash<uint16_t>(operands, first_index);
    return operand_hash<uint32_t>(operands, first_index);
}

/// One tile: operands, C and D where they lie.
struct TileView {
    const std::byte *a, *b;
    const uint32_t* c;
    uint32_t* d;
};

/// D = C + A B^T of int8, exact, mod 2^32.
void integer_tile(const MatrixInstruction& shape, int64_t k, TileView tile) {
    for (int i = 0; i < shape.m; ++i)
        for (int j = 0; j < shape.n; ++j) {
            uint32_t sum = tile.c[i * shape.n + j];
            for (int64_t t = 0; t < k; ++t)
                sum += static_cast<uint32_t>(static_cast<int8_t>(tile.a[i * k + t]) *
                                             static_cast<int8_t>(tile.b[j * k + t]));
            tile.d[i * shape.n + j] = sum;
        }
}

void float_tile(const TensorCoreInstruction& model, const MatrixInstruction& shape, int64_t k,
                TileView tile) {
    const auto outputs = static_cast<size_t>(shape.m * shape.n);
    std::vector<float> c(outputs), d(outputs);
    std::memcpy(c.data(), tile.c, outputs * sizeof(float));
    tensor_core_gemm(model, {tile.a, shape.m, k}, {tile.b, shape.n, k}, c, d);
    std::memcpy(tile.d, d.data(), outputs * sizeof(float));
}

template <class Range, class Name>
std::string names_of(const Range& range, Name name) {
    std::string text;
    for (const auto& element : range)
        if (const std::string_view word = name(element); !word.empty())
            text += (text.empty() ? "" : ", ") + std::string(word);
    return text;
}

}  // namespace

TensorCoreCase parse_tensor_core_case(CaseText& text) {
    TensorCoreCase result;
    result.instruction = text.take_text("instruction");
    const MatrixInstruction* instruction = find_matrix_instruction(result.instruction);
    if (instruction == nullptr)
        text.refuse(fmt::format("unknown instruction \"{}\"", result.instruction),
                    names_of(matrix_instructions, [](const MatrixInstruction& known) { return known.name; }));
    result.variant = text.take_text("variant");
    if (result.variant != "registers" && !(result.variant == "shared" && instruction->warpgroup))
        text.refuse(fmt::format("unknown variant \"{}\"", result.variant),
                    instruction->warpgroup ? "registers or shared" : "registers");
    result.inputs = text.take_text("inputs");
    const auto applies = [&](const TensorCoreInputKind& kind) { return kind.applies(*instruction); };
    if (std::ranges::none_of(tensor_core_input_kinds(), [&](const TensorCoreInputKind& kind) {
            return applies(kind) && kind.name == result.inputs;
        }))
        text.refuse(fmt::format("unknown inputs \"{}\"", result.inputs),
                    names_of(tensor_core_input_kinds(), [&](const TensorCoreInputKind& kind) {
                        return applies(kind) ? kind.name : std::string_view();
                    }));
    result.steps = static_cast<int>(text.take_integer("steps", 1, most_steps));
    result.tiles = text.take_integer("tiles", 1, most_tiles);
    result.seed = static_cast<uint64_t>(text.take_integer("seed", 0, std::numeric_limits<int64_t>::max()));
    return result;
}

std::string to_text(const TensorCoreCase& c) {
    return fmt::format("tensor_core(instruction={},variant={},inputs={},steps={},tiles={},seed={})",
                       c.instruction, c.variant, c.inputs, c.steps, c.tiles, c.seed);
}

CaseHashes hashes_on_cpu(const TensorCoreCase& c) {
    const TensorCoreInputs inputs = inputs_of(c);
    const std::vector<uint32_t> outputs = outputs_on_cpu(c, inputs);
    return {input_hash(instruction_of(c), inputs), hash_of(std::span<const uint32_t>(outputs)),
            std::ssize(outputs)};
}

int64_t cpu_cost(const TensorCoreCase& c) {
    const MatrixInstruction& shape = instruction_of(c);
    constexpr int64_t nanoseconds_per_product =
        10;  // small tiles, and directed inputs that are summed slowly
    return c.tiles * c.steps * shape.m * shape.n * shape.k * nanoseconds_per_product;
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
           hash_of(std::span<const uint32_t>(inputs.c), a_count + b_count);
}

std::vector<uint32_t> outputs_on_cpu(const TensorCoreCase& c, const TensorCoreInputs& inputs) {
    const MatrixInstruction& shape = instruction_of(c);
    const TensorCoreInstruction* model = shape.integer ? nullptr : &tensor_core_instruction(shape.name);
    const int64_t k = c.steps * shape.k, outputs = shape.m * shape.n;
    std::vector<uint32_t> d(inputs.c.size());
#pragma omp parallel for schedule(dynamic, 16)
    for (int64_t t = 0; t < c.tiles; ++t) {
        const TileView tile{.a = inputs.a.data() + t * shape.m * k * shape.operand_bytes,
                            .b = inputs.b.data() + t * shape.n * k * shape.operand_bytes,
                            .c = inputs.c.data() + t * outputs,
                            .d = d.data() + t * outputs};
        if (model == nullptr)
            integer_tile(shape, k, tile);
        else
            float_tile(*model, shape, k, tile);
    }
    return d;
}

}  // namespace touchstone
