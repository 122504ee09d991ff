// Replacing many files of a folder at once: all of them, or none, also where the process is killed.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace touchstone {

/// Below the replaced folder: "new" holds files that are not in their places yet, "old" those that were taken
/// away, "moves" the paths of both. The old files are put back as long as "moves" is there.
inline constexpr std::string_view replacement_name = ".replacement.partial";
/// Whether a process has stopped between the first move and the last, or is there now.
bool is_half_replaced(const std::filesystem::path& folder);

/// New files are written below aside(); commit() moves them to their places. One thread at a time; the folder
/// is locked (flock) against another replacement. Without commit() nothing of the folder changes.
class FileReplacement {
  public:
    /// Creates the folder where it is not there, puts back the files of a process that was stopped while it
    /// moved them, and removes what it left aside. Throws UserError when that cannot be done, and while there
    /// is another replacement of the folder.
    explicit FileReplacement(const std::filesystem::path& folder);
    /// Removes what is aside, unless old files are still there.
    ~FileReplacement();
    FileReplacement(const FileReplacement&) = delete;
    FileReplacement& operator=(const FileReplacement&) = delete;

    /// Where a new file is written, its folder made.
    std::filesystem::path aside(const std::string& path);

    /// Moves `added` from aside to their places, in that order, after taking `removed` away; paths are
    /// relative to the folder. Throws UserError when a file cannot be moved, with every file where it was.
    void commit(const std::vector<std::string>& removed, const std::vector<std::string>& added);

  private:
    struct Moves {
        std::vector<std::string> removed, added;
    };
    void lock();
    void move(const std::filesystem::path& from, const std::filesystem::path& to);
    void take_away(const std::string& path);
    Moves read_moves() const;
    void put_back(const Moves& moves);
    void move_back(const Moves& moves);

    std::filesystem::path folder_, aside_;
    int lock_ = -1;
};

}  // namespace touchstone
