// touchstone bisect: which half of the command answers.
#include "cli/bisect.h"

#include <fmt/format.h>

#include "reference/io/user_error.h"

namespace touchstone::cli {

namespace {

struct ConflictingOption {
    const char* name;
    bool given;
};

void require_operator_options(const BisectOptions& options) {
    for (const ConflictingOption& option :
         {ConflictingOption{"--config", !options.config.empty()},
          ConflictingOption{"--weights-seed", !options.weights_seed.empty()},
          ConflictingOption{"--force-choices", options.force_choices},
          ConflictingOption{"--svg", !options.svg.empty()}})
        if (option.given)
            throw UserError({fmt::format("{} beside an operator", option.name), option.name,
                             "--case or --in without it", "it is about traces"});
    const size_t expected = options.in.empty() ? 1 : 2;
    if (options.files.size() != expected)
        throw UserError({fmt::format("{} files or names", options.files.size()), "touchstone bisect",
                         options.in.empty() ? "--case C THEIRS" : "--in INPUTS OPERATOR THEIRS", ""});
}

}  // namespace

int run_bisect(const BisectOptions& options) {
    if (options.case_text.empty() && options.in.empty()) return bisect_trace(options);
    require_operator_options(options);
    return bisect_operator(options);
}

}  // namespace touchstone::cli
