#include "reference/io/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>

#include "reference/io/user_error.h"

namespace touchstone {

MappedFile::MappedFile(const std::filesystem::path& path, const std::string& expected)
    : path_(path.string()) {
    const auto refuse = [&](const std::string& what) {
        if (descriptor_ >= 0) ::close(descriptor_);
        throw UserError({what, path_, expected, "check the path"});
    };
    // Without O_NONBLOCK a named pipe would wait for its writer.
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (descriptor_ < 0) refuse(fmt::format("the file cannot be opened: {}", std::strerror(errno)));
    struct stat status {};
    if (::fstat(descriptor_, &status) != 0)
        refuse(fmt::format("the file cannot be read: {}", std::strerror(errno)));
    if (!S_ISREG(status.st_mode)) refuse("this is not a regular file");
    const size_t size = static_cast<size_t>(status.st_size);
    if (size == 0) return;  // mmap refuses an empty range
    void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor_, 0);
    if (memory == MAP_FAILED) refuse(fmt::format("the file cannot be mapped: {}", std::strerror(errno)));
    bytes_ = {static_cast<const std::byte*>(memory), size};
}

MappedFile::~MappedFile() {
    if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
    ::close(descriptor_);
}

void MappedFile::require_not_shortened() const {
    struct stat status {};
    if (::fstat(descriptor_, &status) == 0 && static_cast<size_t>(status.st_size) >= bytes_.size()) return;
    throw UserError({fmt::format("the file has {} bytes, fewer than when it was opened", status.st_size),
                     path_, fmt::format("{} bytes", bytes_.size()),
                     "leave the file alone while it is in use, or fetch it again"});
}

void MappedFile::release(std::span<const std::byte> part) const {
    if (part.empty()) return;
    // Whole pages, outwards: the mapping is never written, so a neighbour's bytes lose nothing but their
    // copy.
    const size_t page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const size_t offset = static_cast<size_t>(part.data() - bytes_.data());
    const size_t first = offset / page * page;
    const size_t length = offset + part.size() - first;
    // Advice: where it is not taken, memory stays in use and nothing is wrong.
    (void)::madvise(const_cast<std::byte*>(bytes_.data()) + first, length, MADV_DONTNEED);
}

}  // namespace touchstone
