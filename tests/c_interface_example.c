/* Touchstone from C11: runs a case in two arithmetics and compares the outputs.
 *   cc -std=c11 tests/c_interface_example.c -Igolden -Lbuild/golden -ltouchstone -o example */
#include <stdio.h>

#include "touchstone.h"

static int failed(const char* what) {
    fprintf(stderr, "%s: %s\n", what, touchstone_last_error());
    return 1;
}

int main(void) {
    const char* text = "linear_bf16(rows=2,outputs=40,inputs=1024,seed=3)";
    touchstone_tensors *exact = NULL, *hopper = NULL;
    if (touchstone_run_case(text, "exact", &exact) != touchstone_ok) return failed(text);
    if (touchstone_run_case(text, "hopper", &hopper) != touchstone_ok) return failed(text);
    printf("touchstone %s: %s\n", touchstone_version(), text);
    for (int64_t i = 0; i < touchstone_tensors_count(exact); ++i) {
        touchstone_tensor expected, got;
        touchstone_comparison found = {.struct_bytes = sizeof found};
        if (touchstone_tensors_get(exact, i, &expected) != touchstone_ok) return failed("exact");
        if (touchstone_tensors_get(hopper, i, &got) != touchstone_ok) return failed("hopper");
        touchstone_status status = touchstone_compare(&expected, &got, "fp32_row", &found);
        if (status != touchstone_ok && status != touchstone_differs) return failed("compare");
        printf("%s: %lld of %lld elements differ, %lld are outside fp32_row\n", expected.name,
               (long long)(found.elements - found.identical), (long long)found.elements,
               (long long)found.outside);
    }
    touchstone_tensors_free(exact);
    touchstone_tensors_free(hopper);
    return 0;
}
