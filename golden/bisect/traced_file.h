// Somebody's trace as it lies on disk, under our names.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "golden/compare/tensor_file.h"
#include "reference/registry/tensor.h"

namespace touchstone {

/// Tensors of a file or folder (tensor_file.h), named and laid out as a name map says (name_map.h).
class TracedFile {
  public:
    /// `map` empty: names as they are. Throws UserError as TensorFile, parse_name_map, map_names and
    /// row_major do, and for a map that cannot be read.
    TracedFile(const std::filesystem::path& path, const std::string& map);

    /// Row-major, valid as long as this.
    const SafetensorsTensors& tensors() const { return tensors_; }
    const std::map<std::string, std::string>& metadata() const { return file_.metadata(); }
    std::string where() const { return file_.path().string(); }
    /// Rules that no name fits, as "map.txt:3: theirs = ours".
    const std::vector<std::string>& unused_rules() const { return unused_rules_; }

  private:
    TensorFile file_;
    TensorMap copies_;  ///< of tensors that lie otherwise than row by row
    SafetensorsTensors tensors_;
    std::vector<std::string> unused_rules_;
};

}  // namespace touchstone
