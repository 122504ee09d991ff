#include "golden/store.h"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <omp.h>
#include <unistd.h>

#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "golden/case_file.h"
#include "golden/file_replacement.h"
#include "golden/sha256.h"
#include "golden/store_make.h"
#include "golden/sweep_cases.h"
#include "reference/io/user_error.h"

using namespace touchstone;
namespace fs = std::filesystem;

namespace {

/// A few small cases of three operators; two profiles, kept tensors, hashes alone.
constexpr const char* some_cases =
    "^sinkhorn.rows=(4|16),|^top_k.rows=8,|^linear_bf16.rows=[15],outputs=(8|33),inputs=16,";

GoldenFilter taking(const std::string& regex) {
    return golden_filter("", regex, std::nullopt);
}

/// A folder of this process that is removed at exit.
const fs::path& scratch() {
    static const struct Folder {
        fs::path path =
            fs::temp_directory_path() / ("touchstone_golden_store_test_" + std::to_string(getpid()));
        Folder() { fs::create_directories(path); }
        ~Folder() { fs::remove_all(path); }
    } folder;
    return folder.path;
}

/// A new copy of one store that is made once.
fs::path copied_store() {
    static const fs::path original = [] {
        fs::path folder = scratch() / "original";
        REQUIRE(make_golden_store(folder, taking(some_cases), false).written);
        return folder;
    }();
    static int copies = 0;
    fs::path copy = scratch() / fmt::format("copy{}", copies++);
    fs::copy(original, copy, fs::copy_options::recursive);
    return copy;
}

void write(const fs::path& path, const std::string& text) {
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << text;
}

/// Every file of a folder.
std::map<std::string, std::string> files_of(const fs::path& folder) {
    std::map<std::string, std::string> files;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
        if (entry.is_regular_file())
            files[entry.path().lexically_relative(folder).generic_string()] = read_file(entry.path());
    return files;
}

/// The manifest says what the files are now: a store that another program would have made so.
void sign(const fs::path& folder) {
    Manifest manifest;
    for (const auto& [path, bytes] : files_of(folder))
        if (path != manifest_name) manifest[path] = sha256_of(bytes);
    write(folder / manifest_name, manifest_text(manifest));
}

void flip_bit(const fs::path& path, size_t byte, unsigned bit) {
    std::string bytes = read_file(path);
    bytes.at(byte) = static_cast<char>(static_cast<unsigned char>(bytes.at(byte)) ^ (1u << bit));
    write(path, bytes);
}

GoldenReport verify(const fs::path& folder, const std::string& regex = some_cases) {
    return verify_golden_store(folder, taking(regex));
}

/// All findings but the equal ones.
std::vector<GoldenFinding> problems_of(const GoldenReport& report) {
    std::vector<GoldenFinding> problems;
    for (const GoldenFinding& finding : report.findings)
        if (finding.status != GoldenStatus::equal) problems.push_back(finding);
    return problems;
}

/// Exactly one finding that is not `equal`.
GoldenFinding only_problem(const GoldenReport& report) {
    const std::vector<GoldenFinding> problems = problems_of(report);
    std::string all;
    for (const GoldenFinding& one : problems)
        all += fmt::format("{} {}: {}\n", golden_status_name(one.status), one.what, one.detail);
    CAPTURE(all);
    REQUIRE(problems.size() == 1);
    return problems.front();
}

std::string refusal(const std::function<void()>& run) {
    try {
        run();
    } catch (const UserError& error) {
        return error.what();
    }
    return "";
}

/// Alters the record of one case and signs the store.
void alter_record(const fs::path& folder, const std::string& table, const std::string& text,
                  const std::function<void(HashTable&, CaseDigests&)>& change) {
    HashTable records = parse_hash_table(read_file(folder / table), table);
    REQUIRE(records.contains(text));
    CaseDigests digests = records[text];
    change(records, digests);
    if (records.contains(text)) records[text] = digests;
    write(folder / table, hash_table_text(records));
    sign(folder);
}

const std::string norm_case = "sinkhorn(rows=4,streams=3,iterations=1,hc_eps=1e-06,fill=normal,seed=7)";
const std::string linear_case =
    "linear_bf16(rows=5,outputs=33,inputs=16,sum=index_weights_proj,fill=limits,seed=7)";

}  // namespace

