// One planted mistake per sanitizer, chosen by argument, and correct OpenMP code that none may complain
// about.
#include <climits>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace {

/// Reads one past the end; the index comes from outside so that the compiler cannot see it.
int heap_overflow(int argc) {
    const auto values = std::make_unique<int[]>(8);
    return values[static_cast<size_t>(6 + argc)];
}

int leak(int argc) {
    int* volatile lost = new int[64];
    lost[0] = argc;
    lost = nullptr;
    return 0;
}

int signed_overflow(int argc) {
    const int sum = INT_MAX - 1 + argc;
    return sum == 0 ? 1 : 0;
}

/// Four threads add to one variable without a lock.
int data_race(int) {
    long sum = 0;
#pragma omp parallel for num_threads(4)
    for (int i = 0; i < 100000; ++i) sum += i;
    std::printf("%ld\n", sum);
    return 0;
}

/// Rows written by one loop and read in another order by the next: right because of the barrier between them.
int clean(int) {
    std::vector<long> rows(1000);
    long sum = 0;
    for (int round = 0; round < 50; ++round) {
#pragma omp parallel for num_threads(4)
        for (int i = 0; i < 1000; ++i) rows[static_cast<size_t>(i)] += i;
#pragma omp parallel for num_threads(4) schedule(dynamic, 8) reduction(+ : sum)
        for (int i = 0; i < 1000; ++i) sum += rows[static_cast<size_t>(999 - i)];
    }
    return sum == 499500L * (50 * 51 / 2) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    const std::map<std::string, std::function<int(int)>> mistakes = {{"heap_overflow", heap_overflow},
                                                                     {"leak", leak},
                                                                     {"signed_overflow", signed_overflow},
                                                                     {"data_race", data_race},
                                                                     {"clean", clean}};
    const auto chosen = argc == 2 ? mistakes.find(argv[1]) : mistakes.end();
    if (chosen == mistakes.end()) {
        std::fprintf(
            stderr,
            "sanitizer_canary: one argument of heap_overflow, leak, signed_overflow, data_race, clean\n");
        return 2;
    }
    return chosen->second(argc);
}
