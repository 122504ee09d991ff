// A sequence's state on disk: it goes on with the same bits, in this process and in another; what does not
// belong together is refused by name (K06: a part that is left out must not load as zeros).
#include "reference/sequence_state_file.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "reference/io/safetensors.h"
#include "reference/io/safetensors_writer.h"
#include "reference/io/user_error.h"
#include "reference/numerics/tensor_hash.h"
#include "reference/replay.h"
#include "tests/small_model.h"

using namespace touchstone;
namespace fs = std::filesystem;

namespace {

constexpr Arithmetic arithmetics[]{Arithmetic::exact, Arithmetic::hopper, Arithmetic::released_hopper};

using Logits = std::vector<float>;

/// A folder of this process that goes when the test ends.
class Folder {
  public:
    Folder() : path_(fs::temp_directory_path() / fmt::format("touchstone_state_{}", ::getpid())) {
        fs::create_directories(path_);
    }
    ~Folder() { fs::remove_all(path_); }
    fs::path operator/(const std::string& name) const { return path_ / name; }

  private:
    fs::path path_;
};

Logits run(const TextModel& model, SequenceState& state, std::span<const int32_t> tokens) {
    const Request request{&state, tokens};
    return model.forward({&request, 1}).front();
}

SequenceState state_after(int64_t count, Arithmetic arithmetic = Arithmetic::exact) {
    SequenceState state(small::config());
    if (count > 0) run(small::model(arithmetic), state, small::tokens(1, count));
    return state;
}

/// What comes of ten more tokens, as text.
std::string continued(SequenceState state, Arithmetic arithmetic) {
    const TextModel model = small::model(arithmetic);
    std::string text;
    for (const int32_t token : small::tokens(2, 10)) {
        const Logits logits = run(model, state, {&token, 1});
        uint64_t hash = 0;
        for (size_t i = 0; i < logits.size(); ++i) hash += element_hash(i, float_bits(logits[i]));
        text += fmt::format("{:016x} ", hash);
    }
    return text;
}

/// A state file taken apart.
struct Parts {
    struct Part {
        std::string type;
        std::vector<int64_t> shape;
        std::vector<std::byte> bytes;
    };
    std::map<std::string, Part> tensors;

    explicit Parts(const fs::path& path) {
        const SafetensorsFile file(path);
        for (const auto& [name, tensor] : file.tensors())
            tensors[name] = {tensor.type, tensor.shape, {tensor.bytes.begin(), tensor.bytes.end()}};
    }
    void write(const fs::path& path) const {
        std::vector<SafetensorsDeclaration> declarations;
        for (const auto& [name, part] : tensors) declarations.push_back({name, part.type, part.shape});
        SafetensorsWriter writer(path, declarations);
        for (const SafetensorsDeclaration& next : std::vector(writer.tensors()))
            writer.write(next.name, tensors.at(next.name).bytes);
        writer.finish();
    }
    void set(const std::string& name, const std::vector<int64_t>& values) {
        Part& part = tensors.at(name);
        part.shape = {std::ssize(values)};
        part.bytes.resize(values.size() * sizeof(int64_t));
        std::memcpy(part.bytes.data(), values.data(), part.bytes.size());
    }
    /// As many elements as before and `change` more.
    void resize(const std::string& name, int64_t change) {
        Part& part = tensors.at(name);
        const int64_t width = std::ssize(part.bytes) / std::max<int64_t>(part.shape[0], 1);
        part.shape[0] += change;
        part.bytes.resize(static_cast<size_t>(part.shape[0] * (width > 0 ? width : 4)));
    }
};

}  // namespace

TEST_CASE("state file: a sequence goes on with the same bits") {
    const Folder folder;
    for (const Arithmetic arithmetic : arithmetics)
        for (const int64_t count : {0, 1, 2, 11, 12, 13, 30, 65}) {
            INFO(arithmetic_name(arithmetic) << ", " << count << " tokens");
            const SequenceState state = state_after(count, arithmetic);
            save_state(state, small::config(), folder / "state");
            SequenceState loaded = load_state(small::config(), folder / "state");
            REQUIRE(loaded == state);
            CHECK(continued(loaded, arithmetic) == continued(state, arithmetic));
            // Saved again: the same bytes but for history that only taking back needs.
            save_state(loaded, small::config(), folder / "again");
            CHECK(load_state(small::config(), folder / "again", 0) == state);
            // Drafts that come after loading can be taken back, what was there before cannot.
            run(small::model(arithmetic), loaded, small::tokens(3, 8));
            loaded.truncate(count);
            CHECK(loaded == state);
            if (count > 12) CHECK_THROWS_AS(loaded.truncate(count - 2), UserError);
            CHECK(loaded == state);
        }
}

// In the process that the next case starts: what TOUCHSTONE_STATE holds, continued.
TEST_CASE("state file: (child) continues" * doctest::skip()) {
    const char* path = std::getenv("TOUCHSTONE_STATE");
    REQUIRE(path != nullptr);
    for (const Arithmetic arithmetic : arithmetics)
        std::ofstream(std::string(path) + ".continued", std::ios::app)
            << continued(load_state(small::config(), path), arithmetic) << '\n';
}

