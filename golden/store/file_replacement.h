// Replacing many files of a folder at once: all of them, or none.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace touchstone {

/// New files are written below aside(); commit() moves them to their places. One thread at a time, one
/// replacement of a folder at a time. Without commit() nothing of the folder changes.
class FileReplacement {
  public:
    /// Creates the folder where it is not there, and removes what an interrupted process left aside. Throws
    /// UserError when that cannot be done.
    explicit FileReplacement(const std::filesystem::path& folder);
    /// Removes what is aside.
    ~FileReplacement();
    FileReplacement(const FileReplacement&) = delete;
    FileReplacement& operator=(const FileReplacement&) = delete;

    /// Where a new file is written, its folder made.
    std::filesystem::path aside(const std::string& path);

    /// Moves `added` from aside to their places, in that order, after taking `removed` away; paths are
    /// relative to the folder. Throws UserError when a file cannot be moved, with every file where it was.
    void commit(const std::vector<std::string>& removed, const std::vector<std::string>& added);

  private:
    struct Move {
        std::filesystem::path from, to;
    };
    void move(const std::filesystem::path& from, const std::filesystem::path& to);
    void take_away(const std::string& path);
    void undo() noexcept;

    std::filesystem::path folder_, aside_;
    std::vector<Move> done_;
};

}  // namespace touchstone
