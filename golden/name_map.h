// Other people's names of the tensors of a trace.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "reference/io/safetensors.h"

namespace touchstone {

/// Pairs of names, theirs and ours, in the order of the file. A "*" in theirs stands for a number, and the
/// "*" in ours for the same one: in two digits behind an "L", in six behind "position_".
class NameMap {
  public:
    /// A pair a line between blanks; empty lines and what follows a "#" at the beginning of a line count for
    /// nothing. Throws UserError, naming file and line, for any other line, more than two "*" in a name, and
    /// unequal numbers of them.
    explicit NameMap(const std::filesystem::path& path);

    /// Ours; the name itself where no pair fits.
    std::string ours(const std::string& theirs) const;

  private:
    std::vector<std::pair<std::string, std::string>> pairs_;
};

/// The tensors under our names. Throws UserError, naming `where`, when two of them get the same one.
SafetensorsTensors renamed(const SafetensorsTensors& tensors, const NameMap& names, const std::string& where);

}  // namespace touchstone
