#include "golden/name_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

/// The numbers that the "*" of a pattern stand for; nothing where the name is another.
std::optional<std::vector<int64_t>> match(std::string_view pattern, std::string_view name) {
    std::vector<int64_t> numbers;
    while (!pattern.empty()) {
        if (pattern.front() != '*') {
            if (name.empty() || name.front() != pattern.front()) return std::nullopt;
            name.remove_prefix(1);
        } else {
            int64_t number = 0;
            const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
            if (error != std::errc{} || number < 0) return std::nullopt;
            name.remove_prefix(static_cast<size_t>(end - name.data()));
            numbers.push_back(number);
        }
        pattern.remove_prefix(1);
    }
    if (!name.empty()) return std::nullopt;
    return numbers;
}

std::string filled(std::string_view pattern, const std::vector<int64_t>& numbers) {
    std::string name;
    size_t next = 0;
    for (const char c : pattern) {
        if (c != '*')
            name += c;
        else if (name.ends_with("position_"))
            name += fmt::format("{:06}", numbers[next++]);
        else
            name += fmt::format("{:0{}}", numbers[next++], name.ends_with('L') ? 2 : 1);
    }
    return name;
}

}  // namespace

NameMap::NameMap(const std::filesystem::path& path) {
    std::ifstream file(path);
    if (!file)
        throw UserError(
            {"the name map cannot be read", path.string(), "a file of name pairs", "check the path"});
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
        std::istringstream words(line);
        std::string theirs, ours, more;
        words >> theirs;
        if (theirs.empty() || theirs.starts_with('#')) continue;
        const bool two = static_cast<bool>(words >> ours) && !(words >> more);
        const auto stars = std::ranges::count(theirs, '*');
        if (!two || stars > 2 || stars != std::ranges::count(ours, '*'))
            throw UserError({fmt::format("\"{}\"", line), fmt::format("{}:{}", path.string(), number),
                             "their name and ours, with as many \"*\", at most two",
                             "for example: model.layers.*.q_a L*.attn.qr"});
        pairs_.emplace_back(theirs, ours);
    }
}

std::string NameMap::ours(const std::string& theirs) const {
    for (const auto& [pattern, name] : pairs_)
        if (const auto numbers = match(pattern, theirs)) return filled(name, *numbers);
    return theirs;
}

SafetensorsTensors renamed(const SafetensorsTensors& tensors, const NameMap& names,
                           const std::string& where) {
    SafetensorsTensors result;
    for (const auto& [theirs, tensor] : tensors) {
        const std::string ours = names.ours(theirs);
        if (!result.emplace(ours, tensor).second)
            throw UserError({fmt::format("two tensors are {}", ours), where, "a name per tensor",
                             "see the pairs of --map"});
    }
    return result;
}

}  // namespace touchstone
