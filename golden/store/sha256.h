// SHA-256 (FIPS 180-4): what the golden store says of its own files.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace touchstone {

/// The digest as 64 lower-case hexadecimal digits, as sha256sum prints it.
std::string sha256(std::span<const std::byte> message);

}  // namespace touchstone
