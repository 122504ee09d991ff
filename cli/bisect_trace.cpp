// touchstone bisect on traces: what is read, run and written.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "cli/bisect.h"
#include "cli/model_source.h"
#include "cli/output.h"
#include "cli/tensor_file.h"
#include "golden/bisect/reference_pass.h"
#include "golden/bisect/traced_file.h"
#include "reference/io/atomic_file.h"
#include "reference/io/user_error.h"

namespace touchstone::cli {

namespace {

using Metadata = std::map<std::string, std::string>;

std::string value_of(const Metadata& metadata, const std::string& key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? "" : found->second;
}

void show_progress(const std::string& text) {
    if (::isatty(STDERR_FILENO) == 0) return;
    fmt::print(stderr, "\r{}\x1b[K", text);
    std::fflush(stderr);
}

/// The model: as typed, else as one of the traces says.
struct ModelChoice {
    std::string config, weights_seed;
};

ModelChoice choose_model(const BisectOptions& options, const std::vector<Metadata>& traces) {
    if (!options.config.empty()) return {options.config, options.weights_seed};
    for (const Metadata& metadata : traces) {
        const std::string config = value_of(metadata, "config");
        if (config.empty()) continue;
        return {config,
                options.weights_seed.empty() ? value_of(metadata, "weights_seed") : options.weights_seed};
    }
    throw UserError({"the trace does not say of which model it is", options.files.back(),
                     "--config with a checkpoint folder or a small preset", "for example --config tiny"});
}

/// As typed, else as THEIRS say if that is one to the bit, else exact.
std::string choose_arithmetic(const BisectOptions& options, const Metadata& theirs,
                              std::vector<std::string>& assumptions) {
    if (!options.arithmetic.empty())
        return std::string(arithmetic_name(bit_exact_arithmetic(options.arithmetic)));
    const std::string said = value_of(theirs, "arithmetic");
    for (const Arithmetic one : {Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper})
        if (said == arithmetic_name(one)) return said;
    assumptions.push_back("arithmetic=exact");
    return "exact";
}

/// The command that was typed, with what it left open filled in.
std::string command_text(const BisectOptions& options, const TraceQuestion& question,
                         const ModelChoice& model) {
    std::string text = "touchstone bisect";
    for (const std::string& file : options.files) text += " " + shell_word(file);
    text += fmt::format(" --config {}", shell_word(model.config));
    if (!model.weights_seed.empty()) text += fmt::format(" --weights-seed {}", model.weights_seed);
    text += fmt::format(" --arithmetic {}", question.arithmetic);
    if (!options.map.empty()) text += fmt::format(" --map {}", shell_word(options.map));
    if (options.force_choices) text += " --force-choices";
    return text;
}

/// With a dump, the operator alone; else the way to get one.
std::string again_text(const BisectOptions& options, const TraceQuestion& question, const ModelChoice& model,
                       const BisectResult& result) {
    const std::string command = command_text(options, question, model);
    if (!result.diagnosis || result.diagnosis->operator_name.empty()) return command;
    if (options.dump.empty()) return command + " --dump inputs.safetensors";
    const StepDiagnosis& step = *result.diagnosis;
    return fmt::format("touchstone op {} --case {} --in {} --arithmetic {}", step.operator_name,
                       shell_word(step.case_line), shell_word(options.dump), question.arithmetic);
}

/// The reference along theirs; nothing, and `question` says why, where it cannot be run.
std::optional<TensorMap> run_reference(const BisectOptions& options, const TracedPass& theirs,
                                       const TensorSource& weights, TraceQuestion& question) {
    ReferencePassOptions pass{bit_exact_arithmetic(question.arithmetic), options.force_choices, nullptr};
    pass.progress = [&](size_t call, int layer) {
        show_progress(
            fmt::format("reference: call {} of {}, layer {}", call + 1, theirs.calls().size(), layer));
    };
    return reference_pass(theirs, weights, pass, question.no_reference);
}

/// With the other trace as the reference, or the reference run here, or none.
BisectResult run_bisection(const BisectOptions& options, const TracedPass& theirs,
                           const std::optional<TracedFile>& reference_trace, const TensorSource& weights,
                           TraceQuestion& question) {
    std::optional<TensorMap> made;
    std::optional<TracedPass> reference;
    if (reference_trace)
        reference.emplace(weights.config(), reference_trace->tensors(), reference_trace->where());
    else if ((made = run_reference(options, theirs, weights, question)))
        reference.emplace(weights.config(), views_of(*made), "the reference");
    BisectSettings settings{bit_exact_arithmetic(question.arithmetic), nullptr};
    settings.progress = [](const TracedCall& call, int layer) {
        show_progress(fmt::format("steps: call at position {}, layer {}", call.first_position, layer));
    };
    return bisect(theirs, reference ? &*reference : nullptr, weights, settings);
}

void write_files(const BisectOptions& options, const TraceQuestion& question, const BisectResult& result) {
    if (!options.svg.empty()) write_file_atomically(options.svg, growth_svg(question, result));
    if (!options.dump.empty() && result.diagnosis && !result.diagnosis->operator_name.empty())
        write_tensors(options.dump, result.diagnosis->inputs, result.diagnosis->case_line);
}

}  // namespace

int bisect_trace(const BisectOptions& options) {
    const TracedFile their_trace(options.files.back(), options.map);
    std::optional<TracedFile> reference_trace;
    std::vector<Metadata> said{their_trace.metadata()};
    if (options.files.size() == 2) {
        if (options.force_choices)
            throw UserError({"--force-choices beside a reference", "--force-choices",
                             "a reference that is run here", "leave REFERENCE out"});
        said.push_back(reference_trace.emplace(options.files.front(), "").metadata());
    }
    TraceQuestion question;
    question.theirs = options.files.back();
    if (options.files.size() == 2) question.reference = options.files.front();
    const ModelChoice model = choose_model(options, said);
    question.config = model.config;
    const std::unique_ptr<TensorSource> weights =
        open_source(model.config, model.weights_seed, question.assumptions);
    question.arithmetic = choose_arithmetic(options, their_trace.metadata(), question.assumptions);

    const TracedPass theirs(weights->config(), their_trace.tensors(), their_trace.where());
    question.calls = theirs.calls();
    question.unknown_names = theirs.unknown_names();
    for (const std::string& rule : their_trace.unused_rules())
        fmt::print(stderr, "touchstone: warning: no tensor fits the rule {}\n", rule);
    const BisectResult result = run_bisection(options, theirs, reference_trace, *weights, question);
    show_progress("");
    if (result.compared() == 0) {
        fmt::print(
            stderr,
            "touchstone: nothing to compare: no tensor of {} has its step's inputs, nor a counterpart\n",
            question.theirs);
        return 3;
    }
    question.again = again_text(options, question, model, result);
    write_files(options, question, result);
    write_result(options.json ? to_text(trace_json(question, result)) : trace_text(question, result));
    return result.diverges() ? 1 : 0;
}

}  // namespace touchstone::cli
