// Integer arithmetic that refuses to wrap: every byte count goes through it.
#pragma once

#include <cstdint>

namespace touchstone {

/// Sum and product of byte, token and parameter counts. Throws UserError when the result leaves int64.
int64_t checked_add(int64_t a, int64_t b);
int64_t checked_multiply(int64_t a, int64_t b);

}  // namespace touchstone
