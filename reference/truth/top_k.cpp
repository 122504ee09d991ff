#include "reference/truth/top_k.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace touchstone::truth {

std::vector<int64_t> top_k(const Vector& values, int64_t k) {
    std::vector<int64_t> order(static_cast<size_t>(values.size()));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
        return std::isnan(values[b]) ? !std::isnan(values[a]) : values[a] > values[b];
    });
    order.resize(std::min(order.size(), static_cast<size_t>(k)));
    return order;
}

}  // namespace touchstone::truth
