// Reading safetensors files: 8 bytes of header length (little-endian), a JSON header, then the tensors' bytes
// (https://github.com/huggingface/safetensors, format section).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace touchstone {

/// A tensor of a file: where its bytes lie.
struct SafetensorsTensor {
    std::string type;  ///< as the file says: "F32", "BF16", "F8_E4M3", "F8_E8M0", "I8", "I32", "U8", ..
    std::vector<int64_t> shape;
    std::span<const std::byte> bytes;  ///< little-endian elements, row-major; the file owns them

    int64_t elements() const;
};

/// A whole file in memory.
class SafetensorsFile {
  public:
    /// Throws UserError, naming the file and the offending tensor, when the file cannot be read or is not
    /// well formed: cut short, a header that is no JSON object, an unknown type, offsets outside the file or
    /// at odds with type and shape, tensors that overlap or leave gaps.
    explicit SafetensorsFile(const std::filesystem::path& path);
    SafetensorsFile(const SafetensorsFile&) = delete;
    SafetensorsFile& operator=(const SafetensorsFile&) = delete;

    const std::map<std::string, SafetensorsTensor, std::less<>>& tensors() const { return tensors_; }

    /// Throws UserError, with the nearest name, when the file has no such tensor.
    const SafetensorsTensor& tensor(std::string_view name) const;

    /// The elements of a tensor of that type as T, which must have the element's size: copied, so alignment
    /// in the file does not matter. Throws UserError when name or type is another.
    template <class T>
    std::vector<T> values(std::string_view name, std::string_view type) const {
        std::vector<T> result(static_cast<size_t>(checked(name, type, sizeof(T)).elements()));
        copy_bytes(name, result.data());
        return result;
    }

  private:
    const SafetensorsTensor& checked(std::string_view name, std::string_view type,
                                     size_t element_bytes) const;
    void copy_bytes(std::string_view name, void* to) const;

    std::string path_;
    std::vector<std::byte> data_;
    std::map<std::string, SafetensorsTensor, std::less<>> tensors_;
};

}  // namespace touchstone
