// touchstone golden as its users meet it: list, verify, make, exit codes, what a failure prints.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "command_line.h"
#include "golden/store/manifest.h"

using namespace touchstone;
using namespace touchstone::command_line;

namespace {

/// A new store of a few cases, in a folder of its own.
std::string made_store(const std::string& name,
                       const std::string& regex = "'^(sinkhorn.rows=4,|top_k.rows=8,)'") {
    const std::string folder = (scratch() / name).string();
    const Result result = run_touchstone("golden make --store " + folder + " " + regex);
    INFO(result.err);
    REQUIRE(result.exit_code == 0);
    return folder;
}

std::string last_line(const std::string& text) {
    const size_t end = text.find_last_not_of('\n');
    const size_t begin = text.rfind('\n', end);
    return text.substr(begin + 1, end - begin);
}

/// Replaces the first `from` of a file, and signs the store anew.
void alter(const std::string& folder, const std::string& path, const std::string& from,
           const std::string& to) {
    std::string text = command_line::read_file(fs::path(folder) / path);
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, from.size(), to);
    std::ofstream(fs::path(folder) / path, std::ios::binary) << text;
    Manifest manifest = *parse_manifest(command_line::read_file(fs::path(folder) / manifest_name));
    manifest[path] = sha256_of(text);
    std::ofstream(fs::path(folder) / manifest_name, std::ios::binary) << manifest_text(manifest);
}

/// In the table of sinkhorn: the first output hash is another.
void spoil(const std::string& folder) {
    const std::string table = command_line::read_file(fs::path(folder) / "sinkhorn/hashes.tsv");
    const size_t at = table.find("\texact\tcomb=");
    const size_t colon = table.find(':', table.find('[', at));
    const std::string line = table.substr(at, colon + 17 - at);
    std::string other = line;
    other.back() = other.back() == '0' ? '1' : '0';
    alter(folder, "sinkhorn/hashes.tsv", line, other);
}

}  // namespace

TEST_CASE("golden verify: every case is equal, a line each and a summary") {
    const std::string folder = made_store("equal");
    const Result result =
        run_touchstone("golden verify '^(sinkhorn.rows=4,|top_k.rows=8,)' --store " + folder);
    CHECK(result.exit_code == 0);
    CHECK(result.err.empty());
    CHECK(result.out.find("equal         sinkhorn(rows=4,") != std::string::npos);
    const std::string summary = last_line(result.out);
    CHECK(summary.starts_with("golden: cases="));
    CHECK(summary.find(" input_drift=0 output_drift=0 missing=0 unlisted=0 damaged=0 stale=0 refused=0") !=
          std::string::npos);
    const json object = run_json("golden verify '^sinkhorn.rows=4,' --store " + folder);
    CHECK(object["schema"] == "touchstone.golden/1");
    CHECK(object["counts"]["equal"] == object["cases"]);
    CHECK(object["findings"].size() == object["cases"]);
    CHECK(object["reproduce"].is_null());
}

TEST_CASE("golden verify: a failure says what differs, and its last line reproduces it") {
    const std::string folder = made_store("drift");
    spoil(folder);
    const Result result =
        run_touchstone("golden verify '^(sinkhorn.rows=4,|top_k.rows=8,)' --store " + folder);
    CHECK(result.exit_code == 1);
    CHECK(result.out.find("OUTPUT DRIFT  sinkhorn(") != std::string::npos);
    CHECK(result.out.find("    exact/comb: F32[") != std::string::npos);
    CHECK(result.out.find(" output_drift=1 ") != std::string::npos);
    CHECK(result.out.find("\n1 not equal:\nOUTPUT DRIFT  ") != std::string::npos);
    const std::string command = last_line(result.out);
    CHECK(command.starts_with("touchstone golden verify --case 'sinkhorn("));
    const Result again = run_touchstone(command.substr(std::string("touchstone ").size()));
    CHECK(again.exit_code == 1);
    CHECK(again.out.find("golden: cases=1 ") != std::string::npos);
    CHECK(last_line(again.out) == command);
    const Result other = run_touchstone("golden verify '^top_k.rows=8,' --store " + folder);
    CHECK(other.exit_code == 0);

    const Result as_json = run_touchstone("golden verify --json '^sinkhorn.rows=4,' --store " + folder);
    CHECK(as_json.exit_code == 1);
    const json object = json::parse(as_json.out);
    CHECK(object["counts"]["output_drift"] == 1);
    CHECK(object["reproduce"].get<std::string>().starts_with("touchstone golden verify --case "));
    const auto drift = std::ranges::find_if(
        object["findings"], [](const json& finding) { return finding["status"] == "output_drift"; });
    REQUIRE(drift != object["findings"].end());
    CHECK((*drift)["changes"][0]["slot"] == "exact/comb");
}

