#include "golden/store/store.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <map>
#include <set>
#include <string>
#include <vector>

#include "golden/store/case_file.h"
#include "golden/store/sha256.h"
#include "golden/store/sweep_cases.h"
#include "golden_store.h"

using namespace touchstone;
using namespace touchstone::small_store;

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

TEST_CASE("golden store: one bit of any file is damage, never drift") {
    const auto original = files_of(copied_store());
    std::set<std::string> kinds;
    for (const auto& file : original) {
        const std::string &path = file.first, &bytes = file.second;
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

TEST_CASE("golden store: links to nothing and pipes are findings, and the rest is verified") {
    const fs::path folder = copied_store();
    const int64_t cases = verify(folder).cases;
    const std::string tensors = "sinkhorn/rows=4,streams=3,iterations=1/tensors.safetensors";
    REQUIRE(fs::remove(folder / tensors));
    fs::create_symlink("/nowhere", folder / tensors);
    GoldenReport report = verify(folder);
    GoldenFinding found = only_problem(report);
    CHECK(found.status == GoldenStatus::damaged);
    CHECK(found.what == tensors);
    CHECK(report.cases == cases);

    const fs::path other = copied_store();
    fs::create_symlink("loop", other / "top_k/loop");
    found = only_problem(verify(other));
    CHECK(found.status == GoldenStatus::unlisted);
    CHECK(found.what == "top_k/loop");
    REQUIRE(fs::remove(other / "top_k/loop"));
    fs::create_directory_symlink(folder, other / "top_k/elsewhere");
    CHECK(only_problem(verify(other)).what == "top_k/elsewhere");
    REQUIRE(fs::remove(other / "top_k/elsewhere"));

    REQUIRE(mkfifo((other / "top_k/pipe").c_str(), 0600) == 0);
    CHECK(only_problem(verify(other)).status == GoldenStatus::unlisted);
    REQUIRE(fs::remove(other / "top_k/hashes.tsv"));
    fs::rename(other / "top_k/pipe", other / "top_k/hashes.tsv");
    report = verify(other);
    CHECK(only_problem(report).status == GoldenStatus::damaged);
    CHECK(report.cases > 0);
    CHECK(report.cases < cases);
    // Of a damaged manifest too, nobody waits for a pipe.
    flip_bit(other / manifest_name, 70, 0);
    CHECK(verify(other).count(GoldenStatus::damaged) == 2);
}

TEST_CASE("golden store: another generator is input drift, and outputs are not compared") {
    const fs::path folder = copied_store();
    forget_tensors(folder, norm_case);
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
    CHECK(found.changes[0].differing == -1);
    CHECK(found.compared == 1);
}

TEST_CASE("golden store: other bits of a profile are output drift of that profile") {
    const fs::path folder = copied_store();
    forget_tensors(folder, linear_case);
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
    forget_tensors(reshaped, linear_case);
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
    alter_record(folder, "sinkhorn/hashes.tsv", norm_case, [&](HashTable&, CaseDigests& digests) {
        digests["exact"]["comb"] = digest_of(kept["exact"]["comb"]);
    });
    const GoldenFinding found = only_problem(verify(folder));
    CHECK(found.status == GoldenStatus::output_drift);
    REQUIRE(found.changes.size() == 1);
    CHECK(found.changes[0].slot == "exact/comb");
    CHECK(found.changes[0].differing == 2);
    CHECK(found.changes[0].elements == 36);
    CHECK(found.changes[0].first == 7);
}

TEST_CASE("golden store: bits that differ are a change, whatever their hashes") {
    TensorMap was{{"y", {"U8", {3}, {std::byte{1}, std::byte{2}, std::byte{3}}}}}, is = was;
    const PartDigests digests{{"y", digest_of(was["y"])}};
    CHECK(changes_of_part("exact", {&digests, &was}, {&digests, &is}).empty());
    is["y"].bytes[1] = std::byte{9};
    const std::vector<SlotChange> changes = changes_of_part("exact", {&digests, &was}, {&digests, &is});
    REQUIRE(changes.size() == 1);
    CHECK(changes[0].text().ends_with(", 1 of 3 elements differ, the first at 1"));
}

TEST_CASE("golden store: hashes and kept tensors that do not agree are damage, whichever is wrong") {
    const std::string path = "sinkhorn/rows=4,streams=3,iterations=1/tensors.safetensors";
    const fs::path wrong_hash = copied_store(), wrong_bits = copied_store(), unreadable = copied_store();
    alter_record(wrong_hash, "sinkhorn/hashes.tsv", norm_case,
                 [](HashTable&, CaseDigests& digests) { digests["exact"]["comb"].hash ^= 1; });
    CaseTensors kept = read_case_tensors(wrong_bits / path);
    kept["exact"]["comb"].view<float>()[7] *= 2;
    write_case_tensors(wrong_bits / path, kept, norm_case);
    sign(wrong_bits);
    write(unreadable / path, "no tensors");
    sign(unreadable);
    for (const fs::path& folder : {wrong_hash, wrong_bits, unreadable}) {
        CAPTURE(folder);
        const GoldenFinding found = only_problem(verify(folder));
        CHECK(found.status == GoldenStatus::damaged);
        CHECK(found.what == norm_case);
        CHECK(found.changes.empty());
        const std::string named = folder == unreadable ? "tensors.safetensors" : "exact/comb";
        CHECK(found.detail.find(named) != std::string::npos);
    }
}

TEST_CASE("golden store: a damaged table is named whatever is asked of it") {
    const fs::path folder = copied_store();
    flip_bit(folder / "top_k/hashes.tsv", 200, 0);
    const std::string not_listed = "top_k(rows=9,columns=77)";
    const GoldenReport of_case = verify_golden_store(folder, golden_filter(not_listed, "", std::nullopt));
    CHECK(only_problem(of_case).what == "top_k/hashes.tsv");
    CHECK(only_problem(verify(folder, "rows=9,columns=77,")).what == "top_k/hashes.tsv");
    // What is asked for is of another operator.
    CHECK(verify(folder, "^sinkhorn.rows=(4|16),").passed());
    CHECK(verify_golden_store(folder, golden_filter("sinkhorn(rows=99)", "", std::nullopt)).findings.empty());

    // The files of a case that is stored, and no longer listed.
    const fs::path old = copied_store();
    const std::string gone = "sinkhorn(rows=16,streams=7,iterations=20,hc_eps=1e-06,fill=normal,seed=7)";
    alter_record(old, "sinkhorn/hashes.tsv", norm_case,
                 [&](HashTable& table, CaseDigests& digests) { table[gone] = digests; });
    write(old / "sinkhorn/notes.txt", "what is this?");
    CHECK(verify(old, "^sinkhorn.rows=16,streams=7,").count(GoldenStatus::unlisted) == 1);
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
