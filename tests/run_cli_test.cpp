// touchstone run as a user types it.
#include <doctest/doctest.h>

#include <string>

#include "reference/io/safetensors.h"
#include "reference/io/safetensors_writer.h"
#include "tests/command_line.h"

using namespace touchstone;
using namespace touchstone::command_line;

namespace {

std::string file(const char* name) {
    return (scratch() / name).string();
}

/// A trace of one call of 5 rows with experts 0 and 1, and a tensor of `width` ids `id` a row, or a scalar.
std::string write_choices(const std::string& tensor, int64_t width, int32_t id) {
    const std::string path = file("choices.safetensors");
    std::vector<int32_t> experts{0, 1, 0, 1, 0, 1, 0, 1, 0, 1};
    std::vector<int32_t> ids(static_cast<size_t>(width == 0 ? 1 : 5 * width), -1);
    for (size_t i = 0; i < ids.size(); i += static_cast<size_t>(std::max<int64_t>(width, 1))) ids[i] = id;
    const std::vector<int64_t> shape = width == 0 ? std::vector<int64_t>{} : std::vector<int64_t>{5, width};
    SafetensorsWriter writer(path, {{"position_000000/L00.ffn.experts", "I32", {5, 2}},
                                    {"position_000000/" + tensor, "I32", shape}});
    writer.write("position_000000/L00.ffn.experts", std::as_bytes(std::span(experts)));
    writer.write("position_000000/" + tensor, std::as_bytes(std::span(ids)));
    writer.finish();
    return path;
}

/// The logits that the last step printed, as text: all digits, so equal text is equal bits.
json last_step(const json& run) {
    return run["steps"].back()["likeliest"];
}

}  // namespace

TEST_CASE("run: greedy decoding goes on from what it generated") {
    const json run = run_json("run --tokens 5,17,99 --decode 3");
    CHECK(run["schema"] == "touchstone.run/1");
    REQUIRE(run["steps"].size() == 4);
    REQUIRE(run["generated"].size() == 3);
    for (size_t step = 0; step < 3; ++step) {
        CHECK(run["generated"][step] == run["steps"][step]["likeliest"][0]["token"]);
        CHECK(run["steps"][step + 1]["token"] == run["generated"][step]);
        CHECK(run["steps"][step + 1]["position"] == 3 + step);
    }
    CHECK(run["assumptions"].size() == 2);  // random weights, no tokenizer
    const Result csv = run_touchstone("run --tokens 5,17,99 --decode 3 --csv");
    CHECK(csv.exit_code == 0);
    CHECK(csv.out.starts_with(
        "step,position,token,token 1,logit 1,token 2,logit 2,token 3,logit 3\r\nprefill,2,99,"));
}

TEST_CASE("run: another chunk size, another process and a saved state change no digit of a logit") {
    const std::string tokens =
        "3,1,4,1,5,9,2,6,5,3,5,8,9,7,9,3,2,3,8,4,6,2,6,4,3,3,8,3,2,7,9,5,0,2,8,8,4,1,9,7,1,6,9,3,"
        "9,9,3,7,5,1,0,5,8";  // 53: past the window of 48
    for (const std::string arithmetic : {"exact", "hopper"}) {
        CAPTURE(arithmetic);
        const std::string with = " --arithmetic " + arithmetic + " --top 20";
        const json whole = run_json("run --tokens " + tokens + with);
        CHECK(last_step(run_json("run --tokens " + tokens + " --chunk 7" + with)) == last_step(whole));
        const size_t cut = 40;  // characters: 20 tokens
        run_json("run --tokens " + tokens.substr(0, cut - 1) + " --save " + file("state") + with);
        const json second =
            run_json("run --load " + file("state") + " --tokens " + tokens.substr(cut) + with);
        CHECK(second["loaded_tokens"] == 20);
        CHECK(last_step(second) == last_step(whole));
        CHECK(second["state_bytes"] == whole["state_bytes"]);
    }
}

TEST_CASE("run: a trace names every intermediate, and its choices can be forced on another arithmetic") {
    const std::string trace = file("trace.safetensors");
    run_json("run --random-tokens 60 --decode 1 --trace " + trace);
    const SafetensorsFile made(trace);
    for (const char* name : {"L00.x_in", "L01.engram.row_ids", "L02.attn.compressor.latent",
                             "L06.attn.indexer.scores", "L06.attn.candidate_pool.blocks",
                             "L08.attn.indexer.selected", "L09.ffn.experts", "L09.x_out", "logits"}) {
        CAPTURE(name);
        CHECK(made.tensors().contains(std::string("position_000000/") + name));
        CHECK(made.tensors().contains(std::string("position_000060/") + name));
    }
    CHECK(made.tensor("position_000000/L06.attn.indexer.scores").shape == std::vector<int64_t>{60, 60});
    CHECK(made.values<int32_t>("position_000000/tokens", "I32").size() == 60);
    CHECK(made.values<int32_t>("position_000060/tokens", "I32").size() == 1);
    CHECK(made.metadata() == std::map<std::string, std::string>{{"arithmetic", "exact"},
                                                                {"config", "tiny"},
                                                                {"schema", "touchstone.trace/1"}});
    CHECK(made.tensor("position_000060/L00.attn.q").shape == std::vector<int64_t>{1, 8, 128});

    for (const std::string arithmetic : {"hopper", "truth"}) {
        const std::string forced = file("forced.safetensors");
        run_json("run --random-tokens 60 --arithmetic " + arithmetic + " --force-choices " + trace +
                 " --trace " + forced);
        const SafetensorsFile other(forced);
        const auto experts = made.values<int32_t>("position_000000/L07.ffn.experts", "I32");
        const std::string name = "position_000000/L07.ffn.experts";
        CHECK(other.values<int32_t>(name, "I32") == experts);
        const std::string selected = "position_000000/L06.attn.indexer.selected";
        CHECK(other.values<int32_t>(selected, "I32") == made.values<int32_t>(selected, "I32"));
    }
}

