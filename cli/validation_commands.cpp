#include "cli/validation_commands.h"

#include <memory>
#include <string>
#include <vector>

#include "cli/commands.h"

namespace touchstone::cli {

namespace {

void add_golden_store_option(CLI::App& command, GoldenOptions& options) {
    command.add_option("--store", options.store,
                       "Folder of the store (default: $TOUCHSTONE_GOLDEN, or golden/ of the checkout)");
}

void add_golden_list(CLI::App& golden, int& exit_code) {
    auto options = std::make_shared<GoldenOptions>();
    CLI::App* command = golden.add_subcommand(
        "list", "Stored cases, what each trips, their files and bytes; coverage by operator and profile");
    command->add_option("regex", options->regex, "Only cases in whose text this is found");
    add_golden_store_option(*command, *options);
    CLI::Option* json_flag =
        command->add_flag("--json", options->output.json, "One JSON object (schema touchstone.golden/1)");
    command->add_flag("--csv", options->output.csv, "The cases as CSV")->excludes(json_flag);
    command->footer(
        "Examples:\n"
        "  touchstone golden list\n"
        "  touchstone golden list '^top_k.*fill=ties' --csv");
    command->callback([options, &exit_code] { exit_code = run_golden_list(*options); });
}

void add_golden_verify(CLI::App& golden, int& exit_code) {
    auto options = std::make_shared<GoldenOptions>();
    CLI::App* command = golden.add_subcommand(
        "verify",
        "Runs stored cases and compares inputs and outputs, bit for bit (exit 1: something differs)");
    command->add_option("regex", options->regex, "Only cases in whose text this is found");
    command->add_option("--case", options->case_text, "This case alone, as differences print it");
    command->add_option("--arithmetic", options->arithmetic,
                        "Only the bits of exact, hopper or released_hopper");
    add_golden_store_option(*command, *options);
    command->add_flag("--json", options->output.json, "One JSON object (schema touchstone.golden/1)");
    command->footer(
        "Examples:\n"
        "  touchstone golden verify '^rms_norm'\n"
        "  touchstone golden verify --case 'rms_norm(rows=2,width=257)' --json");
    command->callback([options, &exit_code] { exit_code = run_golden_verify(*options); });
}

void add_golden_make(CLI::App& golden, int& exit_code) {
    auto options = std::make_shared<GoldenOptions>();
    CLI::App* command = golden.add_subcommand(
        "make",
        "Writes a store, or a part of one anew, and says what changed (exit 1: it was not allowed to)");
    command->add_option("regex", options->regex, "Only cases in whose text this is found");
    command->add_option("--store", options->store, "Folder of the store")->required();
    command->add_flag("--replace", options->replace, "Change what is stored already");
    command->add_flag("--json", options->output.json, "One JSON object (schema touchstone.golden/1)");
    command->footer(
        "Examples:\n"
        "  touchstone golden make --store norms '^rms_norm'\n"
        "  touchstone golden make --store norms '^rms_norm.rows=2' --replace --json");
    command->callback([options, &exit_code] { exit_code = run_golden_make(*options); });
}

void add_compare_options(CLI::App& command, CompareCommandOptions& options) {
    const auto several = [&command](const char* name, std::vector<std::string>& values, const char* text) {
        command.add_option(name, values, text)->allow_extra_args(false);
    };
    command.add_option("--tensor", options.tensor, "Regular expression: only tensors that it fits");
    several("--tolerance", options.tolerances,
            "Tolerance of all floating tensors, or REGEX:TOLERANCE of any; default: bit");
    command.add_option("--map", options.map, "File that translates B's names, a rule a line");
    several("--layout", options.layouts, "NAME=LAYOUT of a tensor of B (NAME=A:LAYOUT: of A)");
    several(
        "--scores", options.scores,
        "NAME=SCORES: the scores that an index tensor was selected from (known by themselves: of selected, "
        "indices and blocks, where order means nothing, scores beside them; of others order counts)");
    command.add_option(
        "--allow-mistrusted", options.allow_mistrusted,
        "Regular expression: floating tensors whose expectation may be constant or not finite");
    command.add_option("--html", options.html, "Write a page for a browser");
    command.add_option("--svg", options.svg, "Write a plot of errors by tensor and row");
    command.add_flag("--all", options.all, "Show equal tensors too");
}

}  // namespace

void add_golden_command(CLI::App& app, int& exit_code) {
    CLI::App* golden = app.add_subcommand(
        "golden", "Stored bits of every operator: what is there, whether this build still gives them");
    golden->require_subcommand(1);
    add_golden_list(*golden, exit_code);
    add_golden_verify(*golden, exit_code);
    add_golden_make(*golden, exit_code);
    golden->footer(
        "Examples:\n"
        "  touchstone golden list '^sparse_attention'\n"
        "  touchstone golden verify '^sparse_attention' --arithmetic hopper");
}

void add_compare_command(CLI::App& app, int& exit_code) {
    auto options = std::make_shared<CompareCommandOptions>();
    CLI::App* command = app.add_subcommand(
        "compare", "Two tensor files: bit for bit, or within a tolerance; which, where and how far (exit 1)");
    command->add_option("A", options->expected, "What is expected: safetensors, npy, or a folder of them")
        ->required();
    command->add_option("B", options->got, "What is held against it")->required();
    add_compare_options(*command, *options);
    CLI::Option* json_flag =
        command->add_flag("--json", options->output.json, "One JSON object (schema touchstone.compare/1)");
    command->add_flag("--csv", options->output.csv, "A row for every tensor as CSV")->excludes(json_flag);
    command->footer([] {
        return compare_help() +
               "Examples:\n"
               "  touchstone compare golden/parity/official_tiny/prefill100.safetensors "
               "golden/parity/official_tiny/prefill100.safetensors --tolerance 'attn:bf16_step'\n"
               "  touchstone compare golden/parity/official_tiny/alternatives.safetensors "
               "golden/parity/official_tiny/alternatives.safetensors --html report.html";
    });
    command->callback([options, &exit_code] { exit_code = run_compare(*options); });
}

void add_bisect_command(CLI::App& app, int& exit_code) {
    auto options = std::make_shared<BisectOptions>();
    CLI::App* command = app.add_subcommand(
        "bisect", "Where a forward pass or an operator's result goes wrong, in which step, and why");
    command
        ->add_option("files", options->files,
                     "[REFERENCE] THEIRS: traces (run --trace writes them), the reference run here where "
                     "it is left out. With --case: THEIRS, outputs of that case. With --in: OPERATOR THEIRS")
        ->required()
        ->expected(1, 2);
    command->add_option("--config", options->config,
                        "Folder of a checkpoint, or a small preset (default: what the trace says)");
    command->add_option("--weights-seed", options->weights_seed,
                        "Of a preset's weights (default: what the trace says)");
    command->add_option("--map", options->map, "File that translates THEIRS' names, a rule a line");
    command->add_option(
        "--arithmetic", options->arithmetic,
        "Of the reference: exact, hopper or released_hopper (default: what the trace says, or "
        "exact)");
    command->add_flag("--force-choices", options->force_choices,
                      "The reference takes THEIRS' experts and selected rows");
    command->add_option("--case", options->case_text,
                        "name(key=value,..,seed=7): THEIRS are outputs of this operator's case");
    command->add_option("--in", options->in, "Safetensors file with the inputs of OPERATOR");
    command->add_option("--dump", options->dump,
                        "Write the inputs of the operator at fault to this file, for touchstone op --in");
    command->add_option("--svg", options->svg, "Write the growth of the error from layer to layer as SVG");
    command->add_flag("--json", options->json, "One JSON object (schema touchstone.bisect/1)");
    command->footer(
        "A trace is a safetensors file; position_000100/L06.attn.qr is a tensor of layer 6 in the call whose "
        "first row\nstands at position 100, position_000100/tokens [rows] its token ids. Tensors may be "
        "missing.\n"
        "Examples:\n"
        "  touchstone run --random-tokens 20 --trace theirs.safetensors && touchstone bisect "
        "theirs.safetensors\n"
        "  touchstone op --case 'rms_norm(rows=3,width=512)' --out theirs.safetensors && "
        "touchstone bisect --case 'rms_norm(rows=3,width=512)' theirs.safetensors");
    command->callback([options, &exit_code] { exit_code = run_bisect(*options); });
}

}  // namespace touchstone::cli
