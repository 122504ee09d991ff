#include "golden/store/hash_table.h"

#include <fmt/format.h>

#include <charconv>
#include <vector>

#include "reference/io/user_error.h"

namespace touchstone {

namespace {

constexpr std::string_view header = "# case\tpart\tslot=TYPE[shape]:tensor_hash ... (version 1)\n";

std::vector<std::string_view> fields_of(std::string_view line) {
    std::vector<std::string_view> fields;
    for (size_t at = 0; at <= line.size();) {
        const size_t end = std::min(line.find('\t', at), line.size());
        fields.push_back(line.substr(at, end - at));
        at = end + 1;
    }
    return fields;
}

/// "y=BF16[2,8]:0123456789abcdef"; false for any other form.
bool add_slot(std::string_view field, PartDigests& slots) {
    const size_t equals = field.find('='), colon = field.rfind(':');
    if (equals == std::string_view::npos || colon == std::string_view::npos || colon < equals) return false;
    const std::string_view digits = field.substr(colon + 1);
    TensorDigest digest{std::string(field.substr(equals + 1, colon - equals - 1)), 0};
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), digest.hash, 16);
    return digits.size() == 16 && error == std::errc() && end == digits.data() + digits.size() &&
           slots.emplace(field.substr(0, equals), std::move(digest)).second;
}

bool add_line(std::string_view line, HashTable& table) {
    const std::vector<std::string_view> fields = fields_of(line);
    if (fields.size() < 2 || fields[0].empty() || fields[1].empty()) return false;
    const auto [part, fresh] = table[std::string(fields[0])].try_emplace(std::string(fields[1]));
    if (!fresh) return false;
    for (size_t i = 2; i < fields.size(); ++i)
        if (!add_slot(fields[i], part->second)) return false;
    return true;
}

}  // namespace

CaseDigests digests_of(const CaseTensors& tensors) {
    CaseDigests digests;
    for (const auto& [part, slots] : tensors) {
        auto& of_part = digests[part];
        for (const auto& [name, tensor] : slots) of_part[name] = digest_of(tensor);
    }
    return digests;
}

std::string hash_table_text(const HashTable& table) {
    std::string text(header);
    const auto add = [&](const std::string& name, const std::string& part, const auto& slots) {
        text += name + '\t' + part;
        for (const auto& [slot, digest] : slots) text += fmt::format("\t{}={}", slot, digest_text(digest));
        text += '\n';
    };
    for (const auto& [name, parts] : table) {
        const auto inputs = parts.find(inputs_part);
        if (inputs != parts.end()) add(name, inputs->first, inputs->second);
        for (const auto& [part, slots] : parts)
            if (part != inputs_part) add(name, part, slots);
    }
    return text;
}

HashTable parse_hash_table(std::string_view text, const std::string& where) {
    HashTable table;
    const auto refuse = [&](size_t line) {
        throw UserError({"a line that is no case's hashes", fmt::format("{}:{}", where, line),
                         "case, part, slot=TYPE[shape]:hash, with tabs between",
                         "restore the file, or make the store anew: touchstone golden make"});
    };
    if (!text.starts_with(header)) refuse(1);
    size_t number = 2;
    for (size_t at = header.size(); at < text.size(); ++number) {
        const size_t end = text.find('\n', at);
        if (end == std::string_view::npos || !add_line(text.substr(at, end - at), table)) refuse(number);
        at = end + 1;
    }
    return table;
}

}  // namespace touchstone
