#include "golden/compare/tensor_pattern.h"

#include <fmt/format.h>

#include <algorithm>

#include "reference/io/config_json.h"
#include "reference/io/user_error.h"

namespace touchstone {

TensorPattern::TensorPattern(const std::string& text, const std::string& option)
    : text_(text), option_(option) {
    try {
        regex_ = std::regex(text);
    } catch (const std::regex_error& error) {
        throw UserError({fmt::format("{} is no regular expression: {}", quoted(text), error.what()), option,
                         "ECMAScript, e.g. '^L0[0-3]\\.attn'", ""});
    }
}

void TensorPattern::require_used(const std::vector<std::string>& names) const {
    if (std::ranges::any_of(names, [this](const std::string& name) { return fits(name); })) return;
    const std::string near = did_you_mean(text_, names);
    throw UserError({fmt::format("no tensor fits {}", quoted(text_)), option_,
                     fmt::format("a part of one of the {} names", names.size()),
                     near.empty() ? "" : fmt::format("did you mean {}?", quoted(near))});
}

}  // namespace touchstone
