// Any bytes given as a safetensors file, or as the index of a sharded checkpoint, are either refused with a
// UserError or give tensors that lie inside the file, side by side, with as many bytes as type and shape
// need.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

#include "reference/io/safetensors.h"
#include "reference/io/user_error.h"
#include "reference/model/checkpoint.h"

namespace {

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "safetensors_fuzz: %s\n", what);
    std::abort();
}

void require_reason(const touchstone::UserError& error) {
    require(!error.parts().what.empty() && !error.parts().where.empty(), "a refusal without reason or place");
}

void check_file(std::span<const std::byte> file) {
    uint64_t sum = 0, touched = 0;
    for (const auto& [name, tensor] : touchstone::parse_safetensors(file, "fuzz")) {
        const auto width = touchstone::safetensors_element_bytes(tensor.type);
        require(width.has_value(), "a type without a size");
        require(std::ssize(tensor.bytes) == tensor.elements() * *width, "bytes at odds with type and shape");
        sum += tensor.bytes.size();
        for (const std::byte byte : tensor.bytes) touched += static_cast<uint8_t>(byte);  // bounds
    }
    require(sum <= file.size() && touched <= 255 * sum, "more bytes of tensors than of the file");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    try {
        check_file(std::as_bytes(std::span(data, size)));
    } catch (const touchstone::UserError& error) {
        require_reason(error);
    }
    try {
        const std::string_view text(reinterpret_cast<const char*>(data), size);
        for (const auto& [tensor, file] : touchstone::parse_shard_index(text, "fuzz").shard_of_tensor)
            require(file.find('/') == file.npos && !file.starts_with('.'), "a shard outside the folder");
    } catch (const touchstone::UserError& error) {
        require_reason(error);
    }
    return 0;
}
