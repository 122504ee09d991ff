#include "simulator/checked.h"

#include <fmt/format.h>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

[[noreturn]] void refuse(const char* operation, int64_t a, int64_t b) {
    throw UserError({fmt::format("a count does not fit 63 bits: {} {} {}", a, operation, b), "accounting",
                     "results up to 9223372036854775807",
                     "reduce the context, the requests or the sizes in the configuration"});
}

}  // namespace

int64_t checked_add(int64_t a, int64_t b) {
    int64_t sum = 0;
    if (__builtin_add_overflow(a, b, &sum)) refuse("+", a, b);
    return sum;
}

int64_t checked_multiply(int64_t a, int64_t b) {
    int64_t product = 0;
    if (__builtin_mul_overflow(a, b, &product)) refuse("x", a, b);
    return product;
}

}  // namespace touchstone
