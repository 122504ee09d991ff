// touchstone: exit codes 0 all checks passed, 1 a check failed, 2 usage or bad input, 3 nothing could be
// compared, 4 internal error. stdout carries the result only.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <memory>
#include <new>

#include "cli/commands.h"
#include "cli/validation_commands.h"
#include "reference/io/user_error.h"
#include "reference/numerics/isa.h"

namespace {

using namespace touchstone::cli;

constexpr int exit_usage = 2;
constexpr int exit_internal = 4;

/// A first word that is no subcommand gets a did-you-mean instead of CLI11's list of leftovers.
void check_command(const CLI::App& app, int argc, char** argv) {
    if (argc < 2 || argv[1][0] == '-') return;
    std::vector<std::string> names;
    for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
        names.push_back(command->get_name());
    if (std::find(names.begin(), names.end(), argv[1]) != names.end()) return;
    std::string expected;
    for (const std::string& name : names) expected += (expected.empty() ? "" : ", ") + name;
    const std::string near = touchstone::did_you_mean(argv[1], names);
    throw touchstone::UserError(
        {fmt::format("unknown command \"{}\"", argv[1]), "", expected,
         near.empty() ? "see touchstone --help" : fmt::format("did you mean \"{}\"?", near)});
}

void add_kv_command(CLI::App& app) {
    auto options = std::make_shared<KvOptions>();
    CLI::App* command =
        app.add_subcommand("kv", "Bytes of KV memory per token, context and request, module by module");
    command->add_option("--model", options->model, "Preset name or path to a config.json")
        ->capture_default_str();
    command->add_option("--format", options->format,
                        "Storage format of the caches (default: the model's own)");
    command->add_option("--context", options->context,
                        "Tokens in the context, 0 to 2^40; suffixes K, M, G (1K = 1024)");
    command->add_option("--requests", options->requests, "Requests of that context held at once");
    command->add_option("--budget", options->budget, "Memory for KV, e.g. 80GiB: how many requests fit");
    command->add_option("--compare", options->compare, "Models to set beside it, separated by commas");
    command->add_option(
        "--new-tokens", options->new_tokens,
        "Tokens per turn, separated by commas: bytes that each turn leaves in persistent storage");
    command
        ->add_option("--compressor-rows", options->compressor_rows,
                     "fp32 rows charged for open compression groups: minimal, group or ring")
        ->capture_default_str();
    command->add_option("--draft", options->draft, "Count the drafter's windows: on or off")
        ->capture_default_str();
    command->add_flag("--chain", options->chain,
                      "The four steps from V4-Flash's bytes per token to V4.1-Flash's");
    CLI::Option* json_flag =
        command->add_flag("--json", options->output.json, "One JSON object (schema touchstone.kv/1)");
    command->add_flag("--csv", options->output.csv, "The table asked for as CSV")->excludes(json_flag);
    command->footer(
        "Examples:\n"
        "  touchstone kv --context 1M --compare deepseek-v4-flash,deepseek-v3.2\n"
        "  touchstone kv --format fp8 --context 128K --budget 80GiB --json");
    command->callback([options] { run_kv(*options); });
}

void add_layers_command(CLI::App& app) {
    auto options = std::make_shared<LayersOptions>();
    CLI::App* command =
        app.add_subcommand("layers", "What each layer does: mode, ratio, whose KV, whose selection; weights");
    command->add_option("--model", options->model, "Preset name or path to a config.json")
        ->capture_default_str();
    command->add_flag("--weights", options->weights,
                      "Parameters and bytes by component, active parameters, step traffic");
    CLI::Option* json_flag =
        command->add_flag("--json", options->output.json, "One JSON object (schema touchstone.layers/1)");
    command->add_flag("--csv", options->output.csv, "The table as CSV")->excludes(json_flag);
    command->footer(
        "Examples:\n"
        "  touchstone layers\n"
        "  touchstone layers --weights --json");
    command->callback([options] { run_layers(*options); });
}

void add_run_command(CLI::App& app) {
    auto options = std::make_shared<RunOptions>();
    CLI::App* command =
        app.add_subcommand("run", "The whole text model: prefill, decode, traces, turn after turn");
    command
        ->add_option("--config", options->config,
                     "Folder of a checkpoint, or a small preset, whose weights are made up")
        ->capture_default_str();
    command->add_option("--tokens", options->tokens, "Token ids of the prompt, separated by commas");
    command->add_option("--random-tokens", options->random_tokens, "A prompt of that many random tokens");
    command->add_option("--decode", options->decode, "Tokens to generate behind the prompt");
    command
        ->add_option("--arithmetic", options->arithmetic,
                     "exact, hopper or released_hopper, to the bit; truth or ideal, in double")
        ->capture_default_str();
    command
        ->add_option(
            "--replay", options->replay,
            "Prefill the decoder on all rows (none), on the last window of them (bounded), or on as many "
            "as keep the last row exact (exact)")
        ->capture_default_str();
    command
        ->add_option(
            "--reading", options->reading,
            "What the decoder's first layer sees under bounded replay: A cut like the others, B windows "
            "of every row, C every row")
        ->capture_default_str();
    command->add_option(
        "--hit", options->hit,
        "Tokens of the prompt that a prefix cache has: their windows are dropped and rebuilt by "
        "replaying the last of them");
    command->add_option("--replay-tokens", options->replay_tokens,
                        "With --hit: how many are replayed (default: the window)");
    command->add_flag("--no-drift", options->no_drift,
                      "Do not run all layers on all rows beside a replay, to tell the difference");
    command->add_option("--chunk", options->chunk, "Rows per call of the prefill; no bit depends on it")
        ->capture_default_str();
    command->add_option("--trace", options->trace, "File for every named intermediate (safetensors)");
    command->add_option("--force-choices", options->force_choices,
                        "Trace whose experts and selected rows are taken instead of computed ones");
    command->add_option("--load", options->load, "State to go on from");
    command->add_option("--save", options->save, "File for the state afterwards");
    command->add_option("--temperature", options->temperature, "0: the likeliest token")
        ->capture_default_str();
    command->add_option("--seed", options->seed, "Of sampling and of --random-tokens")->capture_default_str();
    command->add_option("--weights-seed", options->weights_seed, "Of a preset's weights")
        ->capture_default_str();
    command->add_option("--top", options->top, "Tokens shown per step, 1 to 20")->capture_default_str();
    command->add_flag(
        "--released-stale-index-keys", options->stale_index_keys,
        "Score decode steps that close no group against the keys last published, as the released "
        "code does");
    command->add_flag(
        "--released-masked-rows", options->masked_rows_attended,
        "Attend rows outside the candidate pool where it has too few, as the released code does");
    CLI::Option* json_flag =
        command->add_flag("--json", options->output.json, "One JSON object (schema touchstone.run/1)");
    command->add_flag("--csv", options->output.csv, "The table as CSV")->excludes(json_flag);
    command->footer(
        "Examples:\n"
        "  touchstone run --tokens 5,17,99 --decode 4\n"
        "  touchstone run --random-tokens 100 --replay bounded --trace trace.safetensors --save turn1.state");
    command->callback([options] { run_run(*options); });
}

void add_replay_command(CLI::App& app) {
    auto options = std::make_shared<ReplayOptions>();
    CLI::App* command = app.add_subcommand(
        "replay", "Work and bytes of rebuilding sliding windows: bounded, exact and no replay");
    command
        ->add_option("--context", options->context,
                     "Tokens of the prompt, 1 to 2^40; suffixes K, M, G (1K = 1024)")
        ->required();
    command->add_option("--new", options->new_tokens,
                        "Tokens of the prompt that are new; the rest is a prefix-cache hit");
    command->add_option("--model", options->model, "Preset name or path to a config.json")
        ->capture_default_str();
    command->add_option("--format", options->format,
                        "Storage format of the caches (default: the model's own)");
    CLI::Option* json_flag =
        command->add_flag("--json", options->output.json, "One JSON object (schema touchstone.replay/1)");
    command->add_flag("--csv", options->output.csv, "The prefill table, or with --new the turn table, as CSV")
        ->excludes(json_flag);
    command->footer(
        "Examples:\n"
        "  touchstone replay --context 64K\n"
        "  touchstone replay --context 64K --new 512 --json");
    command->callback([options] { run_replay(*options); });
}

void add_checkpoint_make(CLI::App& checkpoint) {
    auto options = std::make_shared<CheckpointMakeOptions>();
    CLI::App* command = checkpoint.add_subcommand(
        "make", "Writes a synthetic checkpoint: released names, types and shapes, random numbers");
    command->add_option("--config", options->config, "Preset name or path to a config.json (V4.1)")
        ->required();
    command->add_option("--seed", options->seed, "Which numbers, 0 to 2^64 - 1")->capture_default_str();
    command->add_option("--out", options->out, "Folder to write, new or empty")->required();
    command->add_option("--layer", options->layer,
                        "Only the tensors of this layer (draft stages follow the backbone)");
    command->add_flag("--engram-tables", options->engram_tables,
                      "With --layer: the layer's Engram table too (101 GB in deepseek-v4.1-flash)");
    command->add_option("--shard-bytes", options->shard_bytes, "Tensors per file, e.g. 500MB, 5GB")
        ->capture_default_str();
    command->add_flag("--json", options->json, "One JSON object (schema touchstone.checkpoint_make/1)");
    command->footer(
        "Examples:\n"
        "  touchstone checkpoint make --config tiny --seed 1 --out tiny-checkpoint\n"
        "  touchstone checkpoint make --config deepseek-v4.1-flash --layer 3 --out layer3");
    command->callback([options] { run_checkpoint_make(*options); });
}

void add_checkpoint_verify(CLI::App& checkpoint, int& exit_code) {
    auto options = std::make_shared<CheckpointVerifyOptions>();
    CLI::App* command = checkpoint.add_subcommand(
        "verify", "Are all tensors there, with the released names, types and shapes? (exit 1: no)");
    command->add_option("folder", options->folder, "Folder with config.json and safetensors files")
        ->required();
    command->add_option("--layer", options->layer, "Only the tensors of this layer");
    command->add_flag("--values", options->values,
                      "Look for NaN scales and codes, and bf16 and fp32 that are not finite");
    command->add_flag("--json", options->json, "One JSON object (schema touchstone.checkpoint_verify/1)");
    command->footer(
        "Examples:\n"
        "  touchstone checkpoint verify tiny-checkpoint --values\n"
        "  touchstone checkpoint verify layer3 --layer 3 --json");
    command->callback([options, &exit_code] { exit_code = run_checkpoint_verify(*options); });
}

void add_checkpoint_show(CLI::App& checkpoint) {
    auto options = std::make_shared<CheckpointShowOptions>();
    CLI::App* command = checkpoint.add_subcommand(
        "show", "Tensors by component and layer; or one tensor: type, shape, first values, min, max, rms");
    command->add_option("folder", options->folder, "Folder with config.json and safetensors files")
        ->required();
    command->add_option("tensor", options->tensor, "A tensor's name, e.g. layers.0.attn.wq_a.weight");
    CLI::Option* json_flag = command->add_flag(
        "--json", options->output.json,
        "One JSON object (schema touchstone.checkpoint_show/1, of a tensor touchstone.checkpoint_tensor/1)");
    command->add_flag("--csv", options->output.csv, "The layers, or the tensor, as CSV")->excludes(json_flag);
    command->footer(
        "Examples:\n"
        "  touchstone checkpoint show tiny-checkpoint\n"
        "  touchstone checkpoint show tiny-checkpoint layers.0.attn.wq_a.weight --json");
    command->callback([options] { run_checkpoint_show(*options); });
}

void add_checkpoint_command(CLI::App& app, int& exit_code) {
    CLI::App* checkpoint =
        app.add_subcommand("checkpoint", "Makes synthetic checkpoints; verifies and shows any");
    checkpoint->require_subcommand(1);
    add_checkpoint_make(*checkpoint);
    add_checkpoint_verify(*checkpoint, exit_code);
    add_checkpoint_show(*checkpoint);
    checkpoint->footer(
        "Examples:\n"
        "  touchstone checkpoint make --config tiny --seed 1 --out small-checkpoint\n"
        "  touchstone checkpoint verify small-checkpoint --values");
}

void add_op_command(CLI::App& app, int& exit_code) {
    auto options = std::make_shared<OpOptions>();
    CLI::App* command = app.add_subcommand(
        "op", "Runs one operator of the model on a case's tensors or on those of a safetensors file");
    command->add_option("name", options->name, "Operator, e.g. rms_norm");
    command->add_flag("--list", options->list, "All operators");
    command->add_flag("--describe", options->describe,
                      "Parameters, tensors, rounding points, sums and default cases of NAME");
    command->add_option("--case", options->case_text,
                        "name(key=value,..,seed=7): makes its own inputs; with --in: parameters that are no "
                        "extent of a tensor");
    command->add_option("--in", options->in, "Safetensors file with the inputs under their names");
    command->add_option("--out", options->out, "Write the outputs to this safetensors file");
    command->add_option("--save-inputs", options->save_inputs,
                        "Write the case's inputs to this safetensors file");
    command->add_option(
        "--arithmetic", options->arithmetic,
        "exact (the default), hopper, released_hopper: bits; truth, ideal: in double, with and "
        "without the model's roundings");
    CLI::Option* json_flag =
        command->add_flag("--json", options->output.json, "One JSON object (schema touchstone.op/1)");
    command->add_flag("--csv", options->output.csv, "The table as CSV")->excludes(json_flag);
    command->footer(
        "Examples:\n"
        "  touchstone op --describe sparse_attention\n"
        "  touchstone op rms_norm --case 'rms_norm(rows=3,width=5120,seed=7)' --arithmetic exact");
    command->callback([options, &exit_code] { exit_code = run_op(*options); });
}

void add_gpu_probe(CLI::App& gpu, int& exit_code) {
    auto options = std::make_shared<GpuProbeOptions>();
    CLI::App* command = gpu.add_subcommand(
        "probe", "Does the chip obey the table of tensor-core arithmetic? Random and directed inputs");
    command
        ->add_option("--steps", options->steps,
                     "Sums of one instruction to compare, for each instruction and variant")
        ->check(CLI::Range(int64_t{1024}, int64_t{1} << 40))
        ->capture_default_str();
    command->add_option("--case", options->case_text, "Run this one case, as differences print it");
    command->add_option("--receipts", options->receipts, "Replace this file by the device's receipts");
    command->add_flag("--json", options->json, "One JSON object (schema touchstone.gpu_probe/1)");
    command->footer(
        "Examples:\n"
        "  touchstone gpu probe --receipts golden/device/probe.txt\n"
        "  touchstone gpu probe --case "
        "'tensor_core(instruction=hopper.mma.bf16,variant=registers,inputs=wide,steps=2,tiles=64,seed=1)'");
    command->callback([options, &exit_code] { exit_code = run_gpu_probe(*options); });
}

void add_gpu_check(CLI::App& gpu, int& exit_code) {
    auto options = std::make_shared<GpuCheckOptions>();
    CLI::App* command = gpu.add_subcommand(
        "check", "Elementary functions and conversions over all 2^32 inputs, and sums, GPU against CPU");
    command->add_option("name", options->name,
                        "A function or conversion, \"sums\", or a case (default: all)");
    command->add_option("--receipts", options->receipts, "Replace this file by the device's receipts");
    command->add_flag("--json", options->json, "One JSON object (schema touchstone.gpu_check/1)");
    command->footer(
        "Examples:\n"
        "  touchstone gpu check exp2\n"
        "  touchstone gpu check --receipts golden/device/check.txt");
    command->callback([options, &exit_code] { exit_code = run_gpu_check(*options); });
}

void add_gpu_cublas(CLI::App& gpu, int& exit_code) {
    auto options = std::make_shared<GpuCublasOptions>();
    CLI::App* command = gpu.add_subcommand(
        "cublas", "cuBLAS's bf16 products of the model's shapes against the CPU's, bit for bit");
    command->add_option("--receipts", options->receipts, "Replace this file by the device's receipts");
    command->add_flag("--json", options->json, "One JSON object (schema touchstone.gpu_cublas/1)");
    command->footer(
        "Examples:\n"
        "  touchstone gpu cublas\n"
        "  touchstone gpu cublas --json --receipts golden/device/cublas.txt");
    command->callback([options, &exit_code] { exit_code = run_gpu_cublas(*options); });
}

/// The commands that compare, and so can end in 1 or 3: `exit_code` is set by their callbacks.
void add_gpu_command(CLI::App& app, int& exit_code) {
    CLI::App* gpu = app.add_subcommand(
        "gpu", "Compares an NVIDIA Hopper GPU with the CPU, bit for bit (exit 3 where there is none)");
    gpu->require_subcommand(1);
    add_gpu_probe(*gpu, exit_code);
    add_gpu_check(*gpu, exit_code);
    add_gpu_cublas(*gpu, exit_code);
    gpu->footer(
        "Examples:\n"
        "  touchstone gpu probe --steps 1000000\n"
        "  touchstone gpu check exp2 --json");
}

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{
        "Touchstone: DeepSeek-V4.1-Flash to the bit, each operator and the whole text model, and what its "
        "memory costs."};
    app.name("touchstone");
    app.set_version_flag("--version", TOUCHSTONE_VERSION);
    app.require_subcommand(1);
    add_kv_command(app);
    add_layers_command(app);
    add_replay_command(app);
    add_run_command(app);
    int exit_code = 0;
    add_checkpoint_command(app, exit_code);
    add_op_command(app, exit_code);
    add_golden_command(app, exit_code);
    add_bisect_command(app, exit_code);
    add_compare_command(app, exit_code);
    add_gpu_command(app, exit_code);
    app.footer(
        "Every command has --help with examples and --json; those that print tables have --csv.\n"
        "Models are preset names or a path to a config.json.");
    try {
        touchstone::active_isa();  // a wrong TOUCHSTONE_ISA is refused here, not inside a parallel loop
        check_command(app, argc, argv);
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
        fmt::print(stderr,
                   "touchstone: error: {}\n  remedy:   see touchstone --help or touchstone COMMAND --help\n",
                   error.what());
        return exit_usage;
    } catch (const touchstone::UserError& error) {
        fmt::print(stderr, "touchstone: error: {}\n", error.what());
        return exit_usage;
    } catch (const std::bad_alloc&) {
        fmt::print(
            stderr,
            "touchstone: error: there is not enough memory for this\n  remedy:   ask for less at once\n");
        return exit_usage;
    } catch (const std::exception& error) {
        fmt::print(stderr, "touchstone: internal error: {}\n", error.what());
        return exit_internal;
    }
    return exit_code;
}
