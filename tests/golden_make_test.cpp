#include "golden/store/store_make.h"

#include <doctest/doctest.h>
#include <omp.h>

#include <algorithm>
#include <string>

#include "golden/store/case_file.h"
#include "golden/store/file_replacement.h"
#include "golden_store.h"

using namespace touchstone;
using namespace touchstone::small_store;

TEST_CASE("golden store: made twice, by one thread and by four, it has the same bytes") {
    const int threads = omp_get_max_threads();
    omp_set_num_threads(1);
    make_golden_store(scratch() / "one", taking(some_cases), false);
    omp_set_num_threads(4);
    make_golden_store(scratch() / "four", taking(some_cases), false);
    omp_set_num_threads(threads);
    CHECK(files_of(scratch() / "one") == files_of(scratch() / "four"));
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
    CHECK(changed->slots[0].differing == 0);  // the kept bits were those that are made
    CHECK(changed->slots[0].text().find("-1") == std::string::npos);
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
    const GoldenFinding found = only_problem(verify(folder));
    CHECK(found.status == GoldenStatus::unlisted);
    CHECK(found.what == ".replacement.partial");
    CHECK(make_golden_store(folder, taking(some_cases), false).written);
    CHECK(files_of(folder) == before);
}

TEST_CASE("golden make: files that a killed process had taken away are put back, wherever it was stopped") {
    const std::vector<std::string> removed{"top_k/hashes.tsv"};
    const std::vector<std::string> added{"sinkhorn/hashes.tsv", "a/new/file", std::string(manifest_name)};
    const auto whole = files_of(copied_store());
    // Of each path the moves of commit(): away, then in. `stop` of them have been done.
    for (int stop = 0; stop <= 6; ++stop) {
        CAPTURE(stop);
        const fs::path folder = copied_store(), aside = folder / ".replacement.partial";
        for (const std::string& path : added) write(aside / "new" / path, "new");
        write(
            aside / "moves",
            "removed top_k/hashes.tsv\nadded sinkhorn/hashes.tsv\nadded a/new/file\nadded MANIFEST.sha256\n");
        int moves = 0;
        const auto move = [&](const fs::path& from, const fs::path& to) {
            if (moves++ >= stop) return;
            fs::create_directories(to.parent_path());
            fs::rename(from, to);
        };
        move(folder / removed[0], aside / "old" / removed[0]);
        for (const std::string& path : added) {
            if (path != "a/new/file") move(folder / path, aside / "old" / path);
            move(aside / "new" / path, folder / path);
        }
        REQUIRE(moves == 6);
        // Also while the manifest is away this is a store, and no whole one.
        CHECK(is_golden_store(folder));
        CHECK(verify(folder).count(GoldenStatus::unlisted) >= 1);
        CHECK(verify(folder).count(GoldenStatus::missing) >= (stop == 5 ? 1 : 0));
        CHECK(make_golden_store(folder, taking(some_cases), false).changes.empty());
        CHECK(files_of(folder) == whole);
        CHECK_FALSE(fs::exists(folder / "a"));
    }
}

TEST_CASE(
    "golden make: what was aside of a finished replacement is not put back, nor moves of another kind") {
    const fs::path folder = copied_store();
    const auto before = files_of(folder);
    write(folder / ".replacement.partial/old/sinkhorn/hashes.tsv", "an older table");
    CHECK(make_golden_store(folder, taking(some_cases), false).changes.empty());
    CHECK(files_of(folder) == before);
    for (const std::string moves : {"added ../x\n", "added /x\n", "added\n", "moved x\n", "removed \n"}) {
        CAPTURE(moves);
        write(folder / ".replacement.partial/moves", moves);
        CHECK(refusal([&] { FileReplacement refused(folder); }).find("is no move") != std::string::npos);
        CHECK(fs::exists(folder / ".replacement.partial/moves"));
    }
}

TEST_CASE("golden make: there is one at a time in a folder") {
    const fs::path folder = copied_store();
    const auto before = files_of(folder);
    {
        FileReplacement first(folder);
        write(first.aside("sinkhorn/hashes.tsv"), "new");
        const std::string message = refusal([&] { make_golden_store(folder, taking(some_cases), true); });
        CHECK(message.find("another make is at work") != std::string::npos);
        CHECK(fs::exists(first.aside("sinkhorn/hashes.tsv")));
        // Another folder is another matter.
        CHECK(make_golden_store(copied_store(), taking(some_cases), true).written);
    }
    CHECK(make_golden_store(folder, taking(some_cases), true).written);
    CHECK(files_of(folder) == before);
}
