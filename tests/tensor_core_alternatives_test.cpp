#include "golden/device/tensor_core_alternatives.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <vector>

#include "golden/device/tensor_core_case.h"

using namespace touchstone;

namespace {

/// A matrix instruction whose operands have the row's format: its inputs serve every architecture.
const MatrixInstruction& inputs_like(const TensorCoreInstruction& row) {
    return *find_matrix_instruction(std::string("hopper.mma.") +
                                    std::string(row.name.substr(row.name.rfind('.') + 1)));
}

uint32_t element(const std::vector<std::byte>& rows, int64_t i, int bytes) {
    uint32_t bits = 0;
    for (int byte = 0; byte < bytes; ++byte)
        bits |= static_cast<uint32_t>(rows[static_cast<size_t>(i * bytes + byte)]) << 8 * byte;
    return bits;
}

/// Calls visit(a, b, c) for every output of single steps; a and b hold k operands of the instruction.
template <class Visit>
void for_each_output(const MatrixInstruction& shape, std::string_view kind, int64_t tiles, Visit visit) {
    const TensorCoreInputs inputs = make_tensor_core_inputs(shape, kind, 1, tiles, 5);
    std::vector<uint32_t> a(static_cast<size_t>(shape.k)), b(a.size());
    for (int64_t output = 0; output < std::ssize(inputs.c); ++output) {
        const int64_t row = output / shape.n, tile = row / shape.m, column = output % shape.n;
        for (int k = 0; k < shape.k; ++k) {
            a[static_cast<size_t>(k)] = element(inputs.a, row * shape.k + k, shape.operand_bytes);
            b[static_cast<size_t>(k)] =
                element(inputs.b, (tile * shape.n + column) * shape.k + k, shape.operand_bytes);
        }
        visit(a.data(), b.data(), float_from_bits(inputs.c[static_cast<size_t>(output)]));
    }
}

std::string shown(const uint32_t* a, const uint32_t* b, int k, float c) {
    std::string text = fmt::format("c {:08x}, a:", float_bits(c));
    for (int i = 0; i < k; ++i) text += fmt::format(" {:x}", a[i]);
    text += ", b:";
    for (int i = 0; i < k; ++i) text += fmt::format(" {:x}", b[i]);
    return text;
}

/// The dot product of products 2^23, -2^23, -1/2, -1/4, -1/8, whose result tells the grid.
float identity_test(const char* instruction) {
    constexpr uint32_t bf16[] = {0x4B00, 0xCB00, 0xBF00, 0xBE80, 0xBE00};  // times 1
    std::vector<uint32_t> a(16), b(16);
    for (size_t i = 0; i < std::size(bf16); ++i) a[i] = bf16[i], b[i] = 0x3F80;
    const FusedSumModel model = fused_sum_model(tensor_core_instruction(instruction));
    return fused_sum(model, a.data(), b.data(), model.products, 0);
}

}  // namespace

TEST_CASE("tensor core models: two independent ones give the same bits (every row, every kind of inputs)") {
    for (const TensorCoreInstruction& row : tensor_core_instructions())
        for (const TensorCoreInputKind& kind : tensor_core_input_kinds()) {
            const MatrixInstruction& shape = inputs_like(row);
            if (!kind.applies(shape)) continue;
            int64_t checked = 0, differing = 0;
            std::string first;
            for_each_output(shape, kind.name, 24, [&](const uint32_t* a, const uint32_t* b, float c) {
                for (int k = 0; k + row.k() <= shape.k; k += row.k()) {
                    const float expected =
                        row.emulated_fp8 ? emulated_e4m3_sum(a + k, b + k, c)
                                         : fused_sum(fused_sum_model(row), a + k, b + k, row.products, c);
                    const float got = tensor_core_step(row, a + k, b + k, c);
                    ++checked;
                    if (float_bits(expected) == float_bits(got)) continue;
                    if (differing++ == 0)
                        first = fmt::format("{:08x} against {:08x}, {}", float_bits(got),
                                            float_bits(expected), shown(a + k, b + k, row.k(), c));
                }
            });
            INFO(row.name << ", " << kind.name << ": first " << first);
            CHECK(checked >= 24 * 16 * 8);
            CHECK(differing == 0);
        }
}

TEST_CASE("tensor core models: every wrong choice shows in the results of its inputs (Hopper)") {
    for (const MatrixInstruction& shape : matrix_instructions) {
        if (shape.integer || tensor_core_instruction(shape.name).emulated_fp8) continue;
        const TensorCoreInstruction& row = tensor_core_instruction(shape.name);
        const std::vector<Alternative> alternatives = refuted_alternatives(row);
        const bool fp32_range = row.format == OperandFormat::bf16 || row.format == OperandFormat::tf32;
        CHECK(alternatives.size() == (fp32_range ? 13 : 8));
        for (const Alternative& alternative : alternatives) {
            int64_t differing = 0, outputs = 0;
            for (const std::string& kind : alternative.inputs)
                for_each_output(shape, kind, 24 * 64 / shape.m,
                                [&](const uint32_t* a, const uint32_t* b, float c) {
                                    ++outputs;
                                    differing += float_bits(fused_sum(alternative.model, a, b, shape.k, c)) !=
                                                 float_bits(tensor_core_step(row, a, b, c));
                                });
            INFO(shape.name << ", " << alternative.name << ": " << differing << " of " << outputs);
            CHECK(differing > 0);
            CHECK(differing < outputs);
        }
    }
}

TEST_CASE("tensor core models: known answers (one identity test per grid)") {
    CHECK(identity_test("hopper.wgmma.bf16") == -0.75f);  // grid 1/4
    CHECK(identity_test("ampere.mma.bf16") == -0.5f);     // grid 1/2
}
