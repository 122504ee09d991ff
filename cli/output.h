// How results leave the program.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "simulator/rational.h"

namespace touchstone::cli {

/// Writes to stdout and reports a failed write (full disk, closed pipe) as an exception.
void write_result(const std::string& text);

/// A word as a POSIX shell reads it back: quoted where it has to be.
std::string shell_word(const std::string& word);

/// An object as JSON text with sorted keys, two spaces of indent and a final newline.
std::string to_text(const nlohmann::json& object);

/// Integers stay integers; terminating fractions are exact decimals (3514.25); others are rounded to double,
/// and `fraction` beside them is exact.
nlohmann::json to_json(const Rational& value);

/// "Assumptions" section of the text form; empty when there are none.
std::string assumptions_text(const std::vector<std::string>& assumptions);

}  // namespace touchstone::cli
