#include "reference/io/config_json.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

using Json = nlohmann::json;

constexpr int kMaxNesting = 32;
constexpr std::uintmax_t kMaxFileBytes = 16 << 20;

/// A key as it is when it is plain, quoted when it holds anything that a terminal might act on.
std::string printable(std::string_view key) {
    const bool plain = !key.empty() && key.size() <= 60 && std::all_of(key.begin(), key.end(), [](char c) {
        return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') || c == '_';
    });
    return plain ? std::string(key) : quoted(std::string(key));
}

std::string described_value(const Json& value) {
    switch (value.type()) {
        case Json::value_t::object: return fmt::format("an object of {} keys", value.size());
        case Json::value_t::array: return fmt::format("a list of {} values", value.size());
        case Json::value_t::string: return "the text " + quoted(value.get_ref<const std::string&>());
        default: return value.dump();
    }
}

/// Line and column (from 1) of the byte at `offset`; columns count bytes.
std::pair<size_t, size_t> line_and_column(std::string_view text, size_t offset) {
    const std::string_view before = text.substr(0, std::min(offset, text.size()));
    const size_t line = 1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
    const size_t line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
    return {line, before.size() - line_start + 1};
}

/// What the parser objected to, without the copy of the file's bytes that follows in its message.
std::string parser_reason(const std::string& message) {
    const size_t start = message.find(" - ");
    const std::string reason = start == std::string::npos ? message : message.substr(start + 3);
    return reason.substr(0, reason.find(';'));
}

/// Watches a parse: refuses keys given twice and hostile nesting, which the parser itself would accept.
class StructureGuard {
  public:
    StructureGuard(std::string source, std::string expected)
        : source_(std::move(source)), expected_(std::move(expected)) {}

    bool operator()(int depth, Json::parse_event_t event, const Json& parsed) {
        if (depth > kMaxNesting)
            throw UserError({.what = fmt::format("values are nested deeper than {}", kMaxNesting),
                             .where = source_,
                             .expected = expected_,
                             .remedy = ""});
        if (event == Json::parse_event_t::object_start) keys_of_open_objects_.emplace_back();
        if (event == Json::parse_event_t::object_end) keys_of_open_objects_.pop_back();
        if (event == Json::parse_event_t::key) enter_key(parsed.get_ref<const std::string&>());
        return true;
    }

  private:
    void enter_key(const std::string& key) {
        if (keys_of_open_objects_.back().insert(key).second) return;
        throw UserError({.what = fmt::format("the key {} is given twice in one object", quoted(key)),
                         .where = source_,
                         .expected = "each key once",
                         .remedy = "remove the one that is not meant"});
    }

    std::string source_, expected_;
    std::vector<std::set<std::string>> keys_of_open_objects_;
};

Json parse_strictly(std::string_view text, const std::string& source, const std::string& expected) {
    StructureGuard guard(source, expected);
    const Json::parser_callback_t callback = [&guard](int depth, Json::parse_event_t event, Json& parsed) {
        return guard(depth, event, parsed);
    };
    try {
        return Json::parse(text.begin(), text.end(), callback);
    } catch (const Json::parse_error& error) {
        const auto [line, column] = line_and_column(text, error.byte == 0 ? 0 : error.byte - 1);
        throw UserError({.what = fmt::format("not valid JSON: {}", parser_reason(error.what())),
                         .where = fmt::format("{}: line {}, column {}", source, line, column),
                         .expected = expected,
                         .remedy = ""});
    } catch (const Json::exception& error) {
        throw UserError({.what = fmt::format("cannot be read as JSON: {}", parser_reason(error.what())),
                         .where = source,
                         .expected = expected,
                         .remedy = ""});
    }
}

std::string integer_range(int64_t lowest, int64_t highest) {
    if (lowest == highest) return fmt::format("the integer {}", lowest);
    return fmt::format("an integer from {} to {}", lowest, highest);
}

bool is_integer_within(const Json& value, int64_t lowest, int64_t highest) {
    if (!value.is_number_integer()) return false;
    if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return false;
    const int64_t number = value.get<int64_t>();
    return lowest <= number && number <= highest;
}

}  // namespace

std::string quoted(const std::string& text) {
    std::string shown = Json(text).dump(-1, ' ', true, Json::error_handler_t::replace);
    if (shown.size() > 60) shown = shown.substr(0, 57) + "...";
    return shown;
}

struct JsonObject::Document {
    Json root;
    std::string source;
    std::vector<std::string> known_keys;
};

/// Typed access to the untyped node pointers of the header, which keep the JSON library out of it.
struct JsonObject::Node {
    static const Json& of(const JsonObject& object) { return *static_cast<const Json*>(object.node_); }

    static const Json& value(const JsonObject& object, std::string_view key, std::string_view expected) {
        const auto found = of(object).find(key);
        if (found == of(object).end()) object.missing(key, std::string(expected));
        return *found;
    }

    static const Json& list(const JsonObject& object, std::string_view key, const std::string& expected,
                            size_t most) {
        const Json& values = value(object, key, expected);
        if (!values.is_array() || values.size() > most) object.refuse(key, expected);
        return values;
    }
};

JsonObject JsonObject::parse(std::string_view text, const std::string& source,
                             std::vector<std::string> known_keys, const std::string& expected) {
    auto document = std::make_shared<Document>(
        Document{parse_strictly(text, source, expected), source, std::move(known_keys)});
    if (!document->root.is_object())
        throw UserError({.what = fmt::format("the file holds {}", described_value(document->root)),
                         .where = source,
                         .expected = "a JSON object: " + expected,
                         .remedy = ""});
    const void* root = &document->root;
    return JsonObject(std::move(document), root, "");
}