TEST_CASE("golden verify: of a case that no longer can be read, the last line finds it all the same") {
    const std::string folder = made_store("gone", "'^top_k.rows=8,'");
    const std::string table = command_line::read_file(fs::path(folder) / "top_k/hashes.tsv");
    const size_t begin = table.find("\ntop_k(") + 1;
    const std::string stored = table.substr(begin, table.find('\t', begin) - begin);
    const std::string renamed = "top_k(lines=8,eps=1e+06,seed=7)";
    std::string altered = table;
    for (size_t at; (at = altered.find(stored)) != std::string::npos;)
        altered.replace(at, stored.size(), renamed);
    alter(folder, "top_k/hashes.tsv", table, altered);
    const Result result = run_touchstone("golden verify '^top_k.(lines|rows=8,)' --store " + folder);
    CHECK(result.exit_code == 1);
    CHECK(result.out.find("REFUSED       " + renamed) != std::string::npos);
    const std::string command = last_line(result.out);
    CHECK(command.find(R"('^top_k\(lines=8,eps=1e\+06,seed=7\)$')") != std::string::npos);
    const Result again = run_touchstone(command.substr(std::string("touchstone ").size()));
    CHECK(again.exit_code == 1);
    CHECK(again.out.find("REFUSED       " + renamed) != std::string::npos);
    CHECK(again.out.find("golden: cases=1 ") != std::string::npos);
    CHECK(last_line(again.out) == command);
}

TEST_CASE("golden verify: at most ten failures are repeated") {
    const std::string folder = made_store("many", "'^top_k.rows=8,'");
    const Result result = run_touchstone("golden verify '^top_k' --store " + folder);  // the others are stale
    CHECK(result.exit_code == 1);
    CHECK(result.out.find(" not equal, the first 10:\n") != std::string::npos);
    const std::string repeated = result.out.substr(result.out.find(" not equal"));
    CHECK(std::ranges::count(repeated, '\n') == 12);
}

TEST_CASE("golden verify: a damaged file is named, and so is its operator") {
    const std::string folder = made_store("damaged");
    const fs::path path = fs::path(folder) / "top_k/hashes.tsv";
    std::string bytes = command_line::read_file(path);
    bytes[300] = static_cast<char>(bytes[300] ^ 1);
    std::ofstream(path, std::ios::binary) << bytes;
    const Result result =
        run_touchstone("golden verify '^(sinkhorn.rows=4,|top_k.rows=8,)' --store " + folder);
    CHECK(result.exit_code == 1);
    CHECK(result.out.find("DAMAGED       top_k/hashes.tsv: its SHA-256") != std::string::npos);
    CHECK(result.out.find("DRIFT") == std::string::npos);
    CHECK(last_line(result.out).starts_with("touchstone golden verify '^top_k\\(' --store "));
}

TEST_CASE("golden: where there is no store, or none of its cases is meant, the exit code is 3") {
    const Result none = run_touchstone("golden verify --store " + (scratch() / "nowhere").string());
    CHECK(none.exit_code == 3);
    CHECK(none.out.empty());
    CHECK(none.err.find("no golden store at") != std::string::npos);
    CHECK(run_touchstone("golden list --store " + (scratch() / "nowhere").string()).exit_code == 3);
    const std::string folder = made_store("few");
    CHECK(run_touchstone("golden verify '^nothing' --store " + folder).exit_code == 3);
    CHECK(run_touchstone("golden verify --case 'top_k(rows=9)' --store " + folder).exit_code == 3);
    CHECK(run_touchstone("golden list '^nothing' --store " + folder).exit_code == 3);
}

TEST_CASE("golden: the store is that of --store, then of the environment, then of the checkout") {
    const std::string good = made_store("environment"), spoiled = made_store("spoiled");
    spoil(spoiled);
    setenv("TOUCHSTONE_GOLDEN", spoiled.c_str(), 1);
    const std::string verify = "golden verify '^sinkhorn.rows=4,'";
    CHECK(run_touchstone(verify).exit_code == 1);
    CHECK(run_touchstone(verify + " --store " + good).exit_code == 0);
    setenv("TOUCHSTONE_GOLDEN", (scratch() / "nowhere").c_str(), 1);
    CHECK(run_touchstone(verify).exit_code == 3);
    unsetenv("TOUCHSTONE_GOLDEN");
    CHECK(run_touchstone(verify).exit_code == 0);
}

