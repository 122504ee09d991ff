// The text path in double against the released inference code (official_tiny): `ideal` end to end against
// its runs without quantisation in float64, `truth` block by block against its recorded intermediates.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "reference/truth/rope.h"
#include "tests/official_tiny.h"
#include "tests/truth_tiny.h"

using namespace touchstone;
using namespace touchstone::official_tiny;
using truth::Matrix;

namespace {

/// What an episode's comparison found.
struct Found {
    double worst = 0;  ///< of logits and streams, relative to the row's rms
    int64_t choices = 0, rows = 0;
    std::vector<std::string> wrong;
};

/// Compares row `ours_row` of a run's trace with row `row` of every tensor recorded under `prefix`.
/// `position` bounds how many columns of a mask mean something.
void compare_row(const Trace& trace, int64_t ours_row, const SafetensorsFile& recorded,
                 const std::string& prefix, int64_t row, int64_t position, Found& found) {
    for (auto tensor = recorded.tensors().lower_bound(prefix);
         tensor != recorded.tensors().end() && tensor->first.starts_with(prefix); ++tensor) {
        const std::string name = tensor->first.substr(prefix.size());
        const auto traced = trace.find(name);
        if (traced == trace.end()) {
            // Not ours: draft stages, and the distances to what was not selected.
            const bool foreign = name.find("boundary") != std::string::npos || name.starts_with("M") ||
                                 name.starts_with("dspark") || name == "main_x";
            // A decode step may compute nothing that another step of the same tensor does (L02 at position
            // 1).
            if (!foreign && name.find("index_") == std::string::npos)
                found.wrong.push_back(fmt::format("{}{}: not traced", prefix, name));
            continue;
        }
        const RecordedRows theirs = recorded_rows(recorded, tensor->first);
        const Matrix& ours = traced->second;
        const int64_t from = name == "logits" && theirs.rows == 1 ? ours.rows() - 1 : ours_row;
        if (name == "logits" && theirs.rows == 1 && row > 0) continue;
        const double* expected = theirs.row(theirs.rows == 1 ? 0 : row);
        ++found.rows;
        if (name.find("experts") != std::string::npos || name.find("selected") != std::string::npos) {
            ++found.choices;
            if (selection(ours.row(from).data(), ours.cols()) != selection(expected, theirs.width))
                found.wrong.push_back(fmt::format("{}{} row {}", prefix, name, row));
        } else if (name.find("candidate_mask") != std::string::npos) {
            ++found.choices;
            for (int64_t j = 0; j <= position; ++j)
                if (ours(from, j) != expected[j])
                    found.wrong.push_back(fmt::format("{}{} row {} position {}", prefix, name, row, j));
        } else {
            found.worst = std::max(found.worst, difference_over_rms(ours, from, expected));
        }
    }
}

/// One prefill and its decode steps with own and with stale index keys.
Found compare_episode(const truth::Model& model, const truth::Model& stale_model, int64_t prompt,
                      int64_t steps, const std::string& prefill_prefix, const std::string& own_prefix,
                      const std::string& stale_prefix) {
    const SafetensorsFile& recorded = file("smooth");
    Found found;
    truth::State own = model.start();
    Trace trace;
    forward(model, own, 0, prompt, trace);
    for (int64_t row = 0; row < prompt; ++row)
        compare_row(trace, row, recorded, prefill_prefix, row, row, found);
    truth::State stale = own;
    for (int64_t step = 0; step < steps; ++step) {
        Trace own_trace, stale_trace;
        forward(model, own, prompt + step, 1, own_trace);
        forward(stale_model, stale, prompt + step, 1, stale_trace);
        compare_row(own_trace, 0, recorded, own_prefix, step, prompt + step, found);
        compare_row(stale_trace, 0, recorded, stale_prefix, step, prompt + step, found);
    }
    return found;
}

}  // namespace

TEST_CASE("truth: ideal reproduces every episode of the released code without quantisation, end to end") {
    const truth::ModelOptions ideal{.ledger = truth::Ledger::none()};
    truth::ModelOptions stale = ideal;
    stale.index_keys = truth::IndexKeys::released_pointer;
    const truth::Model model = truth_model(ideal), stale_model = truth_model(stale);

    const auto check = [](const Found& found, const std::string& episode) {
        const std::string first = found.wrong.empty() ? "none" : found.wrong.front();
        const std::string shown =
            fmt::format("{}: {} rows, {} choices; worst {:.2e} of the rms; {} wrong, first: {}", episode,
                        found.rows, found.choices, found.worst, found.wrong.size(), first);
        MESSAGE(shown);
        INFO(shown);
        CHECK(found.wrong.empty());
        CHECK(found.worst <= 1e-5);
        CHECK(found.worst > 0);
    };
    check(compare_episode(model, stale_model, 100, 24, "smooth_prefill100/", "smooth_decode100_own/",
                          "smooth_decode100_stale/"),
          "prefill 100, 24 steps");
    for (const int64_t length : {1, 2, 3, 15, 16, 17, 47, 48, 49, 63, 64, 65, 79, 80, 81}) {
        const std::string episode = fmt::format("smooth_len{:03}/", length);
        check(compare_episode(model, stale_model, length, 8, episode + "prefill.", episode + "decode_own.",
                              episode + "decode_stale."),
              episode);
    }
}
