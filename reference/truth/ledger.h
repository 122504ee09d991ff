// The rounding ledger (spec: text model, section 14) in double: where a value of the model becomes bf16, fp8
// or fp4. `truth` follows it, with every sum and function between in double; `ideal` rounds nothing.
#pragma once

#include <Eigen/Core>

#include "reference/truth/linear.h"

namespace touchstone::truth {

using Vector = Eigen::VectorXd;

/// The bf16 nearest to x, ties to even, in one rounding (through fp32 there would be two). Beyond the largest
/// finite plus half a step: infinity.
double nearest_bf16(double x);

/// Which rounding points are carried out.
class Ledger {
  public:
    /// Rounds as the released model does: arithmetic `truth`.
    static Ledger released() { return Ledger(true); }
    /// Every function below is the identity: arithmetic `ideal`.
    static Ledger none() { return Ledger(false); }
    bool rounds() const { return rounds_; }

    /// To bf16, element by element.
    double bf16(double x) const { return rounds_ ? nearest_bf16(x) : x; }
    Matrix bf16(Matrix x) const;

    /// Quantised and dequantised (spec 2.3) in blocks along each row: 32 channels for q8 and q4i, 16 for q4m,
    /// which divide the width. Elements are bf16 values already; the results are too.
    Matrix q8(const Matrix& x) const;
    Matrix q4i(const Matrix& x) const;
    Matrix q4m(const Matrix& x) const;

  private:
    explicit Ledger(bool rounds) : rounds_(rounds) {}
    bool rounds_;
};

/// L8 and L4 (spec 2.5, 2.6): bf16(q8(x) weight^T). x [T, inputs], weight [outputs, inputs] dequantised.
Matrix quantized_linear(const Matrix& x, const Matrix& weight, const Ledger& ledger);

/// Elements as the model's fp32 constants hold them, e.g. head_dim^-0.5.
inline double fp32_constant(double x) {
    const volatile float rounded =
        static_cast<float>(x);  // gcc 12 drops the rounding of neighbours it vectorises
    return static_cast<double>(rounded);
}

}  // namespace touchstone::truth