// Saves one state and another over and over until it is killed.
TEST_CASE("state file: (child) saves" * doctest::skip()) {
    const char* path = std::getenv("TOUCHSTONE_STATE");
    REQUIRE(path != nullptr);
    const SequenceState a = state_after(13), b = state_after(30);
    for (;;) {
        save_state(a, small::config(), path);
        save_state(b, small::config(), path);
    }
}

namespace {

/// Starts this executable again, for one test case.
pid_t start_child(const std::string& test_case, const fs::path& state, const char* threads) {
    const std::string filter = "--test-case=" + test_case;
    const pid_t child = ::fork();
    if (child != 0) return child;
    ::setenv("TOUCHSTONE_STATE", state.c_str(), 1);
    ::setenv("OMP_NUM_THREADS", threads, 1);
    ::execl("/proc/self/exe", "/proc/self/exe", filter.c_str(), "--no-skip", "--minimal",
            static_cast<char*>(nullptr));
    ::_exit(127);
}

}  // namespace

TEST_CASE("state file: another process goes on with the same bits") {
    const Folder folder;
    const SequenceState state = state_after(31);
    save_state(state, small::config(), folder / "state");
    const pid_t child = start_child("state file: (child) continues", folder / "state", "3");
    int status = 0;
    REQUIRE(::waitpid(child, &status, 0) == child);
    REQUIRE(status == 0);
    std::string expected, line, found;
    for (const Arithmetic arithmetic : arithmetics) expected += continued(state, arithmetic) + '\n';
    std::ifstream file(folder / "state.continued");
    while (std::getline(file, line)) found += line + '\n';
    CHECK(found == expected);
}

TEST_CASE("state file: a process that is killed leaves a whole file or none") {
    const Folder folder;
    const SequenceState a = state_after(13), b = state_after(30);
    for (int i = 0; i < 6; ++i) {
        const pid_t child = start_child("state file: (child) saves", folder / "state", "1");
        const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (!fs::exists(folder / "state") && std::chrono::steady_clock::now() < give_up)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::this_thread::sleep_for(std::chrono::microseconds(997 * i));
        ::kill(child, SIGKILL);
        REQUIRE(::waitpid(child, nullptr, 0) == child);
        const SequenceState found = load_state(small::config(), folder / "state");
        CHECK((found == a || found == b));
        if (i % 2 == 0) fs::remove(folder / "state");
    }
}

TEST_CASE("state file: windows that begin late come back as they are") {
    const Folder folder;
    const TextModel model = small::model(Arithmetic::exact);
    const std::vector<int32_t> tokens = small::tokens(4, 60);
    const auto check = [&](SequenceState state) {
        save_state(state, small::config(), folder / "state");
        SequenceState loaded = load_state(small::config(), folder / "state");
        REQUIRE(loaded == state);
        CHECK(continued(loaded, Arithmetic::exact) == continued(state, Arithmetic::exact));
        run(model, loaded, std::span(tokens).first(5));
        loaded.truncate(state.tokens());
        CHECK(loaded == state);
    };
    // Bounded replay of a prompt, whole and between two chunks, when decoder layers have seen nothing yet.
    for (const int64_t chunk : {7, 60}) {
        SequenceState state(small::config());
        PrefillOptions options;
        options.mode = ReplayMode::bounded;
        options.chunk_tokens = chunk;
        prefill(model, state, std::span(tokens).first(41), options);
        check(state);
        const std::vector<LayerRange> ranges =
            replay_ranges(small::config(), ReplayMode::bounded, BoundaryReading::truncated, 200);
        SequenceState midway(small::config());
        ForwardOptions forward;
        forward.ranges = ranges;
        const Request request{&midway, std::span(tokens).first(static_cast<size_t>(chunk))};
        model.forward({&request, 1}, forward);
        REQUIRE(midway.window(9).end() == 0);
        check(midway);
    }
    // A prefix without windows, and one whose last tokens were replayed.
    SequenceState state(small::config());
    run(model, state, std::span(tokens).first(40));
    state.drop_windows();
    check(state);
    prefill_after_hit(model, state, std::span(tokens).first(44), 3);
    REQUIRE(state.window(0).first() == 37);
    check(state);
}

