// touchstone: exit codes 0 all checks passed, 1 a check failed, 2 usage or bad input, 3 nothing could be
// compared, 4 internal error. stdout carries the result only.
#include <fmt/format.h>

#include <exception>

#include "cli/commands.h"
#include "reference/io/user_error.h"

namespace {

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

}  // namespace

int main(int argc, char** argv) {
    CLI::App app{
        "Touchstone: what DeepSeek-V4.1-Flash's memory costs, from the layouts that its bytes are packed "
        "with."};
    app.name("touchstone");
    app.set_version_flag("--version", TOUCHSTONE_VERSION);
    app.require_subcommand(1);
    touchstone::cli::add_kv_command(app);
    touchstone::cli::add_layers_command(app);
    touchstone::cli::add_replay_command(app);
    app.footer(
        "Every command has --help with examples, --json and --csv.\n"
        "Models are preset names or a path to a config.json.");
    try {
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
    } catch (const std::exception& error) {
        fmt::print(stderr, "touchstone: internal error: {}\n", error.what());
        return exit_internal;
    }
    return 0;
}
