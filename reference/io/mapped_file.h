// A file of any size as read-only memory: opening costs nothing, bytes are read when they are touched.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace touchstone {

/// A whole regular file, mapped. Bytes may be read from any thread.
class MappedFile {
  public:
    /// Throws UserError, naming the file, when it cannot be opened or is not a regular file; `expected` says
    /// what it should have been, e.g. "a readable safetensors file".
    MappedFile(const std::filesystem::path& path, const std::string& expected);
    ~MappedFile();
    MappedFile(const MappedFile&) = delete;
    MappedFile& operator=(const MappedFile&) = delete;

    std::span<const std::byte> bytes() const { return bytes_; }

    /// Throws UserError when the file has become shorter since it was opened: touching the bytes that are
    /// gone would end the process (SIGBUS). Whoever is about to read asks first; a file cut while it is being
    /// read still ends the process.
    void require_not_shortened() const;

    /// The pages that hold `part` of bytes() leave memory; they are read from the file again when touched.
    void release(std::span<const std::byte> part) const;

  private:
    std::string path_;
    int descriptor_ = -1;
    std::span<const std::byte> bytes_;
};

}  // namespace touchstone