TEST_CASE("sha256: the vectors of FIPS 180-4, whole blocks and lengths around the padding") {
    const auto digest = [](const std::string& text) { return sha256_of(text); };
    CHECK(digest("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    CHECK(digest("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(digest("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
          "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    CHECK(digest("abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmn"
                 "hijklmnoijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu") ==
          "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1");
    CHECK(digest(std::string(1'000'000, 'a')) ==
          "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    std::set<std::string> different;
    for (size_t length = 0; length < 200; ++length) different.insert(digest(std::string(length, '\0')));
    CHECK(different.size() == 200);
}

TEST_CASE("golden cases: all of the registry's, every operator beyond them, each once, small ones kept") {
    std::set<std::string> texts, ids;
    std::map<std::string, int> swept, kept;
    for (const GoldenCase& golden : golden_cases()) {
        CAPTURE(golden.text);
        CHECK(texts.insert(golden.text).second);
        CHECK(ids.insert(golden.info->name + "/" + golden.id).second);
        CHECK(parse_case(golden.text, "").parameters.values == golden.parameters.values);
        CHECK_FALSE(golden.profiles.empty());
        if (keeps_tensors(golden)) kept[golden.info->name] += 1;
        swept[golden.info->name] += 1;
    }
    for (const OperatorInfo& info : operators()) {
        CAPTURE(info.name);
        CHECK(swept[info.name] > std::ssize(info.cases));
        CHECK(kept[info.name] >= 1);
        for (const OperatorCase& one : info.cases)
            CHECK(texts.contains(case_text(info, parse_case(one.text, "").parameters)));
    }
    for (const SweepRow& row : sweep_rows()) CHECK_FALSE(row.limit.empty());
}

TEST_CASE("golden cases: sets of values are expanded, the first varying slowest") {
    CHECK(expanded("a(b=1)") == std::vector<std::string>{"a(b=1)"});
    CHECK(expanded("a_{x|y}(b={1|2|3})") ==
          std::vector<std::string>{"a_x(b=1)", "a_x(b=2)", "a_x(b=3)", "a_y(b=1)", "a_y(b=2)", "a_y(b=3)"});
}

TEST_CASE("golden store: a fresh one is equal, in every tensor") {
    const fs::path folder = copied_store();
    const GoldenReport report = verify(folder);
    int64_t cases = 0, tensors = 0;
    for (const GoldenCase& golden : golden_cases()) {
        if (!taking(some_cases).takes(golden.text)) continue;
        cases += 1;
        tensors += std::ssize(input_slots(*golden.info, golden.parameters)) +
                   std::ssize(golden.profiles) * std::ssize(output_slots(*golden.info, golden.parameters));
    }
    CHECK(cases > 10);
    CHECK(report.passed());
    CHECK(report.cases == cases);
    CHECK(report.compared == tensors);
    CHECK(report.count(GoldenStatus::equal) == cases);
}

TEST_CASE("golden store: made twice, by one thread and by four, it has the same bytes") {
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    make_golden_store(scratch() / "one", taking(some_cases), false);
    omp_set_num_threads(4);
    make_golden_store(scratch() / "four", taking(some_cases), false);
    omp_set_num_threads(threads);
    CHECK(files_of(scratch() / "one") == files_of(scratch() / "four"));
}

TEST_CASE("golden store: one bit of any file is damage, never drift") {
    const auto original = files_of(copied_store());
    std::set<std::string> kinds;
    for (const auto& [path, bytes] : original) {
        const std::string kind = fs::path(path).filename().string();
        if (kind == manifest_name || !kinds.insert(kind).second) continue;
        for (const size_t byte : {size_t{0}, bytes.size() / 2, bytes.size() - 1}) {
            CAPTURE(path);
            CAPTURE(byte);
            const fs::path folder = copied_store();
            flip_bit(folder / path, byte, 3);
            const GoldenFinding found = only_problem(verify(folder));
            CHECK(found.status == GoldenStatus::damaged);
            CHECK(found.what == path);
        }
    }
    CHECK(kinds == std::set<std::string>{"case.json", "hashes.tsv", "tensors.safetensors"});
}

TEST_CASE("golden store: nothing is compared with a damaged table, everything with the others") {
    const fs::path folder = copied_store();
    const GoldenReport whole = verify(folder), of_norm = verify(folder, "^sinkhorn.rows=(4|16),");
    flip_bit(folder / "sinkhorn/hashes.tsv", 200, 0);
    const GoldenReport report = verify(folder);
    CHECK(report.count(GoldenStatus::damaged) == 1);
    CHECK(report.count(GoldenStatus::stale) == 0);
    CHECK(report.cases == whole.cases - of_norm.cases);
    CHECK(of_norm.cases > 0);
}

TEST_CASE("golden store: any bit of the manifest is damage of the manifest") {
    const fs::path folder = copied_store();
    const std::string text = read_file(folder / manifest_name);
    REQUIRE(parse_manifest(text).has_value());
    for (size_t byte = 0; byte < text.size(); ++byte)
        for (unsigned bit = 0; bit < 8; ++bit) {
            std::string flipped = text;
            flipped[byte] = static_cast<char>(static_cast<unsigned char>(flipped[byte]) ^ (1u << bit));
            if (parse_manifest(flipped).has_value()) {
                CAPTURE(byte);
                CAPTURE(bit);
                FAIL_CHECK("taken for whole");
            }
        }
    flip_bit(folder / manifest_name, 70, 0);
    const GoldenReport report = verify(folder);
    const GoldenFinding found = only_problem(report);
    CHECK(found.status == GoldenStatus::damaged);
    CHECK(found.what == manifest_name);
    CHECK(report.cases > 10);
    write(folder / manifest_name, text.substr(0, text.size() / 2));
    CHECK(only_problem(verify(folder)).status == GoldenStatus::damaged);
}

TEST_CASE("golden store: files that are missing and files that nobody lists") {
    const fs::path folder = copied_store();
    const std::string kept = open_golden_store(folder, [](std::string_view) { return true; }).kept[norm_case];
    REQUIRE(kept == "sinkhorn/rows=4,streams=3,iterations=1");
    fs::remove(folder / kept / tensors_file_name);
    GoldenFinding found = only_problem(verify(folder));
    CHECK(found.status == GoldenStatus::missing);
    CHECK(found.what == kept + "/tensors.safetensors");

    const fs::path other = copied_store();
    write(other / "top_k/notes.txt", "what is this?");
    found = only_problem(verify(other));
    CHECK(found.status == GoldenStatus::unlisted);
    CHECK(found.what == "top_k/notes.txt");
    // An operator that nobody asks for is not looked at.
    CHECK(verify(other, "^sinkhorn.rows=(4|16),").passed());
    // A case that nobody signed is not believed.
    fs::copy(other / kept, other / "sinkhorn/copy", fs::copy_options::recursive);
    CHECK(verify(other).count(GoldenStatus::unlisted) == 3);

    fs::remove(folder / "sinkhorn/hashes.tsv");
    const GoldenReport report = verify(folder, "^sinkhorn.rows=(4|16),");
    CHECK(report.count(GoldenStatus::missing) == 2);
    CHECK(report.cases == 0);
    CHECK_FALSE(report.passed());
}

TEST_CASE("golden store: another generator is input drift, and outputs are not compared") {
    const fs::path folder = copied_store();
    alter_record(folder, "sinkhorn/hashes.tsv", norm_case, [](HashTable&, CaseDigests& digests) {
        digests["inputs"]["a"].hash ^= 1;
        digests["exact"]["comb"].hash ^= 1;
    });
    const GoldenFinding found = only_problem(verify(folder));
    CHECK(found.status == GoldenStatus::input_drift);
    CHECK(found.what == norm_case);
    REQUIRE(found.changes.size() == 1);
    CHECK(found.changes[0].slot == "inputs/a");
    CHECK(found.changes[0].was != found.changes[0].is);
    CHECK(found.changes[0].differing == 0);  // the stored bits are those that are made
    CHECK(found.compared == 1);
}

TEST_CASE("golden store: other bits of a profile are output drift of that profile") {
    const fs::path folder = copied_store();
    alter_record(folder, "linear_bf16/hashes.tsv", linear_case,
                 [](HashTable&, CaseDigests& digests) { digests["hopper"]["accumulator"].hash += 1; });
    const GoldenFinding found = only_problem(verify(folder));
    CHECK(found.status == GoldenStatus::output_drift);
    REQUIRE(found.changes.size() == 1);
    CHECK(found.changes[0].slot == "hopper/accumulator");
    GoldenFilter exact = taking(some_cases);
    exact.arithmetic = Arithmetic::exact;
    CHECK(verify_golden_store(folder, exact).passed());
    exact.arithmetic = Arithmetic::released_hopper;  // hopper's bits, of this operator
    CHECK(verify_golden_store(folder, exact).count(GoldenStatus::output_drift) == 1);

    const fs::path reshaped = copied_store();
    alter_record(reshaped, "linear_bf16/hashes.tsv", linear_case,
                 [](HashTable&, CaseDigests& digests) { digests["exact"]["y"].form = "BF16[33,5]"; });
    CHECK(only_problem(verify(reshaped)).changes[0].text().find("BF16[33,5]:") != std::string::npos);
}

TEST_CASE("golden store: where bits are kept, drift says which elements") {
    const fs::path folder = copied_store();
    const fs::path tensors = folder / "sinkhorn/rows=4,streams=3,iterations=1/tensors.safetensors";
    CaseTensors kept = read_case_tensors(tensors);
    kept["exact"]["comb"].view<float>()[7] *= 2;
    kept["exact"]["comb"].view<float>()[9] *= 2;
    write_case_tensors(tensors, kept, norm_case);
    sign(folder);
    const GoldenFinding found = only_problem(verify(folder));
    CHECK(found.status == GoldenStatus::output_drift);
    REQUIRE(found.changes.size() == 1);
    CHECK(found.changes[0].slot == "exact/comb");
    CHECK(found.changes[0].differing == 2);
    CHECK(found.changes[0].elements == 36);
    CHECK(found.changes[0].first == 7);
}

TEST_CASE("golden store: cases and profiles that the store lacks are stale, cases that do not run refused") {
    const fs::path folder = copied_store();
    alter_record(folder, "sinkhorn/hashes.tsv", norm_case,
                 [](HashTable& table, CaseDigests&) { table.erase(norm_case); });
    GoldenFinding found = only_problem(verify(folder));
    CHECK(found.status == GoldenStatus::stale);
    CHECK(found.what == norm_case);

    const fs::path without = copied_store();
    alter_record(without, "linear_bf16/hashes.tsv", linear_case,
                 [](HashTable&, CaseDigests& digests) { digests.erase("hopper"); });
    found = only_problem(verify(without));
    CHECK(found.status == GoldenStatus::stale);
    CHECK(found.detail.find("hopper") != std::string::npos);

    const fs::path old = copied_store();
    const std::string gone = "sinkhorn(rows=16,streams=4,turns=2,seed=7)";
    alter_record(old, "sinkhorn/hashes.tsv", norm_case,
                 [&](HashTable& table, CaseDigests& digests) { table[gone] = digests; });
    found = only_problem(verify(old));
    CHECK(found.status == GoldenStatus::refused);
    CHECK(found.what == gone);
    CHECK(found.detail.find("turns") != std::string::npos);
}

TEST_CASE("golden make: a store is only added to, unless it may be replaced") {
    const fs::path folder = copied_store();
    const auto before = files_of(folder);
    GoldenMakeReport report = make_golden_store(folder, taking(some_cases), false);
    CHECK(report.written);
    CHECK(report.changes.empty());
    CHECK(files_of(folder) == before);

    alter_record(folder, "sinkhorn/hashes.tsv", norm_case,
                 [](HashTable&, CaseDigests& digests) { digests["exact"]["comb"].hash ^= 1; });
    const auto altered = files_of(folder);
    report = make_golden_store(folder, taking(some_cases), false);
    CHECK_FALSE(report.written);
    CHECK(files_of(folder) == altered);
    CHECK(report.count(GoldenChangeKind::changed) == 1);
    // Not even what would only be added.
    report = make_golden_store(folder, taking("^sinkhorn"), false);
    CHECK(report.count(GoldenChangeKind::added) > 0);
    CHECK(files_of(folder) == altered);

    report = make_golden_store(folder, taking("^sinkhorn.rows=4"), true);
    CHECK(report.written);
    REQUIRE(report.changes.size() >= 1);
    const auto changed = std::ranges::find(report.changes, GoldenChangeKind::changed, &GoldenChange::kind);
    REQUIRE(changed != report.changes.end());
    CHECK(changed->what == norm_case);
    REQUIRE(changed->slots.size() == 1);
    CHECK(changed->slots[0].slot == "exact/comb");
    CHECK(changed->slots[0].was != changed->slots[0].is);
    CHECK(changed->slots[0].differing == 0);
    CHECK(verify(folder).passed());
}

TEST_CASE(
    "golden make: what it replaces is shown element by element, what is gone from the list is removed") {
    const fs::path folder = copied_store();
    const fs::path tensors = folder / "sinkhorn/rows=4,streams=3,iterations=1/tensors.safetensors";
    CaseTensors kept = read_case_tensors(tensors);
    kept["exact"]["comb"].view<float>()[35] = 0;
    write_case_tensors(tensors, kept, norm_case);
    const std::string gone = "sinkhorn(rows=16,streams=7,iterations=20,hc_eps=1e-06,fill=normal,seed=7)";
    alter_record(folder, "sinkhorn/hashes.tsv", norm_case, [&](HashTable& table, CaseDigests& digests) {
        digests["exact"]["comb"] = digest_of(kept["exact"]["comb"]);
        table[gone] = digests;
    });
    const GoldenMakeReport report = make_golden_store(folder, taking(some_cases), true);
    REQUIRE(report.changes.size() == 2);
    CHECK(report.changes[0].kind == GoldenChangeKind::removed);
    CHECK(report.changes[0].what == gone);
    CHECK(report.changes[1].kind == GoldenChangeKind::changed);
    REQUIRE(report.changes[1].slots.size() == 1);
    CHECK(report.changes[1].slots[0].text().ends_with("1 of 36 elements differ, the first at 35"));
    CHECK(files_of(folder) == files_of(copied_store()));
}

TEST_CASE("golden make: files of which nothing is known are not replaced or removed unasked either") {
    const std::string kept = "sinkhorn/rows=4,streams=3,iterations=1";
    const fs::path folder = copied_store();
    fs::remove(folder / manifest_name);
    flip_bit(folder / "top_k/hashes.tsv", 9, 1);
    flip_bit(folder / kept / tensors_file_name, 300, 1);
    auto before = files_of(folder);
    GoldenMakeReport report = make_golden_store(folder, taking(some_cases), false);
    CHECK_FALSE(report.written);
    CHECK(report.count(GoldenChangeKind::rewritten) == 2);
    CHECK(files_of(folder) == before);
    CHECK(make_golden_store(folder, taking(some_cases), true).written);
    CHECK(files_of(folder) == files_of(copied_store()));

    // The folder of a case had another name.
    fs::rename(folder / kept, folder / "sinkhorn/old");
    sign(folder);
    before = files_of(folder);
    report = make_golden_store(folder, taking("^sinkhorn.rows=4"), false);
    CHECK_FALSE(report.written);
    CHECK(report.count(GoldenChangeKind::removed) == 2);
    CHECK(files_of(folder) == before);
    CHECK(make_golden_store(folder, taking("^sinkhorn.rows=(4|16),"), true).written);
    CHECK_FALSE(fs::exists(folder / "sinkhorn/old"));
    CHECK(files_of(folder) == files_of(copied_store()));
}

TEST_CASE("golden make: a part keeps the rest; of a damaged store nothing is kept") {
    const fs::path folder = copied_store();
    make_golden_store(folder, taking("^greedy_token.vocabulary=[12]"), false);
    CHECK(verify(folder).passed());
    CHECK(verify(folder, "^greedy_token.vocabulary=1,").passed());
    flip_bit(folder / "top_k/hashes.tsv", 100, 0);
    const std::string message = refusal([&] { make_golden_store(folder, taking("^sinkhorn"), true); });
    CHECK(message.find("top_k/hashes.tsv is damaged") != std::string::npos);
    CHECK(refusal([&] { make_golden_store(folder, taking("^nothing"), true); }).find("no case") !=
          std::string::npos);
}

TEST_CASE("golden make: a file that cannot be put in its place leaves the store as it was") {
    const fs::path folder = copied_store();
    {
        const auto before = files_of(folder);
        FileReplacement replacement(folder);
        for (const char* path : {"sinkhorn/hashes.tsv", "a/new/file"}) write(replacement.aside(path), "new");
        const std::string message = refusal([&] {
            replacement.commit({"top_k/hashes.tsv"}, {"sinkhorn/hashes.tsv", "a/new/file", "not/there"});
        });
        CHECK(message.find("not/there") != std::string::npos);
        fs::remove_all(folder / ".replacement.partial");
        CHECK(files_of(folder) == before);
        CHECK_FALSE(fs::exists(folder / "a"));
        CHECK_FALSE(fs::exists(folder / "not"));
    }
    // A folder where a file belongs, after others that would be replaced.
    const std::string blocked = "top_k/rows=8,columns=129,k=48,fill=special/tensors.safetensors";
    REQUIRE(fs::remove(folder / blocked));
    alter_record(folder, "sinkhorn/hashes.tsv", norm_case,
                 [](HashTable&, CaseDigests& digests) { digests["exact"]["comb"].hash ^= 1; });
    write(folder / blocked / "inside", "not ours");
    const auto before = files_of(folder);
    const std::string message = refusal([&] { make_golden_store(folder, taking(some_cases), true); });
    CHECK(message.find(blocked) != std::string::npos);
    CHECK(files_of(folder) == before);
}

TEST_CASE("golden make: what is not committed leaves nothing, and what was left aside is cleared away") {
    const fs::path folder = copied_store();
    const auto before = files_of(folder);
    {
        FileReplacement replacement(folder);
        write(replacement.aside("sinkhorn/hashes.tsv"), "half of a table");
    }
    CHECK(files_of(folder) == before);
    write(folder / ".replacement.partial/new/sinkhorn/hashes.tsv", "of a killed process");
    CHECK(verify(folder).passed());
    CHECK(make_golden_store(folder, taking(some_cases), false).written);
    CHECK(files_of(folder) == before);
}

TEST_CASE("golden store: tables and manifests of another form are refused") {
    const std::string good = "# case\tpart\tslot=TYPE[shape]:tensor_hash ... (version 1)\n";
    CHECK(parse_hash_table(good, "t").empty());
    for (const std::string text : {"", "x\n", "# case\n"})
        CHECK_FALSE(refusal([&] { parse_hash_table(text, "t"); }).empty());
    for (const std::string line :
         {"a\n", "\tinputs\n", "a\t\n", "a\tb\tx\n", "a\tb\tx=F32[1]\n", "a\tb\tx=F32[1]:123\n",
          "a\tb\tx=F32[1]:00000000000000zz\n", "a\tb\tx=F32[1]:0123456789abcdef",
          "a\tb\tx=F32[1]:0123456789abcdef\tx=F32[1]:0123456789abcdef\n", "a\tb\na\tb\n", "\n"}) {
        CAPTURE(line);
        CHECK(refusal([&] { parse_hash_table(good + line, "t"); }).find("t:") != std::string::npos);
    }
    const std::string digest(64, 'a');
    CHECK(parse_manifest(manifest_text({{"a/b", digest}})) == Manifest{{"a/b", digest}});
    for (const std::string path : {"/etc/passwd", "../x", "a/../../x", "a b"}) {
        CAPTURE(path);
        CHECK_FALSE(parse_manifest(manifest_text({{path, digest}})).has_value());
    }
    CHECK(refusal([] { golden_filter("", "(", std::nullopt); }).find("regular expression") !=
          std::string::npos);
}
