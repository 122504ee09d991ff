#include "golden/store/file_replacement.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "golden/store/manifest.h"
#include "reference/io/atomic_file.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view moves_name = "moves", removed_mark = "removed ", added_mark = "added ";

/// Folders that hold nothing any more, up to `top`.
void remove_empty(fs::path folder, const fs::path& top) noexcept {
    std::error_code error;
    for (; folder != top && fs::remove(folder, error) && !error; folder = folder.parent_path()) {
    }
}

[[noreturn]] void refuse(const fs::path& path, const std::error_code& error) {
    throw UserError({fmt::format("the file cannot be replaced: {}", error.message()), path.string(),
                     "a folder that can be written", "nothing was changed"});
}

/// A link to nothing is there too.
bool is_there(const fs::path& path) {
    std::error_code unknown;
    return fs::exists(fs::symlink_status(path, unknown));
}

/// Nothing outside the folder.
bool is_inside(const std::string& path) {
    const fs::path parts(path);
    return !path.empty() && parts.is_relative() && std::ranges::find(parts, "..") == parts.end();
}

}  // namespace

bool is_half_replaced(const fs::path& folder) {
    return is_there(folder / replacement_name / moves_name);
}

FileReplacement::FileReplacement(const fs::path& folder)
    : folder_(folder), aside_(folder / replacement_name) {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (error) refuse(folder_, error);
    lock();
    try {
        if (is_half_replaced(folder_)) put_back(read_moves());
        fs::remove_all(aside_, error);
        if (!error) fs::create_directories(aside_, error);
        if (error) refuse(aside_, error);
    } catch (...) {
        ::close(lock_);
        throw;
    }
}

FileReplacement::~FileReplacement() {
    std::error_code ignored;
    if (!is_half_replaced(folder_)) fs::remove_all(aside_, ignored);
    ::close(lock_);
}

/// Held by the open folder, so that it ends with the process however that ends.
void FileReplacement::lock() {
    lock_ = ::open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock_ >= 0 && ::flock(lock_, LOCK_EX | LOCK_NB) == 0) return;
    const int error = errno;
    if (lock_ >= 0) ::close(lock_);
    if (error == EWOULDBLOCK)
        throw UserError({"another make is at work in this folder", folder_.string(), "one at a time",
                         "wait until it has ended"});
    throw UserError({fmt::format("the folder cannot be locked: {}", std::generic_category().message(error)),
                     folder_.string(), "a file system that has flock", "make it elsewhere and copy it"});
}

fs::path FileReplacement::aside(const std::string& path) {
    const fs::path place = aside_ / "new" / path;
    std::error_code error;
    fs::create_directories(place.parent_path(), error);
    if (error) refuse(place, error);
    return place;
}

void FileReplacement::move(const fs::path& from, const fs::path& to) {
    std::error_code error;
    fs::create_directories(to.parent_path(), error);
    if (!error) fs::rename(from, to, error);
    if (!error) return;
    remove_empty(to.parent_path(), folder_);
    refuse(to, error);
}

void FileReplacement::take_away(const std::string& path) {
    if (!is_there(folder_ / path)) return;
    std::error_code unknown;
    // Whatever it holds would be gone with it.
    if (fs::symlink_status(folder_ / path, unknown).type() == fs::file_type::directory)
        refuse(folder_ / path, std::make_error_code(std::errc::is_a_directory));
    move(folder_ / path, aside_ / "old" / path);
}

FileReplacement::Moves FileReplacement::read_moves() const {
    const fs::path file = aside_ / moves_name;
    const std::string text = read_file(file);
    Moves moves;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        const std::string line = text.substr(at, end - at);
        const bool removed = line.starts_with(removed_mark);
        const std::string path = line.substr(line.find(' ') + 1);
        if ((!removed && !line.starts_with(added_mark)) || !is_inside(path))
            throw UserError({fmt::format("\"{}\" is no move", line), file.string(), "what make has written",
                             "put the files of \"old\" back by hand"});
        (removed ? moves.removed : moves.added).push_back(path);
        at = end + 1;
    }
    return moves;
}

/// From any place between the first move and the last, also of an earlier putting back.
void FileReplacement::move_back(const Moves& moves) {
    const auto back = [&](const std::string& path) {
        const fs::path old = aside_ / "old" / path;
        if (is_there(old)) move(old, folder_ / path);
    };
    for (auto path = moves.added.rbegin(); path != moves.added.rend(); ++path) {
        const fs::path place = folder_ / *path;
        // Back to "new", not away: a new file that is gone from there is one that has been moved.
        if (!is_there(aside_ / "new" / *path) && is_there(place)) move(place, aside_ / "new" / *path);
        back(*path);
        remove_empty(place.parent_path(), folder_);
    }
    for (const std::string& path : moves.removed) back(path);
    std::error_code error;
    fs::remove(aside_ / moves_name, error);
    if (error) refuse(aside_ / moves_name, error);
}

void FileReplacement::put_back(const Moves& moves) {
    try {
        move_back(moves);
    } catch (const UserError& error) {
        throw UserError({fmt::format("old files cannot be put back: {}", error.parts().what),
                         error.parts().where, fmt::format("what is aside, in {}", aside_.string()),
                         "make that place writable; the next make puts them back before anything else"});
    }
}

void FileReplacement::commit(const std::vector<std::string>& removed, const std::vector<std::string>& added) {
    std::string moves;
    for (const std::string& path : removed) moves += fmt::format("{}{}\n", removed_mark, path);
    for (const std::string& path : added) {
        moves += fmt::format("{}{}\n", added_mark, path);
        if (!is_there(aside_ / "new" / path))
            refuse(folder_ / path, std::make_error_code(std::errc::no_such_file_or_directory));
    }
    write_file_atomically(aside_ / moves_name, moves);
    try {
        for (const std::string& path : removed) take_away(path);
        for (const std::string& path : added) {
            take_away(path);
            move(aside_ / "new" / path, folder_ / path);
        }
    } catch (const UserError&) {
        put_back({removed, added});
        throw;
    }
    std::error_code error;
    // From here on the new files are the folder's.
    if (!fs::remove(aside_ / moves_name, error) || error) {
        put_back({removed, added});
        refuse(aside_ / moves_name, error);
    }
    for (const std::string& path : removed) remove_empty((folder_ / path).parent_path(), folder_);
}

}  // namespace touchstone