TEST_CASE("golden list: cases, what they trip, bytes, and coverage by operator and profile") {
    const std::string folder = made_store("listed");
    const Result text = run_touchstone("golden list --store " + folder);
    CHECK(text.exit_code == 0);
    CHECK(text.out.find("no step after the first columns") != std::string::npos);
    CHECK(text.out.find("\nCoverage\n") != std::string::npos);
    const json object = run_json("golden list --store " + folder);
    CHECK(object["schema"] == "touchstone.golden/1");
    int64_t bytes = 0;
    for (const json& one : object["cases"]) bytes += one["bytes"].get<int64_t>();
    int64_t covered = 0;
    for (const json& one : object["coverage"]) covered += one["cases"].get<int64_t>();
    CHECK(bytes > 1000);
    CHECK(covered == std::ssize(object["cases"]));
    CHECK(object["coverage"].size() >= 30);
    CHECK(object["coverage"]["rope"]["cases"] == 0);
    CHECK(object["coverage"]["top_k"]["profiles"]["exact"] == object["coverage"]["top_k"]["cases"]);
    const Result csv = run_touchstone("golden list '^top_k' --csv --store " + folder);
    CHECK(std::ranges::count(csv.out, '\n') == object["coverage"]["top_k"]["cases"].get<int64_t>() + 1);
}

TEST_CASE("golden make: nothing is replaced without --replace; with it, what changed is printed") {
    const std::string folder = made_store("replaced");
    const std::string before = command_line::read_file(fs::path(folder) / manifest_name);
    spoil(folder);
    const std::string spoiled = command_line::read_file(fs::path(folder) / manifest_name);
    const std::string make = "golden make '^sinkhorn.rows=4,' --store " + folder;
    const Result refused = run_touchstone(make);
    CHECK(refused.exit_code == 1);
    CHECK(refused.out.find("changed    sinkhorn(rows=4,") != std::string::npos);
    CHECK(refused.out.find("    exact/comb: F32[") != std::string::npos);
    CHECK(refused.out.find("Nothing was written") != std::string::npos);
    CHECK(command_line::read_file(fs::path(folder) / manifest_name) == spoiled);
    const Result done = run_touchstone(make + " --replace");
    CHECK(done.exit_code == 0);
    CHECK(done.out.find("changed    sinkhorn(rows=4,") != std::string::npos);
    CHECK(last_line(done.out).find(" added=0 changed=1 removed=0 rewritten=0 ") != std::string::npos);
    CHECK(command_line::read_file(fs::path(folder) / manifest_name) == before);
    const json object = run_json(make);
    CHECK(object["written"] == true);
    CHECK(object["changes"].empty());
}

TEST_CASE("golden make: a process that is stopped while it writes leaves no file behind") {
    const fs::path folder = scratch() / "stopped";
    const auto make = [&](const std::string& before, const std::string& cases) {
        const std::string command = "ulimit -c 0; ulimit -f 8; " + before + " " + TOUCHSTONE_BINARY +
                                    " golden make '" + cases + "' --store " + folder.string() +
                                    " >/dev/null 2>&1";
        return std::system(command.c_str());
    };
    // Files may grow to 8 blocks; the write behind that fails, or ends the process.
    CHECK(make("trap '' XFSZ;", "^sparse_attention") != 0);
    CHECK(fs::is_empty(folder));
    CHECK(make("", "^sparse_attention") != 0);
    for (const fs::directory_entry& entry : fs::directory_iterator(folder))
        CHECK(entry.path().filename() == ".replacement.partial");
    CHECK(run_touchstone("golden verify --store " + folder.string()).exit_code == 3);
    CHECK(run_touchstone("golden make '^greedy_token.vocabulary=2,' --store " + folder.string()).exit_code ==
          0);
    CHECK_FALSE(fs::exists(folder / ".replacement.partial"));
    CHECK(
        run_touchstone("golden verify '^greedy_token.vocabulary=2,' --store " + folder.string()).exit_code ==
        0);
}

TEST_CASE("golden: what cannot be understood is refused") {
    const std::string folder = made_store("refusing");
    check_refused("golden verify '(' --store " + folder, {"regular expression"});
    check_refused("golden verify --case 'top_k(row=1)' --store " + folder, {"\"row\"", "--case"});
    check_refused("golden verify --arithmetic truth --store " + folder, {"unknown arithmetic", "hopper"});
    check_refused("golden make '^nothing' --store " + folder, {"no case"});
    check_refused("golden make '^sinkhorn' --store /proc/nowhere", {"/proc/nowhere"});
    CHECK(run_touchstone("golden make").exit_code == 2);
    CHECK(run_touchstone("golden").exit_code == 2);
}
