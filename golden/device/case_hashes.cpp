#include "golden/device/case_hashes.h"

#include "reference/numerics/tensor_hash.h"

namespace touchstone {

namespace {

template <class T>
uint64_t parallel_hash(std::span<const T> elements, uint64_t first_index) {
    uint64_t sum = 0;
#pragma omp parallel for reduction(+ : sum) schedule(static)
    for (size_t i = 0; i < elements.size(); ++i) sum += element_hash(first_index + i, elements[i]);
    return sum;
}

}  // namespace

uint64_t hash_of(std::span<const uint32_t> elements, uint64_t first_index) {
    return parallel_hash(elements, first_index);
}
uint64_t hash_of(std::span<const uint16_t> elements, uint64_t first_index) {
    return parallel_hash(elements, first_index);
}
uint64_t hash_of(std::span<const uint8_t> elements, uint64_t first_index) {
    return parallel_hash(elements, first_index);
}

}  // namespace touchstone
