// Tensors of a file or a folder, whatever the format: safetensors, npy, or both side by side.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/io/npy.h"
#include "reference/io/safetensors.h"

namespace touchstone {

/// A tensor as it lies in its file.
struct StoredTensor {
    TensorView view;
    bool fortran_order = false;  ///< an npy array whose extents stand last first in `view`
    bool of_npy = false;         ///< its type may stand for one that npy does not have
    size_t file = 0;             ///< which of the files
};

using StoredTensors = std::map<std::string, StoredTensor, std::less<>>;

/// Everything mapped: opening reads headers alone. May be read from any thread.
class TensorFile {
  public:
    /// A safetensors or npy file, told apart by its first bytes, or a folder with any number of them
    /// (*.safetensors, *.npy). An npy file's array is called after the file. Throws UserError naming the
    /// file, and the tensor where it is one, for what cannot be read, a name given twice and a folder without
    /// any.
    explicit TensorFile(const std::filesystem::path& path);

    const std::filesystem::path& path() const { return path_; }
    const StoredTensors& tensors() const { return tensors_; }
    /// Throws UserError with the nearest name when there is no such tensor.
    const StoredTensor& tensor(std::string_view name) const;
    /// Whether this is one npy file: its array then has no name of its own.
    bool is_single_array() const { return single_array_; }
    /// Of the safetensors files; where they disagree the first.
    const std::map<std::string, std::string>& metadata() const { return metadata_; }
    /// "folder/a.safetensors": where a tensor comes from.
    std::string where(const StoredTensor& tensor) const { return files_[tensor.file].path; }
    /// The pages of a part of the tensor's bytes leave memory.
    void release(const StoredTensor& tensor, std::span<const std::byte> part) const;
    /// Throws UserError when the tensor's file has become shorter since it was opened.
    void require_not_shortened(const StoredTensor& tensor) const;

  private:
    struct File {
        std::string path;
        std::unique_ptr<MappedFile> mapped;
    };
    void open(const std::filesystem::path& path);
    void add(const std::string& name, StoredTensor tensor);

    std::filesystem::path path_;
    std::vector<File> files_;
    StoredTensors tensors_;
    std::map<std::string, std::string> metadata_;
    bool single_array_ = false;
};

}  // namespace touchstone
