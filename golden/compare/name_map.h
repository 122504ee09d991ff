// Names of somebody else's tensors, translated: a text file with one rule a line.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "golden/compare/layout_change.h"

namespace touchstone {

/// `theirs = ours`, or `theirs = ours [layout]`. {name} stands for one or more characters other than '.' and
/// '/'; {name:02} for a whole number, written with at least two digits.
struct NameRule {
    std::string theirs, ours;
    std::optional<Layout> layout;
    std::string where;  ///< "map.txt:3"
};

/// Reads the rules of a text; empty lines and what follows a '#' are nothing. Throws UserError, naming file
/// and line, for a line of another form, a placeholder that is not closed, given twice or unknown on the
/// right, two placeholders side by side, and a layout that is none.
std::vector<NameRule> parse_name_map(std::string_view text, const std::string& file);

struct MappedName {
    std::string ours;
    std::optional<Layout> layout;
};

struct MappedNames {
    std::map<std::string, MappedName, std::less<>>
        by_their_name;                      ///< every name, unchanged where no rule fits
    std::vector<std::string> unused_rules;  ///< "map.txt:3: a.{n} = L{n}"
};

/// Throws UserError when two rules give a name different translations or layouts, and when two names become
/// one.
MappedNames map_names(std::span<const NameRule> rules, std::span<const std::string> theirs);

}  // namespace touchstone