TEST_CASE("run: names of a trace are the same in every arithmetic") {
    run_json("run --tokens 1,2,3 --trace " + file("exact.safetensors"));
    run_json("run --tokens 1,2,3 --arithmetic ideal --trace " + file("ideal.safetensors"));
    const SafetensorsFile exact(file("exact.safetensors")), ideal(file("ideal.safetensors"));
    for (const auto& [name, tensor] : exact.tensors()) {
        CAPTURE(name);
        CHECK(ideal.tensors().contains(name));
    }
}

TEST_CASE("run: bounded replay reports its drift, exact replay has none") {
    const json bounded = run_json("run --random-tokens 100 --replay bounded");
    CHECK(bounded["drift"]["largest_of_rms"] > 0);
    const json shorter = run_json("run --random-tokens 48 --replay bounded");
    CHECK(shorter["drift"]["largest_of_rms"] == 0);  // not longer than the window: nothing is cut
    CHECK(last_step(run_json("run --random-tokens 300 --replay exact")) ==
          last_step(run_json("run --random-tokens 300")));
    CHECK(run_json("run --random-tokens 100 --replay bounded --no-drift")["drift"].is_null());
}

TEST_CASE("run: a prefix hit replays the window, and says how far that is from a cold run") {
    const json hit = run_json("run --random-tokens 150 --hit 100");
    CHECK(hit["drift"]["largest_of_rms"] > 0);
    CHECK(hit["tokens"] == 150);
    CHECK(last_step(run_json("run --random-tokens 150 --hit 100 --chunk 7")) == last_step(hit));
    CHECK(last_step(run_json("run --random-tokens 150 --hit 100 --replay-tokens 99")) != last_step(hit));
    check_refused("run --random-tokens 150 --hit 48", {"48", "longer"});
    check_refused("run --random-tokens 150 --hit 100 --replay-tokens 100", {"100", "longer"});
    check_refused("run --random-tokens 150 --hit 150", {"150", "one token behind"});
    check_refused("run --random-tokens 150 --replay-tokens 10", {"--hit"});
    check_refused("run --random-tokens 150 --hit 100 --arithmetic ideal", {"double", "--hit"});
}

TEST_CASE("run: what a user can get wrong is named, and nothing is written") {
    check_refused("run", {"no tokens", "--tokens"});
    check_refused("run --decode 3", {"no tokens", "decode step"});
    check_refused("run --tokens 512", {"512", "0 to 511"});
    check_refused("run --tokens 1,-1", {"-1"});
    check_refused("run --tokens 1,,2", {"--tokens"});
    check_refused("run --tokens 1 --random-tokens 3", {"both"});
    check_refused("run --random-tokens 513 --trace " + file("none.safetensors"), {"513", "512"});
    CHECK_FALSE(fs::exists(file("none.safetensors")));
    check_refused("run --tokens 1 --arithmetic float", {"float", "exact"});
    check_refused("run --tokens 1 --replay some", {"some", "bounded"});
    check_refused("run --tokens 1 --reading D", {"D", "A, B or C"});
    check_refused("run --tokens 1 --config deepseek-v4.1-flash", {"bytes of weights", "checkpoint"});
    check_refused("run --tokens 1 --config deepseek-v3.2", {"baseline"});
    check_refused("run --tokens 1 --arithmetic ideal --save " + file("none.state"), {"double", "--save"});
    check_refused("run --tokens 1 --load " + file("absent.state"), {"absent.state"});
    check_refused("run --tokens 1 --force-choices " + write_file("choices", "nothing"), {"choices"});
    check_refused("run --tokens 1 --temperature -1", {"--temperature"});
    check_refused("run --random-tokens 500 --decode 100", {"600", "512", "--decode"});
    check_refused("run --random-tokens 1G", {"512", "--random-tokens"});
    check_refused("run --tokens 1 --config " + std::string(300, 'x'), {"there is no model"});
    check_refused("run --tokens 1 --save " + scratch().string(), {"not a regular file"});
    check_refused("run --tokens 1 --trace /dev/null", {"/dev/null", "not a regular file"});
    run_json("run --random-tokens 60 --trace " + file("of_60.safetensors"));
    for (const char* arithmetic : {"exact", "ideal"})  // rows that 5 tokens do not have; then too few experts
        check_refused("run --random-tokens 5 --seed 2 --arithmetic " + std::string(arithmetic) +
                          " --force-choices " + write_choices("L06.attn.indexer.selected", 40, 39),
                      {"layer 6", "--force-choices"});
    check_refused("run --random-tokens 5 --force-choices " + write_choices("L06.ffn.experts", 0, 0),
                  {"shape"});
    check_refused("run --tokens 1 --trace /no/such/folder/trace", {"/no/such/folder/trace"});
    for (const fs::directory_entry& entry : fs::directory_iterator(scratch()))
        CHECK(entry.path().filename().string().find("spool") == std::string::npos);
}
