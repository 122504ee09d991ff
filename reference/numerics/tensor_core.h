// What a tensor core computes, bit for bit: the truncated fused dot product (numerics contract, section 5),
// as a table keyed by instruction and one definition that reads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "reference/numerics/isa.h"
#include "reference/numerics/tensor_core_operand.h"

namespace touchstone {

/// What an operand's bits mean. Stored size in bytes: bf16 2, f16 2, tf32 4 (an fp32 whose low 13 bits are
/// ignored), e4m3 1.
enum class OperandFormat : uint8_t { bf16, f16, tf32, e4m3 };

int64_t operand_bytes(OperandFormat format);

/// The value of a stored element (bits zero-extended), exact in fp32.
float operand_value(OperandFormat format, uint32_t bits);

/// The exponent of the format's smallest normal number, which its subnormals share.
int smallest_exponent(OperandFormat format);

/// Where a row of the table comes from.
enum class Evidence : uint8_t {
    measured,    ///< compared with a device by `touchstone gpu probe`; receipts in golden/device
    literature,  ///< published elsewhere, not measured here
};

/// One instruction of one architecture. A step sums `products` products and the accumulator: every term
/// truncated toward zero to a multiple of 2^(largest exponent - fraction_bits), the sum truncated to
/// output_fraction_bits.
struct TensorCoreInstruction {
    std::string_view name;  ///< "<architecture>.<instruction>.<operands>", the key
    OperandFormat format;
    int products;       ///< terms of one step besides the accumulator; a k of the instruction may be several
    int fraction_bits;  ///< F
    int output_fraction_bits;  ///< 23, or 13 for the fp8 accumulators
    int zero_exponent;         ///< the exponent with which a term that is zero enters the maximum
    /// mma.sync fp8 on sm_90a is emulated: the elements with (k / 2) even, then the others, as f16 steps from
    /// +0; the accumulator is added to the result by an ordinary fp32 addition. k = 32.
    bool emulated_fp8 = false;
    Evidence evidence = Evidence::literature;
    std::string_view source;

    int k() const { return emulated_fp8 ? 2 * products : products; }
};

/// The table, Hopper first.
std::span<const TensorCoreInstruction> tensor_core_instructions();

/// The row of that name. Throws UserError with the nearest name when there is none.
const TensorCoreInstruction& tensor_core_instruction(std::string_view name);

/// One step, the definition: `a` and `b` hold k() operands, zero-extended bits. NaN results are canonical.
float tensor_core_step(const TensorCoreInstruction& instruction, const uint32_t* a, const uint32_t* b,
                       float c);

/// The same of decoded operands, products of them; not for emulated_fp8.
float tensor_core_step(const TensorCoreInstruction& instruction, const TensorCoreOperand* a,
                       const TensorCoreOperand* b, float c);

/// Rows of operands as they lie in memory: row-major [rows, k], elements of operand_bytes(format).
struct OperandRows {
    const std::byte* data;
    int64_t rows, k;

    template <class T>
    static OperandRows of(std::span<const T> values, int64_t rows, int64_t k) {
        return {reinterpret_cast<const std::byte*>(values.data()), rows, k};
    }
};

/// D[m, n] = chain over k, ascending, of C[m, n] and the products a[m, k] * b[n, k]: D of one step is C of
/// the next. `c` is fp32 [M, N] or empty (+0); `d` is fp32 [M, N]. Vectorised and parallel over outputs; the
/// bits of tensor_core_step, whatever M, N, ISA and thread count. Throws UserError when sizes do not match or
/// k is not a multiple of the instruction's.
void tensor_core_gemm(const TensorCoreInstruction& instruction, OperandRows a, OperandRows b,
                      std::span<const float> c, std::span<float> d, Isa isa = active_isa());

/// The same, one step at a time through tensor_core_step: what the vectorised form is compared with.
void tensor_core_gemm_by_definition(const TensorCoreInstruction& instruction, OperandRows a, OperandRows b,
                                    std::span<const float> c, std::span<float> d);

}  // namespace touchstone
