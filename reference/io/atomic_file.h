// Output files that exist whole or not at all: written under a temporary name, renamed when finished.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

namespace touchstone {

/// A file being written. Until finish() there is nothing under its name (or what was there before), whatever
/// happens; a process that is killed leaves the temporary, `<name>.<number>.partial` in the same folder.
/// One thread at a time.
class AtomicFile {
  public:
    /// Throws UserError, naming the file, when its folder cannot be written to.
    explicit AtomicFile(const std::filesystem::path& path);
    /// Without finish() removes the temporary.
    ~AtomicFile();
    AtomicFile(const AtomicFile&) = delete;
    AtomicFile& operator=(const AtomicFile&) = delete;

    /// Appends. Throws UserError when the bytes cannot be written, e.g. on a full disk.
    void write(std::span<const std::byte> bytes);
    /// Brings all bytes to the disk, then gives the file its name, replacing a file of that name. Throws
    /// UserError as write does. Nothing can be written afterwards.
    void finish();

  private:
    [[noreturn]] void fail(const std::string& what, int error) const;
    void close_and_remove() noexcept;

    std::filesystem::path path_;
    std::filesystem::path temporary_;
    int descriptor_ = -1;
};

/// A whole file at once. Throws as AtomicFile does.
void write_file_atomically(const std::filesystem::path& path, std::string_view text);

}  // namespace touchstone
