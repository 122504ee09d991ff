// What the tests of the C interface share.
#pragma once

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "golden/touchstone.h"

namespace touchstone::c_interface {

/// Frees what the library made.
struct Handle {
    touchstone_tensors* tensors = nullptr;
    Handle() = default;
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle() { touchstone_tensors_free(tensors); }

    std::vector<touchstone_tensor> all() const {
        std::vector<touchstone_tensor> found(static_cast<size_t>(touchstone_tensors_count(tensors)));
        for (size_t i = 0; i < found.size(); ++i)
            REQUIRE(touchstone_tensors_get(tensors, static_cast<int64_t>(i), &found[i]) == touchstone_ok);
        return found;
    }
};

/// The last call was refused, and said so.
inline void check_refused(touchstone_status status, const std::string& fragment) {
    CAPTURE(fragment);
    const std::string error = touchstone_last_error();
    CAPTURE(error);
    CHECK(status == touchstone_bad_argument);
    CHECK_FALSE(error.empty());
    CHECK(error.find(fragment) != std::string::npos);
}

}  // namespace touchstone::c_interface
