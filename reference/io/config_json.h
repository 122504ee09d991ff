// A strict reader of JSON objects for configuration files: nothing is converted, guessed or silently dropped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace touchstone {

/// One JSON object of a file. Every accessor throws UserError, naming file and key, when the key is missing
/// or its value has another type or lies outside the accepted range. A value is taken as it is written: "7"
/// and 7.0 are not integers, 1e3 is not either, and null is a value of its own type.
class JsonObject {
  public:
    /// Parses a whole file. Refused: text that is not JSON (line and column), a root that is not an object,
    /// keys given twice, nesting deeper than 32. `known_keys` are never suggested for a missing key, because
    /// a file that has them means them. `expected` says what the file should have been.
    static JsonObject parse(std::string_view text, const std::string& source,
                            std::vector<std::string> known_keys,
                            const std::string& expected = "the config.json of a model");

    bool has(std::string_view key) const;      ///< present, null included
    bool is_null(std::string_view key) const;  ///< present and null
    std::vector<std::string> keys() const;

    int64_t integer(std::string_view key, int64_t lowest, int64_t highest) const;
    /// A finite number, integer or not.
    double number(std::string_view key, double lowest, double highest) const;
    std::string string(std::string_view key) const;
    /// At most `most` integers, each in the range.
    std::vector<int> integers(std::string_view key, int lowest, int highest, size_t most) const;
    std::vector<int64_t> long_integers(std::string_view key, int64_t lowest, int64_t highest,
                                       size_t most) const;
    std::vector<std::string> strings(std::string_view key, size_t most) const;
    JsonObject object(std::string_view key) const;

    /// The value as compact JSON, e.g. `"silu"`, `false`, `1`. Throws when the key is missing.
    std::string literal(std::string_view key) const;
    /// The value for a message: short, printable, arrays and objects by size.
    std::string described(std::string_view key) const;
    /// "config.json: text_config.sliding_window".
    std::string where(std::string_view key) const;
    /// Throws "<key> is <value>" with what was expected.
    [[noreturn]] void refuse(std::string_view key, const std::string& expected,
                             const std::string& remedy = "") const;
    /// Throws "<key> is missing"; suggests a key of this object that looks like a slip of `key`.
    [[noreturn]] void missing(std::string_view key, const std::string& expected) const;

  private:
    struct Document;  ///< the parsed file, its name and the known keys
    struct Node;      ///< one JSON value
    JsonObject(std::shared_ptr<const Document> document, const void* node, std::string path)
        : document_(std::move(document)), node_(node), path_(std::move(path)) {}

    std::shared_ptr<const Document> document_;
    const void* node_;  ///< an object inside document_
    std::string path_;  ///< "" at the root, otherwise "text_config."
};

/// A text of an untrusted file for a message: quoted, escaped to ASCII, cut to 60 characters.
std::string quoted(const std::string& text);

/// The bytes of a configuration file. Throws UserError when there is no such file, when it is a directory or
/// not a regular file, when it cannot be read, or when it is longer than 16 MiB.
std::string read_config_file(const std::string& path);

}  // namespace touchstone
