// Any bytes given as an npy file are either refused with a UserError or give an array that lies inside the
// file and has as many bytes as type and shape need.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

#include "reference/io/npy.h"
#include "reference/io/safetensors.h"
#include "reference/io/user_error.h"

namespace {

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "npy_fuzz: %s\n", what);
    std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    try {
        const touchstone::NpyArray array =
            touchstone::parse_npy(std::as_bytes(std::span(data, size)), "fuzz");
        const auto width = touchstone::safetensors_element_bytes(array.stored.type);
        require(width.has_value(), "a type without a size");
        require(std::ssize(array.stored.bytes) == array.stored.elements() * *width,
                "bytes at odds with type and shape");
        uint64_t touched = 0;
        for (const std::byte byte : array.stored.bytes) touched += static_cast<uint8_t>(byte);  // bounds
        require(touched <= 255 * size, "more bytes than the file");
    } catch (const touchstone::UserError& error) {
        require(!error.parts().what.empty() && !error.parts().where.empty(),
                "a refusal without reason or place");
    }
    return 0;
}
