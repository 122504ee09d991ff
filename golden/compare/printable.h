// Names and paths of files, which may hold anything, as a terminal, a page and a plot can show them.
#pragma once

#include <string>
#include <string_view>

namespace touchstone {

/// Control characters, those of C1 too, and bytes that are no UTF-8 as escapes: "\n", "\x1B". Other text, a
/// backslash too, stays as it is.
std::string printable(std::string_view text);

/// The same for HTML and SVG, between tags and in attributes.
std::string escaped(std::string_view text);

/// Letters A to Z as a to z: the class of a verdict in HTML and SVG.
std::string lower(std::string_view text);

/// The end of a long text, which says more than its beginning: ".." and at most `most_bytes` - 2 bytes of
/// whole characters.
std::string shortened(std::string_view text, size_t most_bytes);

/// A regular expression (ECMAScript) that fits that text alone, without control characters.
std::string pattern_of(std::string_view text);

}  // namespace touchstone
