// Reading and writing npy files, one array each: magic, version, length and text of a Python dictionary, then
// the elements (NumPy Enhancement Proposal 1, versions 1.0 to 3.0).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "reference/io/mapped_file.h"
#include "reference/io/tensor_view.h"

namespace touchstone {

/// An array of a file, pointing into its bytes.
struct NpyArray {
    /// As it lies in the file, row-major. In Fortran's order that is the array transposed: the extents of
    /// `stored` are the array's, last first.
    TensorView stored;
    bool fortran_order = false;

    /// The array's own extents.
    std::vector<int64_t> shape() const;
};

/// Whether a file begins as npy files do.
bool is_npy(std::span<const std::byte> file);

/// The array of a file that lies in memory; `name` stands for it in messages. Types: float16, 32, 64, signed
/// and unsigned integers of 8 to 64 bits, bool, all little-endian. Throws UserError, naming the file, when it
/// is not well formed, and for big-endian, structured, object, text, complex and raw types, each by its name.
NpyArray parse_npy(std::span<const std::byte> file, const std::string& name);

/// A whole file, mapped.
class NpyFile {
  public:
    /// Throws UserError when the file cannot be opened, or as parse_npy does.
    explicit NpyFile(const std::filesystem::path& path);
    NpyFile(const NpyFile&) = delete;
    NpyFile& operator=(const NpyFile&) = delete;

    const NpyArray& array() const { return array_; }
    const MappedFile& file() const { return file_; }

  private:
    MappedFile file_;
    NpyArray array_;
};

/// Writes an array in C order under its name (AtomicFile). Throws UserError for a type that npy does not have
/// (BF16, F8_*: view them as U16 or U8) and when the file cannot be written.
void write_npy(const std::filesystem::path& path, const TensorView& array);

}  // namespace touchstone
