// Shapes as text, "[rows, heads, head_dim / 32]": one form that documents, allocates and checks.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace touchstone {

/// The value of an identifier; throws for one it does not know.
using Lookup = std::function<int64_t(std::string_view name)>;

/// The value of an expression of whole numbers, identifiers, ( ), + - and * / %. As in C: * / % before + -,
/// equals from left to right; operands are not negative, so / rounds down. Throws UserError for text of
/// another form, for a division by 0 and for what leaves 64 bits.
int64_t evaluate(std::string_view expression, const Lookup& lookup);

/// The extents of a shape text, without spaces at their ends: "[a, b / 2]" is {"a", "b / 2"}, "[]" none.
std::vector<std::string> extents_of(std::string_view shape);

/// The extents' values.
std::vector<int64_t> evaluate_shape(std::string_view shape, const Lookup& lookup);

/// Whether the whole text is one identifier.
bool is_identifier(std::string_view text);

}  // namespace touchstone
