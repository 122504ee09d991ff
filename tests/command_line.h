// The program as a new user types it: runs TOUCHSTONE_BINARY in a shell and keeps what it says.
#pragma once

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

namespace touchstone::command_line {

using nlohmann::json;
namespace fs = std::filesystem;

struct Result {
    int exit_code;
    std::string out;
    std::string err;
};

inline std::string read_file(const fs::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
}

/// A folder of this process that is removed at exit.
inline const fs::path& scratch() {
    static const struct Folder {
        fs::path path = fs::temp_directory_path() / ("touchstone_test_" + std::to_string(getpid()));
        Folder() { fs::create_directories(path); }
        ~Folder() { fs::remove_all(path); }
    } folder;
    return folder.path;
}

inline Result run_touchstone(const std::string& arguments) {
    const fs::path out = scratch() / "out", err = scratch() / "err";
    const std::string command = std::string(TOUCHSTONE_BINARY) + " " + arguments + " >" + out.string() +
                                " 2>" + err.string() + " </dev/null";
    const int status = std::system(command.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, read_file(out), read_file(err)};
}

inline json run_json(const std::string& arguments) {
    const Result result = run_touchstone(arguments + " --json");
    INFO("touchstone " << arguments << " --json\n" << result.err);
    REQUIRE(result.exit_code == 0);
    CHECK(result.err.empty());
    return json::parse(result.out);
}

/// Exit 2, nothing on stdout, and every fragment in the message.
inline void check_refused(const std::string& arguments, const std::vector<std::string>& fragments) {
    const Result result = run_touchstone(arguments);
    INFO("touchstone " << arguments << "\n" << result.err);
    CHECK(result.exit_code == 2);
    CHECK(result.out.empty());
    CHECK(result.err.starts_with("touchstone: error: "));
    for (const std::string& fragment : fragments) {
        CAPTURE(fragment);
        CHECK(result.err.find(fragment) != std::string::npos);
    }
}

inline std::string write_file(const std::string& name, const std::string& text) {
    const fs::path path = scratch() / name;
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
}

}  // namespace touchstone::command_line
