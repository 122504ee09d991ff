// touchstone bisect: what its two halves, operators and traces, share.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "golden/bisect/bisect.h"
#include "golden/bisect/diagnosis.h"
#include "reference/registry/registry.h"

namespace touchstone::cli {

int bisect_operator(const BisectOptions& options);
int bisect_trace(const BisectOptions& options);

/// exact, hopper or released_hopper. Throws UserError for another name.
Arithmetic bit_exact_arithmetic(const std::string& name);

/// "[0, 17]".
std::string index_text(const std::vector<int64_t>& index);

/// "expected 0.5 (0x3f00), got 0.75 (0x3f40)"; `type` is the tensor's.
std::string element_text(const ElementPair& element, std::string_view type);
nlohmann::json element_json(const ElementPair& element, const std::vector<int64_t>& index,
                            std::string_view type);

/// A difference in JSON: counts, errors.
nlohmann::json difference_json(const Difference& difference);

/// Lines that say why: the causes that explain it, or that none does and what was tried.
std::string cause_text(const Diagnosis& diagnosis);
nlohmann::json diagnosis_json(const Diagnosis& diagnosis);

std::string_view finding_name(Finding finding);

/// What a bisected pair of passes is called, beside the result itself.
struct TraceQuestion {
    std::string theirs, reference;  ///< files; `reference` empty: run here, or none
    std::string config;
    std::string arithmetic;
    std::string no_reference;  ///< why there is none; empty where there is one
    std::vector<std::string> assumptions, unknown_names;
    std::vector<TracedCall> calls;
    std::string again;  ///< the command that reproduces the fault
};

std::string trace_text(const TraceQuestion& question, const BisectResult& result);
nlohmann::json trace_json(const TraceQuestion& question, const BisectResult& result);
/// x_out's error against the reference, layer by layer, a line per call.
std::string growth_svg(const TraceQuestion& question, const BisectResult& result);

/// "position_000100/L06.attn.qr".
std::string full_name(const std::vector<TracedCall>& calls, const TensorReport& report);

}  // namespace touchstone::cli