TEST_CASE("state file: a tensor that is missing, unknown, of another type or size is refused by name") {
    const Folder folder;
    const SequenceState state = state_after(31);
    save_state(state, small::config(), folder / "state");
    const Parts whole(folder / "state");
    REQUIRE(whole.tensors.size() == 3 + 2 * 10 + 5 * 3);
    const auto refused = [&](const Parts& parts, const std::string& name) {
        parts.write(folder / "changed");
        INFO(name);
        CHECK_THROWS_WITH_AS(load_state(small::config(), folder / "changed"), doctest::Contains(name.c_str()),
                             UserError);
        CHECK_THROWS_WITH_AS(load_state(small::config(), folder / "changed"),
                             doctest::Contains((folder / "changed").c_str()), UserError);
    };
    for (const auto& entry : whole.tensors) {
        const std::string& name = entry.first;
        Parts missing = whole;
        missing.tensors.erase(name);
        refused(missing, name);
        Parts another_type = whole;
        another_type.tensors[name].type = entry.second.type == "U8"    ? "I8"
                                          : entry.second.type == "I64" ? "F64"
                                                                       : "U32";
        refused(another_type, name);
        if (name == "config") continue;
        for (const int64_t change : {-1, 1}) {
            Parts resized = whole;
            if (resized.tensors[name].shape[0] + change < 0) continue;
            resized.resize(name, change);
            if (name == "engram_history" && change < 0) continue;  // more than is looked back on is kept
            if (name == "engram_history") resized.resize(name, 31);
            refused(resized, name);
        }
    }
    for (const char* name : {"window.10", "source.0.main", "draft_window.0", "tokens2"}) {
        Parts more = whole;
        more.tensors[name] = {"U8", {4}, std::vector<std::byte>(4)};
        refused(more, name);
    }
    // Emptied, not dropped: an open group must not load as none, nor as zeros of another count.
    for (const char* name : {"source.2.open_kv", "source.2.open_score", "source.4.main", "window.3",
                             "engram_history", "tokens"}) {
        Parts emptied = whole;
        emptied.resize(name, -emptied.tensors[name].shape[0]);
        refused(emptied, name);
    }
}

TEST_CASE("state file: numbers at odds with each other are refused by name") {
    const Folder folder;
    save_state(state_after(31), small::config(), folder / "state");
    const Parts whole(folder / "state");
    const auto refused = [&](const std::string& name, const std::vector<int64_t>& values,
                             const std::string& says) {
        INFO(name);
        Parts changed = whole;
        changed.set(name, values);
        changed.write(folder / "changed");
        CHECK_THROWS_WITH_AS(load_state(small::config(), folder / "changed"), doctest::Contains(says.c_str()),
                             UserError);
    };
    constexpr int64_t most = std::numeric_limits<int64_t>::max();
    for (const int64_t tokens : {int64_t{-1}, int64_t{513}, most, most - 62, -most})
        refused("tokens", {tokens}, "tensor tokens");
    refused("tokens", {30}, "window.0.positions");  // windows end beyond it
    // More rows than were saved fill as many pages: without the number of rows they would load as zeros.
    for (const int64_t tokens : {32, 33, 63, 65}) refused("tokens", {tokens}, "source.2.rows");
    for (const int64_t rows : {14, 16, 0, -15}) refused("source.2.rows", {rows}, "source.2.rows");
    refused("source.6.rows", {30}, "source.6.rows");
    refused("tokens", {2}, "engram_history");
    const std::string positions = "window.4.positions";
    for (const std::vector<int64_t>& wrong : std::vector<std::vector<int64_t>>{
             {20, 32}, {31, 30}, {-1, 3}, {18, 31}, {0, 31}, {most, most}, {-most, most}, {25}, {19, 31, 31}})
        refused(positions, wrong, positions);

    Parts changed = whole;
    std::vector<std::byte>& history = changed.tensors.at("engram_history").bytes;
    for (const int32_t id : {64, -2, 1 << 30}) {
        std::memcpy(history.data() + history.size() - 4, &id, 4);
        changed.write(folder / "changed");
        CHECK_THROWS_WITH_AS(load_state(small::config(), folder / "changed"),
                             doctest::Contains("engram_history"), UserError);
    }
}

TEST_CASE("state file: of another configuration, cut short, or of a failed call") {
    const Folder folder;
    SequenceState state = state_after(13);
    save_state(state, small::config(), folder / "state");
    ModelConfig other = small::config();
    other.rms_norm_eps = 1e-6;
    CHECK_THROWS_WITH_AS(load_state(other, folder / "state"), doctest::Contains("another configuration"),
                         UserError);
    CHECK_THROWS_WITH_AS(save_state(state, other, folder / "other"),
                         doctest::Contains("another configuration"), UserError);
    CHECK_FALSE(fs::exists(folder / "other"));
    CHECK_THROWS_AS(load_state(small::config(), folder / "none"), UserError);

    const auto size = fs::file_size(folder / "state");
    for (const auto kept :
         {size - 1, size - 4, size / 2, size / 10, uintmax_t{9}, uintmax_t{8}, uintmax_t{0}}) {
        fs::copy_file(folder / "state", folder / "cut", fs::copy_options::overwrite_existing);
        fs::resize_file(folder / "cut", kept);
        CHECK_THROWS_WITH_AS(load_state(small::config(), folder / "cut"), doctest::Contains("cut"),
                             UserError);
    }
    // A save that is refused leaves what was there.
    state.begin_call();
    CHECK_THROWS_WITH_AS(save_state(state, small::config(), folder / "state"), doctest::Contains("half-way"),
                         UserError);
    CHECK(load_state(small::config(), folder / "state") == state_after(13));
    CHECK_THROWS_AS(save_state(state_after(2), small::config(), folder / "no_folder/state"), UserError);
}
