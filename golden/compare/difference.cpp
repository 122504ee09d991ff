#include "golden/compare/difference.h"

#include <cstdlib>

#include "golden/compare/difference_comparison.h"
#include "golden/compare/element_types.h"

namespace touchstone {

namespace isa_scalar {
extern const difference_parts::DifferenceKernels difference_kernels;
}
#ifdef __x86_64__
namespace isa_avx2 {
extern const difference_parts::DifferenceKernels difference_kernels;
}
namespace isa_avx512 {
extern const difference_parts::DifferenceKernels difference_kernels;
}
#endif

const difference_parts::DifferenceKernels& difference_parts::difference_kernels(Isa isa) {
#ifdef __x86_64__
    if (isa == Isa::avx512) return isa_avx512::difference_kernels;
    if (isa == Isa::avx2) return isa_avx2::difference_kernels;
#endif
    (void)isa;
    return isa_scalar::difference_kernels;
}

Difference difference(const TensorView& expected, const TensorView& got, const Tolerance& tolerance,
                      const AfterPiece& after_piece) {
    if (expected.type != got.type || expected.shape != got.shape) std::abort();
    Difference result;
    const auto compare = [&]<class Type>() {
        const size_t bytes = static_cast<size_t>(expected.elements()) * sizeof(typename Type::Bits);
        if (expected.bytes.size() != bytes || got.bytes.size() != bytes) std::abort();
        result = difference_parts::Comparison<Type>(expected, got, tolerance, after_piece).run();
    };
    if (!element_types::visit(expected.type, compare)) std::abort();
    return result;
}

bool within(const Difference& difference, const Tolerance& tolerance) {
    if (difference.equal()) return true;
    const double differing = static_cast<double>(difference.elements - difference.identical);
    // Written so that a statistic that is NaN lets nothing pass.
    if (!(difference.normalised_mean_square >= 0 && difference.cosine >= 0)) return false;
    if (tolerance.cosine && !(difference.cosine <= *tolerance.cosine)) return false;
    return difference.outside == 0 && differing <= tolerance.share * static_cast<double>(difference.elements);
}

std::vector<int64_t> index_tuple(int64_t index, const std::vector<int64_t>& shape) {
    std::vector<int64_t> tuple(shape.size());
    for (size_t axis = shape.size(); axis-- > 0;) {
        tuple[axis] = index % shape[axis];
        index /= shape[axis];
    }
    return tuple;
}

ElementValue element_at(const TensorView& tensor, int64_t index) {
    ElementValue result{};
    const auto read = [&]<class Type>() {
        const auto bits = difference_parts::load<typename Type::Bits>(tensor.bytes.data(), index);
        result = {Type::value(bits), bits};
    };
    if (!element_types::visit(tensor.type, read)) std::abort();
    return result;
}

int64_t element_type_bytes(std::string_view type) {
    int64_t bytes = 0;
    element_types::visit(type, [&]<class Type>() { bytes = sizeof(typename Type::Bits); });
    return bytes;
}

bool is_float_type(std::string_view type) {
    bool is_float = false;
    element_types::visit(type, [&]<class Type>() { is_float = Type::is_float; });
    return is_float;
}

}  // namespace touchstone
