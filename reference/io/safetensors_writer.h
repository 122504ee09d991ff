// Writing safetensors files, tensor by tensor, of any size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/io/atomic_file.h"

namespace touchstone {

/// What the header says of a tensor.
struct SafetensorsDeclaration {
    std::string name;
    std::string type;  ///< "F32", "BF16", "F8_E4M3", ..
    std::vector<int64_t> shape;

    int64_t bytes() const;
};

/// A file being written; it has its name when finish() returns, and before that does not exist (AtomicFile).
/// Tensors lie in the order of their element sizes, widest first, each size in the order declared, and the
/// header is padded to 8 bytes: every element is aligned, so readers need no copy. One thread at a time.
class SafetensorsWriter {
  public:
    /// Throws UserError when a name is given twice or is no plain text, a type is unknown, an extent is
    /// negative or a size leaves 64 bits, the header is longer than the format allows, or the folder cannot
    /// be written to.
    SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsDeclaration> tensors,
                      const std::map<std::string, std::string>& metadata = {});

    /// The declarations in the order in which their bytes are written.
    const std::vector<SafetensorsDeclaration>& tensors() const { return tensors_; }

    /// The next bytes of the tensor `name`, in pieces of any size. Throws UserError, with nothing written,
    /// when another tensor is not complete yet, or when these are more bytes than the tensor has; and as
    /// AtomicFile::write does.
    void write(std::string_view name, std::span<const std::byte> bytes);

    /// Throws UserError, and the file gets no name, when bytes are missing.
    void finish();

  private:
    void skip_complete();

    std::string path_;
    std::vector<SafetensorsDeclaration> tensors_;
    size_t current_ = 0;           ///< the tensor whose bytes come next
    int64_t current_written_ = 0;  ///< bytes of it
    AtomicFile file_;
};

}  // namespace touchstone
