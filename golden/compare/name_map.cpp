#include "golden/compare/name_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "reference/io/config_json.h"
#include "reference/io/user_error.h"

namespace touchstone {

namespace {

/// A piece of a pattern: plain text, or a placeholder.
struct Piece {
    std::string text = {};  ///< or the placeholder's name
    bool placeholder = false;
    bool number = false;
    size_t digits = 0;
};

using Captures = std::map<std::string, std::string, std::less<>>;

[[noreturn]] void refuse(const std::string& what, const std::string& where) {
    throw UserError({what, where, "a line such as: model.layers.{n}.q = L{n:02}.attn.q [transpose]", ""});
}

std::string_view trimmed(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \t\r");
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

/// What stands between braces: a name, or a name and ":0" with the number of digits.
Piece placeholder_of(std::string_view inside, const std::string& where) {
    const size_t colon = inside.find(':');
    Piece piece{std::string(inside.substr(0, colon)), true};
    if (piece.text.empty()) refuse("a placeholder without a name", where);
    if (colon == std::string_view::npos) return piece;
    const std::string_view format = inside.substr(colon + 1);
    const auto [end, error] = std::from_chars(format.data(), format.data() + format.size(), piece.digits);
    if (!format.starts_with('0') || error != std::errc{} || end != format.data() + format.size() ||
        piece.digits > 18)
        refuse(fmt::format("format {}", quoted(std::string(format))), where);
    piece.number = true;
    return piece;
}

std::vector<Piece> pieces_of(std::string_view pattern, const std::string& where) {
    std::vector<Piece> pieces;
    while (!pattern.empty()) {
        const size_t open = pattern.find('{');
        const std::string_view plain = pattern.substr(0, open);
        if (plain.find('}') != std::string_view::npos) refuse("a '}' without its '{'", where);
        if (!plain.empty()) pieces.push_back({std::string(plain)});
        if (open == std::string_view::npos) break;
        const size_t close = pattern.find('}', open);
        if (close == std::string_view::npos) refuse("a '{' without its '}'", where);
        pieces.push_back(placeholder_of(pattern.substr(open + 1, close - open - 1), where));
        pattern.remove_prefix(close + 1);
    }
    return pieces;
}

bool holds(const Piece& piece, char c) {
    return piece.number ? c >= '0' && c <= '9' : c != '.' && c != '/';
}

/// The rest of a pattern against the rest of a name; the shortest text for each placeholder that fits.
bool match(std::span<const Piece> pieces, std::string_view name, Captures& captures) {
    if (pieces.empty()) return name.empty();
    const Piece& piece = pieces[0];
    if (!piece.placeholder)
        return name.starts_with(piece.text) &&
               match(pieces.subspan(1), name.substr(piece.text.size()), captures);
    for (size_t length = 1; length <= name.size() && holds(piece, name[length - 1]); ++length) {
        if (!match(pieces.subspan(1), name.substr(length), captures)) continue;
        captures[piece.text] = name.substr(0, length);
        return true;
    }
    return false;
}

std::string filled(const std::vector<Piece>& pieces, const Captures& captures, const std::string& where) {
    std::string text;
    for (const Piece& piece : pieces) {
        if (!piece.placeholder) {
            text += piece.text;
            continue;
        }
        std::string value = captures.find(piece.text)->second;
        if (piece.number) {
            if (value.find_first_not_of("0123456789") != std::string::npos)
                refuse(fmt::format("{} is no number for {{{}}}", quoted(value), piece.text), where);
            value.erase(0, std::min(value.find_first_not_of('0'), value.size() - 1));
            if (value.size() < piece.digits) value.insert(0, piece.digits - value.size(), '0');
        }
        text += value;
    }
    return text;
}

void check_placeholders(const NameRule& rule) {
    const std::vector<Piece> theirs = pieces_of(rule.theirs, rule.where);
    std::vector<std::string> names;
    for (size_t i = 0; i < theirs.size(); ++i) {
        if (!theirs[i].placeholder) continue;
        if (i > 0 && theirs[i - 1].placeholder) refuse("two placeholders side by side", rule.where);
        if (std::ranges::find(names, theirs[i].text) != names.end())
            refuse(fmt::format("{{{}}} stands twice on the left", theirs[i].text), rule.where);
        names.push_back(theirs[i].text);
    }
    for (const Piece& piece : pieces_of(rule.ours, rule.where))
        if (piece.placeholder && std::ranges::find(names, piece.text) == names.end())
            refuse(fmt::format("{{{}}} stands on the right alone", piece.text), rule.where);
}

NameRule parse_rule(std::string_view line, const std::string& where) {
    const size_t equals = line.find('=');
    if (equals == std::string_view::npos) refuse("no '='", where);
    NameRule rule{std::string(trimmed(line.substr(0, equals))), "", {}, where};
    std::string_view right = trimmed(line.substr(equals + 1));
    const size_t bracket = right.find('[');
    if (bracket != std::string_view::npos) {
        if (!right.ends_with(']')) refuse("a '[' without its ']'", where);
        rule.layout = parse_layout(right.substr(bracket + 1, right.size() - bracket - 2), where);
        right = trimmed(right.substr(0, bracket));
    }
    rule.ours = right;
    if (rule.theirs.empty() || rule.ours.empty()) refuse("a side without a name", where);
    check_placeholders(rule);
    return rule;
}

/// The rule that fits a name, or none.
struct Fit {
    const NameRule* rule = nullptr;
    std::string ours;
};

Fit fit_of(std::span<const NameRule> rules, const std::string& name, std::vector<bool>& used) {
    Fit fit;
    for (size_t i = 0; i < rules.size(); ++i) {
        const NameRule& rule = rules[i];
        Captures captures;
        if (!match(pieces_of(rule.theirs, rule.where), name, captures)) continue;
        used[i] = true;
        const std::string ours = filled(pieces_of(rule.ours, rule.where), captures, rule.where);
        if (fit.rule != nullptr && (fit.ours != ours || fit.rule->layout != rule.layout))
            refuse(fmt::format("{} becomes {}, but {} at {}", quoted(name), quoted(ours), quoted(fit.ours),
                               fit.rule->where),
                   rule.where);
        if (fit.rule == nullptr) fit = {&rule, ours};
    }
    return fit;
}

}  // namespace

std::vector<NameRule> parse_name_map(std::string_view text, const std::string& file) {
    std::vector<NameRule> rules;
    for (int line = 1; !text.empty(); ++line) {
        const size_t end = std::min(text.find('\n'), text.size());
        std::string_view content = text.substr(0, end);
        content = trimmed(content.substr(0, content.find('#')));
        if (!content.empty()) rules.push_back(parse_rule(content, fmt::format("{}:{}", file, line)));
        text.remove_prefix(std::min(end + 1, text.size()));
    }
    return rules;
}

MappedNames map_names(std::span<const NameRule> rules, std::span<const std::string> theirs) {
    MappedNames result;
    std::vector<bool> used(rules.size());
    std::map<std::string, std::string> their_name_of;
    for (const std::string& name : theirs) {
        const Fit fit = fit_of(rules, name, used);
        MappedName mapped{name, {}};
        if (fit.rule != nullptr) mapped = {fit.ours, fit.rule->layout};
        const auto [first, added] = their_name_of.emplace(mapped.ours, name);
        if (!added)
            refuse(fmt::format("{} and {} both become {}", quoted(first->second), quoted(name),
                               quoted(mapped.ours)),
                   fit.rule != nullptr ? fit.rule->where : "the map");
        result.by_their_name.emplace(name, std::move(mapped));
    }
    for (size_t i = 0; i < rules.size(); ++i)
        if (!used[i])
            result.unused_rules.push_back(
                fmt::format("{}: {} = {}", rules[i].where, rules[i].theirs, rules[i].ours));
    return result;
}

}  // namespace touchstone
