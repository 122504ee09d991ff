// Reading safetensors files: 8 bytes of header length (little-endian), a JSON header, then the tensors' bytes
// (https://github.com/huggingface/safetensors, format section).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "reference/io/mapped_file.h"
#include "reference/io/tensor_view.h"

namespace touchstone {

/// A tensor of a file: its bytes are the file's.
using SafetensorsTensor = TensorView;
using SafetensorsTensors = std::map<std::string, SafetensorsTensor, std::less<>>;

/// Bytes of an element of a type, e.g. 2 for "BF16"; none for a type that the format does not have.
std::optional<int64_t> safetensors_element_bytes(std::string_view type);

/// The tensors of a file that lies in memory, pointing into `file`; `name` stands for it in messages. Throws
/// UserError, naming the file and the offending tensor, when it is not well formed: cut short, a header that
/// is no JSON object, names or keys given twice, an unknown type, offsets outside the file or at odds with
/// type and shape, tensors that overlap or leave gaps.
SafetensorsTensors parse_safetensors(std::span<const std::byte> file, const std::string& name);

/// The header's "__metadata__", empty where there is none. Throws UserError when the header is no JSON object
/// or a value is no text.
std::map<std::string, std::string> parse_safetensors_metadata(std::span<const std::byte> file,
                                                              const std::string& name);

/// A whole file, mapped: opening it reads the header, the bytes of a tensor are read when they are touched.
/// May be read from any thread.
class SafetensorsFile {
  public:
    /// Throws UserError when the file cannot be opened, is not a regular file, or as parse_safetensors does.
    explicit SafetensorsFile(const std::filesystem::path& path);
    SafetensorsFile(const SafetensorsFile&) = delete;
    SafetensorsFile& operator=(const SafetensorsFile&) = delete;

    const std::filesystem::path& path() const { return path_; }
    const SafetensorsTensors& tensors() const { return tensors_; }
    /// As parse_safetensors_metadata.
    std::map<std::string, std::string> metadata() const {
        return parse_safetensors_metadata(file_.bytes(), path_.string());
    }

    /// Throws UserError, with the nearest name, when the file has no such tensor, and when the file has
    /// become shorter since it was opened.
    const SafetensorsTensor& tensor(std::string_view name) const;

    /// The elements of a tensor of that type as T, which must have the element's size: copied, so alignment
    /// in the file does not matter. Throws UserError when name or type is another.
    template <class T>
    std::vector<T> values(std::string_view name, std::string_view type) const {
        std::vector<T> result(static_cast<size_t>(checked(name, type, sizeof(T)).elements()));
        copy_bytes(name, result.data());
        return result;
    }

    /// The same without a copy, valid as long as the file; none when the bytes are not aligned for T. Throws
    /// as `values` does.
    template <class T>
    std::optional<std::span<const T>> view(std::string_view name, std::string_view type) const {
        static_assert(std::is_trivially_copyable_v<T>);
        const SafetensorsTensor& found = checked(name, type, sizeof(T));
        if (reinterpret_cast<uintptr_t>(found.bytes.data()) % alignof(T) != 0) return std::nullopt;
        return std::span(reinterpret_cast<const T*>(found.bytes.data()),
                         static_cast<size_t>(found.elements()));
    }

    /// The tensor's pages leave memory; they are read again when touched.
    void release(const SafetensorsTensor& tensor) const { file_.release(tensor.bytes); }

  private:
    const SafetensorsTensor& checked(std::string_view name, std::string_view type,
                                     size_t element_bytes) const;
    void copy_bytes(std::string_view name, void* to) const;

    std::filesystem::path path_;
    MappedFile file_;
    SafetensorsTensors tensors_;
};

}  // namespace touchstone
