// A regular expression of names that a user has typed.
#pragma once

#include <regex>
#include <string>
#include <vector>

namespace touchstone {

class TensorPattern {
  public:
    /// Throws UserError naming `option` when `text` is no regular expression.
    TensorPattern(const std::string& text, const std::string& option);
    /// Whether any part of the name fits.
    bool fits(const std::string& name) const { return std::regex_search(name, regex_); }
    /// Throws UserError when no name fits: a slip of the pen would otherwise compare with another tolerance
    /// than was meant.
    void require_used(const std::vector<std::string>& names) const;

  private:
    std::string text_, option_;
    std::regex regex_;
};

}  // namespace touchstone
