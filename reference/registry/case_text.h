// A case as a line of text: `name(key=value,key=value)`. Cases name tests, goldens, receipts and reproducers;
// what a name and its keys mean is for their owner to say.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace touchstone {

/// A parsed case whose keys are taken one by one. Names, keys and values are of letters, digits and _ . - +,
/// at least one each; keys are unique; no spaces.
class CaseText {
  public:
    /// Throws UserError naming `where` (file and line, or option) for text of any other form.
    CaseText(std::string_view text, std::string where);

    const std::string& name() const { return name_; }
    bool has(std::string_view key) const;
    /// The value of `key`, which must be there.
    std::string take_text(std::string_view key);
    /// The value of `key` as a whole number in [low, high], written in digits alone.
    int64_t take_integer(std::string_view key, int64_t low, int64_t high);
    /// The value of `key` as a decimal number in [low, high], e.g. 1e-20.
    double take_real(std::string_view key, double low, double high);
    /// Throws UserError for the first key that nobody took.
    void require_all_taken() const;
    /// Throws UserError about this case: what is wrong, and what was expected.
    [[noreturn]] void refuse(const std::string& what, const std::string& expected) const;

  private:
    std::string text_, where_, name_;
    std::vector<std::pair<std::string, std::string>> parameters_;
};

}  // namespace touchstone