bool JsonObject::has(std::string_view key) const {
    return Node::of(*this).contains(key);
}

bool JsonObject::is_null(std::string_view key) const {
    return has(key) && Node::of(*this).find(key)->is_null();
}

std::vector<std::string> JsonObject::keys() const {
    std::vector<std::string> names;
    for (const auto& entry : Node::of(*this).items()) names.push_back(entry.key());
    return names;
}

int64_t JsonObject::integer(std::string_view key, int64_t lowest, int64_t highest) const {
    const std::string expected = integer_range(lowest, highest);
    const Json& value = Node::value(*this, key, expected);
    if (!is_integer_within(value, lowest, highest)) refuse(key, expected);
    return value.get<int64_t>();
}

double JsonObject::number(std::string_view key, double lowest, double highest) const {
    const std::string expected = fmt::format("a number from {} to {}", lowest, highest);
    const Json& value = Node::value(*this, key, expected);
    if (!value.is_number()) refuse(key, expected);
    const double number = value.get<double>();
    if (!std::isfinite(number) || number < lowest || number > highest) refuse(key, expected);
    return number;
}

std::string JsonObject::string(std::string_view key) const {
    const Json& value = Node::value(*this, key, "a text");
    if (!value.is_string()) refuse(key, "a text");
    return value.get<std::string>();
}

std::vector<int64_t> JsonObject::long_integers(std::string_view key, int64_t lowest, int64_t highest,
                                               size_t most) const {
    const std::string expected =
        fmt::format("a list of at most {} values, each {}", most, integer_range(lowest, highest));
    std::vector<int64_t> numbers;
    for (const Json& value : Node::list(*this, key, expected, most)) {
        if (!is_integer_within(value, lowest, highest))
            throw UserError({.what = fmt::format("{}[{}] is {}", key, numbers.size(), described_value(value)),
                             .where = where(key),
                             .expected = integer_range(lowest, highest),
                             .remedy = ""});
        numbers.push_back(value.get<int64_t>());
    }
    return numbers;
}

std::vector<int> JsonObject::integers(std::string_view key, int lowest, int highest, size_t most) const {
    const std::vector<int64_t> numbers = long_integers(key, lowest, highest, most);
    return {numbers.begin(), numbers.end()};
}

std::vector<std::string> JsonObject::strings(std::string_view key, size_t most) const {
    const std::string expected = fmt::format("a list of at most {} texts", most);
    std::vector<std::string> texts;
    for (const Json& value : Node::list(*this, key, expected, most)) {
        if (!value.is_string()) refuse(key, expected);
        texts.push_back(value.get<std::string>());
    }
    return texts;
}

JsonObject JsonObject::object(std::string_view key) const {
    const Json& value = Node::value(*this, key, "an object");
    if (!value.is_object()) refuse(key, "an object");
    return JsonObject(document_, &value, fmt::format("{}{}.", path_, key));
}

std::string JsonObject::literal(std::string_view key) const {
    return Node::value(*this, key, "a value").dump();
}

std::string JsonObject::described(std::string_view key) const {
    return described_value(Node::value(*this, key, "a value"));
}

std::string JsonObject::where(std::string_view key) const {
    return fmt::format("{}: {}{}", document_->source, path_, printable(key));
}

void JsonObject::refuse(std::string_view key, const std::string& expected, const std::string& remedy) const {
    throw UserError({.what = fmt::format("{} is {}", printable(key), described(key)),
                     .where = where(key),
                     .expected = expected,
                     .remedy = remedy});
}

void JsonObject::missing(std::string_view key, const std::string& expected) const {
    std::vector<std::string> unexplained;
    const std::vector<std::string>& known = document_->known_keys;
    for (const std::string& present : keys())
        if (std::find(known.begin(), known.end(), present) == known.end()) unexplained.push_back(present);
    const std::string near = did_you_mean(key, unexplained);
    throw UserError(
        {.what = fmt::format("{} is missing", key),
         .where = where(key),
         .expected = expected,
         .remedy = near.empty() ? "" : fmt::format("the file has {}: is that the key?", quoted(near))});
}

std::string read_config_file(const std::string& path) {
    const std::string expected = "the config.json of a model, at most 16 MiB";
    const auto unusable = [&](const std::string& what, const std::string& remedy = "") {
        return UserError({.what = what, .where = path, .expected = expected, .remedy = remedy});
    };
    std::error_code error;
    const std::filesystem::file_status status = std::filesystem::status(path, error);
    if (status.type() == std::filesystem::file_type::not_found) throw unusable("there is no such file");
    if (status.type() == std::filesystem::file_type::directory)
        throw unusable("this is a directory", fmt::format("give {}/config.json", path));
    if (status.type() == std::filesystem::file_type::none)
        throw unusable("the file cannot be read: " + error.message());
    if (status.type() != std::filesystem::file_type::regular) throw unusable("this is not a regular file");
    const std::uintmax_t bytes = std::filesystem::file_size(path, error);
    if (error) throw unusable("the file cannot be read: " + error.message());
    if (bytes > kMaxFileBytes) throw unusable(fmt::format("the file has {} bytes", bytes));
    std::ifstream file(path, std::ios::binary);
    std::string text(bytes, '\0');
    if (!file.read(text.data(), static_cast<std::streamsize>(bytes)))
        throw unusable("the file cannot be read");
    return text;
}

}  // namespace touchstone
