// The subcommands: what their options hold and the functions that answer. main.cpp binds the options.
#pragma once

#include <string>

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

/// Each writes its result to stdout, whole or not at all. Throws UserError for what the user can mend.
void run_kv(const KvOptions& options);
void run_layers(const LayersOptions& options);
void run_replay(const ReplayOptions& options);

}  // namespace touchstone::cli
