#include "reference/io/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "reference/io/user_error.h"

namespace touchstone {

void AtomicFile::fail(const std::string& what, int error) const {
    throw UserError({fmt::format("{}: {}", what, std::strerror(error)), path_.string(),
                     "a file in a folder that can be written, on a disk with room", ""});
}

AtomicFile::AtomicFile(const std::filesystem::path& path) : path_(path) {
    // Renaming would replace a device, a pipe, a link or fail on a folder, after all the work.
    std::error_code unknown;
    const std::filesystem::file_status status = std::filesystem::symlink_status(path, unknown);
    if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
        throw UserError({"this is not a regular file", path.string(),
                         "a new name, or that of a file to replace", "choose another name"});
    // Another writer of the same file, or one that was killed, may own a number: take the next.
    for (int number = ::getpid();; ++number) {
        temporary_ = path_;
        temporary_ += fmt::format(".{}.partial", number);
        descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (descriptor_ >= 0) return;
        if (errno != EEXIST) fail("the file cannot be written", errno);
    }
}

AtomicFile::~AtomicFile() {
    close_and_remove();
}

void AtomicFile::close_and_remove() noexcept {
    if (descriptor_ < 0) return;
    ::close(descriptor_);
    ::unlink(temporary_.c_str());
    descriptor_ = -1;
}

void AtomicFile::write(std::span<const std::byte> bytes) {
    if (descriptor_ < 0) std::abort();  // written after finish()
    while (!bytes.empty()) {
        const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
        if (written < 0 && errno == EINTR) continue;
        if (written < 0) fail("the file cannot be written", errno);
        bytes = bytes.subspan(static_cast<size_t>(written));
    }
}

void AtomicFile::finish() {
    if (descriptor_ < 0) std::abort();
    // The bytes before the name: a crash in between must not leave the name on an empty file.
    if (::fsync(descriptor_) != 0) fail("the file cannot be brought to the disk", errno);
    if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("the file cannot be renamed", errno);
    ::close(descriptor_);
    descriptor_ = -1;
    // The name itself lies in the folder. Not every file system can do this; the file is whole either way.
    const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
    const int directory = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) return;
    (void)::fsync(directory);
    ::close(directory);
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
    AtomicFile file(path);
    file.write(std::as_bytes(std::span(text)));
    file.finish();
}

}  // namespace touchstone
