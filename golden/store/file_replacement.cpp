#include "golden/store/file_replacement.h"

#include <fmt/format.h>

#include "reference/io/user_error.h"

namespace touchstone {

namespace fs = std::filesystem;

namespace {

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

}  // namespace

FileReplacement::FileReplacement(const fs::path& folder)
    : folder_(folder), aside_(folder / ".replacement.partial") {
    std::error_code error;
    fs::remove_all(aside_, error);
    if (!error) fs::create_directories(aside_, error);
    if (error) refuse(aside_, error);
}

FileReplacement::~FileReplacement() {
    std::error_code ignored;
    fs::remove_all(aside_, ignored);
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
    if (error) {
        remove_empty(to.parent_path(), folder_);
        refuse(to, error);
    }
    done_.push_back({from, to});
}

void FileReplacement::take_away(const std::string& path) {
    std::error_code unknown;
    const fs::file_type type = fs::symlink_status(folder_ / path, unknown).type();
    if (type == fs::file_type::not_found) return;
    // Whatever it holds would be gone with it.
    if (type == fs::file_type::directory)
        refuse(folder_ / path, std::make_error_code(std::errc::is_a_directory));
    move(folder_ / path, aside_ / "old" / path);
}

void FileReplacement::undo() noexcept {
    for (; !done_.empty(); done_.pop_back()) {
        std::error_code ignored;
        fs::rename(done_.back().to, done_.back().from, ignored);
        remove_empty(done_.back().to.parent_path(), folder_);
    }
}

void FileReplacement::commit(const std::vector<std::string>& removed, const std::vector<std::string>& added) {
    try {
        for (const std::string& path : removed) take_away(path);
        for (const std::string& path : added) {
            take_away(path);
            move(aside_ / "new" / path, folder_ / path);
        }
    } catch (const UserError&) {
        undo();
        throw;
    }
    done_.clear();
    for (const std::string& path : removed) remove_empty((folder_ / path).parent_path(), folder_);
}

}  // namespace touchstone
