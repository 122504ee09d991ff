// The shared library of the package, by its C interface.
#include <touchstone.h>

#include <cstdio>

int main() {
    touchstone_tensors* outputs = nullptr;
    if (touchstone_run_case("sinkhorn(rows=1)", "exact", &outputs) != touchstone_ok) return 1;
    std::printf("%s of sinkhorn: %lld tensor\n", touchstone_version(),
                static_cast<long long>(touchstone_tensors_count(outputs)));
    touchstone_tensors_free(outputs);
}
