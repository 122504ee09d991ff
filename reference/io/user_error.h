// The one exception for mistakes that a user can mend: bad input, bad options, unreadable files.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace touchstone {

/// What a user reads when their input cannot be used. The command line prints it and exits with 2.
/// Broken invariants of our own are never a UserError: they abort.
class UserError : public std::runtime_error {
  public:
    struct Parts {
        std::string what;  ///< what was read, e.g. "sliding_window is -128"
        std::string
            where;  ///< file, key, option or byte offset, e.g. "config.json: text_config.sliding_window"
        std::string expected;  ///< what would have been accepted, e.g. "an integer from 1 to 1048576"
        std::string remedy;    ///< what to do; empty when `expected` says it all
    };
    explicit UserError(Parts parts);
    const Parts& parts() const noexcept { return parts_; }

  private:
    Parts parts_;
};

/// The candidate closest to `word` by edit distance, or "" when none is near enough to be a typing slip
/// (distance at most a third of the word's length, at least 1). Ties go to the earlier candidate.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace touchstone
