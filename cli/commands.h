// The subcommands: what their options hold and the functions that answer. main.cpp binds the options.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace touchstone::cli {

/// What --json and --csv ask for.
struct OutputFormat {
    bool json = false;
    bool csv = false;
};

/// touchstone kv. Values are as typed; run_kv parses and refuses them.
struct KvOptions {
    std::string model = "deepseek-v4.1-flash";
    std::string format;
    std::string context;
    std::string requests;
    std::string budget;
    std::string compare;
    std::string new_tokens;
    std::string compressor_rows = "ring";
    std::string draft = "on";
    bool chain = false;
    OutputFormat output;
};

/// touchstone layers.
struct LayersOptions {
    std::string model = "deepseek-v4.1-flash";
    bool weights = false;
    OutputFormat output;
};

/// touchstone replay.
struct ReplayOptions {
    std::string model = "deepseek-v4.1-flash";
    std::string format;
    std::string context;
    std::string new_tokens;
    OutputFormat output;
};

/// touchstone checkpoint make.
struct CheckpointMakeOptions {
    std::string config;
    std::string seed = "1";
    std::string out;
    std::string layer;  ///< empty: all
    std::string shard_bytes = "5GB";
    bool engram_tables = false;
    bool json = false;
};

/// touchstone checkpoint verify.
struct CheckpointVerifyOptions {
    std::string folder;
    std::string layer;  ///< empty: all
    bool values = false;
    bool json = false;
};

/// touchstone checkpoint show.
struct CheckpointShowOptions {
    std::string folder;
    std::string tensor;  ///< empty: all of them, counted
    OutputFormat output;
};

/// touchstone run.
struct RunOptions {
    std::string config = "tiny";
    std::string tokens;
    std::string random_tokens;
    std::string decode;
    std::string arithmetic = "exact";
    std::string replay = "none";
    std::string reading = "B";
    std::string chunk = "512";
    std::string temperature = "0";
    std::string seed = "1";
    std::string weights_seed;  ///< empty: 1
    std::string top = "3";
    std::string load, save, trace, force_choices;
    std::string hit, replay_tokens;
    bool no_drift = false;
    bool stale_index_keys = false;
    bool masked_rows_attended = false;
    OutputFormat output;
};

/// touchstone op.
struct OpOptions {
    std::string name;
    bool list = false;
    bool describe = false;
    std::string case_text;
    std::string in;
    std::string out;
    std::string save_inputs;
    std::string arithmetic;  ///< empty: exact
    OutputFormat output;
};

/// touchstone golden list, verify and make.
struct GoldenOptions {
    std::string store;  ///< folder; empty: TOUCHSTONE_GOLDEN of the environment, or the checkout's golden/
    std::string regex;  ///< found in a case's text; empty: every case
    std::string case_text;   ///< verify: this case alone
    std::string arithmetic;  ///< verify: this profile alone; empty: all
    bool replace = false;    ///< make: change what is there
    OutputFormat output;
};

/// touchstone bisect. Without `case_text` and `in`, traces: a reference, if there are two files, and theirs;
/// else one operator: its name, if there are two, and theirs.
struct BisectOptions {
    std::vector<std::string> files;
    std::string case_text, in;
    std::string config;        ///< empty: what the trace says
    std::string weights_seed;  ///< empty: what the trace says
    std::string arithmetic;    ///< empty: what the trace says; of an operator, exact
    std::string map;
    std::string dump, svg;  ///< files to write
    bool force_choices = false;
    bool json = false;
};

/// touchstone gpu probe.
struct GpuProbeOptions {
    int64_t steps = 100'000'000;  ///< per instruction and variant
    std::string case_text;        ///< this case alone
    std::string receipts;         ///< file to write
    bool json = false;
};

/// touchstone gpu check.
struct GpuCheckOptions {
    std::string name;  ///< of a function, or a case; empty: all
    std::string receipts;
    bool json = false;
};

/// touchstone gpu cublas.
struct GpuCublasOptions {
    std::string receipts;
    bool json = false;
};

/// Each compares device 0 with the CPU, writes its result to stdout and returns the exit code: 0 all agree, 1
/// a difference, 3 there is no usable device (stderr says why). Throws UserError as below.
int run_gpu_probe(const GpuProbeOptions& options);
int run_gpu_check(const GpuCheckOptions& options);
int run_gpu_cublas(const GpuCublasOptions& options);

/// Writes its result to stdout and returns the exit code: 0, or 1 where a case is farther from truth than
/// allowed. Throws UserError as below.
int run_op(const OpOptions& options);

/// Each writes its result to stdout and returns the exit code: 0, 1 where something is not as stored (make:
/// would be replaced), 3 there is no store, or nothing of it was asked for. Throws UserError as below.
int run_golden_list(const GoldenOptions& options);
int run_golden_verify(const GoldenOptions& options);
int run_golden_make(const GoldenOptions& options);

/// Writes its result to stdout and returns the exit code: 0 nothing beyond rounding, 1 a divergence, 3
/// nothing could be compared. Throws UserError as below.
int run_bisect(const BisectOptions& options);

struct CompareCommandOptions {
    std::string expected, got;  ///< files or folders
    std::string tensor;
    std::vector<std::string> tolerances, layouts, scores;
    std::string map;
    std::string allow_mistrusted;
    std::string html, svg;
    bool all = false;
    OutputFormat output;
};
/// Exit code 0, 1 when a tensor fails or is mistrusted, or 3 when there is nothing to compare.
int run_compare(const CompareCommandOptions& options);
/// Tolerances and layouts, for --help.
std::string compare_help();

/// Each writes its result to stdout, whole or not at all. Throws UserError for what the user can mend.
void run_kv(const KvOptions& options);
void run_layers(const LayersOptions& options);
void run_replay(const ReplayOptions& options);
/// Files asked for are written before the result is.
void run_run(const RunOptions& options);
void run_checkpoint_make(const CheckpointMakeOptions& options);
void run_checkpoint_show(const CheckpointShowOptions& options);

/// Exit code 0, or 1 when the checkpoint is not what its configuration says.
int run_checkpoint_verify(const CheckpointVerifyOptions& options);

}  // namespace touchstone::cli
