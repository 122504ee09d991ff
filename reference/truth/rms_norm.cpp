#include "reference/truth/rms_norm.h"

#include <cmath>

namespace touchstone::truth {

Matrix rms_norm(const Matrix& x, const Vector& weight, double eps) {
    Matrix result(x.rows(), x.cols());
    for (Eigen::Index t = 0; t < x.rows(); ++t) {
        const double mean_square = x.row(t).squaredNorm() / static_cast<double>(x.cols());
        result.row(t) = x.row(t).cwiseProduct(weight.transpose()) / std::sqrt(mean_square + eps);
    }
    return result;
}

}  // namespace touchstone::truth
