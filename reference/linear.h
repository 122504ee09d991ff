// Linear layers y = x W^T of the model: L8, L4, LB and LF (text model 2.5 to 2.7), with weights as the
// checkpoint stores them and every dot product in a defined order (numerics contract, sections 1, 3 and 4).
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "reference/numerics/small_float.h"
#include "reference/numerics/sum_order.h"

namespace touchstone {

/// How a dot product is summed; what is rounded to bf16, fp8 or fp4, and where, is the same in all (contract,
/// section 1).
enum class Arithmetic : uint8_t {
    /// Block-scaled products: the 32 products of a scale block summed exactly and rounded once, then
    /// acc = fma(block, sa * sw, acc), blocks ascending. bf16 products: fp32 FMA into the lanes of the table.
    exact,
    /// Operands dequantised exactly to bf16, scales folded in, then the chain of hopper.wgmma.bf16 over K, in
    /// the pieces of the table: what our kernels do on H100 and H200.
    hopper,
    /// Block-scaled products: one fp8 wgmma step per scale block from +0, then the accumulation of `exact`,
    /// as kernels that lower to fp8 wgmma do. bf16 products as in `hopper`.
    released_hopper,
};

/// "exact", "hopper", "released_hopper".
std::string_view arithmetic_name(Arithmetic arithmetic);

/// The weight of an L8: a scale per tile of 32 x 32. The last tiles may be cut off by `outputs`; `inputs` is
/// a multiple of 32.
struct Fp8Weight {
    std::string_view name;  ///< of the tensor, for messages
    int64_t outputs, inputs;
    std::span<const E4m3> codes;   ///< [outputs, inputs]
    std::span<const E8m0> scales;  ///< [ceil(outputs / 32), inputs / 32]
};

/// The weight of an L4: two codes to a byte along inputs, the even one in the low nibble; a scale per row and
/// 32 inputs.
struct Fp4Weight {
    std::string_view name;
    int64_t outputs, inputs;
    std::span<const uint8_t> codes;  ///< [outputs, inputs / 2]
    std::span<const E8m0> scales;    ///< [outputs, inputs / 32]
};

/// The weight of an LB or LF.
struct Bf16Weight {
    std::string_view name;
    int64_t outputs, inputs;
    std::span<const Bf16> values;  ///< [outputs, inputs]
};

/// L8. `x` is bf16 [rows, inputs], quantised by Q8 (text model 2.3) in blocks of 32; `y` is [rows, outputs].
/// The fp32 form gives the accumulator, the bf16 form rounds it once (step 4 of text model 2.5). `op` chooses
/// the order of the sums in the split and lane table. NaN results are canonical. Rows are independent: a
/// row's bits depend neither on `rows` nor on the thread count. Throws UserError, with nothing written, when
/// sizes do not match or inputs is no multiple of 32; in `hopper` also when a nonzero code times its scale is
/// not exact in bf16, naming tensor, index and value (e4m3 under scale bytes 3..246 and e2m1 under 0..252
/// always are).
void linear_fp8(Arithmetic arithmetic, SumOperator op, std::span<const Bf16> x, int64_t rows,
                const Fp8Weight& weight, std::span<float> y);
void linear_fp8(Arithmetic arithmetic, SumOperator op, std::span<const Bf16> x, int64_t rows,
                const Fp8Weight& weight, std::span<Bf16> y);

/// L4: as L8, with fp4 weights (text model 2.6).
void linear_fp4(Arithmetic arithmetic, SumOperator op, std::span<const Bf16> x, int64_t rows,
                const Fp4Weight& weight, std::span<float> y);
void linear_fp4(Arithmetic arithmetic, SumOperator op, std::span<const Bf16> x, int64_t rows,
                const Fp4Weight& weight, std::span<Bf16> y);

/// LF (fp32 result) and LB (rounded to bf16): bf16 operands, unquantised (text model 2.7). Throws UserError
/// as linear_fp8 does; inputs must be a multiple of 16 in `hopper` and `released_hopper`.
void linear_bf16(Arithmetic arithmetic, SumOperator op, std::span<const Bf16> x, int64_t rows,
                 const Bf16Weight& weight, std::span<float> y);
void linear_bf16(Arithmetic arithmetic, SumOperator op, std::span<const Bf16> x, int64_t rows,
                 const Bf16Weight& weight, std::span<Bf16> y);

/// Rows quantised by Q8, as linear_fp8 and linear_fp4 see them: codes' values [rows, inputs] and scales
/// [rows, inputs / 32].
struct QuantizedRows {
    std::vector<float> values, scales;
};
QuantizedRows quantize_linear_input(std::span<const Bf16> x, int64_t rows, int64_t inputs);

}  // namespace touchstone
