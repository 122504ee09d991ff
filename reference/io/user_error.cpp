#include "reference/io/user_error.h"

#include <algorithm>
#include <utility>

namespace touchstone {

namespace {

std::string format_message(const UserError::Parts& parts) {
    std::string message = parts.what;
    if (!parts.where.empty()) message += "\n  where:    " + parts.where;
    if (!parts.expected.empty()) message += "\n  expected: " + parts.expected;
    if (!parts.remedy.empty()) message += "\n  remedy:   " + parts.remedy;
    return message;
}

size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
        }
    }
    return row[b.size()];
}

}  // namespace

UserError::UserError(Parts parts) : std::runtime_error(format_message(parts)), parts_(std::move(parts)) {}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates) {
    std::string best;
    size_t best_distance = std::max<size_t>(1, word.size() / 3) + 1;
    for (const std::string& candidate : candidates) {
        const size_t distance = edit_distance(word, candidate);
        if (distance < best_distance) {
            best_distance = distance;
            best = candidate;
        }
    }
    return best;
}

}  // namespace touchstone
